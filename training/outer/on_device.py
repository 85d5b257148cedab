"""The outer step and the payloads' inner products on a torch device: the same arithmetic on blocks that are decoded
there. Imported only where such a device is asked for, since who audits has no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from dlx.training.codecs.base import Decoder, count
from dlx.training.models.weights import Shapes
from dlx.training.outer.arithmetic import add_part, descend
from dlx.training.recipe.recipe import Outer


def step(
    piece: Sequence[np.ndarray],
    decoders: Sequence[Decoder],
    parts: Sequence[float],
    outer: Outer,
    start: int,
    device: str,
) -> None:
    """The outer step of a piece of a tensor: values (and moments), flat float32, from number `start` on, changed in
    place. Raises CodecError."""
    tensors = [torch.from_numpy(one).to(device) for one in piece]
    mean, gradient = torch.zeros_like(tensors[0]), torch.empty_like(tensors[0])
    for decoder, part in zip(decoders, parts, strict=True):
        for low in range(0, len(gradient), decoder.block):
            decoder.into(gradient[low : low + decoder.block], start + low)
        add_part(mean, gradient, part)
    descend(tensors[0], tensors[1] if len(tensors) > 1 else None, mean, outer)
    for one, tensor in zip(piece, tensors, strict=True):
        torch.from_numpy(one).copy_(tensor)


class Decodable(Protocol):
    def decoder(self, name: str) -> Decoder: ...


def gram(payloads: Sequence[Decodable], shapes: Shapes, device: str) -> np.ndarray:
    """Inner products, float64 [n, n]. Raises CodecError."""
    found = torch.zeros(len(payloads), len(payloads), dtype=torch.float64, device=device)
    for name in sorted(shapes) if payloads else ():
        decoders, length = [one.decoder(name) for one in payloads], count(shapes[name])
        rows = torch.empty(len(payloads), min(decoders[0].block, length), device=device)
        for start in range(0, length, decoders[0].block):
            block = rows[:, : length - start]
            for decoder, row in zip(decoders, block, strict=True):
                decoder.into(row, start)
            wide = block.double()
            found += wide @ wide.T
    return found.cpu().numpy()
