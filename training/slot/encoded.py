"""A round's change, made and encoded by a tensor's owner: where the files are, or on another machine of the site.

Rank 0 sends an owner on another machine what the change is made of, and gets change and payload back. That is about 8
bytes of a value there and 4.5 back, for which the machine's own network has to be faster than the codec.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from dlx.ground import durable
from dlx.training.codecs import codec
from dlx.training.codecs.base import combine, count
from dlx.training.models.weights import Shapes, layout
from dlx.training.outer.inner_products import Plain
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.change import Change, Difference, Start
from dlx.training.slot.orders import Encoding
from dlx.training.slot.starting import opened

_PIECE = 1 << 26  # bytes written at a time


class Ingredients:
    """Room for what a tensor's change is made of, and for what is made: flat arrays."""

    def __init__(self, made_of: Encoding, shapes: Shapes) -> None:
        chosen = codec(made_of.sources.codec)
        self._shapes, self._folded, newest = shapes, len(made_of.folded), made_of.sources.newest
        self._parts = chosen.parts(shapes, made_of.plan)
        self._old = {} if newest is None else chosen.parts(shapes, newest.plan)

    def empty(self, name: str) -> list[np.ndarray]:
        """Start, residual, each payload that is folded back, and the last one's part if there is one."""
        values = [np.zeros(count(self._shapes[name]), np.float32) for _ in range(2 + self._folded)]
        return values + [np.zeros(_length(one), np.uint8) for one in [self._old.get(name)] if one is not None]

    def made(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The part of the payload, and the change."""
        part = np.zeros(_length(self._parts[name]), np.uint8)
        return part, np.zeros(count(self._shapes[name]), np.float32)


class Encoder:
    """Where the files are. Methods raise CodecError, OSError, and what opening a file may raise."""

    def __init__(self, made_of: Encoding, shapes: Shapes, device: str | None, stack: ExitStack) -> None:
        chosen = codec(made_of.sources.codec, device)
        self._start = opened(made_of.sources, shapes, device)
        self._newest = self._start.residual.payload
        self._folded = [Payload(chosen, shapes, Path(one.path), one.plan) for one in made_of.folded]
        self._change = Change(
            chosen,
            shapes,
            made_of.plan,
            self._start,
            self._folded,
            self._newest,
            torch.get_num_threads(),
        )
        parts = chosen.parts(shapes, made_of.plan)
        self._sizes = {name: _length(where) for name, where in parts.items()}
        self._payload = Placed(Path(made_of.payload), {name: where.start for name, where in parts.items()}, stack)
        self._file = Placed(Path(made_of.change), layout(shapes).starts, stack)

    def encode(self, name: str, end: np.ndarray) -> None:
        part = np.empty(self._sizes[name], np.uint8)
        for start, values in self._change.pieces(name, end, part):
            self._file.put(name, values, start)
        self._payload.put(name, part)

    def put(self, name: str, part: np.ndarray, change: np.ndarray) -> None:
        self._payload.put(name, part)
        self._file.put(name, change)

    def read_into(self, ingredients: Sequence[np.ndarray], name: str) -> None:
        """For an owner on another machine (see `Ingredients.empty`)."""
        start, residual, *others = ingredients
        self._start.read_into(start, name)
        self._start.residual.read_into(residual, name)
        for payload, values in zip(self._folded, others, strict=False):
            combine(np.add, values, payload.decoder(name))
        if self._newest is not None:
            others[-1][...] = self._newest.part(name)


class Afar:
    """On another machine than the files."""

    def __init__(self, made_of: Encoding, shapes: Shapes, device: str | None) -> None:
        self._start, self._residual = _Held(), _Held()
        self._folded: list[dict[str, np.ndarray]] = [{} for _ in made_of.folded]
        newest = made_of.sources.newest
        self._newest = None if newest is None else _Last(newest.plan)
        self._change = Change(
            codec(made_of.sources.codec, device),
            shapes,
            made_of.plan,
            Start(Difference(self._start, None), Difference(self._residual, None)),  # the start has its part in it
            [Plain(one) for one in self._folded],
            self._newest,
            torch.get_num_threads(),
        )

    def encode(
        self, name: str, end: np.ndarray, ingredients: Sequence[np.ndarray], part: np.ndarray, change: np.ndarray
    ) -> None:
        """Raises CodecError."""
        self._start.values, self._residual.values, *others = ingredients
        for held, values in zip(self._folded, others, strict=False):
            held[name] = values
        if self._newest is not None:
            self._newest.data = others[-1]
        self._change.encode(name, end, part, change)
        for held in self._folded:
            held.clear()


class Placed:
    """A file that is there in full length, to be filled at these places."""

    def __init__(self, path: Path, starts: Mapping[str, int], stack: ExitStack) -> None:
        self._file: BinaryIO = stack.enter_context(open(path, "r+b", buffering=0))  # noqa: SIM115  the stack closes it
        self._starts = starts

    def put(self, name: str, values: np.ndarray, start: int = 0) -> None:
        """The tensor's values from number `start` on. Raises OSError."""
        at, data = self._starts[name] + values.itemsize * start, values.reshape(-1).view(np.uint8).data
        while len(data):
            with durable.naming(Path(self._file.name)):
                count = os.pwrite(self._file.fileno(), data[:_PIECE], at)
            at, data = at + count, data[count:]


class _Held:
    """A `Source` of the tensor at work."""

    values = np.empty(0, np.float32)

    def read_into(self, out: np.ndarray, name: str, start: int = 0) -> None:
        out[...] = self.values[start : start + len(out)]


class _Last:
    """The last payload, as far as the tensor at work has one."""

    data = np.empty(0, np.uint8)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def part(self, name: str) -> np.ndarray:
        return self.data


def _length(where: slice) -> int:
    return where.stop - where.start
