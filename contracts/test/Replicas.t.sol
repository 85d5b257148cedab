// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunConfig, Runs} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice What a member of one stage tries on those of another, in runs of two stages.
contract ReplicasTest is Fixture {
    /// @dev One breaker in each replica: nobody else is counted, but each has its made-up work counted in its own stage.
    /// That does not keep its replica from being dealt.
    function test_madeUpWorkInOneStageDoesNotPutOffADeal() public {
        bytes32 run = newRun(configOf(2, 2, 2));
        (address breaker, address other) = (who[0], who[3]);
        for (uint256 round = 0; round < 3; ++round) {
            vm.assertFalse(dealt(run, 0) || dealt(run, 1));
            pass(4 * ROUND_TIMEOUT); // what one of two may seal
            ledger.seal(sealBy(run, 0, some(breaker), some(breaker, who[2])));
            ledger.seal(sealBy(run, 1, some(other), some(who[1], other)));
        }
        vm.assertTrue(dealt(run, 0) || dealt(run, 1));
    }

    /// @dev A run of the fewest replicas, before anybody was counted: a member of stage 1 leaves in the block of a seal
    /// of stage 0, and again before each other try.
    function test_leavingAStageTakesNoVoteInAnother() public {
        bytes32 run = newRun(configOf(2, 2, 2));
        Seal memory s = sealBy(run, 0, some(who[0], who[2]), some(who[0], who[2]));
        pass(MIN_ROUND_TIME);
        vm.prank(who[3]);
        ledger.leaveRun(run);
        ledger.seal(s);
    }

    /// @dev Nor does it before work is counted again in a stage that has lost all its voters.
    function test_leavingAStageTakesNoVoteWhereNoneIsEarned() public {
        bytes32 run = newRun(configOf(2, 2, 2));
        for (uint16 stage = 0; stage < 2; ++stage) {
            Seal memory first = sealBy(run, stage, some(who[stage], who[2 + stage]), some(who[stage], who[2 + stage]));
            pass(MIN_ROUND_TIME);
            ledger.seal(first);
        }
        for (uint256 i = 0; i < 3; i += 2) {
            vm.prank(who[i]);
            ledger.leaveRun(run);
        }
        pass(1);
        join(run, who[0], 0);
        join(run, who[2], 0);
        Seal memory s = sealBy(run, 0, new address[](0), some(who[0], who[2]));
        pass(4 * ROUND_TIMEOUT);
        vm.prank(who[3]);
        ledger.leaveRun(run);
        ledger.seal(s);
    }

    /// @dev While no vote is earned, one of two members leaves its seat to another account of its own: still one vote.
    function test_aPairOfAccountsHasOneVoteForASeat() public {
        enrol(3);
        bytes32 run = create(configOf(1, 2, 2));
        join(run, who[0], 0);
        join(run, who[1], 0);
        vm.prank(who[1]);
        ledger.leaveRun(run);
        pass(1);
        join(run, who[2], 0);
        Seal memory s = sealBy(run, 0, new address[](0), some(who[1], who[2]));
        pass(ROUND_TIMEOUT);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.QuorumMissing.selector, 1, 2));
        ledger.seal(s);
        ledger.seal(sealBy(run, 0, new address[](0), some(who[0], who[1])));
    }

    /// @dev Not prevented: where the honest sign a first seal that counts nobody but a breaker, the vote is its alone, and
    /// it seals without them. The ledger cannot tell made-up work; who signs has to.
    function test_whoASignedSealCountsVotes() public {
        bytes32 run = newRun(configOf(2, 1, 2));
        address breaker = who[0];
        pass(ROUND_TIMEOUT);
        ledger.seal(sealBy(run, 0, some(breaker), some(breaker, who[2])));
        ledger.seal(sealBy(run, 1, some(who[1]), some(who[1], who[3])));
        (uint64 voters, uint256 needed) = ledger.quorumOf(run, 0);
        vm.assertEq(voters, 1);
        vm.assertEq(needed, 1);
        pass(MIN_ROUND_TIME);
        ledger.seal(sealBy(run, 0, some(breaker), some(breaker)));
    }

    // --------------------------------------------------------------------------------------------------- helpers

    /// @dev Two replicas: (0, 0), (0, 1), (1, 0), (1, 1) in this order.
    function newRun(RunConfig memory config) internal returns (bytes32 run) {
        enrol(4);
        run = create(config);
        for (uint256 i = 0; i < 4; ++i) join(run, who[i], uint16(i % 2));
    }

    function sealBy(bytes32 run, uint16 stage, address[] memory makers, address[] memory signers)
        internal
        view
        returns (Seal memory)
    {
        Work[] memory works = worksOf(run, makers);
        return signedBy(sealOf(run, stage, works), works, signers);
    }

    function dealt(bytes32 run, uint16 replica) internal returns (bool ok) {
        (ok,) = address(ledger).call(abi.encodeCall(ledger.deal, (run, replica)));
    }
}
