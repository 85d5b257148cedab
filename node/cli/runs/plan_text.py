"""What `run plan` says: to people, and as data."""

from __future__ import annotations

import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlx.ground.constants import EPOCH_ROUNDS
from dlx.ground.limits import free_memory
from dlx.ground.machine import nearest
from dlx.node.cli import options
from dlx.node.home import formatting
from dlx.node.home.formatting import DAY, lasting

if TYPE_CHECKING:
    from dlx.node.runs.slot_costs import Gas, OnLedger
    from dlx.node.runs.upkeep import Upkeep
    from dlx.training.balance.costs import Placement, StageCost
    from dlx.training.balance.devices import Device
    from dlx.training.balance.seconds import Conditions, Seconds
    from dlx.training.recipe.draft import Draft
    from dlx.training.recipe.manifest import Manifest

COMMON_DISK = 4e12  # bytes: what a stage's member may take without a warning
_SHORTER = "no longer timeout is possible, so take fewer inner steps"
PRIVATE_DISK = 4  # times the memory of a stage: what may wait for its draw on a machine's disk without a warning


class Price(NamedTuple):
    amount: float
    unit: str
    per: str  # "h": an hour of a device; "Mtok": a million tokens


class Campaign(NamedTuple):
    """What a campaign for the whole run has to hold."""

    sum: float
    epoch: float  # of 16 rounds
    unit: str
    device_hours: float
    tokens: float
    parts: tuple[float, ...]  # of each stage, in percent, as their operations are


class Plan(NamedTuple):
    draft: Draft | Manifest
    device: Device
    measured: bool
    conditions: Conditions
    placement: Placement
    costs: list[StageCost]
    seconds: Seconds
    suggested: list[tuple[int, int]]
    folder: Path | None  # the node's, where the plan is of this machine
    price: Price | None = None
    run: OnLedger | None = None  # that the plan is of a slot of


def with_timeout(plan: Plan, round_timeout: int) -> Plan:
    """The plan of a draft that differs in this alone."""
    from msgspec.structs import replace

    timing = replace(plan.draft.timing, round_timeout=round_timeout)
    return plan._replace(draft=replace(plan.draft, timing=timing))


def print_plan(plan: Plan) -> None:
    """For people: first how long it takes and what it sends, which is what they ask. Then the disk, which fails late,
    when hours of training are lost with it; of a slot also what else it takes."""
    options.print_fields([("time", _whole_time(plan)), ("traffic", _traffic(plan)), ("disk", disk(plan)), *_slot(plan)])
    sys.stdout.write("\n")
    _print_stages(plan)
    sys.stdout.write("\n")
    options.print_fields(_fields(plan))
    for warning in _warnings(plan):
        options.note(f"warning: {warning}")
    for lack in _lacking_here(plan):
        options.note(lack)


def _lacking_here(plan: Plan) -> list[str]:
    """What a stage takes and this machine has not, where the plan is of this machine."""
    if plan.folder is None:
        return []
    found, (cost, own) = [], _largest(plan)
    if (free := shutil.disk_usage(nearest(plan.folder)).free) < own.disk:
        found.append(
            f"the disk of {plan.folder} has {formatting.size(free)} free, "
            f"less than the member of stage {cost.stage} takes"
        )
    worst = max(plan.costs, key=lambda cost: cost.memory.host)
    needed = worst.memory.host * plan.conditions.ranks
    if plan.placement.device == "cpu" and (free := free_memory()) < needed:
        found.append(
            f"this machine has {formatting.size(free)} of memory free, "
            f"less than the {formatting.size(needed)} that stage {worst.stage} takes"
        )
    return found


def as_data(plan: Plan) -> dict[str, Any]:
    from msgspec.structs import asdict

    from dlx.training.recipe.recipe import max_inner_steps

    draft, costs, times = plan.draft, plan.costs, plan.seconds
    rounds, most = _rounds_of(plan)
    parameters, flops = sum(cost.parameters for cost in costs), sum(cost.flops for cost in costs)
    stages = [
        {
            "stage": cost.stage,
            "layers": cost.layers,
            "parameters": cost.parameters,
            "parameters_share": cost.parameters / parameters,
            "flops_per_token": cost.flops,
            "flops_share": cost.flops / flops,
            "memory": asdict(cost.memory),
            "payload": cost.payload,
            "pipes": cost.pipes,
            "checks": asdict(own) | {"disk": own.disk},
            "seconds": asdict(seconds),
        }
        for cost, own, seconds in zip(costs, _upkeep(plan), times.stages, strict=True)
    ]
    return {
        "stages": stages,
        "parameters": parameters,
        "flops_per_token": flops,
        "suggested": plan.suggested,
        "rounds": rounds,
        "most_rounds": most,
        "start_time": draft.timing.start_time,
        "min_round_time": draft.timing.min_round_time,
        "max_inner_steps": max_inner_steps(draft),
        "retention": asdict(draft.retention),
        "run": None if plan.run is None else _run_data(plan),
        "device": asdict(plan.device) | {"measured": plan.measured},
        "placement": asdict(plan.placement),
        "conditions": asdict(plan.conditions),
        "seconds": {key: value for key, value in asdict(times).items() if key != "stages"},
        "campaign": None if (paid := campaign(plan)) is None else paid._asdict(),
        "warnings": _warnings(plan),
    }


def _slot(plan: Plan) -> list[tuple[str, str]]:
    """What a slot takes of this machine's memory and of an account, where the plan is of one."""
    if plan.run is None:
        return []
    from dlx.node.runs.slot_costs import bond_in_words, gas_in_words

    run, worst = plan.run, max(plan.costs, key=lambda cost: cost.memory.host)
    most = max(plan.costs, key=lambda cost: cost.memory.device)
    memory = f"up to {formatting.size(worst.memory.host * plan.conditions.ranks)} for stage {worst.stage}"
    if plan.placement.device != "cpu":
        memory += f"; {formatting.size(most.memory.device)} of each device for stage {most.stage}"
    elif plan.folder is not None:
        memory += f"; {formatting.size(free_memory())} are free here"
    return [
        ("memory", memory),
        ("gas", gas_in_words(_gas(plan), run.take.gas_unknown, run.chain_id, run.budget)),
        ("bond", bond_in_words(run.view.config.bond)),
    ]


def _gas(plan: Plan) -> Gas | None:
    """With the seconds of a planned round where the ledger has no rounds yet."""
    from msgspec.structs import replace

    gas = None if plan.run is None else plan.run.take.gas
    if gas is None or gas.seconds is not None:
        return gas
    seconds = plan.seconds.round
    return replace(gas, day_wei=round(gas.round_wei * DAY / seconds), seconds=seconds)


def _run_data(plan: Plan) -> dict[str, Any]:
    from msgspec.structs import asdict

    assert plan.run is not None
    gas, config = _gas(plan), plan.run.view.config
    return {
        "run": "0x" + plan.run.view.run.hex(),
        "rounds_left": plan.run.rounds_left,
        "newest_round_seconds": plan.run.take.seconds,
        "gas": None if gas is None else asdict(gas),
        "bond_wei": config.bond,
        "daily_budget_eth": plan.run.budget,
    }


def campaign(plan: Plan) -> Campaign | None:
    """None where no price is given."""
    if plan.price is None:
        return None
    here, rounds, seconds = plan.conditions, _rounds_of(plan).rounds, _whole_seconds(plan)
    device_hours = seconds / 3600 * here.replicas * len(plan.costs) * here.ranks
    tokens = seconds * plan.seconds.tokens_per_second
    whole = plan.price.amount * (device_hours if plan.price.per == "h" else tokens / 1e6)
    flops = [cost.flops for cost in plan.costs]
    upto = [round(10_000 * sum(flops[:stage]) / sum(flops)) for stage in range(len(flops) + 1)]
    parts = tuple((end - begin) / 100 for begin, end in pairwise(upto))
    return Campaign(whole, whole * min(1.0, EPOCH_ROUNDS / rounds), plan.price.unit, device_hours, tokens, parts)


class _Rounds(NamedTuple):
    rounds: int  # with the first plan
    most: int  # more, where a plan that adapts may shrink


def _rounds_of(plan: Plan) -> _Rounds:
    from dlx.training.recipe.recipe import first_plan_rounds

    if plan.run is not None:
        return _Rounds(plan.run.rounds_left, plan.run.rounds_left)
    rounds, adaptive = first_plan_rounds(plan.draft), plan.draft.adaptive
    shrinks = adaptive is not None and adaptive.min_inner_steps < plan.draft.plan.inner_steps
    return _Rounds(rounds, plan.draft.rounds if shrinks else rounds)


def _whole_seconds(plan: Plan) -> float:
    """Of the run with its first plan, or of what is left of it."""
    rounds = _rounds_of(plan).rounds
    return max(0, rounds - 1) * plan.seconds.round + min(1, rounds) * plan.seconds.first_round


def _whole_time(plan: Plan) -> str:
    """A bound: where no member is late, leaves or is slower than the device."""
    if plan.run is not None and not plan.run.rounds_left:
        return "none: the run is finished, and nobody joins it any more"
    (rounds, most), times, here = _rounds_of(plan), plan.seconds, plan.conditions
    left = "" if plan.run is None else " that are left,"
    now = f"; the newest rounds took {lasting(plan.run.take.seconds)}" if plan.run and plan.run.take.seconds else ""
    more = f", up to {most:,} if the plan shrinks" if most > rounds else ""
    speed = "" if plan.measured else ", at an assumed speed (--measure takes this machine's)"
    return (
        f"{lasting(_whole_seconds(plan))} at best for {rounds:,} rounds{left} of {lasting(times.round)}{more}: "
        f"{times.tokens_per_second:,.0f} tokens/s at best, of {_replicas(here.replicas)}{speed}{now}"
    )


def _traffic(plan: Plan) -> str:
    """Of the member whose link carries most, or of a site; without what checkers fetch."""
    (rounds, most), sent, who = _rounds_of(plan), plan.seconds.sent, "site" if plan.conditions.lan else "member"
    whole = "the run" if most == rounds and plan.run is None else f"{rounds:,} rounds"
    a_day = DAY / max(plan.seconds.round, (plan.run and plan.run.take.seconds) or 0.0)
    found = f"{formatting.size(sent)} each way a round for a {who}, {formatting.size(sent * a_day)} a day, "
    found += f"{formatting.size(sent * rounds)} for {whole}"
    if len(plan.costs) > 1:
        pipes, steps = max(cost.pipes for cost in plan.costs), plan.draft.plan.inner_steps
        found += f"; between a replica's stages {formatting.size(pipes)} more an inner step, "
        found += f"{formatting.size(pipes * steps * a_day)} a day"
    return found


def _replicas(count: int) -> str:
    return f"{count} replica" + ("" if count == 1 else "s")


def disk(plan: Plan) -> str:
    """What a member's disk holds, of the stage that takes most, and how much of the run's history that is."""
    (cost, own), kept = _largest(plan), plan.draft.retention
    stays = f"payloads of {_rounds(kept.payloads)} and versions of {_rounds(kept.checkpoints)}"
    if kept.payloads == kept.checkpoints:
        stays = f"payloads and versions of {_rounds(kept.payloads)}"
    return (
        f"up to {formatting.size(own.disk)} for a member of stage {cost.stage}: "
        f"{formatting.size(own.waiting + own.served)} for checks, {formatting.size(own.slot)} of its own state, "
        f"{formatting.size(own.payloads + own.versions)} of history: "
        f"{stays}"
    )


def _rounds(kept: str | int) -> str:
    return "all rounds" if kept == "run" else f"the last {kept:,} rounds"


def _largest(plan: Plan) -> tuple[StageCost, Upkeep]:
    """The stage whose member's disk takes most."""
    return max(zip(plan.costs, _upkeep(plan), strict=True), key=lambda pair: pair[1].disk)


def _print_stages(plan: Plan) -> None:
    costs, times = plan.costs, plan.seconds.stages
    parameters, flops = sum(cost.parameters for cost in costs), sum(cost.flops for cost in costs)
    checks = _upkeep(plan)
    rows = [
        ["layers", *("{} to {}".format(*cost.layers) for cost in costs)],
        ["parameters", *(f"{cost.parameters:,} ({cost.parameters / parameters:.0%})" for cost in costs)],
        ["operations per token", *(f"{cost.flops:,} ({cost.flops / flops:.0%})" for cost in costs)],
        *(
            [f"memory of {part.replace('_', ' ')}", *(formatting.size(getattr(cost.memory, part)) for cost in costs)]
            for part in costs[0].memory.__struct_fields__
        ),
        ["payload per round", *(formatting.size(cost.payload) for cost in costs)],
        ["pipe per inner step", *(formatting.size(cost.pipes) for cost in costs)],
        ["disk per undecided round", *(formatting.size(one.undecided) for one in checks)],
        ["disk per drawn segment", *(formatting.size(one.drawn) for one in checks)],
        ["disk of private rounds", *(formatting.size(one.waiting) for one in checks)],
        ["disk of served segments", *(formatting.size(one.served) for one in checks)],
        ["disk of slot", *(formatting.size(one.slot) for one in checks)],
        ["disk of versions", *(formatting.size(one.versions) for one in checks)],
        ["disk of payloads", *(formatting.size(one.payloads) for one in checks)],
        ["disk in all", *(formatting.size(one.disk) for one in checks)],
        ["time of a micro-batch", *(lasting(one.micro_batch) for one in times)],
        ["time of the optimiser", *(lasting(one.optimiser) for one in times)],
    ]
    options.print_table(["", *(f"STAGE {cost.stage}" for cost in costs)], rows)


def _fields(plan: Plan) -> list[tuple[str, str]]:
    """What holds for all stages."""
    from dlx.node.runs.history import utc
    from dlx.training.balance.seconds import PAYLOAD_NS, SLOT_NS
    from dlx.training.recipe.recipe import max_inner_steps

    draft, times, here = plan.draft, plan.seconds, plan.conditions
    timing, steps, audit = draft.timing, draft.plan.inner_steps, draft.audit
    split = ", ".join(f"[{low}, {high}]" for low, high in plan.suggested)
    balanced = plan.suggested == [tuple(layers) for layers in draft.stages]
    peak = plan.device.speed(draft.precision)
    speed = f"{here.flops / 1e12:.3g} TFLOP/s in {'exact ' if draft.is_exact else ''}{draft.precision}"
    reached = "measured here" if plan.measured else f"{here.flops / peak:.0%} of {peak / 1e12:.3g}, assumed"
    shares = f", {here.ranks} of them a stage" if here.ranks > 1 else ""
    shares += f", {here.parallel} to a matrix" if here.parallel > 1 else ""
    limit = "" if times.step <= times.compute else f", {lasting(times.compute)} without its pipes"
    pipes = f"{lasting(times.message)} a message at {_speed(here.lan or here.link)}" if len(plan.costs) > 1 else "none"
    site = " for all stages" if here.lan else ""
    back = (
        f"{lasting(times.exchange)} with the work on them and the seal" if here.replicas > 1 else "nothing to exchange"
    )
    hides = "no: the delay is 0"
    if draft.outer.delay:
        hides = f"{'yes' if times.hides else 'no'}: behind {times.hiding_steps} inner steps or more"
    first = "the first two, of {}, take {} each" if draft.outer.delay else "the first, of {}, takes {}"
    first = "; " + first.format(here.trial_steps, lasting(times.first_round))
    first = first if times.first_round < times.round else ""
    opens = f"; opens not before {utc(timing.start_time)}" if timing.start_time else ""
    return [
        *(
            [("stages", f"{'as balanced as can be' if balanced else 'more balanced'}: [{split}]")]
            if not plan.run
            else []
        ),
        ("device", f"{plan.device.name}: {speed} ({reached}){shares}"),
        ("pipes", pipes),
        ("inner step", f"{lasting(times.step)}{limit}"),
        (
            "exchange",
            f"{formatting.size(times.sent)} each way{site}: {lasting(times.transfer)} at {_speed(here.link)}; {back}",
        ),
        ("work", f"{SLOT_NS:g} ns a parameter on a slot's state, {PAYLOAD_NS:g} on a received payload, on the CPU"),
        ("hidden", hides),
        ("round", f"{lasting(times.round)}: {steps} inner steps, at most {max_inner_steps(draft)}{first}{opens}"),
        ("times", round_times(timing.min_round_time, timing.round_timeout, timing.eviction_time)),
        (
            "checks",
            f"each segment of a round is drawn with probability {audit.share:.3g} and served for {audit.window} "
            f"rounds; replaying others' takes about {100 * audit.share:.2g}% of the seconds trained, and serving what "
            f"they replay {lasting(times.checks)} of the link a round",
        ),
        *_campaign(plan),
    ]


def _campaign(plan: Plan) -> list[tuple[str, str]]:
    if (paid := campaign(plan)) is None:
        return []
    rounds, unit = _rounds_of(plan).rounds, f" {paid.unit}" if paid.unit else ""
    parts = ",".join(f"{part:g}" for part in paid.parts)
    return [
        (
            "campaign",
            f"{_amount(paid.sum)}{unit} for {rounds:,} rounds, {_amount(paid.epoch)}{unit} an epoch of 16: "
            f"{_amount(paid.device_hours)} hours of devices, {_amount(paid.tokens / 1e6)} million tokens; "
            f"--parts {parts}",
        )
    ]


def _amount(value: float) -> str:
    """To four digits, or to the unit: never with an exponent where that can be read."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _upkeep(plan: Plan) -> list[Upkeep]:
    """Of each stage's member."""
    from dlx.node.runs.upkeep import upkeep

    return [upkeep(plan.draft, cost, plan.conditions.replicas) for cost in plan.costs]


def round_times(min_round: int, round: int, eviction: int) -> str:
    return f"a round takes at least {min_round} s and times out after {round} s; eviction {eviction} s"


def _warnings(plan: Plan) -> list[str]:
    from dlx.node.runs.upkeep import unpaid
    from dlx.training.recipe import advice
    from dlx.training.recipe.manifest import Manifest

    found = [] if isinstance(plan.draft, Manifest) else advice.warnings(plan.draft) + unpaid(plan.draft.audit)
    found += _late(plan)
    memory, times, share = plan.device.memory, plan.seconds, plan.draft.audit.share
    if (busy := times.transfer + times.checks) > (lasts := max(times.training, times.exchange)):
        fits = share * (lasts - times.transfer) / times.checks
        smaller = f", or a share of {fits:.2g}" if times.transfer < times.training else ""
        found.append(
            f"audit.share {share:g}: payloads and what checkers fetch take {lasting(busy)} of the link a round, which "
            f"trains for {lasting(times.training)}" + ("" if plan.run else f": longer rounds fit{smaller}")
        )
    data, ranks = plan.draft.data, plan.conditions.ranks
    if (samples := data.batch_size // data.micro_batches) % (ranks // plan.conditions.parallel):
        found.append(f"--ranks {ranks}: micro-batches of {samples} samples leave ranks idle; a multiple would not")
    worst = max(plan.costs, key=lambda cost: cost.memory.device)
    if memory and worst.memory.device > memory:
        found.append(
            f"stage {worst.stage} takes {formatting.size(worst.memory.device)} of each device, which has "
            f"{formatting.size(memory)}: use more --ranks, --tensor-parallel, "
            + ("" if plan.run else "more stages, smaller micro-batches ")
            + "or --checkpoint layers"
        )
    return found if plan.run else found + _private_rounds(plan) + _too_much_for_the_disk(plan)


def _late(plan: Plan) -> list[str]:
    """Of a draft with the line that mends it. The times of a run are as they are."""
    from dlx.training.balance.seconds import ample_timeout

    timeout, lasts = plan.draft.timing.round_timeout, plan.seconds.round
    if lasts <= timeout:
        return []
    if plan.run is not None:
        return [
            f"a round takes about {lasts:,.0f} s here, more than the run's timeout of {timeout} s: a slower device "
            "than others' does fewer inner steps, and what a slow link brings too late does not count"
        ]
    ample = ample_timeout(lasts)
    mend = f"write `round_timeout = {ample}` under [timing]" if ample > lasts else _SHORTER
    return [
        f"timing.round_timeout {timeout}: a round takes about {lasts:,.0f} s here, and counts as late from the timeout "
        f"on: {mend}"
    ]


def _too_much_for_the_disk(plan: Plan) -> list[str]:
    from dlx.training.recipe.recipe import max_inner_steps

    cost, own = _largest(plan)
    if own.disk <= COMMON_DISK:
        return []
    kept = plan.draft.retention
    remedies = {
        "waiting": ("rounds until they are drawn", f"a smaller {_steps_key(plan)} (now {max_inner_steps(plan.draft)})"),
        "served": ("drawn work", "a smaller audit.share or audit.window"),
        "slot": ("its own state", "an optimiser with less of it"),
        "versions": ("versions", f"a smaller retention.checkpoints ({_now(kept.checkpoints)})"),
        "payloads": ("payloads", f"a smaller retention.payloads ({_now(kept.payloads)})"),
    }
    part = max(remedies, key=lambda name: getattr(own, name))
    (what, remedy), most = remedies[part], formatting.size(getattr(own, part))
    return [
        f"a member of stage {cost.stage} takes up to {formatting.size(own.disk)} of disk, more than "
        f"{formatting.size(int(COMMON_DISK))}, which are common; {most} of it for {what}: "
        f"{remedy} or more stages take less"
    ]


def _now(kept: str | int) -> str:
    return "now of the whole run" if kept == "run" else f"now {kept}"


def _steps_key(plan: Plan) -> str:
    """The draft's key that says how many inner steps a round has at most."""
    return "plan.inner_steps" if plan.draft.adaptive is None else "adaptive.max_inner_steps"


def _private_rounds(plan: Plan) -> list[str]:
    """A machine that has memory for a stage's training is taken to have a few times as much disk for its checks."""
    from dlx.node.runs.upkeep import most_inner_steps
    from dlx.training.recipe.recipe import max_inner_steps

    def excess(pair: tuple[StageCost, Upkeep]) -> float:
        return pair[1].waiting / _memory(plan, pair[0])

    cost, own = max(zip(plan.costs, _upkeep(plan), strict=True), key=excess)
    most = PRIVATE_DISK * _memory(plan, cost)
    if own.waiting <= most:
        return []
    steps = most_inner_steps(plan.draft, cost, most)
    return [
        f"{_steps_key(plan)} {max_inner_steps(plan.draft)}: until its rounds' draws are known, stage {cost.stage} "
        f"keeps {formatting.size(own.waiting)} of states and received tensors on disk; "
        + (f"at most {steps} steps would be {formatting.size(most)}" if steps else "use smaller batches or more stages")
    ]


def _memory(plan: Plan, cost: StageCost) -> int:
    """Bytes that training the stage takes, on all its devices."""
    return (cost.memory.device or cost.memory.host) * plan.conditions.ranks


def _speed(bits: float) -> str:
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:g} {unit}"
    return f"{bits / 1e3:g} kbit/s"
