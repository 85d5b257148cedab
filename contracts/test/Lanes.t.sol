// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Activity, Member, RunConfig} from "../src/Runs.sol";
import {ILedger} from "../src/ILedger.sol";
import {Seal} from "../src/Seals.sol";
import {Weights} from "../src/Weights.sol";
import {Charge, Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice What seals, slots and time make of weight.
contract LanesTest is Fixture {
    using Weights for uint256;

    // ---------------------------------------------------------------------------------------------------- seals

    /// @dev Seals of some of five members, with any steps and some of them empty, beside the rule in plain words.
    /// forge-config: default.fuzz.runs = 24
    function testFuzz_theRule(uint256 chance, uint16 horizon) public {
        RunConfig memory config = configOf(1, 1, 5);
        config.horizon = uint16(8 << (horizon % 8));
        bytes32 run = begin(5, config);
        uint256[5] memory weights;
        uint256[5] memory ages = [uint256(15), 15, 15, 15, 15];
        uint256 seals = 0;
        for (uint256 k = 0; k < 12; ++k) {
            chance = uint256(keccak256(abi.encode(chance)));
            uint256 makers = chance % 32;
            address[] memory list = chosen(makers);
            Work[] memory works = worksOf(run, list);
            uint256 total = 0;
            for (uint256 i = 0; i < works.length; ++i) {
                total += works[i].innerSteps = 1 + uint32(chance >> (32 * (1 + i))) % INNER_STEPS;
            }
            Seal memory s = signedBy(sealOf(run, 0, works), works, founded(who));
            expire(run);
            ledger.seal(s);
            uint256 sum = 0;
            uint256 offset = total * (seals % 16) / 16;
            for (uint256 i = 0; i < 5 && total != 0; ++i) {
                weights[i] -= (weights[i] + Weights.jitter(seals, 3 + horizon % 8)) / config.horizon;
                ages[i] = ages[i] == 15 ? 15 : ages[i] + 1;
            }
            for (uint256 i = 0; i < works.length; ++i) {
                uint256 unit = Weights.FULL / config.horizon;
                uint256 next = sum + works[i].innerSteps;
                uint256 slot = works[i].replica;
                uint256 more = (unit * next + offset) / total - (unit * sum + offset) / total;
                weights[slot] = weights[slot] + more > 65_535 ? 65_535 : weights[slot] + more;
                ages[slot] = 0;
                sum = next;
            }
            if (total != 0) ++seals;
            for (uint256 i = 0; i < 5; ++i) {
                uint256 lane = laneOf(run, who[i]);
                vm.assertEq(lane.weightOf(), weights[i], "weight");
                vm.assertEq(lane.ageOf(), ages[i], "age");
                vm.assertEq(ledger.weightOf(run, who[i]), weights[i]);
            }
            vm.assertEq(activityOf(run, 0).nonEmpty, seals);
        }
    }

    /// @dev Chance favours nobody: who works the same gets the same pay over sixteen seals, and all of it is given.
    function test_equalWorkIsEqualPayAndWeight() public {
        for (uint256 n = 1; n <= 11; n += 2) {
            uint256 snapshot = vm.snapshotState();
            bytes32 run = begin(n, configOf(1, 1, uint16(n)));
            work(run, 0, who, 16);
            uint256 sum = 0;
            for (uint256 i = 0; i < n; ++i) {
                uint256 lane = laneOf(run, who[i]);
                sum += lane.payOf();
                vm.assertTrue(lane.payOf() >= 4080 / n && lane.payOf() <= 4080 / n + 1);
                uint256 first = laneOf(run, who[0]).weightOf();
                vm.assertTrue(lane.weightOf() <= first + 8 && first <= lane.weightOf() + 8);
            }
            vm.assertEq(sum, 16 * 255);
            vm.revertToState(snapshot);
            delete who;
        }
    }

    /// @dev Sixty-four lanes are eight words.
    function test_sixtyFourMembers() public {
        bytes32 run = begin(64, configOf(1, 1, 64));
        work(run, 0, who, 16);
        uint256 sum = 0;
        for (uint256 i = 0; i < 64; ++i) {
            vm.assertEq(ledger.memberOf(run, who[i]).lane, i);
            uint256 lane = laneOf(run, who[i]);
            sum += lane.payOf();
            vm.assertTrue(lane.payOf() == 63 || lane.payOf() == 64);
        }
        vm.assertEq(sum, 16 * 255);
        (uint256 held,,,) = ledger.weightsOf(run, 0);
        vm.assertEq(held, weightOf(run, who));
        sealSignedBy(run, 0, who, part(21, 64)); // two thirds
    }

    /// @dev Weight grows towards all that there is, and never over it.
    function test_weightNeverPassesFull() public {
        bytes32 run = begin(2, configOf(1, 1, 2));
        uint256 last = 0;
        for (uint256 k = 0; k < 60; ++k) {
            sealWith(run, 0, who);
            uint256 sum = weightOf(run, who);
            vm.assertTrue(sum >= last || last - sum <= 16);
            vm.assertTrue(sum < Weights.FULL + 16);
            last = sum;
        }
        vm.assertTrue(last > Weights.FULL * 99 / 100);
    }

    /// @dev Half of the work of a lane is forgotten in 0.7 horizons, and its age says since when.
    function test_idlenessFades() public {
        bytes32 run = begin(3, configOf(1, 1, 3));
        work(run, 0, who, 20);
        uint256 before = ledger.weightOf(run, who[2]);
        for (uint256 k = 1; k <= 20; ++k) {
            sealWith(run, 0, part(0, 2));
            vm.assertEq(laneOf(run, who[2]).ageOf(), k < 15 ? k : 15);
            vm.assertTrue(ledger.isForfeit(run, who[2]) == (k >= 8));
            if (k == 5) vm.assertTrue(ledger.weightOf(run, who[2]) * 100 / before == 51);
        }
        vm.assertTrue(ledger.weightOf(run, who[2]) * 100 < before * 7);
        sealNothing(run, 0, who);
        vm.assertEq(activityOf(run, 0).empties, 1);
        vm.assertEq(laneOf(run, who[0]).ageOf(), 0); // an empty seal ages nobody
    }

    /// @dev A late seal counts like any other: whether its makers sign it or their records only.
    function test_aLateSealCountsAlike() public {
        bytes32 run = begin(4, configOf(1, 1, 4));
        work(run, 0, who, 10);
        Seal memory s = sealBy(run, 0, who, part(0, 3));
        pass(2 * ROUND_TIMEOUT);
        ledger.seal(s);
        for (uint256 i = 0; i < 4; ++i) {
            vm.assertTrue(laneOf(run, who[i]).payOf() * 4 >= 11 * 255 - 8);
            vm.assertTrue(laneOf(run, who[i]).weightOf() + 8 >= laneOf(run, who[0]).weightOf());
        }
    }

    // ---------------------------------------------------------------------------------------------------- slots

    /// @dev A lane is the lowest free one, and the account's wherever deals and moves put it.
    function test_lanesFollowTheirAccounts() public {
        bytes32 run = begin(4, configOf(1, 1, 8));
        work(run, 0, who, 4);
        enrolMore(2);
        uint256[4] memory lanes;
        for (uint256 i = 0; i < 4; ++i) lanes[i] = laneOf(run, who[i]);
        quit(run, who[1]);
        pass(1);
        join(run, who[4], 0);
        requireSlot(run, who[4], 1, 0);
        vm.assertEq(ledger.memberOf(run, who[4]).lane, 1);
        vm.assertEq(laneOf(run, who[4]), Weights.fresh(0));
        join(run, who[5], 0);
        vm.assertEq(ledger.memberOf(run, who[5]).lane, 4);
        for (uint256 i = 0; i < 4; ++i) if (i != 1) vm.assertEq(laneOf(run, who[i]), lanes[i]);
        join(run, who[1], 0);
        vm.assertEq(ledger.memberOf(run, who[1]).lane, 5);
        vm.assertTrue(laneOf(run, who[1]).weightOf() + 3 >= lanes[1].weightOf());
        vm.assertEq(laneOf(run, who[1]).payOf(), 0); // that is the stay's
    }

    function test_lanesAfterMoves() public {
        bytes32 run = begin(6, configOf(2, 1, 3));
        sealWith(run, 0, some(who[0], who[2], who[4]));
        uint256 lane = laneOf(run, who[4]);
        quit(run, who[1]); // stage 1, so replica 0 is incomplete
        quit(run, who[5]); // and 2
        quit(run, who[0]);
        pass(1);
        vm.prank(who[4]);
        ledger.moveDown(run);
        requireSlot(run, who[4], 0, 0);
        vm.assertEq(ledger.memberOf(run, who[4]).lane, 2);
        vm.assertEq(laneOf(run, who[4]), lane);
    }

    function test_lanesAfterDeals() public {
        bytes32 run = begin(6, configOf(2, 1, 3));
        for (uint256 k = 0; k < 4; ++k) {
            sealWith(run, 0, some(who[0], who[2]));
            sealWith(run, 1, some(who[1], who[3], who[5]));
        }
        uint256[6] memory lanes;
        for (uint256 i = 0; i < 6; ++i) lanes[i] = laneOf(run, who[i]);
        for (uint256 k = 0; k < 20; ++k) {
            vm.assertTrue(k < 19);
            if (deal(run, 2)) break; // each seal draws anew
            for (uint16 stage = 0; stage < 2; ++stage) sealNothing(run, stage, founded(who));
        }
        for (uint256 i = 0; i < 6; ++i) {
            Member memory m = ledger.memberOf(run, who[i]);
            vm.assertEq(laneOf(run, who[i]), lanes[i]);
            vm.assertEq(m.lane, i / 2);
            requireSlot(run, who[i], m.replica, uint16(i % 2));
        }
        work(run, 0, some(who[0], who[2], who[4]), 1);
        for (uint256 i = 0; i < 6; i += 2) vm.assertEq(laneOf(run, who[i]).ageOf(), 0);
    }

    // ----------------------------------------------------------------------------------------------- the absent

    /// @dev The pool is what those who left have still, and never more; it fades with time and with seals.
    /// forge-config: default.fuzz.runs = 24
    function testFuzz_thePoolIsWhatTheAbsentHave(uint256 chance) public {
        bytes32 run = begin(6, configOf(1, 1, 6));
        work(run, 0, who, 12);
        uint256 left = 0;
        for (uint256 k = 0; k < 24; ++k) {
            chance = uint256(keccak256(abi.encode(chance)));
            address account = who[chance % 6];
            if (ledger.memberOf(run, account).holds) {
                uint256 weight = ledger.weightOf(run, account);
                if (chance % 7 < 3) quit(run, account);
                vm.assertEq(ledger.weightOf(run, account), weight);
            } else if (chance % 7 < 3) {
                pass(1);
                uint256 weight = ledger.weightOf(run, account);
                join(run, account, 0);
                vm.assertTrue(ledger.weightOf(run, account) >= weight); // as if it had been there
            }
            pass((chance >> 64) % (4 * ROUND_TIMEOUT));
            if (chance % 5 == 0) trySeal(run, who);
            left = 0;
            for (uint256 i = 0; i < 6; ++i) {
                if (!ledger.memberOf(run, who[i]).holds) left += ledger.weightOf(run, who[i]);
            }
            (uint256 held, uint256 absent, uint256 slow,) = ledger.weightsOf(run, 0);
            vm.assertTrue(absent <= left + 6 && left <= absent + 1); // each is rounded down by itself
            vm.assertTrue(absent <= slow);
            vm.assertTrue(held + absent < Weights.FULL + 8);
        }
    }

    /// @dev Leaving and coming back thousands of times takes nothing from others who are away, and adds nothing.
    function test_thePoolIsNotWornDown() public {
        bytes32 run = begin(4, configOf(1, 1, 4));
        work(run, 0, who, 30);
        quit(run, who[0]);
        quit(run, who[1]);
        uint256 theirs = ledger.weightOf(run, who[0]) + ledger.weightOf(run, who[1]);
        for (uint256 k = 0; k < 500; ++k) {
            quit(run, who[3]);
            pass(1);
            join(run, who[3], 0);
        }
        (, uint256 absent, uint256 slow,) = ledger.weightsOf(run, 0);
        // In 500 s of 600 a timeout, of which 64 take half.
        vm.assertTrue(absent * 1000 >= theirs * 990 && absent < theirs);
        vm.assertEq(slow, theirs);
        uint256 now_ = ledger.weightOf(run, who[0]) + ledger.weightOf(run, who[1]);
        vm.assertTrue(now_ <= absent + 3 && absent <= now_ + 3);
    }

    /// @dev In another stage an account has no weight of the first, and that stays in the first one's pool.
    function test_weightDoesNotCrossStages() public {
        bytes32 run = begin(6, configOf(2, 1, 4));
        sealWith(run, 0, some(who[0], who[2], who[4]));
        uint256 weight = ledger.weightOf(run, who[0]);
        quit(run, who[0]);
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.SealPending.selector, 0, 1));
        ledger.joinRun(run, 1);
        work(run, 1, some(who[1], who[3], who[5]), 1);
        sealWith(run, 0, some(who[2], who[4]));
        join(run, who[0], 1);
        vm.assertEq(ledger.weightOf(run, who[0]), 0);
        (, uint256 absent,,) = ledger.weightsOf(run, 0);
        vm.assertTrue(absent * 8 >= weight * 7 - 100);
        // Nor does it come back with the account.
        quit(run, who[0]);
        sealWith(run, 1, some(who[1], who[3], who[5]));
        sealWith(run, 0, some(who[2], who[4]));
        join(run, who[0], 0);
        vm.assertEq(ledger.weightOf(run, who[0]), 0);
    }

    /// @dev Half of an absent member's weight is left in seals after 64 timeouts; in verdicts all, and when it comes back.
    function test_absenceFadesByTime() public {
        bytes32 run = begin(4, configOf(1, 1, 4));
        work(run, 0, who, 30);
        uint256 weight = ledger.weightOf(run, who[3]);
        quit(run, who[3]);
        pass(64 * ROUND_TIMEOUT);
        vm.assertTrue(ledger.weightOf(run, who[3]) * 2 <= weight && weight <= ledger.weightOf(run, who[3]) * 2 + 2);
        (, uint256 fast, uint256 slow,) = ledger.weightsOf(run, 0);
        vm.assertTrue(fast * 2 <= weight && weight <= fast * 2 + 2);
        vm.assertEq(slow, weight);
        join(run, who[3], 0);
        vm.assertEq(ledger.weightOf(run, who[3]), weight);
        (, fast, slow,) = ledger.weightsOf(run, 0);
        vm.assertTrue(fast == 0 && slow == 0);
    }

    /// @dev Who was convicted takes its weight with it, whether it holds a slot or has left.
    function test_aConvictsWeightIsGone() public {
        for (uint256 left = 0; left < 2; ++left) {
            uint256 snapshot = vm.snapshotState();
            bytes32 run = begin(4, configOf(1, 1, 4));
            work(run, 0, who, 20);
            if (left == 1) quit(run, who[3]);
            convict(charge(run, 0, 0, who[3]), part(0, 3));
            vm.assertEq(ledger.weightOf(run, who[3]), 0);
            (uint256 held, uint256 absent, uint256 slow,) = ledger.weightsOf(run, 0);
            vm.assertEq(held, weightOf(run, part(0, 3)));
            vm.assertTrue(absent == 0 && slow == 0);
            vm.revertToState(snapshot);
            delete who;
        }
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function begin(uint256 members, RunConfig memory config) internal returns (bytes32 run) {
        enrol(members);
        run = create(config);
        for (uint256 i = 0; i < members; ++i) join(run, who[i], uint16(i % config.stages));
    }

    function chosen(uint256 bits) internal view returns (address[] memory list) {
        for (uint256 i = 0; i < who.length; ++i) if ((bits >> i) & 1 == 1) list = joined(list, some(who[i]));
    }

    function deal(bytes32 run, uint16 replica) internal returns (bool done) {
        (done,) = address(ledger).call(abi.encodeCall(ledger.deal, (run, replica)));
    }

    /// @dev Of all that hold a slot, who work, and everybody signs.
    function trySeal(bytes32 run, address[] memory all) internal {
        address[] memory held;
        for (uint256 i = 0; i < all.length; ++i) {
            if (ledger.memberOf(run, all[i]).holds) held = joined(held, some(all[i]));
        }
        Seal memory s = sealBy(run, 0, none(), founded(all));
        pass(8 * ROUND_TIMEOUT);
        (bool done,) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        vm.assertTrue(done);
        s = sealBy(run, 0, held, founded(all));
        pass(8 * ROUND_TIMEOUT);
        (done,) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        vm.assertTrue(done);
    }
}
