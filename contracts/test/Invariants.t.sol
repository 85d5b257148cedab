// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Member, RunConfig, Runs} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {Enlisted} from "../src/Sites.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {Charge, Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @dev Everybody does anything to a run of two stages, in any order; what was counted is remembered beside the ledger.
contract Handler is Fixture {
    uint16 internal constant STAGES = 2;
    uint16 internal constant REPLICAS = 3;
    uint256 internal constant ACCOUNTS = 9;

    bytes32 public run;
    mapping(uint256 stage => mapping(uint256 seal => mapping(address => bool))) internal counted; // by non-empty seals
    mapping(uint256 stage => uint256) internal nonEmpty;
    mapping(address => uint256) internal satSince; // the non-empty seals of the stage when it last took a seat there
    mapping(address => mapping(uint256 stage => bool)) internal sat; // ever
    uint256 internal convicts; // so many were convicted: they would be all
    string public broken; // the first invariant that a call found broken

    constructor() {
        enrol(ACCOUNTS);
        RunConfig memory config = configOf(STAGES, 1, REPLICAS);
        config.rounds = 10_000;
        run = create(config);
        for (uint256 i = 0; i < STAGES * REPLICAS; ++i) {
            join(run, who[i], uint16(i % STAGES));
            sat[who[i]][i % STAGES] = true;
        }
    }

    // ---------------------------------------------------------------------------------------- what anybody does

    function takeSeat(uint256 a, uint16 stage) external {
        address account = who[a % ACCOUNTS];
        vm.prank(account);
        try ledger.joinRun(run, stage % STAGES) {
            seatTaken(account, stage % STAGES);
        } catch {}
    }

    /// @dev Of two sites; any number of accounts of each.
    function enlistOne(uint256 a, uint256 site, uint40 time) external {
        address account = who[a % ACCOUNTS];
        uint40 until = uint40(vm.getBlockTimestamp() + time % (2 * ROUND_TIMEOUT));
        send(account, abi.encodeCall(ledger.enlist, (run, ANY, until, named(run, account, 0x517e + site % 2))));
    }

    /// @dev Whoever is seated so was named by the sender's site, agreed to it, and sits where the sender said. Mostly
    /// those who hold a seat of the replica, and others that hold none.
    function seatSite(uint256 a, uint16 replica, uint256 first, uint256 second) external {
        address[] memory accounts = some(who[first % ACCOUNTS], who[second % ACCOUNTS]);
        for (uint16 stage = 0; stage < STAGES && a % 4 != 0; ++stage) {
            address holder = ledger.holderOf(run, replica % REPLICAS, stage);
            if (holder != address(0)) accounts[stage] = holder;
            for (uint256 i = 0; holder == address(0) && i < ACCOUNTS; ++i) {
                accounts[stage] = who[(first + stage * (1 + second) + i) % ACCOUNTS];
                if (!ledger.memberOf(run, accounts[stage]).holds && (stage == 0 || accounts[0] != accounts[1])) break;
            }
            if (a % 4 == 3) this.enlistOne(indexOf(accounts[stage]), first, 1);
        }
        bool[] memory held = new bool[](STAGES);
        bool[] memory agreed = new bool[](STAGES);
        address sender = a % 4 == 1 ? who[a % ACCOUNTS] : accounts[0];
        address site = ledger.enlistedOf(run, sender).site;
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            held[stage] = ledger.holderOf(run, replica % REPLICAS, stage) == accounts[stage];
            Enlisted memory e = ledger.enlistedOf(run, accounts[stage]);
            bool may = held[stage] || e.until >= vm.getBlockTimestamp();
            agreed[stage] = site != address(0) && e.site == site && may;
        }
        vm.prank(sender);
        try ledger.joinSite(run, replica % REPLICAS, accounts) {
            for (uint16 stage = 0; stage < STAGES; ++stage) {
                if (!agreed[stage]) fail("seated without being asked");
                requireSlot(run, accounts[stage], replica % REPLICAS, stage);
                if (!held[stage]) seatTaken(accounts[stage], stage);
            }
        } catch {}
    }

    function leaveSeat(uint256 a) external {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.leaveRun, (run)));
    }

    function move(uint256 a) external {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.moveDown, (run)));
    }

    function accuse(uint256 a, uint256 b) external {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.accuse, (run, who[b % ACCOUNTS])));
    }

    function answer(uint256 a) external {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.answer, (run)));
    }

    function evict(uint256 a) external {
        send(address(0xbad), abi.encodeCall(ledger.evict, (run, who[a % ACCOUNTS])));
    }

    function deal(uint16 replica) external {
        send(address(0xbad), abi.encodeCall(ledger.deal, (run, replica % REPLICAS)));
    }

    /// @dev Anybody says of anybody what it likes, some of it twice: a majority of the votes earned by work convicts, the
    /// accused counted in, and nobody else does.
    function judge(uint256 a, uint16 stage, uint256 signers, uint256 honest) external {
        stage %= STAGES;
        signers = uint256(keccak256(abi.encode(signers)));
        signers |= signers >> 16; // three of four
        Charge memory c = charge(run, stage, ledger.nextRound(run, stage), who[a % ACCOUNTS]);
        uint256 votes = 1; // the accused's
        uint256 against = 0;
        bytes memory entries = "";
        for (uint256 i = 0; i < ACCOUNTS; ++i) {
            bool says = (signers >> i) & 1 == 1;
            if ((honest >> i) & 1 == 1) entries = bytes.concat(entries, found(c, 1, some(who[i])));
            if (says) entries = bytes.concat(entries, found(c, 2, some(who[i])), found(c, 3, some(who[i])));
            if (who[i] == c.account || !hasEarned(stage, who[i])) continue;
            ++votes;
            if (says) ++against;
        }
        bool may = sat[c.account][stage] && !ledger.standingOf(run, c.account).convicted;
        bool enough = may && 2 * against > votes && 3 * against >= 2 * votes;
        if (enough && ++convicts > 3) return;
        (bool done,) = address(ledger).call(convictCall(c, entries));
        if (done != enough) fail(done ? "convicted by too few" : "not convicted by enough");
    }

    function wait(uint256 time) external {
        pass(time % 3 == 0 ? time % (8 * ROUND_TIMEOUT) : time % ROUND_TIMEOUT);
    }

    /// @dev All of the stage work that want to, and these sign.
    function work(uint16 stage, uint256 makers, uint256 signers) external {
        stage %= STAGES;
        pass(MIN_ROUND_TIME);
        (bool ok,) = submit(make(stage, makers), signers);
        ok;
    }

    /// @dev A seal that is valid now stays so, and counts the same, whatever one member does before it is included.
    function spoil(uint16 stage, uint256 makers, uint256 villain, uint256 deed) external {
        stage %= STAGES;
        if (votersOf(stage) == 0 || !earned(stage)) return; // in a stage's first round whoever joins votes
        pass(ROUND_TIMEOUT);
        Work[] memory works = make(stage, makers);
        Seal memory s = signedBy(sealOf(run, stage, works), works, signersOf(stage, type(uint256).max));
        uint256 snapshot = vm.snapshotState();
        (bool valid,) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        if (!valid) return;
        bytes32 digest = ledger.head(run, stage);
        vm.revertToState(snapshot);
        address account = who[villain % ACCOUNTS];
        Member memory m = ledger.memberOf(run, account);
        if (m.holds && m.stage == stage && votersOf(stage) == 1 << m.replica) return; // nobody's seal but its own
        for (uint256 k = 0; k < 6; ++k) {
            bool held = ledger.memberOf(run, account).holds;
            send(account, act(account, stage, uint8(deed >> (8 * k)) % 6));
            if (!held && ledger.memberOf(run, account).holds) seatTaken(account, stage);
            pass(1);
        }
        // Nor does it matter that the others convict it for that.
        if (deed >> 252 == 0 && convicts < 3) {
            Charge memory c = charge(run, stage, s.round, account);
            send(address(0xbad), convictCall(c, found(c, 2, signersOf(stage, type(uint256).max))));
            if (ledger.standingOf(run, account).convicted) ++convicts;
        }
        (valid,) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        if (valid && ledger.head(run, stage) == digest) note(stage, works);
        else fail("a valid seal was spoiled");
    }

    // --------------------------------------------------------------------------------------------- what must hold

    /// @dev Seats, bitmaps and members say the same; an account has one seat.
    function checkSeats() external view {
        uint256 seats = 0;
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            (uint64 seated,,,,) = ledger.stageOf(run, stage);
            for (uint16 replica = 0; replica < REPLICAS; ++replica) {
                address account = ledger.holderOf(run, replica, stage);
                vm.assertEq((seated >> replica) & 1, account == address(0) ? 0 : 1, "seated");
                if (account == address(0)) continue;
                ++seats;
                requireSlot(run, account, replica, stage);
            }
        }
        uint256 holders = 0;
        for (uint256 i = 0; i < ACCOUNTS; ++i) if (ledger.memberOf(run, who[i]).holds) ++holders;
        vm.assertEq(holders, seats, "holders");
    }

    /// @dev Who was convicted has no seat, now or later.
    function checkConvicts() external view {
        for (uint256 i = 0; i < ACCOUNTS; ++i) {
            vm.assertFalse(ledger.standingOf(run, who[i]).convicted && ledger.memberOf(run, who[i]).holds);
        }
    }

    /// @dev Who has a vote was counted by the stage's last eight non-empty seals while it had this seat; where nobody
    /// was, all are voters.
    function checkVotes() external view {
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            (, uint64 once, uint64 twice, uint32 seals,) = ledger.stageOf(run, stage);
            vm.assertEq(seals, nonEmpty[stage], "seals");
            for (uint16 replica = 0; replica < REPLICAS; ++replica) {
                address account = ledger.holderOf(run, replica, stage);
                uint256 times = account == address(0) ? 0 : countsOf(stage, account);
                vm.assertEq((once >> replica) & 1, times >= 1 ? 1 : 0, "once");
                vm.assertEq((twice >> replica) & 1, times >= 2 ? 1 : 0, "twice");
            }
            uint64 votes = votersOf(stage);
            uint64 fair = nonEmpty[stage] >= 8 && twice != 0 ? twice : once;
            if (fair != 0) vm.assertEq(votes, fair, "voters");
        }
        vm.assertEq(bytes(broken), "");
    }

    /// @dev From wherever the others left it, outsiders alone bring the run to its next round, and in bounded time:
    /// those who have seats do no more than answer.
    function checkRecovery() external {
        (bool open, uint32 round,) = ledger.openRound(run);
        if (!open) return;
        uint256 start = vm.getBlockTimestamp();
        uint32 later = round;
        for (uint256 k = 0; k < 3 && later == round; ++k) {
            this.recover(k);
            (, later,) = ledger.openRound(run);
        }
        vm.assertLt(round, later, "outsiders reach the next round");
        vm.assertLt(vm.getBlockTimestamp() - start, 72 * ROUND_TIMEOUT, "time");
    }

    /// @dev Takes what is free or forfeit for fresh accounts, and seals what they can.
    function recover(uint256 turn) external {
        pass(33 * ROUND_TIMEOUT);
        for (uint256 again = 0; again < 2; ++again) {
            for (uint256 i = 0; i < ACCOUNTS; ++i) {
                send(address(0xbad), abi.encodeCall(ledger.accuse, (run, who[i])));
                send(who[i], abi.encodeCall(ledger.answer, (run)));
            }
            pass(EVICTION_TIME);
            for (uint256 i = 0; i < ACCOUNTS; ++i) send(address(0xbad), abi.encodeCall(ledger.evict, (run, who[i])));
            pass(EVICTION_TIME + 1);
        }
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            address[] memory fresh = new address[](REPLICAS);
            for (uint256 i = 0; i < REPLICAS; ++i) {
                uint256 key = 0xf000 + turn * 16 + stage * REPLICAS + i;
                fresh[i] = vm.addr(key);
                keyOf[fresh[i]] = key;
                register(fresh[i], 0xe000 + key);
                send(fresh[i], abi.encodeCall(ledger.joinRun, (run, stage)));
            }
            (, uint32 round,) = ledger.openRound(run);
            if (ledger.nextRound(run, stage) != round) continue;
            Seal memory s = signedBy(sealOf(run, stage, new Work[](0)), new Work[](0), fresh);
            address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        }
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function send(address from, bytes memory call) internal {
        vm.prank(from);
        (bool ok,) = address(ledger).call(call);
        ok;
    }

    function act(address account, uint16 stage, uint256 kind) internal view returns (bytes memory) {
        if (kind == 0) return abi.encodeCall(ledger.leaveRun, (run));
        if (kind == 1) return abi.encodeCall(ledger.joinRun, (run, stage));
        if (kind == 2) return abi.encodeCall(ledger.moveDown, (run));
        if (kind == 3) return abi.encodeCall(ledger.deal, (run, uint16(uint160(account)) % REPLICAS));
        if (kind == 4) return abi.encodeCall(ledger.evict, (run, who[uint160(account) % ACCOUNTS]));
        return abi.encodeCall(ledger.accuse, (run, who[uint160(account) % ACCOUNTS]));
    }

    function make(uint16 stage, uint256 wanted) internal view returns (Work[] memory works) {
        Work[] memory found = new Work[](REPLICAS);
        uint256 count = 0;
        uint32 changed = ledger.nextRound(run, stage) + 1;
        for (uint16 replica = 0; replica < REPLICAS; ++replica) {
            if ((wanted >> replica) & 1 == 0) continue;
            for (uint256 i = 0; i < ACCOUNTS; ++i) {
                Member memory m = ledger.memberOf(run, who[i]);
                if (m.stage != stage || m.joinedAt == 0) continue;
                bool makes = m.changedRound == changed ? m.formerReplica == replica : m.holds && m.replica == replica;
                if (!makes || (count > 0 && found[count - 1].replica == replica)) continue;
                found[count] = workOf(run, who[i]);
                found[count++].replica = replica;
            }
        }
        works = new Work[](count);
        for (uint256 i = 0; i < count; ++i) works[i] = found[i];
    }

    function signersOf(uint16 stage, uint256 wanted) internal view returns (address[] memory list) {
        address[] memory found = new address[](ACCOUNTS);
        uint256 count = 0;
        for (uint256 i = 0; i < ACCOUNTS; ++i) {
            Member memory m = ledger.memberOf(run, who[i]);
            if (m.stage == stage && m.joinedAt != 0 && (wanted >> i) & 1 == 1) found[count++] = who[i];
        }
        list = new address[](count);
        for (uint256 i = 0; i < count; ++i) list[i] = found[i];
    }

    function submit(Work[] memory works, uint256 signers) internal returns (bool ok, Seal memory s) {
        uint16 stage = works.length > 0 ? works[0].stage : 0;
        s = signedBy(sealOf(run, stage, works), works, signersOf(stage, signers | (signers >> 16)));
        (ok,) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        if (ok) note(stage, works);
    }

    function seatTaken(address account, uint16 stage) internal {
        satSince[account] = nonEmpty[stage];
        sat[account][stage] = true;
    }

    /// @dev Whether it holds a seat of the stage with a vote that it worked for, recounted.
    function hasEarned(uint16 stage, address account) internal view returns (bool) {
        Member memory m = ledger.memberOf(run, account);
        if (!m.holds || m.stage != stage) return false;
        uint256 least = 1;
        for (uint256 i = 0; nonEmpty[stage] >= 8 && i < ACCOUNTS; ++i) {
            m = ledger.memberOf(run, who[i]);
            if (m.holds && m.stage == stage && countsOf(stage, who[i]) >= 2) least = 2;
        }
        return countsOf(stage, account) >= least;
    }

    function note(uint16 stage, Work[] memory works) internal {
        if (works.length == 0) return;
        uint256 seal = nonEmpty[stage]++;
        for (uint256 i = 0; i < works.length; ++i) counted[stage][seal][works[i].account] = true;
    }

    /// @dev Recounts from what was sealed: since the account took its seat, in the last eight non-empty seals.
    function countsOf(uint16 stage, address account) internal view returns (uint256 times) {
        uint256 from = nonEmpty[stage] > 8 ? nonEmpty[stage] - 8 : 0;
        if (satSince[account] > from) from = satSince[account];
        for (uint256 seal = from; seal < nonEmpty[stage]; ++seal) if (counted[stage][seal][account]) ++times;
    }

    function votersOf(uint16 stage) internal view returns (uint64 voters) {
        (voters,) = ledger.quorumOf(run, stage);
    }

    function earned(uint16 stage) internal view returns (bool) {
        (, uint64 once,,,) = ledger.stageOf(run, stage);
        return once != 0;
    }

    function indexOf(address account) internal view returns (uint256 i) {
        while (who[i] != account) ++i;
    }

    function fail(string memory what) internal {
        if (bytes(broken).length == 0) broken = what;
    }
}

/// @notice What holds in every state that members and strangers can bring a run to.
contract InvariantsTest {
    Handler internal handler;

    function setUp() public {
        handler = new Handler();
    }

    function targetContracts() public view returns (address[] memory list) {
        list = new address[](1);
        list[0] = address(handler);
    }

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    function targetSelectors() public view returns (FuzzSelector[] memory list) {
        bytes4[] memory deeds = new bytes4[](21);
        (deeds[0], deeds[1], deeds[2]) = (Handler.takeSeat.selector, Handler.leaveSeat.selector, Handler.move.selector);
        (deeds[3], deeds[4], deeds[5]) = (Handler.accuse.selector, Handler.answer.selector, Handler.evict.selector);
        (deeds[6], deeds[7], deeds[8]) = (Handler.deal.selector, Handler.wait.selector, Handler.spoil.selector);
        (deeds[9], deeds[10]) = (Handler.judge.selector, Handler.judge.selector);
        for (uint256 i = 11; i < 16; ++i) deeds[i] = Handler.work.selector;
        (deeds[16], deeds[17]) = (Handler.enlistOne.selector, Handler.enlistOne.selector);
        for (uint256 i = 18; i < 21; ++i) deeds[i] = Handler.seatSite.selector;
        list = new FuzzSelector[](1);
        list[0] = FuzzSelector(address(handler), deeds);
    }

    function invariant_seatsVotesAndSeals() public view {
        handler.checkSeats();
        handler.checkVotes();
        handler.checkConvicts();
    }

    function afterInvariant() public {
        handler.checkRecovery();
    }
}
