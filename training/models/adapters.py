"""Adapters: low-rank factors A and B that are trained beside chosen matrices W [outputs, inputs] of a frozen base.

A layer computes W x + (alpha / rank) B (A x). B starts from zeros, so version 0 is the base. Names, factors and scaling
are PEFT's (`LoraConfig`). A is drawn by exact arithmetic. Where B alone is trained, nobody has to be given it, and the
mean of several replicas' B is the mean of their products. Needs no torch, as who verifies a folder may have none.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dlx.training.models import weights
from dlx.training.models.shapes import Shape, factor_shapes, frozen_shapes, stage_shapes, weight_shapes
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Recipe, parse_model

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # of a folder that PEFT reads
_PREFIX = "base_model.model."  # that PEFT puts before the unsplit model's names
_VALUES = 1 << 18  # of a matrix that are merged at a time: they stay in the cache


def initial(recipe: Recipe, stage: int) -> weights.Lazy[np.ndarray]:
    """The stage's trained factors (float32) as a run begins with them."""
    return _drawn(recipe, stage_shapes(recipe, stage))


def untrained(recipe: Recipe, stage: int) -> weights.Lazy[np.ndarray]:
    """The stage's factors (float32) that no step changes, the same on every machine; none without an adapter."""
    if recipe.adapter is None:
        return _drawn(recipe, {})
    trained = stage_shapes(recipe, stage)
    left = {name: shape for name, shape in factor_shapes(recipe, stage).items() if name not in trained}
    return _drawn(recipe, left)


def base_file(manifest: Manifest, stage: int, blobs: Path) -> weights.Stored | None:
    """The stage's weights of an adapter's base, in the folder `blobs`; None without an adapter. Raises as Stored."""
    if manifest.adapter is None:
        return None
    named = manifest.base[stage].sha256
    return weights.Stored(blobs / named, frozen_shapes(manifest, stage), sha256=bytes.fromhex(named))


def merged(manifest: Manifest, stage: int, trained: Mapping[str, np.ndarray], blobs: Path) -> weights.Lazy[np.ndarray]:
    """The stage's part of the whole model, float32: its base, whose file is in the folder `blobs`, and the product of
    the factors in the places that these are of. Raises as `base_file`.

    Products are added up one after the other, each rounded to float32: whoever merges the same comes to the same bits.
    """
    adapter, layout = manifest.adapter, parse_model(manifest.model).layout
    base, still = base_file(manifest, stage, blobs), untrained(manifest, stage)
    assert adapter is not None and base is not None
    base.verify()  # its tensors are asked for in any order

    def whole(name: str) -> np.ndarray:
        path, values = name.removesuffix(".weight"), base[name]
        if (b := f"{path}.lora_B.weight") not in trained:
            return values
        a = f"{path}.lora_A.weight"
        factors = trained[a] if a in trained else still[a], trained[b]
        scale = np.float32(adapter.alpha / adapter.rank)
        if layout.transposed:
            return np.ascontiguousarray(_with_product(np.ascontiguousarray(values.T), *factors, scale).T)
        return _with_product(values, *factors, scale)

    return weights.Lazy(weight_shapes(manifest, stage), whole)


def exported_shapes(manifest: Manifest) -> dict[str, Shape]:
    """Of a folder's file of factors, by their names there."""
    stages = range(len(manifest.stages))
    return {f"{_PREFIX}{name}": shape for stage in stages for name, shape in factor_shapes(manifest, stage).items()}


def exported(manifest: Manifest, stage: int, trained: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A stage's part of that file."""
    return {
        f"{_PREFIX}{name}": values for each in (trained, untrained(manifest, stage)) for name, values in each.items()
    }


def imported(manifest: Manifest, stage: int, file: Mapping[str, np.ndarray]) -> weights.Lazy[np.ndarray] | None:
    """The stage's trained factors in such a file; None where those that are not trained are others than the run's."""
    still = untrained(manifest, stage)
    if not all(np.array_equal(file[f"{_PREFIX}{name}"], still[name]) for name in still):
        return None
    return weights.Lazy(stage_shapes(manifest, stage), lambda name: file[f"{_PREFIX}{name}"])


def described(manifest: Manifest) -> bytes:
    """PEFT's adapter_config.json, the same whoever writes it: all keys that decide what is computed."""
    adapter, layout = manifest.adapter, parse_model(manifest.model).layout
    assert adapter is not None
    table: dict[str, Any] = {
        "base_model_name_or_path": adapter.base or None,
        "bias": "none",
        "fan_in_fan_out": layout.transposed,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": adapter.rank,
        "target_modules": sorted(layout.linear if adapter.targets == "all-linear" else adapter.targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    return (json.dumps(table, indent=2, sort_keys=True) + "\n").encode()


def _drawn(recipe: Recipe, shapes: Mapping[str, Shape]) -> weights.Lazy[np.ndarray]:
    return weights.Lazy(shapes, lambda name: _first(name, shapes[name], recipe.data.seed))


def _first(name: str, shape: Shape, seed: int) -> np.ndarray:
    """B is zero; A is uniform between plus and minus 1 / sqrt(inputs), as PEFT draws it, in steps of 2^-23 of that."""
    if name.endswith(".lora_B.weight"):
        return np.zeros(shape, np.float32)
    digest = hashlib.shake_256(f"{seed}:{name}".encode()).digest(4 * math.prod(shape))
    whole = np.frombuffer(digest, "<i4") >> 8  # 24 bits, with a sign: exact in float32
    return (whole.astype(np.float32) * np.float32(2.0**-23 / math.sqrt(shape[1]))).reshape(shape)


def _with_product(whole: np.ndarray, first: np.ndarray, second: np.ndarray, scale: np.float32) -> np.ndarray:
    """`whole` + scale x second @ first, float32."""
    found, rows = np.empty_like(whole), max(1, _VALUES // whole.shape[1])
    for low in range(0, len(whole), rows):
        part = second[low : low + rows]
        total = np.zeros((len(part), whole.shape[1]), np.float32)
        for one in range(part.shape[1]):
            total += part[:, one, None] * first[one]
        found[low : low + rows] = whole[low : low + rows] + total * scale
    return found
