"""What is in a GGUF file, computed as llama.cpp does: by the file alone, with logits of transformers' own model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM

from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.export import ExportError, export
from dlx.training.models.gguf_file import _CUTS, FILE
from dlx.training.models.model_files import Form
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Model
from dlx.training.recipe.usage import Generation, Tokens, Usage
from tests.training.recipe.test_families import CASES, full

TEMPLATE = "{% for one in messages %}<|im_start|>{{ one.role }}\n{{ one.content }}<|im_end|>{% endfor %}"
USAGE = Usage(
    version=1,
    tokens=Tokens(bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"),
    chat_templates={"default": TEMPLATE},
)
BIASES = {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}
MODELS: dict[str, dict[str, Any]] = {
    "llama": CASES["llama"][0] | BIASES,
    "llama, as 3.1": CASES["llama, as 3.1"][0],
    "llama, tied": CASES["llama"][0] | {"tie_word_embeddings": True, "attention_bias": False},
    "qwen2": CASES["qwen2"][0],
    "qwen3": CASES["qwen3"][0],
}


def bpe(cut: str = "llama-bpe", rest: dict[str, Any] | None = None, **changes: Any) -> Vocabulary:
    pattern = next(text for text, name in _CUTS.items() if name == cut)
    tokenizer = Tokenizer(BPE(ignore_merges=cut == "llama-bpe"))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = ByteLevel()
    trainer = BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["the cat sat on the mat and the dog sat too"] * 9, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    start = tokenizer.token_to_id("<|im_start|>")
    tokenizer.post_processor = processors.TemplateProcessing("<|im_start|> $A", None, [("<|im_start|>", start)])
    raw = json.loads(tokenizer.to_str())
    raw["model"] |= changes
    raw |= rest or {}
    return Vocabulary.parse(json.dumps(raw).encode(), None, "test")


_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_SMOLLM = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2]}
CUTS: dict[str, Vocabulary] = {  # by llama.cpp's names
    "llama-bpe": bpe(),
    "qwen2": bpe("qwen2"),
    "gpt-2": bpe("qwen2", {"pre_tokenizer": _GPT2}),
    "smollm": bpe("qwen2", {"pre_tokenizer": _SMOLLM}),
}


def _value(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _logits(path: Path, ids: Tensor) -> Tensor:
    """As llama.cpp computes it: Llama turns neighbours (its rope of kind NORM), Qwen halves of a head (NEOX)."""
    reader = gguf.GGUFReader(path)
    arch = _value(reader, "general.architecture")

    def of(key: str) -> Any:
        return _value(reader, f"{arch}.{key}")

    tensors = {}
    for one in reader.tensors:
        values = gguf.dequantize(one.data, one.tensor_type).reshape(tuple(int(size) for size in reversed(one.shape)))
        tensors[one.name] = torch.from_numpy(np.array(values))

    def apply(name: str, x: Tensor) -> Tensor:
        return linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        weight = tensors.get(f"{name}.weight")
        return x if weight is None else rms_norm(x, x.shape[-1:], weight, of("attention.layer_norm_rms_epsilon"))

    heads, groups, size = of("attention.head_count"), of("attention.head_count_kv"), of("attention.key_length")
    frequencies = of("rope.freq_base") ** (-torch.arange(0, size, 2) / size)
    frequencies /= tensors.get("rope_freqs.weight", torch.ones(size // 2))
    angles = torch.arange(ids.shape[1])[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()

    def turned(x: Tensor) -> Tensor:
        if arch == "llama":
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    x = embedding(ids, tensors["token_embd.weight"])
    for layer in range(of("block_count")):
        at, y = f"blk.{layer}", norm(f"blk.{layer}.attn_norm", x)

        def cut(name: str, count: int, y: Tensor = y, at: str = at) -> Tensor:
            return apply(f"{at}.{name}", y).unflatten(-1, (count, size)).transpose(1, 2)

        q = turned(norm(f"{at}.attn_q_norm", cut("attn_q", heads)))
        k = turned(norm(f"{at}.attn_k_norm", cut("attn_k", groups)))
        y = scaled_dot_product_attention(q, k, cut("attn_v", groups), is_causal=True, enable_gqa=True)
        x = x + apply(f"{at}.attn_output", y.transpose(1, 2).flatten(2))
        y = norm(f"{at}.ffn_norm", x)
        x = x + apply(f"{at}.ffn_down", silu(apply(f"{at}.ffn_gate", y)) * apply(f"{at}.ffn_up", y))
    head = "output" if "output.weight" in tensors else "token_embd"
    return apply(head, norm("output_norm", x))


def make_run(tiny_run: Callable[..., Manifest], blobs: Path, config: dict[str, Any]) -> tuple[Manifest, list[Path]]:
    manifest = tiny_run([(0, 1), (1, 3)], model=Model(full(config | {"vocab_size": 320})))
    return manifest, [blobs / blob.sha256 for blob in manifest.genesis]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", MODELS)
def test_the_file_computes_what_the_folder_does(
    case: str, dtype: Any, tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    manifest, files = make_run(tiny_run, blobs, MODELS[case])
    vocabulary = bpe()
    whole = export(manifest, files, tmp_path / "hf", vocabulary, USAGE)
    assert export(manifest, files, tmp_path / "gguf", vocabulary, USAGE, Form(dtype, gguf=True)) == whole
    assert [path.name for path in (tmp_path / "gguf").iterdir()] == [FILE]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        for parameter in model.parameters():  # matrices only are rounded
            if parameter.dim() > 1:
                parameter.copy_(parameter.to(getattr(torch, dtype)).float())
        ids = torch.randint(0, 320, (2, 16), generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(_logits(tmp_path / "gguf" / FILE, ids), model(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cut", CUTS)
def test_the_tokenizer_goes_through_whole(
    cut: str, tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    manifest, files = make_run(tiny_run, blobs, MODELS["llama"])
    vocabulary = CUTS[cut]
    export(manifest, files, tmp_path / "gguf", vocabulary, USAGE, Form(gguf=True))
    reader = gguf.GGUFReader(tmp_path / "gguf" / FILE)
    tokens, kinds = (_value(reader, f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    ids = {text: number for number, text in enumerate(tokens)}
    raw = json.loads(vocabulary.content)
    assert raw["model"]["vocab"].items() <= ids.items() and len(tokens) == 320
    assert _value(reader, "tokenizer.ggml.merges") == [" ".join(pair) for pair in raw["model"]["merges"]]
    assert (_value(reader, "tokenizer.ggml.model"), _value(reader, "tokenizer.ggml.pre")) == ("gpt2", cut)
    named = [_value(reader, f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "padding")]
    assert [tokens[one] for one in named] == ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    assert _value(reader, "tokenizer.ggml.add_bos_token") is True
    assert _value(reader, "tokenizer.ggml.add_eos_token") is False
    assert _value(reader, "tokenizer.chat_template") == TEMPLATE
    of = gguf.TokenType
    assert [kinds[ids[text]] for text in ("a", "<|im_end|>", "<tool>")] == [of.NORMAL, of.CONTROL, of.USER_DEFINED]
    assert kinds[-1] == of.UNUSED and tokens[-1] == "[PAD319]", "a row of the embedding beyond the tokenizer"


def _around(text: str) -> Vocabulary:
    """With a template of what stands before and behind a text."""
    tokenizer = Tokenizer.from_str(bpe().content.decode())
    named = [(token, tokenizer.token_to_id(token)) for token in text.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(text, None, named)
    return Vocabulary.parse(tokenizer.to_str().encode(), None, "test")


def _template(*single: str | int) -> Vocabulary:
    """With a template that the library would not make: of texts "A" and "B", and of ids."""
    named = {str(one): {"id": str(one), "ids": [one], "tokens": ["x"]} for one in single if isinstance(one, int)}
    steps = [
        {"SpecialToken": {"id": str(one), "type_id": 0}}
        if isinstance(one, int)
        else {"Sequence": {"id": one, "type_id": 0}}
        for one in single
    ]
    rest = {"type": "TemplateProcessing", "single": steps, "pair": steps, "special_tokens": named}
    return bpe(rest={"post_processor": rest})


def _added(**options: bool) -> Vocabulary:
    tokenizer = Tokenizer.from_str(bpe().content.decode())
    tokenizer.add_special_tokens([AddedToken("<mask>", **options)])
    return Vocabulary.parse(tokenizer.to_str().encode(), None, "test")


UNNAMED, ENDS = Usage(version=1), Usage(version=1, generation=Generation(eos_token_id=[280, 279]))


@pytest.mark.parametrize(
    ("text", "usage", "begin", "adds", "ends"),
    [
        ("$A", UNNAMED, "<|endoftext|>", (False, False), ["<|endoftext|>"]),  # what stands between documents
        ("<|im_start|> $A", UNNAMED, "<|im_start|>", (True, False), ["<|endoftext|>"]),
        ("$A", USAGE, "<|im_start|>", (False, False), ["<|im_end|>", "<|endoftext|>"]),
        ("$A <tool>", USAGE, "<|im_start|>", (False, True), ["<tool>", "<|im_end|>", "<|endoftext|>"]),
        ("<tool> $A", ENDS, "<tool>", (True, False), ["<|endoftext|>", "<tool>", "<|im_end|>"]),
    ],
)
def test_a_text_begins_and_an_answer_ends_as_in_the_folder(
    text: str,
    usage: Usage,
    begin: str,
    adds: tuple[bool, bool],
    ends: list[str],
    tiny_run: Callable[..., Manifest],
    blobs: Path,
    tmp_path: Path,
) -> None:
    manifest, files = make_run(tiny_run, blobs, MODELS["llama"])
    export(manifest, files, tmp_path / "gguf", _around(text), usage, Form(gguf=True))
    reader = gguf.GGUFReader(tmp_path / "gguf" / FILE)
    tokens = _value(reader, "tokenizer.ggml.tokens")
    named = [_value(reader, f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom")]
    assert [tokens[one] for one in named if one is not None] == [begin, *ends]
    assert tuple(_value(reader, f"tokenizer.ggml.add_{key}_token") for key in ("bos", "eos")) == adds


def test_every_chat_template_goes_through(tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path) -> None:
    manifest, files = make_run(tiny_run, blobs, MODELS["llama"])
    usage = Usage(version=1, chat_templates={"default": TEMPLATE, "tool-use": "tools", "rag": "found"})
    export(manifest, files, tmp_path / "gguf", bpe(), usage, Form(gguf=True))
    reader = gguf.GGUFReader(tmp_path / "gguf" / FILE)
    found = [_value(reader, f"tokenizer.chat_template{name}") for name in ("", ".tool_use", ".rag")]
    assert found == [TEMPLATE, "tools", "found"]
    assert _value(reader, "tokenizer.chat_templates") == ["rag", "tool_use"]


def test_how_a_tokenizer_pads_and_truncates_is_nothing_to_the_file(
    tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    manifest, files = make_run(tiny_run, blobs, MODELS["llama"])
    tokenizer = Tokenizer.from_str(bpe().content.decode())
    tokenizer.enable_padding(pad_to_multiple_of=8)
    batches = tokenizer.to_str()
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(1)
    written = []
    for place, content in enumerate((bpe().content, batches.encode(), tokenizer.to_str().encode())):
        out = tmp_path / str(place)
        export(manifest, files, out, Vocabulary.parse(content, None, "test"), USAGE, Form(gguf=True))
        written.append((out / FILE).read_bytes())
    assert written[1:] == written[:1] * 2


def _inverted() -> dict[str, Any]:
    raw = json.loads(bpe().content)["pre_tokenizer"]
    raw["pretokenizers"][0]["invert"] = True
    return {"pre_tokenizer": raw}


SHORT: dict[str, Any] = {"vocab": {"t": 0, "h": 1, "th": 2}, "merges": [["t", "h"]], "unk_token": "x"}
UNCUT = {key: value for key, value in json.loads(bpe().content).items() if key != "pre_tokenizer"}
EMPTY = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}}


@pytest.mark.parametrize(
    ("case", "vocabulary", "message"),
    [
        ("gpt2", bpe, "GGUF: model_type: expected one of llama, qwen2, qwen3, got gpt2"),
        ("qwen3, scaled by yarn", bpe, "GGUF: rope_scaling.rope_type: only llama3 of llama is known, got yarn"),
        ("llama", lambda: None, "GGUF: the file holds the tokenizer, and nobody has the run's"),
        ("llama", Vocabulary.of_bytes, "GGUF: tokenizer.json cuts text in none of the ways"),
        ("llama", lambda: bpe(byte_fallback=True), "GGUF: tokenizer.json cuts text in none of the ways"),
        (
            "llama",
            lambda: bpe(ignore_merges=False),
            "GGUF: tokenizer.json: ignore_merges is not what llama.cpp",
        ),
        ("llama", lambda: bpe(rest=_inverted()), "GGUF: tokenizer.json cuts text in none of the ways"),
        ("llama", lambda: bpe(rest=EMPTY), "GGUF: tokenizer.json cuts text in none of the ways"),
        (
            "llama",
            lambda: Vocabulary.parse(json.dumps(UNCUT).encode(), None, "test"),
            "GGUF: tokenizer.json cuts text in",
        ),
        ("llama", lambda: bpe(rest={"pre_tokenizer": _GPT2 | {"pretokenizers": 5}}), "GGUF: tokenizer.json: ignore_"),
        ("llama", lambda: bpe(rest={"normalizer": {"type": "Lowercase"}}), "GGUF: tokenizer.json: llama.cpp changes"),
        ("llama", lambda: bpe(end_of_word_suffix="</w>"), "GGUF: tokenizer.json: llama.cpp's pieces of words"),
        ("llama", lambda: bpe(**SHORT), "GGUF: tokenizer.json: what stands around a text is not"),
        ("llama", lambda: _added(lstrip=True), "GGUF: tokenizer.json: '<mask>': llama.cpp looks at no space"),
        ("llama", lambda: _added(rstrip=True), "GGUF: tokenizer.json: '<mask>': llama.cpp looks at no space"),
        ("llama", lambda: _added(single_word=True), "GGUF: tokenizer.json: '<mask>': llama.cpp looks at no space"),
        ("llama", lambda: _around("<tool> <tool> $A"), "GGUF: tokenizer.json: llama.cpp puts one token before"),
        (
            "llama",
            lambda: _template(1),
            "GGUF: tokenizer.json: what stands around a text is not clear: a letter does",
        ),
        ("llama", lambda: _template(1, "A", "A"), "GGUF: tokenizer.json: what stands around a text is not clear"),
        ("llama", lambda: _template(1, "B"), "GGUF: tokenizer.json: what stands around a text is not clear"),
        (
            "llama",
            lambda: _template(100000, "A"),
            "GGUF: tokenizer.json: token 100000 stands around a text, the model has",
        ),
        ("llama", lambda: _template("A", 4000), "GGUF: tokenizer.json: token 4000 stands around a text, the model has"),
    ],
)
def test_what_llama_cpp_has_no_words_for_is_refused_in_one_line(
    case: str, vocabulary: Any, message: str, tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    manifest, files = make_run(tiny_run, blobs, CASES[case][0])
    with pytest.raises(ExportError) as caught:
        export(manifest, files, tmp_path / "gguf", vocabulary(), USAGE, Form(gguf=True))
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
