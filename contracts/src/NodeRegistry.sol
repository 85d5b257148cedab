// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";

import {Deployed} from "./Deployed.sol";

/// @title Which libp2p node speaks for which account
/// @notice An account registers its node with the node key's signature over the account and a nonce, so that neither
/// can be borrowed. The libp2p peer id is rebuilt here from the node key and belongs to one account for good: else one
/// node could take slots for many, one after the other.
contract NodeRegistry is EIP712, Deployed {
    /// @dev `x` and `prefix` are the compressed secp256k1 node key; `prefix` is 2 or 3, or 0 where there is no node.
    struct Node {
        bytes32 x;
        uint8 prefix;
        uint64 nonce;
    }

    /// @notice The EIP-712 type that a node key signs.
    bytes32 public constant REGISTRATION_TYPEHASH = keccak256("Registration(address account,uint256 nonce)");
    /// @notice Addresses that a node may publish.
    uint256 public constant MAX_ADDRESSES = 16;
    /// @notice Bytes that each of them may have.
    uint256 public constant MAX_ADDRESS_BYTES = 256;

    /// @dev Identity multihash of 37 bytes: protobuf {type: secp256k1, data: 33 bytes}.
    bytes6 private constant PEER_ID_PREFIX = 0x002508021221;

    mapping(address account => Node) private _nodes;

    /// @notice The account that registered the peer id with this keccak256, be it long ago; zero where there is none.
    mapping(bytes32 peerIdHash => address account) public accountOf;

    /// @notice How many events there were: who has read fewer lacks some.
    uint256 public changes;

    /// @notice `nonce` is the one that the node key signed; the account's next registration signs one more.
    event NodeRegistered(address indexed account, bytes peerId, uint256 nonce);
    /// @notice All addresses of the account's node; earlier ones hold no more.
    event AddressesChanged(address indexed account, string[] multiaddrs);
    event NodeDeregistered(address indexed account, bytes peerId);

    /// @notice The registration was not signed by the given node key over this account and its current nonce.
    error NotSignedByNodeKey(address account, uint256 nonce);
    /// @notice The peer id is, or was once, that of another account.
    error PeerIdTaken(address holder);
    error NotRegistered(address account);
    error TooManyAddresses(uint256 given, uint256 limit);
    error AddressTooLong(uint256 index, uint256 length, uint256 limit);

    constructor() EIP712("dlx-node NodeRegistry", "1") {}

    /// @notice Registers the sender's node, replacing an earlier one.
    /// @param x,y the node key, an uncompressed secp256k1 public key
    /// @param nodeSignature the node key's EIP-712 signature over Registration(sender, nonces(sender))
    function register(bytes32 x, bytes32 y, bytes calldata nodeSignature, string[] calldata multiaddrs) external {
        Node storage node = _nodes[msg.sender];
        uint64 nonce = node.nonce;
        bytes32 digest = _hashTypedDataV4(keccak256(abi.encode(REGISTRATION_TYPEHASH, msg.sender, uint256(nonce))));
        // A recovered signer is the hash of a point on the curve, so this also refuses keys that are none.
        address nodeKey = address(uint160(uint256(keccak256(abi.encode(x, y)))));
        if (ECDSA.recover(digest, nodeSignature) != nodeKey) revert NotSignedByNodeKey(msg.sender, nonce);

        node.x = x;
        node.prefix = uint8(2 + (uint256(y) & 1));
        node.nonce = nonce + 1;
        bytes memory peerId = _peerId(node);
        address holder = accountOf[keccak256(peerId)];
        if (holder != address(0) && holder != msg.sender) revert PeerIdTaken(holder);
        accountOf[keccak256(peerId)] = msg.sender;
        ++changes;
        emit NodeRegistered(msg.sender, peerId, nonce);
        _publish(multiaddrs);
    }

    /// @notice Publishes where the sender's node can be reached, replacing what was published before.
    function setAddresses(string[] calldata multiaddrs) external {
        if (!isRegistered(msg.sender)) revert NotRegistered(msg.sender);
        _publish(multiaddrs);
    }

    /// @notice Removes the sender's node. Its nonce goes on, so an old registration cannot be replayed, and its peer id
    /// stays the sender's.
    function deregister() external {
        if (!isRegistered(msg.sender)) revert NotRegistered(msg.sender);
        Node storage node = _nodes[msg.sender];
        bytes memory peerId = _peerId(node);
        node.x = 0;
        node.prefix = 0;
        ++changes;
        emit NodeDeregistered(msg.sender, peerId);
    }

    /// @notice Whether the account has a node now.
    function isRegistered(address account) public view returns (bool) {
        return _nodes[account].prefix != 0;
    }

    /// @notice The nonce that the account's next registration must sign.
    function nonces(address account) external view returns (uint256) {
        return _nodes[account].nonce;
    }

    /// @notice The account's 39-byte libp2p peer id; empty where it is not registered.
    function peerIdOf(address account) external view returns (bytes memory) {
        Node storage node = _nodes[account];
        return node.prefix == 0 ? bytes("") : _peerId(node);
    }

    function _publish(string[] calldata multiaddrs) private {
        if (multiaddrs.length > MAX_ADDRESSES) revert TooManyAddresses(multiaddrs.length, MAX_ADDRESSES);
        for (uint256 i = 0; i < multiaddrs.length; ++i) {
            uint256 length = bytes(multiaddrs[i]).length;
            if (length > MAX_ADDRESS_BYTES) revert AddressTooLong(i, length, MAX_ADDRESS_BYTES);
        }
        ++changes;
        emit AddressesChanged(msg.sender, multiaddrs);
    }

    function _peerId(Node storage node) private view returns (bytes memory) {
        return abi.encodePacked(PEER_ID_PREFIX, node.prefix, node.x);
    }
}
