"""`dlx-node data prepare | check`: training data as shards of token ids."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlx.node.cli import options
from dlx.node.cli.progress import of_bytes
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.formatting import size

if TYPE_CHECKING:
    from dlx.training.data.formats import Found
    from dlx.training.data.shards import DataManifest

app = options.Verbs(help="Prepare and check training data.")


@app.command()
def prepare(
    source: Annotated[
        list[Path],
        typer.Option(
            "--source",
            metavar="PATH",
            help="Text, .jsonl(.zst) or .parquet file, `datasets` folder, or folder of those; may be given again.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the shards.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json.", show_default="none: every byte is a token")
    ] = None,
    field: Annotated[str, typer.Option(help="Key or column that holds an entry's text.")] = "text",
    separator: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", help="Token between documents, by text or id.", show_default="the tokenizer's end of text"
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take files that are no text too: as their bytes.")] = False,
    heldout: Annotated[float, typer.Option(help="Fraction of the text that is not trained on, up to 0.5.")] = 0.05,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Processes that tokenise.", show_default="as many as there are cores"),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Tokenise documents into shards, for `data.prepared` in a run's draft or for `start --private-data`.

    The same input gives the same shards. What an interrupted call leaves is not data yet: the same command goes on from
    there.
    """
    if not 0 < heldout <= 0.5:
        raise UsageFailure(f"--heldout {heldout:g}: expected a fraction above 0 and up to 0.5")
    if tokenizer is not None and not tokenizer.is_file():
        raise UsageFailure(f"--tokenizer {tokenizer}: there is no such file")
    from dlx.training.data.prepare import Preparation, prepare_folder

    chosen = int(separator) if separator is not None and re.fullmatch("[0-9]{1,10}", separator) else separator
    preparation = Preparation(
        sources=source,
        heldout=heldout,
        tokenizer=tokenizer,
        separator=chosen,
        field=field,
        raw=raw,
        workers=workers or os.cpu_count() or 1,
    )
    try:
        with of_bytes("preparing", json) as progress:
            manifest = prepare_folder(preparation, out, progress)
    except KeyboardInterrupt:
        options.note(f"interrupted: the same command goes on with what is in {out}")
        raise
    _print(out, manifest, [], json, preparation.found)


@app.command()
def check(
    given: Annotated[
        Path, typer.Argument(metavar="DIR|MANIFEST", help="A prepared folder, or a data manifest beside its shards.")
    ],
    json: options.JsonOption = False,
) -> None:
    """Read all shards and the tokenizer and compare them with the data manifest. Exit code 1 if they differ."""
    if not given.exists():
        raise UsageFailure(f"{given}: there is no such file or folder")
    from dlx.training.data import shards, vocabulary

    blobs = given if given.is_dir() else given.parent
    manifest = shards.read_prepared(given) if given.is_dir() else shards.read_data_manifest(given)
    total, done = sum(blob.size for blob in manifest.blobs()), 0
    with of_bytes("checking", json) as progress:

        def seen(size: int) -> None:
            nonlocal done
            done += size
            progress(done, total)

        problems = [f"{problem.blob}: {problem.reason}" for problem in shards.check(manifest, blobs, seen)]
    if not problems and (problem := vocabulary.tokenizer_problem(manifest, blobs)):
        problems = [problem]
    _print(given, manifest, problems, json)


def _print(where: Path, manifest: DataManifest, problems: list[str], json: bool, sources: Found | None = None) -> None:
    import hashlib

    from dlx.training.data.shards import canonical_bytes

    total = sum(blob.size for blob in manifest.blobs())
    tokenizer = manifest.tokenizer if isinstance(manifest.tokenizer, str) else manifest.tokenizer.sha256
    found = {
        "data": str(where),
        "data_manifest": hashlib.sha256(canonical_bytes(manifest)).hexdigest(),
        "tokenizer": tokenizer,
        "vocab_size": manifest.vocab_size,
        "separator": manifest.separator,
        "dtype": manifest.dtype,
        "train_tokens": manifest.tokens("train"),
        "heldout_tokens": manifest.tokens("heldout"),
        "shards": len(manifest.train) + len(manifest.heldout),
        "bytes": total,
    }
    if json:
        options.print_json(found | {"problems": problems} | (sources.counts() if sources else {}))
    else:
        result = found | {
            "separator": "none" if manifest.separator is None else manifest.separator,
            "train_tokens": f"{manifest.tokens('train'):,}",
            "heldout_tokens": f"{manifest.tokens('heldout'):,}",
            "bytes": size(total),
        }
        fields = [(name.replace("_", " "), value) for name, value in result.items()]
        fields += [("sources", sources)] if sources else []
        options.print_fields([*fields, ("problems", len(problems) or "none")])
        for problem in problems:
            options.say(f"wrong: {problem}")
    if problems:
        raise Failure(f"{where}: {len(problems)} of its blobs are not what the data manifest says")
