// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IBonds, IInvitations} from "../src/ILedger.sol";
import {NodeRegistry} from "../src/NodeRegistry.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {vm} from "./Vm.sol";

/// @notice A contract says the block of its creation as the chain's nodes count it, whatever lies at Arbitrum's address.
contract DeployedTest {
    address internal constant ARB_SYS = address(100);

    function test_theBlockIsTheEvms() public {
        vm.roll(1000);
        vm.warp(1_800_000_000);
        requireBlock(1000);
    }

    function test_onArbitrumItIsItsOwn() public {
        vm.roll(21_000_000); // the parent chain's
        vm.etch(ARB_SYS, hex"fe");
        vm.mockCall(ARB_SYS, abi.encodeWithSignature("arbBlockNumber()"), abi.encode(uint256(300_000_000)));
        requireBlock(300_000_000);
    }

    function test_somethingElseAtThatAddressChangesNothing() public {
        vm.roll(1000);
        vm.etch(ARB_SYS, hex"fe"); // takes all gas that it gets
        requireBlock(1000);
        vm.etch(ARB_SYS, hex"00"); // gives nothing
        vm.roll(2000);
        requireBlock(2000);
    }

    function requireBlock(uint256 expected) internal {
        NodeRegistry registry = new NodeRegistry();
        TrainingLedger ledger = new TrainingLedger(registry, IInvitations(address(0)), IBonds(address(0)));
        (uint64 number, uint64 time) = registry.deployedAt();
        vm.assertEq(number, expected);
        vm.assertEq(time, block.timestamp);
        vm.roll(expected + 5);
        (number, time) = ledger.deployedAt();
        vm.assertEq(number, expected);
    }
}
