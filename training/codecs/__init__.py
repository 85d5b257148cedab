"""Codecs: how a pseudo-gradient becomes a payload's bytes and back.

`decode` gives the same bits on every machine and is the only thing the outer step depends on. So do the encoders of
int4, ternary and topk, which an audit asks for (`fault`); that of lowrank rests on a library's products of matrices.
Error feedback keeps whatever `decode` does not give back.
"""

from __future__ import annotations

from msgspec.structs import replace

from dlx.training.codecs.base import Codec, CodecError
from dlx.training.codecs.int4 import Int4
from dlx.training.codecs.lowrank import LowRank
from dlx.training.codecs.ternary import Ternary
from dlx.training.codecs.topk import TopK
from dlx.training.models.weights import Shapes
from dlx.training.recipe.ladders import ladders
from dlx.training.recipe.recipe import Recipe

__all__ = ["Codec", "CodecError", "codec", "payload_sizes"]

_CODECS: dict[str, Codec] = {one.info.name: one for one in (Int4(), LowRank(), Ternary(), TopK())}


def codec(name: str, device: str | None = None) -> Codec:
    """The codec of that name, in numpy or on a torch device. Raises CodecError when there is none.

    Examples:
        A tensor's values as four bits each, with a scale for each 128 of them, and back:

        >>> import torch
        >>> from dlx.training.recipe.recipe import Plan
        >>> int4, plan = codec("int4"), Plan(level=4)
        >>> gradient = {"layer.weight": torch.linspace(-1, 1, 256).reshape(2, 128)}
        >>> payload = int4.encode(gradient, plan)
        >>> len(payload)
        132
        >>> decoded = int4.decode(payload, {"layer.weight": (2, 128)}, plan)
        >>> float((decoded["layer.weight"] - gradient["layer.weight"]).abs().max()) < 0.08
        True
        >>> codec("gzip")
        Traceback (most recent call last):
        ...
        dlx.training.codecs.base.CodecError: unknown codec 'gzip': expected one of ...
    """
    if name not in _CODECS:
        raise CodecError(f"unknown codec {name!r}: expected one of {', '.join(sorted(_CODECS))}")
    if device is None:
        return _CODECS[name]
    from dlx.training.codecs.on_device import codec_on

    return codec_on(name, device)


def payload_sizes(recipe: Recipe, shapes: Shapes) -> dict[int, int]:
    """rank -> bytes of the largest payload of a stage's tensors, for every rank that a plan of the run can have."""
    chosen, plan = codec(recipe.codec.name), recipe.plan
    ranks = ladders(recipe.codec.name, plan, recipe.adaptive).ranks
    return {rank: chosen.size(shapes, replace(plan, rank=rank)) for rank in ranks}
