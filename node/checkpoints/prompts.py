"""What models answer to prompts that a file lists, the likeliest token each time, and whether that was expected.

A file has a prompt a line, as JSON: a row of instruction data (training.data.conversations), or a `prompt` alone. The
last message, where an assistant says it, is the answer that is expected, but for what `expected` says. `match` says
when an answer is as expected: `exact` (the default, blanks at both ends aside), `contains`, or `regex`, which is
searched for in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dlx.ground import handwritten
from dlx.ground.untrusted import printable
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.formatting import bar
from dlx.training.data.conversations import BESIDE, KEYS, conversation

if TYPE_CHECKING:
    from dlx.training.models.generate import Writer

Match = Literal["exact", "contains", "regex"]
_MOST_BYTES = 256 << 20  # of a file


class Prompt(msgspec.Struct, frozen=True):
    """A conversation that an assistant goes on with."""

    line: int  # of its file, from 1
    messages: list[dict[str, Any]]
    expected: str | None  # None: whatever it answers
    match: Match
    tools: Any = None  # for the template


class Answer(msgspec.Struct, frozen=True):
    text: str
    ended: Literal["stop", "length"]  # by the model itself, or by the limit
    right: bool | None  # None: nothing was expected


class _Judged(msgspec.Struct):
    expected: str | None = None
    match: Match = "exact"


def read(path: Path, judged: bool) -> list[Prompt]:
    """The prompts of a file. `judged`: each has to say what is expected. Raises UsageFailure, which names the line, and
    OSError."""
    if path.stat().st_size > _MOST_BYTES:
        raise UsageFailure(f"{path} has more than {_MOST_BYTES >> 20} MiB: no file of prompts to ask one by one")
    try:
        lines = handwritten.read(path, _MOST_BYTES).split("\n")
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_prompt(number, line))
            except (ValueError, msgspec.MsgspecError, RecursionError) as error:
                raise UsageFailure(f"{path}, line {number}: {error}") from None
            if judged and found[-1].expected is None:
                raise UsageFailure(f"{path}, line {number}: no answer is expected: say it by `expected`")
    if not found:
        raise UsageFailure(f"{path} has no prompt: expected a line of JSON for each")
    return found


def said(texts: Sequence[str]) -> list[Prompt]:
    """What a user says each time; nothing is expected. Raises UsageFailure for what is no UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageFailure(f"--prompt {printable(text, 40)}: is no UTF-8") from None
    return [Prompt(number, [{"role": "user", "content": text}], None, "exact") for number, text in enumerate(texts, 1)]


def _prompt(number: int, line: str) -> Prompt:
    """Raises ValueError, msgspec.MsgspecError."""
    row = msgspec.json.decode(line, type=dict[str, Any])
    if unknown := row.keys() - {*KEYS, *BESIDE, "expected", "match"}:
        raise ValueError(f"`{min(unknown)}` is no key of a prompt")
    given = msgspec.convert({key: row.pop(key) for key in ("expected", "match") if key in row}, _Judged)
    found = conversation(row, answered=False)
    if found is None:
        raise ValueError("has no conversation")
    read = msgspec.json.decode(found)
    messages, expected = read["messages"], given.expected
    if messages[-1]["role"] == "assistant":
        *messages, last = messages
        expected = last["content"] if expected is None else expected
    if not messages:
        raise ValueError("expected a message before the answer")
    if given.match == "regex" and expected is not None:
        try:
            re.compile(expected)
        except re.error as error:
            raise ValueError(f"{expected!r} is no regular expression: {error}") from None
    return Prompt(number, messages, expected, given.match, read.get("tools"))


def is_right(prompt: Prompt, answer: str) -> bool | None:
    """Whether the answer is as expected; None where nothing is.

    Examples:
        >>> is_right(Prompt(1, [], "Paris", "exact"), " Paris\\n"), is_right(Prompt(1, [], "Paris", "exact"), "Paris.")
        (True, False)
        >>> is_right(Prompt(1, [], "(?i)paris|lyon", "regex"), "It is PARIS")
        True
    """
    if prompt.expected is None:
        return None
    match prompt.match:
        case "exact":
            return answer.strip() == prompt.expected.strip()
        case "contains":
            return prompt.expected in answer
        case "regex":
            return re.search(prompt.expected, answer) is not None


def ask(writer: Writer, prompts: Sequence[Prompt], most: int, named: str, show: Callable[[str], None]) -> list[Answer]:
    """What the model says to each, at most `most` tokens. All prompts are looked at before the first is asked. `named`:
    what the prompts' file is called. Raises Failure, which names the line, for one that the model's template refuses or
    that leaves no room."""
    from dlx.training.models.evaluate import EvaluateError
    from dlx.training.models.generate import Sampling

    asked = []
    for prompt in prompts:
        try:
            tokens = writer.tokens(writer.chat(prompt.messages, prompt.tools))
        except EvaluateError as error:
            raise Failure(f"{named}, line {prompt.line}: {error}") from None
        room = writer.context - max(1, len(tokens))
        if room < 1:
            raise Failure(f"{named}, line {prompt.line}: {len(tokens)} tokens, the model has room for {writer.context}")
        asked.append((prompt, tokens, Sampling(min(most, room), temperature=0)))
    answers = []
    for done, (prompt, tokens, how) in enumerate(asked):
        show(f"{bar(done, len(asked))} prompt {done} of {len(asked)}")
        pieces = list(writer.write(tokens, how))
        text = "".join(piece.text for piece in pieces)
        answers.append(Answer(text, "stop" if pieces[-1].end == "stop" else "length", is_right(prompt, text)))
    return answers


def told(answers: Sequence[Answer]) -> str:
    """How many are right, in words; empty where nothing was expected."""
    judged = [one.right for one in answers if one.right is not None]
    return f"{sum(judged)} of {len(judged)} answers as expected" if judged else ""
