// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {ILedger} from "../src/ILedger.sol";
import {Fixture} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice What a member of one stage tries on those of another, in runs of two stages.
contract ReplicasTest is Fixture {
    /// @dev One breaker in each replica: nobody else is counted, but each has its made-up work counted in its own stage.
    /// That does not keep its replica from being dealt, once a draw gives it anything but itself.
    function test_madeUpWorkInOneStageDoesNotPutOffADeal() public {
        bytes32 run = newRun(configOf(2, 2, 2));
        for (uint256 round = 0; round < 3; ++round) {
            vm.assertFalse(dealt(run, 0) || dealt(run, 1));
            sealMadeUp(run);
        }
        for (uint256 more = 0; !dealt(run, 0) && !dealt(run, 1); ++more) {
            vm.assertLt(more, 5, "draws");
            sealMadeUp(run);
        }
    }

    /// @dev Its replica has three rounds from the one in which it was first complete, whichever that is.
    function test_aNewReplicaIsNotDealtAtOnce() public {
        enrol(4);
        bytes32 run = create(configOf(2, 1, 2));
        address[] memory first = part(0, 2);
        for (uint16 stage = 0; stage < 2; ++stage) join(run, first[stage], stage);
        for (uint16 stage = 0; stage < 2; ++stage) sealWith(run, stage, some(first[stage]));
        for (uint16 stage = 0; stage < 2; ++stage) join(run, who[2 + stage], stage);
        for (uint256 round = 1; round < 4; ++round) {
            vm.expectRevert(abi.encodeWithSelector(ILedger.TooEarlyToDeal.selector, 1, 4));
            ledger.deal(run, 1);
            for (uint16 stage = 0; stage < 2; ++stage) sealWith(run, stage, some(first[stage]));
        }
        for (uint256 more = 0; !dealt(run, 1); ++more) {
            vm.assertLt(more, 8, "draws");
            for (uint16 stage = 0; stage < 2; ++stage) sealWith(run, stage, some(first[stage]));
        }
    }

    /// @dev A member of stage 1 leaves in the block of a seal of stage 0, and before the next: that takes nothing from it.
    function test_leavingAStageTakesNothingFromAnother() public {
        bytes32 run = newRun(configOf(2, 2, 2));
        for (uint256 k = 0; k < 8; ++k) {
            sealWith(run, 0, some(who[0], who[2]));
            if (k < 7) sealWith(run, 1, some(who[1], who[3]));
        }
        sealWith(run, 1, some(who[1], who[3]));
        Seal memory s = sealBy(run, 0, some(who[0], who[2]), some(who[0], who[2]));
        pass(MIN_ROUND_TIME);
        quit(run, who[3]);
        ledger.seal(s);
        sealWith(run, 1, some(who[1], who[3])); // the last word of the one that left
        quit(run, who[1]);
        sealWith(run, 0, some(who[0], who[2]));
    }

    /// @dev One of two members leaves its slot to another account of its own: that has no weight.
    function test_weightIsNotHandedOn() public {
        enrol(3);
        bytes32 run = create(configOf(1, 2, 2));
        join(run, who[0], 0);
        join(run, who[1], 0);
        work(run, 0, part(0, 2), 12);
        quit(run, who[1]);
        pass(1);
        join(run, who[2], 0);
        vm.assertEq(ledger.weightOf(run, who[2]), 0);
        Seal memory s = sealBy(run, 0, none(), some(who[1], who[2]));
        pass(ROUND_TIMEOUT - 1);
        (uint256 votes,) = missing(s);
        vm.assertEq(votes, ledger.weightOf(run, who[1]));
        sealNothing(run, 0, part(0, 2));
    }

    /// @dev Not prevented: where the founder signs seals that count nobody but a breaker, the weight is its alone. The
    /// ledger cannot tell made-up work; who signs has to.
    function test_whoASignedSealCountsHasWeight() public {
        bytes32 run = newRun(configOf(2, 1, 2));
        address breaker = who[0];
        for (uint256 k = 0; k < 6; ++k) {
            sealWith(run, 0, some(breaker));
            sealWith(run, 1, some(who[1], who[3]));
        }
        vm.assertEq(vacuumOf(run, 0), 0);
        sealSignedBy(run, 0, some(breaker), some(breaker));
    }

    // --------------------------------------------------------------------------------------------------- helpers

    /// @dev Two replicas: (0, 0), (0, 1), (1, 0), (1, 1) in this order.
    function newRun(RunConfig memory config) internal returns (bytes32 run) {
        enrol(4);
        run = create(config);
        for (uint256 i = 0; i < 4; ++i) join(run, who[i], uint16(i % 2));
    }

    /// @dev Counts one of each stage, each in another replica.
    function sealMadeUp(bytes32 run) internal {
        pass(ROUND_TIMEOUT); // what the work of one may seal
        ledger.seal(sealBy(run, 0, some(who[0]), founded(some(who[0], who[2]))));
        ledger.seal(sealBy(run, 1, some(who[3]), founded(some(who[1], who[3]))));
    }

    function dealt(bytes32 run, uint16 replica) internal returns (bool ok) {
        (ok,) = address(ledger).call(abi.encodeCall(ledger.deal, (run, replica)));
    }
}
