"""What a slot of a run takes of its member: memory, disk, bytes and gas, each with what it is per. Without torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dlx.ground.rounding import two_digits
from dlx.ledger.client import most_gas, usual_seal_gas
from dlx.ledger.errors import LedgerError
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions import fees
from dlx.ledger.transactions.fees import ETH, Limits, eth, gwei
from dlx.ledger.view.run_view import RunView
from dlx.node.home.formatting import DAY, lasting, size
from dlx.node.home.settings import Settings
from dlx.node.round.rules.plans import Terms, finished, plan_of, steps_before
from dlx.node.runs.upkeep import StageSizes, stage_sizes, upkeep
from dlx.training.balance.history import FLOAT
from dlx.training.models.shapes import frozen_shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Evaluation

NEWEST = 20  # rounds of which their seconds are the mean


class SlotCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, each of the stage that takes most of them. With the plan of the next round."""

    memory: int  # of weights, gradients and optimiser state; activations come on top, which `run plan` says
    disk: int  # at the run's end, at most
    sent: int  # payloads to the other replicas in a round; as many bytes come from them
    pipes: int  # to the stages beside it in an inner step; as many bytes come from them
    inner_steps: int  # of the next round
    replicas: int  # at work, which all this is of


class GasPrice(NamedTuple):
    """Wei for a unit of gas."""

    now: int
    cap: int  # that a transaction of now allows


class Gas(msgspec.Struct, frozen=True, kw_only=True):
    """At the price of now; without what a rollup asks for the layer below it."""

    price_wei: int  # of a unit of gas
    joining_wei: int  # to register and join, once: the account has to hold at most so much, and pays less
    round_wei: int  # as expected
    day_wei: int | None  # as expected; None where nobody knows how long a round takes
    seconds: float | None  # of a round


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """What a slot takes."""

    costs: SlotCosts | None  # None without the manifest
    seconds: float | None  # of a round, the mean of the newest; None: fewer than two are sealed
    bytes_a_day: int | None  # each way, with such rounds
    gas: Gas | None
    gas_unknown: str  # why
    bond_wei: int  # that it locks


class OnLedger(NamedTuple):
    """A run as its ledger has it, for who would be its member."""

    manifest: Manifest
    view: RunView
    rounds_left: int
    take: Take
    chain_id: int
    budget: float  # ETH that a node pays in a day at most; 0: any sum


def at_work(view: RunView) -> int:
    """Replicas: the complete ones, or those at which the run opens."""
    return max(view.config.min_replicas, len(view.complete_replicas()))


def round_seconds(view: RunView) -> float | None:
    """Of a round, the mean of the newest, by the times of their last seals; None where fewer than two are sealed."""
    last = min(map(view.next_round, range(view.config.stages))) - 1
    first = max(0, last - NEWEST)
    if last <= first:
        return None
    return max(1, _sealed_at(view, last) - _sealed_at(view, first)) / (last - first)


def rounds_left(manifest: Manifest, view: RunView) -> int:
    """That the run has if it keeps its present plan."""
    terms, round = Terms.of(manifest), _next(view)
    if finished(terms, view):
        return 0
    if manifest.adaptive is None:
        return terms.rounds - round
    steps = manifest.adaptive.inner_steps - steps_before(terms, view, round)
    return min(terms.rounds - round, math.ceil(steps / inner_steps(manifest, view)))


def inner_steps(manifest: Manifest, view: RunView) -> int:
    """Of the next round, or of the last ones where the run is finished."""
    found = plan_of(Terms.of(manifest), view, 0, _next(view))
    return manifest.plan.inner_steps if found is None or not found.inner_steps else found.inner_steps


def slot_costs(manifest: Manifest, view: RunView) -> SlotCosts:
    """With the plan and the replicas that are at work now."""
    steps, replicas = inner_steps(manifest, view), at_work(view)
    now = replace(manifest, plan=replace(manifest.plan, inner_steps=steps))
    sizes = [stage_sizes(now, stage) for stage in range(len(now.stages))]
    return SlotCosts(
        memory=max(_memory(now, stage, one) for stage, one in enumerate(sizes)),
        disk=max(upkeep(now, one, replicas).disk for one in sizes),
        sent=(replicas - 1) * max(one.payload for one in sizes),
        pipes=max(one.pipes for one in sizes),
        inner_steps=steps,
        replicas=replicas,
    )


def take(view: RunView, manifest: Manifest | None, price: GasPrice | str, seconds: float | None) -> Take:
    """`price`: as `gas_price` gives it. `seconds`: of a round, as `round_seconds` does."""
    costs, a_day = None if manifest is None else slot_costs(manifest, view), None
    if costs is not None and seconds is not None:
        a_day = round(DAY / seconds * (costs.sent + costs.inner_steps * costs.pipes))
    evaluation = None if manifest is None else manifest.evaluation
    return Take(
        costs=costs,
        seconds=seconds,
        bytes_a_day=a_day,
        gas=gas_of(view, evaluation, price, seconds) if isinstance(price, GasPrice) else None,
        gas_unknown=price if isinstance(price, str) else "",
        bond_wei=view.config.bond,
    )


def gas_price(rpc: RpcClient, limits: Limits) -> GasPrice | str:
    """Of now, or why it is not known."""
    try:
        head = rpc.head()
        named = fees.price(rpc, head, limits)
    except LedgerError as error:
        return str(error)
    return GasPrice(now=min(named.max_fee, (head.base_fee or 0) + named.tip), cap=named.max_fee)


def gas_a_round(view: RunView, evaluation: Evaluation | None) -> float:
    """Units of gas that a member pays of a round, as expected. One member of a stage sends its seal. Drawn members of
    the last stage send what they evaluated; `evaluation`: None where the manifest is not known."""
    replicas = at_work(view)
    seals = usual_seal_gas(replicas) / replicas
    if evaluation is None or not evaluation.every:
        return seals
    drawn = min(1.0, evaluation.replicas / replicas) / evaluation.every
    return seals + drawn * most_gas("evaluate")


def gas_of(view: RunView, evaluation: Evaluation | None, price: GasPrice, seconds: float | None) -> Gas:
    """`seconds`: of a round."""
    each = gas_a_round(view, evaluation) * price.now
    return Gas(
        price_wei=price.now,
        joining_wei=(most_gas("register") + most_gas("joinRun")) * price.cap,
        round_wei=round(each),
        day_wei=None if seconds is None else round(each * DAY / seconds),
        seconds=seconds,
    )


def in_words(take: Take, more: str) -> list[tuple[str, str]]:
    """Name and value, for people, of all but gas and bond. `more`: what says the rest, and of which machine."""
    costs = take.costs
    if costs is None:
        return [("memory, disk", f"not known here, without the run's manifest: {more}")]
    traffic = f"{size(costs.sent)} each way a round, with {costs.replicas} replica{'' if costs.replicas == 1 else 's'}"
    if costs.pipes:
        traffic += f"; between stages {size(costs.pipes)} more an inner step, {costs.inner_steps:,} steps a round"
    if take.bytes_a_day is not None and take.seconds is not None:
        traffic += f"; {size(take.bytes_a_day)} a day in all, at {lasting(take.seconds)} a round"
    return [
        ("memory", f"{size(costs.memory)} of weights, gradients and optimiser state, and more: {more}"),
        ("disk", f"up to {size(costs.disk)} at the run's end"),
        ("traffic", traffic),
    ]


def gas_in_words(gas: Gas | None, why: str, chain_id: int, budget: float = Settings().daily_budget) -> str:
    """For people; `why`: it is not known. `budget`: ETH that a node pays in a day at most; 0: any sum."""
    if chain_id == Settings().chain_id:
        return "none of worth: the faucet of an embedded chain pays"
    if gas is None:
        return f"not known: {why}"
    most = f"; a node pays at most {budget:g} ETH a day (daily_budget)" if budget else ""
    price, joining = gwei(two_digits(gas.price_wei)), eth(two_digits(gas.joining_wei))
    found = f"about {eth(two_digits(gas.round_wei))} ETH a round at {price} gwei"
    if gas.day_wei is not None and gas.seconds is not None:
        day = eth(two_digits(gas.day_wei))
        if budget and gas.day_wei > budget * ETH:
            most = f"; a node stops at {budget:g} ETH a day: raise daily_budget"
        found = f"about {day} ETH a day at {price} gwei and {lasting(gas.seconds)} a round"
    return f"{found}; to join, an account has to hold up to {joining} ETH; a rollup's own fee comes on top{most}"


def bond_in_words(bond: int) -> str:
    """Of a bond in wei."""
    return f"{eth(bond)} ETH, which a slot locks and only exact evidence takes" if bond else "none"


def _next(view: RunView) -> int:
    return min(map(view.next_round, range(view.config.stages)))


def _sealed_at(view: RunView, round: int) -> int:
    """Unix seconds."""
    return max(view.sealed[stage, round].at.time for stage in range(view.config.stages))


def _memory(manifest: Manifest, stage: int, sizes: StageSizes) -> int:
    frozen = 0 if manifest.adapter is None else sum(map(math.prod, frozen_shapes(manifest, stage).values()))
    return FLOAT * (2 * sizes.parameters + sizes.optimiser + frozen)
