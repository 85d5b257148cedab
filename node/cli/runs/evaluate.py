"""`dlx-node evaluate`: how good a version of a run is."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from dlx.ground.untrusted import printable
from dlx.node.cli import models, options
from dlx.node.cli.progress import Progress
from dlx.node.home import extras
from dlx.node.home.errors import UsageFailure

_SHOWN = 60  # characters of an answer in a table


@options.of_folder("device", *options.LEDGER, "bootstrap", "mailboxes", "password_file")
def command(
    given: options.Given,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="FOLDER|RUN",
            help="A run or a citation; or for --chat a folder that `pull` wrote.",
            show_default="the ledger's only run",
        ),
    ] = None,
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
    chat: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON Lines of prompts with the answers that are expected.", show_default="none"
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer to --chat.")] = 256,
    publish: Annotated[
        bool,
        typer.Option("--publish", help="Sign what the tasks gave with the folder's account, as a blob of its node."),
    ] = False,
    base: options.BaseOption = None,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Pull a version and print its loss and perplexity on the run's held-out text, run tasks on it, or ask it prompts.

    Shards are fetched as they are needed. Tasks need the extra `evaluate`; the data of those that come with
    lm-evaluation-harness is on the Hugging Face hub, that of your own may lie in files. With --chat the model answers
    each prompt of a file by its own chat template, the likeliest token each time.
    """
    if chat is not None and (tasks is not None or publish):
        raise UsageFailure("--chat and --tasks exclude each other: choose one")
    one = models.named(model, round)
    if base is not None and chat is None:
        raise UsageFailure("--base is of --chat: held-out text and tasks are of a RUN, which has its base")
    if one.folder is not None and chat is None:
        raise UsageFailure(f"{model}: a folder is asked by --chat; held-out text and tasks are of a RUN")
    if tasks is None and (include_path or limit):
        raise UsageFailure("--include-path and --limit are of --tasks: name some")
    if tasks is None and publish:
        raise UsageFailure("--publish is of --tasks: held-out loss is what drawn members say on the ledger")
    if chat is not None:
        options.existing_file(chat, "--chat")
    folders = tuple(options.existing_folder(path, "--include-path") for path in include_path or ())
    extras.require("train", *(["evaluate"] if tasks is not None else []))
    if chat is not None:
        _chat(given, one, chat, max_tokens, base, blobs, json)
        return
    folder, settings = options.folder(given)
    from dlx.node.audit.sources.places import Places
    from dlx.node.checkpoints import evaluation_store, scores
    from dlx.node.checkpoints.evaluation import Tasks, evaluate_run
    from dlx.node.checkpoints.evaluation_store import Evaluation
    from dlx.node.home.keys.identity import load_account
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find
    from dlx.training.models.placement import settle

    chosen = None
    if tasks is not None:
        names = [name for name in tasks.split(",") if name]
        if not names:
            raise UsageFailure("--tasks: expected names with commas between them")
        chosen = Tasks(names, folders, limit, batch_size)
    own = load_account(folder, settings) if publish else None
    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    where = settle(settings.placement).device
    with open_ledger(settings, folder) as client, open_index(client) as index, Progress(json) as progress:
        view = find.view_of(client, index, find.resolve(index, one.run))
        found = evaluate_run(client, view, one.version, places, chosen, samples, where, progress.show, progress.say)
        if "heldout" in found and folder.is_a_nodes:
            mean = found["average"] and found["average"]["heldout"]["loss"]
            measured = Evaluation(found["version"], found["heldout"]["loss"], mean)
            with suppress(OSError):  # the folder may be one that is only read
                evaluation_store.add(folder, view.run, measured)
        try:
            if own is not None:
                signed = scores.publish(found, client.domain, own.secret, int(time.time()), folder.blobs)
                found["published"] = scores.described(signed, view)
        finally:  # what took hours is shown, whether or not it can be stated
            options.print_json(found) if json else _print(found)


def _chat(
    given: options.Given,
    model: models.Named,
    path: Path,
    most: int,
    base: Path | None,
    blobs: list[Path] | None,
    json: bool,
) -> None:
    """Ask a model what a file lists, and print what it answered."""
    from dlx.node.checkpoints import prompts
    from dlx.training.models.placement import settle

    asked = prompts.read(path, judged=True)
    folder, settings = options.folder(given)
    with ExitStack() as stack, Progress(json) as progress:
        [source] = models.have(stack, [model], folder, settings, blobs, progress, base=base)
        writer, name = models.load(source, settle(settings.placement).device), models.name_of(source)
        answers = prompts.ask(writer, asked, most, str(path), progress.show)
    told = prompts.told(answers)
    if json:
        each = [to_builtins(prompt) | to_builtins(answer) for prompt, answer in zip(asked, answers, strict=True)]
        right = sum(one.right is True for one in answers)
        options.print_json({"model": name, "right": right, "of": len(answers), "answers": each})
        return
    rows = [
        [prompt.line, "yes" if answer.right else "NO", prompt.match]
        + [printable(text.strip(), _SHOWN) for text in (prompt.expected or "", answer.text)]
        for prompt, answer in zip(asked, answers, strict=True)
    ]
    options.print_table(["LINE", "RIGHT", "MATCH", "EXPECTED", "ANSWER"], rows)
    options.say(f"{name}: {told}")


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
    if said := found.get("published"):
        sys.stdout.write(f"scores {said['blob']}: {said['told']}\n")


def _print_loss(what: str, heldout: dict[str, Any]) -> None:
    loss, per = heldout["loss"], heldout["per"]
    scores = f"{loss:.4f} nats per {per}, perplexity {heldout['perplexity']:.4g}"
    sys.stdout.write(f"{what} {scores}, of {heldout['tokens']:,} {per}s in {heldout['samples']} samples\n")


def _listed(mean: dict[str, Any]) -> str:
    return ", ".join(map(str, mean["versions"]))


def _shown(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"
