"""Sites: whose machines an account's site may place in slots. As Sites.sol."""

from collections.abc import Sequence

from dlx.ledger.view import runs
from dlx.ledger.view.run_state import RunState


def enlisted(state: RunState, site: str, now: int) -> dict[str, int]:
    """The accounts that the site's machines may place, with the stage that each asks for, in the order in which they
    enlisted first."""
    listed = state.enlistments.items()
    return {
        account: entry.stage
        for account, entry in listed
        if entry.site == site and entry.until >= now and not state.member(account).holds
    }


def enlisted_until(state: RunState, account: str) -> int:
    """Until when the others of its site may place the account; 0: not."""
    return state.enlistments[account].until if account in state.enlistments else 0


def may_slot(state: RunState, site: str, replica: int, accounts: Sequence[str], now: int) -> bool:
    """Whether any machine of the site may place these accounts, one for each stage, in the replica: each holds its
    slot there already, or is enlisted and may take it. Whether they are registered is not looked at."""
    if len(accounts) != state.config.stages or replica >= state.config.max_replicas:
        return False
    if len({*accounts}) < len(accounts) or any(site_of(state, account) != site for account in accounts):
        return False
    return all(
        state.member_at(replica, stage) == account or may_take(state, account, replica, stage, now)
        for stage, account in enumerate(accounts)
    )


def may_take(state: RunState, account: str, replica: int, stage: int, now: int) -> bool:
    """Whether its site may place the account there. Whether it is registered is not looked at."""
    member = state.member(account)
    able = not member.holds and not state.finished and not state.is_convicted(account)
    stays = stage == member.stage or not state.changed_now(member)
    return (
        able and stays and enlisted_until(state, account) >= now and runs.is_free(state, replica, stage, account, now)
    )


def site_of(state: RunState, account: str) -> str | None:
    """The site that last named the account its own."""
    return state.enlistments[account].site if account in state.enlistments else None


def site_at(state: RunState, replica: int) -> str | None:
    """The site whose machines hold all slots of the replica; None where there is none."""
    members = [state.member_at(replica, stage) for stage in range(state.config.stages)]
    sites = {site_of(state, account) if account else None for account in members}
    return sites.pop() if len(sites) == 1 else None
