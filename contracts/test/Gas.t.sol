// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Member, RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {Charge, Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice What calls cost, as transactions of their own: calldata and 21,000 included. Not a limit; gas.json has those.
contract GasTest is Fixture {
    event log_named_uint(string key, uint256 val); // forge prints it with -vv

    function test_seal2() public { seals(2); }
    function test_seal8() public { seals(8); }
    function test_seal32() public { seals(32); }
    function test_seal64() public { seals(64); }

    /// @dev Of a stage that has weight; the round before begins an epoch.
    function seals(uint16 n) internal {
        enrol(n);
        RunConfig memory config = configOf(1, 1, n);
        bytes32 run = create(config);
        for (uint256 i = 0; i < n; ++i) join(run, who[i], 0);
        work(run, 0, who, 2);
        measure(name(n, "with the founder's entry"), n, sealBy(run, 0, who, founded(who)), MIN_ROUND_TIME);
        work(run, 0, who, 13);
        measure(name(n, "new epoch"), n, sealBy(run, 0, who, who), MIN_ROUND_TIME);
        measure(name(n, "all sign"), n, sealBy(run, 0, who, who), MIN_ROUND_TIME);
        measure(name(n, "a quarter signs its record only"), n, sealBy(run, 0, who, part(n / 4, n)), MIN_ROUND_TIME);
        measure(name(n, "late"), n, sealBy(run, 0, who, who), 2 * ROUND_TIMEOUT);
        measure(name(n, "empty"), n, sealBy(run, 0, none(), who), ROUND_TIMEOUT);
    }

    function name(uint256 n, string memory how) internal pure returns (string memory) {
        string memory number = n == 2 ? "2" : n == 8 ? "8" : n == 32 ? "32" : "64";
        return string.concat("seal ", number, ", ", how);
    }

    function measure(string memory what, uint256 n, Seal memory s, uint256 wait) internal {
        pass(wait);
        uint256 gas = send(address(this), abi.encodeCall(ledger.seal, (s)));
        emit log_named_uint(what, gas);
        emit log_named_uint("  a contribution", gas / n);
    }

    function test_slots() public {
        enrol(16);
        bytes32 run = create(configOf(1, 1, 16));
        for (uint256 i = 0; i < 8; ++i) join(run, who[i], 0);
        work(run, 0, part(0, 8), 18);
        emit log_named_uint("join", send(who[8], abi.encodeCall(ledger.joinRun, (run, 0))));
        emit log_named_uint("leave", send(who[7], abi.encodeCall(ledger.leaveRun, (run))));
        pass(1);
        emit log_named_uint("come back", send(who[7], abi.encodeCall(ledger.joinRun, (run, 0))));
        Charge memory c = charge(run, 0, 0, who[6]);
        emit log_named_uint("convict, 6 verdicts", send(who[7], convictCall(c, found(c, 2, part(0, 6)))));
        expire(run);
        pass(1);
        emit log_named_uint("accuse", send(who[0], abi.encodeCall(ledger.accuse, (run, who[1]))));
        emit log_named_uint("answer", send(who[1], abi.encodeCall(ledger.answer, (run))));
        pass(ROUND_TIMEOUT + 1);
        ask(run, who[0], who[1]);
        pass(EVICTION_TIME);
        emit log_named_uint("evict", send(who[0], abi.encodeCall(ledger.evict, (run, who[1]))));
    }

    function test_deals() public {
        enrol(128);
        deals(3, 3);
        deals(64, 2);
    }

    function deals(uint16 stages, uint16 replicas) internal {
        RunConfig memory config = configOf(stages, 1, replicas);
        config.manifest = bytes32(uint256(stages));
        bytes32 run = create(config);
        for (uint256 i = 0; i < uint256(stages) * replicas; ++i) join(run, who[i], uint16(i % stages));
        for (uint256 k = 0; k < 3; ++k) {
            for (uint16 stage = 0; stage < stages; ++stage) sealNothing(run, stage, some(founder));
        }
        emit log_named_uint(stages == 3 ? "deal 3x3" : "deal 64x2", send(who[0], abi.encodeCall(ledger.deal, (run, 0))));
    }

    /// @dev All that the transaction takes before refunds.
    function send(address from, bytes memory data) internal returns (uint256 gas) {
        gas = 21_000;
        for (uint256 i = 0; i < data.length; ++i) gas += data[i] == 0 ? 4 : 16;
        vm.cool(address(ledger));
        vm.prank(from);
        uint256 before = gasleft();
        (bool done,) = address(ledger).call(data);
        gas += before - gasleft();
        require(done);
    }
}
