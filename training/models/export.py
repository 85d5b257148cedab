"""A Hugging Face folder from a version's stage files, for anyone who wants to use the model."""

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dlx.ground import durable
from dlx.training.data.shards import BYTE_VALUES
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models import weights
from dlx.training.models.shapes import pieces, stage_shapes
from dlx.training.recipe.huggingface import transformers_config
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import parse_model


class ExportError(ValueError):
    """The model cannot be exported there, or from these files."""


def export(manifest: Manifest, stage_files: Sequence[Path], out: Path, vocabulary: Vocabulary | None = None) -> bytes:
    """Write `out` (config.json, model.safetensors, a tokenizer), loadable by `AutoModelForCausalLM.from_pretrained`.

    `stage_files` are the canonical weights of all stages in order; `vocabulary` is that of the run's data, None where
    its tokens are bytes. The folder appears complete or not at all. Returns the sha256 of model.safetensors. Raises
    ExportError, also when `out` exists and is not an empty folder.
    """
    if len(stage_files) != len(manifest.stages):
        raise ExportError(f"expected one file per stage ({len(manifest.stages)}), got {len(stage_files)}")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ExportError(f"{out}: already exists; name a new or an empty folder")
    merged: dict[str, np.ndarray] = {}
    for stage, path in enumerate(stage_files):
        try:
            arrays = weights.read_arrays(path, stage_shapes(manifest, stage))
        except weights.WeightsError as error:
            raise ExportError(f"stage {stage}: {error}") from None
        for name, values in arrays.items():
            merged |= {one.name: values[one.place] for one in pieces(name, values.shape)}
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(parents=True)
        digest = weights.write(merged, temporary / "model.safetensors")
        for name, content in described(manifest, vocabulary).items():
            durable.write_bytes(temporary / name, content)
        durable.move(temporary, out)
    except OSError as error:
        raise ExportError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def stage_hashes(manifest: Manifest, model: Path) -> list[bytes]:
    """The sha256 of each stage's canonical weights, as an exported model.safetensors has them. Raises ExportError where
    that is none, or of another model."""
    stages = [stage_shapes(manifest, stage) for stage in range(len(manifest.stages))]
    parts = {one.name: one.shape for shapes in stages for name, shape in shapes.items() for one in pieces(name, shape)}
    try:
        arrays = weights.Stored(model, parts)
        return [weights.weights_hash(weights.Lazy(shapes, partial(_assembled, arrays, shapes))) for shapes in stages]
    except (OSError, weights.WeightsError) as error:
        raise ExportError(f"{model}: {error}") from None


def _assembled(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], name: str) -> np.ndarray:
    whole = np.empty(shapes[name], np.float32)
    for one in pieces(name, shapes[name]):
        whole[one.place] = arrays[one.name]
    return whole


def described(manifest: Manifest, vocabulary: Vocabulary | None) -> dict[str, bytes]:
    """The folder's files beside the weights: config and tokenizer, the same whoever writes them."""
    return {
        name: content
        if isinstance(content, bytes)
        else (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
        for name, content in _describe(manifest, vocabulary).items()
    }


def _describe(manifest: Manifest, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The folder's JSON files, some as their very bytes."""
    model = parse_model(manifest.model)
    config, end = transformers_config(model), _DOCUMENT_END if vocabulary is None else vocabulary.separator
    config.architectures, config.eos_token_id = [model.layout.architecture], end
    described = config.to_diff_dict()
    del described["transformers_version"]  # whoever exports the version writes the same bytes
    files = {"config.json": described, "generation_config.json": {"do_sample": True, "eos_token_id": end}}
    if vocabulary is not None:
        files |= vocabulary.folder_files(config.max_position_embeddings)
    elif config.vocab_size == BYTE_VALUES:
        files |= _byte_tokenizer(config.max_position_embeddings)
    return files


_DOCUMENT_END = 0  # of bytes


def _byte_tokenizer(max_length: int) -> dict[str, dict]:
    """A byte-level BPE without merges whose token ids are the bytes of the text."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    characters = bytes_to_unicode()
    tokenizer = Tokenizer(BPE(vocab={character: byte for byte, character in characters.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": characters[_DOCUMENT_END],
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": json.loads(tokenizer.to_str()), "tokenizer_config.json": settings}
