// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Bitmaps} from "./Bitmaps.sol";
import {ILedger} from "./ILedger.sol";
import {Enlisted} from "./Sites.sol";
import {Absent, Weights} from "./Weights.sol";

/// @notice The part of a run's manifest that the ledger knows. Times are in seconds.
struct RunConfig {
    bytes32 manifest; // sha256
    uint32 rounds;
    uint16 stages;
    uint16 minReplicas; // that round 0 waits for
    uint16 maxReplicas;
    uint16 quorumNumerator;
    uint16 quorumDenominator;
    uint16 horizon; // non-empty seals that weight remembers: a power of two
    uint32 minRoundTime;
    uint32 roundTimeout;
    uint32 evictionTime;
    uint32 maxInnerSteps; // of a round
    uint64 startTime; // round 0 opens no earlier
    uint64 tokensPerStep;
    bool invited; // only whom Invitations admits can take a slot
    uint128 bond; // that a slot locks in Bonds, in wei
    bytes32 outer; // what OuterProofs needs to know of the outer step; 0: no version of the run can be disproved
}

/// @dev One word: all that a seal needs of the config.
struct Terms {
    uint32 rounds;
    uint16 stages;
    uint16 minReplicas;
    uint16 maxReplicas;
    uint16 quorumNumerator;
    uint16 quorumDenominator;
    uint8 shift; // the horizon is 2^shift
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
    uint8 held; // slots
    uint32 since; // the open round when it was last dealt, or became complete, after a break or the first time
    uint32 broken; // 1 + the open round when it was last complete; 0: it never was
}

/// @dev One word.
struct Activity {
    uint64 held; // a bit for each replica whose slot is held
    uint64 changed; // a bit for each whose first holder since the stage's newest seal lost it, or had another before
    uint64 lanes; // a bit for each lane that a holder has
    uint24 nonEmpty; // how many of its seals counted anything
    uint8 empties; // how many since then did not (at most 255)
    uint16 epoch; // that of its newest non-empty seal
    uint8 epochSeals; // the non-empty seals of that epoch so far
    bool absent; // whether anybody ever left it
}

struct Stage {
    bytes32 head; // the digest of its newest seal; before the first one the weights hash of V[s,0]
    Activity activity;
    uint256[8] words; // its lanes, see Weights
    Absent absent;
    mapping(uint256 replica => address) holders;
    uint256[32] tags; // of two slots each their holder's lane (8 bits) and the low 120 of its address
    mapping(uint256 replica => Return) returns_;
    mapping(uint256 epoch => uint256[8]) paid; // its lanes' pay at the end of it; and its non-empty seals, in the lowest bits
}

/// @notice Who may take a slot that is free, and nobody else, until then; for nobody it is just for the second in which
/// it became free, so that no two accounts can hand a slot on without anybody else's chance.
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
    uint8 replica; // the last one, where `holds` is false
    uint8 stage; // likewise
    uint8 lane;
    uint8 formerReplica; // whose record of round changedRound - 1 it makes; 255: none
    uint24 changedRound; // 1 + its stage's next round when its slot last changed; 0: never
    uint24 since; // how many non-empty seals its stage had when it came; while it holds no slot: those without it
    uint24 mark; // its stage's next round when it took its slot; while it holds none: the stage's non-empty seals then
    uint24 askedSeal; // how many non-empty seals the stage had when it was asked
    uint40 askedAt;
    uint40 leftAt; // while it holds no slot: since when
    uint16 weight; // and the weight that it had then
}

/// @dev One word.
struct Standing {
    uint64 stages; // a bit for each stage in which the account ever held a slot
    bool convicted; // then it never holds one again
}

/// @notice The lane that an account had, from when to when: whose pay was whose. One word.
struct Stay {
    uint8 stage;
    uint8 lane;
    uint16 fromEpoch;
    uint16 toEpoch;
    uint16 rest; // its pay of the last of them; that of those before is with the lane
}

struct Run {
    Terms terms;
    Progress progress;
    address creator;
    RunConfig config;
    mapping(uint256 stage => Stage) stages;
    mapping(uint256 replica => Replica) replicas;
    mapping(address account => Member) members;
    mapping(address account => Standing) standings;
    mapping(address account => Enlisted) enlisted;
    mapping(address account => bool) founders;
    mapping(address account => Stay[]) stays;
}

/// @title The state of one run: its slots, its rounds, and what its members' weight is
library Runs {
    using Bitmaps for uint256;
    using Weights for uint256;
    using Weights for Absent;

    uint256 internal constant MAX_STAGES = 64; // the width of Progress.sealedStages
    uint256 internal constant MAX_REPLICAS = 64; // bounds the gas of a seal
    uint256 internal constant MAX_FOUNDERS = 8;
    uint256 internal constant IDLE_SEALS = 8; // non-empty seals without a count after which a slot is forfeit
    uint256 internal constant GRACE_SEALS = 16; // more of them until a forfeit slot whose holder answered can be taken
    uint256 internal constant STALLED_TIMEOUTS = 32; // that a round is open until anybody may ask who is still there
    uint256 internal constant RECLAIM_TIMEOUTS = 8; // that a round lacks a stage's seal until weight takes slots there
    uint256 internal constant EMPTY_SEALS = 32; // in a row, after which a stage stands still
    uint256 internal constant UNCOUNTED_ROUNDS = 3; // after which a replica is dealt, and a holder may be asked
    uint256 internal constant MAX_NAME_BYTES = 64;
    uint256 internal constant MAX_URI_BYTES = 2048;
    uint256 private constant MAX_ROUNDS = 1_000_000;
    uint256 private constant MIN_HORIZON = 8;
    uint256 private constant MAX_HORIZON = 1024;
    uint256 private constant MAX_TIME = 30 days;
    uint256 private constant MAX_INNER_STEPS = 100_000;
    uint256 private constant MAX_START_TIME = (1 << 36) - 1; // in the year 4147
    uint256 private constant MAX_TOKENS_PER_STEP = (1 << 40) - 1;
    uint256 private constant MAX_TOKENS = (1 << 63) - 1; // that a whole run can count
    uint256 private constant MAX_BOND = (1 << 96) - 1;
    uint8 internal constant NO_REPLICA = type(uint8).max;
    uint256 private constant TAG_BITS = 120; // of an address
    /// @dev A bit for each ASCII letter and digit, and for those and `-`, `.`, `_`.
    uint256 private constant ALPHANUMERIC = (0x3ff << 48) | (0x3ffffff << 65) | (0x3ffffff << 97);
    uint256 private constant NAME_CHARACTERS = ALPHANUMERIC | (1 << 45) | (1 << 46) | (1 << 95);

    /// @dev Every field, so that no run costs its readers more than an honest one, and none of their sums overflows.
    function check(RunConfig calldata config) internal pure {
        _require(config.manifest != 0, "manifest");
        _within(config.rounds, MAX_ROUNDS, "rounds");
        _within(config.stages, MAX_STAGES, "stages");
        _within(config.maxReplicas, MAX_REPLICAS, "maxReplicas");
        _within(config.minReplicas, config.maxReplicas, "minReplicas");
        _within(config.quorumNumerator, config.quorumDenominator, "quorum");
        _require(2 * uint256(config.quorumNumerator) > config.quorumDenominator, "quorum");
        _within(config.horizon, MAX_HORIZON, "horizon");
        _require(config.horizon >= MIN_HORIZON && config.horizon & (config.horizon - 1) == 0, "horizon");
        // Of a seal each equal member gets at least four units of weight: it counts how they are rounded.
        _require(uint256(config.horizon) * config.maxReplicas <= Weights.FULL / 4, "horizon");
        _within(config.roundTimeout, MAX_TIME, "roundTimeout");
        _within(config.minRoundTime, config.roundTimeout, "minRoundTime");
        _within(config.evictionTime, MAX_TIME, "evictionTime");
        _within(config.maxInnerSteps, MAX_INNER_STEPS, "maxInnerSteps");
        _require(config.startTime <= MAX_START_TIME, "startTime");
        _within(config.tokensPerStep, MAX_TOKENS_PER_STEP, "tokensPerStep");
        uint256 steps = uint256(config.rounds) * config.maxReplicas * config.maxInnerSteps;
        _require(steps * config.tokensPerStep <= MAX_TOKENS, "tokensPerStep");
        _require(config.bond <= MAX_BOND, "bond");
    }

    function _within(uint256 value, uint256 most, string memory field) private pure {
        _require(value != 0 && value <= most, field);
    }

    function _require(bool met, string memory field) private pure {
        if (!met) revert ILedger.InvalidConfig(field);
    }

    /// @notice A name is 1 to 64 ASCII letters, digits, `-`, `.` and `_`, the first a letter or digit: what can be shown
    /// anywhere as it is.
    function checkName(bytes calldata name) internal pure {
        if (name.length == 0 || name.length > MAX_NAME_BYTES) revert ILedger.InvalidConfig("name");
        uint256 allowed = ALPHANUMERIC;
        for (uint256 i = 0; i < name.length; ++i) {
            if ((allowed >> uint8(name[i])) & 1 == 0) revert ILedger.InvalidConfig("name");
            allowed = NAME_CHARACTERS;
        }
    }

    function termsOf(RunConfig calldata config) internal pure returns (Terms memory) {
        return Terms(
            config.rounds,
            config.stages,
            config.minReplicas,
            config.maxReplicas,
            config.quorumNumerator,
            config.quorumDenominator,
            uint8((uint256(config.horizon) - 1).size()),
            config.minRoundTime,
            config.roundTimeout,
            config.evictionTime,
            config.maxInnerSteps
        );
    }

    // ------------------------------------------------------------------------------------------------- slots

    /// @notice The account's membership, which must hold a slot now.
    function holder(Run storage r, address account) internal view returns (Member storage member) {
        member = r.members[account];
        if (!member.holds) revert ILedger.NotHolding(account);
    }

    /// @notice Whether a slot that is held is the account's, and its lane if so.
    function laneAt(Stage storage s, uint256 replica, address account) internal view returns (bool, uint256) {
        uint256 tag = _tagAt(s, replica);
        uint256 mask = (1 << TAG_BITS) - 1;
        return (tag & mask == uint256(uint160(account)) & mask, tag >> TAG_BITS);
    }

    /// @notice The lowest replica where the account may take the slot of `stage`; 64 where there is none.
    function freeSlot(Run storage r, uint256 stage, address account) internal view returns (uint256 replica) {
        Stage storage s = r.stages[stage];
        uint256 free = ~uint256(s.activity.held) & ((1 << r.terms.maxReplicas) - 1);
        for (; free != 0; free &= free - 1) {
            replica = free.lowest();
            if (_isOpenTo(s, replica, account)) return replica;
        }
        return MAX_REPLICAS;
    }

    /// @notice Whether the account may take the slot.
    function isFree(Run storage r, uint256 replica, uint256 stage, address account) internal view returns (bool) {
        Stage storage s = r.stages[stage];
        return (s.activity.held >> replica) & 1 == 0 && _isOpenTo(s, replica, account);
    }

    /// @notice Whether an evicted account's slot of `stage` still waits for it.
    function mayReturn(Run storage r, Member storage member, address account) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        Return storage kept = s.returns_[member.replica];
        return kept.account == account && kept.until >= block.timestamp && (s.activity.held >> member.replica) & 1 == 0;
    }

    /// @notice Lets nobody but the account take the slot that the member has just lost, for the eviction time.
    function reserve(Run storage r, Member storage member, address account) internal returns (uint64 until) {
        until = uint64(block.timestamp) + r.terms.evictionTime;
        r.stages[member.stage].returns_[member.replica] = Return(account, uint40(until));
    }

    /// @notice Gives the account a slot that is free, and the weight that it still has in this stage. Leaving and joining
    /// again wipes nothing. The first taker of a slot that was free at the stage's newest seal can make its record at
    /// once, if it had no other slot since.
    function take(Run storage r, Member storage member, address account, uint256 replica, uint256 stage) internal {
        Stage storage s = r.stages[stage];
        uint24 next = uint24(nextRound(r, stage));
        Standing storage standing = r.standings[account];
        uint256 weight = 0;
        if (member.stage != stage || (standing.stages >> stage) & 1 == 0) {
            member.changedRound = 0; // of the former stage
            member.asked = Asked.No;
            member.stage = uint8(stage);
            standing.stages |= uint64(1 << stage);
        } else {
            weight = _comeBack(r, s, member);
        }
        (member.leftAt, member.weight) = (0, 0);
        uint256 idle = member.since;
        member.since = s.activity.nonEmpty > idle ? uint24(s.activity.nonEmpty - idle) : 0;
        member.mark = next;
        member.holds = true;
        member.replica = uint8(replica);
        uint256 lane = (~uint256(s.activity.lanes)).lowest();
        member.lane = uint8(lane);
        s.activity.lanes |= uint64(1 << lane);
        s.words[lane / Weights.LANES] = s.words[lane / Weights.LANES].withLane(lane, Weights.fresh(weight));
        if (member.changedRound == next + 1) _change(r, s, replica);
        _sit(r, s, account, lane, replica);
    }

    /// @notice Takes the member's slot away. Until its stage's next seal its record may still be listed; its weight stays,
    /// and fades, unless it is lost with the slot.
    /// @return counted whether one of the last eight non-empty seals counted it
    function release(Run storage r, Member storage member, address account, bool loses) internal returns (bool counted) {
        Stage storage s = r.stages[member.stage];
        _note(r, s, member);
        uint256 value = laneOf(s, member);
        counted = value.ageOf() < IDLE_SEALS;
        member.since = counted ? 0 : s.activity.nonEmpty - member.since;
        member.holds = false;
        // Coming back says that it is there, but does no work.
        member.asked = member.asked == Asked.No || member.asked == Asked.Presence ? Asked.No : Asked.WorkAnswered;
        _keepPay(r, s, member, account, value.payOf());
        if (!loses) _goAway(r, s, member, value.weightOf());
        s.words[member.lane / Weights.LANES] = s.words[member.lane / Weights.LANES].withLane(member.lane, 0);
        s.activity.lanes &= ~uint64(1 << member.lane);
        _stand(r, s, member.replica);
    }

    /// @notice Who is convicted has no weight any more, here or where it left some.
    function forget(Run storage r, Member storage member) internal {
        // slither-disable-next-line unused-return: what it had is gone
        if (member.weight != 0) _comeBack(r, r.stages[member.stage], member);
        member.weight = 0;
    }

    /// @notice Moves a holder to a free slot of its stage.
    function move(Run storage r, Member storage member, address account, uint256 replica) internal {
        Stage storage s = r.stages[member.stage];
        _note(r, s, member);
        _stand(r, s, member.replica);
        member.replica = uint8(replica);
        _change(r, s, replica);
        _sit(r, s, account, member.lane, replica);
    }

    /// @notice Lets the holders of two slots of a stage change places.
    function swap(Run storage r, uint256 stage, uint256 a, uint256 b) internal {
        Stage storage s = r.stages[stage];
        (address first, address second) = (s.holders[a], s.holders[b]);
        _note(r, s, r.members[first]);
        _note(r, s, r.members[second]);
        _relocate(r, s, first, b);
        _relocate(r, s, second, a);
        r.replicas[b].since = r.progress.openRound;
    }

    // ------------------------------------------------------------------------------------------------ rounds

    function requireOpen(Run storage r) internal view {
        if (r.progress.openedAt == 0) revert ILedger.RoundNotOpen();
        if (r.progress.openRound == r.terms.rounds) revert ILedger.RunFinished();
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
        uint256 word = uint256(a.held) | (uint256(a.changed) << 64) | (uint256(a.lanes) << 128)
            | (uint256(a.nonEmpty) << 192) | (uint256(a.empties) << 216) | (uint256(a.epoch) << 224)
            | (uint256(a.epochSeals) << 240) | (a.absent ? 1 << 248 : 0);
        assembly ("memory-safe") {
            sstore(to.slot, word)
        }
    }

    // ----------------------------------------------------------------------------------------------- weights

    /// @notice The lane of a member that holds a slot of the stage.
    function laneOf(Stage storage s, Member storage member) internal view returns (uint256) {
        return s.words[member.lane / Weights.LANES].lane(member.lane);
    }

    /// @notice The weight of all that hold a slot of the stage.
    function heldWeight(Stage storage s) internal view returns (uint256 weight) {
        uint256 lanes = s.activity.lanes;
        for (uint256 i = 0; lanes != 0; (lanes >>= Weights.LANES, ++i)) {
            if (lanes & 0xff != 0) weight += s.words[i].sum();
        }
    }

    /// @notice What the founders hold of a stage whose members, present and absent, have so much.
    function vacuum(uint256 earned) internal pure returns (uint256) {
        return earned < Weights.ENOUGH ? Weights.ENOUGH - earned : 0;
    }

    /// @notice The weight of an account that holds or held a slot of this stage as its last: in seals, where the absent
    /// fade with time, or in verdicts.
    function weightIn(Run storage r, uint256 stage, Member memory member, bool inSeals) internal view returns (uint256) {
        if (member.stage != stage) return 0;
        Stage storage s = r.stages[stage];
        if (member.holds) return s.words[member.lane / Weights.LANES].lane(member.lane).weightOf();
        return absentWeight(member, r.terms, s.activity.nonEmpty, inSeals);
    }

    /// @notice The weight that an account without a slot still has, after so many non-empty seals of its stage.
    function absentWeight(Member memory member, Terms memory terms, uint256 seals, bool inSeals)
        internal
        view
        returns (uint256)
    {
        return member.weight == 0 ? 0 : _partOfPool(member, terms, seals, inSeals) >> Weights.FRACTION;
    }

    /// @dev Likewise, as exactly as the pool of the absent has it.
    function _partOfPool(Member memory member, Terms memory terms, uint256 seals, bool inSeals)
        private
        view
        returns (uint256 weight)
    {
        weight = (uint256(member.weight) << Weights.FRACTION).aged(seals - member.mark, terms.shift);
        if (inSeals) weight = weight.faded(block.timestamp - member.leftAt, Weights.ABSENT_TIMEOUTS * terms.roundTimeout);
    }

    /// @notice The stage's pool of the absent as it is now.
    function absentNow(Run storage r, Stage storage s) internal view returns (Absent memory) {
        return s.absent.current(r.terms.roundTimeout, r.terms.shift, s.activity.nonEmpty);
    }

    // ---------------------------------------------------------------------------------------------- idleness

    /// @notice How many rounds of its stage in a row have not counted the slot (15 seals stand for more), with the empty
    /// ones since.
    function uncounted(Run storage r, uint256 stage, uint256 replica) internal view returns (uint256 rounds) {
        Stage storage s = r.stages[stage];
        uint256 lane = _tagAt(s, replica) >> TAG_BITS;
        return s.words[lane / Weights.LANES].lane(lane).ageOf() + s.activity.empties;
    }

    /// @notice Whether only work keeps the slot: its holder was not counted for IDLE_SEALS non-empty seals. An empty seal
    /// says nothing: where another stage does not do its part, nobody can work.
    function isForfeit(Run storage r, Member storage member) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        return laneOf(s, member).ageOf() >= IDLE_SEALS && s.activity.nonEmpty >= uint256(member.since) + IDLE_SEALS;
    }

    /// @notice Whether the holder of a forfeit slot that said that it is there loses it: it was not counted for another
    /// GRACE_SEALS non-empty seals.
    function isLost(Run storage r, Member storage member) internal view returns (bool) {
        return r.stages[member.stage].activity.nonEmpty >= uint256(member.askedSeal) + GRACE_SEALS;
    }

    /// @notice Whether a seal since the last question counted the member, as far as its lane tells.
    function countedSinceAsked(Run storage r, Member storage member) internal view returns (bool) {
        Stage storage s = r.stages[member.stage];
        uint256 age = laneOf(s, member).ageOf();
        return age < Weights.NEVER && age < s.activity.nonEmpty - member.askedSeal;
    }

    // ----------------------------------------------------------------------------------------------- helpers

    /// @dev Whether a slot that nobody holds waits for nobody else.
    function _isOpenTo(Stage storage s, uint256 replica, address account) private view returns (bool) {
        Return storage kept = s.returns_[replica];
        return kept.until < block.timestamp || kept.account == account;
    }

    /// @dev Remembers whose record of its stage's next round the member makes: that of its slot, if it was the first to
    /// hold that since the stage's newest seal. Nothing can be under way before round 0 opens.
    function _note(Run storage r, Stage storage s, Member storage member) private {
        uint24 changed = uint24(nextRound(r, member.stage) + 1);
        if (member.changedRound == changed || r.progress.openedAt == 0) return;
        member.changedRound = changed;
        member.formerReplica = (s.activity.changed >> member.replica) & 1 == 0 ? member.replica : NO_REPLICA;
    }

    /// @dev Whoever holds the slot from now on does not make its record of the stage's next round.
    function _change(Run storage r, Stage storage s, uint256 replica) private {
        if (r.progress.openedAt != 0) s.activity.changed |= uint64(1 << replica);
    }

    /// @dev The member's weight goes into the pool of the absent.
    function _goAway(Run storage r, Stage storage s, Member storage member, uint256 weight) private {
        (member.weight, member.leftAt, member.mark) = (uint16(weight), uint40(block.timestamp), s.activity.nonEmpty);
        if (weight == 0) return;
        Absent memory pool = absentNow(r, s);
        uint256 more = weight << Weights.FRACTION;
        (pool.forSeals, pool.forVerdicts) = (uint64(pool.forSeals + more), uint64(pool.forVerdicts + more));
        s.absent = pool;
        s.activity.absent = true;
    }

    /// @dev What seals have left of the member's weight comes out of the pool. Whoever comes back lost nothing by the time
    /// that it was away: others gained nothing by it either.
    function _comeBack(Run storage r, Stage storage s, Member storage member) private returns (uint256) {
        if (member.weight == 0) return 0;
        Terms memory terms = r.terms;
        uint256 part = _partOfPool(member, terms, s.activity.nonEmpty, false);
        Absent memory pool = absentNow(r, s);
        pool.forSeals = _less(pool.forSeals, _partOfPool(member, terms, s.activity.nonEmpty, true));
        pool.forVerdicts = _less(pool.forVerdicts, part);
        s.absent = pool;
        return part >> Weights.FRACTION;
    }

    function _less(uint64 pool, uint256 part) private pure returns (uint64) {
        return pool > part ? uint64(pool - part) : 0;
    }

    /// @dev Writes down which pay is the account's, before somebody else gets its lane.
    function _keepPay(Run storage r, Stage storage s, Member storage member, address account, uint256 rest) private {
        uint256 from = member.mark / Weights.EPOCH_ROUNDS;
        uint16 to = s.activity.epoch;
        if (rest == 0 && to <= from) return;
        r.stays[account].push(Stay(member.stage, member.lane, uint16(from), to, uint16(rest)));
    }

    function _relocate(Run storage r, Stage storage s, address account, uint256 replica) private {
        Member storage member = r.members[account];
        _put(s, replica, account, member.lane);
        _change(r, s, replica);
        member.replica = uint8(replica);
    }

    function _sit(Run storage r, Stage storage s, address account, uint256 lane, uint256 replica) private {
        _put(s, replica, account, lane);
        s.activity.held |= uint64(1 << replica);
        Replica storage slots = r.replicas[replica];
        if (++slots.held < r.terms.stages) return;
        r.progress.complete |= uint64(1 << replica);
        // Whoever leaves and comes back does not put off that the replica is dealt.
        if (slots.broken == 0 || r.progress.openRound > slots.broken) slots.since = r.progress.openRound;
    }

    function _stand(Run storage r, Stage storage s, uint256 replica) private {
        _put(s, replica, address(0), 0);
        _change(r, s, replica);
        s.activity.held &= ~uint64(1 << replica);
        s.returns_[replica] = Return(address(0), uint40(block.timestamp));
        Replica storage slots = r.replicas[replica];
        if (slots.held == r.terms.stages) slots.broken = r.progress.openRound + 1;
        --slots.held;
        r.progress.complete &= ~uint64(1 << replica);
    }

    function _tagAt(Stage storage s, uint256 replica) private view returns (uint256) {
        return (s.tags[replica >> 1] >> (128 * (replica & 1))) & type(uint128).max;
    }

    function _put(Stage storage s, uint256 replica, address account, uint256 lane) private {
        s.holders[replica] = account;
        uint256 shift = 128 * (replica & 1);
        uint256 tag = (uint256(uint160(account)) & ((1 << TAG_BITS) - 1)) | (lane << TAG_BITS);
        uint256 others = s.tags[replica >> 1] & ~(uint256(type(uint128).max) << shift);
        s.tags[replica >> 1] = others | (tag << shift);
    }
}
