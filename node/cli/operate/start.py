"""`dlx-node start`: join a run and train until stopped.

`pause` and `resume`: rest while the operator wants the machine. `rank`: lend this machine's devices to a node that was
started elsewhere.
"""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from dlx.ground.machine import expand
from dlx.node.cli import options
from dlx.node.home import config, extras, logs
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.program import line
from dlx.node.home.settings import SETTINGS, Settings


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
    from dlx.node.home.keys import identity
    from dlx.node.home.keys import site as sites
    from dlx.node.home.ledgers import ledger_client, reachable_chain
    from dlx.node.runs import find
    from dlx.node.trainer import spawn

    gc.freeze()
    gc.enable()
    if all_stages:
        from dlx.node.devnet import stages

        raise typer.Exit(stages.run(folder, settings, run, options.note))
    identity.node_peer_id(folder)  # a folder without keys is told before anything is made in it
    folder.create()
    folder.check_secrets()
    with folder.lock() as lock:
        logs.setup(settings.log_format, folder.logs)
        spawn.log_to(folder.logs / "trainers.log")
        account = identity.load_account(folder, settings)
        node_key = identity.load_node_key(folder, settings)
        of_site = sites.load(folder, settings.site) if settings.site else None
        with reachable_chain(settings, folder) as reached:
            client = ledger_client(reached, folder, account.secret)
            chosen = find.resolve_offline(folder.last_run, run) or find.resolve_patiently(client, run, options.note)
            durable.write_bytes(folder.last_run, chosen.hex().encode())
            run_node(Startup(chosen, wanted, reached, folder, lock, node_key, account, of_site), client)


def _greet(folder: DataDir, settings: Settings) -> None:
    """The first lines, before what takes seconds to import: where the node starts, and what looks wrong there."""
    from dlx.node import version
    from dlx.node.runs import health

    options.note(f"version {version()} starts in {folder.root}")
    for diagnosis in health.quick(folder, settings):
        if diagnosis.verdict != health.PASS and diagnosis.check != "keys":  # which `start` itself says, and ends
            options.note(f"{diagnosis.verdict} {diagnosis.check}: {diagnosis.text}; mend: {diagnosis.mend}")


@options.of_folder()
def pause(
    given: options.Given,
    leave: Annotated[
        bool | None,
        typer.Option("--leave/--keep", help="Give the slot back, or keep it.", show_default="as `resting` is set"),
    ] = None,
) -> None:
    """Have the folder's node rest, until `resume`, also after a restart; it stays connected and serves what it has.

    It keeps its slot by doing the fewest inner steps that count, a sixteenth of a round's, from the next round on. With
    --leave it gives the round up and the slot back, ends its training process, and takes a slot again on `resume`.
    """
    folder, settings = options.folder(given)
    from dlx.node.daemon.membership import rest

    how = settings.resting if leave is None else "leave" if leave else "keep"
    for one in (folder, *folder.stages):
        one.create()
        rest.pause(one.paused, how)
    ends = line("resume", folder=folder.root)
    options.note(str(rest.Resting("paused", how)).replace("has given", "gives") + f"; `{ends}` ends that")


@options.of_folder()
def resume(given: options.Given) -> None:
    """Have a paused node work again. Its hours, and other programs, may still keep it resting."""
    folder, _ = options.folder(given)
    from dlx.node.daemon.membership import rest

    was_paused = [rest.resume(one.paused) for one in (folder, *folder.stages)]
    options.note("working again" if any(was_paused) else "it was not paused")


@options.of_settings("device", "threads", "ranks", "devices")
def rank(
    given: options.Given,
    rendezvous: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the node's machine waits for this one.")],
    machine: Annotated[int, typer.Option(min=1, help="Which one this is; the node's own is 0.")] = 1,
    machines: Annotated[int, typer.Option(min=2, help="How many share the stage, the node's with them.")] = 2,
) -> None:
    """Lend this machine's devices to a node of the same site, which was started with `--machines`.

    It has neither account nor data folder: what it needs it gets of the node. It waits for the node, serves it, and
    waits for it again, until Ctrl-C. Only in a network that you trust: torch.distributed asks for no password.
    """
    if machine >= machines:
        raise UsageFailure(f"--machine {machine}: expected 1 to {machines - 1}, as there are {machines}")
    extras.require("train")
    from dlx.node.trainer.lending import lend
    from dlx.training.models.placement import PlacementError, settle

    settings = config.of_flags({**given.settings, "rendezvous": rendezvous, "machines": machines})
    logs.setup("text", None)
    try:
        placement = settle(settings.placement)
    except PlacementError as error:
        raise UsageFailure(str(error)) from None
    lend(placement, machine)
