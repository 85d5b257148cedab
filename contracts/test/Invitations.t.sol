// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Invitation, Invitations} from "../src/Invitations.sol";
import {Enlisted} from "../src/Sites.sol";
import {vm} from "./Vm.sol";

/// @dev What a ledger tells of its runs.
contract Inviting {
    Invitations private immutable _invitations;
    mapping(bytes32 run => address) public creatorOf;
    mapping(bytes32 run => mapping(address account => Enlisted)) private _enlisted;

    constructor(Invitations invitations) {
        _invitations = invitations;
    }

    function create(bytes32 run, address creator) external {
        creatorOf[run] = creator;
    }

    function enlist(bytes32 run, address account, address site) external {
        _enlisted[run][account] = Enlisted(site, 0);
    }

    function enlistedOf(bytes32 run, address account) external view returns (Enlisted memory) {
        return _enlisted[run][account];
    }

    function admits(bytes32 run, address account) external view returns (bool) {
        return _invitations.admits(run, account);
    }
}

contract InvitationsTest {
    uint256 private constant CREATOR = 0xc4ea;
    uint256 private constant STEWARD = 0x57e7;
    uint256 private constant STRANGER = 0x5742;
    bytes32 private constant RUN = keccak256("run");
    address private constant GUEST = address(0x6e57);
    address private constant MATE = address(0x6e58);
    address private constant SITE = address(0x517e);
    uint64 private constant NOW = 1_800_000_000;

    Invitations private invitations;
    Inviting private ledger;

    function setUp() public {
        vm.warp(NOW);
        invitations = new Invitations();
        ledger = new Inviting(invitations);
        ledger.create(RUN, vm.addr(CREATOR));
    }

    // ------------------------------------------------------------------------------------------------ who gets in

    function test_nobodyIsInvitedAtFirst() public view {
        vm.assertFalse(ledger.admits(RUN, GUEST));
        vm.assertFalse(ledger.admits(RUN, vm.addr(CREATOR)));
        vm.assertFalse(ledger.admits(RUN, address(0)));
    }

    function test_theCreatorInvitesAndAnybodySendsIt() public {
        vm.prank(address(0xdead));
        admit(invite(), CREATOR);
        vm.assertTrue(ledger.admits(RUN, GUEST));
        vm.assertFalse(ledger.admits(RUN, MATE));
        admit(invite(), CREATOR); // twice changes nothing
    }

    function test_strangersInviteNobody() public {
        Invitation memory i = invite();
        refused(i, STRANGER, abi.encodeWithSelector(Invitations.NotSteward.selector, vm.addr(STRANGER)));
        refused(i, STEWARD, abi.encodeWithSelector(Invitations.NotSteward.selector, vm.addr(STEWARD)));
    }

    function test_aStewardInvitesUntilTheCreatorEndsIt() public {
        setSteward(true);
        admit(invite(), STEWARD);
        vm.assertTrue(ledger.admits(RUN, GUEST));
        Invitation memory late = invite();
        late.account = MATE;
        setSteward(false);
        refused(late, STEWARD, abi.encodeWithSelector(Invitations.NotSteward.selector, vm.addr(STEWARD)));
        vm.assertTrue(ledger.admits(RUN, GUEST));
    }

    function test_onlyTheCreatorMakesStewardsAndLists() public {
        setSteward(true);
        vm.prank(vm.addr(STEWARD));
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotCreator.selector, vm.addr(STEWARD)));
        invitations.setSteward(address(ledger), RUN, GUEST, true);
        vm.prank(vm.addr(STEWARD));
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotCreator.selector, vm.addr(STEWARD)));
        invitations.setList(address(ledger), RUN, keccak256("root"));
    }

    /// @dev A run that nobody created has the creator zero, which is also who signed where a signature is nobody's.
    function test_nobodysRunHasNobodysInvitations() public {
        Invitation memory i = invite();
        i.run = keccak256("none");
        bytes memory nobodys = abi.encodePacked(bytes32(uint256(1)), bytes32(uint256(1)), uint8(5));
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotSteward.selector, address(0)));
        invitations.admit(i, nobodys);
        vm.prank(address(0));
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotCreator.selector, address(0)));
        invitations.setList(address(ledger), i.run, keccak256("root"));
    }

    // ----------------------------------------------------------------------------------------------- the signature

    function test_expiredAndFutureInvitationsAreRefused() public {
        Invitation memory i = invite();
        vm.warp(i.expiry);
        admit(i, CREATOR);
        i.account = MATE;
        vm.warp(i.expiry + 1);
        refused(i, CREATOR, abi.encodeWithSelector(Invitations.Expired.selector, i.expiry));
        i.expiry = type(uint64).max;
        i.issued = i.issued + 1_000_000_000;
        refused(i, CREATOR, abi.encodeWithSelector(Invitations.InvalidInvitation.selector));
    }

    function test_itNamesAnAccountOrASite() public {
        Invitation memory i = invite();
        i.site = SITE;
        refused(i, CREATOR, abi.encodeWithSelector(Invitations.InvalidInvitation.selector));
        (i.site, i.account) = (address(0), address(0));
        refused(i, CREATOR, abi.encodeWithSelector(Invitations.InvalidInvitation.selector));
    }

    function test_aSignatureIsForWhatItSaysOnly(uint8 field) public {
        Invitation memory i = invite();
        bytes memory signature = signed(i, CREATOR);
        field %= 6;
        if (field == 0) i.account = MATE;
        if (field == 1) (i.account, i.site) = (address(0), SITE);
        if (field == 2) i.issued -= 1;
        if (field == 3) i.expiry += 1;
        if (field == 4) i.run = keccak256("other");
        if (field == 5) {
            Inviting other = new Inviting(invitations);
            other.create(RUN, vm.addr(CREATOR));
            i.ledger = address(other);
        }
        if (field == 4) ledger.create(i.run, vm.addr(CREATOR));
        vm.expectRevert();
        invitations.admit(i, signature);
    }

    function test_itIsOfThisChainAndContract() public {
        Invitation memory i = invite();
        bytes memory signature = signed(i, CREATOR);
        Invitations second = new Invitations();
        vm.expectRevert();
        second.admit(i, signature);
        vm.chainId(5);
        vm.expectRevert();
        invitations.admit(i, signature);
    }

    function test_aSignatureHasOneForm() public {
        Invitation memory i = invite();
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(CREATOR, digestOf(i));
        bytes32 n = bytes32(0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141);
        bytes memory other = abi.encodePacked(r, bytes32(uint256(n) - uint256(s)), uint8(v == 27 ? 28 : 27));
        vm.expectRevert();
        invitations.admit(i, other);
        vm.expectRevert();
        invitations.admit(i, bytes.concat(abi.encodePacked(r, s, v), hex"00"));
    }

    // --------------------------------------------------------------------------------------------------- revoking

    function test_revokingEndsWhatWasIssuedAndNotWhatComes() public {
        Invitation memory brought = invite();
        admit(brought, CREATOR);
        Invitation memory kept = invite();
        kept.expiry += 1000;
        vm.warp(NOW + 10);
        revoke(CREATOR, GUEST);
        vm.assertFalse(ledger.admits(RUN, GUEST));
        refused(brought, CREATOR, abi.encodeWithSelector(Invitations.IsRevoked.selector, GUEST));
        refused(kept, CREATOR, abi.encodeWithSelector(Invitations.IsRevoked.selector, GUEST));
        kept.issued = NOW + 10; // in the same block
        refused(kept, CREATOR, abi.encodeWithSelector(Invitations.IsRevoked.selector, GUEST));
        vm.warp(NOW + 11);
        kept.issued = NOW + 11;
        admit(kept, CREATOR);
        vm.assertTrue(ledger.admits(RUN, GUEST));
    }

    function test_aStewardRevokesAndAStrangerDoesNot() public {
        setSteward(true);
        admit(invite(), CREATOR);
        vm.prank(vm.addr(STRANGER));
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotSteward.selector, vm.addr(STRANGER)));
        invitations.revoke(address(ledger), RUN, GUEST);
        revoke(STEWARD, GUEST);
        vm.assertFalse(ledger.admits(RUN, GUEST));
    }

    function test_revokingBeforeItIsBroughtEndsItToo() public {
        Invitation memory i = invite();
        revoke(CREATOR, GUEST);
        refused(i, CREATOR, abi.encodeWithSelector(Invitations.IsRevoked.selector, GUEST));
    }

    // ------------------------------------------------------------------------------------------------- sites, lists

    function test_aSiteIsInvitedWithAllItsMachines() public {
        Invitation memory i = invite();
        (i.account, i.site) = (address(0), SITE);
        admit(i, CREATOR);
        vm.assertFalse(ledger.admits(RUN, GUEST));
        ledger.enlist(RUN, GUEST, SITE);
        ledger.enlist(RUN, MATE, SITE);
        vm.assertTrue(ledger.admits(RUN, GUEST) && ledger.admits(RUN, MATE));
        revoke(CREATOR, MATE); // one of them alone
        vm.assertTrue(ledger.admits(RUN, GUEST));
        vm.assertFalse(ledger.admits(RUN, MATE));
        revoke(CREATOR, SITE);
        vm.assertFalse(ledger.admits(RUN, GUEST));
    }

    function test_aListAdmitsItsAccounts() public {
        (bytes32 a, bytes32 b) = (leaf(GUEST), leaf(MATE));
        bytes32 root = a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = b;
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotListed.selector, GUEST));
        invitations.admitListed(address(ledger), RUN, GUEST, proof);
        vm.prank(vm.addr(CREATOR));
        invitations.setList(address(ledger), RUN, root);
        invitations.admitListed(address(ledger), RUN, GUEST, proof);
        vm.assertTrue(ledger.admits(RUN, GUEST));
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotListed.selector, SITE));
        invitations.admitListed(address(ledger), RUN, SITE, proof);
        revoke(CREATOR, GUEST); // a list is as old as it is
        vm.expectRevert(abi.encodeWithSelector(Invitations.IsRevoked.selector, GUEST));
        invitations.admitListed(address(ledger), RUN, GUEST, proof);
        vm.prank(vm.addr(CREATOR));
        invitations.setList(address(ledger), RUN, 0);
        vm.expectRevert(abi.encodeWithSelector(Invitations.NotListed.selector, MATE));
        invitations.admitListed(address(ledger), RUN, MATE, new bytes32[](0));
    }

    // ---------------------------------------------------------------------------------------------- false ledgers

    /// @dev A false ledger names a creator of its own for the same run, and lets in whom it likes: into itself.
    function test_aFalseLedgerSpeaksOfItselfOnly() public {
        Inviting fake = new Inviting(invitations);
        fake.create(RUN, vm.addr(STRANGER));
        Invitation memory i = invite();
        i.ledger = address(fake);
        admit(i, STRANGER);
        vm.assertTrue(fake.admits(RUN, GUEST));
        vm.assertFalse(ledger.admits(RUN, GUEST));
    }

    // ---------------------------------------------------------------------------------------------------- helpers

    function invite() private view returns (Invitation memory) {
        return Invitation(address(ledger), RUN, GUEST, address(0), NOW, NOW + 3600);
    }

    function admit(Invitation memory i, uint256 key) private {
        bytes memory signature = signed(i, key);
        invitations.admit(i, signature);
    }

    function refused(Invitation memory i, uint256 key, bytes memory reason) private {
        bytes memory signature = signed(i, key);
        vm.expectRevert(reason);
        invitations.admit(i, signature);
    }

    function revoke(uint256 by, address guest) private {
        vm.prank(vm.addr(by));
        invitations.revoke(address(ledger), RUN, guest);
    }

    function setSteward(bool steward) private {
        vm.prank(vm.addr(CREATOR));
        invitations.setSteward(address(ledger), RUN, vm.addr(STEWARD), steward);
    }

    function leaf(address account) private pure returns (bytes32) {
        return keccak256(bytes.concat(keccak256(abi.encode(account))));
    }

    function signed(Invitation memory i, uint256 key) private view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digestOf(i));
        return abi.encodePacked(r, s, v);
    }

    function digestOf(Invitation memory i) private view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("dlx-node Invitations"),
                keccak256("1"),
                block.chainid,
                address(invitations)
            )
        );
        bytes32 typehash = keccak256(
            "Invitation(address ledger,bytes32 run,address account,address site,uint64 issued,uint64 expiry)"
        );
        return keccak256(abi.encodePacked(hex"1901", domain, keccak256(abi.encode(typehash, i))));
    }
}
