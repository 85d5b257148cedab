"""Configs, slots, silence and deals: what the contract takes as a config, and who may take a slot, ask, answer, evict
and deal. As Runs.sol.

`now` is the time of the block that a transaction would be in.
"""

from collections.abc import Iterator

from eth_hash.auto import keccak

from dlx.ledger.abi import ZERO32, word
from dlx.ledger.typed import MAX_REPLICAS, RunConfig
from dlx.ledger.view.counts import YOUNG, replicas
from dlx.ledger.view.run_state import Accusation, Asked, Member, RunState

IDLE_SEALS = 8  # non-empty seals without a count after which a slot is forfeit
GRACE_SEALS = 16  # more of them until a forfeit slot whose member answered is lost
STALLED_TIMEOUTS = 32  # round timeouts without a non-empty seal after which a stage's slots are forfeit and lost,
LATE_TIMEOUTS = 8  # if its round has been open for so many,
BARREN_SEALS = 8  # or so many of its seals in a row were empty
UNCOUNTED_ROUNDS = 3  # after which a replica may be dealt and a member be asked

# The bounds of a config, under which no sum of a reader overflows.
MAX_STAGES = 64
_MAX_ROUNDS = 10_000_000
_MAX_TIME = 30 * 86400  # seconds
_MAX_INNER_STEPS = 100_000
_MAX_START_TIME = (1 << 36) - 1
_MAX_TOKENS_PER_STEP = (1 << 40) - 1
_MAX_TOKENS = (1 << 63) - 1  # that a whole run can count: what SQLite adds up


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
        ("round_timeout", 1, _MAX_TIME),
        ("min_round_time", 1, config.round_timeout),
        ("eviction_time", 1, _MAX_TIME),
        ("max_inner_steps", 1, _MAX_INNER_STEPS),
        ("start_time", 0, _MAX_START_TIME),
        ("tokens_per_step", 1, _MAX_TOKENS_PER_STEP),
    ):
        value = getattr(config, field)
        if not lowest <= value <= highest:
            yield f"{field}: expected {lowest} to {highest}, got {value}"
    tokens = config.rounds * config.max_replicas * config.max_inner_steps * config.tokens_per_step
    if tokens > _MAX_TOKENS:
        yield f"tokens_per_step: the whole run could count {tokens} tokens, of which a run can have {_MAX_TOKENS}"


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


def may_move(state: RunState, account: str, now: int) -> bool:
    """Whether the account could move to a lower replica, from one that is not complete."""
    slot = state.slot_of(account)
    if slot is None or state.complete >> slot[0] & 1:
        return False
    free = free_slot(state, slot[1], account, now)
    return free is not None and free < slot[0]


def times_counted(state: RunState, account: str) -> int:
    """How many of its stage's last eight non-empty seals counted the member. Raises KeyError for an account without
    a slot."""
    slot = state.slot_of(account)
    if slot is None:
        raise KeyError(account)
    replica, stage = slot
    return state.stages[stage].counts[replica].bit_count()


def counts_for_a_vote(state: RunState, stage: int) -> int:
    """How many of these it takes to vote, where any vote was earned."""
    at = state.stages[stage]
    return 2 if at.non_empty >= YOUNG and at.counted(2) else 1


def was_passed_over(state: RunState, replica: int, seals: int, round: int) -> bool:
    """Whether as many non-empty seals in a row of any stage (at most seven), the newest before the round, have not
    counted who holds its slot. The round is open, or later."""
    for stage, at in enumerate(state.stages):
        skipped = int(state.next_round(stage) > round and not at.empties)
        recent = at.counts[replica] >> skipped & (1 << seals) - 1
        if at.non_empty >= seals + skipped and not recent:
            return True
    return False


def is_forfeit(state: RunState, account: str, now: int) -> bool:
    """Whether only work can keep the account's slot."""
    member = state.member(account)
    if not member.holds:
        return False
    at = state.stages[member.stage]
    idle = not at.counts[member.replica] and at.non_empty >= member.since + IDLE_SEALS
    return idle or _stalled(state, member, now)


def is_stalled(state: RunState, account: str, now: int) -> bool:
    """Whether the account's stage has had no non-empty seal for long while it held a slot, and by its own fault:
    then even its answers do not keep it the slot."""
    return state.member(account).holds and _stalled(state, state.member(account), now)


def may_accuse(state: RunState, by: str, account: str, now: int) -> bool:
    """Whether an accusation of the account would stand."""
    member = state.member(account)
    if not member.holds or not state.is_open:
        return False
    forfeit = is_forfeit(state, account, now)
    waiting = member.asked is not Asked.NO and not counted_since_asked(state, member)
    if waiting and (member.asked is not Asked.WORK_ANSWERED or forfeit):
        return False
    timeout = state.config.round_timeout
    if member.asked_at and now <= member.asked_at + timeout:
        return False
    if forfeit:
        return True
    idle = state.stages[member.stage].idle_rounds(member.replica) >= UNCOUNTED_ROUNDS
    uncounted = idle and state.next_round(member.stage) >= member.joined_round + UNCOUNTED_ROUNDS
    return state.member(by).holds and (uncounted or now > state.round_opened_at + timeout)


def may_evict(state: RunState, account: str, now: int) -> bool:
    """Whether the account was asked long enough ago, and no answer counts."""
    member = state.member(account)
    if not member.holds or member.asked is Asked.NO or counted_since_asked(state, member):
        return False
    at = state.stages[member.stage]
    lost = at.non_empty >= member.asked_seal + GRACE_SEALS or _stalled(state, member, now)
    if member.asked is Asked.WORK_ANSWERED and not lost:
        return False
    return now >= member.asked_at + state.config.eviction_time


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
    return settled and any(stage.idle_rounds(replica) >= UNCOUNTED_ROUNDS for stage in state.stages)


def _drawn(state: RunState, replica: int, stage: int) -> int:
    """The replica with whose member of the stage that of `replica` changes places."""
    seated = replicas(state.stages[stage].seated)
    digest = keccak(b"".join(map(word, (state.draw, state.round, replica, stage))))
    return seated[int.from_bytes(digest, "big") % len(seated)]


def counted_since_asked(state: RunState, member: Member) -> bool:
    at = state.stages[member.stage]
    counted = at.counts[member.replica] != 0
    return counted and at.idle_seals(member.replica) < at.non_empty - member.asked_seal


def _stalled(state: RunState, member: Member, now: int) -> bool:
    at, timeout = state.stages[member.stage], state.config.round_timeout
    if now <= max(at.worked_at, state.started_at, member.joined_at) + STALLED_TIMEOUTS * timeout:
        return False
    owes = state.next_round(member.stage) == state.round
    return at.empties >= BARREN_SEALS or (owes and now > state.round_opened_at + LATE_TIMEOUTS * timeout)


def quorum_of(config: RunConfig, votes: int) -> int:
    """The run's fraction of so many votes, but of no fewer than its smallest number of replicas; rounded up. A
    majority at least."""
    votes = max(votes, config.min_replicas)
    return -(-votes * config.quorum_numerator // config.quorum_denominator)
