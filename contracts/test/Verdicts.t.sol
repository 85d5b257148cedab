// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {ILedger} from "../src/ILedger.sol";
import {Charge, Fixture, Work} from "./Fixture.sol";
import {vm, Vm} from "./Vm.sol";

/// @notice What can be done with verdicts, and how those try to escape who are found out.
contract VerdictsTest is Fixture {
    bytes32 internal run;

    // -------------------------------------------------------------------------------------------- who may convict

    function test_aQuorumConvicts() public {
        begin(6, 1);
        Charge memory c = charge(run, 0, 1, who[5]);
        refused(c, part(0, 3), having(part(0, 3)));
        vm.recordLogs();
        convict(c, part(0, 4));
        Vm.Log[] memory logs = vm.getRecordedLogs();
        vm.assertEq(logs.length, 1);
        vm.assertEq(logs[0].topics[0], keccak256("Convicted(bytes32,address,uint16,uint32,bytes32,bytes)"));
        vm.assertEq(logs[0].data, abi.encode(uint16(0), uint32(1), c.statement, found(c, 2, part(0, 4))));
        vm.assertFalse(ledger.memberOf(run, who[5]).holds);
        vm.assertEq(ledger.holderOf(run, 5, 0), address(0));
        requireBarred(who[5]);
        // The slot is anybody's after this second, and the others go on.
        pass(1);
        join(run, who[6], 0);
        requireSlot(run, who[6], 5, 0);
        sealWith(run, 0, part(0, 5));
    }

    /// @dev With any number of members a third that lies convicts nobody, and the others convict each of it.
    function test_aThirdConvictsNobody() public {
        for (uint256 n = 2; n <= 10; ++n) {
            uint256 snapshot = vm.snapshotState();
            begin(n, 1);
            uint256 liars = n / 3;
            for (uint256 victim = 0; victim < n; ++victim) {
                Charge memory c = charge(run, 0, 0, who[victim]);
                (bool done,) = address(ledger).call(convictCall(c, found(c, 2, part(0, liars))));
                vm.assertFalse(done);
            }
            for (uint256 liar = 0; liar < liars; ++liar) convict(charge(run, 0, 0, who[liar]), part(liars, n));
            vm.revertToState(snapshot);
        }
    }

    /// @dev Not even by the lowest quorum that a run can have: half of the votes would convict the other half.
    function test_aMinorityConvictsNobodyWhateverTheQuorum() public {
        RunConfig memory config = configOf(1, 1, 8);
        (config.quorumNumerator, config.quorumDenominator) = (32_768, 65_535);
        enrol(6);
        run = create(config);
        for (uint256 i = 0; i < 6; ++i) join(run, who[i], 0);
        work(run, 0, who, 16);
        refused(charge(run, 0, 0, who[5]), part(0, 3), having(part(0, 3)));
        convict(charge(run, 0, 0, who[5]), part(0, 4));
    }

    function test_twoOfTwoCannotTwoOfThreeCan() public {
        begin(3, 1);
        quit(who[2]);
        refused(charge(run, 0, 0, who[1]), some(who[0]), having(some(who[0])));
        refused(charge(run, 0, 0, who[0]), some(who[1]), having(some(who[1])));
        refused(charge(run, 0, 0, who[2]), some(who[1]), having(some(who[1]))); // it left, and has its weight all the same
        convict(charge(run, 0, 0, who[2]), some(who[0], who[1]));
    }

    function test_oneIsOnce() public {
        begin(4, 1);
        Charge memory c = charge(run, 0, 0, who[3]);
        bytes memory twice = bytes.concat(found(c, 2, part(0, 2)), found(c, 3, part(0, 2)), found(c, 2, part(0, 2)));
        refused(c, twice, having(part(0, 2)));
        refused(c, found(c, 2, some(who[1], who[0], who[2])), having(part(1, 3))); // they ascend
        ledger.convict(c.run, c.stage, c.round, c.account, c.statement, bytes.concat(twice, found(c, 3, part(2, 3))));
    }

    function test_theAccusedIsNoJudge() public {
        begin(4, 1);
        Charge memory c = charge(run, 0, 0, who[3]);
        refused(c, some(who[0], who[1], who[3]), having(part(0, 2)));
    }

    /// @dev Nor is a member of another stage, one that was never counted, or a stranger. Who has left is one.
    function test_othersAreNoJudges() public {
        begin(4, 2); // even ones in stage 0
        for (uint256 i = 4; i < 6; ++i) join(run, who[i], 0); // newcomers
        Charge memory c = charge(run, 0, 0, who[2]);
        refused(c, who, having(some(who[0])));
        quit(who[4]);
        refused(c, who, having(some(who[0])));
        quit(who[0]);
        refused(c, who, having(some(who[0])));
        pass(1);
        join(run, who[0], 0);
        refused(c, who, having(some(who[0])));
    }

    /// @dev Where nobody has worked yet the founders are the judges, and nobody else.
    function test_atBirthTheFoundersJudge() public {
        enrol(4);
        run = create(configOf(1, 1, 4));
        for (uint256 i = 0; i < 4; ++i) join(run, who[i], 0);
        Charge memory c = charge(run, 0, 0, who[3]);
        refused(c, who, 0);
        refused(c, found(c, 1, some(founder)), 0);
        convict(c, some(founder));
        // Later its word is one of many, and in the end none.
        work(run, 0, part(0, 3), 2);
        c = charge(run, 0, 0, who[2]);
        uint256 snapshot = vm.snapshotState();
        refused(c, some(who[0]), having(some(who[0])));
        convict(c, ascending(founded(some(who[0]))));
        vm.revertToState(snapshot);
        work(run, 0, part(0, 3), 14);
        refused(c, some(founder), 0);
        refused(c, ascending(founded(some(who[0]))), having(some(who[0])));
    }

    /// @dev In a late round less weight seals; it takes no less to convict.
    function test_aLateRoundMakesItNoEasier() public {
        begin(6, 1);
        pass(100 * ROUND_TIMEOUT);
        refused(charge(run, 0, 0, who[5]), part(0, 3), having(part(0, 3)));
    }

    /// @dev Nor does it to have the others away: what they had counts, whole, as long as nobody works without them.
    function test_thoseWhoAreAwayCount() public {
        begin(6, 1);
        Charge memory c = charge(run, 0, 0, who[5]);
        for (uint256 i = 3; i < 6; ++i) quit(who[i]);
        pass(5000 * ROUND_TIMEOUT);
        refused(c, part(0, 3), having(part(0, 3)));
        c = charge(run, 0, 0, who[0]);
        convict(c, part(1, 6)); // those away can judge, too
    }

    /// @dev Whoever has most of the weight is convicted only by three fifths of all.
    function test_aMajorityIsConvictedByNoMinority() public {
        enrol(3);
        run = create(configOf(1, 1, 3));
        for (uint256 i = 0; i < 3; ++i) join(run, who[i], 0);
        work(run, 0, who, 16);
        for (uint256 k = 0; k < 6; ++k) {
            Seal memory s = sealBy(run, 0, some(who[2]), who);
            expire(run);
            ledger.seal(s);
        }
        vm.assertTrue(ledger.weightOf(run, who[2]) > having(part(0, 2)));
        refused(charge(run, 0, 0, who[2]), part(0, 2), having(part(0, 2)));
    }

    // ------------------------------------------------------------------------------------------------- what counts

    function test_onlyFalseAndWithheldCount() public {
        begin(4, 1);
        Charge memory c = charge(run, 0, 0, who[3]);
        for (uint256 finding = 0; finding < 256; finding += finding < 5 ? 1 : 50) {
            if (finding != 2 && finding != 3) refused(c, found(c, uint8(finding), part(0, 3)), 0);
        }
        // An honest finding is not one of false because the entry says so.
        bytes memory honest = found(c, 1, part(0, 3));
        for (uint256 i = 0; i < 3; ++i) honest[98 * i] = bytes1(uint8(2));
        refused(c, honest, 0);
        bytes memory mixed = bytes.concat(found(c, 1, some(who[0])), found(c, 2, part(0, 2)), found(c, 3, part(2, 3)));
        ledger.convict(c.run, c.stage, c.round, c.account, c.statement, mixed);
    }

    /// @dev A verdict is of one contribution: nothing of it can be put otherwise.
    function test_aVerdictCannotBeUsedForAnother() public {
        begin(6, 2);
        sealWith(run, 0, some(who[0], who[2], who[4]));
        Charge memory c = charge(run, 0, 0, who[4]);
        address[] memory judges = some(who[0], who[2]);
        bytes memory entries = found(c, 2, judges);
        bytes32 own = run;
        RunConfig memory config = configOf(2, 1, 8);
        config.manifest = keccak256("another");
        bytes32 other = create(config);
        for (uint256 i = 0; i < 6; ++i) join(other, who[i], uint16(i % 2));
        sealWith(other, 0, some(who[0], who[2], who[4]));
        refused(Charge(other, 0, 0, who[4], c.statement), entries, 0);
        refused(Charge(own, 0, 1, who[4], c.statement), entries, 0);
        refused(Charge(own, 0, 0, who[2], c.statement), entries, 0);
        refused(Charge(own, 0, 0, who[4], keccak256("another")), entries, 0);
        entries[40] ^= 0x01; // a signature
        refused(c, entries);
        entries[40] ^= 0x01;
        entries[20] ^= 0x01; // a report
        refused(c, entries);
        convict(c, judges);
    }

    function test_entriesComeWhole() public {
        begin(3, 1);
        Charge memory c = charge(run, 0, 0, who[2]);
        refused(c, "", 0);
        bytes memory entries = bytes.concat(found(c, 2, part(0, 2)), bytes1(0));
        vm.expectRevert(abi.encodeWithSelector(ILedger.SignaturesLength.selector, 197));
        ledger.convict(c.run, c.stage, c.round, c.account, c.statement, entries);
    }

    /// @dev The other form of a signature is nobody's.
    function test_malleableVerdictsAreNobodys() public {
        begin(3, 1);
        Charge memory c = charge(run, 0, 0, who[2]);
        bytes memory entries = found(c, 2, part(0, 2));
        bytes32 s;
        assembly ("memory-safe") {
            s := mload(add(entries, 97)) // 32 + 1 + 32 + 32
        }
        uint256 order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        uint256 upper = order - uint256(s);
        assembly ("memory-safe") {
            mstore(add(entries, 97), upper)
        }
        entries[97] = bytes1(uint8(27 + 28) - uint8(entries[97]));
        refused(c, entries, having(some(who[1])));
    }

    // ---------------------------------------------------------------------------------------------- how they escape

    /// @dev Whoever races its conviction by leaving is barred as well.
    function test_leavingIsNoEscape() public {
        begin(4, 1);
        quit(who[3]);
        convict(charge(run, 0, 0, who[3]), part(0, 3));
        pass(1);
        requireBarred(who[3]);
    }

    /// @dev Nor is leaving and coming back, into the same stage or another; the judges are those of the stage where it
    /// did the work.
    function test_movingIsNoEscape() public {
        begin(6, 2);
        quit(who[4]);
        pass(1);
        join(run, who[4], 0);
        uint256 snapshot = vm.snapshotState();
        convict(charge(run, 0, 0, who[4]), some(who[0], who[2]));
        requireBarred(who[4]);
        vm.revertToState(snapshot);

        quit(who[4]);
        sealWith(run, 0, some(who[0], who[2]));
        join(run, who[4], 1);
        refused(charge(run, 1, 0, who[4]), some(who[0], who[2]), 0); // they have no votes there
        convict(charge(run, 0, 0, who[4]), some(who[0], who[2]));
        vm.assertEq(ledger.holderOf(run, 3, 1), address(0));
        requireBarred(who[4]);
    }

    /// @dev Who was evicted does not come back to the slot that waits for it.
    function test_theSlotThatWaitsIsNoEscape() public {
        begin(4, 1);
        pass(ROUND_TIMEOUT + 1);
        vm.prank(who[0]);
        ledger.accuse(run, who[3]);
        pass(EVICTION_TIME);
        ledger.evict(run, who[3]);
        convict(charge(run, 0, 0, who[3]), part(0, 3));
        requireBarred(who[3]);
        pass(EVICTION_TIME + 1);
        join(run, who[4], 0);
        requireSlot(run, who[4], 3, 0);
    }

    /// @dev Slots may change while verdicts are gathered and sent: a deal does not spoil them.
    function test_aDealIsNoEscape() public {
        begin(6, 2);
        Charge memory c = charge(run, 0, 0, who[4]);
        bytes memory entries = found(c, 2, some(who[0], who[2]));
        bool dealt = false;
        for (uint256 k = 0; !dealt; ++k) {
            vm.assertTrue(k < 20);
            pass(ROUND_TIMEOUT);
            sealWith(run, 0, some(who[0], who[2]));
            sealWith(run, 1, some(who[1], who[3]));
            (dealt,) = address(ledger).call(abi.encodeCall(ledger.deal, (run, 2)));
        }
        ledger.convict(c.run, c.stage, c.round, c.account, c.statement, entries);
        requireBarred(who[4]);
    }

    function test_onlyWhoEverHeldASlotThere() public {
        begin(4, 2); // nobody but the odd ones in stage 1
        Charge memory c = charge(run, 0, 0, who[1]);
        for (uint16 k = 0; k < 3; ++k) {
            c.stage = [uint16(0), 63, 320][k];
            vm.expectRevert(abi.encodeWithSelector(ILedger.NeverHeld.selector, who[1], c.stage));
            ledger.convict(c.run, c.stage, c.round, c.account, c.statement, found(c, 2, who));
        }
        c = charge(run, 0, 0, address(0));
        vm.expectRevert(abi.encodeWithSelector(ILedger.NeverHeld.selector, address(0), 0));
        ledger.convict(c.run, c.stage, c.round, c.account, c.statement, "");
    }

    function test_onceAndForAll() public {
        begin(4, 1);
        Charge memory c = charge(run, 0, 0, who[3]);
        convict(c, part(0, 3));
        bytes memory entries = found(c, 2, part(0, 3));
        vm.expectRevert(abi.encodeWithSelector(ILedger.IsConvicted.selector, who[3]));
        ledger.convict(c.run, c.stage, c.round, c.account, c.statement, entries);
        vm.expectRevert(abi.encodeWithSelector(ILedger.UnknownRun.selector, bytes32(0)));
        ledger.convict(0, c.stage, c.round, c.account, c.statement, entries);
    }

    /// @dev The last round's contributions are judged when all is sealed.
    function test_theEndOfTheRunIsNoEscape() public {
        begin(4, 1);
        for (uint256 k = 16; k < 200; ++k) sealWith(run, 0, part(0, 4));
        convict(charge(run, 0, 199, who[3]), part(0, 3));
        vm.assertTrue(ledger.standingOf(run, who[3]).convicted);
        vm.assertFalse(ledger.memberOf(run, who[3]).holds);
    }

    // -------------------------------------------------------------------------------------------- seals under way

    /// @dev A seal that is signed stays valid, with the record of whoever is convicted before it is mined, if the others'
    /// votes are enough.
    function test_aConvictionSpoilsNoSeal() public {
        begin(4, 1);
        for (uint256 way = 0; way < 2; ++way) {
            uint256 snapshot = vm.snapshotState();
            address[] memory signers = part(0, way == 0 ? 4 : 3); // it signs, or it does not
            Work[] memory works = worksOf(run, part(0, 4));
            Seal memory s = signedBy(sealOf(run, 0, works), works, signers);
            convict(charge(run, 0, 0, who[3]), part(0, 3));
            pass(1);
            join(run, who[4], 0); // another takes its slot, and is not counted for it
            pass(MIN_ROUND_TIME);
            ledger.seal(s);
            for (uint256 i = 0; i < 3; ++i) vm.assertEq(laneOf(run, who[i]) >> 28, 0);
            vm.assertEq(laneOf(run, who[4]) >> 28, 15);
            vm.assertEq(activityOf(run, 0).nonEmpty, 17);
            // From the next one on it has neither record nor vote.
            works = worksOf(run, part(0, 3));
            s = signedBy(sealOf(run, 0, works), works, some(who[0], who[3]));
            pass(MIN_ROUND_TIME);
            (uint256 votes,) = missing(s);
            vm.assertEq(votes, ledger.weightOf(run, who[0]));
            vm.revertToState(snapshot);
        }
    }

    // --------------------------------------------------------------------------------------------------- helpers

    /// @dev A run whose first sixteen rounds all of `n` members worked in, and three more accounts.
    function begin(uint256 n, uint16 stages) internal {
        delete who;
        enrol(n + 3);
        run = create(configOf(stages, 1, 16));
        for (uint256 i = 0; i < n; ++i) join(run, who[i], uint16(i % stages));
        for (uint256 k = 0; k < 16; ++k) {
            for (uint16 stage = 0; stage < stages; ++stage) {
                address[] memory all = new address[]((n + stages - 1 - stage) / stages);
                for (uint256 i = 0; i < all.length; ++i) all[i] = who[i * stages + stage];
                sealWith(run, stage, all);
            }
        }
    }

    function having(address[] memory judges) internal view returns (uint256) {
        return weightOf(run, judges);
    }

    function ascending(address[] memory list) internal pure returns (address[] memory) {
        for (uint256 i = 1; i < list.length; ++i) {
            for (uint256 j = i; j > 0 && list[j] < list[j - 1]; --j) (list[j], list[j - 1]) = (list[j - 1], list[j]);
        }
        return list;
    }

    /// @dev All together have so much weight, which is not enough.
    function refused(Charge memory c, address[] memory signers, uint256 votes) internal {
        refused(c, found(c, 2, signers), votes);
    }

    function refused(Charge memory c, bytes memory entries, uint256 votes) internal {
        vm.assertEq(refused(c, entries), votes, "votes");
    }

    function refused(Charge memory c, bytes memory entries) internal returns (uint256 votes) {
        (bool done, bytes memory why) = address(ledger).call(convictCall(c, entries));
        vm.assertFalse(done);
        vm.assertEq(bytes32(bytes4(why)), bytes32(ILedger.QuorumMissing.selector));
        assembly ("memory-safe") {
            votes := mload(add(why, 36))
        }
    }

    function requireBarred(address account) internal {
        vm.assertTrue(ledger.standingOf(run, account).convicted);
        vm.assertFalse(ledger.memberOf(run, account).holds);
        for (uint16 k = 0; k < 3; ++k) {
            vm.prank(account);
            vm.expectRevert(abi.encodeWithSelector(ILedger.IsConvicted.selector, account));
            ledger.joinRun(run, [uint16(0), 1, ANY][k]);
        }
    }

    function quit(address account) internal {
        vm.prank(account);
        ledger.leaveRun(run);
    }
}
