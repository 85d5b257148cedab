"""A stage's next seal: whose records it takes, whose votes it needs, and from when on. As Seals.sol, and what the
ledger counts by it.

`now` is the time of the block that a transaction would be in.
"""

from collections.abc import Collection

from dlx.ledger.abi import ascending
from dlx.ledger.view.counts import replicas
from dlx.ledger.view.run_state import RunState, ViewError
from dlx.ledger.view.runs import quorum_of

OVERDUE_TIMEOUTS = 4  # that a round is open until a majority of the earned votes is enough


def voters(state: RunState, stage: int) -> tuple[str, ...]:
    """The members who vote on the stage's next seal, ascending; see also `may_vote`."""
    slots = replicas(state.stage(stage).voters(state.staffed))
    return ascending([state.by_slot[replica, stage] for replica in slots])


def has_earned(state: RunState, stage: int) -> bool:
    """Whether any vote of the stage was earned by work."""
    return state.stage(stage).earned != 0


def quorum(state: RunState, stage: int) -> int:
    """The votes that the stage's next seal needs of its voters while the round is not overdue."""
    return quorum_of(state.config, state.stages[stage].voters(state.staffed).bit_count())


def votes(state: RunState, stage: int, signers: Collection[str]) -> int:
    """How many votes these signatures would be: each is its member's, or of who had one and left this round."""
    return sum(map(len, _voted(state, stage, signers)))


def needed(state: RunState, stage: int, signers: Collection[str], now: int) -> int:
    """The votes that a seal with these signatures needs: those who left vote, so they also count as voters."""
    electorate = _electorate(state, stage, signers)
    normal = quorum_of(state.config, electorate)
    overdue = state.is_open and now >= _overdue_at(state)
    return min(normal, electorate // 2 + 1) if overdue and has_earned(state, stage) else normal


def opens_at(state: RunState, stage: int, contributions: int, signers: Collection[str] = ()) -> int:
    """From when on the stage's next seal may count so few contributions. Raises ViewError if no round is open."""
    if not state.is_open:
        raise ViewError("no round is open")
    at, config = state.stages[stage], state.config
    times = [state.round_opened_at + config.min_round_time]
    if contributions < quorum_of(config, _electorate(state, stage, signers)):
        times.append(state.round_opened_at + config.round_timeout)
    if at.non_empty and not at.earned:  # it waits for its voters before it belongs to those who came after them
        times.append(_overdue_at(state))
    return max(times)


def may_vote(state: RunState, account: str, stage: int) -> bool:
    """Whether the account's signature of the stage's next seal is a vote, because it has one or had it when it left
    since the last one."""
    return votes(state, stage, (account,)) != 0


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


def _overdue_at(state: RunState) -> int:
    return state.round_opened_at + OVERDUE_TIMEOUTS * state.config.round_timeout


def _electorate(state: RunState, stage: int, signers: Collection[str]) -> int:
    """How many votes there are when these sign."""
    return state.stages[stage].voters(state.staffed).bit_count() + len(_voted(state, stage, signers)[1])


def _voted(state: RunState, stage: int, signers: Collection[str]) -> tuple[set[int], set[int]]:
    """Replicas: the slots by which these accounts vote on the stage's next seal, and those of records that accounts
    make which have lost such a slot since the last one."""
    voters, voted, former = state.stages[stage].voters(state.staffed), set[int](), set[int]()
    for member in map(state.member, signers):
        made = state.former_replica(member)
        if member.stage != stage:
            continue
        if member.holds and voters >> member.replica & 1:
            voted.add(member.replica)
        elif member.former_vote and made is not None:
            former.add(made)
    if not has_earned(state, stage):  # who took a slot that somebody left since shares its vote
        voted |= former & set(replicas(voters))
        former -= set(replicas(voters))
    return voted, former
