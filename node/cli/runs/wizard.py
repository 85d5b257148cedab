"""`dlx-node run new`: a commented run.toml from a folder of text, and what the run would cost."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dlx.ground.untrusted import printable
from dlx.node.cli import options
from dlx.node.cli.runs import plan, plan_text
from dlx.node.home import formatting
from dlx.node.home.errors import UsageFailure

if TYPE_CHECKING:
    from dlx.node.runs.draft_text import Size

_T = TypeVar("_T")
_STEPS = 10  # inner steps of a round, by default
_BATCH = 8  # samples
_LENGTH = 1024  # tokens of a sample, at most


def command(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The run.toml to write; it must not exist.")],
    data: Annotated[
        Path | None, typer.Option(metavar="PATH", help="File or folder of text.", show_default="asked")
    ] = None,
    field: Annotated[str, typer.Option(help="Key or column that holds an entry's text.")] = "text",
    raw: Annotated[bool, typer.Option("--raw", help="Take files that are no text too: as their bytes.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A Hugging Face folder to start from, or tiny, small or base.", show_default="asked"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What people read in lists.", show_default="asked")] = None,
    stages: Annotated[
        int | None, typer.Option(min=1, max=64, help="Machines that share the model.", show_default="asked")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=64, help="Replicas that begin.", show_default="asked")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Outer rounds.", show_default="asked: once through the data")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Of the data, such as CC-BY-4.0.", show_default="asked")] = None,
    device: Annotated[str, typer.Option(metavar="KIND", help="As of `run plan`: cpu, h100, rtx4090, ...")] = "cpu",
    link: Annotated[
        str | None, typer.Option(help="Speed of the link between replicas.", show_default="as of `run plan`")
    ] = None,
    price: Annotated[
        float, typer.Option(min=0, help="What a device costs an hour, for the sum.", show_default="no sum")
    ] = 0.0,
) -> None:
    """Ask what a run needs, write a commented run.toml, and show memory, bytes, hours and cost as `run plan` has them.

    Where stdin is no terminal, options and defaults answer. Changes nothing else.
    """
    if out.exists() or not out.absolute().parent.is_dir():
        raise UsageFailure(f"{out} cannot be made: name a new file in a folder that exists")
    from dlx.ground import durable
    from dlx.node.runs.draft_text import SIZES, Answers, draft_text, even, suggested_rounds
    from dlx.training.recipe.recipe import Licence, Name

    text, size = _ask("A file or folder with the text, which will be public", data, None, partial(_text, field, raw))
    sizes = ", ".join(SIZES)
    start, layers, length, tokenizer, tied = _ask(f"Model: a Hugging Face folder, or {sizes}", model, "tiny", _model)
    count = partial(_count, "--stages", highest=layers, why=f"the model has {layers} layers")
    machines = _ask(f"Machines that share the model's {layers} layers", stages, 1, count)
    if tied and machines > 1:
        options.note(
            f"note: the model's head is its embedding; in {machines} stages it gets weights of its own, "
            f"{tied:,} parameters more"
        )
    begin = _ask("Replicas that begin together", replicas, 2, partial(_count, "--replicas", highest=64))
    once = suggested_rounds(size // (4 if tokenizer else 1), _BATCH * length, _STEPS, begin)
    rounds_question = f"Rounds ({formatting.size(size)} of text: about once through it is {once})"
    answers = Answers(
        name=_ask("Name", name, _plain(text.stem), partial(_valid, "--name", Name)),
        rounds=_ask(rounds_question, rounds, once, partial(_count, "--rounds", highest=10**7)),
        licence=_ask("Licence of the data", licence, "", partial(_valid, "--licence", Licence)),
        model=start,
        data=text,
        field=field,
        raw=raw,
        stages=even(layers, machines),
        min_replicas=begin,
        max_replicas=max(8, begin),
        length=length,
        batch_size=_BATCH,
        micro_batches=4 if machines > 1 else 1,
        tokenizer=tokenizer,
    )
    durable.write_bytes(out, draft_text(answers).encode())
    try:
        found = plan.planned(out, device, replicas=begin, link=link)
    except BaseException:
        out.unlink()  # what is left would be no run
        raise
    plan_text.print_plan(found)
    if price:
        hours = answers.rounds * found.seconds.round / 3600
        sum_ = hours * begin * machines * price
        options.print_fields([("cost", f"{sum_:,.2f}: {hours:,.1f} hours of {begin * machines} devices at {price:g}")])
    options.note(f"wrote {out}: look through it, then `dlx-node run create --manifest {out}`")
    options.note(
        f"that gives the text to whoever asks; for text that must not leave its machine see `private` in {out}"
    )


def _ask(question: str, given: object, default: object, parse: Callable[[str], _T]) -> _T:
    """What the option means, else what the person at the terminal says, who is told why where that cannot be and asked
    again, else what the default means. `parse` raises UsageFailure."""
    if given is None and sys.stdin.isatty():
        while True:
            try:
                return parse(_prompted(question, default))
            except UsageFailure as error:
                options.note(str(error))
    if given is None and default is None:
        raise UsageFailure(f"{question}: name it by an option, there is nobody to ask")
    return parse(str(default if given is None else given))


def _prompted(question: str, default: object) -> str:
    try:
        return str(typer.prompt(question, default=default, type=str, err=True)).strip()
    except typer.Abort:  # Ctrl-C, or the end of the input
        sys.stderr.write("\n")
        raise KeyboardInterrupt from None


def _text(field: str, raw: bool, given: str) -> tuple[Path, int]:
    """The whole path, and the bytes that would be read of it. Raises UsageFailure for what `run create` would refuse at
    the first entry of a file."""
    from dlx.training.data.formats import Source, find, read_all
    from dlx.training.data.shards import DataError

    def begin(source: Source) -> None:
        for document in islice(source.documents(), 1):
            for _ in islice(document.pieces, 2):  # a short text to its end
                pass

    path = Path(given)
    whole = _whole("--data", path)
    try:
        found = find([path], field, raw)
        read_all(found.sources, begin)
    except DataError as error:
        raise UsageFailure(f"--data {error}") from None
    files = (file for one in found.sources for file in ([one.path] if one.path.is_file() else one.path.rglob("*")))
    size = sum(file.stat().st_size for file in files if file.is_file())
    if not size:
        raise UsageFailure(f"--data {path}: there is no text in it ({found})")
    options.note(f"the text is {found}")
    return whole, size


def _model(given: str) -> tuple[Path | Size, int, int, Path | None, int]:
    """Folder or size, layers, tokens of a sample, the tokenizer where it has one and bytes are not its tokens, and the
    weights that the embedding shares with the head."""
    from dlx.node.runs.draft_text import SIZES
    from dlx.training.data.shards import DataError
    from dlx.training.data.vocabulary import Vocabulary, is_bytes
    from dlx.training.recipe.huggingface import read_config
    from dlx.training.recipe.recipe import Model, parse_model
    from dlx.training.recipe.strict import ManifestError

    if given in SIZES:
        return SIZES[given], SIZES[given].layers, SIZES[given].length, None, 0
    folder = _whole("--model", options.existing_folder(Path(given), "--model"))
    try:
        config = parse_model(Model(read_config(folder, untie=False)))
    except ManifestError as error:
        raise UsageFailure(f"--model {given}: {error}") from None
    length = min(_LENGTH, config.positions_limit[1])
    shared = config.vocab_size * config.embedding_width if config.tie_word_embeddings else 0
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file() or is_bytes(tokenizer):
        return folder, config.layers, length, None, shared
    try:
        Vocabulary.read(tokenizer)
    except DataError as error:  # as `run create` will say: a separator in the draft may mend it
        options.note(f"note: {error}")
    return folder, config.layers, length, tokenizer, shared


def _whole(option: str, path: Path) -> Path:
    """As a draft, which is UTF-8, can name it from everywhere. Raises UsageFailure."""
    whole = path.absolute()
    try:
        str(whole).encode()
    except UnicodeEncodeError:
        raise UsageFailure(
            f"{option} {printable(str(whole))}: this path is not UTF-8, and a draft is: rename it, or name a link to it"
        ) from None
    return whole


def _count(option: str, given: str, highest: int, why: str = "") -> int:
    number = int(given) if re.fullmatch(r"\d{1,9}", given, re.ASCII) else 0
    if not 1 <= number <= highest:
        raise UsageFailure(f"{option} {printable(given, 40)}: {why or f'expected a number from 1 to {highest}'}")
    return number


def _valid(option: str, kind: Any, given: str) -> str:
    from dlx.training.recipe.strict import ManifestError, convert

    try:
        return convert(given, kind)
    except ManifestError as error:
        reason = str(error).partition(": ")[2].rpartition(", got ")[0]
        raise UsageFailure(f"{option} {printable(given, 40)}: {reason}") from None


def _plain(stem: str) -> str:
    """A file's name as a run's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64] or "my-run"
