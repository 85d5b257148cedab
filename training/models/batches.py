"""What samples give the model: a batch of words (see training.data.rows) as ids, labels, and where documents begin."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from dlx.training.data.rows import BEGINS, IDS, SILENT

IGNORED = -100  # a label whose loss does not count, as torch has it


class Batch(NamedTuple):
    """Of samples that lie on one device."""

    ids: Tensor  # int64 [n, length]
    labels: Tensor  # int64 [n, length]
    begins: Tensor | None  # bool [n, length]: a document begins with this id; None: samples are no rows


def parted(words: Tensor, rows: bool) -> Batch:
    """Of words int64 [n, length + 1]; `rows`: whether the samples are rows of documents."""
    if not rows:
        return Batch(words[:, :-1], words[:, 1:], None)
    labels = torch.where(words & SILENT > 0, IGNORED, words & IDS)
    return Batch((words & IDS)[:, :-1], labels[:, 1:], (words & BEGINS > 0)[:, :-1])


def documents(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and labels int64 [n, length] that see each other: of rows each document by itself, n = 1, unless none of its
    labels counts."""
    if batch.begins is None:
        yield batch.ids, batch.labels
        return
    for ids, labels, begins in zip(batch.ids, batch.labels, batch.begins, strict=True):
        firsts = [0, *(place for place in begins.nonzero().flatten().tolist() if place), len(ids)]
        for low, high in pairwise(firsts):
            if (labels[low:high] != IGNORED).any():
                yield ids[None, low:high], labels[None, low:high]


def counted(words: Tensor) -> Tensor:
    """How many labels' loss counts, int64, a scalar on the device of words int64 [n, length + 1]; at least 1."""
    return (words[:, 1:] & SILENT == 0).sum().clamp(min=1)
