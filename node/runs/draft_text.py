"""A commented run.toml: what a run's creator has to decide, with the rest left at its default."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from dlx.training.recipe.presets import KINDS, LARGE_RATES
from dlx.training.recipe.recipe import Adapter


@dataclass(frozen=True)
class Size:
    """Of a Llama that starts from scratch."""

    layers: int
    width: int
    inner: int
    heads: int
    length: int  # of a sample, in tokens


SIZES = {
    "tiny": Size(4, 128, 344, 4, 128),
    "small": Size(6, 384, 1024, 6, 256),
    "base": Size(12, 768, 2048, 12, 512),
}


@dataclass(frozen=True)
class Answers:
    """What the wizard asked. `model`: a Hugging Face folder, or one of SIZES; `stages`: layers [low, high) of each;
    `large`: the model wants lower rates than its kind's."""

    name: str
    model: Path | Size
    kind: str
    data: Path
    stages: list[tuple[int, int]]
    min_replicas: int
    max_replicas: int
    rounds: int
    length: int
    batch_size: int
    micro_batches: int
    tokenizer: Path | None = None
    vocabulary: int = 256
    large: bool = False
    licence: str = ""
    round_timeout: int | None = None  # seconds; None: the default fits
    field: str = "text"
    raw: bool = False
    chat: bool = False


def even(layers: int, stages: int) -> list[tuple[int, int]]:
    """Layers shared as evenly as can be, the last stages with more."""
    ends = [layers * stage // stages for stage in range(stages + 1)]
    return list(pairwise(ends))


def draft_text(given: Answers) -> str:
    """The file. Every value is as TOML has it."""
    stages = ", ".join(f"[{low}, {high}]" for low, high in given.stages)
    lines = [
        "# A training run for `dlx-node run create --manifest FILE`. docs/operator.md (section 7) has every key.",
        "",
        f"name = {_text(given.name)}  # what people read in lists; anybody's runs may have the same",
        f"rounds = {given.rounds}  # outer rounds; each ends with one exchange of pseudo-gradients",
        *([f'kind = "{given.kind}"  # {_KINDS[given.kind]}'] if isinstance(given.model, Path) else []),
        f"stages = [{stages}]  # layers [from, to) of each pipeline stage: a replica takes one machine for each",
        f"min_replicas = {given.min_replicas}  # complete replicas at which the first round opens",
        f"max_replicas = {given.max_replicas}  # slots beyond these are refused; more make a seal dearer",
        '# arithmetic = "exact"  # the same bits on every machine, and audits without a tolerance; on CPUs, and slower',
        "",
    ]
    if isinstance(given.model, Path):
        lines += ["[model]", f"source = {_text(str(given.model))}  # a Hugging Face folder: config and first weights"]
    else:
        size = given.model
        lines += [
            "[model.config]  # as in config.json of a transformers Llama; its first weights are drawn",
            'model_type = "llama"',
            f"vocab_size = {given.vocabulary}",
            f"hidden_size = {size.width}",
            f"intermediate_size = {size.inner}",
            f"num_hidden_layers = {size.layers}",
            f"num_attention_heads = {size.heads}",
            f"num_key_value_heads = {size.heads}",
            f"max_position_embeddings = {given.length}",
        ]
    lines += [
        "",
        "[data]",
        "# The text is public: the nodes of the run give it to whoever asks.",
        f"source = [{_text(str(given.data))}]  # files, folders or globs of text, .jsonl or .parquet",
        *([f"field = {_text(given.field)}  # key or column of an entry's text"] if given.field != "text" else []),
        *(["chat = true  # entries are conversations: what an assistant says is learnt"] if given.chat else []),
        *(["raw = true  # files that are no text are taken as their bytes"] if given.raw else []),
        "# private = true  # replicas may also train on text that stays on their machines (start --private-data)",
        *(
            [f"tokenizer = {_text(str(given.tokenizer))}"]
            if given.tokenizer
            else ['# tokenizer = "tokenizer.json"  # without one every byte is a token']
        ),
        f"sequence_length = {given.length}",
        f"batch_size = {given.batch_size}  # samples of one replica in an inner step",
        f"micro_batches = {given.micro_batches}  # pieces of a batch, so that all stages of a replica work at once",
        f"licence = {_text(given.licence)}  # of the data: it stands in every pulled version",
        "# heldout = 0.05  # part of the text that nobody trains on",
        "",
        *_kind(given.kind, given.large),
        "# [plan]",
        "# inner_steps = 10  # of a round, between two exchanges: more where links are slow",
        "",
        "# [outer]",
        "# delay = 1  # exchange while the next round trains; then alpha = lr = 0.8",
        "",
        "# [average]",
        "# every = 10  # publish the mean of 8 versions so many rounds apart: about 2% of all rounds",
        "",
        f"{'# ' if given.round_timeout is None else ''}[timing]",
        f"{'# round_timeout = 120' if given.round_timeout is None else f'round_timeout = {given.round_timeout}'}"
        "  # seconds without a seal before silent members are asked: some times a round's",
        "",
        "# [audit]",
        "# share = 0.0625  # part of all work that others replay",
        "",
        "# [evaluation]",
        "# Left out, so much is evaluated as takes 1% of the work.",
        "# every = 10  # rounds between two versions whose held-out loss drawn members compute; 0: none",
        "# samples = 64  # held-out samples of each, drawn by chance",
    ]
    return "\n".join(lines) + "\n"


_KINDS = {
    "pretrain": "the rates of drawn weights, also where training goes on",
    "finetune": "rates that a trained model bears: see `run plan`",
    "lora": "low-rank factors beside a frozen model",
}


def _kind(kind: str, large: bool) -> list[str]:
    """What the kind stands for, as comments; of a large model the rates that it wants in place of those."""
    own = LARGE_RATES.get(kind, {}) if large else {}
    lines = []
    for table, keys in KINDS[kind].items():
        shown = keys or {key: getattr(Adapter(), key) for key in ("rank", "alpha", "targets")}
        states = not own.keys().isdisjoint(keys)
        lines += [f"{'' if states else '# '}[{table}]  # what the kind stands for"]
        lines += [
            f"{key} = {json.dumps(own[key])}  # of a model this large: the kind's {json.dumps(value)} suits small ones"
            if states and key in own
            else f"# {key} = {json.dumps(value)}"
            for key, value in shown.items()
        ]
    return [*lines, ""] if lines else []


def suggested_rounds(tokens: int, tokens_per_step: int, inner_steps: int, replicas: int) -> int:
    """So that the data is gone through about once: 10 to 10,000."""
    return max(10, min(10_000, tokens // max(1, tokens_per_step * inner_steps * replicas)))


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
