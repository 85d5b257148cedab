"""The slot of a stage that ranks share, on rank 0, which has the pipes, the data and `slot.json`.

Where all ranks are on one machine each reads its own rows of a round's start. At a segment's and a round's end each
writes or encodes the tensors that it owns (see `owned`), into files that are made here. A file's sha256 is one
sequence, so it is taken here too, as far as the file is whole while the owners go on.
"""

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

from dlx.ground import durable, hash_memory
from dlx.ground.streamed import Stream
from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import RankedLoop
from dlx.training.inner.ranks.share import Share
from dlx.training.models.weights import Shapes, Stored, layout, weights_hash
from dlx.training.slot.change import Start, filled
from dlx.training.slot.files import Own
from dlx.training.slot.orders import Encoding, Fill, Made, Sources, TakeUp, Trouble
from dlx.training.slot.owned import fill
from dlx.training.slot.rounds import RoundInputs
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.slot import Slot
from dlx.training.slot.starting import take_up

_PIECE = 1 << 20  # bytes hashed at a time


def take_part(group: Group, share: Share, work: bytes, device: str | None) -> None:
    """Another rank's part (see `ranks.loop.serve`). `device`: where its codec computes; None: in main memory."""
    match order := msgspec.msgpack.decode(work, type=TakeUp | Fill):
        case TakeUp():
            take_up(group, share, order)
        case Fill():
            fill(group, share, order, device)


class RankedSlot(Slot):
    """Whatever fails at another rank raises what it would raise here."""

    _loop: RankedLoop

    def _load(self, start: Start, base_hash: bytes | None) -> bytes:
        if not self._loop.is_on_one_machine:
            return super()._load(start, base_hash)  # rank 0 reads it for all
        sources, shapes = self._sources(start), self._loop.shapes
        version = Path(sources.version)
        Stored(version, shapes, sha256=bytes.fromhex(version.name)).verify()
        work = TakeUp(sources)
        with ThreadPoolExecutor(1, "start") as threads:
            hashed = None if base_hash else threads.submit(weights_hash, filled(start, shapes))
            if trouble := self._loop.do(msgspec.msgpack.encode(work), partial(take_up, order=work)):
                raise trouble.error
            return base_hash or hashed.result()  # type: ignore[union-attr]

    def _end(
        self,
        inputs: RoundInputs,
        start: Start,
        folded: Sequence[Own],
        folder: Path,
        payload: Stream,
    ) -> SegmentState:
        shapes = self._loop.shapes
        with ExitStack() as stack:
            file, draft = stack.enter_context(durable.draft(folder))
            file.truncate(self._codec.size(shapes, inputs.plan))
            optimiser, change = (_Growing(one, folder, stack) for one in (self._loop.optimiser_shapes, shapes))
            encoding = Encoding(
                sources=self._sources(start),
                plan=inputs.plan,
                folded=tuple(map(self._made, folded)),
                payload=str(draft),
                change=str(change.path),
            )
            ended = self._filled(Fill(str(optimiser.path), encoding=encoding), optimiser, change)
            with open(draft, "rb") as reader:
                payload.feed(mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ))
            return ended

    def _write_state(self, folder: Path) -> SegmentState:
        shapes = self._loop.optimiser_shapes, self._loop.shapes
        with ExitStack() as stack:
            optimiser, weights = (_Growing(one, folder, stack) for one in shapes)
            return self._filled(Fill(str(optimiser.path), str(weights.path)), optimiser, weights)

    def _filled(self, work: Fill, optimiser: "_Growing", weights: "_Growing") -> SegmentState:
        """Once the ranks have written both files, and each is a blob of the folder."""

        def written(names: Sequence[str]) -> None:
            optimiser.grow(names)
            weights.grow(names)

        def mine(group: Group, share: Share) -> Trouble | None:
            return fill(group, share, work, self._codec.device, written)

        if trouble := self._loop.do(msgspec.msgpack.encode(work), mine):
            raise trouble.error
        placed = weights.placed(), optimiser.placed()
        return SegmentState(*(one.result() for one in placed))

    def _sources(self, start: Start) -> Sources:
        version, before = start.base.whole, start.residual.whole
        assert isinstance(version, Stored)
        own, newest = (
            None if one is None else Made(str(one.path), one.plan)
            for one in (start.base.payload, start.residual.payload)
        )
        return Sources(
            codec=self._manifest.codec.name,
            version=str(version.path),
            own=own,
            alpha=start.base.factor,
            before=str(before.path) if isinstance(before, Stored) else None,
            newest=newest,
            ahead=start.ahead,
        )

    def _made(self, own: Own) -> Made:
        return Made(str(self._blobs / own.payload.hex()), own.plan)


class _Growing:
    """The canonical file of tensors that other processes write, hashed as far as it is whole."""

    def __init__(self, shapes: Shapes, folder: Path, stack: ExitStack) -> None:
        header, self._starts, self._size = layout(shapes)
        self._to_come, self._here = sorted(shapes, reverse=True), set[str]()
        self._file, self.path = stack.enter_context(durable.draft(folder))
        self._file.write(header)
        self._file.truncate(self._size)
        self._reader = stack.enter_context(open(self.path, "rb", buffering=0))  # noqa: SIM115  the stack does
        self._thread = stack.enter_context(ThreadPoolExecutor(1, "hashes"))
        self._digest, self._hashed = sha256(), 0
        self._piece = np.empty(_PIECE, np.uint8)

    def grow(self, names: Sequence[str]) -> None:
        """Those of the file's tensors among `names` are written."""
        self._here.update(names)
        while self._to_come and self._to_come[-1] in self._here:
            self._to_come.pop()
        self._thread.submit(self._hash, self._starts[self._to_come[-1]] if self._to_come else self._size)

    def placed(self) -> Future[bytes]:
        """Its sha256, once it is durable and named by that."""
        return self._thread.submit(self._place)

    def _hash(self, end: int) -> None:
        while self._hashed < end:
            count = os.preadv(self._reader.fileno(), [self._piece[: end - self._hashed].data], self._hashed)
            self._digest.update(self._piece[:count].data)
            self._hashed += count

    def _place(self) -> bytes:
        self._hash(self._size)
        found = self._digest.digest()
        durable.place(self._file, self.path, self.path.parent / found.hex())
        hash_memory.remember(self._file.fileno(), found)
        return found
