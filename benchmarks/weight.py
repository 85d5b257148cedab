"""The ledger's rules of weight for one stage, each of which can be left out: who can seal, convict, and what fades.

`benchmarks.politics` plays members against them. The arithmetic is the view's own (`dlx.ledger.view.weights`), and
`tests/ledger/view/test_simulated.py` plays both side by side. Times are in seconds, weights in 65536ths of what a lone
member that always works has. In `Stage` an account is a name.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dlx.ledger.view.runs import EMPTY_SEALS
from dlx.ledger.view.weights import (
    ABSENT_TIMEOUTS,
    ENOUGH,
    LATE_TIMEOUTS,
    STRIDE,
    Credit,
    Lanes,
    aged,
    faded,
    shares,
)

BY_SEALS = 0  # a half-life of who is absent: none, it fades with seals alone
TIMEOUT, EVICTION, SHORTEST = 120, 60, 1  # seconds: the manifest's defaults


@dataclass(frozen=True)
class Rules:
    """The constants, and for each rule whether it is in force. Half-lives are in round timeouts."""

    horizon: int = 128
    quorum: tuple[int, int] = (5, 8)
    enough: int = ENOUGH
    late: int = LATE_TIMEOUTS
    absent: int = ABSENT_TIMEOUTS
    least: int = 3  # a seal needs one in so many parts of the total, however late; FULL: no bound
    founders_convict: bool = True
    fades_with_seals: bool = True
    returns_slowly: bool = True
    all_makers_gain: bool = True
    dithered: bool = True


class Gone(NamedTuple):
    """Who has no slot any more: its weight when it left, the time, and the number of non-empty seals then."""

    weight: int
    at: int
    seals: int


@dataclass
class Stage:
    """A stage of a run, alone in it. `weights` are those of the lanes, `gone` those of who has no slot. `rounds` counts
    all seals, `seals` those that are not empty, `empties` the empty ones since the newest of these."""

    rules: Rules = field(default_factory=Rules)
    now: int = 0
    opened: int = 0
    seals: int = 0
    rounds: int = 0
    empties: int = 0
    weights: dict[str, int] = field(default_factory=dict)
    gone: dict[str, Gone] = field(default_factory=dict)


def credits_of(steps: Mapping[str, int], seals: int, horizon: int) -> dict[str, Credit]:
    """What a seal adds to each maker, by steps."""
    return dict(zip(steps, shares([*steps.values()], seals, horizon), strict=True))


def absent(stage: Stage, account: str, half: int) -> int:
    """What is left of an absent member's weight. `half` is in round timeouts."""
    gone = stage.gone.get(account)
    if gone is None:
        return 0
    seals = stage.seals - gone.seals if stage.rules.fades_with_seals else 0
    left = aged(gone.weight, seals, stage.rules.horizon)
    return left if half == BY_SEALS else faded(left, stage.now - gone.at, half * TIMEOUT)


def weight_of(stage: Stage, accounts: Iterable[str], half: int) -> int:
    """The weight of these accounts, with a slot or without."""
    return sum(stage.weights.get(account, 0) + absent(stage, account, half) for account in accounts)


def vacuum(stage: Stage, half: int) -> int:
    """What the founders hold because work has not earned it yet."""
    return max(0, stage.rules.enough - weight_of(stage, {**stage.weights, **stage.gone}, half))


def total(stage: Stage, half: int) -> int:
    """All weight of the stage, the vacuum included."""
    return max(stage.rules.enough, weight_of(stage, {**stage.weights, **stage.gone}, half))


def takes(stage: Stage, signers: Collection[str], makers: Collection[str], founder: bool) -> bool:
    """Whether the ledger takes a seal now."""
    rules, half = stage.rules, stage.rules.absent
    numerator, denominator = rules.quorum
    brought = vacuum(stage, half) if founder else 0
    whole, votes = total(stage, half), weight_of(stage, signers, half) + brought
    if stage.now < stage.opened + TIMEOUT:
        made = weight_of(stage, makers, half) + brought if makers else 0
        if stage.now < stage.opened + SHORTEST or made * denominator < numerator * whole:
            return False
    silent = faded(whole - votes, stage.now - stage.opened - TIMEOUT, rules.late * TIMEOUT)
    enough = votes * denominator >= numerator * (votes + silent)
    return enough and votes * rules.least >= whole


def seal(stage: Stage, steps: Mapping[str, int], signers: Iterable[str]) -> Stage:
    """The stage after a seal that the ledger takes; without steps it is an empty one."""
    after = replace(stage, opened=stage.now, rounds=stage.rounds + 1, empties=stage.empties + 1)
    if not steps:
        return after
    rules, places = stage.rules, {account: lane for lane, account in enumerate(stage.weights)}
    late = stage.now >= stage.opened + TIMEOUT and not rules.all_makers_gain
    gains = {
        places[maker]: credit
        for maker, credit in credits_of(steps, stage.seals, rules.horizon).items()
        if maker in places and (not late or maker in signers)
    }
    turn = stage.seals if rules.dithered else -pow(STRIDE, -1, rules.horizon)  # in which what fades is rounded up
    before = replace(Lanes.of(len(places)), weights=tuple(stage.weights.values()))
    weights = dict(zip(places, before.sealed(turn, rules.horizon, gains).weights, strict=True))
    return replace(after, seals=stage.seals + 1, empties=0, weights=weights)


def left(stage: Stage, account: str) -> Stage:
    """The stage after an account lost or gave back its slot."""
    weights = {other: weight for other, weight in stage.weights.items() if other != account}
    gone = {**stage.gone, account: Gone(stage.weights[account], stage.now, stage.seals)}
    return replace(stage, weights=weights, gone=gone)


def joined(stage: Stage, account: str) -> Stage:
    """The stage after an account took a slot; what is left of its weight comes back with it."""
    half = BY_SEALS if stage.rules.returns_slowly else stage.rules.absent
    weights = {**stage.weights, account: absent(stage, account, half)}
    return replace(stage, weights=weights, gone={other: g for other, g in stage.gone.items() if other != account})


def convicts(stage: Stage, accused: str, signers: Iterable[str], founder: bool) -> bool:
    """Whether verdicts of these convict the account."""
    brought = vacuum(stage, BY_SEALS) if founder and stage.rules.founders_convict else 0
    votes = weight_of(stage, set(signers) - {accused}, BY_SEALS) + brought
    whole = total(stage, BY_SEALS)
    return 3 * votes >= 2 * (whole - weight_of(stage, [accused], BY_SEALS)) and 5 * votes >= 3 * whole


def convicted(stage: Stage, account: str) -> Stage:
    """The stage without the account and its weight."""
    return replace(
        stage,
        weights={other: weight for other, weight in stage.weights.items() if other != account},
        gone={other: gone for other, gone in stage.gone.items() if other != account},
    )


def stands_still(stage: Stage) -> bool:
    """Whether the newest seals were all empty, or all but an eighth of all."""
    return stage.empties >= EMPTY_SEALS or (stage.rounds >= 2 * EMPTY_SEALS and 8 * stage.seals < stage.rounds)


def dismissible(stage: Stage, account: str) -> bool:
    """Whether a founder may free the account's slot."""
    vacant, whole = vacuum(stage, stage.rules.absent), total(stage, stage.rules.absent)
    return 3 * vacant >= 2 * whole or (0 < vacant >= stage.weights[account] and stands_still(stage))
