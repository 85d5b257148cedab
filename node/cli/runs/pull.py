"""`dlx-node pull`: fetch a version of a run as a Hugging Face folder."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.home.errors import UsageFailure

if TYPE_CHECKING:
    from dlx.training.models.model_files import Form


@options.of_folder(*options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the model, or with --watch for versions.")],
    run: options.RunArgument = None,
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
    merged: Annotated[
        bool,
        typer.Option("--merged", help="The whole model where the run trains an adapter: its base and the adapter."),
    ] = False,
    scores: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHA256",
            help="Blob of scores that an account published, to ask peers for; can be given more than once.",
            show_default="those in folders",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Of the weights in DIR: float32 (as sealed), bfloat16 or float16.")
    ] = "float32",
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="The largest file of weights; more come with an index.")
    ] = "5GB",
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="safetensors, or gguf for llama.cpp (families llama, qwen2, qwen3).")
    ] = "safetensors",
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="URI|published",
            help="Try the weights of a pushed copy first: at this address, or those that the ledger names.",
            show_default="peers and folders",
        ),
    ] = None,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Fetch each stage's weights by the hash on the ledger and merge them for `AutoModelForCausalLM.from_pretrained`.

    Of a run that trains an adapter it is a folder for `PeftModel.from_pretrained`, or with --merged the whole model.
    Weights that nobody keeps any more are recomputed from the payloads. README.md and provenance.json say where all
    comes from, SHA256SUMS what the files are; who says that the version is to be had elsewhere is compared with that.
    Scores that accounts published of it (`evaluate --publish`) are shown with their names, and lie in scores.jsonl.
    Of a run whose manifest has an average it is the mean of the version and some before it. Rounded weights
    (--dtype) take half the room; `verify` compares them with the sealed ones, which it fetches for it. With --watch it
    ends with the run, or at Ctrl-C.
    """
    folder, settings = options.folder(given)
    from dlx.ground import durable
    from dlx.node.audit.sources.places import Places
    from dlx.node.audit.sources.search import open_sources
    from dlx.node.checkpoints.pull import follow, open_blobs, pull_run, read_manifest
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find

    version, averaged = options.cited_version(round), options.cited_average(sealed)
    if watch and version is not None:
        raise UsageFailure("--watch and --round (or a citation's version) exclude each other")
    form = _form(dtype, shard_size, format, merged)
    named = [_digest(one) for one in scores or ()]
    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    with open_ledger(settings, folder) as client, open_index(client) as index, Progress(json) as progress:
        chosen = find.resolve(index, run)
        if not watch:
            view = find.view_of(client, index, chosen)
            show, say = progress.show, progress.say
            found = pull_run(client, view, version, out.absolute(), places, show, say, averaged, named, form, from_)
            _print(found, out, json)
            return
    with open_ledger(settings, folder) as client, TemporaryDirectory(prefix="dlx-watch-") as work:
        reader = find.RunReader(client, chosen)
        with Progress(json) as progress, open_sources(client, chosen, places, progress.say, progress.show) as sources:
            read_manifest(reader.view(), open_blobs(sources, Path(work), progress.say))  # it says when the run ends
        for view, newest in follow(reader, [*folder.blob_folders, Path(work)], every, options.note):
            into = out.absolute() / f"version-{newest}"
            if not into.exists():
                into.parent.mkdir(parents=True, exist_ok=True)
                with Progress(json) as progress:
                    show, say = progress.show, progress.say
                    found = pull_run(client, view, newest, into, places, show, say, averaged, named, form, from_)
                _print(found, into, json)
            durable.point(out.absolute() / "latest", into.name)


def _form(dtype: str, shard_size: str, format: str, merged: bool) -> Form:
    from dlx.node.home import values
    from dlx.node.home.extras import require
    from dlx.node.runs.listing import FORMATS, GGUF
    from dlx.training.models.model_files import Form
    from dlx.training.models.weights import Dtype

    if dtype not in get_args(Dtype):
        raise UsageFailure(f"--dtype: expected one of {', '.join(get_args(Dtype))}, not {dtype!r}")
    if (size := values.size(shard_size)) < 1:
        raise UsageFailure(f"--shard-size: expected a number of bytes, or text such as 5GB, not {shard_size!r}")
    if format not in FORMATS:
        raise UsageFailure(f"--format: expected one of {', '.join(FORMATS)}, not {format!r}")
    if format == GGUF:
        require("gguf")
    return Form(dtype, size, format == GGUF, merged)  # type: ignore[arg-type]


def _digest(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise UsageFailure(f"--scores: expected the 64 hex digits that `evaluate --publish` printed, not {text!r}")
    return digest


def _print(found: dict[str, Any], out: Path, json: bool) -> None:
    from dlx.node.checkpoints.card import citation

    if json:
        options.print_json(found | {"folder": str(out.absolute())})
        sys.stdout.flush()
        return
    rounds = f"after {found['version']} of {found['rounds']} rounds"
    loss = "no loss yet" if found["loss"] is None else f"training loss {found['loss']:.4f} nats per token"
    if (said := found["held_out"]) and said["loss"] is not None:
        of = f"said by {len(said['said'])} of {len(said['said']) + len(said['missing'])}"
        loss = f"held-out loss {said['loss']:.4f} nats per {said['per']} ({of}), {loss}"
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
    for one in found["scores"]:
        sys.stdout.write(f"  scores {one['told']}\n")
    sys.stdout.flush()
    for one in found["published"]:
        verdict = f"{'not compared' if one['same'] is None else 'DIFFERS'}: {one['checkpoint']}"
        comparison = "the same" if one["same"] else options.amber(verdict)
        options.print_fields([(f"  published by {one['account']} at {one['uri']}", comparison)])
