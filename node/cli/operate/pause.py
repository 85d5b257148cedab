"""`dlx-node pause` and `resume`: the operator wants the machine, and the node goes on later."""

from __future__ import annotations

from typing import Annotated

import typer

from dlx.node.cli import options
from dlx.node.home.datadir import DataDir


@options.of_folder()
def command(
    given: options.Given,
    leave: Annotated[
        bool | None,
        typer.Option("--leave/--keep", help="Give the slot back, or keep it.", show_default="as `resting` is set"),
    ] = None,
) -> None:
    """Have the folder's node rest, until `resume`, also after a restart; it stays connected and serves what it has.

    It keeps its slot by doing the fewest inner steps that count, a sixteenth of a round's, from the next round on; with
    --leave it gives the round up and the slot back, ends its training process, and takes a slot again on `resume`.
    """
    folder, settings = options.folder(given)
    from dlx.node.daemon.membership import rest

    how = settings.resting if leave is None else "leave" if leave else "keep"
    for one in _folders(folder):
        one.create()
        rest.pause(one.paused, how)
    options.note(str(rest.Resting("paused", how)).replace("has given", "gives") + "; `dlx-node resume` ends that")


@options.of_folder()
def resume(
    given: options.Given,
) -> None:
    """Have a paused node work again. Its hours, and other programs, may still keep it resting."""
    folder, _ = options.folder(given)
    from dlx.node.daemon.membership import rest

    was_paused = [rest.resume(one.paused) for one in _folders(folder)]
    options.note("working again" if any(was_paused) else "it was not paused")


def _folders(folder: DataDir) -> list[DataDir]:
    """The node's, and where a site's stages lie in it, theirs."""
    return [folder, *(DataDir(path) for path in sorted(folder.root.glob("stages/*")) if path.is_dir())]
