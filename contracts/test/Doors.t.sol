// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IBonds, IInvitations, ILedger} from "../src/ILedger.sol";
import {RunConfig} from "../src/Runs.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {BondsDouble} from "./Doubles.sol";
import {Fixture} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice What a run asks of those who take a slot, and founders' dismissals.
contract DoorsTest is Fixture {
    uint256 internal constant SITE = 0x517e;

    // ------------------------------------------------------------------------------------------------- invitations

    function test_anInvitedRunTakesWhomItAdmits() public {
        enrol(4);
        RunConfig memory config = configOf(2, 1, 4);
        config.invited = true;
        bytes32 run = create(config);
        vm.prank(who[0]);
        vm.expectRevert(notInvited(who[0]));
        ledger.joinRun(run, 0);
        admit(run, who[0], true);
        join(run, who[0], 0);
        // Revoked, it keeps its slot; it gets no other.
        admit(run, who[0], false);
        quit(run, who[0]);
        pass(1);
        vm.prank(who[0]);
        vm.expectRevert(notInvited(who[0]));
        ledger.joinRun(run, 0);
        // Nor does a site slot anybody else.
        for (uint256 i = 1; i < 3; ++i) enlist(run, who[i], SITE);
        admit(run, who[1], true);
        vm.prank(who[1]);
        vm.expectRevert(notInvited(who[2]));
        ledger.joinSite(run, 1, some(who[1], who[2]));
        admit(run, who[2], true);
        vm.prank(who[1]);
        ledger.joinSite(run, 1, some(who[1], who[2]));
    }

    /// @dev An open run asks nobody, and needs none of the contracts beside the ledger.
    function test_anOpenRunAsksNobody() public {
        enrol(1);
        ledger = new TrainingLedger(registry, IInvitations(address(0)), IBonds(address(0)));
        bytes32 run = create(configOf(1, 1, 1));
        join(run, who[0], 0);
        work(run, 0, who, 1);
        quit(run, who[0]);
    }

    // ------------------------------------------------------------------------------------------------------- bonds

    function test_aSlotLocksTheBondAndItsLossReleasesIt() public {
        bytes32 run = bonded(6);
        for (uint256 i = 0; i < 6; ++i) vm.assertEq(lockedOf(run, who[i]), 100);
        work(run, 0, who, 16);
        vm.assertEq(lockedOf(run, who[0]), 100);
        quit(run, who[0]);
        vm.assertEq(lockedOf(run, who[0]), 0);
        pass(1);
        join(run, who[0], 0);
        vm.assertEq(lockedOf(run, who[0]), 100);
        expire(run);
        pass(1);
        ask(run, who[0], who[1]);
        pass(EVICTION_TIME);
        ledger.evict(run, who[1]);
        vm.assertEq(lockedOf(run, who[1]), 0);
        convict(charge(run, 0, 0, who[2]), four(0, 3, 4, 5));
        vm.assertEq(lockedOf(run, who[2]), 0);
        quit(run, who[3]);
        convict(charge(run, 0, 0, who[3]), four(0, 1, 4, 5)); // who holds no slot has nothing locked
        vm.assertEq(lockedOf(run, who[3]), 0);
    }

    function test_dismissalsReleaseIt() public {
        bytes32 run = bonded(2);
        vm.prank(founder);
        ledger.dismiss(run, who[1], address(0));
        vm.assertEq(lockedOf(run, who[1]), 0);
        pass(1);
        join(run, who[1], 0);
        vm.assertEq(lockedOf(run, who[1]), 100);
    }

    function test_noSlotWithoutADeposit() public {
        enrol(2);
        RunConfig memory config = configOf(2, 1, 2);
        config.bond = 100;
        bytes32 run = create(config);
        bonds.deposit(address(ledger), run, who[0], 99);
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(BondsDouble.Short.selector, who[0], 100));
        ledger.joinRun(run, 0);
        bonds.deposit(address(ledger), run, who[0], 1);
        for (uint256 i = 0; i < 2; ++i) enlist(run, who[i], SITE);
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(BondsDouble.Short.selector, who[1], 100));
        ledger.joinSite(run, 0, part(0, 2));
        bonds.deposit(address(ledger), run, who[1], 100);
        vm.prank(who[0]);
        ledger.joinSite(run, 0, part(0, 2));
        for (uint256 i = 0; i < 2; ++i) vm.assertEq(lockedOf(run, who[i]), 100);
        vm.prank(who[1]); // in its slot already: locked once
        ledger.joinSite(run, 0, part(0, 2));
    }

    // ---------------------------------------------------------------------------------------------------- founders

    /// @dev A founder frees slots as long as two thirds of the weight are the founders', and of nobody who holds none.
    function test_dismissals() public {
        enrol(3);
        bytes32 run = create(configOf(1, 1, 3));
        for (uint256 i = 0; i < 3; ++i) join(run, who[i], 0);
        vm.prank(CREATOR);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotFounder.selector, CREATOR));
        ledger.dismiss(run, who[0], address(0));
        work(run, 0, part(0, 2), 1);
        vm.expectEmit(address(ledger));
        emit ILedger.Dismissed(run, who[2], founder, 2, 0, address(0), 0);
        vm.prank(founder);
        ledger.dismiss(run, who[2], address(0));
        vm.prank(founder);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotHolding.selector, who[2]));
        ledger.dismiss(run, who[2], address(0));
        pass(1);
        join(run, who[2], 0); // it is no exile
        work(run, 0, part(0, 2), 1);
        vm.prank(founder);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotVacant.selector, 0));
        ledger.dismiss(run, who[2], address(0));
    }

    /// @dev The slot waits for the successor alone, and no longer than the eviction time.
    function test_aDismissedMembersSlotWaitsForItsSuccessor() public {
        enrol(5);
        bytes32 run = create(configOf(2, 1, 1));
        join(run, who[0], 0);
        uint64 until = uint64(vm.getBlockTimestamp() + EVICTION_TIME);
        vm.expectEmit(address(ledger));
        emit ILedger.Dismissed(run, who[0], founder, 0, 0, who[1], until);
        vm.prank(founder);
        ledger.dismiss(run, who[0], who[1]);
        vm.warp(until);
        for (uint256 i = 0; i < 5; i += 2) {
            vm.prank(who[i]);
            vm.expectRevert(abi.encodeWithSelector(ILedger.NoFreeSlot.selector, 0));
            ledger.joinRun(run, 0);
        }
        join(run, who[1], ANY); // its only free slot is of the lowest stage
        requireSlot(run, who[1], 0, 0);
        vm.prank(founder);
        ledger.dismiss(run, who[1], who[3]); // who never comes
        pass(EVICTION_TIME);
        join(run, who[2], ANY);
        requireSlot(run, who[2], 0, 1);
        pass(1);
        join(run, who[1], ANY);
        requireSlot(run, who[1], 0, 0);
    }

    /// @dev The founders' part is what work has not earned yet, and none once that is enough; it comes back as the weight
    /// of the absent goes.
    function test_theVacuum() public {
        enrol(2);
        bytes32 run = create(configOf(1, 1, 2));
        for (uint256 i = 0; i < 2; ++i) join(run, who[i], 0);
        for (uint256 k = 0; k < 8; ++k) {
            (uint256 held, uint256 absent,, uint256 vacuum) = ledger.weightsOf(run, 0);
            vm.assertEq(held, weightOf(run, who));
            vm.assertEq(absent, 0);
            vm.assertEq(vacuum, held < 32_768 ? 32_768 - held : 0);
            sealWith(run, 0, who);
        }
        vm.assertEq(vacuumOf(run, 0), 0);
        for (uint256 i = 0; i < 2; ++i) quit(run, who[i]);
        pass(640 * ROUND_TIMEOUT);
        vm.assertTrue(vacuumOf(run, 0) > 32_700);
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function bonded(uint256 members) internal returns (bytes32 run) {
        enrol(members);
        RunConfig memory config = configOf(1, 1, 8);
        config.bond = 100;
        run = create(config);
        for (uint256 i = 0; i < members; ++i) {
            bonds.deposit(address(ledger), run, who[i], 100);
            join(run, who[i], 0);
        }
    }

    function four(uint256 a, uint256 b, uint256 c, uint256 d) internal view returns (address[] memory) {
        return joined(some(who[a], who[b]), some(who[c], who[d]));
    }

    function lockedOf(bytes32 run, address account) internal view returns (uint256) {
        return bonds.locked(address(ledger), run, account);
    }

    function admit(bytes32 run, address account, bool may) internal {
        invitations.set(address(ledger), run, account, may);
    }

    function notInvited(address account) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(ILedger.NotInvited.selector, account);
    }
}
