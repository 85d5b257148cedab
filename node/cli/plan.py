"""`dlx-node run plan`: what a run would cost, before it exists."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dlx.node.cli import options
from dlx.node.home import shown
from dlx.node.home.errors import UsageFailure

if TYPE_CHECKING:
    from dlx.node.runs.upkeep import Upkeep
    from dlx.training.balance.costs import Placement, StageCost
    from dlx.training.balance.devices import Device
    from dlx.training.balance.seconds import Conditions, Seconds
    from dlx.training.recipe.draft import Draft

PRIVATE_DISK = 4  # times the memory of a stage: what may wait for its draw on a machine's disk without a warning
_LINK = 1e9  # bits per second, where nothing says otherwise
DraftOption = Annotated[Path, typer.Option("--manifest", metavar="FILE", help="TOML file that describes the run.")]


class Plan(NamedTuple):
    draft: Draft
    device: Device
    measured: bool
    conditions: Conditions
    placement: Placement
    costs: list[StageCost]
    seconds: Seconds
    suggested: list[tuple[int, int]]


def command(
    manifest: DraftOption,
    device: Annotated[
        str, typer.Option(metavar="KIND", help="cpu, h100, a100, rtx4090, ... or its FLOP/s, such as 2e14.")
    ] = "cpu",
    utilisation: Annotated[
        float | None, typer.Option(help="Part of those FLOP/s that is reached.", show_default="by device")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run a layer of the model on this machine, and take its speed.")
    ] = False,
    ranks: Annotated[int, typer.Option(min=1, max=1024, help="Devices that share a stage.")] = 1,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, max=1024, help="Of these, that compute each matrix product together.")
    ] = 1,
    checkpoint: Annotated[str, typer.Option(help="What is computed again: none, layers or selective.")] = "none",
    replicas: Annotated[
        int | None, typer.Option(min=1, max=64, help="Replicas at work.", show_default="max_replicas")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Speed of the link between replicas, each way.",
            show_default="the folder's up_limit or down_limit, else 1Gbit/s",
        ),
    ] = None,
    lan: Annotated[
        str | None,
        typer.Option(help="Speed between a replica's stages where it is one site with one link.", show_default="link"),
    ] = None,
    seal: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds from a round's last payload to its seal: votes, and about two blocks of the chain.",
            show_default="1, of the embedded chain",
        ),
    ] = None,
    datadir: options.DataDirOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show what a run would cost: operations, memory, bytes and seconds of each stage; and suggest better stages.

    Needs no data folder and no chain, and changes nothing.
    """
    plan = planned(
        manifest, device, utilisation=utilisation, measure=measure, ranks=ranks, tensor_parallel=tensor_parallel,
        checkpoint=checkpoint, replicas=replicas, link=link, lan=lan, seal=seal, datadir=datadir,
    )  # fmt: skip
    if json:
        options.print_json(_as_data(plan))
    else:
        print_plan(plan)


def print_plan(plan: Plan) -> None:
    """For people."""
    _print_stages(plan)
    sys.stdout.write("\n")
    options.print_fields(_fields(plan))
    for warning in _warnings(plan):
        options.note(f"warning: {warning}")


def planned(
    manifest: Path,
    device: str,
    *,
    utilisation: float | None = None,
    measure: bool = False,
    ranks: int = 1,
    tensor_parallel: int = 1,
    checkpoint: str = "none",
    replicas: int | None = None,
    link: str | None = None,
    lan: str | None = None,
    seal: float | None = None,
    datadir: Path | None = None,
) -> Plan:
    """What the command's options come to. Raises UsageFailure."""
    gc.disable()  # nothing that is imported or simulated is garbage: to look for it takes a fifth of the time
    from msgspec.structs import replace

    from dlx.node.round.pace import TRIAL_STEPS
    from dlx.node.runs.upkeep import checked
    from dlx.training.balance.costs import costs
    from dlx.training.balance.devices import DEVICE_KINDS, device_of
    from dlx.training.balance.flops import balanced
    from dlx.training.balance.measured import Measured, measured
    from dlx.training.balance.seconds import RECOMPUTED, SEAL, Conditions, seconds
    from dlx.training.models.parallel import check_divides, check_parallel
    from dlx.training.models.placement import Placement, PlacementError, settle
    from dlx.training.recipe.draft import draft_from_toml

    if checkpoint not in RECOMPUTED:
        raise UsageFailure(f"--checkpoint {shown.text(checkpoint, 40)}: expected {' or '.join(RECOMPUTED)}")
    if utilisation is not None and not 0.001 <= utilisation <= 1:
        raise UsageFailure(f"--utilisation {utilisation:g}: expected a part from 0.001 to 1")
    kind = device_of(device)
    if kind is None:
        raise UsageFailure(f"--device {shown.text(device, 40)}: expected {DEVICE_KINDS}")
    link_speed = _own_limit(datadir) if link is None else _bits("--link", link)
    lan_speed = None if lan is None else _bits("--lan", lan)
    with reading(manifest):
        draft = draft_from_toml(manifest)
    if replicas is not None and replicas > draft.max_replicas:
        raise UsageFailure(f"--replicas {replicas}: the run has at most {draft.max_replicas}")
    placement = Placement(
        device="cpu" if device == "cpu" else "cuda", checkpoint=checkpoint, tensor_parallel=tensor_parallel
    )
    try:
        check_divides(tensor_parallel, "the number of ranks", ranks)
        check_parallel(draft, tensor_parallel)
    except PlacementError as error:
        raise UsageFailure(str(error)) from None
    used = utilisation or kind.utilisation
    speed = Measured(used * kind.speed(draft.precision), used * kind.float32)
    if measure:
        speed = measured(draft, settle(replace(placement, tensor_parallel=1)))
    found, at_work = costs(draft, placement, ranks), replicas or draft.max_replicas
    conditions = Conditions(
        flops=speed.flops,
        float32=speed.float32,
        ranks=ranks,
        recomputed=1.0 if measure else RECOMPUTED[checkpoint],
        link=link_speed,
        lan=lan_speed,
        replicas=at_work,
        seal=SEAL if seal is None else seal,
        served=checked(draft, found, at_work, site=lan_speed is not None),
        parallel=tensor_parallel,
        trial_steps=TRIAL_STEPS,
    )
    times = seconds(draft, found, conditions)
    return Plan(draft, kind, measure, conditions, placement, found, times, balanced(draft))


@contextmanager
def reading(draft: Path) -> Iterator[None]:
    """What is wrong with a draft is wrong usage."""
    from dlx.training.recipe.strict import ManifestError

    try:
        yield
    except ManifestError as error:
        raise UsageFailure(f"--manifest {draft}: {error}") from error


def _bits(option: str, given: str) -> float:
    """Bits per second."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]?)(bit|B)/s", given)
    value = float(found[1]) * 1000 ** "_kMGT".index(found[2] or "_") * (8 if found[3] == "B" else 1) if found else 0.0
    if not 0 < value <= 1e15:
        raise UsageFailure(f"{option} {shown.text(given, 40)}: expected a speed such as 100Mbit/s, 1Gbit/s or 50MB/s")
    return value


def _own_limit(datadir: Path | None) -> float:
    """Bits per second that the folder's settings allow, each way."""
    _, settings = options.folder(datadir, None)
    return min((8.0 * limit for limit in (settings.up_limit, settings.down_limit) if limit), default=_LINK)


def _as_data(plan: Plan) -> dict[str, Any]:
    from msgspec.structs import asdict

    from dlx.training.recipe.recipe import max_inner_steps

    draft, costs, times = plan.draft, plan.costs, plan.seconds
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
        "start_time": draft.timing.start_time,
        "min_round_time": draft.timing.min_round_time,
        "max_inner_steps": max_inner_steps(draft),
        "device": asdict(plan.device) | {"measured": plan.measured},
        "placement": asdict(plan.placement),
        "conditions": asdict(plan.conditions),
        "seconds": {key: value for key, value in asdict(times).items() if key != "stages"},
        "warnings": _warnings(plan),
    }


def _print_stages(plan: Plan) -> None:
    costs, times = plan.costs, plan.seconds.stages
    parameters, flops = sum(cost.parameters for cost in costs), sum(cost.flops for cost in costs)
    checks = _upkeep(plan)
    rows = [
        ["layers", *("{} to {}".format(*cost.layers) for cost in costs)],
        ["parameters", *(f"{cost.parameters:,} ({cost.parameters / parameters:.0%})" for cost in costs)],
        ["operations per token", *(f"{cost.flops:,} ({cost.flops / flops:.0%})" for cost in costs)],
        *(
            [f"memory of {part.replace('_', ' ')}", *(shown.size(getattr(cost.memory, part)) for cost in costs)]
            for part in costs[0].memory.__struct_fields__
        ),
        ["payload per round", *(shown.size(cost.payload) for cost in costs)],
        ["pipe per inner step", *(shown.size(cost.pipes) for cost in costs)],
        ["disk per undecided round", *(shown.size(one.undecided) for one in checks)],
        ["disk per drawn round", *(shown.size(one.drawn) for one in checks)],
        ["disk of private rounds", *(shown.size(one.waiting) for one in checks)],
        ["disk of served rounds", *(shown.size(one.served) for one in checks)],
        ["disk of slot", *(shown.size(one.slot) for one in checks)],
        ["disk of versions", *(shown.size(one.versions) for one in checks)],
        ["disk of payloads", *(shown.size(one.payloads) for one in checks)],
        ["disk in all", *(shown.size(one.disk) for one in checks)],
        ["time of a micro-batch", *(_time(one.micro_batch) for one in times)],
        ["time of the optimiser", *(_time(one.optimiser) for one in times)],
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
    speed = f"{here.flops / 1e12:.3g} TFLOP/s in {draft.precision}"
    reached = "measured here" if plan.measured else f"{here.flops / peak:.0%} of {peak / 1e12:.3g}, assumed"
    shares = f", {here.ranks} of them a stage" if here.ranks > 1 else ""
    shares += f", {here.parallel} to a matrix" if here.parallel > 1 else ""
    limit = "" if times.step <= times.compute else f", {_time(times.compute)} without its pipes"
    pipes = f"{_time(times.message)} a message at {_speed(here.lan or here.link)}" if len(plan.costs) > 1 else "none"
    site = " for all stages" if here.lan else ""
    back = f"{_time(times.exchange)} with the work on them and the seal" if here.replicas > 1 else "nothing to exchange"
    hides = "no: the delay is 0"
    if draft.outer.delay:
        hides = f"{'yes' if times.hides else 'no'}: behind {times.hiding_steps} inner steps or more"
    first = f"; the first of {here.trial_steps} takes {_time(times.first_round)}"
    first = first if times.first_round < times.round else ""
    opens = f"; opens not before {utc(timing.start_time)}" if timing.start_time else ""
    replays = _upkeep(plan)[0].replay_share
    whole = _time((draft.rounds - 1) * times.round + times.first_round)
    return [
        ("stages", f"{'as balanced as can be' if balanced else 'more balanced'}: [{split}]"),
        ("device", f"{plan.device.name}: {speed} ({reached}){shares}"),
        ("pipes", pipes),
        ("inner step", f"{_time(times.step)}{limit}"),
        (
            "exchange",
            f"{shown.size(times.sent)} each way{site}: {_time(times.transfer)} at {_speed(here.link)}; {back}",
        ),
        ("work", f"{SLOT_NS:g} ns a parameter on a slot's state, {PAYLOAD_NS:g} on a received payload, on the CPU"),
        ("hidden", hides),
        ("round", f"{_time(times.round)}: {steps} inner steps, at most {max_inner_steps(draft)}{first}{opens}"),
        ("times", round_times(timing.min_round_time, timing.round_timeout, timing.eviction_time)),
        (
            "run",
            f"{times.tokens_per_second:,.0f} tokens/s of {here.replicas} replicas; {whole} for {draft.rounds} rounds",
        ),
        (
            "checks",
            f"a replica's round is drawn with probability {audit.share:.3g} and served for {audit.window} rounds; "
            f"replaying others' takes about {replays:.1%} of the seconds trained, and serving what they replay "
            f"{_time(times.checks)} of the link a round",
        ),
    ]


def _upkeep(plan: Plan) -> list[Upkeep]:
    """Of each stage's holder."""
    from dlx.node.runs.upkeep import upkeep

    return [upkeep(plan.draft, cost, plan.conditions.replicas) for cost in plan.costs]


def round_times(min_round: int, round: int, eviction: int) -> str:
    return f"a round takes at least {min_round} s and times out after {round} s; eviction {eviction} s"


def _warnings(plan: Plan) -> list[str]:
    from dlx.training.recipe import advice

    found = advice.warnings(plan.draft)
    timing, memory = plan.draft.timing, plan.device.memory
    if plan.seconds.round > timing.round_timeout:
        found.append(
            f"timing.round_timeout {timing.round_timeout}: a round takes about {plan.seconds.round:,.0f} s here, and "
            "counts as late from the timeout on"
        )
    times, share = plan.seconds, plan.draft.audit.share
    if (busy := times.transfer + times.checks) > max(times.training, times.exchange):
        found.append(
            f"audit.share {share:g}: payloads and what checkers fetch take {_time(busy)} of the link a round, which "
            f"trains for {_time(times.training)}: longer rounds or a smaller share fit"
        )
    data, ranks = plan.draft.data, plan.conditions.ranks
    if (samples := data.batch_size // data.micro_batches) % (ranks // plan.conditions.parallel):
        found.append(f"--ranks {ranks}: micro-batches of {samples} samples leave ranks idle; a multiple would not")
    worst = max(plan.costs, key=lambda cost: cost.memory.device)
    if memory and worst.memory.device > memory:
        found.append(
            f"stage {worst.stage} takes {shown.size(worst.memory.device)} of each device, which has "
            f"{shown.size(memory)}: use more --ranks, --tensor-parallel, more stages, smaller micro-batches or "
            "--checkpoint layers"
        )
    return found + _too_much_for_the_disk(plan)


def _too_much_for_the_disk(plan: Plan) -> list[str]:
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
    key = "plan.inner_steps" if plan.draft.adaptive is None else "adaptive.max_inner_steps"
    return [
        f"{key} {max_inner_steps(plan.draft)}: until its rounds' draws are known, stage {cost.stage} keeps "
        f"{shown.size(own.waiting)} of states and received tensors on disk; "
        + (f"at most {steps} steps would be {shown.size(most)}" if steps else "use smaller batches or more stages")
    ]


def _memory(plan: Plan, cost: StageCost) -> int:
    """Bytes that training the stage takes, on all its devices."""
    return (cost.memory.device or cost.memory.host) * plan.conditions.ranks


def _time(seconds: float) -> str:
    """As people say it: 3.4 ms, 12.3 s, 4.1 min, 7.6 h, 12.3 days."""
    for unit, size, most in (("ms", 1e-3, 0.9995), ("s", 1.0, 300.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172800.0)):
        if seconds < most:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:,.1f} days"


def _speed(bits: float) -> str:
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:g} {unit}"
    return f"{bits / 1e3:g} kbit/s"
