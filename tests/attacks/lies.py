"""What members of a run do who take part without doing what they say: one entry each, with the name it goes by.

The same entry drives a liar's training process in a real run (`tests.attacks.liar`) and its replica in the simulation
(`benchmarks.attacks`), so that both tables speak of the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dlx.node.round.rules.plans import RESET_WINDOW, RESETS
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Precision
from dlx.training.slot.segments import segment_steps, segments_in

Tensors = Mapping[str, Tensor]
Ends = Callable[[Tensors, Tensors, int], dict[str, Tensor]]  # (start, honest end, round) -> what it says its end is
Updates = Callable[[Tensors, Sequence[Tensors], Tensors | None], Tensors]  # (own, others', own of the round before)

ALIE_DEVIATIONS = 1.0  # how far from the mean its authors put a contribution of so few (arXiv 1902.06156)


@dataclass(frozen=True, kw_only=True)
class Lie:
    """Everything that is not named is done honestly. `work` is the part of honest compute that it takes."""

    name: str
    about: str
    work: float = 1.0
    liars: int = 1  # replicas of four
    skips: Callable[[int], bool] = lambda done: False  # whether it leaves out a step, numbered in its round
    lots: Callable[[int, int], int] = lambda round, replicas: 0  # how many lots behind its own it takes its samples
    rate: float = 1.0  # of the inner learning rate
    bfloat16: bool = False
    seen: Callable[[Tensor], Tensor] | None = None  # what its passes take for a weight, which itself stays as it is
    frozen: Callable[[str], bool] = lambda name: False  # which tensors never change
    end: Ends | None = None
    last_segment: bool = False  # whether `end` is of the round's last segment alone, and not of all of it
    resets: Callable[[int], bool] = lambda own: False  # whether its round of this number, its first is 0, begins anew
    update: Updates | None = None  # what it encodes in place of what its work gave
    copies: str = ""  # "own" or "mate": whose older payload it publishes as this round's
    loss: float = 1.0  # what it makes of the loss
    beside: int = 0  # inner steps that everybody takes, where honest members are slow (simulation only); 0: all
    quick: int = 0  # of the others, so many take all steps all the same (simulation only)
    overstates: bool = False  # whether it states all steps, whatever it took (simulation only)
    ends: int = 0  # rounds after which it is found out, and its replica gone (simulation only); 0: never
    node: str = ""  # what its network process does, see tests.attacks.network
    harms: bool = True  # whether the simulation shows anything of it
    replicas: int = 4  # of a real run, its liars' included
    stages: int = 2  # of a real run
    rounds: int = 0  # of a real run that it takes at least to be seen
    precision: Precision = "float32"  # of the run that it is played in: in bfloat16 its rounds have several segments
    differs: float = 0.0  # how far what it sends is at least from its honest work, as a part of that; 0: anyhow

    @property
    def is_honest(self) -> bool:
        alone = replace(self, precision="float32", beside=0, quick=0)  # whatever others do
        return replace(alone, name="", about="") == replace(_HONEST, name="", about="")


_HONEST = Lie(name="honest", about="does what it says")


def _noise(scale: float) -> Ends:
    def end(start: Tensors, honest: Tensors, round: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(round)
        made = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in start.items()}
        size = _norm({name: honest[name] - start[name] for name in start})
        factor = scale * (size or 1.0) / _norm(made)
        return {name: start[name] + factor * made[name] for name in start}

    return end


def _scaled(by: float) -> Ends:
    return lambda start, honest, round: {name: one + by * (honest[name] - one) for name, one in start.items()}


def _int8(weight: Tensor) -> Tensor:
    """A matrix in 8 bits, each row with a scale of its own; a vector as it is."""
    if weight.dim() < 2:
        return weight
    scale = weight.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (weight / scale).round() * scale


def lying_passes(lie: Lie, honest: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """`run_step`, whose model computes with what the lie makes of its weights."""

    def run_step(model: torch.nn.Module, *known: object, **named: object) -> Tensor | None:
        if lie.seen is None:
            return honest(model, *known, **named)
        kept = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
        try:
            with torch.no_grad():
                for parameter, true in kept:
                    parameter.copy_(lie.seen(true))
            return honest(model, *known, **named)
        finally:
            with torch.no_grad():
                for parameter, true in kept:
                    parameter.copy_(true)

    return run_step


def last_segment(manifest: Manifest) -> int:
    """The number of the last segment's first step, in a round of the plan's."""
    length, steps = segment_steps(manifest), manifest.plan.inner_steps
    return (segments_in(steps, length) - 1) * length


def _alie(own: Tensors, others: Sequence[Tensors], before: Tensors | None) -> Tensors:
    """A little is enough: the others' mean less so many of their standard deviations, which no outlier test sees."""
    if len(others) < 2:
        return own
    found = {}
    for name in own:
        stacked = torch.stack([one[name] for one in others])
        found[name] = stacked.mean(0) - ALIE_DEVIATIONS * stacked.std(0)
    return found


def _against_a_victim(own: Tensors, others: Sequence[Tensors], before: Tensors | None) -> Tensors:
    """What all others but one have in common, less so much of the one's that it pulls against that one alone."""
    if len(others) < 2:
        return own
    victim, *rest = others
    common = _sum(rest)
    factor = 1.5 * _along(common, victim)
    return _as_long_as({name: one - factor * victim[name] for name, one in common.items()}, victim)


def _against_the_common(own: Tensors, others: Sequence[Tensors], before: Tensors | None) -> Tensors:
    """Its honest work without nearly all that it has in common with others', as long as theirs."""
    if not others:
        return own
    common = _sum(others)
    factor = 0.95 * _along(own, common)
    return _as_long_as({name: one - factor * common[name] for name, one in own.items()}, others[0])


def _sum(tensors: Sequence[Tensors]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in tensors]).sum(0) for name in tensors[0]}


def _along(one: Tensors, other: Tensors) -> float:
    """How many times the other lies in it."""
    product = sum(float((one[name].double() * other[name]).sum()) for name in other)
    return product / max(1e-300, _norm(other) ** 2)


def _as_long_as(one: Tensors, other: Tensors) -> dict[str, Tensor]:
    factor = _norm(other) / max(1e-300, _norm(one))
    return {name: factor * tensor for name, tensor in one.items()}


LIES = {
    lie.name: lie
    for lie in (
        # First, because no seal may have counted its replica.
        Lie(name="all-steps", about="takes all steps of its first round, which is a trial", node="all-steps"),
        _HONEST,
        Lie(name="noise", about="random weights, as far from the start as honest ones", work=0.0, end=_noise(1.0),
            differs=1.0),
        Lie(name="noise-10x", about="the same, ten times as far", work=0.0, end=_noise(10.0), differs=9.0),
        Lie(name="sign-flip", about="trains, then steps the other way", end=_scaled(-1), differs=1.9),
        Lie(name="zeros", about="no step at all", work=0.0, skips=lambda done: True),
        Lie(name="other-data", about="trains on another replica's data", lots=lambda round, replicas: 1),
        Lie(
            name="old-data",
            about="trains on the data of the round before",
            lots=lambda round, replicas: -replicas if round else 0,
        ),
        Lie(name="half-steps", about="5 of 10 steps", work=0.5, skips=lambda done: done >= 5),
        Lie(name="nine-steps", about="9 of 10 steps", work=0.9, skips=lambda done: done >= 9),
        Lie(name="stale-copy", about="its payload of the round before, again", work=0.0, copies="own", differs=0.1),
        Lie(name="mate-copy", about="the payload of another replica", work=0.0, copies="mate", differs=0.1),
        Lie(
            name="poison",
            about="honest work, and ten times its opposite as payload",
            update=lambda own, others, before: {name: -10 * tensor for name, tensor in own.items()},
            differs=10.9,
        ),
        Lie(
            name="own-multiplier",
            about="200,000 times its work, and as proposer a 1 where its multiplier is 0",
            end=_scaled(2e5),
            differs=1e5,
            node="own-multiplier",
        ),
        Lie(name="slow", about="does what it says; all take 2 of 10 steps", beside=2),
        Lie(name="overstates", about="2 steps as all others; states 10, and sends 5 times the opposite of its work",
            work=0.2, beside=2, overstates=True, end=_scaled(-5), differs=5.9),
        Lie(name="nothing-of-most", about="2 steps as all others; states 10, and sends a thousandth of its work",
            work=0.2, beside=2, overstates=True, end=_scaled(1e-3), differs=0.9),
        Lie(name="three-quick", about="does what it says; three take all of 10 steps, all others 2", beside=2, quick=3),
        Lie(name="nothing-of-some", about="2 steps; states 10 as the three quick ones, sends a thousandth of its work",
            work=0.2, beside=2, quick=3, overstates=True, end=_scaled(1e-3), differs=0.9),
        Lie(name="rate", about="an inner learning rate 10% too high", rate=1.1),
        Lie(name="bfloat16", about="bfloat16 for float32", work=0.5, bfloat16=True),
        Lie(name="loss", about="half of its loss", loss=0.5),
        Lie(name="withhold", about="keeps the drawn states to itself", node="withhold"),
        Lie(name="equivocate", about="signs two contributions to a round", node="equivocate"),
        Lie(name="censor", about="lists and signs only what leaves the others out", node="censor"),
        Lie(name="collude", about="half of the replicas: noise, and verdicts for each other", work=0.0, liars=2,
            end=_noise(1.0), node="collude", differs=1.0),
        Lie(name="captor", about="3 of 8 slots of a stage: 1 of 10 steps in 2 of 8 rounds", work=1 / 40, liars=3,
            node="captor", harms=False, replicas=8, stages=1, rounds=24),
        Lie(name="outage", about="half of all members: away for 6 round timeouts", liars=2, node="outage",
            harms=False, rounds=56),
        Lie(name="alie", about="what others sent, a little off (ALIE)", work=0.0, update=_alie, differs=0.1),
        Lie(name="against-a-victim", about="pulls against one other and with the rest, which the policy lets pass",
            work=0.0, update=_against_a_victim, differs=0.5),
        Lie(name="against-the-common", about="its work without what it has in common with others'",
            update=_against_the_common, differs=0.1),
        Lie(name="resets", about="residual and moments from zeros in every round", resets=lambda own: True),
        Lie(name="resets-4", about="the same, in as many rounds as may be: 4 of 64",
            resets=lambda own: 0 < own % RESET_WINDOW <= RESETS),
        Lie(name="honest-bfloat16", about="does what it says, in bfloat16", precision="bfloat16"),
        Lie(name="last-segment", about="-10 times its update, in the last of 3 segments only (bfloat16)",
            end=_scaled(-10), last_segment=True, precision="bfloat16", differs=1.5),
        Lie(name="int8-weights", about="passes with weights of 8 bits (bfloat16)", seen=_int8, precision="bfloat16"),
        Lie(name="frozen-norms", about="norms that never change (bfloat16)", frozen=lambda name: "norm" in name,
            precision="bfloat16"),
    )
}  # fmt: skip


def _norm(tensors: Tensors) -> float:
    return sum(float(one.double().square().sum()) for one in tensors.values()) ** 0.5
