"""The model as a GGUF file, in llama.cpp's own terms: its names, its order of rows, its words for a tokenizer."""

import math
from collections.abc import Sequence
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import numpy as np

from dlx.training.data.shards import TextError
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models import weights
from dlx.training.models.weights import Dtype
from dlx.training.recipe import positions
from dlx.training.recipe.family import Config
from dlx.training.recipe.usage import Usage

FILE = "model.gguf"

_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # of llama.cpp, which has the same names for these families
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How text is cut before pairs are merged, and what llama.cpp calls that.
_CUTS = {_CONTRACTIONS + r"\p{N}{1,3}" + _REST: "llama-bpe", _CONTRACTIONS + r"\p{N}" + _REST: "qwen2"}


class GgufError(ValueError):
    """A model or tokenizer that llama.cpp has no words for."""


def check(config: Config, vocabulary: Vocabulary | None) -> None:
    """Raises GgufError unless `write` takes these."""
    if config.family not in _ARCHITECTURES:
        raise GgufError(f"GGUF: model_type: expected one of {', '.join(_ARCHITECTURES)}, got {config.family}")
    scaling = positions.written(config.rope_scaling)  # type: ignore[attr-defined]
    if scaling and (config.family, scaling["rope_type"]) != ("llama", "llama3"):
        raise GgufError(f"GGUF: rope_scaling.rope_type: only llama3 of llama is known, got {scaling['rope_type']}")
    if vocabulary is None:
        raise GgufError("GGUF: the file holds the tokenizer, and nobody has the run's")
    raw = vocabulary.settings()
    _cut(raw)
    for one in raw["added_tokens"]:
        if one["lstrip"] or one["rstrip"] or one["single_word"]:
            raise GgufError(f"GGUF: tokenizer.json: {one['content']!r}: llama.cpp looks at no space beside a token")
    try:
        before, behind = vocabulary.around()
    except TextError as error:
        raise GgufError(f"GGUF: tokenizer.json: what stands around a text is not clear: {error}") from None
    if len(before) > 1 or len(behind) > 1:
        raise GgufError("GGUF: tokenizer.json: llama.cpp puts one token before a text and one behind it, not more")
    for token in (*before, *behind, vocabulary.separator):
        if token >= config.vocab_size:
            raise GgufError(
                f"GGUF: tokenizer.json: token {token} stands around a text, the model has {config.vocab_size} rows"
            )


def write(
    config: Config,
    name: str,
    tensors: weights.Lazy[np.ndarray],
    vocabulary: Vocabulary,
    usage: Usage,
    special: dict[str, Any],
    ends: Sequence[int],
    dtype: Dtype,
    path: Path,
) -> None:
    """`config` and `vocabulary` are what `check` lets pass. `tensors`: a Hugging Face folder's; `special`: token texts
    by the keys of a tokenizer_config.json; `ends`: the ids that end an answer. Matrices are rounded to `dtype`; vectors
    stay float32, as llama.cpp wants them. Raises GgufError, WeightsError, OSError."""
    import gguf

    kinds = {"float32": gguf.LlamaFileType.ALL_F32, "float16": gguf.LlamaFileType.MOSTLY_F16}
    writer = gguf.GGUFWriter(path, config.family)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(kinds.get(dtype, gguf.LlamaFileType.MOSTLY_BF16))
    _sizes(writer, config)
    _tokens(writer, config, vocabulary, special, ends)
    _chat_templates(writer, usage)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.family.upper()], config.layers)
    kind = {"float32": None, "float16": None, "bfloat16": gguf.GGMLQuantizationType.BF16}[dtype]
    places = dict[str, str]()
    for theirs, shape in tensors.shapes.items():
        ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if ours is None:
            raise GgufError(f"GGUF: {theirs}: llama.cpp's {config.family} has no such tensor")
        places[theirs] = ours
        width = 4 if _stays(shape) or dtype == "float32" else 2
        number = np.dtype(np.float32 if width == 4 else np.float16)
        writer.add_tensor_info(ours, shape, number, width * math.prod(shape), None if width == 4 else kind)
    factors = _stretched(config)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for theirs in places:
            values = _ordered(config, theirs, tensors[theirs])
            to = "float32" if _stays(values.shape) else dtype
            writer.write_tensor_data(weights.rounded(theirs, np.ascontiguousarray(values), to))
        if factors is not None:
            writer.write_tensor_data(factors)
    finally:
        writer.close()


def _stays(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1


def _sizes(writer: Any, config: Any) -> None:
    size = config.attention_width // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(size)
    writer.add_vocab_size(config.vocab_size)


def _chat_templates(writer: Any, usage: Usage) -> None:
    import gguf

    key, named = gguf.Keys.Tokenizer, dict[str, str]()
    for name, template in sorted(usage.chat_templates.items()):
        if name == "default":
            writer.add_string(key.CHAT_TEMPLATE, template)
        else:
            named["".join(one if one in ascii_letters + digits else "_" for one in name)] = template
    for name, template in named.items():
        writer.add_string(key.CHAT_TEMPLATE_N.format(name=name), template)
    writer.add_array(key.CHAT_TEMPLATES, sorted(named))  # sorted: add_chat_template's order differs from file to file


def _tokens(writer: Any, config: Config, vocabulary: Vocabulary, special: dict[str, Any], ends: Sequence[int]) -> None:
    import gguf

    raw, added = vocabulary.settings(), vocabulary.added
    texts, kinds = list[str](), list[int]()
    for one in range(config.vocab_size):
        text = vocabulary.text_of(one)
        kind = gguf.TokenType.NORMAL if text is not None else gguf.TokenType.UNUSED  # a row beyond the tokenizer
        if one in added:
            kind = gguf.TokenType.CONTROL if added[one] else gguf.TokenType.USER_DEFINED
        texts.append(f"[PAD{one}]" if text is None else text)
        kinds.append(kind)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_cut(raw))
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in raw["model"]["merges"]])
    before, behind = vocabulary.around()
    bos, eos, pad = (
        [vocabulary.id_of(text)] if (text := special.get(f"{key}_token")) is not None else []
        for key in ("bos", "eos", "pad")
    )
    writer.add_bos_token_id([*before, *bos, vocabulary.separator][0])  # without one llama.cpp takes the token 11
    writer.add_add_bos_token(bool(before))
    writer.add_add_eos_token(bool(behind))
    places = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)  # where llama.cpp stops
    for add, token in zip(places, dict.fromkeys([*behind, *eos, *ends]), strict=False):
        add(token)
    for token in pad:
        writer.add_pad_token_id(token)


def _cut(raw: dict[str, Any]) -> str:
    """llama.cpp's name for how the tokenizer.json cuts text. Raises GgufError where it has none."""
    model, steps = raw["model"], raw["pre_tokenizer"] or {}
    steps = steps.get("pretokenizers", [steps])
    kinds = [step.get("type") for step in steps]
    last = steps[-1] if kinds[-1:] == ["ByteLevel"] else {}
    regular, found = last.get("use_regex", True), None
    if kinds == ["ByteLevel"] and regular:
        found = "gpt-2"
    elif kinds == ["Digits", "ByteLevel"] and regular and steps[0].get("individual_digits"):
        found = "smollm"
    elif (
        kinds == ["Split", "ByteLevel"]
        and not regular
        and steps[0].get("behavior") == "Isolated"
        and not steps[0].get("invert")
    ):
        found = _CUTS.get(steps[0].get("pattern", {}).get("Regex"))
    merges = model.get("type") == "BPE" and model.get("merges")
    if not found or not merges or last.get("add_prefix_space") or model.get("byte_fallback"):
        raise GgufError("GGUF: tokenizer.json cuts text in none of the ways that are known of llama.cpp")
    if (raw.get("normalizer") or {}).get("type", "NFC") != "NFC":
        raise GgufError("GGUF: tokenizer.json: llama.cpp changes no text before it cuts it, as this normalizer does")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise GgufError("GGUF: tokenizer.json: llama.cpp's pieces of words have no prefix and no suffix of their own")
    if bool(model.get("ignore_merges")) != (found == "llama-bpe"):
        raise GgufError(f"GGUF: tokenizer.json: ignore_merges is not what llama.cpp's {found} does")
    return found


def _ordered(config: Any, name: str, values: np.ndarray) -> np.ndarray:
    """Llama's queries and keys turn pairs of neighbours in llama.cpp, not halves of a head as in transformers."""
    if config.family != "llama" or (".q_proj." not in name and ".k_proj." not in name):
        return values
    heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _stretched(config: Any) -> np.ndarray | None:
    """By how much Llama 3.1 divides each frequency; None where it does not."""
    scaling = config.rope_scaling
    if scaling is None:
        return None
    size = config.attention_width // config.num_attention_heads
    low, high, factor = scaling.low_freq_factor, scaling.high_freq_factor, scaling.factor
    turns = scaling.original_max_position_embeddings / (
        2 * np.pi * config.rope_theta ** (np.arange(0, size, 2) / size)
    )  # in the context that it was trained on
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
