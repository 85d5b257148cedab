"""Codecs: how a pseudo-gradient becomes a payload's bytes and back.

`decode` gives the same bits on every machine and is the only thing the outer step depends on; `encode` may round as it
likes, because error feedback keeps whatever `decode` does not give back.
"""

from training.codecs.base import Codec, CodecError, CodecInfo
from training.codecs.int4 import Int4
from training.codecs.lowrank import LowRank
from training.codecs.topk import TopK

__all__ = ["Codec", "CodecError", "CodecInfo", "codec"]

_CODECS: dict[str, Codec] = {one.info.name: one for one in (Int4(), LowRank(), TopK())}


def codec(name: str) -> Codec:
    """The codec of that name. Raises CodecError when there is none."""
    if name not in _CODECS:
        raise CodecError(f"unknown codec {name!r}: expected one of {', '.join(sorted(_CODECS))}")
    return _CODECS[name]
