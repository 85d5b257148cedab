// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Counts} from "./Counts.sol";
import {Enlisted} from "./Sites.sol";

/// @notice The part of a run's manifest that the ledger knows. Times are in seconds.
struct RunConfig {
    bytes32 manifest; // sha256
    uint32 rounds;
    uint16 stages;
    uint16 minReplicas;
    uint16 maxReplicas;
    uint16 quorumNumerator;
    uint16 quorumDenominator;
    uint32 minRoundTime;
    uint32 roundTimeout;
    uint32 evictionTime;
    uint32 maxInnerSteps; // of a round
    uint64 startTime; // round 0 opens no earlier
    uint64 tokensPerStep;
}

/// @dev One word: all that a seal needs of the config.
struct Terms {
    uint32 rounds;
    uint16 stages;
    uint16 minReplicas;
    uint16 maxReplicas;
    uint16 quorumNumerator;
    uint16 quorumDenominator;
    uint32 minRoundTime;
    uint32 roundTimeout;
    uint32 evictionTime;
    uint32 maxInnerSteps;
}

/// @dev One word.
struct Progress {
    uint40 openedAt; // of the open round, possibly to come; 0 until round 0 is to open
    uint32 openRound; // equals the number of rounds once the run is finished
    uint64 sealedStages; // a bit for each stage that has sealed the open round
    uint64 complete; // a bit for each replica with a holder in every stage
    uint56 draw; // what the digests of all seals so far come to: chance that no sender of a transaction chooses
}

struct Replica {
    uint8 held; // seats
    uint32 since; // the open round when it was last dealt or became complete after a break
    uint32 brokenRound; // the open round when it was last complete
}

/// @dev One word.
struct Activity {
    uint64 seated; // a bit for each replica whose seat is held
    uint64 changed; // a bit for each whose first holder since the stage's newest seal lost it, or had another before
    uint32 nonEmpty; // how many of its seals counted anything
    uint16 empties; // how many since then did not (at most 65535)
    uint40 workedAt; // the time of its newest non-empty seal; 0: none
}

struct Stage {
    bytes32 head; // the digest of its newest seal; before the first one the weights hash of V[s,0]
    uint256[2] counts; // see Counts
    Activity activity;
    mapping(uint256 replica => address) holders;
    mapping(uint256 pair => uint256) tags; // the lower 128 bits of two holders: a seal reads half as many words
    mapping(uint256 replica => Return) returns_;
}

/// @notice Who may take a seat that is free, and nobody else, until then; for nobody it is just for the second in which
/// it became free, so that no two accounts can hand a seat on without anybody else's chance.
struct Return {
    address account;
    uint40 until;
}

/// @notice Whether a holder was asked if it is still there, and what is an answer.
enum Asked {
    No,
    Presence, // a transaction answers, and so does being counted
    Work, // only being counted answers
    WorkAnswered // it said that it is there, which is not enough
}

/// @dev One word.
struct Member {
    bool holds;
    Asked asked;
    bool formerVote; // whether it had a vote when it left in round changedRound - 1
    uint8 replica; // the last one, where `holds` is false
    uint8 stage; // likewise
    uint8 formerReplica; // whose record of round changedRound - 1 it makes; 255: none
    uint32 changedRound; // 1 + its stage's next round when its seat last changed; 0: never
    uint32 since; // how many non-empty seals its stage had when it came; while it holds no seat: those without it
    uint32 joinedRound; // its stage's next round when it first took a seat there
    uint40 joinedAt; // when that was
    uint40 askedAt;
    uint32 askedSeal; // how many non-empty seals the stage had then
}

/// @dev One word.
struct Standing {
    uint64 stages; // a bit for each stage in which the account ever held a seat
    bool convicted; // then it never holds one again
}

struct Run {
    Terms terms;
    Progress progress;
    address creator;
    uint40 startedAt; // when round 0 opened
    uint64 staffed; // a bit for each replica that was ever complete: leaving one stage takes no vote in another
    RunConfig config;
    mapping(uint256 stage => Stage) stages;
    mapping(uint256 replica => Replica) replicas;
    mapping(address account => Member) members;
    mapping(address account => Standing) standings;
    mapping(address account => Enlisted) enlisted;
}

/// @title The state of one run: its seats, its rounds, and whose signatures count
library Runs {
    using Counts for uint256;

    uint256 internal constant MAX_STAGES = 64; // the width of Progress.sealedStages
    uint256 internal constant MAX_REPLICAS = 64; // bounds the gas of a seal
    uint256 internal constant YOUNG_SEALS = 8; // non-empty seals until a vote takes two counts
    uint256 internal constant IDLE_SEALS = 8; // non-empty seals without a count after which a seat is forfeit
    uint256 internal constant GRACE_SEALS = 16; // more of them until a forfeit seat whose holder answered can be taken
    uint256 internal constant STALLED_TIMEOUTS = 32; // without a non-empty seal after which a stage's seats are forfeit,
    uint256 internal constant LATE_TIMEOUTS = 8; // if its round has been open for so long,
    uint256 internal constant BARREN_SEALS = 8; // or so many of its seals in a row were empty
    uint256 internal constant OVERDUE_TIMEOUTS = 4; // that a round is open until a majority of the votes is enough
    uint256 internal constant UNCOUNTED_ROUNDS = 3; // after which a replica is dealt, and a holder may be asked
    uint256 internal constant MAX_NAME_BYTES = 64;
    uint256 internal constant MAX_URI_BYTES = 2048;
    uint256 private constant MAX_ROUNDS = 10_000_000;
    uint256 private constant MAX_TIME = 30 days;
    uint256 private constant MAX_INNER_STEPS = 100_000;
    uint256 private constant MAX_START_TIME = (1 << 36) - 1; // in the year 4147
    uint256 private constant MAX_TOKENS_PER_STEP = (1 << 40) - 1;
    uint256 private constant MAX_TOKENS = (1 << 63) - 1; // that a whole run can count
    uint8 internal constant NO_REPLICA = type(uint8).max;
    /// @dev A bit for each ASCII letter and digit, and for those and `-`, `.`, `_`.
    uint256 private constant ALPHANUMERIC = (0x3ff << 48) | (0x3ffffff << 65) | (0x3ffffff << 97);
    uint256 private constant NAME_CHARACTERS = ALPHANUMERIC | (1 << 45) | (1 << 46) | (1 << 95);

    error InvalidConfig(string field);
    error NotHolding(address account);
    error NoFreeSeat(uint16 stage);
    error NoLowerSeat(uint16 replica, uint16 stage);
    error RoundNotOpen();
    error RunFinished();

    /// @dev Every field, so that no run costs its readers more than an honest one, and none of their sums overflows.
    function check(RunConfig calldata config) internal pure {
        _require(config.manifest != 0, "manifest");
        _within(config.rounds, MAX_ROUNDS, "rounds");
        _within(config.stages, MAX_STAGES, "stages");
        _within(config.maxReplicas, MAX_REPLICAS, "maxReplicas");
        _within(config.minReplicas, config.maxReplicas, "minReplicas");
        _within(config.quorumNumerator, config.quorumDenominator, "quorum");
        _require(2 * uint256(config.quorumNumerator) > config.quorumDenominator, "quorum");
        _within(config.roundTimeout, MAX_TIME, "roundTimeout");
        _within(config.minRoundTime, config.roundTimeout, "minRoundTime");
        _within(config.evictionTime, MAX_TIME, "evictionTime");
        _within(config.maxInnerSteps, MAX_INNER_STEPS, "maxInnerSteps");
        _require(config.startTime <= MAX_START_TIME, "startTime");
        _within(config.tokensPerStep, MAX_TOKENS_PER_STEP, "tokensPerStep");
        uint256 steps = uint256(config.rounds) * config.maxReplicas * config.maxInnerSteps;
        _require(steps * config.tokensPerStep <= MAX_TOKENS, "tokensPerStep");
    }

    function _within(uint256 value, uint256 most, string memory field) private pure {
        _require(value != 0 && value <= most, field);
    }

    function _require(bool met, string memory field) private pure {
        if (!met) revert InvalidConfig(field);
    }

    /// @notice A name is 1 to 64 ASCII letters, digits, `-`, `.` and `_`, the first a letter or digit: what can be shown
    /// anywhere as it is.
    function checkName(bytes calldata name) internal pure {
        if (name.length == 0 || name.length > MAX_NAME_BYTES) revert InvalidConfig("name");
        uint256 allowed = ALPHANUMERIC;
        for (uint256 i = 0; i < name.length; ++i) {
            if ((allowed >> uint8(name[i])) & 1 == 0) revert InvalidConfig("name");
            allowed = NAME_CHARACTERS;
        }
    }

    // ------------------------------------------------------------------------------------------------- seats

    /// @notice The account's membership, which must hold a seat now.
    function holder(Run storage r, address account) internal view returns (Member storage member) {
        member = r.members[account];
        if (!member.holds) revert NotHolding(account);
    }

    /// @notice Whether a seat that is held is the account's.
    function isHolder(Stage storage s, uint256 replica, address account) internal view returns (bool) {
        return uint128(s.tags[replica >> 1] >> (128 * (replica & 1))) == uint128(uint160(account));
    }

    /// @notice The lowest replica where the account may take the seat of `stage`; 64 where there is none.
    function freeSeat(Run storage r, uint256 stage, address account) internal view returns (uint256 replica) {
        Stage storage s = r.stages[stage];
        uint256 free = ~uint256(s.activity.seated) & ((1 << r.terms.maxReplicas) - 1);
        for (; free != 0; free &= free - 1) {
            replica = free.lowest();
            if (_isOpenTo(s, replica, account)) return replica;
        }
        return MAX_REPLICAS;
    }

    /// @notice Whether the account may take the seat.
    function isFree(Run storage r, uint256 replica, uint256 stage, address account) internal view returns (bool) {
        Stage storage s = r.stages[stage];
        return (s.activity.seated >> replica) & 1 == 0 && _isOpenTo(s, replica, account);
    }

    /// @notice Whether an evicted account's seat of `stage` still waits for it.
    function mayReturn(Run storage r, Member storage member, address account) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        Return storage kept = s.returns_[member.replica];
        return kept.account == account && kept.until >= block.timestamp && (s.activity.seated >> member.replica) & 1 == 0;
    }

    /// @notice Gives the account a seat that is free. Leaving and joining again wipes nothing. The first taker of a seat
    /// that was free at the stage's newest seal can make its record at once, if it had no other seat since.
    function take(Run storage r, Member storage member, address account, uint256 replica, uint256 stage) internal {
        Stage storage s = r.stages[stage];
        uint32 next = nextRound(r, stage);
        if (member.joinedAt == 0 || member.stage != stage) {
            (member.changedRound, member.joinedRound) = (0, next); // of the former stage
            member.joinedAt = uint40(block.timestamp);
            member.asked = Asked.No;
            member.stage = uint8(stage);
            r.standings[account].stages |= uint64(1 << stage);
        }
        uint256 idle = member.since;
        member.since = s.activity.nonEmpty > idle ? uint32(s.activity.nonEmpty - idle) : 0;
        member.holds = true;
        member.replica = uint8(replica);
        if (member.changedRound == next + 1) _change(r, s, replica);
        _sit(r, s, account, replica);
    }

    /// @notice Takes the member's seat away. Until its stage's next seal it may still be listed and vote.
    /// @return counted whether one of the last eight non-empty seals counted it
    function release(Run storage r, Member storage member) internal returns (bool counted) {
        Stage storage s = r.stages[member.stage];
        uint256 votes = voters(r, member.stage);
        _note(r, s, member);
        if ((votes >> member.replica) & 1 == 1) member.formerVote = true;
        counted = _countsOf(s, member.replica) != 0;
        member.since = counted ? 0 : s.activity.nonEmpty - member.since;
        member.holds = false;
        // Coming back says that it is there, but does no work.
        member.asked = member.asked == Asked.No || member.asked == Asked.Presence ? Asked.No : Asked.WorkAnswered;
        _setCounts(s, member.replica, 0);
        _stand(r, s, member.replica);
    }

    /// @notice Moves a holder to a free seat of its stage.
    function move(Run storage r, Member storage member, address account, uint256 replica) internal {
        Stage storage s = r.stages[member.stage];
        uint256 value = _countsOf(s, member.replica);
        _note(r, s, member);
        _setCounts(s, member.replica, 0);
        _stand(r, s, member.replica);
        member.replica = uint8(replica);
        _setCounts(s, replica, value);
        _change(r, s, replica);
        _sit(r, s, account, replica);
    }

    /// @notice Lets the holders of two seats of a stage change places.
    function swap(Run storage r, uint256 stage, uint256 a, uint256 b) internal {
        Stage storage s = r.stages[stage];
        (address first, address second) = (s.holders[a], s.holders[b]);
        (uint256 countsA, uint256 countsB) = (_countsOf(s, a), _countsOf(s, b));
        _note(r, s, r.members[first]);
        _note(r, s, r.members[second]);
        _reseat(r, s, first, b, countsA);
        _reseat(r, s, second, a, countsB);
        r.replicas[b].since = r.progress.openRound;
    }

    // ------------------------------------------------------------------------------------------------ rounds

    function requireOpen(Run storage r) internal view {
        if (r.progress.openedAt == 0) revert RoundNotOpen();
        if (r.progress.openRound == r.terms.rounds) revert RunFinished();
    }

    /// @notice The stage's lowest unsealed round. Stages seal a round in any order, but never run ahead by another.
    function nextRound(Run storage r, uint256 stage) internal view returns (uint32) {
        return r.progress.openRound + uint32((r.progress.sealedStages >> stage) & 1);
    }

    /// @dev In one go; the compiler writes such a word in several.
    function write(Progress storage to, Progress memory p) internal {
        uint256 word = uint256(p.openedAt) | (uint256(p.openRound) << 40) | (uint256(p.sealedStages) << 72)
            | (uint256(p.complete) << 136) | (uint256(p.draw) << 200);
        assembly ("memory-safe") {
            sstore(to.slot, word)
        }
    }

    /// @dev Likewise.
    function write(Activity storage to, Activity memory a) internal {
        uint256 word = uint256(a.seated) | (uint256(a.changed) << 64) | (uint256(a.nonEmpty) << 128)
            | (uint256(a.empties) << 160) | (uint256(a.workedAt) << 176);
        assembly ("memory-safe") {
            sstore(to.slot, word)
        }
    }

    // ------------------------------------------------------------------------------------------------- votes

    /// @notice The seats whose holders were counted in at least `times` (1 or 2) of the last eight non-empty seals.
    function countedSeats(Stage storage s, uint256 maxReplicas, uint256 times) internal view returns (uint256 seats) {
        uint256 word = s.counts[0];
        seats = times == 1 ? word.once() : word.twice();
        if (maxReplicas > 32) {
            word = s.counts[1];
            seats |= (times == 1 ? word.once() : word.twice()) << 32;
        }
    }

    /// @notice The seats that have a vote: those counted twice in the last eight non-empty seals; where there is none, or
    /// there were not yet eight, those counted once.
    function earnedVotes(Stage storage s, uint256 maxReplicas, uint256 nonEmpty) internal view returns (uint256 seats) {
        if (nonEmpty >= YOUNG_SEALS) seats = countedSeats(s, maxReplicas, 2);
        if (seats == 0) seats = countedSeats(s, maxReplicas, 1);
    }

    /// @notice The seats that vote: the ones with an earned vote; where there are none, those in replicas that were ever
    /// complete, or else all.
    function electorate(Run storage r, uint256 earned, uint256 seated) internal view returns (uint256) {
        if (earned != 0) return earned;
        uint256 staffed = seated & r.staffed;
        return staffed != 0 ? staffed : seated;
    }

    function voters(Run storage r, uint256 stage) internal view returns (uint256) {
        Stage storage s = r.stages[stage];
        Activity memory a = s.activity;
        return electorate(r, earnedVotes(s, r.terms.maxReplicas, a.nonEmpty), a.seated);
    }

    /// @notice The run's fraction of so many votes, but of no fewer than minReplicas; rounded up. A majority at least.
    function quorum(Terms memory terms, uint256 votes) internal pure returns (uint256) {
        if (votes < terms.minReplicas) votes = terms.minReplicas;
        return (votes * terms.quorumNumerator + terms.quorumDenominator - 1) / terms.quorumDenominator;
    }

    /// @notice The seats whose holders may convict the account: all with an earned vote of the stage but its own. And how
    /// many of them it takes: as many as a seal that is not overdue, where the account counts as one vote more even if it
    /// has none (any more), so that nobody can be convicted by who would be outvoted with it.
    function jury(Run storage r, uint256 stage, address account) internal view returns (uint256 seats, uint256 needed) {
        Stage storage s = r.stages[stage];
        seats = earnedVotes(s, r.terms.maxReplicas, s.activity.nonEmpty);
        Member storage member = r.members[account];
        if (member.holds && member.stage == stage) seats &= ~(1 << member.replica);
        needed = quorum(r.terms, seats.size() + 1);
    }

    // --------------------------------------------------------------------------------------------- idleness

    /// @notice How many non-empty seals of its stage in a row have not counted the seat (8 stands for more), and how
    /// many rounds, with the empty ones since.
    function uncounted(Run storage r, uint256 stage, uint256 replica)
        internal
        view
        returns (uint256 seals, uint256 rounds)
    {
        Stage storage s = r.stages[stage];
        seals = _countsOf(s, replica).age();
        rounds = seals + s.activity.empties;
    }

    /// @notice Whether only work keeps the seat: its holder was not counted for IDLE_SEALS non-empty seals, or its stage
    /// is stalled.
    function isForfeit(Run storage r, Member storage member) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        if (_countsOf(s, member.replica) == 0 && s.activity.nonEmpty >= uint256(member.since) + IDLE_SEALS) return true;
        return isStalled(r, member);
    }

    /// @notice Whether the holder of a forfeit seat that said that it is there loses it: it was not counted for another
    /// GRACE_SEALS non-empty seals, or its stage is stalled. It was not counted since it was asked.
    function isLost(Run storage r, Member storage member) internal view returns (bool) {
        uint256 nonEmpty = r.stages[member.stage].activity.nonEmpty;
        return nonEmpty >= uint256(member.askedSeal) + GRACE_SEALS || isStalled(r, member);
    }

    /// @notice Whether the member's stage had no non-empty seal for STALLED_TIMEOUTS round timeouts while the member was
    /// there, and that is its own fault: it has not sealed a round that was open for long, or its seals are empty.
    function isStalled(Run storage r, Member storage member) internal view returns (bool) {
        Activity memory a = r.stages[member.stage].activity;
        Progress memory p = r.progress;
        uint256 timeout = r.terms.roundTimeout;
        uint256 from = a.workedAt > r.startedAt ? a.workedAt : r.startedAt;
        if (member.joinedAt > from) from = member.joinedAt;
        if (block.timestamp <= from + STALLED_TIMEOUTS * timeout) return false;
        if (a.empties >= BARREN_SEALS) return true;
        bool owes = (p.sealedStages >> member.stage) & 1 == 0;
        return owes && block.timestamp > p.openedAt + LATE_TIMEOUTS * timeout;
    }

    /// @notice Whether a seal since the last question counted the member, as far as the last eight non-empty ones tell.
    function countedSinceAsked(Run storage r, Member storage member) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        uint256 value = _countsOf(s, member.replica);
        return value != 0 && value.age() < s.activity.nonEmpty - member.askedSeal;
    }

    // ----------------------------------------------------------------------------------------------- helpers

    /// @dev Whether a seat that nobody holds waits for nobody else.
    function _isOpenTo(Stage storage s, uint256 replica, address account) private view returns (bool) {
        Return storage kept = s.returns_[replica];
        return kept.until < block.timestamp || kept.account == account;
    }

    /// @dev Remembers whose record of its stage's next round the member makes: that of its seat, if it was the first to
    /// hold that since the stage's newest seal. Nothing can be under way before round 0 opens.
    function _note(Run storage r, Stage storage s, Member storage member) private {
        uint32 changed = nextRound(r, member.stage) + 1;
        if (member.changedRound == changed || r.progress.openedAt == 0) return;
        member.changedRound = changed;
        member.formerReplica = (s.activity.changed >> member.replica) & 1 == 0 ? member.replica : NO_REPLICA;
        member.formerVote = false;
    }

    /// @dev Whoever holds the seat from now on does not make its record of the stage's next round.
    function _change(Run storage r, Stage storage s, uint256 replica) private {
        if (r.progress.openedAt != 0) s.activity.changed |= uint64(1 << replica);
    }

    function _reseat(Run storage r, Stage storage s, address account, uint256 replica, uint256 value) private {
        _put(s, replica, account);
        _setCounts(s, replica, value);
        _change(r, s, replica);
        r.members[account].replica = uint8(replica);
    }

    function _sit(Run storage r, Stage storage s, address account, uint256 replica) private {
        _put(s, replica, account);
        s.activity.seated |= uint64(1 << replica);
        Replica storage seats = r.replicas[replica];
        if (++seats.held < r.terms.stages) return;
        r.progress.complete |= uint64(1 << replica);
        r.staffed |= uint64(1 << replica);
        // Whoever leaves and comes back does not put off that the replica is dealt.
        if (r.progress.openRound > seats.brokenRound + 1) seats.since = r.progress.openRound;
    }

    function _stand(Run storage r, Stage storage s, uint256 replica) private {
        _put(s, replica, address(0));
        _change(r, s, replica);
        s.activity.seated &= ~uint64(1 << replica);
        s.returns_[replica] = Return(address(0), uint40(block.timestamp));
        Replica storage seats = r.replicas[replica];
        if (seats.held == r.terms.stages) seats.brokenRound = r.progress.openRound;
        --seats.held;
        r.progress.complete &= ~uint64(1 << replica);
    }

    function _put(Stage storage s, uint256 replica, address account) private {
        s.holders[replica] = account;
        uint256 shift = 128 * (replica & 1);
        uint256 others = s.tags[replica >> 1] & ~(uint256(type(uint128).max) << shift);
        s.tags[replica >> 1] = others | (uint256(uint128(uint160(account))) << shift);
    }

    function _countsOf(Stage storage s, uint256 replica) private view returns (uint256) {
        return s.counts[replica >> 5].get(replica);
    }

    function _setCounts(Stage storage s, uint256 replica, uint256 value) private {
        s.counts[replica >> 5] = s.counts[replica >> 5].set(replica, value);
    }
}
