// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Bonds, Disproofs, SealBasis} from "../src/Bonds.sol";
import {Outcome} from "../src/Seals.sol";
import {vm} from "./Vm.sol";

/// @dev Who locks and releases, for itself.
contract Locking {
    Bonds private immutable _bonds;

    constructor(Bonds bonds) {
        _bonds = bonds;
    }

    function lock(bytes32 run, address account, uint256 amount) external {
        _bonds.lock(run, account, amount);
    }

    function release(bytes32 run, address account) external {
        _bonds.release(run, account);
    }
}

/// @dev Says of the digests that it was told.
contract Proofs is Disproofs {
    mapping(bytes32 digest => bool) public disproved;

    function disprove(bytes32 digest) external {
        disproved[digest] = true;
    }
}

/// @dev Calls back whoever pays it.
contract Greedy {
    address private _target;
    bytes private _again;
    uint256 public failures;

    function aim(address target, bytes calldata again) external {
        (_target, _again) = (target, again);
    }

    function call(bytes calldata data) external {
        (bool done,) = _target.call(data);
        require(done, "refused");
    }

    receive() external payable {
        (bool done,) = _target.call(_again);
        if (!done) ++failures;
    }
}

contract BondsTest {
    uint256 private constant LIAR = 0x11a5;
    uint256 private constant OTHER = 0x07e5;
    uint128 private constant BOND = 5 ether;
    bytes32 private constant RUN = keccak256("run");
    address private constant REPORTER = address(0x4e9);
    uint256 private constant NOW = 1_800_000_000;

    Proofs private proofs;
    Bonds private bonds;
    Locking private ledger;
    address private liar;

    receive() external payable {} // rewards

    function setUp() public {
        vm.warp(NOW);
        proofs = new Proofs();
        bonds = new Bonds(proofs);
        ledger = new Locking(bonds);
        liar = vm.addr(LIAR);
    }

    // ---------------------------------------------------------------------------------------------------- money

    function test_moneyGoesInAndComesBackAfterUnbonding() public {
        slot();
        requireBond(liar, 0, BOND, 0);
        refusedWithdrawal(liar);
        ledger.release(RUN, liar);
        requireBond(liar, 0, 0, BOND);
        vm.warp(NOW + bonds.UNBONDING() - 1);
        refusedWithdrawal(liar);
        vm.warp(NOW + bonds.UNBONDING());
        requireBond(liar, BOND, 0, 0);
        vm.prank(liar);
        bonds.withdraw(address(ledger), RUN);
        vm.assertEq(liar.balance, BOND);
        refusedWithdrawal(liar);
    }

    function test_aSlotNeedsTheWholeBond() public {
        bonds.deposit{value: BOND - 1}(address(ledger), RUN, liar);
        vm.expectRevert(abi.encodeWithSelector(Bonds.BondMissing.selector, liar, 1));
        ledger.lock(RUN, liar, BOND);
        bonds.deposit{value: 1}(address(ledger), RUN, liar);
        ledger.lock(RUN, liar, BOND);
        ledger.lock(RUN, liar, BOND); // twice takes nothing more
        requireBond(liar, 0, BOND, 0);
    }

    function test_whoComesBackBringsWhatIsStillUnbonding() public {
        slot();
        ledger.release(RUN, liar);
        ledger.release(RUN, liar); // twice changes nothing
        vm.warp(NOW + 3 days);
        ledger.lock(RUN, liar, BOND);
        requireBond(liar, 0, BOND, 0);
        ledger.release(RUN, liar);
        vm.warp(NOW + 3 days + bonds.UNBONDING() - 1);
        refusedWithdrawal(liar);
        vm.warp(NOW + 3 days + bonds.UNBONDING());
        vm.prank(liar);
        bonds.withdraw(address(ledger), RUN);
        vm.assertEq(liar.balance, BOND);
    }

    /// @dev What unbonded is free, even if another bond begins to unbond before anybody asks for it.
    function test_whatUnbondedIsNotBoundAgain() public {
        slot();
        ledger.release(RUN, liar);
        vm.warp(NOW + 8 days);
        bonds.deposit{value: 1 ether}(address(ledger), RUN, liar);
        ledger.lock(RUN, liar, 1 ether);
        ledger.release(RUN, liar);
        requireBond(liar, BOND, 0, 1 ether);
    }

    function test_othersDepositsAreTheAccounts() public {
        vm.assume(address(this) != liar);
        bonds.deposit{value: BOND}(address(ledger), RUN, liar);
        refusedWithdrawal(address(this));
        vm.prank(liar);
        bonds.withdraw(address(ledger), RUN);
        vm.assertEq(liar.balance, BOND);
    }

    /// @dev Whoever calls `lock` reaches what was deposited for it, and nothing else: not even of the same run.
    function test_aFalseLedgerReachesNobodysMoney() public {
        slot();
        bonds.deposit{value: 1 ether}(address(ledger), RUN, liar);
        Locking fake = new Locking(bonds);
        vm.expectRevert(abi.encodeWithSelector(Bonds.BondMissing.selector, liar, 1));
        fake.lock(RUN, liar, 1);
        fake.release(RUN, liar);
        requireBond(liar, 1 ether, BOND, 0);
        vm.prank(liar);
        vm.expectRevert(abi.encodeWithSelector(Bonds.NothingToWithdraw.selector, liar));
        bonds.withdraw(address(fake), RUN);
        vm.expectRevert(abi.encodeWithSelector(Bonds.BondMissing.selector, liar, BOND));
        ledger.lock(keccak256("another run"), liar, BOND);
    }

    function test_withdrawingTwiceInOneCallPaysOnce() public {
        Greedy greedy = new Greedy();
        bytes memory call = abi.encodeCall(Bonds.withdraw, (address(ledger), RUN));
        greedy.aim(address(bonds), call);
        bonds.deposit{value: BOND}(address(ledger), RUN, address(greedy));
        bonds.deposit{value: BOND}(address(ledger), RUN, liar);
        greedy.call(call);
        vm.assertEq(address(greedy).balance, BOND);
        vm.assertEq(greedy.failures(), 1);
        vm.assertEq(address(bonds).balance, BOND);
    }

    // ------------------------------------------------------------------------------------------- two statements

    function test_twoStatementsSlash() public {
        slot();
        bonds.deposit{value: 1 ether}(address(ledger), RUN, liar); // not at stake
        reportStatements(statement(1), statement(2));
        requireSlashed();
        requireBond(liar, 1 ether, 0, 0);
        vm.assertEq(REPORTER.balance, BOND / 10);
        vm.assertEq(bonds.BURNT().balance, BOND - BOND / 10);
    }

    function test_unbondingIsAtStakeUntilItIsFree() public {
        slot();
        ledger.release(RUN, liar);
        uint256 snapshot = vm.snapshotState();
        vm.warp(NOW + bonds.UNBONDING());
        refusedStatements(statement(1), statement(2), abi.encodeWithSelector(Bonds.NothingAtStake.selector, liar));
        vm.revertToState(snapshot);
        vm.warp(NOW + bonds.UNBONDING() - 1);
        reportStatements(statement(1), statement(2));
        requireSlashed();
    }

    function test_itIsSlashedOnceAndNeverPlacedAgain() public {
        slot();
        reportStatements(statement(1), statement(2));
        refusedStatements(statement(1), statement(2), abi.encodeWithSelector(Bonds.NothingAtStake.selector, liar));
        ledger.release(RUN, liar); // it loses its slot as ever
        bonds.deposit{value: BOND}(address(ledger), RUN, liar);
        vm.expectRevert(abi.encodeWithSelector(Bonds.IsSlashed.selector, liar));
        ledger.lock(RUN, liar, BOND);
        refusedStatements(statement(1), statement(3), abi.encodeWithSelector(Bonds.NothingAtStake.selector, liar));
        vm.prank(liar); // what it did not have at stake is its own
        bonds.withdraw(address(ledger), RUN);
        vm.assertEq(liar.balance, BOND);
    }

    /// @dev It gets a tenth back, whoever it is when it reports.
    function test_aLiarThatReportsItselfLosesNineTenths() public {
        slot();
        (bytes memory a, bytes memory b) = (statement(1), statement(2));
        (bytes memory sa, bytes memory sb) = (signed(a, LIAR), signed(b, LIAR));
        vm.prank(liar);
        bonds.twoStatements(address(ledger), a, sa, b, sb);
        vm.assertEq(liar.balance, BOND / 10);
        vm.assertEq(address(bonds).balance, 0);
    }

    function test_nothingAtStakeLeavesEvidenceForLater() public {
        refusedStatements(statement(1), statement(2), abi.encodeWithSelector(Bonds.NothingAtStake.selector, liar));
        slot();
        reportStatements(statement(1), statement(2));
        requireSlashed();
    }

    /// @dev Another run, round, stage, account, base or plan is honest; and so is the same statement twice.
    function test_statementsThatDoNotContradict() public {
        slot();
        uint8[6] memory words = [0, 1, 2, 4, 5, 9];
        for (uint256 i = 0; i < words.length; ++i) {
            bytes memory other = statement(2);
            other[32 * uint256(words[i]) + 31] ^= 0x01;
            refusedStatements(statement(1), other, abi.encodeWithSelector(Bonds.NoContradiction.selector));
        }
        refusedStatements(statement(1), statement(1), abi.encodeWithSelector(Bonds.NoContradiction.selector));
    }

    function test_theSlotMayBeAnother() public {
        slot();
        bytes memory other = statement(2);
        other[32 * 3 + 31] ^= 0x03;
        reportStatements(statement(1), other);
        requireSlashed();
    }

    function test_bothHaveToBeSignedByTheAccount() public {
        slot();
        (bytes memory a, bytes memory b) = (statement(1), statement(2));
        (bytes memory mine, bytes memory theirs) = (signed(a, LIAR), signed(b, OTHER));
        bytes memory reason = abi.encodeWithSelector(Bonds.SignatureMissing.selector);
        vm.expectRevert(reason);
        bonds.twoStatements(address(ledger), a, mine, b, theirs);
        vm.expectRevert(reason);
        bonds.twoStatements(address(ledger), b, theirs, a, mine);
        vm.expectRevert(reason);
        bonds.twoStatements(address(ledger), a, mine, b, new bytes(65));
        vm.expectRevert(reason);
        bonds.twoStatements(address(ledger), a, mine, b, "");
        bytes memory right = signed(b, LIAR);
        vm.expectRevert(reason); // with a byte behind it
        bonds.twoStatements(address(ledger), a, mine, b, bytes.concat(right, hex"00"));
    }

    /// @dev The other form of a signature, which anybody can make, is none: nor would it show a second statement.
    function test_aSignatureHasOneForm() public {
        slot();
        (bytes memory a, bytes memory b) = (statement(1), statement(2));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(LIAR, digestOf(address(ledger), contributionHash(b)));
        uint256 n = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        bytes memory other = abi.encodePacked(r, bytes32(n - uint256(s)), uint8(v == 27 ? 28 : 27));
        bytes memory mine = signed(a, LIAR);
        vm.expectRevert(abi.encodeWithSelector(Bonds.SignatureMissing.selector));
        bonds.twoStatements(address(ledger), a, mine, b, other);
    }

    function test_evidenceIsOfOneLedgerAndChain() public {
        slot();
        (bytes memory a, bytes memory b) = (statement(1), statement(2));
        (bytes memory sa, bytes memory sb) = (signed(a, LIAR), signed(b, LIAR));
        Locking other = new Locking(bonds);
        bonds.deposit{value: BOND}(address(other), RUN, liar);
        other.lock(RUN, liar, BOND);
        vm.expectRevert(abi.encodeWithSelector(Bonds.SignatureMissing.selector));
        bonds.twoStatements(address(other), a, sa, b, sb);
        vm.chainId(5);
        vm.expectRevert(abi.encodeWithSelector(Bonds.SignatureMissing.selector));
        bonds.twoStatements(address(ledger), a, sa, b, sb);
    }

    function test_aStatementHasItsSize() public {
        slot();
        bytes memory a = statement(1);
        (bytes memory longer, bytes memory shorter) = (bytes.concat(a, hex"00"), new bytes(895));
        bytes memory signature = signed(a, LIAR);
        vm.expectRevert(abi.encodeWithSelector(Bonds.InvalidStatement.selector));
        bonds.twoStatements(address(ledger), a, signature, longer, signature);
        vm.expectRevert(abi.encodeWithSelector(Bonds.InvalidStatement.selector));
        bonds.twoStatements(address(ledger), shorter, signature, a, signature);
    }

    /// @dev The signature is over the record, whose exchange is a percentage of two times in the statement.
    function test_theExchangeIsThatOfTheRecord() public view {
        uint32[2][6] memory times = [
            [uint32(0), 5], [uint32(5), 0], [uint32(1000), 4], [uint32(1000), 405], [uint32(1), 1000], [uint32(200), 1]
        ];
        uint8[6] memory percent = [0, 0, 1, 41, 255, 1];
        for (uint256 i = 0; i < times.length; ++i) {
            vm.assertEq(exchangeOf(times[i][0], times[i][1]), percent[i]);
        }
    }

    function test_everyExchangeSlashes(uint32 compute, uint32 exchange) public {
        slot();
        bytes memory other = statement(2);
        put(other, 24, compute);
        put(other, 25, exchange);
        reportStatements(statement(1), other);
        requireSlashed();
    }

    // ------------------------------------------------------------------------------------------------ two seals

    function test_twoSealsSlash() public {
        slot();
        for (uint256 field = 0; field < 4; ++field) {
            uint256 snapshot = vm.snapshotState();
            Outcome memory other = outcome();
            if (field == 0) other.weights = keccak256("other");
            if (field == 1) other.momentum = keccak256("other");
            if (field == 2) other.weightsRoot = keccak256("other");
            if (field == 3) other.momentumRoot = keccak256("other");
            reportSeals(basis(), outcome(), other);
            requireSlashed();
            vm.revertToState(snapshot);
        }
    }

    function test_anotherPlanIsNoContradiction() public {
        slot();
        Outcome memory other = outcome();
        other.plans = bytes11(uint88(7));
        (bytes memory a, bytes memory b) = (signedSeal(basis(), outcome(), LIAR), signedSeal(basis(), other, LIAR));
        vm.expectRevert(abi.encodeWithSelector(Bonds.NoContradiction.selector));
        bonds.twoSeals(address(ledger), basis(), outcome(), a, other, b);
    }

    /// @dev Of other records, or after another seal, honest members sign many.
    function test_sealsOfAnotherBasisAreHonest(uint8 field) public {
        slot();
        SealBasis memory other = basis();
        field %= 5;
        if (field == 0) other.records = keccak256("others");
        if (field == 1) other.previous = keccak256("a reorg");
        if (field == 2) other.round += 1;
        if (field == 3) other.stage += 1;
        if (field == 4) other.run = keccak256("another");
        Outcome memory second = outcome();
        second.weights = keccak256("other");
        (bytes memory a, bytes memory b) = (signedSeal(basis(), outcome(), LIAR), signedSeal(other, second, LIAR));
        vm.expectRevert(abi.encodeWithSelector(Bonds.SignatureMissing.selector));
        bonds.twoSeals(address(ledger), basis(), outcome(), a, second, b);
    }

    function test_twoAccountsMaySignTwoSeals() public {
        slot();
        Outcome memory other = outcome();
        other.weights = keccak256("other");
        (bytes memory a, bytes memory b) = (signedSeal(basis(), outcome(), LIAR), signedSeal(basis(), other, OTHER));
        vm.expectRevert(abi.encodeWithSelector(Bonds.SignatureMissing.selector));
        bonds.twoSeals(address(ledger), basis(), outcome(), a, other, b);
        vm.expectRevert(abi.encodeWithSelector(Bonds.SignatureMissing.selector)); // nobody is not an account
        bonds.twoSeals(address(ledger), basis(), outcome(), new bytes(65), other, new bytes(65));
    }

    // -------------------------------------------------------------------------------------------- false versions

    function test_whoSignedADisprovedVersionIsSlashed() public {
        slot();
        bytes memory signature = signedSeal(basis(), outcome(), LIAR);
        bytes32 digest = digestOf(address(ledger), sealHash(basis(), outcome()));
        vm.expectRevert(abi.encodeWithSelector(Bonds.NotDisproved.selector, digest));
        bonds.falseVersion(address(ledger), basis(), outcome(), signature);
        proofs.disprove(digest);
        bytes memory theirs = signedSeal(basis(), outcome(), OTHER);
        vm.expectRevert(abi.encodeWithSelector(Bonds.NothingAtStake.selector, vm.addr(OTHER)));
        bonds.falseVersion(address(ledger), basis(), outcome(), theirs);
        bonds.falseVersion(address(ledger), basis(), outcome(), signature);
        requireSlashed();
    }

    /// @dev A digest names its run and ledger: what was disproved there takes no bond here.
    function test_aVersionOfAnotherRunTakesNoBondHere() public {
        slot();
        SealBasis memory other = basis();
        other.run = keccak256("another");
        bytes memory signature = signedSeal(other, outcome(), LIAR);
        proofs.disprove(digestOf(address(ledger), sealHash(other, outcome())));
        vm.expectRevert();
        bonds.falseVersion(address(ledger), basis(), outcome(), signature);
        vm.expectRevert(abi.encodeWithSelector(Bonds.NothingAtStake.selector, liar));
        bonds.falseVersion(address(ledger), other, outcome(), signature);
        requireBond(liar, 0, BOND, 0);
    }

    function test_withoutProofsNoVersionIsFalse() public {
        Bonds bare = new Bonds(Disproofs(address(0)));
        bytes memory signature = signedSeal(basis(), outcome(), LIAR);
        vm.expectRevert();
        bare.falseVersion(address(ledger), basis(), outcome(), signature);
    }

    // ------------------------------------------------------------------------------------------------ reporters

    function test_aReporterThatCallsBackGetsOneReward() public {
        slot();
        bonds.deposit{value: BOND}(address(ledger), RUN, vm.addr(OTHER));
        (bytes memory a, bytes memory b) = (statement(1), statement(2));
        bytes memory call =
            abi.encodeCall(Bonds.twoStatements, (address(ledger), a, signed(a, LIAR), b, signed(b, LIAR)));
        Greedy greedy = new Greedy();
        greedy.aim(address(bonds), call);
        greedy.call(call);
        vm.assertEq(address(greedy).balance, BOND / 10);
        vm.assertEq(greedy.failures(), 1);
        vm.assertEq(address(bonds).balance, BOND);
    }

    // -------------------------------------------------------------------------------------------------- helpers

    function slot() private {
        bonds.deposit{value: BOND}(address(ledger), RUN, liar);
        ledger.lock(RUN, liar, BOND);
    }

    function requireBond(address account, uint256 free, uint256 locked, uint256 unbonding) private view {
        (uint128 f, uint128 l, uint128 u,,) = bonds.bondOf(address(ledger), RUN, account);
        vm.assertEq(f, free, "free");
        vm.assertEq(l, locked, "locked");
        vm.assertEq(u, unbonding, "unbonding");
    }

    function requireSlashed() private view {
        (, uint128 locked, uint128 unbonding,, bool slashed) = bonds.bondOf(address(ledger), RUN, liar);
        vm.assertTrue(slashed && locked == 0 && unbonding == 0);
    }

    function refusedWithdrawal(address account) private {
        vm.prank(account);
        vm.expectRevert(abi.encodeWithSelector(Bonds.NothingToWithdraw.selector, account));
        bonds.withdraw(address(ledger), RUN);
    }

    function reportStatements(bytes memory a, bytes memory b) private {
        (bytes memory sa, bytes memory sb) = (signed(a, LIAR), signed(b, LIAR));
        vm.prank(REPORTER);
        bonds.twoStatements(address(ledger), a, sa, b, sb);
    }

    function refusedStatements(bytes memory a, bytes memory b, bytes memory reason) private {
        (bytes memory sa, bytes memory sb) = (signed(a, LIAR), signed(b, LIAR));
        vm.expectRevert(reason);
        bonds.twoStatements(address(ledger), a, sa, b, sb);
    }

    function reportSeals(SealBasis memory b, Outcome memory first, Outcome memory second) private {
        (bytes memory sa, bytes memory sb) = (signedSeal(b, first, LIAR), signedSeal(b, second, LIAR));
        vm.prank(REPORTER);
        bonds.twoSeals(address(ledger), b, first, sa, second, sb);
    }

    /// @dev 28 words of the liar's round 7 in stage 1; `salt` is its payload.
    function statement(uint256 salt) private view returns (bytes memory words) {
        words = new bytes(896);
        put(words, 0, uint256(RUN));
        put(words, 1, 7);
        put(words, 2, 1);
        put(words, 3, 4);
        put(words, 4, uint160(liar));
        put(words, 5, uint256(keccak256("base")));
        put(words, 6, uint256(keccak256(abi.encode("payload", salt))));
        put(words, 9, uint256(keccak256("plan")));
        put(words, 10, 50);
        put(words, 11, 3_000_000);
        put(words, 24, 60_000);
        put(words, 25, 30_000);
    }

    function put(bytes memory words, uint256 index, uint256 value) private pure {
        assembly ("memory-safe") {
            mstore(add(add(words, 32), mul(index, 32)), value)
        }
    }

    function word(bytes memory words, uint256 index) private pure returns (uint256 value) {
        assembly ("memory-safe") {
            value := mload(add(add(words, 32), mul(index, 32)))
        }
    }

    function exchangeOf(uint256 compute, uint256 exchange) private pure returns (uint256) {
        if (compute == 0 || exchange == 0) return 0;
        uint256 percent = (200 * exchange + compute) / (2 * compute);
        return percent < 1 ? 1 : percent > 255 ? 255 : percent;
    }

    function contributionHash(bytes memory s) private pure returns (bytes32) {
        bytes32 typehash = keccak256(
            "Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,bytes32 statement,uint32 loss,uint32 innerSteps,uint8 exchange)"
        );
        bytes memory head = abi.encode(typehash, word(s, 0), word(s, 1), word(s, 2), word(s, 3), sha256(s));
        return keccak256(bytes.concat(head, abi.encode(word(s, 11), word(s, 10), exchangeOf(word(s, 24), word(s, 25)))));
    }

    function signed(bytes memory s, uint256 key) private view returns (bytes memory) {
        return signedHash(contributionHash(s), key);
    }

    function basis() private pure returns (SealBasis memory) {
        return SealBasis(RUN, 1, 7, keccak256("previous"), keccak256("records"));
    }

    function outcome() private pure returns (Outcome memory) {
        return Outcome(keccak256("w"), keccak256("m"), keccak256("wr"), keccak256("mr"), bytes11(uint88(5)));
    }

    function sealHash(SealBasis memory b, Outcome memory o) private pure returns (bytes32) {
        bytes32 typehash = keccak256(
            "Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previous,bytes32 weights,bytes32 momentum,bytes32 weightsRoot,bytes32 momentumRoot,bytes11 plans,bytes records)"
        );
        return keccak256(abi.encode(typehash, b.run, b.stage, b.round, b.previous, o, b.records));
    }

    function signedSeal(SealBasis memory b, Outcome memory o, uint256 key) private view returns (bytes memory) {
        return signedHash(sealHash(b, o), key);
    }

    function signedHash(bytes32 hash, uint256 key) private view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digestOf(address(ledger), hash));
        return abi.encodePacked(r, s, v);
    }

    function digestOf(address verifier, bytes32 hash) private view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("dlx-node TrainingLedger"),
                keccak256("3"),
                block.chainid,
                verifier
            )
        );
        return keccak256(abi.encodePacked(hex"1901", domain, hash));
    }
}
