"""`dlx-node push`: copy a version to a folder, a bucket, a web server or the Hugging Face hub."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from dlx.node.cli import models, options
from dlx.node.cli.progress import Progress
from dlx.node.home.errors import UsageFailure


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    model: Annotated[
        str, typer.Argument(metavar="FOLDER|RUN", help="What `pull` wrote, or a run or citation to pull.")
    ],
    to: Annotated[
        str, typer.Argument(metavar="TO", help="A new folder, or an address: s3://, http(s)://, hf://OWNER/REPOSITORY.")
    ],
    round: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of a run: version N.", show_default="the newest sealed")
    ] = None,
    merged: Annotated[
        bool,
        typer.Option("--merged", help="Of a run that trains an adapter: the whole model, its base and the adapter."),
    ] = False,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Copy a pulled folder with its card and SHA256SUMS, after its files were compared with that list.

    Web servers get a PUT for each file. Secrets come from the environment: DLX_PUSH_TOKEN for web servers, HF_TOKEN for
    the hub, AWS's own for S3. The token goes over https alone, or to this machine. The hub's repository has to be
    there. `run publish --uri` tells others where it is.
    """
    chosen = models.named(model, round)
    if merged and chosen.folder:
        raise UsageFailure(f"--merged: {model} is a folder, which is pushed as it was pulled")
    folder, settings = options.folder(given)
    from dlx.node.checkpoints import elsewhere
    from dlx.node.runs.listing import check_files, read_form, read_provenance, run_manifest

    elsewhere.destination(to)
    with ExitStack() as stack, Progress(json) as progress:
        [source] = models.have(stack, [chosen], folder, settings, blobs, progress, merged)
        stated = read_provenance(source)
        check_files(source, run_manifest(source, str(stated.get("manifest"))), read_form(stated))
        found = elsewhere.push(source, to, progress.show)
    options.print_json(found) if json else options.print_fields(list(found.items()))
