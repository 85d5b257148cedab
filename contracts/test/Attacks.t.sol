// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {NodeRegistry} from "../src/NodeRegistry.sol";
import {RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {ILedger} from "../src/ILedger.sol";
import {Weights} from "../src/Weights.sol";
import {Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice What strangers with gas money, and members with a vote, try on a run; each test shows how far they get.
contract AttacksTest is Fixture {
    // ----------------------------------------------------------------------------------------------------- votes

    /// @dev Signing earns nothing: seven accounts that sign an honest seal have no weight afterwards.
    function test_whoOnlySignsNeverVotes() public {
        bytes32 run = newRun(10, configOf(1, 1, 16));
        slot(run, 0, 3, 0, 3);
        work(run, 0, part(0, 3), 12);
        slot(run, 3, 10, 0, 7);
        for (uint256 k = 0; k < 4; ++k) {
            sealSignedBy(run, 0, part(0, 3), who);
            vm.assertEq(weightOf(run, part(3, 10)), 0);
            // Without the honest the seven seal nothing, now or later.
            Seal memory s = sealBy(run, 0, part(3, 10), part(3, 10));
            pass(50 * ROUND_TIMEOUT);
            refused(s, 0, (totalOf(run, 0) + 2) / 3);
        }
    }

    /// @dev Two of five who worked for their weight and then withhold it delay each round by two timeouts, no more.
    function test_aMinorityThatWithholdsItsVotesDelaysButDoesNotStop() public {
        bytes32 run = newRun(5, configOf(1, 1, 8));
        slot(run, 0, 5, 0, 5);
        work(run, 0, who, 20);
        for (uint256 k = 0; k < 4; ++k) {
            Seal memory s = sealBy(run, 0, who, part(0, 3));
            pass(ROUND_TIMEOUT);
            (uint256 votes, uint256 needed) = missing(s);
            vm.assertEq(votes, weightOf(run, part(0, 3)));
            vm.assertEq(needed, (2 * totalOf(run, 0) + 2) / 3);
            pass(ROUND_TIMEOUT);
            ledger.seal(s);
        }
    }

    /// @dev Joining and signing never gave two accounts the veto that they had over three.
    function test_signersThatNeverWorkedHaveNoVeto() public {
        bytes32 run = newRun(5, configOf(1, 1, 8));
        slot(run, 0, 3, 0, 3);
        sealWith(run, 0, part(0, 3));
        slot(run, 3, 5, 0, 2);
        sealSignedBy(run, 0, part(0, 3), founded(who));
        for (uint256 k = 0; k < 8; ++k) sealWith(run, 0, part(0, 3));
    }

    /// @dev Whoever holds no slot any more signs with what is left of its weight, once, however often its entry is there:
    /// such signers ascend.
    function test_anAbsentSignerCountsOnce() public {
        bytes32 run = newRun(5, configOf(1, 1, 8));
        slot(run, 0, 5, 0, 5);
        work(run, 0, who, 12);
        quit(run, who[0]);
        quit(run, who[1]);
        pass(ROUND_TIMEOUT);
        (uint256 a, uint256 b) = (ledger.weightOf(run, who[0]), ledger.weightOf(run, who[1]));
        requireVotes(run, some(who[0], who[0]), a);
        requireVotes(run, some(who[0], who[1], who[0]), a + b);
        requireVotes(run, some(who[1], who[0]), b);
        requireVotes(run, some(who[2], who[2]), ledger.weightOf(run, who[2])); // nor who holds one
        requireVotes(run, some(who[2], who[0], who[3]), a + weightOf(run, part(2, 4))); // among whom there is no order
        join(run, who[1], 0); // in the slot of the other
        requireSlot(run, who[1], 0, 0);
        requireVotes(run, some(who[1], who[0], who[1]), a + ledger.weightOf(run, who[1]));
        sealNothing(run, 0, who); // with all of them it is enough
    }

    /// @dev Whatever the times of leaving and coming back: the votes of all are all.
    function test_allTogetherAreEnough() public {
        bytes32 run = newRun(6, configOf(1, 1, 8));
        slot(run, 0, 6, 0, 6);
        work(run, 0, who, 12);
        for (uint256 k = 0; k < 5; ++k) {
            quit(run, who[k]);
            pass(7 * ROUND_TIMEOUT + k);
        }
        join(run, who[2], 0);
        sealNothing(run, 0, founded(who));
        vm.assertEq(activityOf(run, 0).empties, 1);
    }

    /// @dev Weight stays in its stage: whoever leaves one after signing there brings nothing to another.
    function test_aVoteDoesNotCrossStages() public {
        bytes32 run = newRun(5, configOf(2, 1, 4));
        for (uint256 i = 0; i < 4; ++i) join(run, who[i], uint16(i % 2));
        for (uint256 k = 0; k < 10; ++k) {
            sealWith(run, 0, some(who[0], who[2]));
            sealWith(run, 1, some(who[1], who[3]));
        }
        quit(run, who[0]);
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.SealPending.selector, uint16(0), uint32(10)));
        ledger.joinRun(run, 1);
        Seal memory s = sealBy(run, 0, some(who[2]), some(who[0], who[2]));
        expire(run);
        ledger.seal(s);
        join(run, who[0], 1);
        s = sealBy(run, 1, some(who[1]), some(who[1], who[0]));
        (uint256 votes,) = missing(s);
        vm.assertEq(votes, ledger.weightOf(run, who[1]));
    }

    /// @dev In its first rounds a stage does not belong to the one that could work.
    function test_aYoungStageDoesNotBelongToTheFirstThatWorks() public {
        bytes32 run = newRun(4, configOf(1, 1, 4));
        slot(run, 0, 4, 0, 4);
        sealWith(run, 0, who);
        Seal memory s = sealBy(run, 0, part(3, 4), founded(who));
        pass(MIN_ROUND_TIME);
        ledger.seal(s); // only the fourth could work
        vm.assertTrue(ledger.weightOf(run, who[3]) * 3 < totalOf(run, 0));
        sealWith(run, 0, part(0, 3));
    }

    // ----------------------------------------------------------------------------------------------------- seals

    /// @dev Whatever a member that is listed or signed does, the seal goes through and counts the others alike.
    function test_leavingDoesNotSpoilASeal() public {
        bytes32 run = newRun(5, configOf(1, 1, 8));
        slot(run, 0, 4, 0, 4);
        work(run, 0, part(0, 4), 12);
        for (uint256 k = 0; k < 3; ++k) {
            Seal memory s = sealBy(run, 0, part(0, 4), part(0, 3)); // the fourth is listed by its own signature
            address leaver = who[2 + k % 2]; // it signed, or it did not
            quit(run, leaver);
            pass(1);
            if (k < 2) join(run, leaver, 0);
            else join(run, who[4], 0); // somebody else takes the slot
            pass(MIN_ROUND_TIME);
            ledger.seal(s);
            vm.assertEq(ledger.nextRound(run, 0), 13 + k);
        }
    }

    /// @dev Whoever comes to a slot that another held when the round began gets no count for the other's record, and
    /// takes none from it.
    function test_aRecordIsItsMakersWhoeverSitsThere() public {
        bytes32 run = newRun(4, configOf(1, 1, 4));
        slot(run, 0, 3, 0, 3);
        work(run, 0, part(0, 3), 12);
        Work[] memory works = worksOf(run, part(0, 3));
        quit(run, who[1]);
        pass(1);
        join(run, who[3], 0);
        requireSlot(run, who[3], 1, 0);
        Seal memory s = sealOf(run, 0, works);
        bytes32 digest = digestOf(s);
        s.signatures = bytes.concat(
            entry(0, who[0], digest), entry(1, who[3], digest), entry(2, who[2], digest), entry(129, who[3], digestOf(run, works[1]))
        );
        pass(MIN_ROUND_TIME);
        refused(s, abi.encodeWithSelector(ILedger.RecordUnsigned.selector, 1));
        s.signatures = bytes.concat(s.signatures, entry(1, who[1], digest));
        ledger.seal(s);
        vm.assertEq(laneOf(run, who[0]) >> 28, 0);
        vm.assertEq(laneOf(run, who[2]) >> 28, 0);
        vm.assertEq(laneOf(run, who[3]), Weights.fresh(0));
    }

    /// @dev Nobody is counted, and nobody is slandered, without its own signature.
    function test_aRecordNeedsItsMakersSignature() public {
        bytes32 run = newRun(3, configOf(1, 1, 3));
        slot(run, 0, 3, 0, 3);
        Work[] memory works = worksOf(run, who);
        uint256 victim = works[2].account == who[2] ? 2 : works[1].account == who[2] ? 1 : 0;
        Seal memory s = signedBy(sealOf(run, 0, works), works, founded(who));
        works[victim].loss = 99_000_000;
        Seal memory slander = sealOf(run, 0, works);
        slander.signatures = "";
        for (uint256 i = 0; i < 3; ++i) {
            if (i != victim) {
                slander.signatures = bytes.concat(
                    slander.signatures, entry(works[i].replica, works[i].account, digestOf(slander))
                );
            }
        }
        pass(MIN_ROUND_TIME);
        refused(slander, abi.encodeWithSelector(ILedger.RecordUnsigned.selector, works[victim].replica));
        ledger.seal(s);
    }

    /// @dev Who sends a seal, with which of the signatures, changes nobody's standing.
    function test_theSenderShapesNothing() public {
        bytes32 run = newRun(4, configOf(1, 1, 4));
        slot(run, 0, 4, 0, 4);
        work(run, 0, who, 12);
        for (uint256 k = 0; k < 4; ++k) {
            // The fourth signed as well; the sender leaves that out, and needs what proves its record instead.
            sealSignedBy(run, 0, who, part(0, 3));
        }
        for (uint256 i = 0; i < 4; ++i) {
            vm.assertEq(laneOf(run, who[i]) >> 28, 0);
            vm.assertTrue(ledger.weightOf(run, who[i]) + 8 > ledger.weightOf(run, who[0]));
        }
        vm.assertFalse(tryAsk(run, who[0], who[3]));
    }

    /// @dev Fewer contributions than a quorum of the voters wait for the timeout: nobody hurries others out.
    function test_aSealOfFewWaitsForTheTimeout() public {
        bytes32 run = newRun(3, configOf(1, 1, 4));
        slot(run, 0, 3, 0, 3);
        work(run, 0, who, 12);
        Seal memory s = sealBy(run, 0, part(0, 1), who);
        (,, uint64 openedAt) = ledger.openRound(run);
        vm.warp(openedAt + ROUND_TIMEOUT - 1);
        refused(s, abi.encodeWithSelector(ILedger.TooEarlyToSeal.selector, openedAt + ROUND_TIMEOUT));
        vm.warp(openedAt + ROUND_TIMEOUT);
        ledger.seal(s);
    }

    /// @dev A quorum cannot burn the rounds of a run in one block.
    function test_roundsTakeTheirTime() public {
        RunConfig memory config = configOf(1, 1, 8);
        config.rounds = 20;
        bytes32 run = newRun(1, config);
        join(run, who[0], 0);
        (,, uint64 start) = ledger.openRound(run);
        Seal memory s = sealBy(run, 0, who, founded(who));
        refused(s, abi.encodeWithSelector(ILedger.TooEarlyToSeal.selector, start + MIN_ROUND_TIME));
        for (uint256 k = 0; k < 20; ++k) sealWith(run, 0, who);
        (,, uint64 end) = ledger.openRound(run);
        vm.assertEq(end, start + 20 * MIN_ROUND_TIME);
    }

    /// @dev Steps of a contribution are within the round's plan, which is within the run's. The next plan may have none.
    function test_innerStepsAreBounded() public {
        bytes32 run = newRun(3, configOf(1, 1, 4));
        slot(run, 0, 3, 0, 3);
        Work[] memory works = worksOf(run, who);
        works[1].innerSteps = INNER_STEPS + 1;
        Seal memory s = signedBy(sealOf(run, 0, works), works, who);
        pass(MIN_ROUND_TIME);
        refused(s, abi.encodeWithSelector(ILedger.WrongInnerSteps.selector, INNER_STEPS + 1, INNER_STEPS));
        works[1].innerSteps = 0;
        s = signedBy(sealOf(run, 0, works), works, who);
        refused(s, abi.encodeWithSelector(ILedger.WrongInnerSteps.selector, 0, INNER_STEPS));
        works[1].innerSteps = 1;
        uint32[2] memory wrong = [uint32(0), 2 * INNER_STEPS + 1];
        for (uint256 i = 0; i < 2; ++i) {
            s = sealOf(run, 0, works);
            s.outcome.plans = plansOf(wrong[i], INNER_STEPS);
            refused(signedBy(s, works, who), abi.encodeWithSelector(ILedger.WrongPlan.selector));
        }
        s = sealOf(run, 0, works);
        s.outcome.plans = plansOf(INNER_STEPS, wrong[1]);
        refused(signedBy(s, works, who), abi.encodeWithSelector(ILedger.WrongPlan.selector));
        s = sealOf(run, 0, works);
        s.outcome.plans = plansOf(INNER_STEPS, 0);
        ledger.seal(signedBy(s, works, founded(who)));
    }

    /// @dev A signature has one form.
    function test_malleableSignaturesAreNobodys() public {
        bytes32 run = newRun(1, configOf(1, 1, 2));
        join(run, who[0], 0);
        Work[] memory works = worksOf(run, who);
        Seal memory s = sealOf(run, 0, works);
        (uint8 v, bytes32 r, bytes32 ss) = vm.sign(keyOf[who[0]], digestOf(s));
        uint256 n = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        s.signatures = abi.encodePacked(uint8(0), r, bytes32(n - uint256(ss)), v == 27 ? uint8(28) : uint8(27));
        pass(MIN_ROUND_TIME);
        refused(s, abi.encodeWithSelector(ILedger.RecordUnsigned.selector, 0));
        s.signatures = abi.encodePacked(uint8(0), r, ss, v - 27);
        refused(s, abi.encodeWithSelector(ILedger.RecordUnsigned.selector, 0));
        s.signatures = abi.encodePacked(uint8(0), r, ss, v, uint8(192), sign(founder, digestOf(s)));
        ledger.seal(s);
    }

    /// @dev What was there once costs nothing later.
    function test_aPassingCrowdMakesNoSealDearer() public {
        bytes32 run = newRun(64, configOf(1, 1, 64));
        slot(run, 0, 2, 0, 2);
        work(run, 0, part(0, 2), 11);
        uint256 before = sealGas(run, part(0, 2));
        slot(run, 2, 64, 0, 62);
        for (uint256 i = 2; i < 64; ++i) quit(run, who[i]);
        sealWith(run, 0, part(0, 2));
        vm.assertLt(sealGas(run, part(0, 2)), before + 500, "gas");
    }

    // ----------------------------------------------------------------------------------------------------- slots

    /// @dev One that takes a slot, answers and never works loses it, however often it says that it is there.
    function test_answersDoNotKeepASlot() public {
        RunConfig memory config = configOf(1, 1, 4);
        config.rounds = 100;
        bytes32 run = newRun(5, config);
        slot(run, 0, 4, 0, 4);
        uint256 rounds = squatted(run, who[3], 0);
        vm.assertEq(rounds, 24); // non-empty seals from its joining
        join(run, who[4], 0);
        requireSlot(run, who[4], 3, 0);
    }

    /// @dev Nor however often it leaves and joins again.
    function test_churnDoesNotKeepASlot() public {
        RunConfig memory config = configOf(1, 1, 4);
        config.rounds = 100;
        bytes32 run = newRun(5, config);
        slot(run, 0, 4, 0, 4);
        uint256 rounds = squatted(run, who[3], 3);
        vm.assertEq(rounds, 24);
    }

    /// @dev In one transaction nobody hands a slot on: others have their chance.
    function test_aSlotIsFreeForAllBeforeItIsTaken() public {
        bytes32 run = newRun(3, configOf(1, 1, 2));
        slot(run, 0, 2, 0, 2);
        quit(run, who[1]);
        vm.prank(who[2]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NoFreeSlot.selector, uint16(0)));
        ledger.joinRun(run, 0);
        pass(1);
        join(run, who[2], 0);
    }

    /// @dev All members of a full run are dead: outsiders take its slots after 32 timeouts, and with the founder they seal
    /// once little enough is left of the dead's weight.
    function test_outsidersReviveADeadRun() public {
        bytes32 run = newRun(4, configOf(1, 1, 2));
        slot(run, 0, 2, 0, 2);
        work(run, 0, part(0, 2), 12);
        vm.assertFalse(tryAsk(run, who[2], who[0]));
        takeOver(run, 0, 0, 2, 2);
        Seal memory s = sealBy(run, 0, none(), founded(part(2, 4)));
        missing(s);
        pass(100 * ROUND_TIMEOUT);
        ledger.seal(s);
        s = sealBy(run, 0, part(2, 4), founded(part(2, 4)));
        pass(MIN_ROUND_TIME);
        missing(s); // the dead still have more than a third, so the round has to be late
        pass(4 * ROUND_TIMEOUT);
        ledger.seal(s);
        vm.assertTrue(weightOf(run, part(2, 4)) + 1 >= UNIT);
    }

    /// @dev One stage is full of members that answer and never seal; those of the other, who wait, keep their slots and
    /// weight, and the founder gives the stage to others.
    function test_aStageOfSquattersIsTakenAndThoseWhoWaitForItAreSafe() public {
        bytes32 run = newRun(9, configOf(2, 1, 3));
        slot(run, 0, 3, 1, 3);
        slot(run, 3, 6, 0, 3);
        sealWith(run, 0, part(3, 6));
        for (uint256 k = 0; k < 33; ++k) {
            pass(ROUND_TIMEOUT + 1);
            for (uint256 i = 0; i < 3; ++i) {
                ask(run, who[3], who[i]);
                reply(run, who[i]);
            }
        }
        for (uint256 i = 3; i < 6; ++i) {
            vm.assertFalse(ledger.isForfeit(run, who[i]));
            ask(run, who[8], who[i]); // whoever is there says so
            reply(run, who[i]);
        }
        vm.prank(who[3]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotFounder.selector, who[3]));
        ledger.dismiss(run, who[0], address(0));
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(founder);
            ledger.dismiss(run, who[i], address(0));
        }
        pass(1);
        for (uint256 i = 6; i < 9; ++i) join(run, who[i], 1);
        sealNothing(run, 1, founded(part(6, 9)));
        sealWith(run, 0, part(3, 6));
        sealWith(run, 1, part(6, 9));
    }

    /// @dev Its member was offline for long: the slot waits for it, with its weight.
    function test_anEvictedWorkersSlotWaitsForIt() public {
        bytes32 run = newRun(3, configOf(1, 1, 2));
        slot(run, 0, 2, 0, 2);
        work(run, 0, part(0, 2), 12);
        uint256 weight = ledger.weightOf(run, who[0]);
        pass(ROUND_TIMEOUT + 1);
        ask(run, who[1], who[0]);
        pass(EVICTION_TIME);
        ledger.evict(run, who[0]);
        pass(1);
        vm.prank(who[2]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NoFreeSlot.selector, uint16(0)));
        ledger.joinRun(run, 0);
        join(run, who[0], ANY);
        requireSlot(run, who[0], 0, 0);
        vm.assertEq(ledger.weightOf(run, who[0]), weight);
    }

    /// @dev One node key, one account: a node that deregisters is still the account's.
    function test_aNodeKeyServesOneAccount() public {
        bytes32 run = newRun(1, configOf(1, 1, 8));
        join(run, who[0], 0);
        vm.prank(who[0]);
        registry.deregister();
        for (uint256 i = 1; i < 6; ++i) {
            address account = vm.addr(0xacc0 + i);
            (bool ok,) = address(this).call(abi.encodeCall(this.tryRegister, (account, 0x90de0)));
            vm.assertFalse(ok);
            vm.prank(account);
            vm.expectRevert(abi.encodeWithSelector(ILedger.NotRegistered.selector, account));
            ledger.joinRun(run, 0);
        }
    }

    /// @dev Slots that contracts took in one go before there was work are the founder's to free.
    function test_aFlashCrowdLosesItsSlots() public {
        bytes32 run = create(configOf(1, 1, 3));
        for (uint256 i = 0; i < 3; ++i) {
            address account = address(uint160(0x100000 + i)); // cannot sign
            keyOf[account] = 1;
            register(account, 0x5000 + i);
            who.push(account);
            join(run, account, 0);
        }
        for (uint256 i = 0; i < 3; ++i) enrolAt(i);
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(founder);
            ledger.dismiss(run, who[i], address(0));
        }
        pass(1);
        for (uint256 i = 3; i < 6; ++i) join(run, who[i], 0);
        sealNothing(run, 0, founded(part(3, 6)));
        sealWith(run, 0, part(3, 6));
    }

    /// @dev Dead early joiners count as holders: the run opens with the others, and then they can be asked.
    function test_earlyJoinersCannotHoldBackTheStart() public {
        bytes32 run = newRun(3, configOf(1, 2, 2));
        join(run, who[0], 0);
        pass(3650 days);
        join(run, who[1], 0);
        (bool open,, uint64 openedAt) = ledger.openRound(run);
        vm.assertTrue(open);
        vm.assertEq(openedAt, block.timestamp);
        pass(ROUND_TIMEOUT + 1);
        ask(run, who[1], who[0]);
        pass(EVICTION_TIME);
        ledger.evict(run, who[0]);
        pass(1);
        join(run, who[2], 0);
        sealNothing(run, 0, founded(part(1, 3)));
    }

    /// @dev A checkpoint is what its publisher says; versions that nobody sealed have none.
    function test_checkpointsAreOfSealedVersionsByMembers() public {
        bytes32 run = newRun(2, configOf(1, 1, 2));
        join(run, who[0], 0);
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.UnknownVersion.selector, uint32(1)));
        ledger.publishCheckpoint(run, 1, keccak256("folder"), "https://example.org/a");
        vm.prank(who[1]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotHolding.selector, who[1]));
        ledger.publishCheckpoint(run, 0, keccak256("folder"), "https://example.org/a");
        vm.expectEmit(address(ledger));
        emit ILedger.CheckpointPublished(run, 0, who[0], keccak256("folder"), "https://example.org/a");
        vm.prank(who[0]);
        ledger.publishCheckpoint(run, 0, keccak256("folder"), "https://example.org/a");
        vm.prank(CREATOR);
        ledger.publishCheckpoint(run, 0, keccak256("folder"), "");
    }

    /// @dev A held-out loss is its sender's word, and only who holds a slot of the last stage has one.
    function test_evaluationsAreOfSealedVersionsByHoldersOfTheLastStage() public {
        bytes32 run = newRun(3, configOf(2, 1, 2));
        join(run, who[0], 0);
        join(run, who[1], 1);
        notEvaluated(run, who[1], 1, 2, abi.encodeWithSelector(ILedger.UnknownVersion.selector, uint32(1)));
        sealWith(run, 0, part(0, 1));
        sealWith(run, 1, part(1, 2));
        notEvaluated(run, who[1], 0, 2, abi.encodeWithSelector(ILedger.UnknownVersion.selector, uint32(0)));
        notEvaluated(run, who[1], 2, 2, abi.encodeWithSelector(ILedger.UnknownVersion.selector, uint32(2)));
        notEvaluated(run, who[0], 1, 2, abi.encodeWithSelector(ILedger.NotHolding.selector, who[0]));
        notEvaluated(run, who[2], 1, 2, abi.encodeWithSelector(ILedger.NotHolding.selector, who[2]));
        notEvaluated(run, who[1], 1, 0, abi.encodeWithSelector(ILedger.NothingEvaluated.selector));
        vm.expectEmit(address(ledger));
        emit ILedger.Evaluated(run, who[1], 1, 7, 2, keccak256("statement"));
        vm.prank(who[1]);
        ledger.evaluate(run, 1, 7, 2, keccak256("statement"));
    }

    function notEvaluated(bytes32 run, address by, uint32 version, uint32 count, bytes memory why) internal {
        vm.prank(by);
        vm.expectRevert(why);
        ledger.evaluate(run, version, 7, count, keccak256("statement"));
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function tryRegister(address account, uint256 nodeKey) external {
        register(account, nodeKey);
    }

    function newRun(uint256 accounts, RunConfig memory config) internal returns (bytes32) {
        enrol(accounts);
        return create(config);
    }

    /// @dev Registers one more account, whatever its address, and puts it last.
    function enrolAt(uint256 i) internal {
        address account = vm.addr(0xacc0 + i);
        keyOf[account] = 0xacc0 + i;
        register(account, 0x90de0 + i);
        who.push(account);
    }

    function slot(bytes32 run, uint256 from, uint256 to, uint16 stage, uint256 most) internal {
        for (uint256 i = from; i < to && i - from < most; ++i) join(run, who[i], stage);
    }

    /// @dev The member is idle while the others work; asked as soon as it may be, answering, and leaving and joining
    /// again every `churn` rounds. Returns after how many seals it could be evicted.
    function squatted(bytes32 run, address squatter, uint256 churn) internal returns (uint256 rounds) {
        for (;; ++rounds) {
            if (ledger.memberOf(run, squatter).holds) {
                bool asked = tryAsk(run, address(0xbad), squatter);
                if (asked) reply(run, squatter);
                pass(EVICTION_TIME);
                (bool out,) = address(ledger).call(abi.encodeCall(ledger.evict, (run, squatter)));
                if (out) break;
                if (churn != 0 && rounds % churn == 0) {
                    quit(run, squatter);
                    pass(1);
                    join(run, squatter, 0);
                }
            }
            pass(ROUND_TIMEOUT);
            sealWith(run, 0, part(0, 3));
        }
        pass(1);
    }

    /// @dev Nobody who holds the stage's slots is there; outsiders, from `first` on, take them.
    function takeOver(bytes32 run, uint16 stage, uint256 from, uint256 to, uint256 first) internal {
        pass(uint256(32) * ROUND_TIMEOUT + 1);
        for (uint256 i = from; i < to; ++i) ask(run, who[first], who[i]);
        pass(EVICTION_TIME);
        for (uint256 i = from; i < to; ++i) ledger.evict(run, who[i]);
        pass(EVICTION_TIME + 1); // that of who was counted lately waits for it as long again
        for (uint256 i = from; i < to; ++i) join(run, who[first + i - from], stage);
    }

    function sealGas(bytes32 run, address[] memory makers) internal returns (uint256 gas) {
        Seal memory s = sealBy(run, 0, makers, makers);
        pass(MIN_ROUND_TIME);
        vm.cool(address(ledger));
        gas = gasleft();
        ledger.seal(s);
        gas -= gasleft();
    }

    function entry(uint256 replica, address account, bytes32 digest) internal view returns (bytes memory) {
        return bytes.concat(bytes1(uint8(replica)), sign(account, digest));
    }

    /// @dev An empty seal with these signatures has so many votes.
    function requireVotes(bytes32 run, address[] memory signers, uint256 votes) internal {
        (uint256 has,) = missing(sealBy(run, 0, none(), signers));
        vm.assertEq(has, votes, "votes");
    }
}
