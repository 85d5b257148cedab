"""Whether a chat template takes conversations, found out in a process of its own: a template is a program of whoever
made the model, and may never end.

    python -m dlx.training.data.template_check SECONDS

is such a process (see `ground.answering`). Its first question is the template, each other one a conversation. What it
has taken ends with the same text elsewhere, since nothing that a template can ask for changes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Self

import msgspec

from dlx.ground.answering import Answering, NoAnswer, answer_lines, in_words, too_large
from dlx.training.data.conversations import ConversationError, Template

SECONDS = 5.0  # of computing, that one may take
_MEMORY = 512 << 20  # bytes, beside what the process is made of


class _Asked(msgspec.Struct):
    text: str
    tokens: dict[str, str]  # special ones, that the template may name


class TemplateCheck:
    """`with TemplateCheck(text, tokens) as check: check.take(conversation)`. Raises ConversationError for a template
    that is none."""

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        self._template = msgspec.json.encode(_Asked(text, dict(tokens)))
        self._process: Answering | None = self._started()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()

    def take(self, conversation: bytes) -> None:
        """Raises ConversationError for one that the template does not take."""
        process, self._process = self._process or self._started(), None
        _ask(process, conversation)
        self._process = process

    def _started(self) -> Answering:
        process = Answering(__name__, SECONDS)
        _ask(process, self._template)
        return process


def _ask(process: Answering, line: bytes) -> None:
    """Ends the process too where it raises ConversationError."""
    try:
        refused = process.ask(line).decode()
    except BaseException as error:
        process.kill()
        if isinstance(error, NoAnswer):
            raise ConversationError(f"the chat template {in_words(error, SECONDS, _MEMORY)}") from None
        raise
    if refused:
        process.kill()
        raise ConversationError(refused)


def _answer_questions(seconds: float) -> None:
    template: Template | None = None

    def answer(line: bytes) -> bytes:
        nonlocal template
        try:
            if template is None:
                asked = msgspec.json.decode(line, type=_Asked)
                template = Template(asked.text, asked.tokens)
            else:
                template.rendered(line)
        except MemoryError:
            return f"the chat template {too_large(_MEMORY)}".encode()
        except ConversationError as error:
            return str(error).encode(errors="replace")
        return b""

    import transformers.utils.chat_template_utils  # noqa: F401 - now, so that no conversation pays for it

    answer_lines(seconds, answer, _MEMORY)


if __name__ == "__main__":
    _answer_questions(float(sys.argv[1]))
