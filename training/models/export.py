"""A Hugging Face folder from a version's stage files, for anyone who wants to use the model."""

import json
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dlx.ground import durable
from dlx.ground.blobs import BlobError
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models import adapters, gguf_file, model_files, weights
from dlx.training.models.gguf_file import GgufError
from dlx.training.models.model_files import INDEX, Files, Form
from dlx.training.models.weights import Dtype
from dlx.training.recipe.family import Config
from dlx.training.recipe.huggingface import transformers_config
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import parse_model
from dlx.training.recipe.usage import Ids, Tokens, Usage


class ExportError(ValueError):
    """The model cannot be exported there, or from these files."""


def export(
    manifest: Manifest,
    stage_files: Sequence[Path],
    out: Path,
    vocabulary: Vocabulary | None = None,
    usage: Usage | None = None,
    form: Form = Form(),
    base: Path | None = None,
) -> bytes:
    """Write `out` (config.json, model.safetensors, a tokenizer), loadable by `AutoModelForCausalLM.from_pretrained` of
    transformers 4 and 5. Of a run with an adapter it is what PEFT loads: adapter_config.json and
    adapter_model.safetensors in place of the first two. Where `form` is merged it is the whole model, with the base's
    files from the folder `base`. Or it is a model.gguf alone, where `form` says so.

    `stage_files` are the canonical weights of all stages in order; `vocabulary` is that of the run's data, None where
    nobody has it; `usage` what the manifest names as such. The folder appears complete or not at all. Returns
    the sha256 of the weights in one float32 file, in whatever form they are written. Raises ExportError, also when
    `out` exists and is not an empty folder, or `form` has no number for a weight.
    """
    if len(stage_files) != len(manifest.stages):
        raise ExportError(f"expected one file per stage ({len(manifest.stages)}), got {len(stage_files)}")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ExportError(f"{out}: already exists; name a new or an empty folder")
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    write = _write_gguf if form.gguf else _write_folder
    try:
        tensors = model_files.exported(manifest, stage_files, base)
        temporary.mkdir(parents=True)
        write(temporary, manifest, tensors, vocabulary, usage or Usage(version=1), form)
        digest = weights.weights_hash(tensors, "float32")
        durable.move(temporary, out)
    except (BlobError, GgufError, weights.WeightsError) as error:
        raise ExportError(str(error)) from None
    except OSError as error:
        raise ExportError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def file_hashes(
    manifest: Manifest, stage_files: Sequence[Path], files: Files, dtype: Dtype, base: Path | None = None
) -> dict[str, bytes]:
    """The sha256 of each of the files that `export` writes of these tensors, without writing them. Raises WeightsError,
    BlobError."""
    tensors = model_files.exported(manifest, stage_files, base)
    return {name: weights.weights_hash(_of(tensors, shapes), dtype) for name, shapes in files.items()}


def _write_folder(
    folder: Path,
    manifest: Manifest,
    merged: weights.Lazy[np.ndarray],
    vocabulary: Vocabulary | None,
    usage: Usage,
    form: Form,
) -> None:
    files = model_files.split(manifest, form)
    for name, shapes in files.items():
        weights.write(_of(merged, shapes), folder / name, exported=form.dtype)
    if len(files) > 1:
        durable.write_bytes(folder / INDEX, model_files.index(files, form.dtype))
    for name, content in described(manifest, vocabulary, usage, form).items():
        durable.write_bytes(folder / name, content)


def _write_gguf(
    folder: Path,
    manifest: Manifest,
    merged: weights.Lazy[np.ndarray],
    vocabulary: Vocabulary | None,
    usage: Usage,
    form: Form,
) -> None:
    config = parse_model(manifest.model)
    gguf_file.check(config, vocabulary)
    assert vocabulary is not None  # it was checked
    special, path = _tokenizer(config, usage, vocabulary), folder / gguf_file.FILE
    ends = _as_list(_generation(config, usage, vocabulary.separator)["eos_token_id"])
    gguf_file.write(config, manifest.name, merged, vocabulary, usage, special, ends, form.dtype, path)


def _of(tensors: weights.Lazy[np.ndarray], shapes: weights.Shapes) -> weights.Lazy[np.ndarray]:
    return weights.Lazy(shapes, tensors.__getitem__)


def described(
    manifest: Manifest, vocabulary: Vocabulary | None, usage: Usage | None, form: Form = Form()
) -> dict[str, bytes]:
    """The folder's files beside the weights: config and tokenizer, the same whoever writes them."""
    model, usage = parse_model(manifest.model), usage or Usage(version=1)
    end = vocabulary.separator if vocabulary else 0
    files, tables = dict[str, bytes](), dict[str, dict[str, Any]]()
    if manifest.adapter is None or form.merged:
        tables["config.json"] = _config(model, usage, end) | {"dtype": form.dtype}
        tables["generation_config.json"] = _generation(model, usage, end)
    else:
        files[adapters.CONFIG] = adapters.described(manifest)
    if vocabulary is not None:
        tables["tokenizer_config.json"] = _tokenizer(model, usage, vocabulary)
        files["tokenizer.json"] = vocabulary.content
    for name, table in tables.items():
        files[name] = (json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
    return files


def _config(model: Config, usage: Usage, end: int) -> dict[str, Any]:
    """What the run decides is stated, also where it is a default of this release of transformers."""
    config = transformers_config(model)
    whole, described = config.to_dict(), config.to_diff_dict()
    stated = {*model.__struct_fields__, *model.transformers_options(), *Ids.__struct_fields__}
    described |= {key: whole[key] for key in stated if key in whole} | model.transformers4_options()
    described |= {"architectures": [model.layout.architecture]} | _known_ids(model, usage.ids)
    if described["eos_token_id"] is None:
        described["eos_token_id"] = end
    del described["transformers_version"]  # whoever exports the version writes the same bytes
    return described


def _generation(model: Config, usage: Usage, end: int) -> dict[str, Any]:
    """The source's settings, but that the token between the run's documents ends a text too."""
    theirs = msgspec.to_builtins(usage.generation) or {"do_sample": True}
    known = {key: value for key, value in _known_ids(model, usage.generation).items() if value is not None}
    ends = _as_list(known.get("eos_token_id", _known_ids(model, usage.ids)["eos_token_id"]))
    if end not in ends:
        ends = [*ends, end]
    others = {key: value for key, value in theirs.items() if key not in Ids.__struct_fields__}
    return others | known | {"eos_token_id": ends[0] if len(ends) == 1 else ends}


def _known_ids(model: Config, ids: Ids) -> dict[str, Any]:
    """None for each that the model has no embedding of."""
    known: dict[str, Any] = {}
    for key in Ids.__struct_fields__:
        value = getattr(ids, key)
        if isinstance(value, list):
            value = [one for one in value if one < model.vocab_size] or None
        known[key] = None if isinstance(value, int) and value >= model.vocab_size else value
    return known


def _as_list(value: Any) -> list[Any]:
    """Of a value that may be none, one or several."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _tokenizer(model: Config, usage: Usage, vocabulary: Vocabulary) -> dict[str, Any]:
    """By which `AutoTokenizer` gives the ids that were trained on, and no token that the model has no embedding of."""

    def known(text: str) -> bool:
        found = vocabulary.id_of(text)
        return found is not None and found < model.vocab_size

    tokens: dict[str, Any] = {key: None for key in Tokens.__struct_fields__}
    for key, value in msgspec.to_builtins(usage.tokens).items():
        texts = [one for one in _as_list(value) if known(one)]
        tokens[key] = texts if isinstance(value, list) else next(iter(texts), None)
    settings: dict[str, Any] = {
        # Its file as it is: any class of a family's own would make another tokenizer of the same vocabulary.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": model.context,
        "clean_up_tokenization_spaces": False,
    }
    if model.family in _OWN_CLASS:
        settings["trust_remote_code"] = True
    if not vocabulary.has_special:  # a text that spells the end's token does not end there
        settings["split_special_tokens"] = True
    if usage.padding_side is not None:
        settings["padding_side"] = usage.padding_side
    if usage.chat_templates:
        templates = [{"name": name, "template": text} for name, text in sorted(usage.chat_templates.items())]
        alone = usage.chat_templates.get("default") if len(templates) == 1 else None
        settings["chat_template"] = templates if alone is None else alone
    return settings | tokens | {"eos_token": tokens["eos_token"] or vocabulary.end}


# Families for which transformers 5 takes a tokenizer class of its own whatever `tokenizer_class` says. With the key
# `trust_remote_code` that class reads the whole tokenizer.json in place of its vocabulary alone. Nothing else reads the
# key in that file, and there is no code in the folder that could be trusted.
_OWN_CLASS = ("qwen2",)
