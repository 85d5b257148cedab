"""Text that a Hugging Face folder's model writes, token by token."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from dlx.training.models.chat_templates import Question, Renderer, TemplateError
from dlx.training.models.evaluate import EvaluateError, refuse_unloadable
from dlx.training.recipe.huggingface import first_line

_UNDECIDED = "\ufffd"  # the end of a text whose last character is not whole yet


class Sampling(NamedTuple):
    """`temperature` 0: always the likeliest token."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0  # of the probability, that the likeliest tokens make up between which is chosen
    seed: int | None = None
    stop: tuple[str, ...] = ()  # texts that end it, and are not part of it


class Piece(NamedTuple):
    """Of an answer."""

    text: str
    end: str | None  # with the last one, why it ends there: "stop" or "length"
    tokens: int  # that the model wrote so far


class Writer:
    """A loaded model. One thread at a time, and beside it one for `chat`. `temperature` and `top_p` are those that its
    folder asks for, else 1. Raises EvaluateError for a folder that holds none."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        refuse_unloadable(folder)
        logging.disable_progress_bar()  # it writes to logs as well
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise EvaluateError(f"{folder}: {str(error).splitlines()[0]}") from None
        self._model, self._device, self._renderer = model.to(device).eval(), device, Renderer()
        ends = self._model.generation_config.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        self.temperature, self.top_p = _asked_for(self._model.generation_config)
        self.context: int = self._model.config.max_position_embeddings  # tokens, of prompt and answer together

    def tokens(self, text: str) -> list[int]:
        """Of a prompt."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def chat(self, messages: Sequence[dict[str, Any]], tools: Any = None) -> str:
        """The prompt that a conversation comes to: by the model's own template, a stranger's program that runs in the
        sandbox of transformers and within bounds, else as roles and lines, which have no tools. Raises EvaluateError
        where the template takes no such one, or goes beyond its bounds."""
        if self._tokenizer.chat_template:
            try:
                template = self._tokenizer.get_chat_template(None, tools)
                return self._renderer.text(Question(template, self._tokenizer.special_tokens_map, messages, tools))
            except TemplateError as error:
                raise EvaluateError(f"the model's chat template {error}") from None
            except ValueError as error:  # there are several, and none for this
                raise EvaluateError(f"the model has no chat template for this ({first_line(error)})") from None
        if tools or any("tool_calls" in one for one in messages):
            raise EvaluateError("the model has no chat template, which tools need")
        said = "".join(f"{one['role']}: {one['content']}\n" for one in messages)
        return f"{said}assistant:"

    def write(self, prompt: Sequence[int], how: Sampling) -> Iterator[Piece]:
        """The answer, in pieces of a token or more. `prompt` and `max_tokens` have to fit into `context` together."""
        chance = torch.Generator().manual_seed(how.seed) if how.seed is not None else None
        given, kept, ids, sent = torch.tensor([[*prompt] or [0]]), None, list[int](), ""
        for count in range(1, how.max_tokens + 1):
            with torch.inference_mode():
                found = self._model(given.to(self._device), past_key_values=kept, use_cache=True)
                chosen = _choose(found.logits[0, -1].float().cpu(), how, chance)
            kept, given = found.past_key_values, torch.tensor([[chosen]])
            if chosen in self._ends:
                yield Piece(self._rest(ids, sent), "stop", count)
                return
            ids.append(chosen)
            text = self._tokenizer.decode(ids, skip_special_tokens=True)
            ends = [at for one in how.stop if (at := text.find(one)) >= 0]
            if ends:
                yield Piece(text[: min(ends)][len(sent) :], "stop", count)
                return
            held = max((_overlap(text, one) for one in how.stop), default=0)  # it may be the beginning of a stop
            if not text.endswith(_UNDECIDED) and len(text) - held > len(sent):
                yield Piece(text[len(sent) : len(text) - held], None, count)
                sent = text[: len(text) - held]
        yield Piece(self._rest(ids, sent), "length", how.max_tokens)

    def _rest(self, ids: Sequence[int], sent: str) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))[len(sent) :]


def _asked_for(settings: Any) -> tuple[float, float]:
    """Temperature and top_p of a generation_config, which a stranger wrote: what cannot be is as if it said nothing."""
    temperature, top_p = (
        float(value) if type(value) in (int, float) and low <= value <= high else 1.0
        for value, low, high in ((settings.temperature, 0, 10), (settings.top_p, 1e-6, 1))
    )
    return 0.0 if settings.do_sample is False else temperature, top_p


def _choose(logits: Tensor, how: Sampling, chance: torch.Generator | None) -> int:
    if how.temperature == 0:
        return int(logits.argmax())
    below = (logits - logits.max()).double()  # so that no temperature is too low
    odds, order = torch.softmax(below / how.temperature, -1).sort(descending=True)
    before = odds.cumsum(-1) - odds
    odds[before >= how.top_p] = 0.0  # the likeliest stays, whatever top_p
    return int(order[torch.multinomial(odds, 1, generator=chance)])


def _overlap(text: str, stop: str) -> int:
    """How much of the text's end is a beginning of `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
