// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";

import {Contribution, Contributions} from "../src/Contributions.sol";
import {RunConfig, Runs} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {Fixture} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @dev Two stages, three replicas: `a` holds stage 0 and `b` stage 1; round 0 open. `who` has two accounts to spare.
contract SealsTest is Fixture {
    bytes32 private run;
    address[] private a;
    address[] private b;

    function setUp() public {
        enrol(8);
        run = create(configOf(2, 3, 4));
        for (uint256 i = 0; i < 6; ++i) {
            join(run, who[i], uint16(i % 2));
            (i % 2 == 0 ? a : b).push(who[i]);
        }
    }

    function refuse(Seal memory s, bytes memory records, bytes memory signatures, bytes memory reason) private {
        vm.expectRevert(reason);
        ledger.seal(s, records, signatures);
    }

    /// @dev Refuses the stage-0 seal of these contributions, which is otherwise consistent and signed by all of `a`.
    function refuse(Contribution[] memory cs, bytes memory reason) private {
        Seal memory s = sealOf(run, 0, cs);
        refuse(s, recordsOf(cs), signAll(a, s), reason);
    }

    /// @dev Refuses `s`, signed as it stands by all of `a`, over the records of `cs`.
    function refuse(Seal memory s, Contribution[] memory cs, bytes memory reason) private {
        refuse(s, recordsOf(cs), signAll(a, s), reason);
    }

    // ---------------------------------------------------------------------------------------------- happy path

    function test_sealRecordsDigestHeadsAndEvent() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        s.nextMomentum = keccak256("momentum");
        (bytes memory records, bytes memory signatures) = (recordsOf(cs), signAll(a, s));
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Sealed(run, 0, 0, digestOf(s), s, records, signatures);
        vm.prank(address(0xdead)); // anyone may send it
        ledger.seal(s, records, signatures);

        vm.assertEq(ledger.sealDigest(run, 0, 0), digestOf(s));
        vm.assertEq(ledger.sealDigest(run, 0, 1), bytes32(0));
        (bytes32 weights, bytes32 momentum) = ledger.heads(run, 0);
        vm.assertEq(weights, s.nextWeights);
        vm.assertEq(momentum, s.nextMomentum);
        vm.assertEq(ledger.nextRound(run, 0), 1);
        vm.assertEq(ledger.nextRound(run, 1), 0);
    }

    function test_theNextRoundOpensWhenEveryStageHasSealed() public {
        sealWith(run, 1, b);
        vm.warp(block.timestamp + 77);
        (, uint32 round,) = ledger.openRound(run);
        vm.assertEq(round, 0);
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        (bytes memory records, bytes memory signatures) = (recordsOf(cs), signAll(a, s));
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Sealed(run, 0, 0, digestOf(s), s, records, signatures);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.RoundOpened(run, 1, uint64(block.timestamp));
        ledger.seal(s, records, signatures);
        uint64 openedAt;
        (, round, openedAt) = ledger.openRound(run);
        vm.assertEq(round, 1);
        vm.assertEq(openedAt, block.timestamp);
    }

    function test_aRunSealsItsRoundsAndFinishes() public {
        for (uint256 round = 0; round < 10; ++round) {
            sealWith(run, 0, a);
            sealWith(run, 1, some(b[0], b[2]));
        }
        (bool open, uint32 last,) = ledger.openRound(run);
        vm.assertFalse(open);
        vm.assertEq(last, 10);
        Contribution[] memory cs = contributionsOf(run, a);
        refuse(cs, abi.encodeWithSelector(Runs.RunFinished.selector));
    }

    function test_innerStepsMayDifferBetweenContributions() public {
        Contribution[] memory cs = contributionsOf(run, a);
        cs[1].innerSteps = 7;
        cs[1].tokens = 7 * TOKENS_PER_STEP;
        Seal memory s = sealOf(run, 0, cs);
        ledger.seal(s, recordsOf(cs), signAll(a, s));
        vm.assertEq(ledger.nextRound(run, 0), 1);
    }

    // ------------------------------------------------------------------------------------------ place and order

    function test_refusesAnUnknownRunAndStage() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        s.stage = 2;
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.UnknownStage.selector, 2));
        s.run = keccak256("no run");
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.UnknownRun.selector, s.run));
    }

    function test_refusesASealBeforeRoundZeroOpens() public {
        bytes32 closed = ledger.createRun(configOf(1, 2, 2), NAME, genesisOf(1));
        join(closed, a[0], ANY);
        Contribution[] memory cs = contributionsOf(closed, some(a[0]));
        Seal memory s = sealOf(closed, 0, cs);
        refuse(s, recordsOf(cs), signAll(some(a[0]), s), abi.encodeWithSelector(Runs.RoundNotOpen.selector));
    }

    function test_refusesTheWrongRound() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        s.round = 1;
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.WrongRound.selector, 1, 0));
        s.round = 0;
        ledger.seal(s, recordsOf(cs), signAll(a, s)); // and the same seal once more:
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.WrongRound.selector, 0, 1));
    }

    function test_refusesAStageThatRunsAheadOfTheOthers() public {
        sealWith(run, 0, a);
        Contribution[] memory cs = contributionsOf(run, a);
        refuse(cs, abi.encodeWithSelector(TrainingLedger.StageAhead.selector, 0, 0));
        sealWith(run, 1, b);
        sealWith(run, 0, a);
    }

    function test_refusesOtherPreviousHashes() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes32 head = s.previousWeights;
        s.previousWeights = keccak256("other");
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.WrongPreviousWeights.selector, s.previousWeights, head));
        s.previousWeights = head;
        s.previousMomentum = keccak256("other");
        refuse(
            s, cs, abi.encodeWithSelector(TrainingLedger.WrongPreviousMomentum.selector, s.previousMomentum, bytes32(0))
        );
    }

    // -------------------------------------------------------------------------------------------- contributions

    function test_refusesAnAccountWithoutItsSlot() public {
        Contribution[] memory cs = contributionsOf(run, a);
        cs[1].replica = 3; // a seat of nobody's
        refuse(cs, abi.encodeWithSelector(TrainingLedger.AccountWithoutSlot.selector, a[1], 3, 0));
        cs = contributionsOf(run, a);
        cs[1].account = b[1]; // holds the other stage, in the same replica
        refuse(cs, abi.encodeWithSelector(TrainingLedger.AccountWithoutSlot.selector, b[1], 1, 0));
    }

    function test_refusesAnAccountThatLeft() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        (bytes memory records, bytes memory signatures) = (recordsOf(cs), signAll(some(a[0], a[1]), s));
        vm.prank(a[2]);
        ledger.leaveRun(run);
        refuse(s, records, signatures, abi.encodeWithSelector(TrainingLedger.AccountWithoutSlot.selector, a[2], 2, 0));
        cs = contributionsOf(run, some(a[0], a[1]));
        s = sealOf(run, 0, cs);
        ledger.seal(s, recordsOf(cs), signAll(some(a[0], a[1]), s));
    }

    function test_refusesContributionsOfAnotherRunRoundOrStage() public {
        bytes memory reason = abi.encodeWithSelector(TrainingLedger.ContributionOfAnotherRound.selector, a[1]);
        Contribution[] memory cs = contributionsOf(run, a);
        cs[1].run = keccak256("other");
        refuse(cs, reason);
        cs = contributionsOf(run, a);
        cs[1].round = 1;
        refuse(cs, reason);
        cs = contributionsOf(run, a);
        cs[1].stage = 1;
        refuse(cs, reason);
    }

    function test_refusesInflatedTokensAndNoSteps() public {
        Contribution[] memory cs = contributionsOf(run, a);
        uint64 honest = cs[0].tokens;
        cs[0].tokens = honest + 1;
        refuse(cs, abi.encodeWithSelector(TrainingLedger.WrongTokens.selector, a[0], honest + 1, honest));
        cs[0].innerSteps = 0;
        cs[0].tokens = 0;
        refuse(cs, abi.encodeWithSelector(TrainingLedger.WrongTokens.selector, a[0], 0, 0));
    }

    function test_refusesTokensThatOverflow() public {
        RunConfig memory config = configOf(1, 1, 1);
        config.tokensPerStep = type(uint64).max;
        bytes32 huge = ledger.createRun(config, NAME, genesisOf(1));
        join(huge, a[0], ANY);
        Contribution[] memory cs = contributionsOf(huge, some(a[0]));
        cs[0].innerSteps = 2;
        cs[0].tokens = type(uint64).max - 1; // 2 * (2^64 - 1) modulo 2^64
        Seal memory s = sealOf(huge, 0, cs);
        refuse(
            s,
            recordsOf(cs),
            signAll(some(a[0]), s),
            abi.encodeWithSelector(
                TrainingLedger.WrongTokens.selector, a[0], cs[0].tokens, 2 * uint256(type(uint64).max)
            )
        );
    }

    function test_refusesUnsortedAndRepeatedAccounts() public {
        Contribution[] memory cs = contributionsOf(run, some(a[1], a[0]));
        refuse(cs, abi.encodeWithSelector(TrainingLedger.AccountsNotAscending.selector, a[0]));
        cs = contributionsOf(run, some(a[1], a[1]));
        cs[1].payload = keccak256("equivocation");
        refuse(cs, abi.encodeWithSelector(TrainingLedger.AccountsNotAscending.selector, a[1]));
    }

    function test_refusesAlteredBytes() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = recordsOf(cs);
        records[929 - 1] ^= 0x01; // a byte of the first record's signature
        refuse(
            s,
            records,
            signAll(a, s),
            abi.encodeWithSelector(
                TrainingLedger.WrongContributionsHash.selector, s.contributionsHash, keccak256(records)
            )
        );
    }

    function test_refusesFieldsOutOfRange() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = recordsOf(cs);
        records[4 * 32] = 0x01; // the highest byte of the account's word
        s.contributionsHash = keccak256(records);
        bytes memory signatures = signAll(a, s);
        vm.expectRevert(bytes(""));
        ledger.seal(s, records, signatures);
    }

    function test_refusesAnotherRoot() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes32 actual = s.contributionsRoot;
        s.contributionsRoot = keccak256("other");
        refuse(
            s, cs, abi.encodeWithSelector(TrainingLedger.WrongContributionsRoot.selector, s.contributionsRoot, actual)
        );
    }

    function test_refusesAPartOfARecord() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = bytes.concat(recordsOf(cs), hex"00");
        s.contributionsHash = keccak256(records);
        refuse(
            s, records, signAll(a, s), abi.encodeWithSelector(Contributions.ContributionsLength.selector, 3 * 929 + 1)
        );
    }

    function test_refusesAWrongCountTotalOrMean() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        s.count = 2;
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.WrongCount.selector, 2, 3));
        s.count = 3;
        ++s.totalTokens;
        refuse(
            s, cs, abi.encodeWithSelector(TrainingLedger.WrongTotalTokens.selector, s.totalTokens, s.totalTokens - 1)
        );
        --s.totalTokens;
        --s.meanLoss;
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.WrongMeanLoss.selector, s.meanLoss, s.meanLoss + 1));
    }

    function test_refusesAWrongNumberOfMultipliers() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        s.multipliers = new bytes(5);
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.WrongMultipliersLength.selector, 5, 6));
        s.multipliers = new bytes(8);
        refuse(s, cs, abi.encodeWithSelector(TrainingLedger.WrongMultipliersLength.selector, 8, 6));
    }

    // ------------------------------------------------------------------------------------------------ signatures

    function test_refusesTooFewSignatures() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs); // nobody is active yet: 2 of all 3
        bytes memory records = recordsOf(cs);
        refuse(s, records, "", abi.encodeWithSelector(TrainingLedger.QuorumMissing.selector, 0, 2));
        refuse(s, records, signAll(some(a[0]), s), abi.encodeWithSelector(TrainingLedger.QuorumMissing.selector, 1, 2));
        ledger.seal(s, records, signAll(some(a[0], a[2]), s));
    }

    function test_everySealedFieldIsSigned() public {
        Contribution[] memory cs = contributionsOf(run, some(a[0], a[1]));
        Seal memory s = sealOf(run, 0, cs);
        (bytes memory records, bytes memory signatures) = (recordsOf(cs), signAll(some(a[0], a[1]), s));
        s.nextWeights = keccak256("other"); // the signatures now recover to strangers
        vm.expectRevert();
        ledger.seal(s, records, signatures);
        s.nextWeights = keccak256(abi.encode("weights", 0, 1));
        s.planInnerSteps = 51;
        vm.expectRevert();
        ledger.seal(s, records, signatures);
        s.planInnerSteps = INNER_STEPS;
        s.multipliers[3] = 0x01;
        vm.expectRevert();
        ledger.seal(s, records, signatures);
        s.multipliers[3] = 0x00;
        ledger.seal(s, records, signatures);
    }

    function test_refusesSignersWithoutASlotOfTheStage() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = recordsOf(cs);
        refuse(
            s, records, signAll(some(b[0]), s), abi.encodeWithSelector(TrainingLedger.SignerWithoutSlot.selector, b[0])
        );
        refuse(
            s,
            records,
            signAll(some(who[7]), s),
            abi.encodeWithSelector(TrainingLedger.SignerWithoutSlot.selector, who[7])
        );
    }

    function test_refusesRepeatedAndUnsortedSigners() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = recordsOf(cs);
        refuse(
            s,
            records,
            signAll(some(a[0], a[0]), s),
            abi.encodeWithSelector(TrainingLedger.SignersNotAscending.selector, a[0])
        );
        refuse(
            s,
            records,
            signAll(some(a[1], a[0]), s),
            abi.encodeWithSelector(TrainingLedger.SignersNotAscending.selector, a[0])
        );
    }

    function test_refusesMalformedAndHighSSignatures() public {
        Contribution[] memory cs = contributionsOf(run, a);
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = recordsOf(cs);
        bytes memory signatures = bytes.concat(signAll(a, s), hex"00");
        refuse(s, records, signatures, abi.encodeWithSelector(TrainingLedger.SignaturesLength.selector, 3 * 65 + 1));
        (uint8 v, bytes32 r, bytes32 low) = vm.sign(keyOf[a[0]], digestOf(s));
        bytes32 high = bytes32(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141 - uint256(low));
        signatures = abi.encodePacked(r, high, v == 27 ? 28 : 27);
        refuse(s, records, signatures, abi.encodeWithSelector(ECDSA.ECDSAInvalidSignatureS.selector, high));
        signatures = abi.encodePacked(r, low, v - 27);
        refuse(s, records, signatures, abi.encodeWithSelector(ECDSA.ECDSAInvalidSignature.selector));
    }

    function test_onlyActiveSignersCountAndSigningMakesActive() public {
        sealSignedBy(run, 0, some(a[0]), some(a[0], a[1])); // a[2] is not active
        sealSignedBy(run, 1, b, b);
        vm.assertTrue(ledger.isActive(run, a[0]));
        vm.assertTrue(ledger.isActive(run, a[1]));
        vm.assertFalse(ledger.isActive(run, a[2]));
        (uint256 members, uint256 needed) = ledger.quorumOf(run, 0);
        vm.assertEq(members, 2);
        vm.assertEq(needed, 2);

        Contribution[] memory cs = contributionsOf(run, some(a[0], a[1]));
        Seal memory s = sealOf(run, 0, cs);
        bytes memory records = recordsOf(cs);
        refuse(
            s,
            records,
            signAll(some(a[0], a[2]), s),
            abi.encodeWithSelector(TrainingLedger.QuorumMissing.selector, 1, 2)
        );
        ledger.seal(s, records, signAll(a, s)); // a[2] signs as well, and is active from now on
        vm.assertTrue(ledger.isActive(run, a[2]));
        (members, needed) = ledger.quorumOf(run, 0);
        vm.assertEq(members, 3);
        vm.assertEq(needed, 2);
    }

    function test_aCountedContributionMakesActiveWithoutASignature() public {
        sealSignedBy(run, 0, a, some(a[0], a[1]));
        vm.assertTrue(ledger.isActive(run, a[2]));
        (uint256 members,) = ledger.quorumOf(run, 0);
        vm.assertEq(members, 3);
    }

    // -------------------------------------------------------------------------------------------- quorum recount

    function sealRound(address[] memory stage0) private {
        sealWith(run, 0, stage0);
        sealWith(run, 1, b);
    }

    function test_activityLastsThreeSealedRounds() public {
        sealRound(a); // the round that counts a[2] last
        sealRound(some(a[0], a[1]));
        sealRound(some(a[0], a[1]));
        vm.assertTrue(ledger.isActive(run, a[2])); // round 0 is one of the last three: 0, 1, 2
        sealWith(run, 0, some(a[0], a[1]));
        vm.assertFalse(ledger.isActive(run, a[2])); // 1, 2, 3
        (uint256 members, uint256 needed) = ledger.quorumOf(run, 0);
        vm.assertEq(members, 2);
        vm.assertEq(needed, 2);
    }

    function test_allHoldersCountWhereNoneIsActive() public {
        (uint256 members, uint256 needed) = ledger.quorumOf(run, 0);
        vm.assertEq(members, 3);
        vm.assertEq(needed, 2);
        vm.assertTrue(ledger.isActive(run, a[0]));
        sealRound(some(a[0], a[1]));
        vm.prank(a[0]);
        ledger.leaveRun(run);
        vm.prank(a[1]);
        ledger.leaveRun(run);
        (members, needed) = ledger.quorumOf(run, 0); // a[2] alone is left and never was active
        vm.assertEq(members, 1);
        vm.assertEq(needed, 1);
        vm.assertTrue(ledger.isActive(run, a[2]));
        sealSignedBy(run, 0, some(a[2]), some(a[2]));
    }

    function test_aStageWithoutHoldersNeedsOneSignature() public {
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(a[i]);
            ledger.leaveRun(run);
        }
        (uint256 members, uint256 needed) = ledger.quorumOf(run, 0);
        vm.assertEq(members, 0);
        vm.assertEq(needed, 1);
        vm.warp(block.timestamp + ROUND_TIMEOUT);
        Seal memory s = sealOf(run, 0, new Contribution[](0));
        refuse(s, "", "", abi.encodeWithSelector(TrainingLedger.QuorumMissing.selector, 0, 1));
    }

    function test_activityIsKeptOnRejoiningTheStageAndMovingButNotOnChangingIt() public {
        sealRound(a);
        vm.prank(a[1]);
        ledger.leaveRun(run);
        vm.assertFalse(ledger.isActive(run, a[1]));
        join(run, a[1], 0);
        vm.assertTrue(ledger.isActive(run, a[1]));

        vm.prank(a[1]);
        ledger.leaveRun(run);
        join(run, a[1], 1);
        requireSlot(run, a[1], 3, 1);
        vm.assertFalse(ledger.isActive(run, a[1]));
        vm.prank(a[1]);
        ledger.leaveRun(run);
        join(run, a[1], 0);
        vm.assertFalse(ledger.isActive(run, a[1]));

        join(run, who[6], 0); // replica 3, incomplete
        requireSlot(run, who[6], 3, 0);
        sealSignedBy(run, 0, some(a[0], a[2]), insert(some(a[0], a[2]), who[6]));
        vm.assertTrue(ledger.isActive(run, who[6]));
        vm.prank(a[0]);
        ledger.leaveRun(run);
        vm.prank(who[6]);
        ledger.moveDown(run);
        requireSlot(run, who[6], 0, 0);
        vm.assertTrue(ledger.isActive(run, who[6]));
    }

    function insert(address[] memory two, address third) private pure returns (address[] memory) {
        if (third < two[0]) return some(third, two[0], two[1]);
        return third < two[1] ? some(two[0], third, two[1]) : some(two[0], two[1], third);
    }

    function testFuzz_quorumIsTheFractionRoundedUpAndAtLeastOne(uint16 numerator, uint16 denominator) public {
        vm.assume(numerator > 0 && numerator <= denominator);
        RunConfig memory config = configOf(1, 1, 4);
        (config.quorumNumerator, config.quorumDenominator) = (numerator, denominator);
        bytes32 other = ledger.createRun(config, NAME, genesisOf(1));
        for (uint256 members = 1; members <= 4; ++members) {
            join(other, who[members], ANY);
            (uint256 counted, uint256 needed) = ledger.quorumOf(other, 0);
            vm.assertEq(counted, members);
            vm.assertTrue(needed >= 1 && needed <= members);
            vm.assertTrue(needed * denominator >= members * numerator); // enough ...
            vm.assertTrue(needed == 1 || (needed - 1) * denominator < members * numerator); // ... and no more
        }
    }

    // --------------------------------------------------------------------------------------------- empty seals

    function test_anEmptySealIsValidAfterTheRoundTimeout() public {
        Seal memory s = sealOf(run, 0, new Contribution[](0));
        bytes memory signatures = signAll(some(a[0], a[1]), s);
        uint256 fromTime = block.timestamp + ROUND_TIMEOUT;
        vm.warp(fromTime - 1);
        refuse(s, "", signatures, abi.encodeWithSelector(TrainingLedger.EmptySealTooEarly.selector, fromTime));
        vm.warp(fromTime);
        ledger.seal(s, "", signatures);
        vm.assertEq(ledger.nextRound(run, 0), 1);
        (bytes32 weights,) = ledger.heads(run, 0);
        vm.assertEq(weights, genesisOf(2)[0]);
    }

    function test_anEmptySealChangesNeitherWeightsNorMomentumAndClaimsNothing() public {
        vm.warp(block.timestamp + ROUND_TIMEOUT);
        Contribution[] memory no = new Contribution[](0);
        Seal memory s = sealOf(run, 0, no);
        bytes memory changes = abi.encodeWithSelector(TrainingLedger.EmptySealChangesState.selector);
        s.nextWeights = keccak256("other");
        refuse(s, no, changes);
        s = sealOf(run, 0, no);
        s.nextMomentum = keccak256("other");
        refuse(s, no, changes);
        s = sealOf(run, 0, no);
        s.meanLoss = 1;
        refuse(s, no, abi.encodeWithSelector(TrainingLedger.WrongMeanLoss.selector, 1, 0));
        s = sealOf(run, 0, no);
        s.contributionsRoot = keccak256("other");
        refuse(
            s,
            no,
            abi.encodeWithSelector(TrainingLedger.WrongContributionsRoot.selector, s.contributionsRoot, bytes32(0))
        );
    }
}
