"""`dlx-node run new`: a commented run.toml from a folder of text, and what the run would cost."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from dlx.ground.untrusted import printable
from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.cli.runs import consent, plan, plan_text
from dlx.node.home import formatting
from dlx.node.home.errors import UsageFailure
from dlx.node.home.program import line

if TYPE_CHECKING:
    from dlx.node.runs.draft_text import Size
    from dlx.training.data.survey import Survey

_T = TypeVar("_T")
_STEPS = 10  # inner steps of a round, by default
_BATCH = 8  # samples
_LENGTH = 1024  # tokens of a sample, at most
_TALKS = "--data holds conversations: --model has to be a folder with a tokenizer and a chat template"


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
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What becomes of the model in a folder: pretrain, finetune or lora.",
            show_default="asked: finetune",
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
    public_data: Annotated[
        bool,
        typer.Option("--public-data", help="The run's text may be public: whoever asks gets it.", show_default="asked"),
    ] = False,
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
    home = out.absolute().parent
    if out.exists() or not home.is_dir():
        raise UsageFailure(f"{out} cannot be made: name a new file in a folder that exists")
    if not os.access(home, os.W_OK | os.X_OK):  # now, not after all questions
        raise UsageFailure(f"{out} cannot be made: you may not write in {home}")
    from dlx.ground import durable
    from dlx.node.runs.draft_text import SIZES, Answers, draft_text, even, suggested_rounds
    from dlx.training.recipe.presets import KINDS
    from dlx.training.recipe.recipe import Licence, Name

    question = "A file or folder with the text, which will be public"
    text, found, chat = _ask(question, data, None, partial(_text, field, raw))
    consent.agree(public_data, str(text))
    sizes = ", ".join(SIZES)
    question = f"Model: a Hugging Face folder, or {sizes}"
    start, layers, length, tokenizer, tied, large = _ask(question, model, "tiny", partial(_model, chat))
    chosen = "pretrain"
    if isinstance(start, Path) or kind is not None:
        question = f"What becomes of it: {' or '.join(KINDS)}"
        chosen = _ask(question, kind, "finetune", partial(_kind, isinstance(start, Path)))
    count = partial(_count, "--stages", highest=layers, why=f"the model has {layers} layers")
    machines = _ask(f"Machines that share the model's {layers} layers", stages, 1, count)
    if tied and machines > 1:
        options.note(
            f"note: the model's head is its embedding; in {machines} stages it gets weights of its own, "
            f"{tied:,} parameters more"
        )
    begin = _ask("Replicas that begin together", replicas, 2, partial(_count, "--replicas", highest=64))
    tokens = _tokens(found, tokenizer)
    once = suggested_rounds(tokens, _BATCH * length, _STEPS, begin)
    rounds_question = f"Rounds (about {tokens:,} tokens: about once through them is {once})"
    answers = Answers(
        name=_ask("Name", name, _plain(text.stem), partial(_valid, "--name", Name)),
        rounds=_ask(rounds_question, rounds, once, partial(_count, "--rounds", highest=10**7)),
        licence=_ask("Licence of the data", licence, "", partial(_valid, "--licence", Licence)),
        model=start,
        kind=chosen,
        data=text,
        field=field,
        raw=raw,
        chat=chat,
        stages=even(layers, machines),
        min_replicas=begin,
        max_replicas=max(8, begin),
        length=length,
        batch_size=_BATCH,
        micro_batches=4 if machines > 1 else 1,
        tokenizer=tokenizer,
        large=large,
    )
    durable.write_bytes(out, draft_text(answers).encode())
    try:
        with Progress() as progress:
            planned = plan.planned(out, device, progress, replicas=begin, link=link)
        if timeout := _longer_timeout(planned):
            durable.write_bytes(out, draft_text(replace(answers, round_timeout=timeout)).encode())
            planned = plan_text.with_timeout(planned, timeout)
    except BaseException:
        out.unlink()  # what is left would be no run
        raise
    plan_text.print_plan(planned)
    if price:
        hours = answers.rounds * planned.seconds.round / 3600
        sum_ = hours * begin * machines * price
        options.print_fields([("cost", f"{sum_:,.2f}: {hours:,.1f} hours of {begin * machines} devices at {price:g}")])
    options.note(f"wrote {out}: look through it, then `{line('run', 'create', '--manifest', out)}`")
    options.note(
        f"that gives the text to whoever asks; for text that must not leave its machine see `private` in {out}"
    )


def _longer_timeout(planned: plan_text.Plan) -> int | None:
    """Seconds, where a round as planned leaves too little room in the timeout that the draft has."""
    from dlx.training.balance.seconds import ample_timeout

    ample = ample_timeout(planned.seconds.round)
    return ample if ample > planned.draft.timing.round_timeout else None


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


def _text(field: str, raw: bool, given: str) -> tuple[Path, Survey, bool]:
    """The whole path, what is there, and whether its entries are conversations. Raises UsageFailure for what `run
    create` would refuse."""
    from dlx.training.data.formats import find
    from dlx.training.data.shards import DataError
    from dlx.training.data.survey import Portion, survey

    path = Path(given)
    whole = _whole("--data", path)
    chat = False
    try:
        with Progress() as progress:

            def look(chat: bool) -> Survey:
                return survey(
                    [(Portion([path], field=field), find([path], field, raw, of_bytes=raw, chat=chat))],
                    whole=chat,
                    progress=lambda done, total: progress.show(
                        f"{formatting.bar(done, total)} {done:,} of {total:,} files"
                    ),
                )

            try:
                found = look(False)
            except DataError as error:
                chat = True
                try:
                    found = look(True)
                except DataError:
                    raise error from None
    except DataError as error:
        raise UsageFailure(f"--data {error}") from None
    options.note(f"the text is {found.found}{', of conversations' if chat else ''}: {found}")
    return whole, found, chat


def _tokens(found: Survey, tokenizer: Path | None) -> int:
    """About how many the text has."""
    from dlx.training.data.shards import DataError
    from dlx.training.data.vocabulary import Vocabulary

    try:
        return found.tokens(Vocabulary.read(tokenizer, 0) if tokenizer else None)
    except DataError:
        return found.total // 4


class _Start(NamedTuple):
    """What the run starts from."""

    model: Path | Size  # a folder, or drawn weights
    layers: int
    length: int  # tokens of a sample
    tokenizer: Path | None = None  # where it has one, and bytes are not its tokens
    shared: int = 0  # weights of the embedding that are the head's too
    large: bool = False  # for the rates of its kind


def _model(chat: bool, given: str) -> _Start:
    """Raises UsageFailure, for `chat` also where the folder does not say how conversations become tokens."""
    from dlx.node.runs.draft_text import SIZES
    from dlx.training.data.prepare import Preparation
    from dlx.training.data.shards import DataError
    from dlx.training.data.vocabulary import Vocabulary, is_bytes
    from dlx.training.recipe.advice import is_large
    from dlx.training.recipe.huggingface import read_config
    from dlx.training.recipe.recipe import Model, parse_model
    from dlx.training.recipe.strict import ManifestError

    if given in SIZES and chat:
        raise UsageFailure(_TALKS)
    if given in SIZES:
        if Path(given).is_dir():
            options.note(f"note: --model {given} is a size; the folder of that name is ./{given}")
        return _Start(SIZES[given], SIZES[given].layers, SIZES[given].length)
    folder = _whole("--model", options.existing_folder(Path(given), "--model"))
    try:
        config = parse_model(Model(read_config(folder, untie=False)))
    except ManifestError as error:
        raise UsageFailure(f"--model {given}: {error}") from None
    length = min(_LENGTH, config.positions_limit[1])
    shared = config.vocab_size * config.embedding_width if config.tie_word_embeddings else 0
    tokenizer = folder / "tokenizer.json"
    start = _Start(folder, config.layers, length, tokenizer, shared, is_large(config))
    if chat:
        try:
            _ = Preparation([], tokenizer=tokenizer if tokenizer.is_file() else None, chat=True).packing
        except DataError as error:
            raise UsageFailure(f"{_TALKS} ({error})") from None
    elif not tokenizer.is_file() or is_bytes(tokenizer):
        return start._replace(tokenizer=None)
    try:
        tokens = Vocabulary.read(tokenizer).size
    except DataError as error:  # as `run create` will say: a separator in the draft may mend it
        options.note(f"note: {error}")
        tokens = 0
    if tokens > config.vocab_size:
        rows = f"expected at least its tokenizer's {tokens} tokens, got {config.vocab_size}"
        raise UsageFailure(f"--model {given}: vocab_size: {rows}")
    return start


def _kind(trained: bool, given: str) -> str:
    from dlx.training.recipe.presets import KINDS

    if given not in KINDS or (given != "pretrain" and not trained):
        names = " or ".join(KINDS) if trained else "pretrain, for drawn weights: --model names no folder"
        raise UsageFailure(f"--kind {printable(given, 40)}: expected {names}")
    return given


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
