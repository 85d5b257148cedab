"""Conversations: what a row of instruction data says, in one form, and the text that a chat template makes of it with
the parts of it that an assistant says.

A row has `messages`, or `prompt` and `completion` (texts, or messages), or ShareGPT's `conversations`, or Alpaca's
`instruction`, `input` and `output`. Beside these it may have `system`, a text, and `tools`. A message of `weight` 0 is
said and not learnt. Templates are programs: they run in the sandbox of `transformers`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from dlx.training.data import python_json

KEYS = ("messages", "conversations", "prompt", "completion", "instruction")  # one says that a row is a conversation
BESIDE = ("input", "output", "system", "tools")
PAIRS = (("prompt", "completion"), ("instruction", "output"))  # what is asked, and the answer

_SHARED = {  # ShareGPT's `from`
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
}
_SPEAKER = "assistant"  # whose words are learnt
_MOST_MESSAGES = 10_000
_DATE = datetime(2024, 7, 26)  # of templates that want one: the same rows on every day
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ConversationError(ValueError):
    """A row that is no conversation, or one that the template does not take; the message says why."""


class Rendered(NamedTuple):
    """A text, and where an assistant speaks in it: half-open intervals of its characters, ascending."""

    text: str
    spoken: list[tuple[int, int]]


def conversation(row: Any, answered: bool = True) -> bytes | None:
    """The row's conversation as JSON: an object with `messages` (each with `role`, `content` and what else it had),
    and where there are any, `tools` and `silent`, the places of messages that are not learnt. Keys are in the order in
    which they were given. None for a row whose keys hold nothing. Unless it has to be `answered`, an assistant need
    not speak in it. Raises ConversationError."""
    if not isinstance(row, dict):
        raise ConversationError("expected an object")
    given = {key: row[key] for key in KEYS if row.get(key) not in (None, "", [])}
    if not given:
        if "instruction" in row and row.get("output") not in (None, "", []):
            raise ConversationError("has no `instruction`, or an empty one")
        if any(key in row for key in KEYS):
            return None
        other = ", ".join(map(repr, list(row)[:20]))
        raise ConversationError(
            "has no conversation: expected `messages`, `conversations`, `prompt` and `completion`, or `instruction` "
            "and `output`" + (f", got {other}" if other else "")
        )
    if "messages" in given:
        messages = _messages(given["messages"], "messages")
    elif "conversations" in given:
        messages = _shared(given["conversations"])
    elif "prompt" in given or "completion" in given:
        messages = _pair(given, PAIRS[0], answered)
    else:
        messages = _pair(_instruction(row), PAIRS[1], answered)
    system, tools = row.get("system"), row.get("tools")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    silent = [at for at, one in enumerate(messages) if one.pop("weight", 1) == 0 and one["role"] == _SPEAKER]
    if answered and not any(message["role"] == _SPEAKER and at not in silent for at, message in enumerate(messages)):
        said = "every message of an assistant has `weight` 0" if silent else "no message is an assistant's"
        raise ConversationError(f"{said}: there is nothing to learn from it")
    if isinstance(tools, str) and tools.strip():  # as columns have them
        try:
            tools = python_json.decode(tools)
        except python_json.WRONG:
            raise ConversationError("its `tools` are no JSON") from None
    try:
        beside = ({"tools": tools} if tools else {}) | ({"silent": silent} if silent else {})
        return msgspec.json.encode({"messages": messages} | beside)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConversationError(f"is no JSON ({error})") from None


class Template:
    """A chat template; `tokens` has the special tokens that it may name (`bos_token`, ..). Raises ConversationError."""

    def __init__(self, text: str, tokens: Mapping[str, str]) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        try:
            self._template = _compile_jinja_template(text)
        except MemoryError:
            raise
        except Exception as error:  # jinja's own, and whatever its parser raises
            raise ConversationError(f"the chat template cannot be read ({_line(error)})") from None
        self._text, self._marks = text, bool(_GENERATION.search(text))
        self._options = {**tokens, "strftime_now": _DATE.strftime}

    def rendered(self, conversation: bytes) -> list[Rendered]:
        """The conversation as a text, with what an assistant says by the template's `{% generation %}`. Of a template
        without, an answer is what comes behind the text that asks for it. Where an answer is written in another way
        once the conversation went on, each answer has a text of its own, which ends with it. Raises ConversationError.
        """
        found = msgspec.json.decode(conversation)
        messages, tools, silent = found["messages"], found.get("tools"), found.get("silent", [])
        answers = [at for at, message in enumerate(messages) if message["role"] == _SPEAKER]
        if self._marks:
            return [self._marked(messages, tools, [at not in silent for at in answers])]
        answers = [at for at in answers if at not in silent]
        text = self._render(messages, tools)
        turns = [self._turn(messages[: at + 1], tools) for at in answers]
        if all(text.startswith(turn.text) for turn in turns):
            return [Rendered(text, [span for turn in turns for span in turn.spoken])]
        return turns

    def _turn(self, messages: Sequence[dict[str, Any]], tools: Any) -> Rendered:
        """Of the last message alone."""
        asked, text = self._render(messages[:-1], tools, asks=True), self._render(messages, tools)
        if not text.startswith(asked):
            raise ConversationError(
                f"the chat template writes message {len(messages)} in another way than it asks for it, so what is "
                "learnt is not clear: name one with {% generation %} (`data.template`, --template)"
            )
        return Rendered(text, [(len(asked), len(text))])

    def _marked(self, messages: Sequence[dict[str, Any]], tools: Any, learnt: Sequence[bool]) -> Rendered:
        """`learnt`: of each answer, whether it is."""
        blocks, spoken = list[str](), list[tuple[int, int]]()
        with self._template.environment.activate_tracker(blocks, spoken):
            text = self._render(messages, tools, blocks=blocks)
        spoken.sort()
        if spoken and not all(learnt):
            if len(spoken) != len(learnt):
                raise ConversationError(
                    f"the chat template marks {len(spoken)} places in {len(learnt)} answers, so which of them has "
                    "`weight` 0 is not clear"
                )
            spoken = [span for span, counts in zip(spoken, learnt, strict=True) if counts]
        if not any(low < high for low, high in spoken):
            raise ConversationError("the chat template marks nothing of it as an assistant's (`{% generation %}`)")
        return Rendered(text, spoken)

    def _render(
        self, messages: Sequence[dict[str, Any]], tools: Any, asks: bool = False, blocks: list[str] | None = None
    ) -> str:
        blocks = [] if blocks is None else blocks
        try:
            given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": asks}
            for block in self._template.generate(**self._options, **given):
                blocks.append(block)
        except MemoryError:
            raise
        except Exception as error:  # a template may do anything that a program can
            raise ConversationError(f"the chat template refuses it ({_line(error)})") from None
        return "".join(blocks)


def _messages(given: Any, key: str) -> list[dict[str, Any]]:
    if isinstance(given, str):
        try:
            given = python_json.decode(given)  # as columns have them
        except python_json.WRONG:
            raise ConversationError(f"its `{key}` are no list of messages") from None
    if not isinstance(given, list) or not given or len(given) > _MOST_MESSAGES:
        raise ConversationError(f"its `{key}` are no list of 1 to {_MOST_MESSAGES} messages")
    return [_message(one, number) for number, one in enumerate(given, 1)]


def _message(given: Any, number: int) -> dict[str, Any]:
    """With `role` and `content` first, and without what is null; a `weight` is 0 or 1."""
    if not isinstance(given, dict):
        raise ConversationError(f"message {number} is no object")
    given = {key: value for key, value in given.items() if value is not None}
    role, content = given.pop("role", None), given.pop("content", None)
    if not isinstance(role, str) or not role:
        raise ConversationError(f"message {number} has no `role`")
    if given.get("weight", 1) not in (0, 1):
        raise ConversationError(f"message {number} has the `weight` {repr(given['weight'])[:40]}: expected 0 or 1")
    if isinstance(content, list):
        content = _parts(content, number)
    if content is None and any(given.get(key) for key in ("tool_calls", "function_call")):
        content = ""
    if not isinstance(content, str):
        raise ConversationError(f"message {number} has no `content` that is a text")
    if isinstance(calls := given.get("tool_calls"), list):
        given["tool_calls"] = [_call(one) for one in calls]
    return {"role": role, "content": content, **given}


def _call(given: Any) -> Any:
    """With arguments that are an object, as templates take them; the text of one is what the wire has."""
    match given:
        case {"function": {"arguments": str(text)} as function}:
            try:
                arguments = python_json.decode(text or "{}")
            except python_json.WRONG:
                return given
            if isinstance(arguments, dict):
                return {**given, "function": {**function, "arguments": arguments}}
    return given


def _parts(given: list[Any], number: int) -> str:
    found = [part.get("text") for part in given if isinstance(part, dict) and part.get("type", "text") == "text"]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(given):
        raise ConversationError(f"message {number} holds something else than text")
    return "".join(texts)


def _shared(given: Any) -> list[dict[str, Any]]:
    """ShareGPT's. Some have messages in that column."""
    if not isinstance(given, list) or not all(isinstance(one, dict) and "from" in one for one in given):
        return _messages(given, "conversations")
    messages = []
    for number, one in enumerate(given, 1):
        who = one["from"]
        if not isinstance(who, str) or who not in _SHARED:
            raise ConversationError(f"message {number} is from {str(who)[:40]!r}: expected {', '.join(_SHARED)}")
        messages.append({"role": _SHARED[who], "content": one.get("value"), "weight": one.get("weight")})
    return _messages(messages, "conversations")


def _instruction(row: Mapping[str, Any]) -> dict[str, Any]:
    """Alpaca's: what the instruction is about stands behind it, after an empty line."""
    given = {key: row[key] for key in PAIRS[1] if row.get(key) not in (None, "", [])}
    about = row.get("input")
    if about not in (None, ""):
        if not isinstance(about, str) or not isinstance(given["instruction"], str):
            raise ConversationError("its `instruction` or its `input` is no text")
        given["instruction"] += f"\n\n{about}"
    return given


def _pair(given: Mapping[str, Any], keys: tuple[str, str], answered: bool) -> list[dict[str, Any]]:
    """What a user says under the first key, and an assistant under the second."""
    found = list[dict[str, Any]]()
    for key, role in zip(keys, ("user", _SPEAKER), strict=True):
        if key not in given:
            if key == keys[1] and not answered:
                continue
            raise ConversationError(f"has no `{key}`, or an empty one")
        one = given[key]
        found += [{"role": role, "content": one}] if isinstance(one, str) else _messages(one, key)
    return found


def _line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
