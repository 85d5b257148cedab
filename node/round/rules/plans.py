"""Which plan binds which round, how far the run goes, and which plan a seal may carry: from the ledger's seals alone.

A plan sealed in round t binds round t + delay + 1: level and rank through the stage's own seal, the inner steps through
stage 0's, because the stages of a replica step together. Earlier rounds have the manifest's plan, and so has every
round of a run whose plan does not adapt, whatever a quorum may seal. A plan without inner steps ends a run that may
stop early: the round that it binds is not there.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from dlx.ledger.typed import Plan
from dlx.ledger.view.run_view import RunView
from dlx.node.round.rules import stopping
from dlx.training.outer import adaptive
from dlx.training.recipe.ladders import Ladders, ladders
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Adaptive
from dlx.training.recipe.recipe import Plan as ManifestPlan
from dlx.training.slot.segments import SEGMENT_STEPS, segment_steps

CATCH_UP_ROUNDS = 16  # a member that is further behind fetches the newest version, and folds back nothing older
RESETS, RESET_WINDOW = 4, 64  # counted contributions of an account that state a reset, at most, in so many rounds


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the manifest says about rounds, plans and what a contribution may state."""

    rounds: int  # at most
    delay: int
    plan: Plan
    codec: str
    adaptive: Adaptive | None
    tokens_per_step: int
    may_stop: bool = False  # before its last round, where its held-out loss no longer falls: see rules.stopping
    stop_seals: int = 0  # newest seals that this takes
    segment_steps: int = SEGMENT_STEPS["float32"]  # inner steps between two states that a contribution commits to
    private_data: bool = False  # whether contributions may come from it
    alpha: float = 0.0  # the part of the own payload that the start already has, where the delay is 1
    ahead: float = 0.0  # the part of the residual that it has

    @classmethod
    def of(cls, manifest: Manifest) -> "Terms":
        plan = Plan(manifest.plan.level, manifest.plan.rank, manifest.plan.inner_steps)
        return Terms(
            rounds=manifest.rounds,
            delay=manifest.outer.delay,
            plan=plan,
            codec=manifest.codec.name,
            adaptive=manifest.adaptive,
            tokens_per_step=manifest.tokens_per_step,
            may_stop=manifest.stop is not None,
            stop_seals=stopping.seals_needed(manifest),
            segment_steps=segment_steps(manifest),
            private_data=manifest.data.private,
            alpha=manifest.outer.alpha,
            ahead=manifest.outer.ahead,
        )

    @cached_property
    def ladders(self) -> Ladders:
        """The ranks and inner steps that plans of the run can have."""
        return ladders(self.codec, manifest_plan(self.plan), self.adaptive)

    @property
    def total_steps(self) -> int:
        """The inner steps of the run that the learning-rate schedule spans."""
        return self.rounds * self.plan.inner_steps if self.adaptive is None else self.adaptive.inner_steps


def manifest_plan(plan: Plan) -> ManifestPlan:
    """The plan as the training engine takes it."""
    return ManifestPlan(plan.level, plan.rank, plan.inner_steps)


def plan_of(terms: Terms, view: RunView, stage: int, round: int) -> Plan | None:
    """The plan that binds `round` for a stage; None as long as the seals that decide it are missing."""
    source = round - terms.delay - 1
    if source < 0 or (terms.adaptive is None and not terms.may_stop):
        return terms.plan
    own, first = view.sealed.get((stage, source)), view.sealed.get((0, source))
    if own is None or first is None:
        return None
    if terms.adaptive is None:
        return terms.plan if first.outcome.plan.inner_steps else ended(terms.plan)
    return Plan(own.outcome.plan.level, own.outcome.plan.rank, first.outcome.plan.inner_steps)


def deciding_seals(terms: Terms, view: RunView, stage: int, round: int) -> tuple[bytes, ...]:
    """The digests of the seals from which all follows that the ledger decides about a round: base version, plan,
    schedule, samples, what is folded back. Each names the one before it, so the newest of stage 0 and of the stage are
    enough; none for the first rounds. Raises KeyError where one is not sealed."""
    source = round - terms.delay - 1
    if source < 0:
        return ()
    return tuple(view.sealed[one, source].digest for one in dict.fromkeys((0, stage)))


def steps_before(terms: Terms, view: RunView, round: int) -> int:
    """Inner steps of the run before `round`: the index of the learning-rate schedule.

    Raises KeyError for a round so late that the plan of the one before it is not known.
    """
    from_seals = max(0, round - terms.delay - 1) if terms.adaptive else 0
    return (round - from_seals) * terms.plan.inner_steps + view.sealed.planned_steps(0, from_seals)


def seals_needed(terms: Terms) -> int:
    """How many of a stage's newest seals a member needs in full. These are those whose timings an adaptive plan rests
    on, whose plan binds a round, whose outer step a late member may still compute, and that may count a reset."""
    timed = CATCH_UP_ROUNDS + terms.delay + (terms.adaptive.window if terms.adaptive else 0)
    return max(terms.stop_seals, timed, RESET_WINDOW)


def has_round(terms: Terms, view: RunView, round: int) -> bool:
    """Whether the run has this round, as far as it can be known yet. Where the plan adapts, it ends with the round that
    reaches the manifest's inner steps. Where it may stop, a seal of stage 0 can say that a round is not there. It ends
    at the manifest's rounds in any case."""
    if round >= terms.rounds or is_stopped(terms, view, round):
        return False
    if terms.adaptive is None:
        return True
    known = min(round, view.next_round(0) + terms.delay + 1)
    return steps_before(terms, view, known) < terms.adaptive.inner_steps


def is_stopped(terms: Terms, view: RunView, round: int) -> bool:
    """Whether the seal that plans the round, or else the newest of stage 0, ends a run that may stop."""
    if not terms.may_stop:
        return False
    seals = min(round - terms.delay, view.next_round(0))
    return seals > 0 and view.sealed.planned_steps(0, seals) == view.sealed.planned_steps(0, seals - 1)


def finished(terms: Terms, view: RunView) -> bool:
    """Whether every stage has sealed the run's last round."""
    return view.created and not has_round(terms, view, min(map(view.next_round, range(view.config.stages))))


def kept_plan(terms: Terms, view: RunView, stage: int, round: int) -> Plan:
    """The plan that a seal of `round` carries if nothing changes: what went before. Raises KeyError where the view has
    not the seals of the round before by stage 0 and the stage: ask `may_plan` first."""
    found = plan_of(terms, view, stage, round + terms.delay)
    if found is None:
        raise KeyError((stage, round - 1))
    return found


def may_plan(terms: Terms, view: RunView, stage: int, round: int) -> bool:
    """Whether the view has what a seal's plan for `round` rests on; after a reorg it may not."""
    return plan_of(terms, view, stage, round + terms.delay) is not None


def ended(plan: Plan) -> Plan:
    """The plan of a round that the run does not have any more."""
    return replace(plan, inner_steps=0)


def next_plan(
    terms: Terms, view: RunView, stage: int, round: int, parts: Collection[int], is_over: bool = False
) -> Plan:
    """The plan that a seal of `round` gives: what went before, but at the end of a window one rung closer to what was
    measured. That is timings by earlier seals, and `parts`, what the contributions that this one counts state to have
    kept. `is_over`: whether the run stops, as `rules.stopping` has it."""
    before = kept_plan(terms, view, stage, round)
    if not before.inner_steps or (is_over and stage == 0):
        return ended(before)
    if terms.adaptive is None or not adaptive.ends_window(terms.adaptive, round):
        return before
    measured = plan_of(terms, view, stage, round)
    if measured is None or measured.rank != before.rank:  # a change that was sealed binds later rounds than this
        parts = ()
    rank = adaptive.next_rank(terms.ladders.ranks, before.rank, parts, terms.adaptive.energy)
    return Plan(before.level, rank, _next_inner_steps(terms, terms.adaptive, view, stage, round, before.inner_steps))


def plan_fault(
    terms: Terms,
    view: RunView,
    stage: int,
    round: int,
    plan: Plan,
    parts: Collection[int] | None = None,
    is_over: bool = False,
) -> str:
    """Why a seal of `round` must not carry `plan`; empty where it may: as `next_plan`, or as it was before. An auditor
    who lacks a statement (None) grants the rank its rung. `is_over`: as of `next_plan`."""
    before = kept_plan(terms, view, stage, round)
    if plan == before:
        return ""
    if terms.may_stop and stage == 0 and plan == ended(before):
        return "" if is_over else "it ends the run, whose held-out losses do not say that it is over"
    if not before.inner_steps:
        return f"{plan} after the run's end"
    if terms.adaptive is None:
        return f"{plan}, the manifest fixes {before}"
    if not adaptive.ends_window(terms.adaptive, round):
        return f"{plan} inside a window of {terms.adaptive.window} rounds, {before} went before"
    own = next_plan(terms, view, stage, round, parts or ())
    if parts is None and adaptive.within_a_rung(terms.ladders.ranks, plan.rank, before.rank):
        own = replace(own, rank=plan.rank)
    return "" if plan == own else f"{plan}, what was measured gives {own} after {before}"


def _next_inner_steps(terms: Terms, adapts: Adaptive, view: RunView, stage: int, round: int, current: int) -> int:
    if stage:
        return current
    earlier = range(max(0, round - adapts.window), round)  # sealed by every stage, so the same for everybody
    exchanges = [_exchange(view, at, earlier, current) for at in range(view.config.stages)]
    measured = [one for one in exchanges if one is not None]
    return adaptive.next_inner_steps(terms.ladders.inner_steps, current, measured)


def _exchange(view: RunView, stage: int, rounds: range, inner_steps: int) -> int | None:
    """The median over the counted contributions of rounds with as many inner steps as now."""
    counted = (record for round in rounds for record in view.sealed[stage, round].records)
    return adaptive.exchange(one.exchange for one in counted if one.inner_steps == inner_steps)
