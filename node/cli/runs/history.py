"""`dlx-node history`: how a run converged, from chain events alone."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.node.cli import options
from dlx.node.home.errors import UsageFailure
from dlx.node.home.formatting import steps

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.settings import Settings
    from dlx.node.runs.history import History, StageRow


@options.of_folder(*options.LEDGER)
def command(
    given: options.Given,
    run: options.RunOption = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the newest N rounds.", show_default="all")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print one line of CSV per round.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw loss against rounds and tokens to a PNG file.", show_default="none"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the run's page, as `web` serves it, to a file.", show_default="none"),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Print rounds, losses, tokens, weights hashes and seal transactions of a run, and verdicts on drawn work."""
    if csv and json:
        raise UsageFailure("--csv and --json exclude each other: choose one")
    for path, option in ((plot, "--plot"), (html, "--html")):
        if path:
            options.existing_folder(path.absolute().parent, f"{option}: in")
    folder, settings = options.folder(given)
    from dlx.node.audit.verdict_store import verdicts_beside
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find, history

    with open_ledger(settings, folder) as client, open_index(client) as index:
        chosen = find.resolve(index, run)
        verdicts = verdicts_beside(folder.blob_folders, chosen, client.domain)
        found = history.history(index, find.view_of(index, chosen), last, verdicts)
        if html:
            _write_page(html, client, folder, settings, found, last)
            options.note(f"wrote {html}")
    if plot:
        history.plot(found, plot)
        options.note(f"drew {plot}")
    if json:
        options.print_json(found)
    elif csv:
        sys.stdout.write(history.to_csv(found))
    elif not plot and not html:
        _print(found)


def _write_page(
    path: Path, client: LedgerClient, folder: DataDir, settings: Settings, found: History, last: int | None
) -> None:
    from dlx.node.home.config import ledger_options
    from dlx.node.web.reading.reader import Reader
    from dlx.node.web.render import write_file

    reach = ledger_options(settings)
    with closing(Reader(client, folder.blob_folders, reach)) as reader:
        run = bytes.fromhex(found.run[2:])
        first = 0 if last is None else max(0, max(reader.sealed(run)) - last)
        write_file(reader.run_page(run, every=first), found, path)


def _print(found: History) -> None:
    from dlx.node.runs.history import utc

    done = found.sealed_rounds
    sys.stdout.write(f"run {found.run}\nby {found.creator}, {done} of {found.rounds_planned} rounds sealed\n\n")
    rows = [
        [
            row.round,
            utc(row.time),
            _per_stage([_steps(row.inner_steps, stage) for stage in row.stages]),
            "" if row.loss is None else f"{row.loss:.4f}",
            f"{row.total_tokens:,}",
            _per_stage([str(stage.contributions) for stage in row.stages]),
            _per_stage([str(stage.signers) for stage in row.stages]),
            _per_stage([_codec(stage) for stage in row.stages]),
            " ".join(stage.weights[:8] for stage in row.stages),
            " ".join(stage.transaction[:10] for stage in row.stages),
        ]
        for row in found.rounds
    ]
    columns = [
        *("ROUND", "SEALED AT", "STEPS", "LOSS", "TOKENS SO FAR", "COUNTED", "SIGNED"),
        *("CODEC", "WEIGHTS PER STAGE", "TRANSACTIONS"),
    ]
    options.print_table(columns, rows)
    if found.verdicts:
        counts = Counter(one.finding for one in found.verdicts)
        each = ", ".join(f"{count} {finding}" for finding, count in counts.items())
        sys.stdout.write(f"\nverdicts on drawn work that nodes of this folder heard: {each}\n")
    for verdict in found.verdicts:
        if verdict.finding != "honest":
            where = f"round {verdict.round}, stage {verdict.stage}, replica {verdict.replica}, of {verdict.account}"
            options.say(f"  {verdict.finding}: {where}, by {verdict.checker}: {'; '.join(verdict.reasons)}")
    for one in found.convictions:
        line = f"{one.account} lost its slot for round {one.round} of stage {one.stage}, by {len(one.reports)} verdicts"
        sys.stdout.write(f"\n{utc(one.time)}  {line}\n")


def _per_stage(texts: list[str]) -> str:
    """Of the stages: once where all say the same."""
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def _steps(inner_steps: int | None, stage: StageRow) -> str:
    return "" if inner_steps is None else steps(inner_steps, stage.steps)


def _codec(stage: StageRow) -> str:
    """The plan in force: bits of a value, and the rank of codecs that have one."""
    if stage.level is None:
        return ""
    return f"{stage.level} bits" + (f", rank {stage.rank}" if stage.rank else "")
