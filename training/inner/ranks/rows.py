"""A replica's micro-batches by rows: each rank takes its samples of every micro-batch, rank 0 alone has the pipes."""

import math

import torch
from torch import Tensor

from dlx.training.inner.pipeline import Bytes, Link, PipeBroken, expect
from dlx.training.inner.ranks.cuts import Cut
from dlx.training.inner.ranks.group import Group


class Rows:
    """Which of a micro-batch's samples are this rank's: `here` of them, the others of `each` only fill up.

    All ranks take tensors of the same shape through their model, so a rank with fewer samples than `each` repeats the
    micro-batch's last one, whose loss and gradient count nothing.
    """

    def __init__(self, group: Group, samples: int, parallel: int) -> None:
        """`parallel` ranks next to each other take the same samples."""
        self.samples, self.each, self.parallel = samples, -(-samples * parallel // group.size), parallel
        first = group.rank // parallel * self.each
        self.here = min(max(samples - first, 0), self.each)
        self._taken = torch.arange(first, first + self.each).clamp(max=samples - 1)

    def of(self, batch: Tensor) -> Tensor:
        return batch[self._taken.to(batch.device)]


class RowsLink:
    """A `Link` for the pipeline of every rank: on rank 0 it divides and joins what goes over the real one.

    Raises PipeBroken on all ranks where that does.
    """

    def __init__(self, group: Group, rows: Rows, shape: tuple[int, ...], link: Link | None) -> None:
        """`shape` is a whole micro-batch's, packed: samples, and bytes of one; `link` is rank 0's."""
        self._group, self._rows, self._shape, self._link = group, rows, shape, link
        self._cut = Cut((group.size // rows.parallel * rows.each, *shape[1:]), group.size, rows.parallel)

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(self._rows.each, *self._shape[1:])
        whole = self._group.gather(mine, self._cut, 0)
        if self._link is not None:
            assert whole is not None
            try:
                self._link.send(kind, step, micro, whole[: self._rows.samples].numpy().data.cast("B"))
            except PipeBroken as error:
                self._group.break_off(error)

    def recv(self, kind: str, step: int, micro: int) -> Bytes:
        whole = torch.empty(0, dtype=torch.uint8)

        def receive() -> tuple[()]:
            nonlocal whole
            assert self._link is not None
            data = expect(self._link.recv(kind, step, micro), math.prod(self._shape))
            came = torch.frombuffer(data, dtype=torch.uint8).view(self._shape)
            # What fills up is like a sample on its way forward, and nothing on its way back.
            fill = came[-1:] if kind == "activation" else torch.zeros_like(came[-1:])
            whole = torch.cat([came, fill.expand(self._cut.shape[0] - len(came), *self._shape[1:])])
            return ()

        self._group.decide(0, receive)
        mine = torch.empty(self._rows.each, *self._shape[1:], dtype=torch.uint8)
        self._group.scatter(whole if self._link is not None else None, mine, self._cut, 0)
        return bytearray(mine.numpy().data)
