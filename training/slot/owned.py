"""What each rank of a shared stage does at a segment's and at a round's end with the tensors that it owns.

A tensor comes whole to its owner, which writes it and its part of the payload at their places in files that rank 0 has
made: so the bytes are those of one process, whatever the number of ranks. Ranks of other machines own nothing; their
rows go to the owners, all of whom have the files.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
import numpy as np
import torch
from msgspec import Struct

from dlx.ground.blobs import BlobError, Damaged
from dlx.training.codecs import CodecError, codec
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.owners import owners, turns
from dlx.training.inner.ranks.share import Share
from dlx.training.models.weights import Shapes, Stored, WeightsError, Zeros, array, layout
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.change import Change, Difference, Scratch

_PIECE = 1 << 26  # bytes written at a time


class Made(Struct, frozen=True):
    """A payload of the slot's own."""

    path: str
    plan: Plan


class Encoding(Struct, frozen=True):
    """What a round's change is made of, files that rank 0 has verified, and where it goes."""

    codec: str
    plan: Plan
    version: str
    own: Made | None  # in the start
    alpha: float
    before: str | None  # the last change, which `newest` encodes; None: there is none
    newest: Made | None  # the last payload
    folded: tuple[Made, ...]
    payload: str
    change: str


class Work(Struct, frozen=True):
    """Write the optimiser state to this file, and the weights to another, or with an encoding the change."""

    optimiser: str
    weights: str | None = None
    encoding: Encoding | None = None


class Trouble(Struct, frozen=True):
    """Why some rank could not, and so all have stopped."""

    kind: Literal["codec", "damaged", "file"]
    reason: str
    blob: bytes = b""

    @property
    def error(self) -> Exception:
        match self.kind:
            case "codec":
                return CodecError(self.reason)
            case "damaged":
                return Damaged(self.blob, self.reason)
            case "file":
                return OSError(self.reason)


def take_part(group: Group, share: Share, work: bytes, device: str | None) -> None:
    """Another rank's part (see `ranks.loop.serve`). `device`: where its codec computes; None: in main memory."""
    fill(group, share, msgspec.msgpack.decode(work, type=Work), device)


def fill(
    group: Group,
    share: Share,
    work: Work,
    device: str | None,
    written: Callable[[Sequence[str]], None] = lambda names: None,
) -> Trouble | None:
    """Every rank's part, a collective: None once all is done. `written` is told the names as they are in the files."""
    with ExitStack() as stack:
        mine, trouble = _Owned(share, work, device, stack), b""
        for shapes, put in ((share.optimiser_shapes, mine.put_moment), (share.shapes, mine.put_weight)):
            owner = owners(shapes, group.beside)
            for names in turns(owner):
                tensors = {name: share.collect(name, owner[name]) for name in names}
                try:
                    for name, tensor in tensors.items():
                        if tensor is not None:
                            put(name, array(tensor))
                except (BlobError, CodecError, OSError, WeightsError) as error:
                    trouble = msgspec.msgpack.encode(_trouble(error))
                if found := group.first(trouble):
                    return msgspec.msgpack.decode(found, type=Trouble)
                written(names)
    return None


class _Owned:
    """Puts what a rank owns where it belongs; opens what it takes when it is needed, until the end of `stack`."""

    def __init__(self, share: Share, work: Work, device: str | None, stack: ExitStack) -> None:
        self._shapes, self._optimiser_shapes = share.shapes, share.optimiser_shapes
        self._work, self._device, self._stack = work, device, stack

    def put_moment(self, name: str, values: np.ndarray) -> None:
        self._moments.put(name, values)

    def put_weight(self, name: str, values: np.ndarray) -> None:
        if self._encoder is None:
            self._weights.put(name, values)
        else:
            self._encoder.encode(name, values)

    @cached_property
    def _moments(self) -> "_File":
        return _File(Path(self._work.optimiser), layout(self._optimiser_shapes).starts, self._stack)

    @cached_property
    def _weights(self) -> "_File":
        assert self._work.weights is not None
        return _File(Path(self._work.weights), layout(self._shapes).starts, self._stack)

    @cached_property
    def _encoder(self) -> "_Encoder | None":
        made_of = self._work.encoding
        return None if made_of is None else _Encoder(made_of, self._shapes, self._device, self._stack)


class _Encoder:
    def __init__(self, made_of: Encoding, shapes: Shapes, device: str | None, stack: ExitStack) -> None:
        chosen = codec(made_of.codec, device)

        def opened(made: Made) -> Payload:
            return Payload(chosen, shapes, Path(made.path), made.plan)

        newest = None if made_of.newest is None else opened(made_of.newest)
        before = Zeros(shapes) if made_of.before is None else Stored(Path(made_of.before), shapes)
        self._change = Change(
            chosen,
            shapes,
            made_of.plan,
            Difference(
                Stored(Path(made_of.version), shapes),
                None if made_of.own is None else opened(made_of.own),
                made_of.alpha,
            ),
            Difference(before, newest),
            [opened(one) for one in made_of.folded],
            newest,
            torch.get_num_threads(),
        )
        parts = chosen.parts(shapes, made_of.plan)
        self._sizes = {name: where.stop - where.start for name, where in parts.items()}
        self._payload = _File(Path(made_of.payload), {name: where.start for name, where in parts.items()}, stack)
        self._file, self._scratch = _File(Path(made_of.change), layout(shapes).starts, stack), Scratch(shapes)

    def encode(self, name: str, end: np.ndarray) -> None:
        part, change = np.empty(self._sizes[name], np.uint8), self._scratch.of(name)
        self._change.encode(name, end, part, change)
        self._payload.put(name, part)
        self._file.put(name, change)


class _File:
    """One that is there in full length, to be filled at these places."""

    def __init__(self, path: Path, starts: Mapping[str, int], stack: ExitStack) -> None:
        self._file: BinaryIO = stack.enter_context(open(path, "r+b", buffering=0))  # noqa: SIM115  the stack closes it
        self._starts = starts

    def put(self, name: str, values: np.ndarray) -> None:
        """Raises OSError."""
        at, data = self._starts[name], values.reshape(-1).view(np.uint8).data
        while len(data):
            count = os.pwrite(self._file.fileno(), data[:_PIECE], at)
            at, data = at + count, data[count:]


def _trouble(error: Exception) -> Trouble:
    match error:
        case Damaged():
            return Trouble("damaged", error.reason, error.blob)
        case CodecError():
            return Trouble("codec", str(error))
        case _:
            return Trouble("file", str(error))
