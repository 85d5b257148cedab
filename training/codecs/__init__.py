"""Codecs: how a pseudo-gradient becomes a payload's bytes and back.

`decode` gives the same bits on every machine and is the only thing the outer step depends on; `encode` may round as it
likes, because error feedback keeps whatever `decode` does not give back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from training.adaptive import ladders
from training.codecs.base import Codec, CodecError
from training.codecs.int4 import Int4
from training.codecs.lowrank import LowRank
from training.codecs.topk import TopK
from training.weights import Shapes

if TYPE_CHECKING:
    from training.draft import Draft
    from training.manifest import Manifest

__all__ = ["Codec", "CodecError", "codec", "payload_sizes"]

_CODECS: dict[str, Codec] = {one.info.name: one for one in (Int4(), LowRank(), TopK())}


def codec(name: str) -> Codec:
    """The codec of that name. Raises CodecError when there is none."""
    if name not in _CODECS:
        raise CodecError(f"unknown codec {name!r}: expected one of {', '.join(sorted(_CODECS))}")
    return _CODECS[name]


def payload_sizes(manifest: Manifest | Draft, shapes: Shapes) -> dict[int, int]:
    """rank -> bytes of the largest payload of a stage's tensors, for every rank that a plan of the run can have."""
    chosen, plan = codec(manifest.codec.name), manifest.plan
    ranks = ladders(manifest.codec.name, plan, manifest.adaptive).ranks
    return {rank: chosen.size(shapes, replace(plan, rank=rank)) for rank in ranks}
