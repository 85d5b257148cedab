"""How an account stands on the ledger, in words: whether it votes and why not yet, and what it has to know."""

from datetime import UTC, datetime

from dlx.ledger.view import UNCOUNTED_ROUNDS, RunView


def vote(view: RunView, account: str) -> str | None:
    """Whether the account's signature is a vote on its stage's next seal; None where it holds no seat."""
    slot = view.slot_of(account)
    if slot is None:
        return None
    replica, stage = slot
    counted = view.times_counted(account)
    if account in view.voters(stage):
        if not view.has_earned(stage):
            return "yes, like everybody in a complete replica as long as no work was counted"
        return f"yes: counted {_times(counted)} in the last 8 seals of the stage that count anything"
    if not view.has_earned(stage):
        return f"not yet: replica {replica} has free seats"
    missing = view.counts_for_a_vote(stage) - counted
    return f"not yet: counted {_times(counted)}, {'one more' if missing == 1 else f'{missing} more'} to vote"


def notices(view: RunView, account: str, now: float) -> tuple[str, ...]:
    """What may cost, or has cost, the account its seat."""
    slot, at = view.slot_of(account), int(now)
    if slot is None:
        return tuple(
            f"evicted: the seat of stage {stage} in replica {replica} waits for this node until {_time(kept.until)}"
            for (replica, stage), kept in view.returns.items()
            if kept.account == account and kept.until >= at and view.holder(replica, stage) is None
        )
    found = []
    asked = view.accusations.get(account)
    if asked is not None:
        until = _time(asked.time + view.config.eviction_time)
        only = "only being counted keeps the seat" if asked.forfeit else "an answer, or being counted, keeps the seat"
        found.append(f"accused: {only}, until {until}")
    elif view.is_forfeit(account, at):
        found.append("forfeit: anybody may ask for this seat, and then only being counted keeps it")
    if view.open_round is not None and view.may_deal(slot[0]):
        rounds = f"replica {slot[0]} was not counted for {UNCOUNTED_ROUNDS} rounds"
        found.append(f"{rounds}: anybody may deal its holders to other replicas")
    return tuple(found)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")
