"""A tokenizer goes through a run whole: what `pull` writes gives the same ids and the same prompt as the source folder
did, in the style of each family."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GenerationConfig

from dlx.training.data.conversations import Template, conversation
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.export import described
from dlx.training.recipe.families import FAMILIES
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Model
from dlx.training.recipe.usage import canonical_bytes, parse, read_usage
from tests.training import texts
from tests.training.models.loading import TEXTS
from tests.training.recipe.test_families import CASES, SPLITS, full

ASKED = [{"role": "user", "content": "Hello, ünïcode 🙂"}, {"role": "assistant", "content": "Good  day\n\nto you. "}]
MORE = [*ASKED, {"role": "user", "content": "More?"}]


class Style(NamedTuple):
    """How the folders of a family look."""

    tokenizer: Callable[[list[AddedToken]], Tokenizer]
    special: list[str]
    settings: dict[str, Any]  # tokenizer_config.json
    generation: dict[str, Any]
    template: str = ""
    strips: bool = False  # special tokens take the spaces behind them


def _byte_level(special: list[AddedToken]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return _trained(made, special, pre_tokenizers.ByteLevel.alphabet())


def _composed(special: list[AddedToken]) -> Tokenizer:
    """As Pythia: with composed characters."""
    made = _byte_level(special)
    made.normalizer = normalizers.NFC()
    return made


def _split(digits: str, composed: bool, begins: bool) -> Callable[[list[AddedToken]], Tokenizer]:
    """As Llama 3, which begins a text with its first special token, and as Qwen."""

    def make(special: list[AddedToken]) -> Tokenizer:
        made, rest = Tokenizer(models.BPE(ignore_merges=begins)), r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        pattern = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + rest)
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), bytewise])
        made.decoder = decoders.ByteLevel()
        if composed:
            made.normalizer = normalizers.NFC()
        made = _trained(made, special, pre_tokenizers.ByteLevel.alphabet())
        if begins:
            bytewise = processors.ByteLevel(trim_offsets=False)
            made.post_processor = processors.Sequence([bytewise, _beginning(made, special[0].content)])
        return made

    return make


def _beginning(made: Tokenizer, token: str) -> processors.TemplateProcessing:
    """A text begins with that token."""
    special = [(token, made.token_to_id(token))]
    return processors.TemplateProcessing(f"{token} $A", f"{token} $A {token} $B", special_tokens=special)


def _sentence_piece(prefix: bool) -> Callable[[list[AddedToken]], Tokenizer]:
    """As Mistral, with a space before each text, or as Gemma, without."""

    def make(special: list[AddedToken]) -> Tokenizer:
        alphabet = [chr(one) for one in range(33, 127)] + ["▁", "ü", "ï"]
        made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        if prefix:
            made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
        else:
            made.normalizer = normalizers.Replace(" ", "▁")
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
        names = [AddedToken(f"<0x{byte:02X}>", special=False, normalized=False) for byte in range(256)]
        made = _trained(made, [*special, *names], alphabet, 900)
        raw = json.loads(made.to_str())
        raw["added_tokens"] = [one for one in raw["added_tokens"] if not one["content"].startswith("<0x")]
        made = Tokenizer.from_str(json.dumps(raw))
        made.post_processor = _beginning(made, "<s>" if prefix else "<bos>")
        return made

    return make


def _trained(made: Tokenizer, special: list[AddedToken], alphabet: list[str], size: int = 380) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([*texts.texts(20), *TEXTS, "system user assistant model Hello Good day to you"], trainer)
    return made


CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set c = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + "
    "m['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set c = bos_token + c %}{% endif %}{{ c }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + "
    "' [/INST]' }}{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
PHI = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
TULU = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|assistant|>\\n' }}{% generation %}"
    "{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ '<|' + m.role + '|>\\n' + m.content + '\\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
END = "<|endoftext|>"
QWEN = Style(
    _split(r"\p{N}", composed=True, begins=False),
    [END, "<|im_start|>", "<|im_end|>"],
    {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": END}
    | {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "add_prefix_space": False},
    {"eos_token_id": [2, 0], "pad_token_id": 0, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "do_sample": True},
    CHATML,
)
LLAMA_3 = Style(
    _split(r"\p{N}{1,3}", composed=False, begins=True),
    ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"],
    {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    {"bos_token_id": 0, "eos_token_id": [1, 4, 5], "temperature": 0.6, "top_p": 0.9, "do_sample": True},
    LLAMA3,
)
LLAMA_2 = Style(
    _sentence_piece(prefix=True),
    ["<unk>", "<s>", "</s>"],
    {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    | {"add_bos_token": True, "add_eos_token": False, "legacy": False},
    {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    MISTRAL,
)
GEMMA_3 = Style(
    _sentence_piece(prefix=False),
    ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<mask>"],
    {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    | {"unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False},
    {"bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0, "top_k": 64, "top_p": 0.95, "do_sample": True},
    GEMMA,
)
PHI_3 = Style(
    _sentence_piece(prefix=True),
    ["<unk>", "<s>", "</s>", END, "<|assistant|>", "<|end|>", "<|user|>"],
    {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": END, "pad_token": END, "unk_token": "<unk>"}
    | {"add_bos_token": False, "add_eos_token": False, "padding_side": "left"},
    {"bos_token_id": 1, "eos_token_id": [3, 5, 4], "pad_token_id": 3},
    PHI,
    strips=True,
)
OLMO = Style(
    _byte_level,
    [END, "<|pad|>", "<|user|>", "<|assistant|>"],
    {"tokenizer_class": "GPT2Tokenizer", "bos_token": END, "eos_token": END, "unk_token": END, "pad_token": "<|pad|>"},
    {"eos_token_id": 0, "pad_token_id": 1},
    TULU,
)
GPT_2 = Style(
    _byte_level,
    [END],
    {"tokenizer_class": "GPT2Tokenizer", "bos_token": END, "eos_token": END, "unk_token": END},
    {"bos_token_id": 0, "eos_token_id": 0},
)
_NEOX = GPT_2.settings | {"tokenizer_class": "GPTNeoXTokenizer"}
NEOX = GPT_2._replace(tokenizer=_composed, settings=_NEOX)
NEOX_CHAT = QWEN._replace(tokenizer=_composed, settings=_NEOX | {"eos_token": "<|im_end|>"})
_OTHERS = LLAMA_3.settings | {"eos_token": "<|im_end|>"}
CHAT = QWEN._replace(settings=_OTHERS | {"bos_token": None})
CHAT_BEGUN = QWEN._replace(settings=_OTHERS | {"bos_token": "<|im_start|>"})
OPT = Style(
    _byte_level,
    ["<s>", "<pad>", "</s>", "<unk>"],
    {"tokenizer_class": "GPT2Tokenizer", "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>"}
    | {"pad_token": "<pad>", "add_bos_token": True},
    {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
)
STYLES: dict[str, dict[str, Style]] = {
    "gemma2": {"gemma": GEMMA_3},
    "gemma3_text": {"gemma": GEMMA_3},
    "glm": {"chatml": CHAT},
    "glm4": {"chatml": CHAT},
    "gpt2": {"gpt2": GPT_2},
    "gpt_neox": {"neox": NEOX, "chatml": NEOX_CHAT},
    "granite": {"chatml": CHAT_BEGUN},
    "llama": {"llama 2": LLAMA_2, "llama 3": LLAMA_3, "chatml": CHAT_BEGUN, "phi 3": PHI_3},
    "ministral": {"mistral": LLAMA_2},
    "mistral": {"mistral": LLAMA_2},
    "olmo2": {"tulu": OLMO},
    "olmo3": {"tulu": OLMO},
    "opt": {"opt": OPT},
    "phi3": {"phi 3": PHI_3},
    "qwen2": {"chatml": QWEN},
    "qwen3": {"chatml": QWEN},
    "qwen3_moe": {"chatml": QWEN},
    "smollm3": {"chatml": CHAT},
}


def _source(style: Style, folder: Path) -> Path:
    """As a model's hub page has it, without weights."""
    folder.mkdir()
    special = [AddedToken(text, special=True, normalized=False, rstrip=style.strips) for text in style.special]
    style.tokenizer(special).save(str(folder / "tokenizer.json"))
    chat = {"chat_template": style.template} if style.template else {}
    tables = {"tokenizer_config": style.settings | chat, "generation_config": style.generation}
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    return folder


def _pulled(family: str, source: Path, folder: Path, tiny_run: Callable[..., Manifest]) -> Path:
    """What `pull` writes beside the weights, by the blobs that a run keeps of the source."""
    vocabulary, usage = Vocabulary.read(source / "tokenizer.json"), parse(canonical_bytes(read_usage(source)[0]))
    config = full(CASES[family][0] | {"vocab_size": vocabulary.size + 8})
    manifest = tiny_run(SPLITS[0], model=Model(config))
    folder.mkdir()
    for name, content in described(manifest, vocabulary, usage).items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(("family", "style"), [(family, style) for family in STYLES for style in STYLES[family]])
def test_a_pulled_folder_gives_the_ids_and_the_prompt_of_its_source(
    family: str, style: str, tiny_run: Callable[..., Manifest], tmp_path: Path
) -> None:
    given = STYLES[family][style]
    source = _source(given, tmp_path / "source")
    pulled = _pulled(family, source, tmp_path / "pulled", tiny_run)
    before, after = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(pulled)
    spelled = [*TEXTS, " ".join(given.special), "".join(f"{one} a \n" for one in given.special)]
    for text in spelled:
        assert (
            after(text, add_special_tokens=False)["input_ids"] == before(text, add_special_tokens=False)["input_ids"]
        ), text
        assert after(text)["input_ids"] == before(text)["input_ids"], text
        ids = after(text)["input_ids"]
        for skip in (False, True):
            assert after.decode(ids, skip_special_tokens=skip) == before.decode(ids, skip_special_tokens=skip)
    for name in {"bos_token", "eos_token", "pad_token", "unk_token"} & given.settings.keys():
        assert getattr(after, f"{name}_id") == getattr(before, f"{name}_id"), name
    if "padding_side" in given.settings:
        assert after.padding_side == before.padding_side
    ends = GenerationConfig.from_pretrained(pulled).eos_token_id
    stated = given.generation["eos_token_id"]
    stated = stated if isinstance(stated, list) else [stated]
    assert (ends if isinstance(ends, list) else [ends])[: len(stated)] == stated
    if not given.template:
        assert after.chat_template is None
        return
    for options in ({}, {"add_generation_prompt": True}):
        prompts = [one.apply_chat_template(MORE, tokenize=False, **options) for one in (before, after)]
        assert prompts[0] == prompts[1]
        ids = [one.apply_chat_template(MORE, return_dict=True, **options)["input_ids"] for one in (before, after)]
        assert ids[0] == ids[1]

    found = conversation({"messages": ASKED})
    assert found is not None
    special = read_usage(source)[0].tokens.texts
    (sample,) = Vocabulary.read(source / "tokenizer.json").spoken(Template(given.template, special).rendered(found))
    assert list(sample.ids) == after.apply_chat_template(ASKED, return_dict=True)["input_ids"], "what was trained on"
    asked = after.apply_chat_template(ASKED[:1], add_generation_prompt=True, return_dict=True)["input_ids"]
    if list(sample.ids[: len(asked)]) == asked:
        assert not any(sample.counts[: len(asked)]) and all(sample.counts[len(asked) :])


def test_every_family_has_a_style() -> None:
    assert STYLES.keys() == FAMILIES.keys()
