"""The weights of an existing model as a run's start or an adapter's base: a Hugging Face folder's safetensors, of
unknown origin.

No pickle is read. Names and shapes are compared with the model's before any tensor is read.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dlx.training.models.shapes import frozen_shapes, pieces, stage_shapes
from dlx.training.recipe.huggingface import first_line, read_config, read_json, refuse_pointer
from dlx.training.recipe.recipe import Recipe, parse_model
from dlx.training.recipe.strict import ManifestError

if TYPE_CHECKING:
    from torch import Tensor

MAX_INDEX_BYTES = 64 << 20
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Checkpoint:
    """A folder's weights, in the recipe's stages. Raises ManifestError for any that do not fit."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self._folder = folder
        shapes = frozen_shapes if recipe.adapter else stage_shapes
        self._stages = [shapes(recipe, stage) for stage in range(len(recipe.stages))]
        self._layout = parse_model(recipe.model).layout
        self._tokens, self._head = f"{self._layout.tokens}.weight", f"{self._layout.head}.weight"
        self._tied = read_config(self._folder, untie=False)["tie_word_embeddings"]
        self.unties = self._tied and not parse_model(recipe.model).tie_word_embeddings  # the head becomes a copy
        self._places = self._find(
            {one.name: one.shape for stage in self._stages for name in stage for one in pieces(name, stage[name])}
        )
        if self._tied and not self._read(self._head).equal(self._read(self._tokens)):
            place = self._folder / "config.json"
            raise ManifestError(f"{place}: tie_word_embeddings is true, but {self._head} differs from the embedding")

    def weights(self, stage: int) -> "dict[str, Tensor]":
        """The stage's float32 tensors by the unsplit model's names."""
        return {name: self._assembled(name, shape) for name, shape in self._stages[stage].items()}

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
        if found := indexed(self._folder):
            return found
        whole = self._folder / _WEIGHTS
        if whole.is_file():
            return [whole]
        pickles = [*self._folder.glob("*.bin"), *self._folder.glob("*.pt"), *self._folder.glob("*.pth")]
        hint = "; pickles can run code and are not read: convert them to safetensors" if pickles else ""
        raise ManifestError(f"{self._folder}: holds neither {_WEIGHTS} nor {_INDEX}{hint}")

    def _our_name(self, theirs: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """None for a buffer that is no weight."""
        if theirs.endswith(self._layout.not_weights):
            return None
        for old, new in self._layout.renamed:
            if theirs.startswith(old):
                theirs = new + theirs[len(old) :]
        full = f"{self._layout.base}.{theirs}"
        return full if full in shapes else theirs

    def _assembled(self, name: str, shape: tuple[int, ...]) -> "Tensor":
        import torch

        whole = torch.empty(shape)
        for one in pieces(name, shape):
            whole[one.place] = self._read(one.name)
        return whole

    def _read(self, name: str) -> "Tensor":
        import torch
        from safetensors import SafetensorError, safe_open

        path, theirs = self._places[name]
        try:
            with safe_open(path, "pt") as file:
                tensor = file.get_tensor(theirs).to(torch.float32)
        except (OSError, SafetensorError) as error:
            raise ManifestError(f"{path}: {theirs} cannot be read ({first_line(error)})") from None
        if not torch.isfinite(tensor).all():
            raise ManifestError(f"{path}: {theirs}: holds a value that is not finite in float32")
        return tensor


def indexed(folder: Path) -> list[Path]:
    """The files of weights that a folder's index names; none where it has no index. Raises ManifestError also where
    there are weights beside them, which may be older or newer."""
    index = folder / _INDEX
    if not index.is_file():
        return []
    names = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ManifestError(f"{index}: weight_map: expected a table of tensors and files")
    files = {str(name) for name in names.values()}
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ManifestError(f"{index}: weight_map: expected names of safetensors files beside it")
    if (folder / _WEIGHTS).is_file() and _WEIGHTS not in files:
        raise ManifestError(
            f"{folder}: holds {_WEIGHTS}, and {_INDEX}, which names other files: which of them are the "
            "model's weights is not clear: remove the older one"
        )
    return [folder / name for name in sorted(files)]


_KINDS = ("F32", "F16", "BF16", "F64")


def _listing(path: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """(name, shape, dtype) of a file's tensors; reads its header only, which the library bounds."""
    from safetensors import SafetensorError, safe_open

    refuse_pointer(path)
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return [(name, tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()]
    except (OSError, SafetensorError) as error:
        raise ManifestError(f"{path}: cannot be read as safetensors ({first_line(error)})") from None
