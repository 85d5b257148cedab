"""`dlx-node start`: join a run and train until stopped."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.ground.places import expand
from dlx.node.cli import options
from dlx.node.home import extras
from dlx.node.home.errors import UsageFailure
from dlx.node.home.settings import SETTINGS

if TYPE_CHECKING:
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.settings import Settings


@options.of_folder(*SETTINGS)
def command(
    given: options.Given,
    run: options.RunOption = None,
    stage: Annotated[
        str, typer.Option(help="Pipeline stage to ask for: a number, or auto (the ledger decides).")
    ] = "auto",
    all_stages: Annotated[
        bool, typer.Option("--all-stages", help="Start a node for each stage of the run, all in one replica (--site).")
    ] = False,
) -> None:
    """Join a run: register the node if needed, take a slot, find peers, train until stopped.

    Without --run it goes on with the folder's last run, or takes the ledger's only one. A chain that does not answer
    is waited for.
    First Ctrl-C: finish the step and leave cleanly. Second: exit now.
    """
    wanted = None if stage == "auto" else int(stage) if stage.isdecimal() else -1
    if wanted is not None and not 0 <= wanted < 64:
        raise UsageFailure(f"--stage {stage}: expected auto or a number from 0 to 63")
    extras.require("train")  # torch is for a process that this one starts
    folder, settings = options.folder(given)
    if settings.private_data:
        options.existing_folder(expand(settings.private_data), "--private-data")
    if all_stages and (not settings.site or wanted is not None):
        raise UsageFailure("--all-stages: name the site by --site, and leave out --stage")
    options.check_placement(settings)
    _greet(folder, settings)
    gc.disable()  # nothing that is imported is garbage: to look for it now and while the node starts takes 0.3 s
    from dlx.ground import durable
    from dlx.node.daemon.node import Startup, run_node
    from dlx.node.home import logs
    from dlx.node.home.keys import identity
    from dlx.node.home.keys import site as sites
    from dlx.node.home.ledgers import ledger_client, reachable_chain
    from dlx.node.runs import find

    gc.freeze()
    gc.enable()
    if all_stages:
        from dlx.node.devnet import stages

        raise typer.Exit(stages.run(folder, settings, run, options.note))
    identity.node_peer_id(folder)  # a folder without keys is told before anything is made in it
    folder.create()
    folder.check_secrets()
    with folder.lock():
        logs.setup(settings.log_format, folder.logs)
        account = identity.load_account(folder, settings)
        node_key = identity.load_node_key(folder, settings)
        of_site = sites.load(folder, settings.site) if settings.site else None
        with reachable_chain(settings, folder) as reached:
            client = ledger_client(reached, folder, account.secret)
            chosen = find.resolve_offline(folder.last_run, run) or find.resolve_patiently(client, run, options.note)
            durable.write_bytes(folder.last_run, chosen.hex().encode())
            run_node(Startup(chosen, wanted, reached, folder, node_key, account, of_site), client)


def _greet(folder: DataDir, settings: Settings) -> None:
    """The first lines, before what takes seconds to import: where the node starts, and what looks wrong there."""
    from dlx.node import version
    from dlx.node.runs import health

    options.note(f"version {version()} starts in {folder.root}")
    for diagnosis in health.quick(folder, settings):
        if diagnosis.verdict != health.PASS:
            options.note(f"{diagnosis.verdict} {diagnosis.check}: {diagnosis.text}; mend: {diagnosis.mend}")
