// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";

import {NodeRegistry} from "../src/NodeRegistry.sol";
import {vm, Vm} from "./Vm.sol";

contract NodeRegistryTest {
    uint256 private constant NODE_KEY = 0xd1a;
    uint256 private constant OTHER_NODE_KEY = 0xd1b;
    address private constant ALICE = address(0xa11ce);
    address private constant BOB = address(0xb0b);

    NodeRegistry private registry;
    string[] private addresses;

    function setUp() public {
        registry = new NodeRegistry();
        addresses.push("/ip4/192.0.2.1/tcp/4001");
    }

    function digest(address account, uint256 nonce) private view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("dlx-node NodeRegistry"),
                keccak256("1"),
                block.chainid,
                address(registry)
            )
        );
        bytes32 registration =
            keccak256(abi.encode(keccak256("Registration(address account,uint256 nonce)"), account, nonce));
        return keccak256(abi.encodePacked(hex"1901", domain, registration));
    }

    function signature(uint256 nodeKey, address account, uint256 nonce) private view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(nodeKey, digest(account, nonce));
        return abi.encodePacked(r, s, v);
    }

    function register(uint256 nodeKey, address account) private {
        Vm.Wallet memory node = vm.createWallet(nodeKey);
        bytes memory signed = signature(nodeKey, account, registry.nonces(account));
        vm.prank(account);
        registry.register(bytes32(node.publicKeyX), bytes32(node.publicKeyY), signed, addresses);
    }

    function expectedPeerId(uint256 nodeKey) private returns (bytes memory) {
        Vm.Wallet memory node = vm.createWallet(nodeKey);
        return abi.encodePacked(hex"002508021221", node.publicKeyY % 2 == 0 ? hex"02" : hex"03", node.publicKeyX);
    }

    function test_peerIdOfTheGeneratorIsTheKnownOne() public {
        register(1, ALICE); // the public key of private key 1 is the curve's generator point
        vm.assertEq(
            registry.peerIdOf(ALICE),
            hex"0025080212210279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
        );
    }

    function test_registerPublishesNodeAndAddresses() public {
        bytes memory peerId = expectedPeerId(NODE_KEY);
        Vm.Wallet memory node = vm.createWallet(NODE_KEY);
        bytes memory signed = signature(NODE_KEY, ALICE, 0);
        vm.expectEmit(address(registry));
        emit NodeRegistry.NodeRegistered(ALICE, peerId, 0);
        vm.expectEmit(address(registry));
        emit NodeRegistry.AddressesChanged(ALICE, addresses);
        vm.prank(ALICE);
        registry.register(bytes32(node.publicKeyX), bytes32(node.publicKeyY), signed, addresses);

        vm.assertTrue(registry.isRegistered(ALICE));
        vm.assertEq(registry.nonces(ALICE), 1);
        vm.assertEq(registry.peerIdOf(ALICE), peerId);
        vm.assertEq(registry.accountOf(keccak256(peerId)), ALICE);
    }

    function testFuzz_peerIdIsRebuiltFromAnyNodeKey(uint256 seed) public {
        uint256 nodeKey = 1 + (seed % (2 ** 255));
        register(nodeKey, ALICE);
        vm.assertEq(registry.peerIdOf(ALICE), expectedPeerId(nodeKey));
    }

    function test_nodeKeyCannotBeBorrowed() public {
        // Bob claims Alice's node key with a signature by his own.
        Vm.Wallet memory node = vm.createWallet(NODE_KEY);
        bytes memory signed = signature(OTHER_NODE_KEY, BOB, 0);
        vm.prank(BOB);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.NotSignedByNodeKey.selector, BOB, 0));
        registry.register(bytes32(node.publicKeyX), bytes32(node.publicKeyY), signed, addresses);
    }

    function test_registrationForAnotherAccountCannotBeBorrowed() public {
        Vm.Wallet memory node = vm.createWallet(NODE_KEY);
        bytes memory signed = signature(NODE_KEY, ALICE, 0);
        vm.prank(BOB);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.NotSignedByNodeKey.selector, BOB, 0));
        registry.register(bytes32(node.publicKeyX), bytes32(node.publicKeyY), signed, addresses);
    }

    function test_oldRegistrationCannotBeReplayed() public {
        Vm.Wallet memory node = vm.createWallet(NODE_KEY);
        bytes memory signed = signature(NODE_KEY, ALICE, 0);
        register(NODE_KEY, ALICE);
        vm.prank(ALICE);
        registry.deregister();
        vm.prank(ALICE);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.NotSignedByNodeKey.selector, ALICE, 1));
        registry.register(bytes32(node.publicKeyX), bytes32(node.publicKeyY), signed, addresses);
    }

    function test_registrationOfAnotherChainIsRefused() public {
        Vm.Wallet memory node = vm.createWallet(NODE_KEY);
        bytes memory signed = signature(NODE_KEY, ALICE, 0);
        vm.chainId(99);
        vm.prank(ALICE);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.NotSignedByNodeKey.selector, ALICE, 0));
        registry.register(bytes32(node.publicKeyX), bytes32(node.publicKeyY), signed, addresses);
    }

    function test_highSSignatureIsRefused() public {
        Vm.Wallet memory node = vm.createWallet(NODE_KEY);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(NODE_KEY, digest(ALICE, 0));
        bytes32 high = bytes32(0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141 - uint256(s));
        vm.prank(ALICE);
        vm.expectRevert(abi.encodeWithSelector(ECDSA.ECDSAInvalidSignatureS.selector, high));
        registry.register(
            bytes32(node.publicKeyX), bytes32(node.publicKeyY), abi.encodePacked(r, high, v == 27 ? 28 : 27), addresses
        );
    }

    function test_peerIdBelongsToOneAccount() public {
        register(NODE_KEY, ALICE);
        Vm.Wallet memory node = vm.createWallet(NODE_KEY);
        bytes memory signed = signature(NODE_KEY, BOB, 0);
        vm.prank(BOB);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.PeerIdTaken.selector, ALICE));
        registry.register(bytes32(node.publicKeyX), bytes32(node.publicKeyY), signed, addresses);
    }

    function test_registeringAgainReplacesTheNodeWhosePeerIdStaysTheAccounts() public {
        register(NODE_KEY, ALICE);
        register(OTHER_NODE_KEY, ALICE);
        vm.assertEq(registry.peerIdOf(ALICE), expectedPeerId(OTHER_NODE_KEY));
        vm.assertEq(registry.accountOf(keccak256(expectedPeerId(NODE_KEY))), ALICE);
        register(NODE_KEY, ALICE);
        vm.assertEq(registry.peerIdOf(ALICE), expectedPeerId(NODE_KEY));
    }

    function test_registeringTheSameNodeAgainIsAllowed() public {
        register(NODE_KEY, ALICE);
        register(NODE_KEY, ALICE);
        vm.assertEq(registry.nonces(ALICE), 2);
        vm.assertEq(registry.accountOf(keccak256(expectedPeerId(NODE_KEY))), ALICE);
    }

    function test_deregisterRemovesTheNode() public {
        register(NODE_KEY, ALICE);
        vm.expectEmit(address(registry));
        emit NodeRegistry.NodeDeregistered(ALICE, expectedPeerId(NODE_KEY));
        vm.prank(ALICE);
        registry.deregister();
        vm.assertFalse(registry.isRegistered(ALICE));
        vm.assertEq(registry.peerIdOf(ALICE), bytes(""));
        vm.assertEq(registry.accountOf(keccak256(expectedPeerId(NODE_KEY))), ALICE);
        vm.prank(ALICE);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.NotRegistered.selector, ALICE));
        registry.deregister();
    }

    /// @dev Readers compare it with the events that they have.
    function test_everyEventIsCounted() public {
        vm.recordLogs();
        register(NODE_KEY, ALICE);
        register(OTHER_NODE_KEY, BOB);
        vm.prank(ALICE);
        registry.setAddresses(addresses);
        vm.prank(BOB);
        registry.deregister();
        vm.prank(BOB);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.NotRegistered.selector, BOB));
        registry.deregister();
        register(NODE_KEY, ALICE);
        vm.assertEq(registry.changes(), 8);
        vm.assertEq(vm.getRecordedLogs().length, 8);
    }

    function test_addressesAreBoundedAndOnlyForTheRegistered() public {
        vm.prank(ALICE);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.NotRegistered.selector, ALICE));
        registry.setAddresses(addresses);

        register(NODE_KEY, ALICE);
        string[] memory most = new string[](16);
        most[15] = string(new bytes(256));
        vm.expectEmit(address(registry));
        emit NodeRegistry.AddressesChanged(ALICE, most);
        vm.prank(ALICE);
        registry.setAddresses(most);

        most[15] = string(new bytes(257));
        vm.prank(ALICE);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.AddressTooLong.selector, 15, 257, 256));
        registry.setAddresses(most);

        vm.prank(ALICE);
        vm.expectRevert(abi.encodeWithSelector(NodeRegistry.TooManyAddresses.selector, 17, 16));
        registry.setAddresses(new string[](17));
    }
}
