// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Runs} from "../src/Runs.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {Fixture} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @dev One stage, three replicas, round 0 open.
contract AccusationsTest is Fixture {
    bytes32 private run;

    function setUp() public {
        enrol(4);
        run = create(configOf(1, 3, 4));
        for (uint256 i = 0; i < 3; ++i) {
            join(run, who[i], ANY);
        }
    }

    function accuse(address by, address account) private {
        vm.prank(by);
        ledger.accuse(run, account);
    }

    function refuseAccusing(address by, address account, bytes memory reason) private {
        vm.prank(by);
        vm.expectRevert(reason);
        ledger.accuse(run, account);
    }

    function pass(uint256 time, uint256 blocks) private {
        vm.warp(block.timestamp + time);
        vm.roll(block.number + blocks);
    }

    function test_accusedOnlyAfterTheRoundTimeout() public {
        pass(ROUND_TIMEOUT, 100);
        refuseAccusing(who[0], who[1], abi.encodeWithSelector(TrainingLedger.TooEarlyToAccuse.selector, who[1]));
        pass(1, 1);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Accused(run, who[1], 1, 0, 0, who[0]);
        accuse(who[0], who[1]);
    }

    function test_onlyHoldersAccuseAndAreAccused() public {
        pass(ROUND_TIMEOUT + 1, 100);
        refuseAccusing(who[3], who[1], abi.encodeWithSelector(Runs.NotHolding.selector, who[3]));
        refuseAccusing(who[0], who[3], abi.encodeWithSelector(Runs.NotHolding.selector, who[3]));
    }

    function test_nobodyIsAccusedBeforeRoundZeroOpensOrAfterTheLastRound() public {
        bytes32 first = run;
        run = ledger.createRun(configOf(1, 3, 3), NAME, genesisOf(1));
        join(run, who[0], ANY);
        join(run, who[1], ANY);
        pass(ROUND_TIMEOUT + 1, 100);
        refuseAccusing(who[0], who[1], abi.encodeWithSelector(Runs.RoundNotOpen.selector));

        run = first;
        for (uint256 round = 0; round < 10; ++round) {
            sealWith(run, 0, some(who[0], who[1], who[2]));
        }
        pass(ROUND_TIMEOUT + 1, 100);
        refuseAccusing(who[0], who[1], abi.encodeWithSelector(Runs.RunFinished.selector));
    }

    function test_answeringEndsTheAccusation() public {
        pass(ROUND_TIMEOUT + 1, 100);
        accuse(who[0], who[1]);
        refuseAccusing(who[2], who[1], abi.encodeWithSelector(TrainingLedger.AccusationPending.selector, who[1]));
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Answered(run, who[1]);
        vm.prank(who[1]);
        ledger.answer(run);
        vm.prank(who[1]);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.NotAccused.selector, who[1]));
        ledger.answer(run);
        pass(EVICTION_TIME, 100);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.NotAccused.selector, who[1]));
        ledger.evict(run, who[1]);
    }

    function test_accusedOncePerRoundAndAgainAfterAFurtherTimeout() public {
        pass(ROUND_TIMEOUT + 1, 100);
        accuse(who[0], who[1]);
        vm.prank(who[1]);
        ledger.answer(run);
        bytes memory again = abi.encodeWithSelector(TrainingLedger.AlreadyAccused.selector, who[1], 0);
        refuseAccusing(who[2], who[1], again);
        pass(ROUND_TIMEOUT, 100);
        refuseAccusing(who[2], who[1], again);
        pass(1, 1);
        accuse(who[2], who[1]);
    }

    function test_leavingAndJoiningAgainDoesNotAllowASecondAccusationAtOnce() public {
        pass(ROUND_TIMEOUT + 1, 100);
        accuse(who[0], who[1]);
        vm.prank(who[1]);
        ledger.leaveRun(run);
        join(run, who[1], ANY);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.NotAccused.selector, who[1]));
        ledger.evict(run, who[1]);
        refuseAccusing(who[0], who[1], abi.encodeWithSelector(TrainingLedger.AlreadyAccused.selector, who[1], 0));
    }

    function test_evictedOnlyAfterTheTimeAndFiveBlocks() public {
        pass(ROUND_TIMEOUT + 1, 100);
        accuse(who[0], who[1]);
        uint256 fromTime = block.timestamp + EVICTION_TIME;
        uint256 fromBlock = block.number + 5;
        bytes memory early = abi.encodeWithSelector(TrainingLedger.TooEarlyToEvict.selector, fromTime, fromBlock);
        vm.warp(fromTime + 1000);
        vm.roll(fromBlock - 1); // a chain that stood still evicts nobody
        vm.expectRevert(early);
        ledger.evict(run, who[1]);
        vm.warp(fromTime - 1);
        vm.roll(fromBlock + 1000);
        vm.expectRevert(early);
        ledger.evict(run, who[1]);

        vm.warp(fromTime);
        vm.roll(fromBlock);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Evicted(run, who[1], 1, 0);
        vm.prank(address(0xdead)); // anyone
        ledger.evict(run, who[1]);
        vm.assertEq(ledger.holderOf(run, 1, 0), address(0));
        join(run, who[3], ANY);
        requireSlot(run, who[3], 1, 0);
        join(run, who[1], ANY);
        requireSlot(run, who[1], 3, 0);
    }

    function test_movingDownDoesNotAnswerAnAccusation() public {
        // Two stages, so that a replica can be incomplete.
        run = ledger.createRun(configOf(2, 1, 3), NAME, genesisOf(2));
        join(run, who[0], 0);
        join(run, who[1], 1);
        join(run, who[2], 0);
        vm.prank(who[0]);
        ledger.leaveRun(run);
        pass(ROUND_TIMEOUT + 1, 100);
        accuse(who[1], who[2]);
        vm.prank(who[2]);
        ledger.moveDown(run);
        pass(EVICTION_TIME, 5);
        ledger.evict(run, who[2]);
        vm.assertEq(ledger.holderOf(run, 0, 0), address(0));
    }

    function test_silentForThreeSealedRoundsIsAccusedBeforeTheTimeout() public {
        bytes memory early = abi.encodeWithSelector(TrainingLedger.TooEarlyToAccuse.selector, who[2]);
        sealWith(run, 0, some(who[0], who[1], who[2]));
        sealWith(run, 0, some(who[0], who[1]));
        sealWith(run, 0, some(who[0], who[1]));
        refuseAccusing(who[0], who[2], early);
        sealWith(run, 0, some(who[0], who[1]));
        accuse(who[0], who[2]);
    }

    function test_newcomersGetThreeRoundsToBecomeActive() public {
        for (uint256 round = 0; round < 4; ++round) {
            sealWith(run, 0, some(who[0], who[1], who[2]));
        }
        join(run, who[3], ANY);
        bytes memory early = abi.encodeWithSelector(TrainingLedger.TooEarlyToAccuse.selector, who[3]);
        sealWith(run, 0, some(who[0], who[1], who[2]));
        sealWith(run, 0, some(who[0], who[1], who[2]));
        refuseAccusing(who[0], who[3], early);
        sealWith(run, 0, some(who[0], who[1], who[2]));
        accuse(who[0], who[3]);
    }

    function test_anEvictedHolderNoLongerBlocksTheQuorum() public {
        sealWith(run, 0, some(who[0], who[1], who[2])); // all three active: 2 of 3 needed
        (uint256 members, uint256 needed) = ledger.quorumOf(run, 0);
        vm.assertEq(members, 3);
        vm.assertEq(needed, 2);
        pass(ROUND_TIMEOUT + 1, 100);
        accuse(who[0], who[1]);
        accuse(who[0], who[2]);
        pass(EVICTION_TIME, 5);
        ledger.evict(run, who[1]);
        ledger.evict(run, who[2]);
        sealWith(run, 0, some(who[0]));
        vm.assertEq(ledger.nextRound(run, 0), 2);
    }
}
