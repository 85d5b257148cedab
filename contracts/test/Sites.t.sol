// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunConfig} from "../src/Runs.sol";
import {ILedger} from "../src/ILedger.sol";
import {Fixture} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice All machines of a site into one replica, and what strangers try meanwhile.
contract SitesTest is Fixture {
    uint256 internal constant SITE = 0x517e;
    uint256 internal constant OTHER = 0x517f;

    function test_aSiteTakesAnEmptyReplicaAtOnce() public {
        bytes32 run = newRun(4);
        for (uint256 i = 0; i < 2; ++i) enlist(run, who[i], SITE);
        slot(run, who[1], 2, some(who[1], who[0]));
        requireSlot(run, who[1], 2, 0);
        requireSlot(run, who[0], 2, 1);
        (bool open,,) = ledger.openRound(run);
        vm.assertTrue(open);
    }

    /// @dev Each takes a slot as soon as it sees a machine of the site: no machine has one yet that could be cut off.
    function test_strangersBetweenTheMachinesSplitNoSite() public {
        bytes32 run = newRun(4);
        enlist(run, who[0], SITE);
        join(run, who[2], 0);
        enlist(run, who[1], SITE);
        join(run, who[3], 0);
        refused(run, who[0], 0, some(who[0], who[1]), abi.encodeWithSelector(ILedger.NoFreeSlot.selector, 0));
        refused(run, who[0], 1, some(who[0], who[1]), abi.encodeWithSelector(ILedger.NoFreeSlot.selector, 0));
        vm.assertFalse(ledger.memberOf(run, who[0]).holds || ledger.memberOf(run, who[1]).holds);
        slot(run, who[0], 2, some(who[0], who[1]));
        requireSlot(run, who[1], 2, 1);
    }

    /// @dev Accounts that enlist and never come keep no slot from anybody, however many sites they make up.
    function test_enlistingKeepsNoSlotFree() public {
        bytes32 run = newRun(3);
        for (uint256 i = 0; i < 3; ++i) enlist(run, who[i], SITE + i);
        for (uint256 i = 3; i < 9; ++i) join(run, who[i], uint16(i % 2));
        requireSlot(run, who[8], 2, 0);
    }

    /// @dev A name is no secret, the key is: a signature of another key makes another site.
    function test_whoHasNotTheKeyIsNoMachineOfTheSite() public {
        bytes32 run = newRun(4);
        enlist(run, who[0], SITE);
        enlist(run, who[2], OTHER);
        address[] memory mixed = some(who[0], who[2]);
        refused(run, who[2], 0, mixed, notEnlisted(who[0]));
        refused(run, who[0], 0, mixed, notEnlisted(who[2]));
        refused(run, who[3], 0, mixed, notEnlisted(who[3]));
    }

    /// @dev Nor does it help to repeat what the key signed: it named one account, for one run.
    function test_aSiteNamesOneAccountForOneRun() public {
        bytes32 run = newRun(4);
        RunConfig memory config = configOf(1, 1, 4);
        config.manifest = keccak256("another manifest");
        bytes32 another = create(config);
        enlist(run, who[0], SITE);
        bytes memory signature = named(run, who[0], SITE);
        vm.prank(who[2]);
        ledger.enlist(run, ANY, type(uint40).max, signature);
        vm.assertTrue(ledger.enlistedOf(run, who[2]).site != vm.addr(SITE));
        vm.prank(who[0]);
        ledger.enlist(another, ANY, type(uint40).max, signature);
        vm.assertTrue(ledger.enlistedOf(another, who[0]).site != vm.addr(SITE));
        vm.assertEq(ledger.enlistedOf(run, who[0]).site, vm.addr(SITE));
    }

    function test_aSignatureThatIsNobodysIsRefused() public {
        bytes32 run = newRun(4);
        vm.prank(who[0]);
        vm.expectRevert(notEnlisted(who[0]));
        ledger.enlist(run, ANY, type(uint40).max, new bytes(65));
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.SignaturesLength.selector, 64));
        ledger.enlist(run, ANY, type(uint40).max, new bytes(64));
        vm.prank(CREATOR);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotRegistered.selector, CREATOR));
        ledger.enlist(run, ANY, type(uint40).max, new bytes(65));
    }

    /// @dev Nobody is placed who did not ask for it, whose time is over, or again for having asked once.
    function test_anAccountIsPlacedOnceAndInTime() public {
        bytes32 run = newRun(4);
        enlist(run, who[0], SITE);
        enlist(run, who[1], SITE);
        pass(3601);
        refused(run, who[0], 0, some(who[0], who[1]), notEnlisted(who[0]));
        enlist(run, who[0], SITE);
        enlist(run, who[1], SITE);
        slot(run, who[0], 0, some(who[0], who[1]));
        vm.prank(who[1]);
        ledger.leaveRun(run);
        pass(1);
        refused(run, who[0], 0, some(who[0], who[1]), notEnlisted(who[1]));
    }

    /// @dev A machine that was gone for long comes back to those of its site, who kept their slots.
    function test_aSiteIsMadeWholeAgain() public {
        bytes32 run = newRun(4);
        for (uint256 i = 0; i < 3; ++i) enlist(run, who[i], SITE);
        join(run, who[4], 0);
        slot(run, who[0], 1, some(who[0], who[1]));
        vm.prank(who[1]);
        ledger.leaveRun(run);
        pass(1);
        slot(run, who[2], 1, some(who[0], who[2]));
        requireSlot(run, who[0], 1, 0);
        requireSlot(run, who[2], 1, 1);
    }

    /// @dev Not with a slot in it that a stranger holds, even one that names itself by the same site's key in another run.
    function test_aReplicaWithAStrangerIsNoSites() public {
        bytes32 run = newRun(4);
        for (uint256 i = 0; i < 2; ++i) enlist(run, who[i], SITE);
        join(run, who[2], 0);
        refused(run, who[0], 0, some(who[2], who[1]), notEnlisted(who[2]));
        refused(run, who[0], 0, some(who[0], who[1]), abi.encodeWithSelector(ILedger.NoFreeSlot.selector, 0));
    }

    /// @dev The slot of an evicted member that waits for it waits, also for sites.
    function test_aSlotThatWaitsForItsHolderIsNotFree() public {
        bytes32 run = newRun(2);
        join(run, who[2], 0);
        join(run, who[3], 1);
        for (uint16 stage = 0; stage < 2; ++stage) sealWith(run, stage, some(who[2 + stage]));
        pass(ROUND_TIMEOUT + 1);
        vm.prank(who[2]);
        ledger.accuse(run, who[3]);
        vm.prank(who[3]);
        ledger.accuse(run, who[2]);
        pass(EVICTION_TIME);
        ledger.evict(run, who[2]);
        ledger.evict(run, who[3]);
        for (uint256 i = 0; i < 2; ++i) enlist(run, who[i], SITE);
        pass(EVICTION_TIME);
        refused(run, who[0], 0, some(who[0], who[1]), abi.encodeWithSelector(ILedger.NoFreeSlot.selector, 0));
        pass(1);
        slot(run, who[0], 0, some(who[0], who[1]));
    }

    function test_allOfTheSitesAccountsMustBeFitToJoin() public {
        bytes32 run = newRun(4);
        for (uint256 i = 0; i < 3; ++i) enlist(run, who[i], SITE);
        bytes memory slots = abi.encodeWithSelector(ILedger.WrongSlots.selector, 0, 1);
        refused(run, who[0], 0, some(who[0]), slots);
        slots = abi.encodeWithSelector(ILedger.WrongSlots.selector, 4, 2);
        refused(run, who[0], 4, some(who[0], who[1]), slots);
        refused(run, who[0], 0, some(who[0], who[0]), notEnlisted(who[0])); // it agreed to one slot
        vm.prank(who[1]);
        registry.deregister();
        bytes memory unregistered = abi.encodeWithSelector(ILedger.NotRegistered.selector, who[1]);
        refused(run, who[0], 0, some(who[0], who[1]), unregistered);
        join(run, who[2], 0);
        enlist(run, who[2], SITE);
        bytes memory holding = abi.encodeWithSelector(ILedger.AlreadyHolding.selector, who[2], 0, 0);
        refused(run, who[0], 1, some(who[0], who[2]), holding);
    }

    /// @dev Its consent was to one slot: having taken one by itself, it is not placed again when that is over.
    function test_aSlotTakenAloneEndsTheConsent() public {
        bytes32 run = newRun(4);
        for (uint256 i = 0; i < 2; ++i) enlist(run, who[i], SITE);
        join(run, who[1], 0);
        vm.prank(who[1]);
        ledger.leaveRun(run);
        refused(run, who[0], 1, some(who[0], who[1]), notEnlisted(who[1]));
    }

    /// @dev Being a site earns nothing: a replica of one that is not counted for three rounds is dealt like any other.
    function test_aSiteThatIsNotCountedIsDealtLikeEverybody() public {
        bytes32 run = newRun(2);
        for (uint256 i = 0; i < 2; ++i) enlist(run, who[i], SITE);
        join(run, who[2], 0);
        join(run, who[3], 1);
        slot(run, who[0], 1, some(who[0], who[1]));
        for (uint256 round = 0; round < 3; ++round) {
            pass(ROUND_TIMEOUT);
            sealSignedBy(run, 0, some(who[2]), founded(some(who[2], who[0])));
            sealSignedBy(run, 1, some(who[3]), founded(some(who[3], who[1])));
        }
        (bool dealt,) = address(ledger).call(abi.encodeCall(ledger.deal, (run, 1)));
        vm.assertTrue(dealt || ledger.holderOf(run, 1, 0) == who[0]); // or every stage drew the replica itself
    }

    // --------------------------------------------------------------------------------------------------- helpers

    /// @dev Of two stages, with nobody in it.
    function newRun(uint16 replicas) internal returns (bytes32) {
        enrol(9);
        return create(configOf(2, 1, replicas));
    }

    function slot(bytes32 run, address by, uint16 replica, address[] memory accounts) internal {
        vm.prank(by);
        ledger.joinSite(run, replica, accounts);
    }

    function refused(bytes32 run, address by, uint16 replica, address[] memory accounts, bytes memory why) internal {
        vm.prank(by);
        vm.expectRevert(why);
        ledger.joinSite(run, replica, accounts);
    }

    function notEnlisted(address account) internal pure returns (bytes memory) {
        return abi.encodeWithSelector(ILedger.NotEnlisted.selector, account);
    }
}
