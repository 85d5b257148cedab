"""Convictions: who judges, and how much weight it takes. As Verdicts.sol and Membership.sol."""

from collections.abc import Collection

from dlx.ledger.abi import ascending
from dlx.ledger.view.run_state import UNKNOWN, RunState
from dlx.ledger.view.seals import weight_in
from dlx.ledger.view.weights import ENOUGH


def jury(state: RunState, stage: int, account: str) -> tuple[str, ...]:
    """Who may convict the account of a contribution to the stage, ascending. All with weight there may, whether or not
    they hold a slot now, and founders where something is theirs; but never the account itself."""
    weighty = {one for one in state.accounts if weight_in(state, one, stage, None)}
    patrons = state.founders if _vacuum(state, stage) else ()
    return ascending({*weighty, *patrons} - {account})


def verdict_votes(state: RunState, stage: int, account: str, signers: Collection[str]) -> int:
    """The weight of these accounts against the account; any founder among them brings the founders' part."""
    others = {*signers} - {account}
    brings = _vacuum(state, stage) if others & {*state.founders} else 0
    return brings + sum(weight_in(state, one, stage, None) for one in others)


def verdicts_needed(state: RunState, stage: int, account: str) -> int:
    """The weight that convicts the account: two thirds of the others', and three fifths of all."""
    whole, own = max(ENOUGH, _earned(state, stage)), weight_in(state, account, stage, None)
    return max((2 * (whole - own) + 2) // 3, (3 * whole + 4) // 5)


def may_convict(state: RunState, stage: int, account: str, signers: Collection[str]) -> bool:
    """Whether verdicts of these accounts against a contribution of the account to the stage convict it."""
    standing = state.standings.get(account, UNKNOWN)
    if standing.convicted or not standing.stages >> stage & 1:
        return False
    return verdict_votes(state, stage, account, signers) >= verdicts_needed(state, stage, account)


def _vacuum(state: RunState, stage: int) -> int:
    return max(0, ENOUGH - _earned(state, stage))


def _earned(state: RunState, stage: int) -> int:
    """Of those with a slot of the stage, and what seals have left of that of the others; time takes none of it."""
    at, config = state.stage(stage), state.config
    absent = at.absent.later(at.absent.since, at.non_empty, config.round_timeout, config.horizon)
    return sum(at.lanes.weights) + absent.for_verdicts
