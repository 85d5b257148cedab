"""`dlx-node serve`: try a version with the clients that people have for OpenAI's endpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from dlx.node.cli import listening, models, options
from dlx.node.cli.progress import Progress
from dlx.node.home import extras


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes", "device", "threads")
def command(
    given: options.Given,
    model: Annotated[
        str, typer.Argument(metavar="FOLDER|RUN", help="A folder that `pull` wrote, or a run or citation to pull.")
    ],
    round: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of a run: version N.", show_default="the newest sealed")
    ] = None,
    bind: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:4690",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File whose first line is the token (API key) that asking takes; needed off loopback.",
            show_default="none",
        ),
    ] = None,
    base: options.BaseOption = None,
    blobs: options.BlobsOption = None,
) -> None:
    """Answer at /v1/completions and /v1/chat/completions, whole or streamed, as OpenAI's endpoint does, until Ctrl-C.

    For trying a version, not for many: answers that are asked for together are written in turns. It speaks plain HTTP.
    """
    extras.require("train")
    host, port, token = listening.listen_options(bind, token_file)
    given_model = models.named(model, round)
    folder, settings = options.folder(given)
    with ExitStack() as stack:
        with Progress() as progress:
            progress.step(f"opening {model}")
            from dlx.node.web.completions import Completions
            from dlx.node.web.serving import listener
            from dlx.training.models.placement import settle, take

            found, url = listener(host, port, "--bind")
            stack.enter_context(found)
            [source] = models.have(stack, [given_model], folder, settings, blobs, progress, base=base)
            placement = settle(settings.placement)
            take(placement)
            writer, name = models.load(source, placement.device), models.name_of(source)
        listening.serve_until_stopped(found, Completions(writer, name, token).app(), f"{name} answers at {url}/v1")
