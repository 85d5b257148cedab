"""Runs that start from a Hugging Face folder: ordinary ones of every family, and those a stranger made."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dlx.ground.merkle import file_root
from dlx.training.models import weights
from dlx.training.models.evaluate import EvaluateError, generate
from dlx.training.models.export import export
from dlx.training.models.generate import Writer
from dlx.training.models.pretrained import Checkpoint, read_config
from dlx.training.recipe.draft import Draft, complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import BlobRef, WeightsRef
from dlx.training.recipe.strict import ManifestError
from tests.training.recipe.test_families import CASES

IDS = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0))

TOML = """
name = "tune"
stages = {stages}
rounds = 2
[model]
source = "{folder}"
[data]
source = ["."]
sequence_length = 16
batch_size = 2
"""


def _save(folder: Path, case: str, **options: Any) -> Any:
    _, model_class, config_class, theirs = CASES[case]
    torch.manual_seed(3)
    model = model_class(config_class(**theirs | options)).eval()
    model.save_pretrained(folder)
    return model


def _draft(folder: Path, stages: list[list[int]]) -> Draft:
    toml = folder.parent / "run.toml"
    toml.write_text(TOML.format(stages=stages, folder=folder.name))
    return draft_from_toml(toml)


def _checkpoint(draft: Draft) -> Checkpoint:
    return Checkpoint(draft, Path(draft.model.source))


def _logits_of_run(draft: Draft, blobs: Path, out: Path) -> tuple[Tensor, Any]:
    """What the exported genesis computes, and its config."""
    checkpoint, genesis = _checkpoint(draft), []
    for stage in range(len(draft.stages)):
        name = weights.write_blob(checkpoint.weights(stage), blobs).hex()
        genesis.append(WeightsRef(name, (blobs / name).stat().st_size, file_root(blobs / name).hex()))
    manifest: Manifest = complete(draft, genesis, BlobRef("ab" * 32, 1))
    export(manifest, [blobs / blob.sha256 for blob in genesis], out)
    model = AutoModelForCausalLM.from_pretrained(out)
    return model(IDS).logits, model.config


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stages", [[[0, 3]], [[0, 2], [2, 3]]], ids=len)
@pytest.mark.parametrize("case", CASES)
def test_the_genesis_computes_what_the_folder_does(
    case: str, stages: list[list[int]], tied: bool, tmp_path: Path
) -> None:
    theirs = _save(tmp_path / "hf", case, tie_word_embeddings=tied)
    found, config = _logits_of_run(_draft(tmp_path / "hf", stages), tmp_path, tmp_path / "out")
    assert torch.equal(found, theirs(IDS).logits)
    assert config.tie_word_embeddings == (tied and len(stages) == 1)


def test_dropout_of_the_folder_is_left_behind(tmp_path: Path) -> None:
    _save(tmp_path / "hf", "gpt2", attn_pdrop=0.3, tie_word_embeddings=True)
    draft = _draft(tmp_path / "hf", [[0, 3]])
    assert not any("drop" in key for key in draft.model.config)


def _rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    tensors = change(load_file(folder / "model.safetensors"))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_old_checkpoints_with_other_names_half_precision_and_buffers(tmp_path: Path) -> None:
    """As the first GPT-2 and Pythia folders have them: no base model's name, mask buffers, another name of the head."""
    theirs = _save(tmp_path / "hf", "gpt2", tie_word_embeddings=True).half().float()
    _rewrite(
        tmp_path / "hf",
        lambda old: (
            {name.removeprefix("transformer."): tensor.half() for name, tensor in old.items()}
            | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}
        ),
    )
    assert torch.equal(
        _logits_of_run(_draft(tmp_path / "hf", [[0, 3]]), tmp_path, tmp_path / "a")[0], theirs(IDS).logits
    )

    theirs = _save(tmp_path / "neox", "gpt_neox", tie_word_embeddings=False).bfloat16().float()
    _rewrite(
        tmp_path / "neox",
        lambda old: (
            {name.replace("lm_head", "embed_out"): tensor.bfloat16() for name, tensor in old.items()}
            | {"gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(1)}
        ),
    )
    raw = json.loads((tmp_path / "neox" / "config.json").read_text())
    raw |= {"rotary_pct": 0.25, "rotary_emb_base": 10000}
    del raw["rope_parameters"]
    (tmp_path / "neox" / "config.json").write_text(json.dumps(raw))
    draft = _draft(tmp_path / "neox", [[0, 3]])
    assert torch.equal(_logits_of_run(draft, tmp_path, tmp_path / "b")[0], theirs(IDS).logits)


def test_a_checkpoint_in_several_files(tmp_path: Path) -> None:
    theirs = _save(tmp_path / "whole", "llama")
    theirs.save_pretrained(tmp_path / "hf", max_shard_size="10KB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    assert torch.equal(
        _logits_of_run(_draft(tmp_path / "hf", [[0, 1], [1, 3]]), tmp_path, tmp_path / "out")[0], theirs(IDS).logits
    )


_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 16}
_LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "short_factor": [1.0], "long_factor": [2.0]}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "hf"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=32, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "bloom"},
            "model_type: expected one of gemma2, gemma3_text, glm, glm4, gpt2, gpt_neox, granite, llama, ministral, "
            "mistral, olmo2, olmo3, opt, phi3, qwen2, qwen3, qwen3_moe, smollm3, got",
        ),
        ({"model_type": None}, "model_type: expected one of"),
        ({"rope_parameters": _LONGROPE}, 'rope_scaling.rope_type: not a supported value, got "longrope"'),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type: not"),
        ({"head_dim": 4}, "head_dim: expected 8, got 4"),
        ({"rope_parameters": _LLAMA3 | {"factor": None}}, "rope_scaling.factor: missing"),
        (
            {"rope_parameters": _LLAMA3 | {"high_freq_factor": 0.5}},
            "rope_scaling.high_freq_factor: expected more than",
        ),
        ({"hidden_act": "tanh"}, "hidden_act: not a supported value"),
        ({"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}, "auto_map = {"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = {"),
        ({"num_hidden_layers": 10**12}, "expected 1 to 1024 layers"),
        ({"vocab_size": 10**15}, "vocab_size: expected a whole number <= 1048576"),
        ({"vocab_size": "many"}, "not a config of llama ("),
        ({"num_key_value_heads": 7}, "num_key_value_heads: expected a divisor of num_attention_heads (2), got 7"),
    ],
)
def test_a_config_of_another_computation_is_refused_in_one_line(
    llama: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    raw = json.loads((llama / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ManifestError) as caught:
        read_config(tmp_path, untie=True)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file"),
        (b"{", "not readable as JSON"),
        (b"[1]", "expected a table"),
        (b'{"model_type":"llama","rms_norm_eps":NaN}', "not readable as JSON"),
        (b'{"model_type":"llama","x":"' + b"a" * (1 << 20) + b'"}', "expected at most 1,048,576 bytes"),
    ],
)
def test_a_config_that_is_none_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ManifestError, match=message.replace("(", r"\(")) as caught:
        read_config(tmp_path, untie=False)
    assert "\n" not in str(caught.value)


def _nan(old: dict[str, Tensor]) -> dict[str, Tensor]:
    old["model.norm.weight"][3] = float("nan")
    return old


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda old: {n: t for n, t in old.items() if n != "model.norm.weight"}, "hf: model.norm.weight is missing"),
        (lambda old: {n: t for n, t in old.items() if n != "lm_head.weight"}, "hf: lm_head.weight is missing"),
        (
            lambda old: old | {"model.layers.3.x": torch.ones(2)},
            "model.layers.3.x: config.json describes a model",
        ),
        (lambda old: old | {"norm.weight": torch.ones(16)}, "the tensor is there twice"),
        (
            lambda old: old | {"model.norm.weight": torch.ones(15)},
            "expected [16] in one of F32, F16, BF16, F64, got",
        ),
        (lambda old: old | {"model.norm.weight": torch.ones(16, dtype=torch.int8)}, "got [16] in I8"),
        (_nan, "model.norm.weight: holds a value that is not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(
    llama: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "hf"))
    _rewrite(folder, change)
    with pytest.raises(ManifestError) as caught:
        _checkpoint(_draft(folder, [[0, 3]])).weights(0)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds neither model.safetensors nor model.safetensors.index.json"),
        ({"pytorch_model.bin": b"\x80"}, "pickles can run code and are not read: convert them to safetensors"),
        ({"model.safetensors": b"junk"}, "cannot be read as safetensors"),
        ({"model.safetensors": struct.pack("<Q", 1 << 62) + b"{}"}, "cannot be read as safetensors"),
        ({"model.safetensors.index.json": b'{"weight_map":{"a":"../x.safetensors"}}'}, "expected names of safetensors"),
        ({"model.safetensors.index.json": b'{"weight_map":{"a":"x.bin"}}'}, "expected names of safetensors"),
        ({"model.safetensors.index.json": b'{"weight_map":[]}'}, "weight_map: expected a table"),
        ({"model.safetensors.index.json": b'{"weight_map":{"a":"x.safetensors"}}'}, "cannot be read as safetensors"),
    ],
)
def test_files_that_are_no_checkpoint_are_refused_in_one_line(
    llama: Path, tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    shutil.copy(llama / "config.json", folder)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        _checkpoint(_draft(folder, [[0, 3]]))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_pipe_in_place_of_weights_is_refused_and_not_waited_for(llama: Path, tmp_path: Path) -> None:
    shutil.copy(llama / "config.json", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map":{"a":"x.safetensors"}}')
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(ManifestError, match=r"x\.safetensors: is no plain file"):
        _checkpoint(_draft(tmp_path, [[0, 3]]))


def test_an_old_file_beside_a_newer_index_is_refused_and_not_chosen(llama: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "hf"))
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    names = list(load_file(whole))
    shutil.copy(whole, folder / "model-00001-of-00001.safetensors")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}))
    with pytest.raises(ManifestError) as told:
        _checkpoint(_draft(folder, [[0, 3]]))
    assert f"holds {whole.name}, and {index.name}" in str(told.value) and "remove the older one" in str(told.value)
    with pytest.raises(EvaluateError) as answering:
        Writer(folder)
    with pytest.raises(EvaluateError) as evaluated:
        generate(folder, b"")
    assert str(answering.value) == str(evaluated.value) == str(told.value)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, whole.name)}))
    assert _checkpoint(_draft(folder, [[0, 3]])).weights(0)  # the index names it
    index.unlink()
    assert _checkpoint(_draft(folder, [[0, 3]])).weights(0)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pointer_in_place_of_a_file_is_named_with_what_fetches_it(llama: Path, name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "hf"))
    (folder / name).write_text(POINTER)
    with pytest.raises(ManifestError, match=r"is a pointer of Git LFS .*: run `git lfs pull`") as told:
        _checkpoint(_draft(folder, [[0, 3]]))
    assert str(told.value).startswith(str(folder / name))
    with pytest.raises(EvaluateError, match="run `git lfs pull`") as said:  # where the folder is to answer
        Writer(folder)
    assert str(said.value).startswith(str(folder / name))


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=256, **sizes)).save_pretrained(tmp_path / "hf")
    head = {"lm_head.weight": torch.ones(256, 16)}
    _rewrite(tmp_path / "hf", lambda old: old | head)
    with pytest.raises(ManifestError, match=r"lm_head\.weight differs from the embedding"):
        _checkpoint(_draft(tmp_path / "hf", [[0, 3]]))


def test_a_draft_has_a_config_or_a_source(llama: Path) -> None:
    toml = llama.parent / "both.toml"
    text = TOML.format(stages=[[0, 3]], folder=llama.name)
    for wrong in (text.replace('source = "hf"', ""), text.replace('"hf"', '"hf"\n[model.config]\nvocab_size = 256')):
        toml.write_text(wrong)
        with pytest.raises(ManifestError, match=r"model: expected either model\.config or model\.source"):
            draft_from_toml(toml)
