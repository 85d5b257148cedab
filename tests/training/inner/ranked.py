"""Ranks of a stage: `meet` gives rank 0's group, of which the others are processes of this module.

They run `python -m tests.training.inner.ranked STORE RANK RANKS` and serve until they are killed.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import serve
from dlx.training.slot.ranked import take_part


@contextmanager
def meet(folder: Path, ranks: int, beside: int) -> Iterator[Group]:
    """Of so many ranks, of which so many count as rank 0's machine's."""
    store = str(folder / "store")
    command = [sys.executable, "-m", "tests.training.inner.ranked", store]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        others = [subprocess.Popen([*command, str(rank), str(ranks)]) for rank in range(1, ranks)]
        group = Group(dist.FileStore(store, ranks), 0, ranks, "cpu", beside)
        yield group
    for other in others:
        other.kill()
    for other in others:
        other.wait()
    group.close()


def main(store: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    group = Group(dist.FileStore(store, ranks), rank, ranks, "cpu", beside=ranks)
    while True:
        serve(group, partial(take_part, device=None))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
