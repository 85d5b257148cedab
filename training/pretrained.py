"""An existing model as a run's start: a Hugging Face folder's config and safetensors, of unknown origin.

Nothing of the folder is executed and no pickle is read. What the run's model would compute differently is refused.
Names and shapes are compared with the model's before any tensor is read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from training.families import FAMILIES, Config, config_class
from training.manifest import Model, parse_model
from training.strict import ManifestError

if TYPE_CHECKING:
    from torch import Tensor

    from training.draft import Draft

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_config(folder: Path, *, untie: bool) -> dict[str, Any]:
    """The `model.config` of a run that starts from the folder; with `untie` the head gets weights of its own.

    Raises ManifestError in one line.
    """
    where = folder / "config.json"
    raw = _json(where, MAX_CONFIG_BYTES)
    if raw.get("model_type") is None or config_class(raw) is None:
        found = msgspec.json.encode(raw.get("model_type")).decode()[:80]
        raise ManifestError(f"{where}: model_type: expected one of {', '.join(FAMILIES)}, got {found}")
    for key in _OTHER_MODELS & raw.keys():
        if raw[key]:
            raise ManifestError(f"{where}: {key}: such a model is not supported")
    theirs = _as_transformers(where, raw)
    kind = config_class(raw)
    assert kind is not None
    keys = kind.__struct_fields__
    rope = theirs.get("rope_parameters") or {}
    theta, part = rope.get("rope_theta"), rope.get("partial_rotary_factor")
    known = theirs | {"rope_theta": theta, "rotary_emb_base": theta, "rotary_pct": part}
    # 0 stands for null; so does a width that the family derives from others.
    values = {key: 0 if known[key] is None else known[key] for key in keys}
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


class Checkpoint:
    """The weights of the folder that a draft's `model.source` names. Raises ManifestError for any that do not fit."""

    def __init__(self, draft: "Draft") -> None:
        from training.stages import stage_shapes

        self._folder = Path(draft.model.source)
        self._stages = [stage_shapes(draft, stage) for stage in range(len(draft.stages))]
        self._layout = parse_model(draft.model).layout
        self._tokens, self._head = f"{self._layout.tokens}.weight", f"{self._layout.head}.weight"
        self._tied = read_config(self._folder, untie=False)["tie_word_embeddings"]
        self._places = self._find({name: shape for stage in self._stages for name, shape in stage.items()})
        if self._tied and not self._read(self._head).equal(self._read(self._tokens)):
            place = self._folder / "config.json"
            raise ManifestError(f"{place}: tie_word_embeddings is true, but {self._head} differs from the embedding")

    def weights(self, stage: int) -> "dict[str, Tensor]":
        """The stage's float32 tensors by the unsplit model's names."""
        return {name: self._read(name) for name in self._stages[stage]}

    def _find(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[Path, str]]:
        """(file, name there) of every tensor of the model."""
        if self._tied:
            shapes = {**shapes, self._head: shapes[self._tokens]}
        places: dict[str, tuple[Path, str]] = {}
        for path in self._files():
            for theirs, shape, kind in _listing(path):
                name = self._our_name(theirs, shapes)
                if name is None:
                    continue
                if name in places:
                    raise ManifestError(f"{path}: {theirs}: the tensor is there twice")
                expected = shapes.get(name)
                if expected is None:
                    raise ManifestError(f"{path}: {theirs}: config.json describes a model without this tensor")
                if shape != expected or kind not in _KINDS:
                    wanted = f"{list(expected)} in one of {', '.join(_KINDS)}"
                    raise ManifestError(f"{path}: {theirs}: expected {wanted}, got {list(shape)} in {kind}")
                places[name] = (path, theirs)
        if self._tied and self._tokens in places:  # the head is the embedding, written once or twice
            places.setdefault(self._head, places[self._tokens])
        missing = shapes.keys() - places.keys()
        if missing:
            raise ManifestError(f"{self._folder}: {min(missing)} is missing")
        return places

    def _files(self) -> list[Path]:
        if (self._folder / _WEIGHTS).is_file():
            return [self._folder / _WEIGHTS]
        index = self._folder / _INDEX
        if not index.is_file():
            pickles = [*self._folder.glob("*.bin"), *self._folder.glob("*.pt"), *self._folder.glob("*.pth")]
            hint = "; pickles can run code and are not read: convert them to safetensors" if pickles else ""
            raise ManifestError(f"{self._folder}: holds neither {_WEIGHTS} nor {_INDEX}{hint}")
        names = _json(index, MAX_INDEX_BYTES).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ManifestError(f"{index}: weight_map: expected a table of tensors and files")
        files = {str(name) for name in names.values()}
        for name in files:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ManifestError(f"{index}: weight_map: expected names of safetensors files beside it")
        return [self._folder / name for name in sorted(files)]

    def _our_name(self, theirs: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """None for a buffer that is no weight."""
        if theirs.endswith(self._layout.not_weights):
            return None
        for old, new in self._layout.renamed:
            if theirs.startswith(old):
                theirs = new + theirs[len(old) :]
        full = f"{self._layout.base}.{theirs}"
        return full if full in shapes else theirs

    def _read(self, name: str) -> "Tensor":
        import torch
        from safetensors import SafetensorError, safe_open

        path, theirs = self._places[name]
        try:
            with safe_open(path, "pt") as file:
                tensor = file.get_tensor(theirs).to(torch.float32)
        except (OSError, SafetensorError) as error:
            raise ManifestError(f"{path}: {theirs} cannot be read ({_first_line(error)})") from None
        if not torch.isfinite(tensor).all():
            raise ManifestError(f"{path}: {theirs}: holds a value that is not finite in float32")
        return tensor


_KINDS = ("F32", "F16", "BF16", "F64")
# Keys that make another model of one of the known types.
_OTHER_MODELS = {"auto_map", "quantization_config", "compression_config", "is_encoder_decoder"}
_ROPE = {"rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "rotary_pct", "partial_rotary_factor"}
# Keys that no logit depends on, beside the dropouts and those of every transformers config.
_NO_COMPUTATION = {"bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "is_decoder", "pretraining_tp"}
_NO_COMPUTATION |= {"summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"}
_NO_COMPUTATION |= {"max_window_layers", "reorder_and_upcast_attn"}


def _as_transformers(where: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The config as transformers understands it: with its defaults, and old keys under their new names."""
    layers = raw.get("num_hidden_layers", raw.get("n_layer", 1))
    if not isinstance(layers, int) or not 0 < layers <= 1024:  # transformers makes a list of them
        raise ManifestError(f"{where}: expected 1 to 1024 layers")
    from transformers import CONFIG_MAPPING

    kind: Any = CONFIG_MAPPING[raw["model_type"]]
    keys = (kind().to_dict().keys() - _common_keys()) | kind.attribute_map.keys() | _ROPE | {"tie_word_embeddings"}
    try:
        return kind(**{key: value for key, value in raw.items() if key in keys}).to_dict()
    except Exception as error:  # whatever a stranger's values bring about in there
        raise ManifestError(f"{where}: not a config of {raw['model_type']} ({_first_line(error)})") from None


def _refuse_other_computation(where: Path, theirs: Mapping[str, Any], config: Config) -> None:
    """Compare all keys of the transformers config with those of our model, but for what no logit depends on."""
    from training.stages import is_dropout, transformers_config

    ours = transformers_config(config).to_dict()
    for key in sorted(ours.keys() - _common_keys() - _NO_COMPUTATION):
        if not is_dropout(key) and theirs.get(key) != ours[key]:
            expected, found = (msgspec.json.encode(value).decode()[:80] for value in (ours[key], theirs.get(key)))
            raise ManifestError(f"{where}: {key}: expected {expected}, got {found}")


def _common_keys() -> set[str]:
    """Of every transformers config: about labels, files and output, not about layers."""
    from transformers import PreTrainedConfig

    return set(PreTrainedConfig().to_dict())


def _listing(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """(name, shape, dtype) of a file's tensors; reads its header only, which the library bounds."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return [(name, tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()]
    except (OSError, SafetensorError) as error:
        raise ManifestError(f"{path}: cannot be read as safetensors ({_first_line(error)})") from None


def _json(path: Path, limit: int) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > limit:
        raise ManifestError(f"{path}: expected at most {limit} bytes")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: not readable as JSON ({_first_line(error)})") from None
    if not isinstance(found, dict):
        raise ManifestError(f"{path}: expected a table")
    return found


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
