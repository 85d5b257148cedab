"""`dlx-node watch`: replay what a live run draws, from outside."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import typer

from dlx.node.cli import options
from dlx.node.cli.audit import DeviceOption, placement_on
from dlx.node.home import extras

if TYPE_CHECKING:
    from dlx.node.audit.watch import Line


def command(
    run: options.RunOption = None,
    blobs: options.BlobsOption = None,
    device: DeviceOption = None,
    datadir: options.DataDirOption = None,
    network: options.NetworkOption = None,
    rpc_url: options.RpcUrlOption = None,
    chain_id: options.ChainIdOption = None,
    ledger: options.LedgerOption = None,
    bootstrap: options.BootstrapOption = None,
    json: options.JsonOption = False,
) -> None:
    """Follow a run without a seat, and train again what is drawn of each round: one line for each contribution.

    Ends with the run, or at Ctrl-C. Exit codes: 0 nothing was found false, 1 something was, 2 the command is wrong.
    """
    extras.require("train")
    folder, settings = options.folder(
        datadir, network, rpc_url=rpc_url, chain_id=chain_id, ledger=ledger, bootstrap=bootstrap
    )
    import tempfile
    from pathlib import Path

    from dlx.node.archive.sources import Places, open_sources
    from dlx.node.audit.watch import Watching
    from dlx.node.home.ledgers import open_ledger
    from dlx.node.runs import find

    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap)
    found: Counter[str] = Counter()
    with open_ledger(settings, folder) as client:
        with client.events() as index:
            chosen = find.resolve(index, run)
        with (
            open_sources(client, chosen, places, options.note) as sources,
            tempfile.TemporaryDirectory(prefix="dlx-watch-") as work,
        ):
            watching = Watching(client, chosen, sources, Path(work), placement_on(device), options.note)
            try:
                for line in watching.lines():
                    found[line.finding or "unknown"] += 1
                    _print(line, json)
            except KeyboardInterrupt:
                pass
    options.note(", ".join(f"{count} {finding}" for finding, count in found.items()) or "nothing was drawn")
    raise typer.Exit(1 if found["false"] else 0)


def _print(line: Line, json: bool) -> None:
    if json:
        options.print_json(line)
    else:
        where = f"round {line.round} replica {line.replica} stage {line.stage} segment {line.segment}"
        why = f": {'; '.join(line.reasons)}" if line.reasons else ""
        options.say(f"{(line.finding or 'unknown'):<8} {where} of {line.account}{why}")
    sys.stdout.flush()
