"""The weights of a Hugging Face folder: a safetensors file, or several and an index, as `transformers` writes them, or
an adapter's one as PEFT does."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dlx.training.models import adapters, weights
from dlx.training.models.shapes import Piece, Shape, pieces, stage_shapes, weight_shapes
from dlx.training.models.weights import Dtype, Shapes, WeightsError
from dlx.training.recipe.huggingface import read_json
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import parse_model
from dlx.training.recipe.strict import ManifestError

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # of a file's tensors, unless one alone is longer
_MAX_INDEX_BYTES = 64 << 20

Files = dict[str, Shapes]  # name of a file -> its tensors


class Form(NamedTuple):
    """How the weights are written: values of `dtype`, in files of at most so many bytes. `gguf`: for llama.cpp, in one
    file and nothing beside it. `merged`: of a run with an adapter the whole model, in place of the adapter alone."""

    dtype: Dtype = "float32"
    shard_bytes: int = SHARD_BYTES
    gguf: bool = False
    merged: bool = False


MERGED = Form(merged=True)  # what answers by itself, whatever the run trains


def split(manifest: Manifest, form: Form) -> Files:
    """Which files the weights are written to: an adapter's to one, a model's to several where they are long. A tensor
    that is longer than such a file has one of its own."""
    if manifest.adapter is not None and not form.merged:
        return {adapters.WEIGHTS: _factor_shapes(manifest)}
    size = 4 if form.dtype == "float32" else 2
    files, rest, used = list[dict[str, Shape]](), dict[str, Shape](), 0
    for name, shape in _model_shapes(manifest).items():
        more = size * math.prod(shape)
        if more > form.shard_bytes:
            files.append({name: shape})
            continue
        if used + more > form.shard_bytes:
            files.append(rest)
            rest, used = {}, 0
        rest[name] = shape
        used += more
    files += [rest] if rest else []
    if len(files) == 1:
        return {MODEL: files[0]}
    return {f"model-{number:05}-of-{len(files):05}.safetensors": one for number, one in enumerate(files, 1)}


def index(files: Files, dtype: Dtype) -> bytes:
    """The index of several files."""
    places = {name: file for file, shapes in files.items() for name in shapes}
    values = sum(math.prod(shape) for shapes in files.values() for shape in shapes.values())
    metadata = {"total_parameters": values, "total_size": (4 if dtype == "float32" else 2) * values}
    return (json.dumps({"metadata": metadata, "weight_map": places}, indent=2, sort_keys=True) + "\n").encode()


def read_split(manifest: Manifest, folder: Path) -> Files:
    """Which files an exported folder, of unknown origin, has by its index. Raises WeightsError where that is none of
    this model's."""
    if not is_model(manifest, folder):
        return {adapters.WEIGHTS: _factor_shapes(manifest)}
    if (folder / MODEL).exists():
        return {MODEL: _model_shapes(manifest)}
    try:
        places = read_json(folder / INDEX, _MAX_INDEX_BYTES).get("weight_map")
    except ManifestError:
        raise WeightsError(f"holds neither {MODEL} nor {INDEX}") from None
    shapes = _model_shapes(manifest)
    if not isinstance(places, dict) or places.keys() != shapes.keys():
        raise WeightsError(f"{INDEX}: lists other tensors than the model has")
    count = len({str(file) for file in places.values()})
    files = {f"model-{number:05}-of-{count:05}.safetensors": dict[str, Shape]() for number in range(1, count + 1)}
    for name, shape in shapes.items():
        file = places[name]
        if not isinstance(file, str) or file not in files:
            raise WeightsError(f"{INDEX}: expected names of files like model-00001-of-{count:05}.safetensors")
        files[file][name] = shape
    return dict[str, Shapes](files)


def is_model(manifest: Manifest, folder: Path) -> bool:
    """Whether a folder has all weights of the model, and not an adapter's alone."""
    return manifest.adapter is None or not (folder / adapters.WEIGHTS).exists()


def exported(manifest: Manifest, stage_files: Sequence[Path], base: Path | None = None) -> weights.Lazy[np.ndarray]:
    """The exported tensors, each read from the stages' canonical weights when it is asked for. With an adapter these
    are its factors, or with `base`, the folder that has the base's files, the whole model. Raises WeightsError, which
    names the stage, for files that are none, and as `adapters.base_file`."""
    stages = list[weights.Lazy[np.ndarray]]()
    for stage, path in enumerate(stage_files):
        try:
            stages.append(weights.Stored(path, stage_shapes(manifest, stage)))
            if base is not None:
                stages[-1] = adapters.merged(manifest, stage, stages[-1], base)
        except WeightsError as error:
            raise WeightsError(f"stage {stage}: {error}") from None
    if manifest.adapter is not None and base is None:
        factors = [adapters.exported(manifest, stage, trained) for stage, trained in enumerate(stages)]
        found = {name: values for each in factors for name, values in each.items()}
        return weights.Lazy(_factor_shapes(manifest), found.__getitem__)
    places = {name: (stages[stage], whole, one) for stage, whole, name, one in _parts(manifest)}

    def read(name: str) -> np.ndarray:
        values, whole, piece = places[name]
        if not isinstance(values, weights.Stored):
            return np.ascontiguousarray(values[whole][piece.place])
        found = np.empty(piece.shape, np.float32)
        values.read_into(found, whole, _start(piece, values.shapes[whole]))
        return found

    return weights.Lazy(_model_shapes(manifest), read)


class Folder:
    """An exported folder's float32 weights, of unknown origin, in `files`; None: in those of its index. Raises
    WeightsError where it has others."""

    def __init__(self, manifest: Manifest, folder: Path, files: Files | None = None) -> None:
        self._manifest, self._files = manifest, read_split(manifest, folder) if files is None else files
        stored = {name: weights.Stored(folder / name, shapes, exported=True) for name, shapes in self._files.items()}
        self._places = {name: one for one in stored.values() for name in one}
        self.is_model = is_model(manifest, folder)

    def stage_hashes(self) -> list[bytes]:
        """The sha256 of each stage's canonical weights; of an adapter only of a folder without its base. Raises
        WeightsError where a factor that is not trained is another than the run's."""
        return [weights.weights_hash(self._stage(stage)) for stage in range(len(self._manifest.stages))]

    def write_stages(self, blobs: Path) -> list[bytes]:
        """The same, and writes each stage's canonical weights to a blob folder. Raises OSError too."""
        return [weights.write_blob(self._stage(stage), blobs) for stage in range(len(self._manifest.stages))]

    def model_hash(self) -> bytes:
        """The sha256 of all tensors in one file."""
        shapes = {name: shape for each in self._files.values() for name, shape in each.items()}
        return weights.weights_hash(weights.Lazy(shapes, self._read), "float32")

    def _read(self, name: str) -> np.ndarray:
        return self._places[name][name]

    def _stage(self, stage: int) -> weights.Lazy[np.ndarray]:
        return self._model(stage) if self.is_model else self._factors(stage)

    def _factors(self, stage: int) -> weights.Lazy[np.ndarray]:
        found = adapters.imported(self._manifest, stage, weights.Lazy(_factor_shapes(self._manifest), self._read))
        if found is None:
            raise WeightsError("a factor that the run does not train is not as it was drawn")
        return found

    def _model(self, stage: int) -> weights.Lazy[np.ndarray]:
        shapes, exported = stage_shapes(self._manifest, stage), parse_model(self._manifest.model).layout.exported

        def assembled(name: str) -> np.ndarray:
            whole = np.empty(shapes[name], np.float32)
            for one in pieces(name, shapes[name]):
                whole[one.place] = self._read(exported(one.name))
            return whole

        return weights.Lazy(shapes, assembled)


def _factor_shapes(manifest: Manifest) -> dict[str, Shape]:
    return dict(sorted(adapters.exported_shapes(manifest).items()))


def _model_shapes(manifest: Manifest) -> dict[str, Shape]:
    """Of a whole model's tensors, by their names there, in the order of the files."""
    return dict(sorted((name, one.shape) for _, _, name, one in _parts(manifest)))


def _parts(manifest: Manifest) -> list[tuple[int, str, str, Piece]]:
    """(stage, its parameter, the exported tensor, which piece that is) of all."""
    exported = parse_model(manifest.model).layout.exported
    return [
        (stage, name, exported(one.name), one)
        for stage in range(len(manifest.stages))
        for name, shape in weight_shapes(manifest, stage).items()
        for one in pieces(name, shape)
    ]


def _start(piece: Piece, shape: Shape) -> int:
    """The number of the piece's first value in its parameter, where it is one contiguous part."""
    at = 0
    for size, place in zip(shape, (*piece.place, *[0] * (len(shape) - len(piece.place))), strict=True):
        at = at * size + (place if isinstance(place, int) else place.start)
    return at
