"""`dlx-node run plan`: what a run would cost, before it exists; and what it takes to be a member of one that does."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.ground.untrusted import printable
from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.cli.runs.plan_text import Plan, Price, as_data, print_plan
from dlx.node.home import extras
from dlx.node.home.errors import Failure, UsageFailure
from dlx.training.models.placement import Checkpoint

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.view.run_view import RunView
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.settings import Settings
    from dlx.node.runs.slot_costs import OnLedger
    from dlx.training.recipe.draft import Draft
    from dlx.training.recipe.manifest import Manifest

_LINK = 1e9  # bits per second, where nothing says otherwise
DraftOption = Annotated[Path, typer.Option("--manifest", metavar="FILE", help="TOML file that describes the run.")]


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    manifest: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file that describes a run to be. This, or --run.", show_default="none"),
    ] = None,
    run: options.EitherRunOption = None,
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
    checkpoint: Annotated[Checkpoint, typer.Option(help="What is computed again: none, layers or selective.")] = "none",
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Replicas at work.", show_default="max_replicas; with --run those at work now"
        ),
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
    price: Annotated[
        str | None,
        typer.Option(
            metavar="PRICE",
            help="What a campaign pays: 0.5USDC/h for a device, or 0.2USDC/Mtok for a million tokens.",
            show_default="no sum",
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Show what a run would cost: operations, memory, bytes and seconds of each stage; and suggest better stages.

    With --manifest it needs no data folder and no chain. With --run it is of a run that the ledger has: what a slot
    takes of this machine, and of an account's gas. Where the run's manifest is not here it comes from peers. Changes
    nothing.
    """
    if (manifest is None) == (run is None):
        raise UsageFailure("name one of --manifest (a run to be) and --run (a run that the ledger has)")
    with Progress(json) as progress:
        plan = planned(
            manifest or partial(of_ledger, given, run, progress), device, progress,
            utilisation=utilisation, measure=measure, ranks=ranks, tensor_parallel=tensor_parallel,
            checkpoint=checkpoint, replicas=replicas, link=link, lan=lan, seal=seal, price=price, given=given,
        )  # fmt: skip
    if json:
        options.print_json(as_data(plan))
    else:
        print_plan(plan)


def of_ledger(given: options.Given, run: str | None, progress: Progress) -> OnLedger:
    """A run of the ledger, with its manifest from a blob folder or from peers. Raises Failure, LedgerError."""
    extras.require("train")  # before anything is fetched
    folder, settings = options.folder(given)
    from dlx.node.home.ledgers import limits_of, open_index, open_ledger
    from dlx.node.runs import find, slot_costs
    from dlx.node.runs.slot_costs import OnLedger

    with open_ledger(settings, folder) as client, open_index(client) as index:
        view = find.view_of(client, index, find.resolve(index, run))
        manifest = find.read_manifest(view, folder.blob_folders) or _fetched(client, view, folder, settings, progress)
        if wrong := find.differences(manifest, view):
            raise Failure(f"the run's manifest and its registration disagree, do not join it: {'; '.join(wrong)}")
        price = slot_costs.gas_price(client.rpc, limits_of(settings))
        found = slot_costs.take(view, manifest, price, slot_costs.round_seconds(view))
        left = slot_costs.rounds_left(manifest, view)
        return OnLedger(manifest, view, left, found, client.chain_id, settings.daily_budget)


def _fetched(client: LedgerClient, view: RunView, folder: DataDir, settings: Settings, progress: Progress) -> Manifest:
    """From peers or mailboxes. Raises Failure."""
    from dlx.node.audit.sources.places import Places
    from dlx.node.audit.sources.search import open_sources
    from dlx.node.checkpoints.pull import open_blobs, read_manifest

    places = Places((), tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    with (
        TemporaryDirectory(prefix="dlx-plan-") as work,
        open_sources(client, view.run, places, progress.say, progress.show) as sources,
    ):
        return read_manifest(view, open_blobs(sources, Path(work), progress.say))


def planned(
    subject: Path | Callable[[], OnLedger],
    device: str,
    progress: Progress,
    *,
    utilisation: float | None = None,
    measure: bool = False,
    ranks: int = 1,
    tensor_parallel: int = 1,
    checkpoint: Checkpoint = "none",
    replicas: int | None = None,
    link: str | None = None,
    lan: str | None = None,
    seal: float | None = None,
    price: str | None = None,
    given: options.Given = options.Given(None, {}),
) -> Plan:
    """What the command's options come to, of a draft or of a run; `progress` is told once they are found right. Raises
    UsageFailure."""
    gc.disable()  # nothing that is imported or simulated is garbage: to look for it takes a fifth of the time
    from msgspec.structs import replace

    from dlx.training.balance.devices import DEVICE_KINDS, DEVICES, EXACT, device_of
    from dlx.training.models.parallel import check_divides, check_parallel
    from dlx.training.models.placement import Placement, PlacementError, of_run, settle

    if utilisation is not None and not 0.001 <= utilisation <= 1:
        raise UsageFailure(f"--utilisation {utilisation:g}: expected a part from 0.001 to 1")
    kind = device_of(device)
    if kind is None:
        raise UsageFailure(f"--device {printable(device, 40)}: expected {DEVICE_KINDS}")
    wanted = None if price is None else _price(price)
    folder = options.folder(given)[0].root if device == "cpu" or measure else None
    link_speed = _own_limit(given) if link is None else _bits("--link", link)
    lan_speed = None if lan is None else _bits("--lan", lan)
    draft: Draft | Manifest
    on_ledger: OnLedger | None = None
    if isinstance(subject, Path):
        draft = _read(subject)
    else:
        on_ledger = subject()
        draft = _as_it_is(on_ledger)
    if replicas is not None and replicas > draft.max_replicas:
        raise UsageFailure(f"--replicas {replicas}: the run has at most {draft.max_replicas}")
    if draft.is_exact and device in DEVICES:
        raise UsageFailure(f"--device {device}: an exact run is computed on CPUs: give --device cpu")
    placement = Placement(
        device="cpu" if device == "cpu" or draft.is_exact else "cuda",
        checkpoint=checkpoint,
        tensor_parallel=tensor_parallel,
    )
    try:
        check_divides(tensor_parallel, "the number of ranks", ranks)
        check_parallel(draft, tensor_parallel)
        of_run(draft, replace(placement, ranks=ranks))
    except PlacementError as error:
        raise UsageFailure(str(error)) from None
    extras.require("train")
    progress.step(f"planning {subject if on_ledger is None else f'a slot of {on_ledger.view.name}'}")
    from dlx.node.round.rules.pace import trial_steps
    from dlx.node.runs.upkeep import checked
    from dlx.training.balance.costs import costs
    from dlx.training.balance.flops import balanced
    from dlx.training.balance.measured import Measured, measured
    from dlx.training.balance.seconds import RECOMPUTED, SEAL, Conditions, seconds

    used = utilisation or kind.utilisation / (EXACT if draft.is_exact else 1)
    speed = Measured(used * kind.speed(draft.precision), used * kind.float32)
    if measure:
        speed = measured(draft, settle(replace(placement, tensor_parallel=1)))
    found, at_work = costs(draft, placement, ranks), replicas or _replicas(draft, on_ledger)
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
        trial_steps=trial_steps(draft.plan.inner_steps),
    )
    times = seconds(draft, found, conditions)
    return Plan(draft, kind, measure, conditions, placement, found, times, balanced(draft), folder, wanted, on_ledger)


def _read(path: Path) -> Draft:
    """Raises UsageFailure."""
    from dlx.training.balance.history import with_retention
    from dlx.training.recipe.draft import draft_from_toml

    with reading(path):
        return with_retention(draft_from_toml(path))


def _as_it_is(run: OnLedger) -> Manifest:
    """The manifest with the inner steps of the run's next round."""
    from msgspec.structs import replace

    from dlx.node.runs.slot_costs import inner_steps

    manifest = run.manifest
    return replace(manifest, plan=replace(manifest.plan, inner_steps=inner_steps(manifest, run.view)))


def _replicas(recipe: Draft | Manifest, run: OnLedger | None) -> int:
    from dlx.node.runs.slot_costs import at_work

    return recipe.max_replicas if run is None else at_work(run.view)


@contextmanager
def reading(draft: Path) -> Iterator[None]:
    """What is wrong with a draft is wrong usage."""
    from dlx.training.recipe.strict import ManifestError

    try:
        yield
    except ManifestError as error:
        raise UsageFailure(f"--manifest {draft}: {str(error).removeprefix(f'{draft}: ')}") from error


def _bits(option: str, given: str) -> float:
    """Bits per second."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]?)(bit|B)/s", given)
    value = float(found[1]) * 1000 ** "_kMGT".index(found[2] or "_") * (8 if found[3] == "B" else 1) if found else 0.0
    if not 0 < value <= 1e15:
        raise UsageFailure(f"{option} {printable(given, 40)}: expected a speed such as 100Mbit/s, 1Gbit/s or 50MB/s")
    return value


def _price(given: str) -> Price:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,18})?) ?([A-Za-z][A-Za-z0-9]{0,11})?/(h|Mtok)", given, re.ASCII)
    if not found:
        raise UsageFailure(f"--price {printable(given, 40)}: expected a price such as 0.5USDC/h or 0.2ETH/Mtok")
    return Price(float(found[1]), found[2] or "", found[3])


def _own_limit(given: options.Given) -> float:
    """Bits per second that the folder's settings allow, each way."""
    _, settings = options.folder(given)
    return min((8.0 * limit for limit in (settings.up_limit, settings.down_limit) if limit), default=_LINK)
