"""`dlx-node compare`: what two versions answer to the same prompts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from dlx.ground.untrusted import printable
from dlx.node.cli import models, options
from dlx.node.cli.progress import Progress
from dlx.node.home import extras
from dlx.node.home.errors import UsageFailure

if TYPE_CHECKING:
    from dlx.node.checkpoints.evaluation_store import Compared
    from dlx.node.checkpoints.prompts import Answer, Prompt

_MODEL = {"help": "A folder that `pull` wrote, RUN@VERSION, or a run: its newest version."}


@options.of_folder("device", *options.LEDGER, "bootstrap", "mailboxes")
def command(
    given: options.Given,
    a: Annotated[str, typer.Argument(metavar="A", **_MODEL)],
    b: Annotated[str, typer.Argument(metavar="B", **_MODEL)],
    chat: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON Lines of prompts, as of `evaluate --chat`.", show_default="none"),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A prompt; can be given more than once.", show_default="none"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer.")] = 256,
    page: Annotated[
        bool,
        typer.Option("--page", help="Keep prompts and answers in the folder: who reaches its page reads them."),
    ] = False,
    base: options.BaseOption = None,
    blobs: options.BlobsOption = None,
    json: options.JsonOption = False,
) -> None:
    """Ask two versions the same prompts, and print their answers side by side.

    Each answers by its own chat template, the likeliest token each time. Where the file says what is expected, each
    answer is judged, too.
    """
    if (chat is None) == (not prompt):
        raise UsageFailure("expected either --chat FILE or --prompt TEXT")
    extras.require("train")
    from dlx.node.checkpoints import evaluation_store, prompts
    from dlx.node.checkpoints.evaluation_store import Comparison
    from dlx.training.models.placement import settle

    if chat is not None:
        options.existing_file(chat, "--chat")
    asked = prompts.said(prompt) if prompt else prompts.read(chat, judged=False) if chat else []
    both = [models.named(a), models.named(b)]
    folder, settings = options.folder(given)
    device, file = settle(settings.placement).device, str(chat or "--prompt")
    names, answers = [], []
    with ExitStack() as stack, Progress(json) as progress:
        if page and not folder.is_a_nodes:
            raise UsageFailure(f"--page: {folder.root} is no node's folder, whose page could show it (--datadir)")
        sources = models.have(stack, both, folder, settings, blobs, progress, base=base)
        run, versions = models.versions_of(sources) if page else (b"", (0, 0))
        for source in sources:
            names.append(models.name_of(source))
            writer = models.load(source, device)  # one at a time: both may not fit in memory
            answers.append(prompts.ask(writer, asked, max_tokens, file, progress.show))
            del writer
    if page:
        evaluation_store.add_comparison(folder, run, Comparison(versions, _kept(asked, answers)))
    if json:
        each = [
            to_builtins(one) | {"a": to_builtins(of_a), "b": to_builtins(of_b)}
            for one, of_a, of_b in zip(asked, *answers, strict=True)
        ]
        options.print_json({"a": names[0], "b": names[1], "answers": each})
        return
    for one, of_a, of_b in zip(asked, *answers, strict=True):
        _print(one, of_a, of_b)
    for letter, name, its in zip("AB", names, answers, strict=True):
        told = prompts.told(its)
        options.say(f"{letter}  {name}{f': {told}' if told else ''}")


def _kept(asked: Sequence[Prompt], answers: Sequence[Sequence[Answer]]) -> list[Compared]:
    from dlx.node.checkpoints.evaluation_store import Compared

    return [
        Compared(str(prompt.messages[-1].get("content")), prompt.expected, (a.text, b.text), (a.right, b.right))
        for prompt, a, b in zip(asked, *answers, strict=True)
    ]


def _print(prompt: Prompt, of_a: Answer, of_b: Answer) -> None:
    """The prompt's last message, and below it both answers in a column each."""
    from rich.table import Table

    last = prompt.messages[-1]
    options.say(f"{prompt.line}  {last['role']}: {printable(str(last.get('content')), 500)}")
    if prompt.expected is not None:
        options.say(f"   expected ({prompt.match}): {printable(prompt.expected, 500)}")
    table = Table(box=None, expand=True, show_header=False, padding=(0, 2, 0, 1))
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_row(*(f"{letter}{_judged(one)}: {_lines(one.text)}" for letter, one in (("A", of_a), ("B", of_b))))
    options.console().print(table)
    sys.stdout.write("\n")


def _judged(answer: Answer) -> str:
    return "" if answer.right is None else " (right)" if answer.right else " (WRONG)"


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.strip().split("\n")))
