"""Chat templates, run in a process of their own: a template is a program of whoever made the model, and may never end.

    python -m dlx.training.models.chat_templates SECONDS

is such a process (see `ground.answering`). The kernel also refuses it more memory than a text may take.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dlx.ground.answering import Answering, NoAnswer, answer_lines, in_words, too_large
from dlx.training.recipe.huggingface import first_line

SECONDS = 5.0  # of computing, that a text may take
MAX_CHARACTERS = 2 << 20  # of a text
_MEMORY = 512 << 20  # bytes, beside what the process is made of


class TemplateError(ValueError):
    """What a chat template does that it should not, in words that follow its name."""


class Question(msgspec.Struct):
    template: str
    tokens: Mapping[str, Any]  # special ones, by the names that the template has for them
    messages: Sequence[dict[str, Any]]
    tools: Any = None


class _Answer(msgspec.Struct):
    text: str = ""
    refused: str | None = None


class Renderer:
    """Makes texts of conversations, one after the other. Its process starts when it is first needed, and ends with
    us."""

    def __init__(self) -> None:
        self._process: Answering | None = None

    def text(self, question: Question) -> str:
        """The text, which asks for an assistant's answer. Raises TemplateError; no later text suffers from it."""
        process = self._process or Answering(__name__, SECONDS)
        self._process = None
        try:
            answer = msgspec.json.decode(process.ask(msgspec.json.encode(question)), type=_Answer)
        except BaseException as error:
            process.kill()
            if isinstance(error, NoAnswer):
                raise TemplateError(in_words(error, SECONDS, _MEMORY)) from None
            raise
        self._process = process
        if answer.refused is not None:
            raise TemplateError(answer.refused)
        return answer.text


def _answer_questions(seconds: float) -> None:
    import transformers.utils.chat_template_utils  # noqa: F401 - now, so that no text pays for it

    answer_lines(
        seconds, lambda line: msgspec.json.encode(_rendered(msgspec.json.decode(line, type=Question))), _MEMORY
    )


def _rendered(question: Question) -> _Answer:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        found: Any = render_jinja_template(
            [list(question.messages)],
            tools=question.tools,
            chat_template=question.template,
            add_generation_prompt=True,
            **question.tokens,
        )
        text = str(found[0][0])
        text.encode()  # half a character is no text
    except MemoryError:
        return _Answer(refused=too_large(_MEMORY))
    except Exception as error:  # a template may do anything that a program can
        return _Answer(refused=f"refuses this ({first_line(error)})")
    if len(text) > MAX_CHARACTERS:
        return _Answer(refused=f"writes more than {MAX_CHARACTERS:,} characters")
    return _Answer(text)


if __name__ == "__main__":
    _answer_questions(float(sys.argv[1]))
