"""How the machines of one site come to sit together: what one of them does next, from the ledger alone."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dlx.ledger.typed import ANY_STAGE
from dlx.ledger.view.run_view import RunView

ENLISTED_SECONDS = 1800  # for which a machine lets the others give it a slot
RENEWED_SECONDS = 300  # before that is over


@dataclass(frozen=True)
class Enlist:
    """Let the others give this machine a slot until then."""

    until: int


@dataclass(frozen=True)
class TakeSlots:
    """Slot these accounts, one for each stage. `turn`: so many of the newcomers do so before this one."""

    replica: int
    accounts: tuple[str, ...]
    turn: int


@dataclass(frozen=True)
class Wait:
    """For what, in words."""

    reason: str


def next_step(
    view: RunView, site: str, account: str, now: int, registered: Collection[str]
) -> Enlist | TakeSlots | Wait:
    """Of a machine of the site that holds no slot. A replica where others of the site wait for one comes first."""
    if view.site_of(account) != site or view.enlisted_until(account) < now + RENEWED_SECONDS:
        return Enlist(now + ENLISTED_SECONDS)
    able = {one: stage for one, stage in view.enlisted(site, now).items() if one in registered}
    stages = view.config.stages
    replicas = range(view.config.max_replicas)
    mates = {
        replica: sum(view.member_at(replica, stage) is not None for stage in range(stages)) for replica in replicas
    }
    for replica in sorted(replicas, key=lambda one: (-mates[one], one)):
        accounts = _placing(view, replica, able, now)
        if accounts is not None and view.may_slot(site, replica, accounts, now):
            newcomers = sorted(set(accounts) & set(able))
            if account in newcomers:
                return TakeSlots(replica, accounts, newcomers.index(account))
            return Wait("more machines of the site: others of it take the next replica")
    if _fill({}, able, stages, lambda *_: True) is None:
        return Wait(f"the site's other machines: {len(able)} of {stages} are here, asking for {_asked(able)}")
    return Wait("a replica that nobody else holds a slot of")


def stays(view: RunView, account: str) -> bool:
    """Whether the account sits with others of its site: by itself it would only leave them."""
    slot, site = view.slot_of(account), view.site_of(account)
    if slot is None or site is None:
        return False
    others = (view.member_at(slot[0], stage) for stage in range(view.config.stages) if stage != slot[1])
    return any(other is not None and view.site_of(other) == site for other in others)


def _placing(view: RunView, replica: int, able: Mapping[str, int], now: int) -> tuple[str, ...] | None:
    """Who would sit where; None where a slot stays empty, or all are taken."""
    stages = range(view.config.stages)
    held = {stage: member for stage in stages if (member := view.member_at(replica, stage)) is not None}
    if len(held) == len(stages):
        return None
    return _fill(held, able, len(stages), lambda account, stage: view.may_take(account, replica, stage, now))


def _fill(
    held: Mapping[int, str], able: Mapping[str, int], stages: int, may_take: Callable[[str, int], bool]
) -> tuple[str, ...] | None:
    """Each free slot to the first that asks for its stage, else to the first that takes any. Who may not take it, as
    one that was convicted, is passed over: one machine keeps no others from their slots."""
    slots = dict(held)
    for asked in (True, False):
        for stage in range(stages):
            fit = (
                account
                for account, wish in able.items()
                if wish == (stage if asked else ANY_STAGE)
                and account not in slots.values()
                and may_take(account, stage)
            )
            if stage not in slots and (account := next(fit, None)) is not None:
                slots[stage] = account
    return tuple(slots[stage] for stage in range(stages)) if len(slots) == stages else None


def _asked(able: Mapping[str, int]) -> str:
    return ", ".join("any stage" if stage == ANY_STAGE else f"stage {stage}" for stage in able.values()) or "none"
