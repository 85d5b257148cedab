"""The first stage's embedding as the last one's head, where ranks share one of the stages that it goes through."""

import torch
from torch import Tensor

from dlx.training.inner.pipeline import Link, PipeBroken, as_bytes, as_tensor
from dlx.training.inner.ranks.cuts import Cut
from dlx.training.inner.ranks.group import Group


class Tie:
    """`embedding` is this rank's piece on the first stage, `head` on the last one its copy, of the rows that tensor
    parallelism leaves to it; else they are None.

    `counts`: whether no other rank has the same samples and goes before it. Links are rank 0's. Both methods raise
    PipeBroken on all ranks.
    """

    def __init__(self, group: Group, cut: Cut, embedding: Tensor | None, head: Tensor | None, *, counts: bool) -> None:
        self._group, self._cut, self._counts = group, cut, counts
        self._embedding, self._head = embedding, head

    def hand_on(self, step: int, previous: Link | None, next: Link | None) -> None:
        """Before the step, from the first stage to the last."""
        if self._embedding is not None:
            self._send(next, "embedding", step, self._group.gather(self._embedding, self._cut, 0))
            return
        came = self._receive(previous, "embedding", step)
        if self._head is None:
            self._send(next, "embedding", step, came)
        else:
            self._head.grad = None
            whole = self._group.share(torch.empty(self._cut.shape) if came is None else came)
            self._head.data.copy_(self._cut.part(whole, self._group.rank))

    def hand_back(self, step: int, previous: Link | None, next: Link | None, gradient: Tensor | None) -> None:
        """After the step, its gradient, which is added to `gradient`, the first stage's own: this rank's rows."""
        if self._head is not None:
            assert self._head.grad is not None
            mine = self._head.new_zeros(self._cut.shape)
            if self._counts or self._cut.is_shared_out:
                self._cut.part(mine, self._group.rank).copy_(self._head.grad)
            self._send(previous, "tied gradient", step, self._group.add(mine))
            self._head.grad = None
            return
        came = self._receive(next, "tied gradient", step)
        if self._embedding is None:
            self._send(previous, "tied gradient", step, came)
        else:
            assert gradient is not None
            rows = torch.empty_like(gradient)
            self._group.scatter(came, rows, self._cut, 0)
            gradient += rows

    def _send(self, link: Link | None, kind: str, step: int, tensor: Tensor | None) -> None:
        if link is not None and tensor is not None:
            try:
                link.send(kind, step, 0, as_bytes(tensor))
            except PipeBroken as error:
                self._group.break_off(error)

    def _receive(self, link: Link | None, kind: str, step: int) -> Tensor | None:
        """None but on rank 0."""
        found = None

        def receive() -> tuple[()]:
            nonlocal found
            assert link is not None
            found = as_tensor(link.recv(kind, step, 0), self._cut.shape)
            return ()

        self._group.decide(0, receive)
        return found
