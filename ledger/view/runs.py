"""Configs, slots, silence and deals: what the contract takes as a config, and who may take a slot, ask, answer, evict,
dismiss, reclaim and deal. As Runs.sol and Membership.sol.

`now` is the time of the block that a transaction would be in.
"""

from collections.abc import Iterator, Sequence

from eth_hash.auto import keccak

from dlx.ledger.abi import ZERO32, word
from dlx.ledger.typed import MAX_REPLICAS, RunConfig
from dlx.ledger.view import bitmaps, seals
from dlx.ledger.view.run_state import Accusation, Asked, Member, RunState
from dlx.ledger.view.weights import ENOUGH, NEVER

IDLE_SEALS = 8  # non-empty seals without a count after which a slot is forfeit
GRACE_SEALS = 16  # more of them until a forfeit slot whose member answered is lost
STALLED_TIMEOUTS = 32  # round timeouts that a round is open until anybody may ask who is still there
RECLAIM_TIMEOUTS = 8  # that a round lacks a stage's seal until weight takes slots there
EMPTY_SEALS = 32  # in a row, after which a stage stands still
UNCOUNTED_ROUNDS = 3  # after which a replica may be dealt and a member be asked

# The bounds of a config, under which no sum of a reader overflows.
MAX_STAGES, MAX_FOUNDERS = 64, 8
MIN_HORIZON, MAX_HORIZON = 8, 1024
MAX_LANE_SEALS = 16384  # horizon times replicas: then equal members gain four units of weight in each seal
_MAX_ROUNDS = 1_000_000
_MAX_TIME = 30 * 86400  # seconds
_MAX_INNER_STEPS = 100_000
_MAX_START_TIME = (1 << 36) - 1
_MAX_TOKENS_PER_STEP = (1 << 40) - 1
_MAX_TOKENS = (1 << 63) - 1  # that a whole run can count: what SQLite adds up
_MAX_BOND = (1 << 96) - 1  # wei


def config_problem(config: RunConfig) -> str | None:
    """Why the contract creates no run with this config, naming the field; None where it does."""
    return next(_config_problems(config), None)


def _config_problems(config: RunConfig) -> Iterator[str]:
    if config.manifest == ZERO32:
        yield "manifest: expected a hash, got zeros"
    for field, lowest, highest in (
        ("rounds", 1, _MAX_ROUNDS),
        ("stages", 1, MAX_STAGES),
        ("max_replicas", 1, MAX_REPLICAS),
        ("min_replicas", 1, config.max_replicas),
        ("quorum_numerator", config.quorum_denominator // 2 + 1, config.quorum_denominator),
        ("horizon", MIN_HORIZON, MAX_HORIZON),
        ("round_timeout", 1, _MAX_TIME),
        ("min_round_time", 1, config.round_timeout),
        ("eviction_time", 1, _MAX_TIME),
        ("max_inner_steps", 1, _MAX_INNER_STEPS),
        ("start_time", 0, _MAX_START_TIME),
        ("tokens_per_step", 1, _MAX_TOKENS_PER_STEP),
        ("bond", 0, _MAX_BOND),
    ):
        value = getattr(config, field)
        if not lowest <= value <= highest:
            yield f"{field}: expected {lowest} to {highest}, got {value}"
    if config.horizon & (config.horizon - 1):
        yield f"horizon: expected a power of two, got {config.horizon}"
    if config.horizon * config.max_replicas > MAX_LANE_SEALS:
        yield f"horizon: expected {MAX_LANE_SEALS // config.max_replicas} at most with so many replicas"
    tokens = config.rounds * config.max_replicas * config.max_inner_steps * config.tokens_per_step
    if tokens > _MAX_TOKENS:
        yield f"tokens_per_step: the whole run could count {tokens} tokens, of which a run can have {_MAX_TOKENS}"


def founders_problem(founders: Sequence[str]) -> str | None:
    """Why the contract creates no run with these founders; None where it does."""
    if not 1 <= len(founders) <= MAX_FOUNDERS:
        return f"founders: expected 1 to {MAX_FOUNDERS}, got {len(founders)}"
    return "founders: expected accounts, got zeros" if any(not int(one, 16) for one in founders) else None


def free_slot(state: RunState, stage: int, account: str, now: int) -> int | None:
    """The lowest replica whose slot of the stage the account could take."""
    return next(
        (replica for replica in range(state.config.max_replicas) if is_free(state, replica, stage, account, now)), None
    )


def is_free(state: RunState, replica: int, stage: int, account: str, now: int) -> bool:
    """Whether nobody holds the slot, and it waits for nobody else than the account."""
    reserved = state.returns.get((replica, stage))
    for_another = reserved is not None and reserved.until >= now and reserved.account != account
    vacated = reserved is None and state.vacated.get((replica, stage), -1) >= now  # nobody hands a slot on
    return (replica, stage) not in state.by_slot and not for_another and not vacated


def waiting_for(state: RunState, account: str, now: int) -> tuple[tuple[int, int], ...]:
    """The free slots, (replica, stage) each, that the account alone may take: it was evicted, or is a successor."""
    return tuple(
        slot
        for slot, kept in state.returns.items()
        if kept.account == account and kept.until >= now and slot not in state.by_slot
    )


def stage_left(state: RunState, account: str) -> int | None:
    """The stage where an account without a slot left weight, which it has again if it takes one there; None: none."""
    member = state.member(account)
    has = not member.holds and seals.weight_in(state, account, member.stage, None) > 0
    return member.stage if has else None


def may_move(state: RunState, account: str, now: int) -> bool:
    """Whether the account could move to a lower replica, from one that is not complete."""
    slot = state.slot_of(account)
    if slot is None or state.complete >> slot[0] & 1:
        return False
    free = free_slot(state, slot[1], account, now)
    return free is not None and free < slot[0]


def age_of(state: RunState, account: str) -> int:
    """How many non-empty seals of its stage in a row have not counted the member; 15 stands for more. Raises KeyError
    for an account without a slot."""
    slot = state.slot_of(account)
    if slot is None:
        raise KeyError(account)
    return state.age_at(*slot)


def was_passed_over(state: RunState, replica: int, seals: int, round: int) -> bool:
    """Whether as many non-empty seals in a row of any stage (at most 15), the newest before the round, have not counted
    who holds its slot. The round is open, or later."""
    for stage, at in enumerate(state.stages):
        account = state.by_slot.get((replica, stage))
        is_sealed = state.next_round(stage) > round and not at.empties  # then by the newest that is not empty
        ages = at.ages_before if is_sealed else at.lanes.ages
        age = NEVER if account is None else ages[state.accounts[account].lane]
        if age >= seals and at.non_empty >= seals + is_sealed:
            return True
    return False


def is_forfeit(state: RunState, account: str) -> bool:
    """Whether only work can keep the account's slot."""
    member = state.member(account)
    if not member.holds:
        return False
    at = state.stages[member.stage]
    return at.lanes.ages[member.lane] >= IDLE_SEALS and at.non_empty >= member.since + IDLE_SEALS


def may_accuse(state: RunState, by: str, account: str, now: int) -> bool:
    """Whether an accusation of the account would stand."""
    member = state.member(account)
    if not member.holds or not state.is_open:
        return False
    forfeit = is_forfeit(state, account)
    waiting = member.asked is not Asked.NO and not counted_since_asked(state, member)
    if waiting and (member.asked is not Asked.WORK_ANSWERED or forfeit):
        return False
    timeout = state.config.round_timeout
    if member.asked_at and now <= member.asked_at + timeout:
        return False
    if forfeit or now > state.round_opened_at + STALLED_TIMEOUTS * timeout:
        return True
    idle = _idle_rounds(state, member.replica, member.stage) >= UNCOUNTED_ROUNDS
    uncounted = idle and state.next_round(member.stage) >= member.mark + UNCOUNTED_ROUNDS
    return state.member(by).holds and (uncounted or now > state.round_opened_at + timeout)


def may_evict(state: RunState, account: str, now: int) -> bool:
    """Whether the account was asked long enough ago, and no answer counts."""
    member = state.member(account)
    if not member.holds or member.asked is Asked.NO or counted_since_asked(state, member):
        return False
    lost = state.stages[member.stage].non_empty >= member.asked_seal + GRACE_SEALS
    if member.asked is Asked.WORK_ANSWERED and not lost:
        return False
    return now >= member.asked_at + state.config.eviction_time


def may_dismiss(state: RunState, by: str, account: str, now: int) -> bool:
    """Whether a founder may free the account's slot: two thirds of its stage's weight are the founders', or as much as
    the account's is, and a stage stands still."""
    member = state.member(account)
    if not member.holds or by not in state.founders:
        return False
    vacuum, total = seals.vacuum(state, member.stage, now), seals.total(state, member.stage, now)
    return 3 * vacuum >= 2 * total or is_outweighed(state, account, now)


def is_outweighed(state: RunState, account: str, now: int) -> bool:
    """Whether founders have no less weight than the account in the stage that it is, or was last, a member of, and some
    stage stands still."""
    stage = state.member(account).stage
    vacuum, own = seals.vacuum(state, stage, now), seals.weight_in(state, account, stage, None)
    return 0 < vacuum >= own and any(stands_still(state, each) for each in range(state.config.stages))


def stands_still(state: RunState, stage: int) -> bool:
    """Whether the stage's newest seals were all empty, or all but an eighth of all."""
    at, count = state.stages[stage], state.next_round(stage)
    return at.empties >= EMPTY_SEALS or (count >= 2 * EMPTY_SEALS and 8 * at.non_empty < count)


def may_reclaim(state: RunState, by: str, account: str, now: int) -> bool:
    """Whether an account that left weight in a full stage may take the slot of another there, which has hardly any and
    was not counted. The stage has not sealed the open round for long. Nor could a founder dismiss it at once."""
    since = reclaimable_from(state, by, account)
    if since is None or now <= since or is_outweighed(state, by, now):
        return False
    return free_slot(state, state.member(account).stage, by, now) is None


def reclaimable_from(state: RunState, by: str, account: str) -> int | None:
    """The second after which that is so, if its stage goes on to seal nothing and no slot gets free; None: never."""
    own, other = state.member(by), state.member(account)
    if own.holds or not other.holds or state.finished or state.is_convicted(by):
        return None
    stage = other.stage
    weight, its = (seals.weight_in(state, one, stage, None) for one in (by, account))
    is_enough = 16 * state.config.max_replicas * weight >= ENOUGH
    was_counted = state.stages[stage].lanes.ages[other.lane] != NEVER
    if not is_enough or was_counted or 8 * its > weight or state.next_round(stage) != state.open_round:
        return None
    return state.round_opened_at + RECLAIM_TIMEOUTS * state.config.round_timeout


def may_deal(state: RunState, replica: int) -> bool:
    """Whether the replica's members may be dealt among the slots of their stages, and that would change one."""
    return is_dealable(state, replica) and bool(deal_of(state, replica))


def deal_of(state: RunState, replica: int) -> tuple[tuple[int, int], ...]:
    """What a deal of a complete replica would do now: its member of `stage` changes places with that in `other`,
    for each (stage, other)."""
    drawn = ((stage, _drawn(state, replica, stage)) for stage in range(state.config.stages))
    return tuple((stage, other) for stage, other in drawn if other != replica)


def should_answer(state: RunState, account: str) -> bool:
    """Whether an answer of the account ends a question, or wins it time: it has not answered yet, or was counted
    since."""
    member = state.member(account)
    if not member.holds or member.asked is Asked.NO:
        return False
    return member.asked is not Asked.WORK_ANSWERED or counted_since_asked(state, member)


def accusations(state: RunState) -> dict[str, Accusation]:
    """Who was asked and has neither answered nor been counted since."""
    asked = (Asked.PRESENCE, Asked.WORK)
    return {
        account: Accusation(member.asked_at, member.asked is Asked.WORK)
        for account in state.by_slot.values()
        if (member := state.accounts[account]).asked in asked and not counted_since_asked(state, member)
    }


def is_dealable(state: RunState, replica: int) -> bool:
    if not state.is_open or not state.complete >> replica & 1:
        return False
    settled = state.round >= state.dealt.get(replica, 0) + UNCOUNTED_ROUNDS
    return settled and any(
        _idle_rounds(state, replica, stage) >= UNCOUNTED_ROUNDS for stage in range(state.config.stages)
    )


def came_back(state: RunState, account: str) -> bool:
    """Whether the member took its slot less than three rounds ago, and was counted in one of the three rounds before.
    Then it is no sign against it that no round has counted it since it came."""
    member, counted = state.member(account), state.last_round_counted(account)
    if not member.holds or counted is None or state.next_round(member.stage) >= member.mark + UNCOUNTED_ROUNDS:
        return False
    return state.stages[member.stage].lanes.ages[member.lane] == NEVER and counted >= member.mark - UNCOUNTED_ROUNDS


def _drawn(state: RunState, replica: int, stage: int) -> int:
    """The replica with whose member of the stage that of `replica` changes places."""
    held = bitmaps.members(state.stages[stage].slots)
    digest = keccak(b"".join(map(word, (state.draw, state.round, replica, stage))))
    return held[int.from_bytes(digest, "big") % len(held)]


def counted_since_asked(state: RunState, member: Member) -> bool:
    """Whether a seal since the last question counted the member, as far as its lane tells."""
    at = state.stages[member.stage]
    age = at.lanes.ages[member.lane]
    return age < NEVER and age < at.non_empty - member.asked_seal


def was_counted_lately(state: RunState, member: Member) -> bool:
    """Whether one of its stage's last eight non-empty seals counted the member."""
    return state.stages[member.stage].lanes.ages[member.lane] < IDLE_SEALS


def _idle_rounds(state: RunState, replica: int, stage: int) -> int:
    """How many rounds of the stage in a row have not counted the slot, empty ones since the last of them included."""
    return state.age_at(replica, stage) + state.stages[stage].empties
