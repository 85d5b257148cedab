"""What one stage's links carry in a round: written and hashed by segment as it comes, hashed as it goes.

Every tensor's bytes pass through once, while they are in the cache; the disk takes them when it likes, until the
segment's end, when they must be there.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from dlx.ground import durable
from dlx.ground.constants import NO_HASH
from dlx.training.inner.pipeline import Bytes, Link, Norms
from dlx.training.slot.trace import Boundary, Step, agreement

FORWARD, BACKWARD = ("activation", "embedding"), ("gradient", "tied gradient")  # kinds of messages


class Capture:
    """Use `previous` and `next` in place of the links of a round; the files go to `folder`."""

    def __init__(self, folder: Path, previous: Link | None, next: Link | None) -> None:
        self.previous = None if previous is None else _Tap(previous, folder, FORWARD, BACKWARD)
        self.next = None if next is None else _Tap(next, folder, BACKWARD, FORWARD)
        self.boundaries: list[Boundary] = []
        self._numbers: list[tuple[Norms, float]] = []

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(Step(norms.received, norms.passed_on, norms.replica, loss) for norms, loss in self._numbers)

    def end_step(self, norms: Norms, loss: float) -> None:
        self._numbers.append((norms, loss))

    def end_segment(self) -> None:
        """What was received in the segment is on disk then, named by its hash. Raises OSError."""
        activations_in, gradients_out = (NO_HASH, NO_HASH) if self.previous is None else self.previous.end_segment()
        gradients_in, activations_out = (NO_HASH, NO_HASH) if self.next is None else self.next.end_segment()
        self.boundaries.append(Boundary(activations_in, gradients_in, activations_out, gradients_out))

    def agreement(self, *, behind: bool) -> bytes:
        """What the stage before (else the one after) must have recorded of the link to it."""
        return agreement(self.boundaries, self.steps, behind=behind)

    def close(self) -> None:
        """Let go of the files, whatever became of the round."""
        for tap in (self.previous, self.next):
            if tap is not None:
                tap.close()


class _Tap:
    """A `Link` that records tensors of the kinds `incoming`, and hashes those of `outgoing`."""

    def __init__(self, link: Link, folder: Path, incoming: Sequence[str], outgoing: Sequence[str]) -> None:
        self._link, self._folder, self._incoming, self._outgoing = link, folder, incoming, outgoing
        self._draft = folder / f".{incoming[0]}.tmp"
        self._begin()

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        if kind in self._outgoing:
            self._sent.update(data)
        self._link.send(kind, step, micro, data)

    def recv(self, kind: str, step: int, micro: int) -> Bytes:
        data = self._link.recv(kind, step, micro)
        if kind in self._incoming:
            self._received.update(data)
            with durable.naming(self._draft):
                self._file.write(data)
        return data

    def end_segment(self) -> Sequence[bytes]:
        """The sha256 of what came, in a file of that name, and of what went."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        durable.move(self._draft, self._folder / self._received.hexdigest())
        found = self._received.digest(), self._sent.digest()
        self._begin()
        return found

    def close(self) -> None:
        self._file.close()
        self._draft.unlink(missing_ok=True)

    def _begin(self) -> None:
        self._file = open(self._draft, "wb")  # noqa: SIM115  it stays open for a segment
        self._received, self._sent = hashlib.sha256(), hashlib.sha256()
