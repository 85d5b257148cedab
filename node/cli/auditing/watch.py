"""`dlx-node watch`: replay what a live run draws, from outside."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from dlx.node.cli import options
from dlx.node.cli.auditing.audit import DeviceOption, HeadOption, pin_of, placement_on
from dlx.node.cli.auditing.endings import ends_as_interrupted
from dlx.node.cli.progress import Progress
from dlx.node.home import extras

if TYPE_CHECKING:
    from dlx.node.audit.watch import WatchLine


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    run: options.RunArgument = None,
    head: HeadOption = None,
    blobs: options.BlobsOption = None,
    device: DeviceOption = None,
    json: options.JsonOption = False,
) -> None:
    """Follow a run without a slot, and train again what is drawn of each round: one line for each drawn segment, and at
    the end their sum.

    Ends with the run, at Ctrl-C or, with --head, with what was drawn up to that block. Several --rpc-url have to agree
    about each block that draws. Exit codes: 0 something was drawn and all of it is honest. 1 something is false. 2 the
    command is wrong. 3 it could not look. 4 something is withheld or left over, or nothing was drawn.
    """
    extras.require("train")
    folder, settings = options.folder(given)
    pin, placement = pin_of(head), placement_on(device)
    from dlx.ledger.errors import Contradiction
    from dlx.node.audit.replay_choice import ReplayChoice
    from dlx.node.audit.request import AuditRequest
    from dlx.node.audit.sources.places import Places
    from dlx.node.audit.watch import Tally, watching
    from dlx.node.home.errors import Failure
    from dlx.node.home.ledgers import open_ledger
    from dlx.node.runs import find

    own = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places, tally = Places(own, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes), Tally()
    with ends_as_interrupted(), Progress(json) as progress, open_ledger(settings, folder) as client:
        with client.events() as index:
            chosen = find.resolve(index, run)
        request = AuditRequest(chosen, places, pin, ReplayChoice(placement=placement))
        try:
            with watching(client, request, progress.say, progress.show, progress.step) as watch:
                try:
                    for line in watch.lines():
                        tally.add(line)
                        progress.clear()
                        _print(line, json)
                except KeyboardInterrupt:
                    pass
                found = tally.sum(watch.waiting)
        except Contradiction as error:
            raise Failure(str(error)) from None
    if json:
        options.print_json({"sum": found})
    else:
        options.say(str(found))
    raise typer.Exit(found.exit_code)


def _print(line: WatchLine, json: bool) -> None:
    if json:
        options.print_json(line)
    else:
        where = f"round {line.round} replica {line.replica} stage {line.stage} segment {line.segment}"
        why = f": {'; '.join(line.reasons)}" if line.reasons else ""
        options.say(f"{line.word:<8} {where} of {line.account}{why}")
    sys.stdout.flush()
