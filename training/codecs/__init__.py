"""Codecs: how a pseudo-gradient becomes a payload's bytes and back.

`decode` gives the same bits on every machine and is the only thing the outer step depends on; `encode` may round as it
likes, because error feedback keeps whatever `decode` does not give back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from training.manifest import Plan
from training.weights import Shapes


class CodecError(ValueError):
    """A payload that `encode` would never make, or tensors that have no payload."""


@dataclass(frozen=True)
class CodecInfo:
    """What the training rule has to know about a codec."""

    name: str
    decay: float  # how much of the residual the next pseudo-gradient takes up


class Codec(Protocol):
    @property
    def info(self) -> CodecInfo: ...

    def encode(self, tensors: Mapping[str, Tensor], plan: Plan) -> bytes:
        """The payload of finite float32 tensors of any shape. Raises CodecError."""

    def decode(self, data: Any, shapes: Shapes, plan: Plan) -> dict[str, Tensor]:
        """Finite float32 tensors of `shapes` from a payload of unknown origin (any buffer). Raises CodecError."""

    def max_size(self, shapes: Shapes, plan: Plan) -> int:
        """The most bytes a payload for `shapes` can have."""


def codec(name: str) -> Codec:
    """The codec of that name. Raises CodecError when there is none."""
    from training.codecs.int4 import Int4  # which needs the names above

    codecs: dict[str, Codec] = {"int4": Int4()}
    if name not in codecs:
        raise CodecError(f"unknown codec {name!r}: expected one of {', '.join(sorted(codecs))}")
    return codecs[name]
