"""`dlx-node pull`: fetch a version of a run as a Hugging Face folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.home.errors import UsageFailure


@options.of_folder(*options.LEDGER, "bootstrap")
def command(
    given: options.Given,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the model, or with --watch for versions.")],
    run: options.RunOption = None,
    round: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Version N: the weights after N rounds, so N - 1 is the last that counts; 0 is the genesis.",
            metavar="N",
            show_default="the newest sealed",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Follow the run: each new version into DIR/version-N, DIR/latest the newest."),
    ] = False,
    every: Annotated[int, typer.Option(min=1, metavar="N", help="With --watch: only each N-th version.")] = 1,
    sealed: Annotated[
        bool,
        typer.Option("--sealed", help="The version itself where the run publishes means, as a new run starts from it."),
    ] = False,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Fetch each stage's weights by the hash on the ledger and merge them for `AutoModelForCausalLM.from_pretrained`.

    Weights that nobody keeps any more are recomputed from the payloads. README.md and provenance.json say where all
    comes from, SHA256SUMS what the files are; who says that the version is to be had elsewhere is compared with that.
    Of a run whose manifest has an average it is the mean of the version and some before it. With --watch it ends with
    the run, or at Ctrl-C.
    """
    folder, settings = options.folder(given)
    from dlx.ground import durable
    from dlx.node.audit.sources.places import Places
    from dlx.node.checkpoints.pull import follow, pull_run
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    version, averaged = options.cited_version(round), options.cited_average(sealed)
    if watch and version is not None:
        raise UsageFailure("--watch and --round (or a citation's version) exclude each other")
    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap)
    with open_ledger(settings, folder) as client, open_index(client) as index, Progress(json) as progress:
        chosen = find.resolve(index, run)
        if not watch:
            view = find.view_of(index, chosen)
            found = pull_run(client, view, version, out.absolute(), places, progress.show, progress.say, averaged)
            _print(found, out, json)
            return
    with open_ledger(settings, folder) as client:
        for view, newest in follow(find.RunReader(client, chosen), folder.blob_folders, every, options.note):
            into = out.absolute() / f"version-{newest}"
            if not into.exists():
                into.parent.mkdir(parents=True, exist_ok=True)
                with Progress(json) as progress:
                    found = pull_run(client, view, newest, into, places, progress.show, progress.say, averaged)
                _print(found, into, json)
            durable.point(out.absolute() / "latest", into.name)


def _print(found: dict[str, Any], out: Path, json: bool) -> None:
    from dlx.node.checkpoints.card import citation

    if json:
        options.print_json(found | {"folder": str(out.absolute())})
        sys.stdout.flush()
        return
    rounds = f"after {found['version']} of {found['rounds']} rounds"
    loss = "no loss yet" if found["loss"] is None else f"loss {found['loss']:.4f} nats per token"
    sys.stdout.write(f"{out}: run {found['run'][:18]}, version {found['version']}, {rounds}, {loss}\n")
    if mean := found["average"]:
        sys.stdout.write(f"  the mean of the versions {', '.join(map(str, mean))}; --sealed gives the last of them\n")
    for stage in found["stages"]:
        sealed = "genesis" if stage["transaction"] is None else f"transaction {stage['transaction']}"
        sys.stdout.write(f"  stage {stage['stage']}: {stage['weights']} {sealed}\n")
    if found["checkpoint"] is None:
        options.note(
            "without the run's tokenizer, which nobody has, this is no whole checkpoint: no SHA256SUMS is written"
        )
    else:
        sys.stdout.write(f"  checkpoint {found['checkpoint']}, the sha256 of SHA256SUMS\n")
    sys.stdout.write(f"  cite as {citation(found)}\n")
    sys.stdout.flush()
    for one in found["published"]:
        verdict = f"{'not compared' if one['same'] is None else 'DIFFERS'}: {one['checkpoint']}"
        comparison = "the same" if one["same"] else options.amber(verdict)
        options.print_fields([(f"  published by {one['account']} at {one['uri']}", comparison)])
