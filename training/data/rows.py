"""Rows: conversations packed into samples, with the loss mask and the documents' beginnings in the words themselves.

A word is a token id with two flags. Those of other data have none: every token counts, and none begins a document.
A row has `sequence_length + 1` words. Each of its documents is whole, attends to itself alone, and its positions start
anew. What is left at the end is a document of separators whose loss does not count. No torch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IDS = (1 << 30) - 1  # the part of a word that is a token id
BEGINS = 1 << 30  # it is the first one of a document, so nothing before it foretells it
SILENT = 1 << 31  # its loss does not count

Words = NDArray[np.uint32]


class Sample(NamedTuple):
    """A conversation as tokens: their ids, and whether the loss of each counts."""

    ids: Sequence[int]
    counts: Sequence[bool]


def words(sample: Sample, length: int) -> Words | None:
    """At most `length` of them, from the beginning; None where no loss would count."""
    found = np.array(sample.ids[:length], np.uint32)
    silent = ~np.array(sample.counts[:length], np.bool_)
    silent[:1] = True
    if silent.all():
        return None
    found[silent] |= np.uint32(SILENT)
    found[0] |= np.uint32(BEGINS)
    return found


def packed(documents: Sequence[Words], length: int, separator: int) -> Words:
    """Rows of `length` words, one after the other. No document is longer; each goes, the longest first and of equal
    ones the earliest, into the first row that has room for it.

    Examples:
        >>> found = packed([words(Sample([5, 6, 7], [False, True, True]), 4), words(Sample([8, 9], [False, True]), 4)],
        ...                4, separator=2)
        >>> (found & IDS).tolist(), (found & BEGINS > 0).tolist()
        ([5, 6, 7, 2, 8, 9, 2, 2], [True, False, False, True, True, False, True, False])
        >>> (found & SILENT > 0).tolist()
        [True, False, False, True, True, False, True, True]
    """
    rows, room = list[list[Words]](), np.empty(0, np.int64)
    for place in sorted(range(len(documents)), key=lambda place: (-len(documents[place]), place)):
        document = documents[place]
        fits = room >= len(document)
        row = int(fits.argmax()) if fits.any() else len(rows)
        if row == len(rows):
            rows.append([])
            room = np.append(room, length)
        rows[row].append(document)
        room[row] -= len(document)
    found = np.full((len(rows), length), separator | SILENT, np.uint32)
    for line, chosen in zip(found, rows, strict=True):
        whole = np.concatenate(chosen)
        line[: len(whole)] = whole
        line[len(whole) : len(whole) + 1] |= np.uint32(BEGINS)
    return found.reshape(-1)
