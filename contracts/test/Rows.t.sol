// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ILedger} from "../src/ILedger.sol";
import {Member, RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {Weights} from "../src/Weights.sol";
import {Charge, Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice Attackers who are not idle, and bring gas and a little work: what each of them has for it, in weight and time.
contract RowsTest is Fixture {
    event log_named_uint(string key, uint256 val); // forge prints it with -vv

    // --------------------------------------------------------------------------------------------- a little work

    /// @dev Sixteen slots beside eight honest work in two rounds of eight, a sixteenth of the steps: 3% of the compute
    /// is 3% of the weight, and never a third.
    function test_littleWorkIsLittleWeight() public {
        RunConfig memory config = configOf(1, 1, 24);
        config.horizon = 32;
        bytes32 run = begin(24, config);
        for (uint256 k = 0; k < 64; ++k) {
            bool both = k % 4 == 0;
            Work[] memory works = worksOf(run, both ? who : part(0, 8));
            for (uint256 i = 0; i < works.length; ++i) {
                if (!isIn(works[i].account, part(0, 8))) works[i].innerSteps = INNER_STEPS / 16;
            }
            address[] memory signers = vacuumOf(run, 0) == 0 ? part(0, 8) : founded(part(0, 8));
            Seal memory s = signedBy(sealOf(run, 0, works), works, signers);
            pass(MIN_ROUND_TIME); // the honest never wait for them
            ledger.seal(s);
        }
        uint256 theirs = weightOf(run, part(8, 24));
        emit log_named_uint("weight of 16 lazy slots, per mille", theirs * 1000 / totalOf(run, 0));
        vm.assertTrue(theirs * 100 <= totalOf(run, 0) * 4);
        Seal memory garbage = sealBy(run, 0, part(8, 24), part(8, 24));
        pass(1000 * ROUND_TIMEOUT);
        refused(garbage, theirs, third(totalOf(run, 0)));
        refusedConviction(charge(run, 0, 0, who[0]), part(8, 24));
    }

    /// @dev Slots that send noise until they are drawn, each for some rounds, have what they were counted for.
    function test_noiseHasWhatItEarnedBeforeItIsDrawn() public {
        RunConfig memory config = configOf(1, 1, 12);
        config.horizon = 32;
        bytes32 run = begin(12, config);
        work(run, 0, part(0, 8), 24);
        for (uint256 k = 0; k < 4; ++k) sealWith(run, 0, who); // four of twelve send noise
        uint256 noise = weightOf(run, part(8, 12));
        vm.assertTrue(noise * 10 <= totalOf(run, 0)); // a tenth for a third of the slots
        for (uint256 i = 8; i < 12; ++i) convict(charge(run, 0, 25, who[i]), part(0, 8));
        vm.assertEq(weightOf(run, part(8, 12)), 0);
        sealWith(run, 0, part(0, 8));
    }

    // -------------------------------------------------------------------------------------------------- at birth

    /// @dev Before there is work accounts decide nothing, ten or a thousand: a founder does.
    function test_accountsAloneNeverOwnARun() public {
        bytes32 run = begin(10, configOf(1, 1, 10));
        Seal memory s = sealBy(run, 0, part(0, 7), part(0, 7));
        pass(MIN_ROUND_TIME);
        refused(s, 0, Weights.ENOUGH * 2 / 3 + 1);
        pass(1000 * ROUND_TIMEOUT);
        refused(s, 0, third(Weights.ENOUGH)); // however late
        refusedConviction(charge(run, 0, 0, who[8]), part(0, 7));
        // The founder seals what three of them did, with nobody else's signature.
        ledger.seal(sealBy(run, 0, part(7, 10), some(founder)));
        vm.assertEq(weightOf(run, part(7, 10)), UNIT);
        vm.assertEq(vacuumOf(run, 0), Weights.ENOUGH - UNIT);
    }

    /// @dev The first that joins does not play through the run alone.
    function test_theFirstJoinerSealsNothing() public {
        bytes32 run = begin(1, configOf(1, 1, 8));
        for (uint256 k = 0; k < 5; ++k) {
            Seal memory s = sealBy(run, 0, who, who);
            pass(100 * ROUND_TIMEOUT);
            refused(s, 0, third(Weights.ENOUGH));
        }
    }

    /// @dev In vain it signs as the founder, or names one that is none.
    function test_nobodyElseIsTheFounder() public {
        bytes32 run = begin(2, configOf(1, 1, 8));
        vm.assertTrue(ledger.isFounder(run, founder));
        Seal memory s = sealBy(run, 0, who, who);
        bytes memory own = s.signatures;
        for (uint256 k = 0; k < 3; ++k) {
            uint8 first = [192, 193, 255][k];
            s.signatures = bytes.concat(own, bytes1(first), sign(who[0], digestOf(s)));
            pass(ROUND_TIMEOUT);
            vm.expectRevert();
            ledger.seal(s);
        }
        // Its entry proves no record, nor does its signature under a replica's number count.
        s.signatures = bytes.concat(hex"00", sign(founder, digestOf(s)));
        vm.expectRevert();
        ledger.seal(s);
        s.signatures = bytes.concat(own, hex"00", sign(founder, digestOf(s)));
        refused(s, 0, third(Weights.ENOUGH));
        s.signatures = bytes.concat(own, hex"c0", sign(founder, digestOf(s)));
        ledger.seal(s);
    }

    /// @dev A stage taken at birth and worked in once in thirty rounds: its holders lose it to the founder, who seals
    /// their rounds meanwhile after one timeout each.
    function test_aStageTakenAtBirthIsGivenBack() public {
        RunConfig memory config = configOf(2, 1, 3);
        config.horizon = 128;
        bytes32 run = begin(6, config);
        address[] memory honest = some(who[0], who[2], who[4]);
        address[] memory captors = some(who[1], who[3], who[5]);
        for (uint256 k = 0; k < 90; ++k) {
            bool works = k % 30 == 0;
            if (works) sealWith(run, 1, captors);
            else sealNothing(run, 1, some(founder));
            if (works) sealWith(run, 0, honest);
            else sealNothing(run, 0, founded(honest));
        }
        vm.assertTrue(weightOf(run, captors) * 20 < totalOf(run, 1));
        for (uint256 i = 0; i < 3; ++i) {
            vm.assertFalse(ledger.isForfeit(run, honest[i]));
            vm.prank(founder);
            ledger.dismiss(run, captors[i], address(0));
        }
        pass(1);
        enrolMore(3);
        for (uint256 i = 6; i < 9; ++i) join(run, who[i], 1);
        sealNothing(run, 1, some(founder)); // from the next round on the slots are theirs
        sealNothing(run, 0, founded(honest));
        work(run, 1, part(6, 9), 1);
        work(run, 0, honest, 1);
    }

    /// @dev Captors that worked like honest members for 25 rounds, and then stand still: a part is still the founder's.
    function test_aStageThatStandsStillIsGivenBack() public {
        RunConfig memory config = configOf(2, 1, 3);
        config.horizon = 128;
        bytes32 run = begin(6, config);
        address[] memory honest = some(who[0], who[2], who[4]);
        address[] memory captors = some(who[1], who[3], who[5]);
        for (uint256 k = 0; k < 25; ++k) {
            sealWith(run, 1, captors);
            sealWith(run, 0, honest);
        }
        for (uint256 k = 0; k < 31; ++k) {
            sealNothing(run, 1, founded(captors));
            sealNothing(run, 0, founded(honest));
        }
        vm.prank(founder);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotVacant.selector, 1));
        ledger.dismiss(run, captors[0], address(0));
        sealNothing(run, 1, founded(captors));
        sealNothing(run, 0, founded(honest));
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(founder);
            ledger.dismiss(run, captors[i], address(0));
        }
        pass(1);
        enrolMore(3);
        for (uint256 i = 6; i < 9; ++i) join(run, who[i], 1);
        for (uint256 k = 0; k < 2; ++k) {
            pass(4 * ROUND_TIMEOUT); // more than half is the founder's
            if (k == 0) sealNothing(run, 1, some(founder)); // from the next round on the work is theirs
            else work(run, 1, part(6, 9), 1);
            sealWith(run, 0, honest);
        }
    }

    /// @dev Captors that neither work nor seal: an open round is no empty one. With less than a third of the weight the
    /// founder cannot seal one either.
    function test_captorsThatSealNothingStandStillForNobody() public {
        RunConfig memory config = configOf(1, 1, 3);
        config.horizon = 128;
        bytes32 run = begin(3, config);
        work(run, 0, who, 51);
        Seal memory empty = sealBy(run, 0, none(), some(founder));
        pass(1000 * ROUND_TIMEOUT);
        notVacant(run, who[0], 0);
        ledger.seal(empty); // with a third
        work(run, 0, who, 1);
        empty = sealBy(run, 0, none(), some(founder));
        pass(1000 * ROUND_TIMEOUT);
        notVacant(run, who[0], 0);
        refused(empty, vacuumOf(run, 0), third(totalOf(run, 0)));
    }

    /// @dev A captor that leaves just before its dismissal has its weight. It has its slot again if it is the quickest, is
    /// dismissed then, and gets no other.
    function test_whoLeavesBeforeItsDismissalIsDismissedWhenItIsBack() public {
        RunConfig memory config = configOf(1, 1, 3);
        config.horizon = 128;
        bytes32 run = begin(3, config);
        work(run, 0, who, 25);
        for (uint256 k = 0; k < 32; ++k) sealNothing(run, 0, founded(who));
        enrolMore(2);
        uint256 weight = ledger.weightOf(run, who[0]);
        for (uint256 k = 0; k < 2; ++k) {
            quit(run, who[0]);
            vm.prank(founder);
            vm.expectRevert(abi.encodeWithSelector(ILedger.NotHolding.selector, who[0]));
            ledger.dismiss(run, who[0], who[3]);
            pass(1);
            join(run, who[0], 0);
            vm.assertEq(ledger.weightOf(run, who[0]), weight);
        }
        vm.prank(founder);
        ledger.dismiss(run, who[0], who[3]);
        join(run, who[3], 0);
        quit(run, who[1]);
        pass(1);
        join(run, who[4], 0); // who is quicker
        pass(9 * ROUND_TIMEOUT);
        for (uint256 k = 0; k < 2; ++k) {
            vm.prank(who[k]);
            vm.expectRevert(abi.encodeWithSelector(ILedger.NothingToReclaim.selector, who[k], 0));
            ledger.reclaim(run, who[3 + k]);
        }
    }

    /// @dev Captors of a stage that worked like honest members for 18 rounds, and then seal what they made up: the members
    /// of the other stage cannot work, and it is theirs that stands still. The founder gives the captors' slots to others,
    /// who keep them.
    function test_aStageThatSealsWhatItsMembersMadeUpIsGivenBack() public {
        (bytes32 run, address[] memory honest, address[] memory captors) = madeUp(18);
        vm.assertTrue(weightOf(run, captors) * 3 < totalOf(run, 1) * 2);
        vm.prank(who[9]); // another account of theirs
        vm.expectRevert(abi.encodeWithSelector(ILedger.NoFreeSlot.selector, 1));
        ledger.joinRun(run, 1);
        for (uint16 i = 0; i < 3; ++i) {
            join(run, who[6 + i], 1);
            requireSlot(run, who[6 + i], i, 1);
        }
        refusedConviction(charge(run, 1, 0, who[6]), captors);
        pass(9 * ROUND_TIMEOUT);
        vm.prank(captors[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NothingToReclaim.selector, captors[0], 1));
        ledger.reclaim(run, who[6]);
        for (uint256 k = 0; k < 2; ++k) {
            pass(4 * ROUND_TIMEOUT);
            if (k == 0) sealNothing(run, 1, some(founder)); // from the next round on the work is theirs
            else work(run, 1, part(6, 9), 1);
            sealWith(run, 0, honest);
        }
    }

    /// @dev Not where the captors had two thirds of their stage by then: they convict whoever comes after them.
    function test_captorsWithTwoThirdsConvictTheirSuccessors() public {
        (bytes32 run,, address[] memory captors) = madeUp(25);
        vm.assertTrue(weightOf(run, captors) * 3 > totalOf(run, 1) * 2);
        join(run, who[6], 1);
        pass(100 * ROUND_TIMEOUT); // takes nothing of it
        convict(charge(run, 1, 0, who[6]), captors);
    }

    /// @dev A run of two stages and three replicas in which one stage's members worked for some rounds, and then made it up
    /// for 32. The founder dismissed them for three newcomers a second ago.
    function madeUp(uint256 worked)
        internal
        returns (bytes32 run, address[] memory honest, address[] memory captors)
    {
        RunConfig memory config = configOf(2, 1, 3);
        config.horizon = 128;
        run = begin(6, config);
        (honest, captors) = (some(who[0], who[2], who[4]), some(who[1], who[3], who[5]));
        for (uint256 k = 0; k < worked; ++k) {
            sealWith(run, 1, captors);
            sealWith(run, 0, honest);
        }
        for (uint256 k = worked; k < worked + 32; ++k) {
            if (k >= 24) { // before that two thirds are the founder's
                vm.prank(founder);
                vm.expectRevert(abi.encodeWithSelector(ILedger.NotVacant.selector, 1));
                ledger.dismiss(run, captors[0], address(0));
            }
            sealWith(run, 1, captors);
            sealNothing(run, 0, founded(honest));
        }
        enrolMore(4);
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(founder);
            ledger.dismiss(run, captors[i], who[6 + i]);
        }
        pass(1);
    }

    /// @dev A stage's members are away, and evicted; their slots are taken by accounts that only hold them. Back, each takes
    /// one back by its weight.
    function test_slotsThatWereTakenInAnOutageAreTakenBack() public {
        RunConfig memory config = configOf(2, 1, 3);
        config.horizon = 128;
        bytes32 run = begin(6, config);
        address[] memory honest = some(who[1], who[3], who[5]);
        for (uint256 k = 0; k < 130; ++k) {
            sealWith(run, 0, some(who[0], who[2], who[4]));
            sealWith(run, 1, honest);
        }
        expire(run);
        pass(1);
        for (uint256 i = 0; i < 3; ++i) ask(run, who[0], honest[i]);
        pass(EVICTION_TIME);
        for (uint256 i = 0; i < 3; ++i) ledger.evict(run, honest[i]);
        pass(EVICTION_TIME + 1);
        enrolMore(4);
        for (uint256 i = 6; i < 9; ++i) join(run, who[i], 1);
        vm.prank(honest[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotIdle.selector, who[6]));
        ledger.reclaim(run, who[6]);
        pass(8 * ROUND_TIMEOUT);
        vm.prank(who[9]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NothingToReclaim.selector, who[9], 1));
        ledger.reclaim(run, who[6]);
        vm.prank(honest[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NothingToReclaim.selector, honest[0], 0));
        ledger.reclaim(run, who[0]);
        uint256 all = totalOf(run, 1);
        for (uint16 i = 0; i < 3; ++i) {
            vm.prank(honest[i]);
            ledger.reclaim(run, who[6 + i]);
            requireSlot(run, honest[i], i, 1);
        }
        vm.assertTrue(weightOf(run, honest) * 10 > all * 9);
        work(run, 1, honest, 1);
        vm.prank(who[6]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NothingToReclaim.selector, who[6], 1));
        ledger.reclaim(run, honest[0]);
    }

    /// @dev Slots that never sign stop nothing before the first non-empty seal, and make nobody forfeit.
    function test_squattersAtBirthStopNothing() public {
        bytes32 run = begin(5, configOf(1, 1, 5));
        for (uint256 k = 0; k < 40; ++k) sealWith(run, 0, part(0, 3));
        for (uint256 i = 0; i < 3; ++i) vm.assertFalse(ledger.isForfeit(run, who[i]));
        for (uint256 i = 3; i < 5; ++i) {
            ask(run, address(0xbad), who[i]);
            pass(EVICTION_TIME);
            ledger.evict(run, who[i]);
        }
        requireSlot(run, who[0], 0, 0);
    }

    // ------------------------------------------------------------------------------------------------- part-time

    /// @dev Four of nine that work two rounds in eight make no other round wait.
    function test_partTimersDelayNobody() public {
        RunConfig memory config = configOf(1, 1, 9);
        config.horizon = 32;
        bytes32 run = begin(9, config);
        work(run, 0, part(0, 5), 24);
        for (uint256 k = 0; k < 64; ++k) sealWith(run, 0, k % 8 < 2 ? who : part(0, 5)); // at its earliest time
        uint256 theirs = weightOf(run, part(5, 9));
        vm.assertTrue(theirs * 100 <= totalOf(run, 0) * 16); // an eighth of what they would have, and a little
        emit log_named_uint("weight of 4 part-timers of 9, per mille", theirs * 1000 / totalOf(run, 0));
    }

    /// @dev Half of the weight that withholds its votes makes each round take three timeouts. Where the other half's seals are
    /// the first, it wins nothing by that.
    function test_halfThatWithholdsItsVotes() public {
        bytes32 run = begin(6, configOf(1, 1, 6));
        work(run, 0, who, 40);
        for (uint256 k = 0; k < 5; ++k) {
            Seal memory s = sealBy(run, 0, who, part(0, 3));
            uint256 waited = this.waitFor(s);
            vm.assertTrue(waited <= 3 * ROUND_TIMEOUT + 60);
        }
        vm.assertTrue(weightOf(run, part(0, 3)) < weightOf(run, part(3, 6)) + 16);
    }

    // -------------------------------------------------------------------------------------------------- neighbours

    /// @dev A captured stage that makes the honest of another seal empty takes nobody's slot there.
    function test_emptySealsCostNobodyItsSlot() public {
        bytes32 run = begin(6, configOf(2, 1, 3));
        address[] memory honest = some(who[0], who[2], who[4]);
        address[] memory captors = some(who[1], who[3], who[5]);
        for (uint256 k = 0; k < 6; ++k) {
            sealWith(run, 0, honest);
            sealWith(run, 1, captors);
        }
        for (uint256 k = 0; k < 40; ++k) {
            sealWith(run, 1, captors); // made up: nobody can use it
            sealNothing(run, 0, honest);
        }
        pass(ROUND_TIMEOUT);
        for (uint256 i = 0; i < 3; ++i) {
            vm.assertFalse(ledger.isForfeit(run, honest[i]));
            vm.assertFalse(tryAsk(run, address(0xbad), honest[i]));
        }
        vm.assertTrue(weightOf(run, honest) > Weights.ENOUGH); // nor its weight
    }

    // ----------------------------------------------------------------------------------------------------- outages

    /// @dev Two of six evict four who cannot reach the chain: they convict none of them as long as the stage stands still,
    /// and the four come back to all that they had.
    function test_anOutageIsNoExile() public {
        bytes32 run = outage(128);
        for (uint256 k = 0; k < 6; ++k) {
            for (uint256 i = 2; i < 6; ++i) refusedConviction(charge(run, 0, 0, who[i]), part(0, 2));
            pass(40 * ROUND_TIMEOUT);
        }
        uint256 before = ledger.weightOf(run, who[0]);
        for (uint256 i = 2; i < 6; ++i) join(run, who[i], 0);
        vm.assertTrue(weightOf(run, part(2, 6)) + 64 >= 4 * before);
        sealWith(run, 0, part(2, 6));
    }

    /// @dev All that two of six can do while the four are away, as fast as they can: how long until they seal at once,
    /// and until they convict.
    function test_howLongAnOutageMayLast() public {
        bytes32 run = outage(128);
        uint256 start = vm.getBlockTimestamp();
        uint256 alone = 0;
        uint256 exile = 0;
        for (uint256 k = 0; k < 400 && exile == 0; ++k) {
            uint256 waited = this.waitFor(sealBy(run, 0, part(0, 2), part(0, 2)));
            if (alone == 0 && waited < ROUND_TIMEOUT) alone = (vm.getBlockTimestamp() - start) / ROUND_TIMEOUT;
            Charge memory c = charge(run, 0, 0, who[5]);
            (bool done,) = address(ledger).call(convictCall(c, found(c, 2, part(0, 2))));
            if (done) exile = (vm.getBlockTimestamp() - start) / ROUND_TIMEOUT;
        }
        emit log_named_uint("timeouts until two of six seal at once", alone);
        emit log_named_uint("timeouts until two of six convict", exile);
        vm.assertTrue(alone > 40 && exile > 48);
    }

    /// @dev After four of six leave, the two that stay do not seal alone in the same round.
    function test_thoseWhoStayDoNotOwnTheRun() public {
        RunConfig memory config = configOf(1, 1, 6);
        config.horizon = 128;
        bytes32 run = begin(6, config);
        work(run, 0, who, 120);
        for (uint256 i = 2; i < 6; ++i) quit(run, who[i]);
        Seal memory s = sealBy(run, 0, part(0, 2), part(0, 2));
        pass(MIN_ROUND_TIME);
        vm.expectRevert();
        ledger.seal(s);
        uint256 waited = this.waitFor(s);
        emit log_named_uint("seconds until two of six seal after the others left, 600 a timeout", waited);
        vm.assertTrue(waited >= 4 * ROUND_TIMEOUT);
    }

    /// @dev The number of replicas that the start waits for shields nobody later.
    function test_minReplicasShieldsNobody() public {
        bytes32 run = begin(5, configOf(1, 5, 5));
        work(run, 0, who, 10);
        quit(run, who[3]);
        for (uint256 k = 0; k < 10; ++k) {
            Seal memory s = sealBy(run, 0, part(0, 3), part(0, 3));
            pass(2 * ROUND_TIMEOUT);
            ledger.seal(s);
        }
        convict(charge(run, 0, 12, who[4]), part(0, 3));
    }

    /// @dev A lone newcomer to a stage that all have left waits for ever; it is the founders' again.
    function test_anAbandonedStageIsTheFounders() public {
        bytes32 run = begin(4, configOf(1, 1, 4));
        work(run, 0, part(0, 3), 20);
        for (uint256 i = 0; i < 3; ++i) quit(run, who[i]);
        quit(run, who[3]);
        pass(1);
        join(run, who[3], 0);
        Seal memory s = sealBy(run, 0, none(), some(who[3]));
        pass(2000 * ROUND_TIMEOUT);
        vm.assertEq(vacuumOf(run, 0), Weights.ENOUGH);
        refused(s, 0, third(Weights.ENOUGH));
        join(run, who[1], 0); // whoever had weight has it again
        vm.assertTrue(ledger.weightOf(run, who[1]) > UNIT);
        sealNothing(run, 0, founded(some(who[1], who[3])));
        work(run, 0, some(who[1], who[3]), 1);
    }

    // --------------------------------------------------------------------------------------------------- helpers

    /// @dev Sends the seal as soon as the ledger takes it, and says after how many seconds that was.
    function waitFor(Seal calldata s) external returns (uint256 waited) {
        uint256 start = vm.getBlockTimestamp();
        for (uint256 step = 20; !this.trySeal(s); step = 20) {
            if (waited > 40 * ROUND_TIMEOUT) step = ROUND_TIMEOUT;
            waited += step;
            vm.warp(start + waited);
            vm.assertLt(waited, 1000 * ROUND_TIMEOUT, "it is never taken");
        }
    }

    function trySeal(Seal calldata s) external returns (bool done) {
        (done,) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
    }

    /// @dev Two of six have evicted the four others, who do not know.
    function outage(uint16 horizon) internal returns (bytes32 run) {
        RunConfig memory config = configOf(1, 1, 6);
        config.horizon = horizon;
        config.rounds = 1000;
        run = begin(6, config);
        work(run, 0, who, 120);
        pass(ROUND_TIMEOUT + 1);
        for (uint256 i = 2; i < 6; ++i) ask(run, who[0], who[i]);
        pass(EVICTION_TIME);
        for (uint256 i = 2; i < 6; ++i) ledger.evict(run, who[i]);
    }

    function begin(uint256 members, RunConfig memory config) internal returns (bytes32 run) {
        enrol(members);
        run = create(config);
        for (uint256 i = 0; i < members; ++i) join(run, who[i], uint16(i % config.stages));
    }

    function refusedConviction(Charge memory c, address[] memory judges) internal {
        (bool done, bytes memory why) = address(ledger).call(convictCall(c, found(c, 2, judges)));
        vm.assertFalse(done);
        vm.assertEq(bytes32(bytes4(why)), bytes32(ILedger.QuorumMissing.selector));
    }

    function third(uint256 total) internal pure returns (uint256) {
        return (total + 2) / 3;
    }

    function isIn(address account, address[] memory list) internal pure returns (bool) {
        for (uint256 i = 0; i < list.length; ++i) if (list[i] == account) return true;
        return false;
    }

    function notVacant(bytes32 run, address account, uint16 stage) internal {
        vm.prank(founder);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotVacant.selector, stage));
        ledger.dismiss(run, account, address(0));
    }
}
