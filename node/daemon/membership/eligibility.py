"""How an account stands on the ledger, in words: how much it weighs in its stage, and what it has to know or to do."""

from collections.abc import Sequence
from datetime import UTC, datetime

from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.runs import UNCOUNTED_ROUNDS
from dlx.node.home.program import line
from dlx.node.round.rules.round_rules import weight_share

_NAMED = 8  # accounts of a stage


def weight(view: RunView, account: str, now: float) -> str | None:
    """How much the account's signature weighs in its stage; None where it holds no slot."""
    slot = view.slot_of(account)
    if slot is None:
        return None
    stage, at = slot[1], int(now)
    said = f"{weight_share(view, account, stage, now):.0%} of stage {stage}'s, by work that seals counted lately"
    held = view.vacuum(stage, at) / view.total(stage, at)
    return f"{said}; founders hold {held:.0%} until work has earned it" if held else said


def notices(view: RunView, account: str, now: float) -> tuple[str, ...]:
    """What may cost, or has cost, the account its slot, and whom it may dismiss as a founder."""
    if view.finished:
        return ()
    return *_own_slot(view, account, now), *_dismissals(view, account, int(now))


def _own_slot(view: RunView, account: str, now: float) -> tuple[str, ...]:
    slot, at = view.slot_of(account), int(now)
    if slot is None:
        return tuple(
            f"the slot of stage {stage} in replica {replica} waits for this node until "
            f"{_time(view.returns[replica, stage].until)}: it was evicted, or a founder named it"
            for replica, stage in view.waiting_for(account, at)
        )
    found = []
    asked = view.accusations.get(account)
    if asked is not None:
        until = _time(asked.time + view.config.eviction_time)
        only = "only being counted keeps the slot" if asked.forfeit else "an answer, or being counted, keeps the slot"
        found.append(f"accused: {only}, until {until}")
    elif view.is_forfeit(account):
        found.append("forfeit: anybody may ask for this slot, and then only being counted keeps it")
    if view.config.stages > 1 and view.open_round is not None and view.may_deal(slot[0]):  # else there is none to part
        rounds = f"replica {slot[0]} was not counted for {UNCOUNTED_ROUNDS} rounds"
        found.append(f"{rounds}: anybody may deal its members to other replicas")
    return tuple(found)


def _dismissals(view: RunView, account: str, now: int) -> tuple[str, ...]:
    """Where a stage stands still: whom the founder may dismiss, in all stages. Which of them holds it up nobody can
    tell by that: a stage beside it may seal what its members made up."""
    if not view.created or not view.is_founder(account):
        return ()
    stages = range(view.config.stages)
    still = [str(stage) for stage in stages if view.stands_still(stage)]
    may = {
        stage: [one for one in view.members_in(stage) if one != account and view.may_dismiss(account, one, now)]
        for stage in (stages if still else ())
    }
    if not any(may.values()):
        return ()
    paste = line("run", "dismiss", "ACCOUNT", "--run", f"0x{view.run.hex()}", of_ledger=True)
    whom = "; ".join(f"of stage {stage} {_listed(accounts)}" for stage, accounts in may.items() if accounts)
    return (
        f"stage {', '.join(still)} stands still. Who holds it up may sit in another stage, whose seals nobody can use. "
        f"`{paste}` frees a slot, --for SUCCESSOR says for whom. You may dismiss {whom}",
    )


def _listed(accounts: Sequence[str]) -> str:
    more = f" and {len(accounts) - _NAMED} more" if len(accounts) > _NAMED else ""
    return ", ".join(accounts[:_NAMED]) + more


def full(view: RunView, stage: int | None, now: float) -> str:
    """Why an account that asks for a slot of this stage (None: of any) gets none."""
    stages = range(view.config.stages) if stage is None else (stage,)
    slots = [(replica, one) for replica in range(view.config.max_replicas) for one in stages]
    kept = [view.returns[slot].until for slot in slots if slot in view.returns and view.member_at(*slot) is None]
    waiting = [until for until in kept if until >= now]
    where = "the run" if stage is None else f"stage {stage}"
    said = f"{where} is full: {'its only slot is' if len(slots) == 1 else f'all its {len(slots)} slots are'} taken"
    if not waiting:
        return said
    return f"{said} ({len(waiting)} until {_time(min(waiting))} by whom they wait for)"


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")
