"""`dlx-node audit`: check a run's whole history from the chain and the public blobs."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dlx.ground.errors import DlxError, cause, in_words
from dlx.node.cli import options
from dlx.node.cli.auditing.endings import ends_as_interrupted
from dlx.node.cli.progress import Progress
from dlx.node.home import extras
from dlx.node.home.errors import NotReady, UsageFailure
from dlx.training.models.placement import Placement, wrong_device

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.proof.history import Pin
    from dlx.node.audit.kit import Kit
    from dlx.node.audit.replay_choice import ReplayChoice
    from dlx.node.audit.report import Report
    from dlx.node.audit.request import AuditRequest
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.settings import Settings


def pin_of(given: str | None) -> Pin | None:
    """Raises UsageFailure."""
    if given is None:
        return None
    from dlx.ledger.proof.history import parse_pin

    try:
        return parse_pin(given)
    except ValueError as error:
        raise UsageFailure(f"--head: {error}") from None


HeadOption = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="BLOCK:HASH",
        help="A block whose hash you trust: what is used of the chain is proven to it, and nothing later is used.",
        show_default="none: the chain node is trusted",
    ),
]


LevelOption = Annotated[
    int, typer.Option(min=2, max=3, metavar="N", help="3: also replay training that was drawn (takes the train extra).")
]
SampleOption = Annotated[
    float | None,
    typer.Option(metavar="P", help="Part of what was drawn that is replayed, by chance.", show_default="all of it"),
]
RoundsOption = Annotated[
    str | None,
    typer.Option(metavar="A-B", help="Only these rounds.", show_default="those that members still have to serve"),
]
ReplicaOption = Annotated[int | None, typer.Option(min=0, metavar="R", help="Only this replica.", show_default="all")]
RequiredOption = Annotated[
    int | None,
    typer.Option(
        "--require-segments",
        min=1,
        metavar="K",
        help="Exit code 5 unless all that was drawn was replayed and is honest, K segments at least.",
        show_default="nothing is required",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(metavar="D", help="Where training is replayed: auto, cpu, cuda, cuda:N, mps.", show_default="cpu"),
]
ExampleOption = Annotated[
    bool, typer.Option("--example", help="Audit the kit of a small run that comes with dlx-node: what a verdict is.")
]


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    run: options.RunOrKitArgument = None,
    head: HeadOption = None,
    level: LevelOption = 2,
    sample: SampleOption = None,
    rounds: RoundsOption = None,
    replica: ReplicaOption = None,
    require_segments: RequiredOption = None,
    device: DeviceOption = None,
    blobs: options.BlobsOption = None,
    example: ExampleOption = False,
    json: options.JsonOption = False,
) -> None:
    """Recount every seal from the chain's events and replay every outer step, bit for bit, from the payloads.

    With --level 3 also train again what was drawn of the newest rounds, and compare.

    Blobs come from --blobs folders, the data folder, and the run's peers, in this order. An audit kit, the folder that
    `dlx-node audit-kit` makes, has all that is needed: its audit asks no node, no chain and no network.

    Exit codes: 0 all that was asked for holds. 1 something is FAIL. 2 the command is wrong. 3 it could not look (the
    chain node is silent, there is no such run, a folder cannot be read). 4 nothing is FAIL, but a WARN or SKIP leaves
    open whether all holds. 5 as 4, and what --require-segments asks for is not there.
    """
    own = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    pin, choice = pin_of(head), choice_of(level, sample, rounds, replica, require_segments, device)
    if example or (run is not None and options.names_kit(run)):
        if example and run is not None:
            raise UsageFailure("--example is a kit of its own: leave out the run")
        if own:
            raise UsageFailure("--blobs: a kit has its own blobs")
        if given.settings["rpc_url"]:
            raise UsageFailure("--rpc-url: a kit has its own chain node: name a block of yours with --head")
        kit = _kit(run, pin, level)
        for name, theirs in (("ledger", kit.domain.ledger), ("chain_id", kit.domain.chain_id)):
            if (mine := given.settings[name]) is not None and str(mine).lower() != str(theirs).lower():
                raise UsageFailure(f"--{name.replace('_', '-')} {mine}: the kit is of {theirs}")
        _print(_of_kit(kit, choice, pin, json), json)
    with asked(given, run, own, pin, choice, json) as (client, request, progress):
        from dlx.node.audit.run import audit

        report = audit(client, request, progress.show, progress.say)
    _print(report, json)


@contextmanager
def asked(
    given: options.Given,
    run: str | None,
    own: Sequence[Path],
    pin: Pin | None,
    choice: ReplayChoice | None,
    json: bool,
) -> Iterator[tuple[LedgerClient, AuditRequest, Progress]]:
    """What is to be audited, from what ledger and with which blobs; what keeps an audit from looking ends it there."""
    folder, settings = options.folder(given)
    with ends_as_interrupted(), _failures_as_not_ready(), Progress(json) as progress:
        progress.step(f"auditing {f'run {run}' if run else 'the run'}")
        from dlx.node.audit.request import AuditRequest
        from dlx.node.audit.sources.places import Places

        places = Places(tuple(own), tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
        with _ledger_or_finding(settings, folder) as client:
            yield client, AuditRequest(_run_named(client, run), places, pin, choice), progress


def _kit(folder: str | None, pin: Pin | None, level: int) -> Kit:
    """None: the one that comes with the program. Raises UsageFailure."""
    from dlx.node.audit.kit import EXAMPLE, Kit

    kit = Kit(EXAMPLE if folder is None else Path(folder))
    if pin is not None and pin != kit.head:
        raise UsageFailure(
            f"--head {pin}: the kit ends with block {kit.head}, which it cannot prove to be on that chain"
        )
    if level > kit.level:
        raise UsageFailure(
            f"--level {level}: the kit was made for level {kit.level}, `audit-kit --level {level}` makes one"
        )
    return kit


def _of_kit(kit: Kit, choice: ReplayChoice | None, pin: Pin | None, json: bool) -> Report:
    with ends_as_interrupted(), _failures_as_not_ready(), Progress(json) as progress:
        progress.step(f"auditing the kit {kit.folder}")
        return kit.audit(choice, progress.show, pin)


def _print(report: Report, json: bool) -> NoReturn:
    if json:
        options.print_json(report.json())
    else:
        options.say(report.text())
    raise typer.Exit(report.exit_code)


def choice_of(
    level: int,
    sample: float | None = None,
    rounds: str | None = None,
    replica: int | None = None,
    required: int | None = None,
    device: str | None = None,
) -> ReplayChoice | None:
    """None: no level 3. Raises UsageFailure."""
    if level < 3:
        if any(option is not None for option in (sample, rounds, replica, required, device)):
            raise UsageFailure("--sample, --rounds, --replica, --require-segments and --device are for --level 3")
        return None
    extras.require("train")
    from dlx.node.audit.replay_choice import ReplayChoice

    if required is not None and (sample is not None or replica is not None):
        raise UsageFailure("--require-segments is about all that was drawn: leave out --sample and --replica")
    if sample is not None and not 0 < sample <= 1:
        raise UsageFailure(f"--sample {sample:g}: expected a part of 1, above 0")
    chosen = None
    if rounds is not None:
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", rounds, re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise UsageFailure(f"--rounds {rounds}: expected A-B, or one round")
        chosen = range(first, last + 1)
    return ReplayChoice(chosen, replica, 1.0 if sample is None else sample, placement_on(device), required or 0)


def placement_on(device: str | None) -> Placement:
    """How a replay is run on this device, with all cores. Raises UsageFailure.

    To be called before torch is imported. Threads of a small model mostly wait for each other, and its OpenMP lets them
    spin meanwhile: where others use the cores, that took 13 times the CPU time.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    device = device or "cpu"
    if wrong := wrong_device(device):
        raise UsageFailure(f"--device {device}: {wrong}")
    return Placement(device=device)


@contextmanager
def _failures_as_not_ready() -> Iterator[None]:
    """What keeps the audit from looking says nothing about the run. Raises NotReady for it."""
    try:
        yield
    except Exception as raised:
        error = cause(raised)
        if not isinstance(error, DlxError | OSError):
            traceback.print_exc()
            raise NotReady(f"could not audit: {error!r} is a fault of dlx-node, not of the run") from error
        if isinstance(error, OSError) or error.exit_code == DlxError.exit_code:
            raise NotReady(f"could not audit: {in_words(error)}") from error
        raise


@contextmanager
def _ledger_or_finding(settings: Settings, folder: DataDir) -> Iterator[LedgerClient]:
    """The ledger, also where its contracts are not ours: elsewhere that is the end, here it is a finding.

    Raises LedgerError for such a ledger where the run cannot even be named.
    """
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.errors import LedgerError
    from dlx.node.home.errors import Failure
    from dlx.node.home.ledgers import open_ledger

    with ExitStack() as stack:
        try:
            client = stack.enter_context(open_ledger(settings, folder))
        except LedgerError as refused:
            try:
                yield LedgerClient(settings.rpc_url, settings.ledger, rpc_timeout=settings.rpc_timeout)
            except (Failure, LedgerError):
                raise refused from None
        else:
            yield client


def _run_named(client: LedgerClient, run: str | None) -> bytes:
    from dlx.node.home.citation import id_digits
    from dlx.node.runs import find

    digits = "" if run is None else id_digits(run)
    if len(digits) == 64:  # needs no word of a ledger that may be foreign
        return bytes.fromhex(digits)
    with client.events() as index:
        return find.resolve(index, run)
