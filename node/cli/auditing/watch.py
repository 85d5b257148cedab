"""`dlx-node watch`: replay what a live run draws, from outside."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import typer

from dlx.node.cli import options
from dlx.node.cli.auditing.audit import DeviceOption, placement_on
from dlx.node.home import extras
from dlx.node.home.diagnostics import exit_code

if TYPE_CHECKING:
    from dlx.node.audit.watch import WatchLine


@options.of_folder(*options.LEDGER, "bootstrap")
def command(
    given: options.Given,
    run: options.RunOption = None,
    blobs: options.BlobsOption = None,
    device: DeviceOption = None,
    json: options.JsonOption = False,
) -> None:
    """Follow a run without a slot, and train again what is drawn of each round: one line for each contribution.

    Ends with the run, or at Ctrl-C. Exit codes: 0 something was drawn and all of it is honest. 1 something is false.
    2 the command is wrong. 3 it could not look. 4 something is withheld, disputed or left over, or nothing was drawn.
    """
    extras.require("train")
    folder, settings = options.folder(given)
    from dlx.node.audit.request import AuditRequest, ReplayChoice
    from dlx.node.audit.sources.places import Places
    from dlx.node.audit.watch import watching
    from dlx.node.home.ledgers import open_ledger
    from dlx.node.runs import find

    own = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(own, tuple(folder.blob_folders), settings.bootstrap)
    found, verdicts = Counter[str](), set[str]()
    with open_ledger(settings, folder) as client:
        with client.events() as index:
            chosen = find.resolve(index, run)
        request = AuditRequest(chosen, places, replay=ReplayChoice(placement=placement_on(device)))
        with watching(client, request, options.note) as watch:
            try:
                for line in watch.lines():
                    found[_word(line)] += 1
                    verdicts.add(line.verdict)
                    _print(line, json)
            except KeyboardInterrupt:
                pass
    if watch.waiting:
        found["not looked at"] = watch.waiting
        verdicts.add("SKIP")
    options.note(", ".join(f"{count} {word}" for word, count in found.items()) or "nothing was drawn")
    raise typer.Exit(exit_code(verdicts))


def _word(line: WatchLine) -> str:
    if line.finding == "honest" and line.disputed:
        return "disputed"
    return line.finding or "unknown"


def _print(line: WatchLine, json: bool) -> None:
    if json:
        options.print_json(line)
    else:
        where = f"round {line.round} replica {line.replica} stage {line.stage} segment {line.segment}"
        why = f": {'; '.join(line.reasons)}" if line.reasons else ""
        options.say(f"{_word(line):<8} {where} of {line.account}{why}")
    sys.stdout.flush()
