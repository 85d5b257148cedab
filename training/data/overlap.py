"""How much of the held-out text is in the training text too, by sequences of tokens: as contamination is measured, with
13 tokens a sequence (GPT-3, 2020, appendix C).

Memory is bounded whatever the data's size. Sequences are 64-bit hashes. Of the held-out ones those with the lowest
hashes are kept: a sample that chance draws. Every sequence of the training data is looked up among them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlx.training.data.rows import IDS, SILENT
from dlx.training.data.shards import DataManifest, Split

TOKENS, BYTES = 13, 64  # of a sequence: about as long a text
KEPT = 1 << 18  # sequences of the held-out data, at most
WARN = 0.05  # of them: more than the phrases that texts of a kind have in common

_CHUNK = 1 << 16  # tokens at a time, whose hashes are in the cache
_FACTORS = [int(one) | 1 for one in np.random.SeedSequence(13).generate_state(16, np.uint64)]
_BITS = 23  # of a hash: a table of that many of them is in the cache, and nearly always says no

Hashes = NDArray[np.uint64]


class Overlap(NamedTuple):
    """Of the different sequences of so many tokens (`length`) in the held-out data `sampled` were looked up, and
    `shared` are in the training data."""

    length: int
    sampled: int
    shared: int

    @property
    def part(self) -> float:
        """0 to 1; 0 where the held-out data is shorter than a sequence."""
        return self.shared / self.sampled if self.sampled else 0.0

    def __str__(self) -> str:
        """
        Examples:
            >>> print(Overlap(13, 1000, 25))
            2.50% of 1,000 held-out sequences of 13 tokens are in the training data
        """
        return (
            f"{100 * self.part:.2f}% of {self.sampled:,} held-out sequences of {self.length} tokens "
            "are in the training data"
        )


def overlap(manifest: DataManifest, blobs: Path, progress: Callable[[int], None] = lambda size: None) -> Overlap:
    """Reads all shards, which must be whole. `progress` hears the bytes of each part once it was read."""
    length = BYTES if manifest.tokenizer == "bytes" else TOKENS
    kept = np.empty(0, np.uint64)
    for hashes in _sequences(manifest, "heldout", blobs, length, progress):
        fresh = hashes if kept.size < KEPT else hashes[hashes < kept[-1]]
        both = np.sort(np.concatenate([kept, fresh]))
        kept = both[np.diff(both, prepend=both[:1] - np.uint64(1)) != 0][:KEPT]
    if not kept.size:
        return Overlap(length, 0, 0)
    perhaps = np.zeros(1 << _BITS, np.bool_)
    perhaps[kept >> np.uint64(64 - _BITS)] = True
    shared = np.zeros(kept.size, np.bool_)
    for hashes in _sequences(manifest, "train", blobs, length, progress):
        near = hashes[hashes <= kept[-1]]
        near = near[perhaps[near >> np.uint64(64 - _BITS)]]
        places = np.searchsorted(kept, near)
        shared[places[kept[places] == near]] = True
    return Overlap(length, kept.size, int(shared.sum()))


def _sequences(
    manifest: DataManifest, split: Split, blobs: Path, length: int, progress: Callable[[int], None]
) -> Iterator[Hashes]:
    """The hashes of all sequences of a split; none goes on in another shard, as no sample does. Of conversations only
    of what an assistant says: they begin alike."""
    kind = np.dtype(manifest.dtype).newbyteorder("<")
    for shard in manifest.shards(split):
        with open(blobs / shard.sha256, "rb") as file:
            left = np.empty(0, kind)
            while (read := np.fromfile(file, kind, _CHUNK)).size:
                tokens = np.concatenate([left, read])
                hashes = _hashed(tokens & np.uint32(IDS) if manifest.rows else tokens, length)
                yield hashes[_all_count(tokens, length)] if manifest.rows else hashes
                left = tokens[len(tokens) - length + 1 :] if len(tokens) >= length else tokens
                progress(read.nbytes)


def _all_count(words: NDArray[np.unsignedinteger], length: int) -> NDArray[np.bool_]:
    """Of each `length` words in a row, whether the loss of all counts."""
    silent = np.concatenate([[0], np.cumsum(words & SILENT > 0)])
    return silent[length:] == silent[:-length] if len(words) >= length else np.empty(0, np.bool_)


def _hashed(tokens: NDArray[np.unsignedinteger], length: int) -> Hashes:
    """Of each `length` tokens in a row, uint64 [len(tokens) - length + 1]: equal for equal ones."""
    if len(tokens) < length:
        return np.empty(0, np.uint64)
    found, covered = tokens.astype(np.uint64) + np.uint64(1), 1
    while covered < length:  # two shorter sequences, which may share tokens, are one that is as long as both
        step = min(covered, length - covered)
        found = found[:-step] * np.uint64(_FACTORS[covered.bit_length()]) + found[step:]
        covered += step
    found ^= found >> np.uint64(32)  # the finish of splitmix64: each bit depends on all
    found *= np.uint64(0xBF58476D1CE4E5B9)
    found ^= found >> np.uint64(29)
    found *= np.uint64(0x94D049BB133111EB)
    found ^= found >> np.uint64(32)
    return found
