// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";

import {Deployed} from "./Deployed.sol";
import {Seals} from "./Seals.sol";
import {Enlisted} from "./Sites.sol";

/// @notice What this contract asks a ledger.
interface InvitingLedger {
    /// @notice The run's creator; zero where there is no such run.
    function creatorOf(bytes32 run) external view returns (address);
    /// @notice Which site's key named the account one of its machines.
    function enlistedOf(bytes32 run, address account) external view returns (Enlisted memory);
}

/// @notice Whom the run's creator or a steward lets in: an account, or every machine of a site; the other is zero.
struct Invitation {
    address ledger;
    bytes32 run;
    address account;
    address site;
    uint64 issued; // Unix time; a revocation ends all that were issued until then
    uint64 expiry; // after which nobody can bring it; who was let in before stays
}

/// @title Who may take a slot of an invited run
/// @notice The ledger that asks is the namespace, so that a false ledger speaks of its own runs only. Nothing here takes
/// a slot from anybody.
contract Invitations is EIP712, Deployed {
    using Seals for bytes;

    bytes32 public constant TYPEHASH = keccak256(
        "Invitation(address ledger,bytes32 run,address account,address site,uint64 issued,uint64 expiry)"
    );

    /// @dev Of an account, or of a site.
    struct Guest {
        bool admitted;
        uint64 revokedAt; // what was issued until then is over
    }

    /// @dev A committed list of accounts.
    struct List {
        bytes32 root; // zero: none
        uint64 setAt;
    }

    struct Door {
        mapping(address guest => Guest) guests; // accounts and sites: both are addresses of keys
        mapping(address account => bool) stewards;
        List list;
    }

    mapping(address ledger => mapping(bytes32 run => Door)) private _doors;

    /// @notice `guest` is an account or a site; `by` signed its invitation, or is zero where it is on the list.
    event Admitted(address indexed ledger, bytes32 indexed run, address indexed guest, address by);
    event Revoked(address indexed ledger, bytes32 indexed run, address indexed guest, address by);
    event StewardSet(address indexed ledger, bytes32 indexed run, address indexed account, bool steward);
    event ListSet(address indexed ledger, bytes32 indexed run, bytes32 root);

    error NotCreator(address account);
    error NotSteward(address account);
    error InvalidInvitation();
    error Expired(uint64 expiry);
    error IsRevoked(address guest);
    error NotListed(address account);

    constructor() EIP712("dlx-node Invitations", "1") {}

    /// @notice Whether the account may take a slot of a run of the ledger that asks: it was invited, or the site that
    /// named it was.
    function admits(bytes32 run, address account) external view returns (bool) {
        return isAdmitted(msg.sender, run, account);
    }

    /// @notice Likewise, for anybody who asks.
    function isAdmitted(address ledger, bytes32 run, address account) public view returns (bool) {
        Door storage door = _doors[ledger][run];
        if (door.guests[account].admitted) return true;
        if (door.guests[account].revokedAt != 0) return false;
        address site = InvitingLedger(ledger).enlistedOf(run, account).site;
        return site != address(0) && door.guests[site].admitted;
    }

    /// @notice Lets in whom the invitation names. Anyone may send it.
    /// @param signature of the run's creator or a steward of it: 65 bytes r, s, v
    function admit(Invitation calldata invitation, bytes calldata signature) external {
        if (block.timestamp > invitation.expiry) revert Expired(invitation.expiry);
        if (block.timestamp < invitation.issued) revert InvalidInvitation(); // else it outlives a revocation
        if ((invitation.account == address(0)) == (invitation.site == address(0))) revert InvalidInvitation();
        if (signature.length != 65) revert InvalidInvitation();
        bytes32 digest = _hashTypedDataV4(keccak256(abi.encode(TYPEHASH, invitation)));
        address by = signature.signer(0, digest);
        _requireSteward(invitation.ledger, invitation.run, by);
        address guest = invitation.account == address(0) ? invitation.site : invitation.account;
        _admit(invitation.ledger, invitation.run, guest, invitation.issued, by);
    }

    /// @notice Lets in an account of the run's list. Anyone may send it.
    /// @param proof of the leaf keccak256(keccak256(abi.encode(account))), pairs in ascending order
    function admitListed(address ledger, bytes32 run, address account, bytes32[] calldata proof) external {
        List storage list = _doors[ledger][run].list;
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(account))));
        if (list.root == 0 || !MerkleProof.verifyCalldata(proof, list.root, leaf)) revert NotListed(account);
        _admit(ledger, run, account, list.setAt, address(0));
    }

    /// @notice Takes an invitation back, whether or not somebody brought it yet: for the future, who has a slot keeps it.
    /// A later invitation lets the guest in again. An account whose site was invited is not let in by its site any more.
    function revoke(address ledger, bytes32 run, address guest) external {
        _requireSteward(ledger, run, msg.sender);
        _doors[ledger][run].guests[guest] = Guest(false, uint64(block.timestamp));
        emit Revoked(ledger, run, guest, msg.sender);
    }

    /// @notice Makes an account a steward, who may invite and revoke as the creator does; or ends that, and with it every
    /// invitation of the account's that nobody brought yet.
    function setSteward(address ledger, bytes32 run, address account, bool steward) external {
        _requireCreator(ledger, run);
        _doors[ledger][run].stewards[account] = steward;
        emit StewardSet(ledger, run, account, steward);
    }

    /// @notice Commits to a list of accounts; zero ends it. Who was let in before stays.
    function setList(address ledger, bytes32 run, bytes32 root) external {
        _requireCreator(ledger, run);
        _doors[ledger][run].list = List(root, uint64(block.timestamp));
        emit ListSet(ledger, run, root);
    }

    /// @notice Whether the account may invite for the run, being its creator or a steward.
    function isSteward(address ledger, bytes32 run, address account) public view returns (bool) {
        if (account == address(0)) return false;
        return _doors[ledger][run].stewards[account] || InvitingLedger(ledger).creatorOf(run) == account;
    }

    /// @notice Whether the account or site was let in by itself, and when it was last taken back (0: never).
    function guestOf(address ledger, bytes32 run, address guest) external view returns (Guest memory) {
        return _doors[ledger][run].guests[guest];
    }

    /// @notice The root of the run's list, and when it was set.
    function listOf(address ledger, bytes32 run) external view returns (List memory) {
        return _doors[ledger][run].list;
    }

    function _admit(address ledger, bytes32 run, address guest, uint64 issued, address by) private {
        Guest storage known = _doors[ledger][run].guests[guest];
        if (known.admitted) return;
        if (known.revokedAt != 0 && issued <= known.revokedAt) revert IsRevoked(guest);
        known.admitted = true;
        emit Admitted(ledger, run, guest, by);
    }

    function _requireSteward(address ledger, bytes32 run, address account) private view {
        if (!isSteward(ledger, run, account)) revert NotSteward(account);
    }

    function _requireCreator(address ledger, bytes32 run) private view {
        if (msg.sender == address(0) || InvitingLedger(ledger).creatorOf(run) != msg.sender) revert NotCreator(msg.sender);
    }
}
