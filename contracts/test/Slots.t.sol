// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunConfig, Runs} from "../src/Runs.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {Fixture} from "./Fixture.sol";
import {vm, Vm} from "./Vm.sol";

contract SlotsTest is Fixture {
    function setUp() public {
        enrol(6);
    }

    // ---------------------------------------------------------------------------------------------------- runs

    function test_createRunStoresTheConfigAndDerivesTheId() public {
        RunConfig memory config = configOf(2, 1, 3);
        bytes32 expected = keccak256(abi.encode(block.chainid, address(ledger), CREATOR, config.manifest));
        vm.expectEmit(address(ledger));
        emit TrainingLedger.RunCreated(expected, CREATOR, config, NAME, genesisOf(2));
        bytes32 run = create(config);
        vm.assertEq(run, expected);
        vm.assertEq(abi.encode(ledger.runConfig(run)), abi.encode(config));
        for (uint16 stage = 0; stage < 2; ++stage) {
            (bytes32 weights, bytes32 momentum) = ledger.heads(run, stage);
            vm.assertEq(weights, genesisOf(2)[stage]);
            vm.assertEq(ledger.genesis(run, stage), genesisOf(2)[stage]);
            vm.assertEq(momentum, bytes32(0));
        }
        (bool open,,) = ledger.openRound(run);
        vm.assertFalse(open);
    }

    function test_createRunAcceptsItsLargestAndSmallestConfig() public {
        RunConfig memory config = configOf(64, 64, 64);
        config.rounds = type(uint32).max;
        config.quorumNumerator = config.quorumDenominator = 1;
        create(config);
        config = configOf(1, 1, 1);
        config.manifest = keccak256("another");
        config.rounds = config.roundTimeout = config.evictionTime = 1;
        config.tokensPerStep = 1;
        create(config);
    }

    function test_createRunRefusesTheSameRunTwiceButNotAnotherCreators() public {
        RunConfig memory config = configOf(1, 1, 1);
        bytes32 run = create(config);
        vm.prank(CREATOR);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.RunExists.selector, run));
        ledger.createRun(config, NAME, genesisOf(1));
        vm.prank(who[0]);
        vm.assertTrue(ledger.createRun(config, NAME, genesisOf(1)) != run);
    }

    function refuse(RunConfig memory config, string memory field) private {
        vm.expectRevert(abi.encodeWithSelector(Runs.InvalidConfig.selector, field));
        ledger.createRun(config, NAME, genesisOf(2));
    }

    function test_createRunRefusesConfigsOutOfBounds() public {
        RunConfig memory config = configOf(2, 1, 3);
        config.rounds = 0;
        refuse(config, "rounds");
        config = configOf(0, 1, 3);
        refuse(config, "stages");
        config = configOf(65, 1, 3);
        refuse(config, "stages");
        config = configOf(2, 0, 3);
        refuse(config, "minReplicas");
        config = configOf(2, 4, 3);
        refuse(config, "minReplicas");
        config = configOf(2, 0, 0);
        refuse(config, "maxReplicas");
        config = configOf(2, 1, 65);
        refuse(config, "maxReplicas");
        config = configOf(2, 1, 3);
        config.quorumNumerator = 0;
        refuse(config, "quorum");
        config.quorumNumerator = 4;
        refuse(config, "quorum");
        config = configOf(2, 1, 3);
        config.roundTimeout = 0;
        refuse(config, "roundTimeout");
        config = configOf(2, 1, 3);
        config.evictionTime = 0;
        refuse(config, "evictionTime");
        config = configOf(2, 1, 3);
        config.tokensPerStep = 0;
        refuse(config, "tokensPerStep");
        refuse(configOf(3, 1, 3), "genesis");
    }

    function refuseName(string memory name) private {
        vm.expectRevert(abi.encodeWithSelector(Runs.InvalidConfig.selector, "name"));
        ledger.createRun(configOf(2, 1, 3), name, genesisOf(2));
    }

    function test_createRunTakesOnlyNamesThatCanBeShownAsTheyAre() public {
        string memory longest = "a123456789b123456789c123456789d123456789e123456789f123456789g123";
        string[4] memory fine = ["a", "0", "A.b-c_9Z", longest];
        for (uint256 i = 0; i < fine.length; ++i) {
            RunConfig memory config = configOf(2, 1, 3);
            config.manifest = bytes32(i + 1);
            ledger.createRun(config, fine[i], genesisOf(2));
        }
        refuseName("");
        refuseName(string.concat(longest, "4"));
        refuseName("-rf");
        refuseName(".hidden");
        refuseName("two words");
        refuseName("a/b");
        refuseName("a@");
        refuseName("a[");
        refuseName("a`");
        refuseName("a{");
        refuseName(unicode"é");
        refuseName("red\x1b[31m");
        for (uint256 code = 0; code < 256; ++code) {
            bool letter = (code >= 65 && code <= 90) || (code >= 97 && code <= 122) || (code >= 48 && code <= 57);
            if (letter || code == 45 || code == 46 || code == 95) continue;
            refuseName(string(abi.encodePacked("a", bytes1(uint8(code)))));
        }
    }

    function test_unknownRunsAreNamed() public {
        bytes32 run = keccak256("no run");
        bytes memory unknown = abi.encodeWithSelector(TrainingLedger.UnknownRun.selector, run);
        vm.expectRevert(unknown);
        ledger.runConfig(run);
        vm.expectRevert(unknown);
        ledger.openRound(run);
        vm.prank(who[0]);
        vm.expectRevert(unknown);
        ledger.joinRun(run, 0);
    }

    // ------------------------------------------------------------------------------------------------- joining

    function test_joinTakesTheLowestFreeSeat() public {
        bytes32 run = create(configOf(2, 2, 3));
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Joined(run, who[0], 0, 0);
        join(run, who[0], ANY);
        join(run, who[1], ANY);
        join(run, who[2], ANY);
        requireSlot(run, who[0], 0, 0);
        requireSlot(run, who[1], 0, 1);
        requireSlot(run, who[2], 1, 0);
    }

    function test_joinWithAStageTakesItsLowestReplica() public {
        bytes32 run = create(configOf(2, 2, 3));
        join(run, who[0], 1);
        join(run, who[1], 1);
        join(run, who[2], ANY);
        join(run, who[3], 0);
        requireSlot(run, who[0], 0, 1);
        requireSlot(run, who[1], 1, 1);
        requireSlot(run, who[2], 0, 0);
        requireSlot(run, who[3], 1, 0);
    }

    function test_joinRefusesAStageThatIsFullOrUnknownAndAFullRun() public {
        bytes32 run = create(configOf(2, 1, 1));
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.UnknownStage.selector, 2));
        ledger.joinRun(run, 2);
        join(run, who[0], 1);
        vm.prank(who[1]);
        vm.expectRevert(abi.encodeWithSelector(Runs.NoFreeSeat.selector, 1));
        ledger.joinRun(run, 1);
        join(run, who[1], ANY);
        vm.prank(who[2]);
        vm.expectRevert(abi.encodeWithSelector(Runs.NoFreeSeat.selector, ANY));
        ledger.joinRun(run, ANY);
    }

    function test_joinRefusesTheUnregisteredAndASecondSlot() public {
        bytes32 run = create(configOf(2, 1, 2));
        vm.prank(CREATOR);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.NotRegistered.selector, CREATOR));
        ledger.joinRun(run, ANY);
        join(run, who[0], 1);
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.AlreadyHolding.selector, who[0], 0, 1));
        ledger.joinRun(run, 0);
    }

    function test_anAccountHoldsSlotsOfSeveralRuns() public {
        RunConfig memory config = configOf(2, 1, 2);
        bytes32 first = create(config);
        config.manifest = keccak256("second");
        bytes32 second = create(config);
        join(first, who[0], 1);
        join(second, who[0], 0);
        requireSlot(first, who[0], 0, 1);
        requireSlot(second, who[0], 0, 0);
    }

    function test_leavingFreesTheSeatForOthersAndForARejoin() public {
        bytes32 run = create(configOf(2, 2, 3));
        join(run, who[0], ANY);
        join(run, who[1], ANY);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Left(run, who[0], 0, 0);
        vm.prank(who[0]);
        ledger.leaveRun(run);
        (bool holds,,) = ledger.slotOf(run, who[0]);
        vm.assertFalse(holds);
        vm.assertEq(ledger.holderOf(run, 0, 0), address(0));
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(Runs.NotHolding.selector, who[0]));
        ledger.leaveRun(run);
        join(run, who[2], ANY);
        requireSlot(run, who[2], 0, 0);
        join(run, who[0], 1);
        requireSlot(run, who[0], 1, 1);
    }

    // -------------------------------------------------------------------------------------------------- moving

    function test_moveDownTakesTheLowestLowerSeatOfTheSameStage() public {
        bytes32 run = create(configOf(2, 2, 4));
        for (uint256 i = 0; i < 4; ++i) {
            join(run, who[i], 1); // replicas 0..3 of stage 1
        }
        vm.prank(who[1]);
        ledger.leaveRun(run);
        vm.prank(who[0]);
        ledger.leaveRun(run);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Moved(run, who[3], 3, 0, 1);
        vm.prank(who[3]);
        ledger.moveDown(run);
        requireSlot(run, who[3], 0, 1);
        vm.assertEq(ledger.holderOf(run, 3, 1), address(0));
        vm.prank(who[2]);
        ledger.moveDown(run);
        requireSlot(run, who[2], 1, 1);
        vm.prank(who[2]);
        vm.expectRevert(abi.encodeWithSelector(Runs.NoLowerSeat.selector, 1, 1));
        ledger.moveDown(run);
    }

    function test_moveDownIsForHoldersOfIncompleteReplicas() public {
        bytes32 run = create(configOf(2, 2, 2));
        for (uint256 i = 0; i < 4; ++i) {
            join(run, who[i], ANY);
        }
        vm.prank(who[0]);
        ledger.leaveRun(run);
        vm.prank(who[2]); // replica 1, complete
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.ReplicaComplete.selector, 1));
        ledger.moveDown(run);
        vm.prank(who[4]);
        vm.expectRevert(abi.encodeWithSelector(Runs.NotHolding.selector, who[4]));
        ledger.moveDown(run);
        vm.prank(who[3]);
        ledger.leaveRun(run);
        vm.prank(who[2]);
        ledger.moveDown(run);
        requireSlot(run, who[2], 0, 0);
    }

    // ------------------------------------------------------------------------------------------------- opening

    function requireOpen(bytes32 run, bool expected) private view {
        (bool open, uint32 round, uint64 openedAt) = ledger.openRound(run);
        vm.assertTrue(open == expected);
        vm.assertEq(round, 0);
        if (expected) vm.assertEq(openedAt, block.timestamp);
    }

    function test_roundZeroOpensWithTheJoinThatCompletesEnoughReplicas() public {
        bytes32 run = create(configOf(2, 2, 3));
        join(run, who[0], ANY);
        join(run, who[1], ANY);
        join(run, who[2], ANY);
        requireOpen(run, false);
        vm.prank(who[1]); // a complete replica less
        ledger.leaveRun(run);
        join(run, who[3], 1);
        requireOpen(run, false);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.Joined(run, who[4], 1, 1);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.RoundOpened(run, 0, uint64(block.timestamp));
        join(run, who[4], ANY);
        requireOpen(run, true);
    }

    function test_roundZeroOpensWithTheMoveThatCompletesEnoughReplicas() public {
        bytes32 run = create(configOf(2, 1, 3));
        join(run, who[0], 0);
        join(run, who[1], 0);
        vm.prank(who[0]);
        ledger.leaveRun(run);
        join(run, who[2], 1);
        requireOpen(run, false);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.RoundOpened(run, 0, uint64(block.timestamp));
        vm.prank(who[1]);
        ledger.moveDown(run);
        requireOpen(run, true);
    }

    function test_roundZeroStaysOpenAndOpensOnce() public {
        bytes32 run = create(configOf(1, 1, 2));
        join(run, who[0], ANY);
        (,, uint64 openedAt) = ledger.openRound(run);
        vm.prank(who[0]);
        ledger.leaveRun(run);
        vm.warp(block.timestamp + 100);
        vm.recordLogs();
        join(run, who[1], ANY);
        Vm.Log[] memory logs = vm.getRecordedLogs();
        vm.assertEq(logs.length, 1);
        (bool open,, uint64 stillOpenedAt) = ledger.openRound(run);
        vm.assertTrue(open);
        vm.assertEq(stillOpenedAt, openedAt);
    }

    /// @dev Whatever joins, leaves and moves happen, seats and accounts agree and no two share a seat.
    function testFuzz_seatsAndAccountsAgree(uint256 seed) public {
        bytes32 run = create(configOf(2, 2, 3));
        for (uint256 step = 0; step < 24; ++step) {
            seed = uint256(keccak256(abi.encode(seed)));
            address account = who[(seed >> 8) % who.length];
            uint16 stage = (seed >> 16) % 3 == 2 ? ANY : uint16((seed >> 16) % 3);
            vm.prank(account);
            if (seed % 4 == 0) {
                try ledger.leaveRun(run) {} catch {}
            } else if (seed % 4 == 1) {
                try ledger.moveDown(run) {} catch {}
            } else {
                try ledger.joinRun(run, stage) {} catch {}
            }
        }
        uint256 seats = 0;
        for (uint16 replica = 0; replica < 3; ++replica) {
            for (uint16 stage = 0; stage < 2; ++stage) {
                address account = ledger.holderOf(run, replica, stage);
                if (account == address(0)) continue;
                ++seats;
                requireSlot(run, account, replica, stage);
            }
        }
        uint256 holders = 0;
        for (uint256 i = 0; i < who.length; ++i) {
            (bool holds,,) = ledger.slotOf(run, who[i]);
            if (holds) ++holders;
        }
        vm.assertEq(seats, holders);
    }

    // --------------------------------------------------------------------------------------------- checkpoints

    function test_checkpointsArePublishedByCreatorOrHolderForVersionsThatExist() public {
        bytes32 run = create(configOf(1, 1, 2));
        join(run, who[0], ANY);
        vm.expectEmit(address(ledger));
        emit TrainingLedger.CheckpointPublished(run, 0, CREATOR, keccak256("w"), "https://example.org/v0");
        vm.prank(CREATOR);
        ledger.publishCheckpoint(run, 0, keccak256("w"), "https://example.org/v0");
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(TrainingLedger.UnknownVersion.selector, 1));
        ledger.publishCheckpoint(run, 1, keccak256("w"), "");
        sealWith(run, 0, some(who[0]));
        vm.prank(who[0]);
        ledger.publishCheckpoint(run, 1, keccak256("w"), "");
        vm.prank(who[1]);
        vm.expectRevert(abi.encodeWithSelector(Runs.NotHolding.selector, who[1]));
        ledger.publishCheckpoint(run, 1, keccak256("w"), "");
    }
}
