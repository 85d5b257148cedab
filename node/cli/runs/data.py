"""`dlx-node data prepare | check`: training data as shards of token ids."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlx.ground.limits import cores
from dlx.node.cli import options
from dlx.node.cli.progress import Progress, of_bytes
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.formatting import bar, size

if TYPE_CHECKING:
    from dlx.training.data.overlap import Overlap
    from dlx.training.data.shards import DataManifest
    from dlx.training.data.survey import Survey

app = options.Verbs(help="Prepare and check training data.")


@app.command()
def prepare(
    source: Annotated[
        list[Path],
        typer.Option(
            "--source",
            metavar="PATH",
            help="File of text or rows, `datasets` folder, or folder of those; may be given again.",
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
    chat: Annotated[
        bool, typer.Option("--chat", help="Entries are conversations: what an assistant says in them is learnt.")
    ] = False,
    sequence_length: Annotated[
        int | None,
        typer.Option(min=1, max=65536, help="Tokens of a sample of the run.", show_default="none: --chat asks for it"),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A chat template.", show_default="the one beside the tokenizer"),
    ] = None,
    heldout: Annotated[float, typer.Option(help="Fraction of the text that is not trained on, up to 0.5.")] = 0.05,
    heldout_source: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="File or folder to hold out in place of a fraction; may be given again.",
            show_default="none",
        ),
    ] = None,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Leave out each document with the bytes of one before it.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Processes that tokenise.", show_default="as many as there are cores"),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Tokenise documents into shards, for `data.prepared` in a run's draft or for `start --private-data`.

    Everything is read before the first shard is written: what cannot be taken is named, and what was found is said.
    Documents with the bytes of a held-out one are left out of the training data. The output says how many, and how much
    of the held-out text is in the training text all the same.

    The same input gives the same shards. What an interrupted call leaves is not data yet: the same command goes on from
    there.
    """
    if not 0 < heldout <= 0.5:
        raise UsageFailure(f"--heldout {heldout:g}: expected a fraction above 0 and up to 0.5")
    if tokenizer is not None and not tokenizer.is_file():
        raise UsageFailure(f"--tokenizer {tokenizer}: there is no such file")
    if chat != (sequence_length is not None) or (template and not chat):
        raise UsageFailure("--chat and --sequence-length go together, and --template with them")
    from dlx.training.data.prepare import Preparation, check_folder, prepare_folder

    chosen = int(separator) if separator is not None and re.fullmatch("[0-9]{1,10}", separator) else separator
    shown, workers = Progress(json), workers or cores()
    preparation = Preparation(
        sources=source,
        heldout=heldout,
        tokenizer=tokenizer,
        separator=chosen,
        field=field,
        raw=raw,
        chat=chat,
        sequence_length=sequence_length or 0,
        template=template,
        workers=workers,
        held_set=heldout_source or (),
        drop_copies=drop_duplicates,
        looked=lambda done, total: shown.show(f"{bar(done, total)} {done:,} of {total:,} files looked at"),
    )
    try:
        vocabulary = preparation.vocabulary
        check_folder(preparation, out)
        with shown:
            survey = preparation.survey
        options.note(f"found {survey.found}: {survey}; about {survey.tokens(vocabulary):,} tokens")
        begun = time.perf_counter()
        with of_bytes("preparing", json) as progress:
            manifest = prepare_folder(preparation, out, progress)
        seconds = time.perf_counter() - begun
    except KeyboardInterrupt:
        options.note(f"interrupted: the same command goes on with what is in {out}")
        raise
    looked, made = (f"{size(survey.total / max(1e-9, one))}/s" for one in (survey.seconds, seconds))
    options.note(f"looked at {looked} of text on one core, prepared {made} on at most {workers}")
    _print(out, manifest, [], json, _overlap(manifest, out, json), survey)


@app.command()
def check(
    given: Annotated[
        Path, typer.Argument(metavar="DIR|MANIFEST", help="A prepared folder, or a data manifest beside its shards.")
    ],
    json: options.JsonOption = False,
) -> None:
    """Read all shards and the tokenizer and compare them with the data manifest. Exit code 1 if they differ.

    Then say how much of the held-out text is in the training text.
    """
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
    _print(given, manifest, problems, json, None if problems else _overlap(manifest, blobs, json))


def _overlap(manifest: DataManifest, blobs: Path, json: bool) -> Overlap:
    from dlx.training.data import overlap

    shards, done = manifest.heldout + manifest.train, 0
    with of_bytes("comparing held-out with training data", json) as progress:

        def seen(size: int) -> None:
            nonlocal done
            done += size
            progress(done, sum(shard.size for shard in shards))

        return overlap.overlap(manifest, blobs, seen)


def _print(
    where: Path,
    manifest: DataManifest,
    problems: list[str],
    json: bool,
    overlap: Overlap | None,
    survey: Survey | None = None,
) -> None:
    import hashlib

    import msgspec

    from dlx.training.data.overlap import WARN
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
        "rows": None if manifest.rows is None else msgspec.to_builtins(manifest.rows),
        "shards": len(manifest.train) + len(manifest.heldout),
        "bytes": total,
        **(survey.counts() if survey else {}),
    }
    if json:
        compared = None if overlap is None else overlap._asdict() | {"part": overlap.part}
        more = survey.found.counts() if survey else {}
        options.print_json(found | {"overlap": compared, "problems": problems} | more)
    else:
        result = found | {
            "rows": manifest.rows or "none",
            "train_tokens": f"{manifest.tokens('train'):,}",
            "heldout_tokens": f"{manifest.tokens('heldout'):,}",
            "bytes": size(total),
        }
        fields: list[tuple[str, Any]] = [(name.replace("_", " "), value) for name, value in result.items()]
        fields += [("overlap", overlap)] if overlap else []
        fields += [("files", survey.found)] if survey else []
        options.print_fields([*fields, ("problems", len(problems) or "none")])
        for problem in problems:
            options.say(f"wrong: {problem}")
    if overlap is not None and overlap.part > WARN:
        options.note(f"warning: {overlap}: the held-out loss will look better than the model is")
    if problems:
        raise Failure(f"{where}: {len(problems)} of its blobs are not what the data manifest says")
