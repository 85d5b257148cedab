"""The pipes of a training process: what it sends to, and has from, the stages beside its own."""

import threading
import time
from collections.abc import Callable

from dlx.node.trainer import messages as m
from dlx.p2p.frames import TENSOR_PIECE, PipeTensor
from dlx.training.inner.pipeline import Bytes, PipeBroken

RECV_SECONDS = 60.0  # a neighbour of which nothing at all was heard for that long within a round has left it; one that
# only says that it is there, after a round timeout


class SocketLink:
    """A `Link` over the socket: messages of the current round, in pieces, matched by kind, step and micro-batch.

    The network process has looked at what comes (`daemon.slot.pipes`): pieces in order, and no more than is waited for.
    """

    def __init__(self, name: str, send: Callable[[m.Tensor], None]) -> None:
        self._name = name
        self._send = send
        self._round = 0
        self._pipe = 0  # of the current round
        self._newest = 0  # pipe that something came by
        self._seconds = RECV_SECONDS
        self._heard = self._moved = 0.0  # when the neighbour last said or sent anything; sent something
        self._doing = ""  # what it said
        self._whole: dict[tuple[int, str, int, int], bytearray] = {}
        self._coming = bytearray()  # the message of which pieces are still missing
        self._changed = threading.Condition()
        self._broken: str | None = None

    def begin(self, round: int, pipe: int, round_timeout: float = 0.0) -> None:
        """Messages of this round by this pipe are wanted now; others are dropped."""
        with self._changed:
            self._round, self._pipe, self._broken = round, pipe, None
            self._seconds = max(RECV_SECONDS, round_timeout)
            self._follow(pipe)
            self._whole = {key: data for key, data in self._whole.items() if key[0] >= round}

    def close(self, reason: str) -> None:
        with self._changed:
            self._broken = reason
            self._whole.clear()
            self._changed.notify_all()

    def push(self, pipe: int, piece: PipeTensor) -> None:
        with self._changed:
            self._follow(pipe)
            self._heard = self._moved = time.monotonic()
            if piece.offset == 0 and piece.is_last:
                self._coming = bytearray(piece.data)
            else:
                if piece.offset == 0:
                    self._coming = bytearray(piece.total)
                self._coming[piece.offset : piece.offset + len(piece.data)] = piece.data
            if piece.is_last:
                if piece.round >= self._round:
                    self._whole[piece.round, piece.kind, piece.step, piece.micro] = self._coming
                self._coming = bytearray()
            self._changed.notify_all()

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        view = memoryview(data)
        for offset in range(0, max(1, len(view)), TENSOR_PIECE):  # what is empty is sent too
            self._check()
            piece = PipeTensor(self._round, kind, step, micro, len(view), offset, view[offset : offset + TENSOR_PIECE])
            self._send(m.Tensor(self._name, self._pipe, piece))

    def recv(self, kind: str, step: int, micro: int) -> Bytes:
        key = (self._round, kind, step, micro)
        with self._changed:
            self._heard = self._moved = time.monotonic()
            self._doing = ""
            while key not in self._whole and self._broken is None:
                # as long as anything comes, however slowly
                left = min(self._heard + RECV_SECONDS, self._moved + self._seconds) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if key in self._whole:
                return self._whole.pop(key)
            self._check()
            silent, said = time.monotonic() - self._moved, f" (it said: {self._doing})" if self._doing else ""
        raise PipeBroken(f"the {self._name} stage sent no {kind} of step {step} for {silent:.0f} s{said}")

    def alive(self, pipe: int, moving: bool, doing: str) -> None:
        """A sign of the neighbour; what it says is believed for a while, what it sends for as long as it comes."""
        with self._changed:
            if pipe == self._pipe:
                self._heard, self._doing = time.monotonic(), doing
                self._moved = self._heard if moving else self._moved
                self._changed.notify_all()

    def _follow(self, pipe: int) -> None:
        """What came by an older pipe belongs to an attempt that is over."""
        if pipe != self._newest:
            self._newest = pipe
            self._whole.clear()
            self._coming = bytearray()

    def _check(self) -> None:
        if self._broken is not None:
            raise PipeBroken(self._broken)
