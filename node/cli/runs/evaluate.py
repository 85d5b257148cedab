"""`dlx-node evaluate`: how good a version of a run is."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.home import extras
from dlx.node.home.errors import UsageFailure


@options.of_folder("device", *options.LEDGER, "bootstrap")
def command(
    given: options.Given,
    run: options.RunOption = None,
    round: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Version N: the weights after N rounds.", show_default="the newest sealed"
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Tasks of lm-evaluation-harness.", show_default="held-out loss"),
    ] = None,
    include_path: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR", help="Folder of tasks in YAML files of your own; their code is run.", show_default="none"
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Samples of each task.", show_default="all")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a task at a time.")] = 1,
    samples: Annotated[int, typer.Option(min=1, help="Held-out samples, spread over the data.")] = 64,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Pull a version and print its loss and perplexity on the run's held-out text, or run tasks on it.

    Shards are fetched as they are needed. Tasks need the extra `evaluate`; the data of those that come with
    lm-evaluation-harness is on the Hugging Face hub, that of your own may lie in files.
    """
    if tasks is None and (include_path or limit):
        raise UsageFailure("--include-path and --limit are of --tasks: name some")
    folders = tuple(options.existing_folder(path, "--include-path") for path in include_path or ())
    extras.require("train", *(["evaluate"] if tasks is not None else []))
    folder, settings = options.folder(given)
    from dlx.node.audit.sources.places import Places
    from dlx.node.checkpoints import evaluation_store
    from dlx.node.checkpoints.evaluation import Tasks, evaluate_run
    from dlx.node.checkpoints.evaluation_store import Evaluation
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find
    from dlx.training.models.placement import settle

    chosen = None
    if tasks is not None:
        names = [name for name in tasks.split(",") if name]
        if not names:
            raise UsageFailure("--tasks: expected names with commas between them")
        chosen = Tasks(names, folders, limit, batch_size)
    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places, where = Places(kept, tuple(folder.blob_folders), settings.bootstrap), settle(settings.placement).device
    with open_ledger(settings, folder) as client, open_index(client) as index, Progress(json) as progress:
        view = find.view_of(index, find.resolve(index, run))
        found = evaluate_run(
            client, view, options.cited_version(round), places, chosen, samples, where, progress.show, progress.say
        )
        if "heldout" in found and folder.is_a_nodes:
            mean = found["average"] and found["average"]["heldout"]["loss"]
            measured = Evaluation(found["version"], found["heldout"]["loss"], mean)
            with suppress(OSError):  # the folder may be one that is only read
                evaluation_store.add(folder.state, view.run, measured)
    options.print_json(found) if json else _print(found)


def _print(found: dict[str, Any]) -> None:
    sys.stdout.write(f"run {found['run'][:18]}, version {found['version']}, model {found['model'][:16]}\n")
    for stage in found["stages"]:
        sys.stdout.write(f"  stage {stage['stage']}: {stage['weights']}\n")
    mean = found["average"]
    if heldout := found.get("heldout"):
        _print_loss("held-out loss", heldout)
        if mean:
            _print_loss(f"of the mean of the versions {_listed(mean)}, which `pull` gives:", mean["heldout"])
        return
    if mean:
        sys.stdout.write(f"the mean of the versions {_listed(mean)}\n")
    rows = [
        [name, task["version"], task["samples"], metric, f"{one['value']:.4f}", _shown(one["stderr"])]
        for name, task in found["tasks"].items()
        for metric, one in task["metrics"].items()
    ]
    options.print_table(["TASK", "VERSION", "SAMPLES", "METRIC", "VALUE", "STDERR"], rows)
    sys.stdout.write(f"lm_eval {found['harness']}\n")


def _print_loss(what: str, heldout: dict[str, Any]) -> None:
    loss, per = heldout["loss"], heldout["per"]
    scores = f"{loss:.4f} nats per {per}, perplexity {heldout['perplexity']:.4g}"
    sys.stdout.write(f"{what} {scores}, of {heldout['tokens']:,} {per}s in {heldout['samples']} samples\n")


def _listed(mean: dict[str, Any]) -> str:
    return ", ".join(map(str, mean["versions"]))


def _shown(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"
