// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ILedger} from "../src/ILedger.sol";
import {Member, RunConfig, Stay} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice Whose work was what part of an epoch's seals, through all changes of slots.
contract PayTest is Fixture {
    uint256 internal constant EPOCHS = 4;

    bytes32 internal run;
    mapping(uint256 epoch => mapping(address => uint256)) internal expected;
    mapping(uint256 epoch => uint256) internal seals;

    function test_whoStaysHasAllThatWasGiven() public {
        begin(3);
        work(run, 0, who, 33);
        for (uint32 epoch = 0; epoch < 2; ++epoch) {
            uint256 sum = 0;
            for (uint256 i = 0; i < 3; ++i) {
                uint256 earned = ledger.earnedIn(run, 0, epoch, who[i], 0);
                vm.assertEq(earned, 1360); // a third of 16 x 255
                sum += earned;
            }
            vm.assertEq(ledger.sealsIn(run, 0, epoch), 16);
            vm.assertEq(sum, 16 * 255);
        }
        vm.expectRevert(abi.encodeWithSelector(ILedger.EpochNotOver.selector, 2));
        ledger.earnedIn(run, 0, 2, who[0], 0);
        vm.expectRevert(abi.encodeWithSelector(ILedger.EpochNotOver.selector, 2));
        ledger.sealsIn(run, 0, 2);
        vm.assertEq(ledger.earnedIn(run, 0, 0, who[0], 1), 0); // it has one stay
        vm.assertEq(ledger.earnedIn(run, 0, 0, who[0], type(uint32).max), 0);
        vm.assertEq(ledger.earnedIn(run, 0, 0, founder, 0), 0);
    }

    /// @dev Two share a lane in one epoch; each has its own part, and of the epochs before and after.
    function test_aLaneChangesHands() public {
        begin(3);
        work(run, 0, who, 20);
        quit(run, who[2]);
        Stay[] memory stays = ledger.staysOf(run, who[2]);
        vm.assertEq(stays.length, 1);
        vm.assertEq(abi.encode(stays[0]), abi.encode(Stay(0, 2, 0, 1, 340)));
        pass(1);
        enrolMore(1);
        join(run, who[3], 0);
        vm.assertEq(ledger.memberOf(run, who[3]).lane, 2);
        sealNothing(run, 0, who);
        work(run, 0, some(who[0], who[1], who[3]), 27); // until round 48
        vm.assertEq(ledger.earnedIn(run, 0, 0, who[2], 0), 1360);
        vm.assertEq(ledger.earnedIn(run, 0, 1, who[2], 0), 340);
        vm.assertEq(ledger.earnedIn(run, 0, 2, who[2], 0), 0);
        vm.assertEq(ledger.earnedIn(run, 0, 0, who[3], 0), 0);
        vm.assertEq(ledger.sealsIn(run, 0, 1), 15);
        for (uint32 epoch = 0; epoch < 3; ++epoch) {
            uint256 sum = ledger.earnedIn(run, 0, epoch, who[2], 0) + ledger.earnedIn(run, 0, epoch, who[3], 0);
            for (uint256 i = 0; i < 2; ++i) sum += ledger.earnedIn(run, 0, epoch, who[i], 0);
            vm.assertEq(sum, 255 * ledger.sealsIn(run, 0, epoch));
        }
    }

    /// @dev The last epoch is over with the run, whole or not.
    function test_theEndOfTheRunEndsItsEpoch() public {
        enrol(2);
        RunConfig memory config = configOf(1, 1, 2);
        config.rounds = 20;
        run = create(config);
        for (uint256 i = 0; i < 2; ++i) join(run, who[i], 0);
        work(run, 0, who, 20);
        vm.assertEq(ledger.sealsIn(run, 0, 1), 4);
        uint256 earned = ledger.earnedIn(run, 0, 1, who[0], 0);
        quit(run, who[0]);
        vm.assertEq(ledger.earnedIn(run, 0, 1, who[0], 0), earned);
        vm.assertEq(earned + ledger.earnedIn(run, 0, 1, who[1], 0), 4 * 255);
        vm.assertEq(ledger.sealsIn(run, 0, 7), 0); // there is none
    }

    /// @dev An epoch without work has no seals, and what was earned before stays where it was.
    function test_anEmptyEpoch() public {
        begin(2);
        work(run, 0, who, 10);
        for (uint256 k = 0; k < 24; ++k) sealNothing(run, 0, founded(who));
        vm.assertEq(ledger.sealsIn(run, 0, 0), 10);
        vm.assertEq(ledger.sealsIn(run, 0, 1), 0);
        uint256 first = ledger.earnedIn(run, 0, 0, who[0], 0);
        vm.assertEq(ledger.earnedIn(run, 0, 1, who[0], 0), 0);
        work(run, 0, who, 16); // writes the first one down
        vm.assertEq(ledger.earnedIn(run, 0, 0, who[0], 0), first);
        vm.assertEq(first + ledger.earnedIn(run, 0, 0, who[1], 0), 10 * 255);
        vm.assertEq(ledger.sealsIn(run, 0, 2), 14);
    }

    /// @dev Through all that five accounts do with three slots, in and across epochs: each has what it was counted for
    /// while it held a slot, and all together never more than there is.
    /// forge-config: default.fuzz.runs = 24
    function testFuzz_everybodyHasItsOwn(uint256 chance) public {
        enrol(5);
        RunConfig memory config = configOf(1, 1, 3);
        run = create(config);
        for (uint256 i = 0; i < 3; ++i) join(run, who[i], 0);
        for (uint256 round = 0; round < 16 * EPOCHS; ++round) {
            chance = uint256(keccak256(abi.encode(chance)));
            play(chance);
            pass(ROUND_TIMEOUT);
            Work[] memory works = worksOf(run, makers(uint32(round), chance >> 128));
            uint256 total = 0;
            for (uint256 i = 0; i < works.length; ++i) {
                total += works[i].innerSteps = 1 + uint32(chance >> (8 * i)) % INNER_STEPS;
            }
            pass(40 * ROUND_TIMEOUT); // what is left of those who left
            ledger.seal(signedBy(sealOf(run, 0, works), works, founded(who)));
            if (total == 0) continue;
            note(works, total, round / 16);
        }
        for (uint32 epoch = 0; epoch < EPOCHS; ++epoch) {
            vm.assertEq(ledger.sealsIn(run, 0, epoch), seals[epoch]);
            uint256 sum = 0;
            for (uint256 i = 0; i < 5; ++i) {
                uint256 earned = 0;
                uint256 stays = ledger.staysOf(run, who[i]).length;
                for (uint256 k = 0; k <= stays; ++k) earned += ledger.earnedIn(run, 0, epoch, who[i], k);
                vm.assertEq(earned, expected[epoch][who[i]]);
                sum += earned;
            }
            vm.assertTrue(sum <= 255 * seals[epoch]);
        }
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function begin(uint256 members) internal {
        enrol(members);
        run = create(configOf(1, 1, uint16(members)));
        for (uint256 i = 0; i < members; ++i) join(run, who[i], 0);
    }

    function play(uint256 chance) internal {
        if (chance % 4 != 0) return;
        address account = who[(chance >> 16) % 5];
        bytes memory deed = ledger.memberOf(run, account).holds
            ? abi.encodeCall(ledger.leaveRun, (run))
            : abi.encodeCall(ledger.joinRun, (run, 0));
        vm.prank(account);
        (bool done,) = address(ledger).call(deed);
        done;
    }

    /// @dev Some of those whose record of the round the ledger takes.
    function makers(uint32 round, uint256 chance) internal view returns (address[] memory list) {
        for (uint256 i = 0; i < 5; ++i) {
            Member memory m = ledger.memberOf(run, who[i]);
            bool has = m.holds && m.changedRound != round + 1;
            bool settled = has && (activityOf(run, 0).changed >> m.replica) & 1 == 0;
            if (settled && (chance >> i) & 3 != 0) list = joined(list, some(who[i]));
        }
    }

    function note(Work[] memory works, uint256 total, uint256 epoch) internal {
        uint256 offset = total * ((activityOf(run, 0).nonEmpty - 1) % 16) / 16;
        uint256 sum = 0;
        for (uint256 i = 0; i < works.length; ++i) {
            uint256 next = sum + works[i].innerSteps;
            uint256 pay = (255 * next + offset) / total - (255 * sum + offset) / total;
            expected[epoch][works[i].account] += pay;
            sum = next;
        }
        ++seals[epoch];
    }
}
