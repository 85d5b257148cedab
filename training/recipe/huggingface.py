"""A Hugging Face config, of unknown origin, as a family's; and a family's as the transformers object.

Nothing of the folder is executed. What the run's model would compute differently is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dlx.ground import handwritten
from dlx.ground.untrusted import decode_json
from dlx.training.recipe import positions
from dlx.training.recipe.families import FAMILIES, config_class
from dlx.training.recipe.family import Config
from dlx.training.recipe.pointers import pointer
from dlx.training.recipe.recipe import Model, parse_model
from dlx.training.recipe.strict import ManifestError, shown

MAX_CONFIG_BYTES = 1 << 20


def read_config(folder: Path, *, untie: bool) -> dict[str, Any]:
    """The `model.config` of a run that starts from the folder; with `untie` the head gets weights of its own.

    Raises ManifestError in one line.
    """
    where = folder / "config.json"
    if (folder / "adapter_config.json").exists() and not where.exists():
        raise ManifestError(f"{folder}: holds an adapter alone: merge it with its base (`pull --merged`)")
    raw = read_json(where, MAX_CONFIG_BYTES)
    if raw.get("model_type") is None or config_class(raw) is None:
        raise ManifestError(f"{where}: {refusal(raw)}")
    for key, reason in _OTHER_MODELS.items():
        if raw.get(key):
            raise ManifestError(f"{where}: {key} = {shown(raw[key])}: {reason}")
    if not raw.get("is_causal", True):
        raise ManifestError(f"{where}: is_causal = {shown(raw['is_causal'])}: no token sees those behind it here")
    theirs, values = _read(where, raw)
    try:
        config = parse_model(Model(values))
    except ManifestError as error:
        raise ManifestError(f"{where}: {str(error).removeprefix('model.config.')}") from None
    for key, expected, value in config.problems():
        raise ManifestError(f"{where}: {key}: {expected}, got {value}")
    _refuse_other_computation(where, theirs, config)
    if untie:
        config = msgspec.structs.replace(config, tie_word_embeddings=False)
    return msgspec.to_builtins(config)


def refusal(raw: Mapping[str, Any]) -> str:
    """Why a config.json of another family is none of ours: its parameters that no family has, in one line."""
    found = []
    for lacks, keys in _LACKS.items():
        key = next((one for one in keys.split() if raw.get(one)), None)
        if key is not None:
            found.append(f"{key} = {shown(raw[key])}: {lacks}")
    return "; ".join([*found, f"model_type: expected one of {', '.join(FAMILIES)}, got {shown(raw.get('model_type'))}"])


def transformers_config(config: Config) -> Any:
    """A family's config as the transformers object: without dropout, token ids or a cache."""
    from transformers import CONFIG_MAPPING

    kind: Any = CONFIG_MAPPING[config.family]
    known = kind().to_dict()
    options = {key: getattr(config, key) for key in config.__struct_fields__ if key in known and key != "model_type"}
    options |= config.transformers_options()
    options |= {key: 0.0 for key in known if is_dropout(key)}
    options |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # a padding row would never learn
    return kind(**options, dtype="float32", attn_implementation=config.layout.attention)


def is_dropout(key: str) -> bool:
    """Whether a key of a transformers config is the rate of some dropout."""
    return key.endswith(("dropout", "_pdrop", "layerdrop"))


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """The table in a JSON file of at most `limit` bytes. Raises ManifestError in one line."""
    try:
        found = decode_json(read_text(path, limit))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ManifestError(f"{path}: not readable as JSON ({first_line(error)})") from None
    if not isinstance(found, dict):
        raise ManifestError(f"{path}: expected a table")
    return found


def read_text(path: Path, limit: int) -> str:
    """The text of a file of at most `limit` bytes. Raises ManifestError in one line."""
    refuse_pointer(path)
    try:
        return handwritten.read(path, limit)
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ManifestError(str(error)) from None


def refuse_pointer(path: Path) -> None:
    """Raises ManifestError for what does not hold what its name says: a pointer to bytes elsewhere, and what is there
    and no plain file, such as a pipe, whose opening would never end."""
    if path.exists() and not path.is_file():
        raise ManifestError(f"{path}: is no plain file")
    if found := pointer(path):
        raise ManifestError(f"{path}: {found}")


def first_line(error: BaseException) -> str:
    """A foreign error, fit for one line."""
    return " ".join(str(error).split())[:200]


# Keys that make another model of one of the known types.
_OTHER_MODELS = {
    "auto_map": "code of the folder's own is not run; without this key the model is what transformers makes of it",
    "quantization_config": "quantised weights are not read",
    "compression_config": "compressed weights are not read",
    "is_encoder_decoder": "there are no encoders",
}
# What no family has, by the keys of which one says that a model has it.
_LACKS = {
    "there is no attention through latent vectors (MLA)": "kv_lora_rank q_lora_rank",
    "there are no experts but those of qwen3_moe": (
        "n_routed_experts num_local_experts num_experts moe_num_experts moe_layers"
    ),
    "there are no experts for all tokens": "n_shared_experts num_shared_experts shared_expert_intermediate_size",
    "there are no bounded gates, and no sinks in attention": "swiglu_limit",
    "there are no recurrent or convolving layers": (
        "linear_num_key_heads linear_num_heads mamba_d_state ssm_state_size state_size conv_L_cache"
    ),
    "there is no sparse or chunked attention": "index_topk attention_chunk_size",
    "there are no keys and values that layers share": "num_kv_shared_layers",
    "there are no embeddings for each layer": "hidden_size_per_layer_input",
    "there is no attention beside the MLP but that of gpt_neox": "parallel_attn",
    "there are no positions by distance (ALiBi)": "alibi",
    "logits are not multiplied": "logit_scale",
    "there are no images": "vision_config",
    "there is no sound": "audio_config",
    "there are no encoders": "is_encoder_decoder",
}
_ROPE = {"rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "rotary_pct", "partial_rotary_factor"}
_ROPE |= {"rope_local_base_freq"}
# Keys that only some configs of a family have.
_OPTIONAL = {"tie_word_embeddings", "head_dim", "sliding_window_pattern"}
# Keys that no logit depends on, beside the dropouts and those of every transformers config.
_NO_COMPUTATION = {"bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "is_decoder", "pretraining_tp"}
_NO_COMPUTATION |= {"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"}
_NO_COMPUTATION |= {"max_window_layers", "reorder_and_upcast_attn"}


def _read(where: Path, raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config as transformers understands it, with its defaults and old keys under their new names; and as ours."""
    layers = raw.get("num_hidden_layers", raw.get("n_layer", 1))
    if not isinstance(layers, int) or not 0 < layers <= 1024:  # transformers makes a list of them
        raise ManifestError(f"{where}: expected 1 to 1024 layers")
    from transformers import CONFIG_MAPPING

    kind: Any = CONFIG_MAPPING[raw["model_type"]]
    family = config_class(raw)
    assert family is not None
    keys = (kind().to_dict().keys() - _common_keys()) | kind.attribute_map.keys() | _ROPE | _OPTIONAL
    try:
        given = {key: value for key, value in raw.items() if key in keys and (value is not None or key != "head_dim")}
        theirs = kind(**given).to_dict()
        known = theirs | family.from_transformers(theirs)
        # 0 stands for null; so does a width that the family derives from others.
        ours = {key: 0 if known[key] is None else known[key] for key in family.__struct_fields__ if key in known}
        return theirs, ours
    except Exception as error:  # whatever a stranger's values bring about in there
        raise ManifestError(f"{where}: not a config of {raw['model_type']} ({first_line(error)})") from None


def _refuse_other_computation(where: Path, theirs: Mapping[str, Any], config: Config) -> None:
    """Compare all keys of the transformers config with those of our model, but for what no logit depends on."""
    ours = transformers_config(config).to_dict()
    compared = ours.keys() & theirs.keys()  # both have all that the class has; a width that only we say is derived
    for key in sorted(compared - _common_keys() - _NO_COMPUTATION - {*config.unused}):
        pair: tuple[Any, Any] = ours[key], theirs[key]
        if key == "rope_parameters":
            pair = positions.stated(ours[key]), positions.stated(theirs[key])
        if not is_dropout(key) and pair[0] != pair[1]:
            place, *values = _first_difference(key, *pair)
            expected, found = map(shown, values)
            raise ManifestError(f"{where}: {place}: expected {expected}, got {found}")


def _first_difference(key: str, ours: Any, theirs: Any) -> tuple[str, Any, Any]:
    """Of values that differ: inside of tables."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return key, ours, theirs
    first = min(one for one in ours.keys() | theirs.keys() if ours.get(one) != theirs.get(one))
    return _first_difference(f"{key}.{first}", ours.get(first), theirs.get(first))


def _common_keys() -> set[str]:
    """Of every transformers config: about labels, files and output, not about layers."""
    from transformers import PreTrainedConfig

    return set(PreTrainedConfig().to_dict())
