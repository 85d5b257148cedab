"""`dlx-node serve`: try a version with the clients that people have for OpenAI's endpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dlx.ground.untrusted import decode_json, printable
from dlx.node.cli import listening, options
from dlx.node.cli.progress import Progress
from dlx.node.home import extras
from dlx.node.home.errors import Failure, UsageFailure


@options.of_folder(*options.LEDGER, "bootstrap", "device", "threads")
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
    blobs: options.BlobsOption = None,
) -> None:
    """Answer at /v1/completions and /v1/chat/completions, whole or streamed, as OpenAI's endpoint does, until Ctrl-C.

    For trying a version, not for many: answers that are asked for together are written in turns. It speaks plain HTTP.
    """
    extras.require("train")
    host, port, token = listening.listen_options(bind, token_file)
    is_folder = Path(model).is_dir()
    if is_folder and round is not None:
        raise UsageFailure(f"--round {round}: {model} is a folder, which has one version")
    run = None if is_folder else options.named_run(model)
    folder, settings = options.folder(given)
    import tempfile

    from dlx.node.web.completions import Completions
    from dlx.node.web.serving import listener
    from dlx.training.models.evaluate import EvaluateError
    from dlx.training.models.generate import Writer
    from dlx.training.models.placement import settle, take

    found, url = listener(host, port, "--bind")
    with found, ExitStack() as stack:
        if is_folder:
            source = Path(model)
        else:
            source = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlx-serve-"))) / "model"
            from dlx.node.audit.sources.places import Places
            from dlx.node.checkpoints.pull import pull_run
            from dlx.node.home.ledgers import open_index, open_ledger
            from dlx.node.runs import find

            kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
            places = Places(kept, tuple(folder.blob_folders), settings.bootstrap)
            with open_ledger(settings, folder) as client, open_index(client) as index, Progress() as progress:
                view = find.view_of(index, find.resolve(index, run))
                version, averaged = options.cited_version(round), options.cited_average(sealed=False)
                pull_run(client, view, version, source, places, progress.show, progress.say, averaged)
        placement = settle(settings.placement)
        take(placement)
        try:
            writer = Writer(source, placement.device)
        except EvaluateError as error:
            raise Failure(f"{error}: no model that could answer") from None
        name = _name(source)
        listening.serve_until_stopped(found, Completions(writer, name, token).app(), f"{name} answers at {url}/v1")


def _name(folder: Path) -> str:
    """How the version is cited, where the folder says what it is."""
    from dlx.node.checkpoints.card import citation
    from dlx.node.runs.listing import PROVENANCE

    try:
        return printable(str(citation(decode_json((folder / PROVENANCE).read_bytes()))))
    except (OSError, ValueError, KeyError, TypeError, msgspec.DecodeError, RecursionError):
        return folder.absolute().name
