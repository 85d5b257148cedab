"""A replica that trains on data of its own: all stages that read it must hold the same, and every stage has to know.

Inputs of the first stage and labels of the last one come from the data. The stages between read none, unless it has
rows, of which they need to know where documents begin.
What they all learn is the sha256 of the data manifest; the data itself never leaves the two nodes.
"""

import contextlib
import time

from dlx.training.inner.pipeline import Bytes, Link, PipeBroken
from dlx.training.recipe.manifest import Manifest

PAUSE = 3.0  # s

_KIND = "data"


def agree(manifest: Manifest, mine: bytes | None, step: int, previous: Link | None, next: Link | None) -> bool:
    """Whether the replica trains on private data; said by the first and the last stage to all, before a round.

    `mine` is the sha256 of the data manifest that this stage trains on, if it reads data. In a run that allows no
    private data nothing is sent. Raises PipeBroken where they differ: then nobody trains.
    """
    if not manifest.data.private:
        return False
    first = _expect(mine) if previous is None else _hash(previous.recv(_KIND, step, 0))
    between = mine or first
    if next is None:
        last = _expect(mine)
    else:
        next.send(_KIND, step, 0, between)
        last = _hash(next.recv(_KIND, step, 0))
    if between != first:  # those before hear it on the way back, as those behind have
        last = between
    if previous is not None:
        previous.send(_KIND, step, 0, last)
    public = bytes.fromhex(manifest.data.manifest.sha256)
    if first != last:
        _last_words(step, previous, next)
        told = " and ".join(
            "the run's data" if one == public else f"private data {one.hex()[:12]}" for one in (first, last)
        )
        raise PipeBroken(f"stages of this replica train on {told}: start all with the same --private-data")
    return first != public


def _last_words(step: int, previous: Link | None, next: Link | None) -> None:
    """Return from the first stage to the last, so that none breaks the pipe before those before it know why."""
    if previous is None:
        time.sleep(PAUSE)  # the next attempt will end alike until somebody restarts a node
    else:
        with contextlib.suppress(PipeBroken):
            previous.recv(_KIND, step, 1)
    if next is not None:
        with contextlib.suppress(PipeBroken):
            next.send(_KIND, step, 1, b"")


def _expect(mine: bytes | None) -> bytes:
    if mine is None:
        raise ValueError("the first and the last stage need data")
    return mine


def _hash(data: Bytes) -> bytes:
    if len(data) != 32:
        raise PipeBroken(f"expected the 32 bytes of a data manifest's hash, got {len(data)}")
    return bytes(data)
