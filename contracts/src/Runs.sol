// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Counts} from "./Counts.sol";

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
    uint32 since; // the open round when its holders last changed
}

/// @dev One word.
struct Activity {
    uint64 seated; // a bit for each replica whose seat is held
    uint64 changed; // a bit for each whose holder came, went or moved since the stage's newest seal
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

/// @notice A seat that an evicted member may take again, and nobody else, until then.
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
    bool formerVote; // what it had when it left in round changedRound - 1
    uint8 replica; // the last one, where `holds` is false
    uint8 stage; // likewise
    uint8 formerReplica; // before its first change in round changedRound - 1
    uint32 changedRound; // 1 + its stage's next round when its seat last changed; 0: never
    uint32 since; // from which non-empty seal of its stage on it has not been counted; while it holds no seat: their number
    uint32 joinedRound; // its stage's next round when it took a seat
    uint40 joinedAt;
    uint40 askedAt;
    uint32 askedSeal; // how many non-empty seals the stage had then
}

struct Run {
    Terms terms;
    Progress progress;
    address creator;
    uint40 startedAt; // when round 0 opened
    RunConfig config;
    mapping(uint256 stage => Stage) stages;
    mapping(uint256 replica => Replica) replicas;
    mapping(address account => Member) members;
}

/// @title The state of one run: its seats, its rounds, and whose signatures count
library Runs {
    using Counts for uint256;

    uint256 internal constant MAX_STAGES = 64; // the width of Progress.sealedStages
    uint256 internal constant MAX_REPLICAS = 64; // bounds the gas of a seal
    uint256 internal constant IDLE_SEALS = 24; // non-empty seals without a count after which a seat can be taken
    uint256 internal constant STALLED_TIMEOUTS = 32; // without a non-empty seal after which a stage's seats can be taken
    uint256 internal constant OVERDUE_TIMEOUTS = 4; // that a round is open until a majority of the votes is enough
    uint256 internal constant UNCOUNTED_ROUNDS = 3; // after which a replica is dealt, and a holder may be asked
    uint256 internal constant MAX_NAME_BYTES = 64;
    /// @dev A bit for each ASCII letter and digit, and for those and `-`, `.`, `_`.
    uint256 private constant ALPHANUMERIC = (0x3ff << 48) | (0x3ffffff << 65) | (0x3ffffff << 97);
    uint256 private constant NAME_CHARACTERS = ALPHANUMERIC | (1 << 45) | (1 << 46) | (1 << 95);

    error InvalidConfig(string field);
    error NotHolding(address account);
    error NoFreeSeat(uint16 stage);
    error NoLowerSeat(uint16 replica, uint16 stage);
    error RoundNotOpen();
    error RunFinished();

    function check(RunConfig calldata config) internal pure {
        if (config.rounds == 0 || config.rounds == type(uint32).max) revert InvalidConfig("rounds");
        if (config.stages == 0 || config.stages > MAX_STAGES) revert InvalidConfig("stages");
        if (config.maxReplicas == 0 || config.maxReplicas > MAX_REPLICAS) revert InvalidConfig("maxReplicas");
        if (config.minReplicas == 0 || config.minReplicas > config.maxReplicas) revert InvalidConfig("minReplicas");
        if (config.quorumNumerator == 0 || config.quorumNumerator > config.quorumDenominator) {
            revert InvalidConfig("quorum");
        }
        if (config.minRoundTime == 0 || config.minRoundTime > config.roundTimeout) revert InvalidConfig("minRoundTime");
        if (config.evictionTime == 0) revert InvalidConfig("evictionTime");
        if (config.maxInnerSteps == 0) revert InvalidConfig("maxInnerSteps");
        if (config.startTime > type(uint40).max) revert InvalidConfig("startTime");
        if (config.tokensPerStep == 0) revert InvalidConfig("tokensPerStep");
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
            Return storage kept = s.returns_[replica];
            if (kept.until < block.timestamp || kept.account == account) return replica;
        }
        return MAX_REPLICAS;
    }

    /// @notice Whether an evicted account's seat of `stage` still waits for it.
    function mayReturn(Run storage r, Member storage member, address account) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        Return storage kept = s.returns_[member.replica];
        return kept.account == account && kept.until >= block.timestamp && (s.activity.seated >> member.replica) & 1 == 0;
    }

    /// @notice Gives the account a seat that is free.
    function take(Run storage r, Member storage member, address account, uint256 replica, uint256 stage) internal {
        uint256 idle = member.since; // leaving and joining again wipes nothing
        Stage storage s = r.stages[stage];
        member.holds = true;
        member.asked = Asked.No;
        member.replica = uint8(replica);
        member.stage = uint8(stage);
        member.since = s.activity.nonEmpty > idle ? uint32(s.activity.nonEmpty - idle) : 0;
        member.joinedRound = nextRound(r, stage);
        member.joinedAt = uint40(block.timestamp);
        _sit(r, s, account, replica);
    }

    /// @notice Takes the member's seat away. Until its stage's next seal it may still be listed and vote.
    /// @return counted whether one of the last eight non-empty seals counted it
    function release(Run storage r, Member storage member) internal returns (bool counted) {
        Stage storage s = r.stages[member.stage];
        uint256 votes = voters(r, member.stage);
        _note(r, member);
        member.formerVote = (votes >> member.replica) & 1 == 1;
        uint256 value = _countsOf(s, member.replica);
        counted = value != 0;
        member.since = counted ? 0 : s.activity.nonEmpty - member.since;
        member.holds = false;
        member.asked = Asked.No;
        _setCounts(s, member.replica, 0);
        _stand(r, s, member.replica);
    }

    /// @notice Moves a holder to a free seat of its stage.
    function move(Run storage r, Member storage member, address account, uint256 replica) internal {
        Stage storage s = r.stages[member.stage];
        uint256 value = _countsOf(s, member.replica);
        _note(r, member);
        _setCounts(s, member.replica, 0);
        _stand(r, s, member.replica);
        member.replica = uint8(replica);
        _setCounts(s, replica, value);
        _sit(r, s, account, replica);
    }

    /// @notice Lets the holders of two seats of a stage change places.
    function swap(Run storage r, uint256 stage, uint256 a, uint256 b) internal {
        Stage storage s = r.stages[stage];
        (address first, address second) = (s.holders[a], s.holders[b]);
        (uint256 countsA, uint256 countsB) = (_countsOf(s, a), _countsOf(s, b));
        _put(s, a, second);
        _put(s, b, first);
        _setCounts(s, a, countsB);
        _setCounts(s, b, countsA);
        _deal(r, s, first, b, countsA);
        _deal(r, s, second, a, countsB);
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

    /// @notice The seats that have a vote: those counted twice in the last eight non-empty seals; where there is none,
    /// those counted once.
    function earnedVotes(Stage storage s, uint256 maxReplicas) internal view returns (uint256 seats) {
        seats = countedSeats(s, maxReplicas, 2);
        if (seats == 0) seats = countedSeats(s, maxReplicas, 1);
    }

    /// @notice The seats that vote: the ones with an earned vote; where there are none, those in complete replicas, or
    /// else all.
    function electorate(uint256 earned, uint256 seated, uint256 complete) internal pure returns (uint256) {
        if (earned != 0) return earned;
        return seated & complete != 0 ? seated & complete : seated;
    }

    function voters(Run storage r, uint256 stage) internal view returns (uint256) {
        Stage storage s = r.stages[stage];
        return electorate(earnedVotes(s, r.terms.maxReplicas), s.activity.seated, r.progress.complete);
    }

    /// @notice The run's fraction of so many votes, but of no fewer than minReplicas; rounded up.
    function quorum(Terms memory terms, uint256 votes) internal pure returns (uint256) {
        if (votes < terms.minReplicas) votes = terms.minReplicas;
        return (votes * terms.quorumNumerator + terms.quorumDenominator - 1) / terms.quorumDenominator;
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
    /// has had none for STALLED_TIMEOUTS round timeouts while the member was there.
    function isForfeit(Run storage r, Member storage member) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        if (_countsOf(s, member.replica) == 0 && s.activity.nonEmpty >= uint256(member.since) + IDLE_SEALS) return true;
        uint256 from = s.activity.workedAt > r.startedAt ? s.activity.workedAt : r.startedAt;
        if (member.joinedAt > from) from = member.joinedAt;
        return block.timestamp > from + STALLED_TIMEOUTS * r.terms.roundTimeout;
    }

    /// @notice Whether a seal since the last question counted the member.
    function countedSinceAsked(Run storage r, Member storage member) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        uint256 seals = s.activity.nonEmpty - member.askedSeal;
        return _countsOf(s, member.replica).age() < seals;
    }

    // ----------------------------------------------------------------------------------------------- helpers

    /// @dev Remembers where the member sat when the round was opened that its stage has to seal next.
    function _note(Run storage r, Member storage member) private {
        uint32 changed = nextRound(r, member.stage) + 1;
        if (member.changedRound == changed) return;
        member.changedRound = changed;
        member.formerReplica = member.replica;
        member.formerVote = false;
    }

    function _deal(Run storage r, Stage storage s, address account, uint256 replica, uint256 value) private {
        Member storage member = r.members[account];
        _note(r, member);
        member.replica = uint8(replica);
        if (value != 0) member.since = s.activity.nonEmpty;
        r.replicas[replica].since = r.progress.openRound;
    }

    function _sit(Run storage r, Stage storage s, address account, uint256 replica) private {
        _put(s, replica, account);
        s.activity.seated |= uint64(1 << replica);
        Replica storage seats = r.replicas[replica];
        seats.since = r.progress.openRound;
        if (++seats.held == r.terms.stages) r.progress.complete |= uint64(1 << replica);
    }

    function _stand(Run storage r, Stage storage s, uint256 replica) private {
        _put(s, replica, address(0));
        s.activity.seated &= ~uint64(1 << replica);
        --r.replicas[replica].held;
        r.progress.complete &= ~uint64(1 << replica);
    }

    function _put(Stage storage s, uint256 replica, address account) private {
        s.holders[replica] = account;
        s.activity.changed |= uint64(1 << replica);
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
