"""Convictions: who judges, and how many verdicts it takes. As Verdicts.sol."""

from collections.abc import Collection

from dlx.ledger.abi import ascending
from dlx.ledger.view.counts import replicas
from dlx.ledger.view.run_state import UNKNOWN, RunState
from dlx.ledger.view.runs import quorum_of


def jury(state: RunState, stage: int, account: str) -> tuple[str, ...]:
    """Who may convict the account of a contribution to the stage, ascending: all members of the stage with a vote
    that they earned, but the account itself."""
    members = (state.by_slot[replica, stage] for replica in replicas(state.stages[stage].earned))
    return ascending([member for member in members if member != account])


def convictions_needed(state: RunState, stage: int, account: str) -> int:
    """How many of the jury it takes: as many as a seal that is not overdue. The account counts as one vote more
    even if it has none (any more)."""
    return quorum_of(state.config, len(jury(state, stage, account)) + 1)


def may_convict(state: RunState, stage: int, account: str, signers: Collection[str]) -> bool:
    """Whether verdicts of these accounts against a contribution of the account to the stage convict it now."""
    standing = state.standings.get(account, UNKNOWN)
    if standing.convicted or not standing.stages >> stage & 1:
        return False
    return len({*signers} & {*jury(state, stage, account)}) >= convictions_needed(state, stage, account)
