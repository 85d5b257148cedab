// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {ILedger} from "../src/ILedger.sol";
import {Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice Each rule that a call can break, and what the ledger answers.
contract RefusalsTest is Fixture {
    function test_configs() public {
        refusedConfig("manifest", 11, 0);
        refusedConfig("rounds", 0, 0);
        refusedConfig("rounds", 0, 1_000_001);
        refusedConfig("stages", 1, 0);
        refusedConfig("stages", 1, 65);
        refusedConfig("minReplicas", 2, 0);
        refusedConfig("minReplicas", 2, 5);
        refusedConfig("maxReplicas", 3, 0);
        refusedConfig("maxReplicas", 3, 65);
        refusedConfig("quorum", 4, 0);
        refusedConfig("quorum", 4, 4);
        refusedConfig("quorum", 4, 1); // of 3: no majority
        refusedConfig("quorum", 10, 4); // 2 of 4: neither
        refusedConfig("quorum", 10, type(uint16).max);
        refusedConfig("horizon", 13, 0);
        refusedConfig("horizon", 13, 4);
        refusedConfig("horizon", 13, 24);
        refusedConfig("horizon", 13, 2048);
        refusedConfig("horizon", 14, 64); // of 512 seals: a member's part would be too coarse
        refusedConfig("bond", 15, 1 << 96);
        refusedConfig("minRoundTime", 5, 0);
        refusedConfig("minRoundTime", 5, ROUND_TIMEOUT + 1);
        refusedConfig("roundTimeout", 12, 0);
        refusedConfig("roundTimeout", 12, 30 days + 1);
        refusedConfig("evictionTime", 6, 0);
        refusedConfig("evictionTime", 6, 30 days + 1);
        refusedConfig("maxInnerSteps", 7, 0);
        refusedConfig("maxInnerSteps", 7, 100_001);
        refusedConfig("startTime", 8, 1 << 36);
        refusedConfig("tokensPerStep", 9, 0);
        refusedConfig("tokensPerStep", 9, 1 << 40);
        RunConfig memory config = configOf(1, 1, 4);
        vm.expectRevert(abi.encodeWithSelector(ILedger.InvalidConfig.selector, "genesis"));
        ledger.createRun(config, NAME, genesisOf(2), some(founder));
        vm.expectRevert(abi.encodeWithSelector(ILedger.InvalidConfig.selector, "genesis"));
        ledger.createRun(config, NAME, new bytes32[](1), some(founder));
        string[5] memory names =
            ["", ".a", "a b", "a/b", "12345678901234567890123456789012345678901234567890123456789012345"];
        for (uint256 i = 0; i < names.length; ++i) {
            vm.expectRevert(abi.encodeWithSelector(ILedger.InvalidConfig.selector, "name"));
            ledger.createRun(config, names[i], genesisOf(1), some(founder));
        }
        for (uint256 i = 0; i < 3; ++i) {
            address[] memory founders = new address[](i == 0 ? 0 : i == 1 ? 9 : 2); // none, too many, nobody
            for (uint256 k = 0; k < founders.length && i == 1; ++k) founders[k] = founder;
            vm.expectRevert(abi.encodeWithSelector(ILedger.InvalidConfig.selector, "founders"));
            ledger.createRun(config, NAME, genesisOf(1), founders);
        }
        bytes32 run = create(config);
        vm.prank(CREATOR);
        vm.expectRevert(abi.encodeWithSelector(ILedger.RunExists.selector, run));
        ledger.createRun(config, NAME, genesisOf(1), some(founder));
        vm.assertEq(abi.encode(ledger.runConfig(run)), abi.encode(config));
        vm.assertEq(ledger.creatorOf(run), CREATOR);
        vm.assertTrue(ledger.isFounder(run, founder));
        vm.assertFalse(ledger.isFounder(run, CREATOR));
        vm.expectRevert(abi.encodeWithSelector(ILedger.UnknownRun.selector, bytes32(0)));
        ledger.head(0, 0);
    }

    /// @dev A run that counts 2^63 - 1 tokens at most is one, and fields at their limits.
    function test_configsAtTheirLimits() public {
        RunConfig memory config = configOf(64, 64, 64);
        (config.quorumNumerator, config.quorumDenominator) = (32_768, 65_535);
        (config.minRoundTime, config.roundTimeout, config.evictionTime) = (30 days, 30 days, 30 days);
        (config.rounds, config.maxInnerSteps, config.startTime) = (1_000_000, 100_000, (1 << 36) - 1);
        config.tokensPerStep = uint64(uint256((1 << 63) - 1) / (1_000_000 * 64 * 100_000));
        (config.horizon, config.bond, config.invited) = (256, (1 << 96) - 1, true);
        bytes32 run = create(config);
        vm.assertEq(abi.encode(ledger.runConfig(run)), abi.encode(config));
        ++config.tokensPerStep;
        vm.expectRevert(abi.encodeWithSelector(ILedger.InvalidConfig.selector, "tokensPerStep"));
        ledger.createRun(config, NAME, genesisOf(64), some(founder));
        (config.rounds, config.maxInnerSteps, config.tokensPerStep) = (1, 1, (1 << 40) - 1);
        (config.manifest, config.horizon, config.maxReplicas) = (keccak256("of a small run"), 1024, 16);
        config.minReplicas = 1;
        create(config);
        (config.manifest, config.horizon) = (keccak256("and of another"), 8);
        create(config);
    }

    /// @dev Readers compare it with the events that they have.
    function test_runsAreCountedAndWhatIsRefusedIsNone() public {
        RunConfig memory config = configOf(1, 1, 4);
        create(config);
        vm.expectRevert(abi.encodeWithSelector(ILedger.InvalidConfig.selector, "genesis"));
        ledger.createRun(config, NAME, genesisOf(2), some(founder));
        vm.assertEq(ledger.runs(), 1);
        config.manifest = keccak256("of another run");
        create(config);
        vm.assertEq(ledger.runs(), 2);
    }

    function test_checkpoints() public {
        bytes32 run = create(configOf(1, 1, 1));
        vm.prank(CREATOR);
        ledger.publishCheckpoint(run, 0, "folder", string(new bytes(2048)));
        vm.prank(CREATOR);
        vm.expectRevert(abi.encodeWithSelector(ILedger.UriTooLong.selector, 2049, 2048));
        ledger.publishCheckpoint(run, 0, "folder", string(new bytes(2049)));
    }

    function test_slots() public {
        enrol(6);
        bytes32 run = create(configOf(2, 1, 3));
        vm.expectRevert(abi.encodeWithSelector(ILedger.UnknownStage.selector, uint16(2)));
        vm.prank(who[0]);
        ledger.joinRun(run, 2);
        join(run, who[0], 0);
        vm.expectRevert(abi.encodeWithSelector(ILedger.AlreadyHolding.selector, who[0], uint16(0), uint16(0)));
        vm.prank(who[0]);
        ledger.joinRun(run, 1);
        join(run, who[1], 0);
        join(run, who[2], ANY);
        requireSlot(run, who[2], 0, 1);
        vm.expectRevert(abi.encodeWithSelector(ILedger.ReplicaComplete.selector, uint16(0)));
        vm.prank(who[0]);
        ledger.moveDown(run);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NoLowerSlot.selector, uint16(1), uint16(0)));
        vm.prank(who[1]);
        ledger.moveDown(run);
        vm.prank(who[0]);
        ledger.leaveRun(run);
        pass(1);
        vm.prank(who[1]);
        ledger.moveDown(run);
        requireSlot(run, who[1], 0, 0);
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotHolding.selector, who[0]));
        vm.prank(who[0]);
        ledger.leaveRun(run);
    }

    function test_questions() public {
        enrol(4);
        RunConfig memory config = configOf(1, 1, 4);
        bytes32 run = create(config);
        bytes32 other = create2(config);
        vm.expectRevert(abi.encodeWithSelector(ILedger.RoundNotOpen.selector));
        ledger.accuse(other, who[0]);
        for (uint256 i = 0; i < 4; ++i) join(run, who[i], 0);
        refusedAsk(run, who[0], who[1], abi.encodeWithSelector(ILedger.TooEarlyToAccuse.selector, who[1]));
        refusedEvict(run, who[1], abi.encodeWithSelector(ILedger.NotAccused.selector, who[1]));
        refusedAnswer(run, who[1]);
        pass(ROUND_TIMEOUT + 1);
        vm.prank(who[0]);
        ledger.accuse(run, who[1]);
        refusedAsk(run, who[0], who[1], abi.encodeWithSelector(ILedger.AccusationPending.selector, who[1]));
        refusedEvict(
            run,
            who[1],
            abi.encodeWithSelector(ILedger.TooEarlyToEvict.selector, vm.getBlockTimestamp() + EVICTION_TIME)
        );
        sealWith(run, 0, who);
        refusedEvict(run, who[1], abi.encodeWithSelector(ILedger.CountedSinceAccused.selector, who[1]));
        vm.prank(who[1]);
        ledger.answer(run); // also once it was counted
        refusedAsk(run, who[0], who[1], abi.encodeWithSelector(ILedger.TooEarlyToAccuse.selector, who[1]));
        for (uint256 k = 0; k < 3; ++k) sealWith(run, 0, some(who[0], who[2], who[3]));
        pass(ROUND_TIMEOUT);
        vm.prank(who[0]);
        ledger.accuse(run, who[1]); // not counted for three rounds
        vm.prank(who[1]);
        ledger.answer(run);
        refusedAnswer(run, who[1]);
    }

    function test_deals() public {
        enrol(4);
        bytes32 run = create(configOf(2, 1, 2));
        vm.expectRevert(abi.encodeWithSelector(ILedger.RoundNotOpen.selector));
        ledger.deal(run, 0);
        for (uint256 i = 0; i < 4; ++i) join(run, who[i], uint16(i % 2));
        vm.expectRevert(abi.encodeWithSelector(ILedger.ReplicaIncomplete.selector, uint16(300)));
        ledger.deal(run, 300);
        vm.expectRevert(abi.encodeWithSelector(ILedger.TooEarlyToDeal.selector, uint16(0), uint32(3)));
        ledger.deal(run, 0);
        for (uint256 k = 0; k < 3; ++k) {
            sealWith(run, 0, some(who[0], who[2]));
            sealWith(run, 1, some(who[1], who[3]));
        }
        vm.expectRevert(abi.encodeWithSelector(ILedger.TooEarlyToDeal.selector, uint16(0), uint32(4)));
        ledger.deal(run, 0);
    }

    function test_seals() public {
        enrol(34);
        RunConfig memory config = configOf(1, 1, 40);
        config.rounds = 2;
        bytes32 run = create(config);
        Work[] memory none_ = new Work[](0);
        refused(sealOf(run, 0, none_), abi.encodeWithSelector(ILedger.RoundNotOpen.selector));
        for (uint256 i = 0; i < 34; ++i) join(run, who[i], 0);
        Work[] memory works = worksOf(run, who);
        Seal memory s = signedBy(sealOf(run, 0, works), works, founded(who));
        pass(MIN_ROUND_TIME);
        bytes memory signatures = s.signatures;
        s.signatures = bytes.concat(signatures, hex"00");
        refused(s, abi.encodeWithSelector(ILedger.SignaturesLength.selector, 35 * 66 + 1));
        s.signatures = bytes.concat(signatures, new bytes(66), hex"ff", new bytes(65)); // of nobody
        s.stage = 1;
        refused(s, abi.encodeWithSelector(ILedger.UnknownStage.selector, uint16(1)));
        s.stage = 0;
        s.round = 1;
        refused(s, abi.encodeWithSelector(ILedger.WrongRound.selector, uint32(1), uint32(0)));
        s.round = 0;
        bytes memory records = s.records;
        s.records = bytes.concat(records, hex"00");
        refused(s, abi.encodeWithSelector(ILedger.RecordsLength.selector, 34 * 44 + 1));
        s.records = bytes.concat(records, recordOf(works[33]));
        refused(s, abi.encodeWithSelector(ILedger.RecordsNotAscending.selector, 33));
        works[33].replica = 64;
        s.records = bytes.concat(records, recordOf(works[33]));
        refused(s, abi.encodeWithSelector(ILedger.RecordsNotAscending.selector, 64));
        s.records = "";
        refused(s, abi.encodeWithSelector(ILedger.EmptySealChangesState.selector));
        s.records = records;
        ledger.seal(s);
        vm.assertEq(ledger.nextRound(run, 0), 1);
        works = worksOf(run, who);
        s = signedBy(sealOf(run, 0, works), works, founded(who));
        pass(MIN_ROUND_TIME);
        ledger.seal(s);
        (bool open, uint32 round,) = ledger.openRound(run);
        vm.assertFalse(open);
        vm.assertEq(round, 2);
        refused(sealOf(run, 0, none_), abi.encodeWithSelector(ILedger.RunFinished.selector));
        vm.expectRevert(abi.encodeWithSelector(ILedger.RunFinished.selector));
        ledger.deal(run, 0);
        vm.prank(who[0]);
        ledger.leaveRun(run);
        vm.prank(who[0]);
        vm.expectRevert(abi.encodeWithSelector(ILedger.RunFinished.selector));
        ledger.joinRun(run, 0);
        vm.expectRevert(abi.encodeWithSelector(ILedger.RunFinished.selector));
        ledger.accuse(run, who[1]);
    }

    /// @dev A cell of a stage is for later: 0 is the only one.
    function test_stagesHaveOneCell() public {
        enrol(1);
        bytes32 run = create(configOf(1, 1, 1));
        for (uint16 cell = 64; cell < 1024; cell *= 4) {
            vm.prank(who[0]);
            vm.expectRevert(abi.encodeWithSelector(ILedger.UnknownStage.selector, cell));
            ledger.joinRun(run, cell);
        }
        join(run, who[0], 0);
        Seal memory s = sealBy(run, 0, who, founded(who));
        s.stage = 64;
        pass(MIN_ROUND_TIME);
        refused(s, abi.encodeWithSelector(ILedger.UnknownStage.selector, uint16(64)));
    }

    function test_aStageSealsARoundOnce() public {
        enrol(2);
        bytes32 run = create(configOf(2, 1, 1));
        join(run, who[0], 0);
        join(run, who[1], 1);
        Work[] memory works = worksOf(run, some(who[0]));
        Seal memory s = signedBy(sealOf(run, 0, works), works, founded(some(who[0])));
        pass(MIN_ROUND_TIME);
        ledger.seal(s);
        refused(s, abi.encodeWithSelector(ILedger.AlreadySealed.selector, uint16(0), uint32(0)));
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function refusedConfig(string memory what, uint256 field, uint256 value) internal {
        RunConfig memory config = configOf(1, 1, 4);
        if (field == 0) config.rounds = uint32(value);
        if (field == 1) config.stages = uint16(value);
        if (field == 2) config.minReplicas = uint16(value);
        if (field == 3) config.maxReplicas = uint16(value);
        if (field == 4) config.quorumNumerator = uint16(value);
        if (field == 5) config.minRoundTime = uint32(value);
        if (field == 6) config.evictionTime = uint32(value);
        if (field == 7) config.maxInnerSteps = uint32(value);
        if (field == 8) config.startTime = uint64(value);
        if (field == 9) config.tokensPerStep = uint64(value);
        if (field == 10) config.quorumDenominator = uint16(value);
        if (field == 11) config.manifest = bytes32(value);
        if (field == 12) config.roundTimeout = uint32(value);
        if (field == 13) config.horizon = uint16(value);
        if (field == 14) (config.horizon, config.maxReplicas) = (512, uint16(value));
        if (field == 15) config.bond = uint128(value);
        vm.expectRevert(abi.encodeWithSelector(ILedger.InvalidConfig.selector, what));
        ledger.createRun(config, NAME, genesisOf(1), some(founder));
    }

    function create2(RunConfig memory config) internal returns (bytes32) {
        config.manifest = keccak256("another manifest");
        vm.prank(CREATOR);
        return ledger.createRun(config, NAME, genesisOf(config.stages), some(founder));
    }

    function refusedAsk(bytes32 run, address by, address account, bytes memory why) internal {
        vm.expectRevert(why);
        vm.prank(by);
        ledger.accuse(run, account);
    }

    function refusedEvict(bytes32 run, address account, bytes memory why) internal {
        vm.expectRevert(why);
        ledger.evict(run, account);
    }

    function refusedAnswer(bytes32 run, address account) internal {
        vm.expectRevert(abi.encodeWithSelector(ILedger.NotAccused.selector, account));
        vm.prank(account);
        ledger.answer(run);
    }
}
