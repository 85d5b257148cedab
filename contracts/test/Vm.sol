// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev The cheatcodes that these tests use, of forge's own interface.
interface Vm {
    struct Log {
        bytes32[] topics;
        bytes data;
        address emitter;
    }

    function addr(uint256 privateKey) external pure returns (address);
    function sign(uint256 privateKey, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function eip712HashStruct(string calldata definition, bytes calldata encoded) external pure returns (bytes32);
    function prank(address sender) external;
    function deal(address account, uint256 balance) external;
    function fee(uint256 baseFee) external;
    function warp(uint256 timestamp) external;
    function getBlockTimestamp() external view returns (uint256);
    function roll(uint256 number) external;
    function etch(address target, bytes calldata code) external;
    function mockCall(address callee, bytes calldata data, bytes calldata returned) external;
    function snapshotState() external returns (uint256);
    function revertToState(uint256 snapshot) external returns (bool);
    function chainId(uint256 id) external;
    function expectRevert() external;
    function expectRevert(bytes4 selector) external;
    function expectRevert(bytes calldata revertData) external;
    function expectEmit(address emitter) external;
    function recordLogs() external;
    function getRecordedLogs() external returns (Log[] memory);
    function assume(bool condition) external pure;
    function assertEq(uint256 left, uint256 right) external pure;
    function assertEq(uint256 left, uint256 right, string calldata message) external pure;
    function assertEq(address left, address right) external pure;
    function assertEq(bytes32 left, bytes32 right) external pure;
    function assertEq(bytes calldata left, bytes calldata right) external pure;
    function assertTrue(bool condition) external pure;
    function assertFalse(bool condition) external pure;
    function assertLt(uint256 left, uint256 right, string calldata message) external pure;
    function createWallet(uint256 privateKey) external returns (Wallet memory);
    function cool(address target) external;

    struct Wallet {
        address addr;
        uint256 publicKeyX;
        uint256 publicKeyY;
        uint256 privateKey;
    }
}

Vm constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
