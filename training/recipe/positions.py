"""Rotary positions that are scaled to longer contexts than a model was first trained on.

The keys are those of `rope_scaling` in a config.json. What a token's position comes to is the same in a sample of any
length: "dynamic", which follows the length, is not here. Needs neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Problem = tuple[str, str, object]  # key, what is expected, what is there

Factor = Annotated[float, Meta(gt=0, le=1e6)]
Positions = Annotated[int, Meta(ge=1, le=1 << 20)]
_Several = Annotated[int, Meta(ge=2, le=1 << 20)]
_Factors = Annotated[list[Factor], Meta(min_length=1, max_length=512)]


class _Scaling(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="rope_type"):
    pass


class Linear(_Scaling, frozen=True, kw_only=True, tag="linear"):
    factor: Factor


class Llama3(_Scaling, frozen=True, kw_only=True, tag="llama3"):
    """Long wavelengths are stretched."""

    factor: Factor
    low_freq_factor: Factor
    high_freq_factor: Factor
    original_max_position_embeddings: Positions


class Yarn(_Scaling, frozen=True, kw_only=True, tag="yarn"):
    factor: Factor
    original_max_position_embeddings: Positions
    attention_factor: Factor | None = None  # None: by `factor`
    beta_fast: Factor = 32.0
    beta_slow: Factor = 1.0


class LongRope(_Scaling, frozen=True, kw_only=True, tag="longrope"):
    """Samples are no longer than the first context, where the factors are the short ones whatever the length."""

    short_factor: _Factors  # of each pair of a head's dimensions that is rotated
    long_factor: _Factors
    original_max_position_embeddings: _Several


AnyLength = Linear | Llama3 | Yarn
Scaling = AnyLength | LongRope

_BESIDE = ("rope_theta", "partial_rotary_factor", "type")  # of transformers' `rope_parameters`: not of the scaling


def written(scaling: Scaling | None) -> dict[str, Any]:
    """As transformers has it; nothing for positions that are not scaled."""
    return {key: value for key, value in msgspec.to_builtins(scaling or {}).items() if value is not None}


def read(rope: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling`, where there is any, of transformers' `rope_parameters`, of unknown origin."""
    if rope["rope_type"] == "default":
        return {}
    return {"rope_scaling": {key: one for key, one in rope.items() if one is not None and key not in _BESIDE}}


def stated(rope: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters`, maybe one for each type of layer, without what computes the same when it is left out."""
    if "rope_type" not in rope:
        return {kind: stated(one) if isinstance(one, dict) else one for kind, one in rope.items() if one is not None}
    kept = ("rope_type", *_BESIDE) if rope["rope_type"] == "default" else rope
    return {key: rope[key] for key in kept if key != "type" and rope.get(key) not in (None, _LEFT_OUT.get(key))}


_LEFT_OUT = {"partial_rotary_factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}


def problems(scaling: Scaling | None, theta: float, rotated: int) -> Iterator[Problem]:
    """What single keys cannot say; `rotated`: how many of a head's dimensions have positions."""
    match scaling:
        case Llama3(low_freq_factor=low, high_freq_factor=high) if high <= low:
            yield "rope_scaling.high_freq_factor", f"expected more than low_freq_factor ({low:g})", high
        case Yarn(beta_fast=fast, beta_slow=slow) if fast <= slow:
            yield "rope_scaling.beta_fast", f"expected more than beta_slow ({slow:g})", fast
        case Yarn() if theta == 1:
            yield "rope_theta", "expected more than 1, as positions are scaled by yarn", theta
        case LongRope():
            for key in ("short_factor", "long_factor"):
                if len(found := getattr(scaling, key)) != rotated // 2:
                    expected = f"expected {rotated // 2} factors, one for each pair of dimensions"
                    yield f"rope_scaling.{key}", expected, len(found)
