"""A stage's next seal: whose records it takes, how much weight it needs, and from when on. As Seals.sol, and what the
ledger weighs by it.

`now` is the time of the block that a transaction would be in. Weights are integers of which FULL is all.
"""

from collections.abc import Collection
from typing import NamedTuple

from dlx.ledger.abi import ascending
from dlx.ledger.typed import RunConfig
from dlx.ledger.view import bitmaps
from dlx.ledger.view.run_state import NOBODY, Member, RunState, ViewError
from dlx.ledger.view.weights import ABSENT_TIMEOUTS, ENOUGH, FRACTION, LATE_TIMEOUTS, Absent, aged, faded


class Weighed(NamedTuple):
    """What stands behind a seal: the weight of those who sign it, of those whose work it counts, and all there is."""

    votes: int
    makers: int
    total: int


def is_founder(state: RunState, account: str) -> bool:
    """Whether the account is one of those whose signature brings the weight that no work has earned yet."""
    return account in state.founders


def weight_of(state: RunState, account: str, now: int) -> int:
    """The account's weight in the stage where it holds a slot, or held its last one."""
    return weight_in(state, account, state.member(account).stage, now)


def weight_in(state: RunState, account: str, stage: int, now: int | None) -> int:
    """The same in this stage, and 0 in another. `now`: None for what seals alone have left of it, which is what counts
    in verdicts."""
    member = state.member(account)
    if member.stage != stage:
        return 0
    if member.holds:
        return state.stages[stage].lanes.weights[member.lane]
    seals_part, verdicts_part = parts_of_pool(state, member, now)
    return (verdicts_part if now is None else seals_part) >> FRACTION


def parts_of_pool(state: RunState, member: Member, now: int | None) -> tuple[int, int]:
    """What a member without a slot has of its stage's pool of the absent in seals (at `now`) and in verdicts, in
    2^-32."""
    config, passed = state.config, state.stages[member.stage].non_empty - member.mark
    left = aged(member.weight << FRACTION, passed, config.horizon)
    time = 0 if now is None else now - member.left_at
    return faded(left, time, ABSENT_TIMEOUTS * config.round_timeout), left


def absent_now(state: RunState, stage: int, now: int) -> Absent:
    """The weight of those who had a slot of the stage and have none."""
    at, config = state.stage(stage), state.config
    return at.absent.later(now, at.non_empty, config.round_timeout, config.horizon)


def vacuum(state: RunState, stage: int, now: int) -> int:
    """What the founders hold in the stage: as much as its members, present and absent, lack of ENOUGH."""
    return max(0, ENOUGH - _earned(state, stage, now))


def total(state: RunState, stage: int, now: int) -> int:
    """All weight of the stage, its founders' too."""
    return max(ENOUGH, _earned(state, stage, now))


def seal_votes(state: RunState, stage: int, signers: Collection[str], now: int, founder: bool = False) -> int:
    """The weight that these signatures bring to the stage's next seal; `founder`: a founder signs too."""
    lanes, known, votes = state.stage(stage).lanes.weights, state.accounts, 0
    for account in {*signers}:
        member = known.get(account, NOBODY)
        if member.stage == stage:
            votes += lanes[member.lane] if member.holds else weight_in(state, account, stage, now)
    return votes + (vacuum(state, stage, now) if founder else 0)


def needed(state: RunState, stage: int, now: int) -> int:
    """The least weight that seals the stage's next round at that time: the run's fraction of all. From the round's
    timeout on it is that of those who sign and of what is left of the others, but a third of all at least."""
    return least(state.config, total(state, stage, now), now - state.round_opened_at if state.is_open else 0)


def least(config: RunConfig, whole: int, open_for: int) -> int:
    """The same of so much weight in all, when the round has been open for so many seconds."""
    late, half = open_for - config.round_timeout, LATE_TIMEOUTS * config.round_timeout
    low, high = -(-whole // 3), fraction(config, whole)
    while late > 0 and low < high:  # the more sign, the more of them are enough
        votes = (low + high) // 2
        if votes >= fraction(config, votes + faded(whole - votes, late, half)):
            high = votes
        else:
            low = votes + 1
    return high


def fraction(config: RunConfig, weight: int) -> int:
    """The run's part of so much weight, rounded up: more than half of it."""
    return -(-weight * config.quorum_numerator // config.quorum_denominator)


def opens_at(state: RunState, stage: int, makers: Collection[str], now: int, founder: bool = False) -> int:
    """From when on the stage's next seal may count just these accounts' work, as far as their weight at `now` tells;
    `founder`: a founder signs it. Raises ViewError if no round is open."""
    if not state.is_open:
        raise ViewError("no round is open")
    config, found = state.config, weigh(state, stage, makers, (), now, founder)
    enough = found.makers >= fraction(config, found.total)
    return state.round_opened_at + (config.min_round_time if enough else config.round_timeout)


def weigh(
    state: RunState, stage: int, makers: Collection[str], signers: Collection[str], now: int, founder: bool = False
) -> Weighed:
    """What a seal of the stage's next round comes to with records of these makers and these signatures."""
    gone = [account for account in {*signers} if not state.member(account).holds]
    pool = max(absent_now(state, stage, now).for_seals, seal_votes(state, stage, gone, now))  # roundings may part them
    earned = sum(state.stages[stage].lanes.weights) + pool
    brings = max(0, ENOUGH - earned) if founder else 0
    return Weighed(
        votes=seal_votes(state, stage, signers, now) + brings,
        makers=seal_votes(state, stage, makers, now) + brings if makers else 0,
        total=max(ENOUGH, earned),
    )


def may_seal(
    state: RunState, stage: int, makers: Collection[str], signers: Collection[str], now: int, founder: bool = False
) -> bool:
    """Whether the stage's open round can be sealed with records of these makers and signatures of these signers."""
    if state.open_round is None or state.next_round(stage) != state.open_round:
        return False
    found, config, open_for = (
        weigh(state, stage, makers, signers, now, founder),
        state.config,
        now - state.round_opened_at,
    )
    if open_for < config.min_round_time or found.votes < least(config, found.total, open_for):
        return False
    early = open_for < config.round_timeout
    return not early or found.makers >= fraction(config, found.total)


def votes(state: RunState, stage: int, accounts: Collection[str], now: int) -> int:
    """What these accounts weigh among members, before founders have signed: the founders' part is shared evenly among
    the stage's members in complete replicas, or, where there are none, among all."""
    patrons = {*_staff(state, stage)}
    share = vacuum(state, stage, now) // max(1, len(patrons))
    return seal_votes(state, stage, accounts, now) + share * len(patrons & {*accounts})


def voters(state: RunState, stage: int) -> tuple[str, ...]:
    """The stage's members with weight, ascending; where nobody has any, those in complete replicas, or else all."""
    lanes = state.stage(stage).lanes
    members = state.members_in(stage)
    earned = [account for account in members if lanes.weights[state.accounts[account].lane]]
    return tuple(earned) or _staff(state, stage)


def may_vote(state: RunState, account: str, stage: int, now: int) -> bool:
    """Whether the account's signature of the stage's next seal can bring any weight."""
    if weight_in(state, account, stage, now):
        return True
    return is_founder(state, account) and vacuum(state, stage, now) > 0


def maker(state: RunState, replica: int, stage: int) -> str | None:
    """Who makes the record of the replica in the stage's next seal, wherever it sits now. That is who held the slot
    at the newest seal, or, where it was free, took it first since and had no other. None where nobody did yet."""
    if state.stages[stage].settled >> replica & 1:
        return state.by_slot[replica, stage]
    gone = ((account, member) for account, member in state.accounts.items() if member.stage == stage)
    return next((account for account, member in gone if state.former_replica(member) == replica), None)


def admissible(state: RunState, account: str, stage: int, replica: int) -> bool:
    """Whether the account makes the record of that replica in the stage's next seal."""
    if state.stages[stage].settled >> replica & 1:
        return state.by_slot[replica, stage] == account
    member = state.member(account)
    return member.stage == stage and state.former_replica(member) == replica


def _staff(state: RunState, stage: int) -> tuple[str, ...]:
    """The stage's members in complete replicas, ascending, or, where there are none, all."""
    complete = bitmaps.members(state.complete)
    return ascending([state.by_slot[replica, stage] for replica in complete]) or state.members_in(stage)


def _earned(state: RunState, stage: int, now: int) -> int:
    return sum(state.stage(stage).lanes.weights) + absent_now(state, stage, now).for_seals
