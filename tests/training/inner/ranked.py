"""Rank 1 and up of a stage in processes of their own: `python -m tests.training.inner.ranked STORE RANK RANKS`."""

import sys

import torch
import torch.distributed as dist

from dlx.training.inner.ranks.group import Group
from dlx.training.inner.ranks.loop import serve


def main(store: str, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    group = Group(dist.FileStore(store, ranks), rank, ranks, "cpu")
    while True:
        serve(group)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
