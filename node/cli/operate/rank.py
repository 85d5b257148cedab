"""`dlx-node rank`: lend this machine's devices to a node of the same site, whose stage they share."""

from __future__ import annotations

from typing import Annotated

import typer

from dlx.node.cli import options
from dlx.node.home import config, extras, logs
from dlx.node.home.errors import UsageFailure


@options.of_settings("device", "threads", "ranks", "devices")
def command(
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
