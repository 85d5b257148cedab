"""`dlx-node history`: how a run converged, from chain events alone."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from shlex import split
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dlx.node.cli import options
from dlx.node.home.errors import UsageFailure
from dlx.node.home.formatting import steps
from dlx.node.home.program import for_others

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dlx.ledger.client import LedgerClient
    from dlx.ledger.view.run_view import RunView
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.settings import Settings
    from dlx.node.runs.held_out import HeldOut
    from dlx.node.runs.history import History, StageRow
    from dlx.node.runs.leaderboard import AccountRow, Leaderboards
    from dlx.training.recipe.manifest import Manifest


@options.of_folder(*options.LEDGER, "campaigns")
def command(
    given: options.Given,
    run: options.RunArgument = None,
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
    by: Annotated[
        Literal["account"] | None,
        typer.Option(
            metavar="account",
            help="Who did what: the accounts of the run; without RUN, of all runs of the ledger.",
            show_default="rounds",
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Print rounds, losses, tokens, weights hashes and seal transactions of a run, and verdicts on drawn work.

    With `--by account`: what seals counted of each account, what was drawn of it, and what checkers found. A question
    mark, null with --json, stands for what is not known here.
    """
    if csv and json:
        raise UsageFailure("--csv and --json exclude each other: choose one")
    if by and (last or csv or plot or html):
        raise UsageFailure("--last, --csv, --plot and --html are of rounds, and go without --by account")
    for path, option in ((plot, "--plot"), (html, "--html")):
        if path:
            options.existing_folder(path.absolute().parent, f"{option}: in")
    folder, settings = options.folder(given)
    if by:
        found_accounts = _accounts(folder, settings, run)
        options.print_json(found_accounts) if json else _print_accounts(found_accounts)
        return
    from dlx.node.audit.verdict_store import verdicts_beside
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find, history

    with open_ledger(settings, folder) as client, open_index(client) as index:
        chosen = find.resolve(index, run)
        verdicts = verdicts_beside(folder.blob_folders, chosen, client.domain, options.note)
        view = find.view_of(client, index, chosen)
        manifest = find.read_manifest(view, folder.blob_folders)
        said, before = _held_out(client, view, manifest, last), None if manifest is None else manifest.loss_before
        found = history.history(index, view, last, verdicts, said, before)
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


def _accounts(folder: DataDir, settings: Settings, run: str | None) -> Leaderboards:
    from dlx.node.audit.leaderboards import LeaderboardReader
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find
    from dlx.node.runs.leaderboard import over_runs

    with open_ledger(settings, folder) as client, open_index(client) as index:
        reader = LeaderboardReader(client, index, folder.blob_folders)
        chosen = index.runs() if run is None else [find.resolve(index, run)]
        return over_runs([reader.read(find.view_of(client, index, one)) for one in chosen])


def _print_accounts(found: Leaderboards) -> None:
    from dlx.node.runs.leaderboard import sources

    if len(found.runs) != 1:
        sys.stdout.write(f"all {len(found.runs)} runs\n\n")
        _print_board(found.accounts)
    for place, board in enumerate(found.runs):
        sys.stdout.write("\n" if place or len(found.runs) > 1 else "")
        options.say(f"run {board.run}, {board.name}, {board.rounds} rounds sealed")
        sys.stdout.write("\n")
        _print_board(board.accounts)
        sys.stdout.write(f"\n{sources(board)}\n")


def _print_board(accounts: Sequence[AccountRow]) -> None:
    from dlx.node.runs.leaderboard import change

    columns = [
        *("ACCOUNT", "SHARE", "TOKENS", "STEPS", "ROUNDS", "DAYS", "DRAWN", "HONEST"),
        *("WITHHELD", "FALSE", "CONVICTED", "HELD-OUT"),
    ]
    rows = [
        [
            row.account,
            f"{row.share:.1%}",
            f"{row.tokens:,}",
            f"{row.steps:,}",
            row.rounds,
            f"{row.days:.1f}",
            *("?" if one is None else one for one in (row.drawn, row.honest, row.withheld, row.false)),
            row.convictions,
            change(row),
        ]
        for row in accounts
    ]
    options.print_table(columns, rows)


def _held_out(
    client: LedgerClient, view: RunView, manifest: Manifest | None, last: int | None
) -> Mapping[int, HeldOut]:
    """What members said of evaluated versions: who was drawn to, only the manifest says."""
    from dlx.node.runs.held_out import read_held_out

    if manifest is None:
        if view.evaluations:
            options.note("held-out losses are not shown: the run's manifest is in none of this folder's blobs")
        return {}
    return read_held_out(client, view, manifest, 0 if last is None else max(0, view.round - last))


def _write_page(
    path: Path, client: LedgerClient, folder: DataDir, settings: Settings, found: History, last: int | None
) -> None:
    from dlx.node.home.config import ledger_options
    from dlx.node.web.reading.reader import Reader
    from dlx.node.web.render import write_file

    reach = ledger_options(settings)
    with closing(Reader(client, folder.blob_folders, reach, settings.campaigns)) as reader, for_others(*split(reach)):
        run = bytes.fromhex(found.run[2:])
        first = 0 if last is None else max(0, max(reader.sealed(run)) - last)
        write_file(reader.run_page(run, every=first), found, path)


def _print(found: History) -> None:
    from dlx.node.runs.history import utc

    done, evaluated = found.sealed_rounds, any(row.held_out is not None for row in found.rounds)
    sys.stdout.write(f"run {found.run}\nby {found.creator}, {done} of {found.rounds_planned} rounds sealed\n")
    if told := _first_and_newest(found):
        sys.stdout.write(f"held-out loss {told}\n")
    sys.stdout.write("\n")
    rows = [
        [
            row.round,
            utc(row.time),
            _per_stage([_steps(row.inner_steps, stage) for stage in row.stages]),
            *((_loss(row.held_out),) if evaluated else ()),
            _loss(row.loss),
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
        *("ROUND", "SEALED AT", "STEPS", *(("HELD-OUT",) if evaluated else ()), "TRAINING LOSS"),
        *("TOKENS SO FAR", "COUNTED", "SIGNED"),
        *("CODEC", "WEIGHTS PER STAGE", "TRANSACTIONS"),
    ]
    options.print_table(columns, rows)
    if found.verdicts:
        counts = Counter(one.finding for one in found.verdicts)
        each = ", ".join(f"{count} {finding}" for finding, count in counts.items())
        sys.stdout.write(f"\nverdicts on drawn work that nodes of this folder heard: {each}\n")
    for verdict in found.verdicts:
        if verdict.finding != "honest":
            where = (
                f"round {verdict.round}, stage {verdict.stage}, replica {verdict.replica}, segment {verdict.segment}"
            )
            said = f"{where}, of {verdict.account}, by {verdict.checker}: {'; '.join(verdict.reasons)}"
            options.say(f"  {verdict.finding}: {said}")
    for one in found.convictions:
        line = f"{one.account} lost its slot for round {one.round} of stage {one.stage}, by {len(one.reports)} verdicts"
        sys.stdout.write(f"\n{utc(one.time)}  {line}\n")


def _first_and_newest(found: History) -> str:
    """The losses of the first version that has one, of those that are shown, and of the newest; empty without any."""
    losses = {row.round + 1: row.held_out for row in found.rounds if row.held_out is not None}
    if found.held_out_before is not None:
        losses[0] = found.held_out_before
    ends = sorted({min(losses), max(losses)}) if losses else []
    return ", ".join(f"{losses[version]:.4f} of version {version}" for version in ends)


def _loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


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
