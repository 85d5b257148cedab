"""How many documents nearly repeat another one, by MinHash over their words: a share that a bounded sample gives.

A document's signature is the smallest hashes of its sequences of words, and near copies share most of them. Documents
whose first of these hashes is low are kept: so are most near copies of whatever is kept.
"""

from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HEAD = 64 * 1024  # bytes of a document that are looked at
KEPT = 1 << 17  # documents, at most

_WORDS = 5  # of a sequence
_BANDS, _ROWS = 8, 8  # of a signature: half of the pairs with 73% of their sequences in common are found, 94% at 85%
_SEED = 1
_LONG = 20  # characters of a word, in the mean: in such a script characters take the place of words


class Near(NamedTuple):
    """Of so many documents (`looked`), no two the same, `copies` nearly repeat one before them."""

    looked: int
    copies: int

    @property
    def part(self) -> float:
        """0 to 1."""
        return self.copies / self.looked if self.looked else 0.0


class Sketches:
    """Of documents, as they come."""

    def __init__(self) -> None:
        self._below = 1 << 32  # the first hash of a kept one
        self._places, self._firsts, self._bands = array("q"), array("q"), array("q")

    def add(self, place: int, head: bytes) -> None:
        """The document at `place`, which is larger than any before, begins with these bytes, UTF-8 or any."""
        from rensa import RMinHash

        words: list[str] | str = head.decode(errors="ignore").split()
        if len(words) * _LONG < len(head):
            words = "".join(words)
        if not words:
            return
        made = RMinHash(num_perm=_BANDS * _ROWS, seed=_SEED)
        made.update([" ".join(words[at : at + _WORDS]) for at in range(max(1, len(words) - _WORDS + 1))])
        signature = made.digest()
        if signature[0] >= self._below:
            return
        self._places.append(place)
        self._firsts.append(signature[0])
        self._bands.extend(hash(tuple(signature[at : at + _ROWS])) for at in range(0, len(signature), _ROWS))
        if len(self._places) > KEPT:
            self._halve()

    def near(self, but: NDArray[np.bool_]) -> Near:
        """Of the kept documents but those at these places: bool [documents], the exact copies."""
        places = np.frombuffer(self._places, np.int64) if self._places else np.empty(0, np.int64)
        bands = np.array(self._bands, np.int64).reshape(-1, _BANDS)[~but[places]]
        copies = np.zeros(len(bands), np.bool_)
        for band in bands.T:
            _, first, same = np.unique(band, return_index=True, return_inverse=True)
            copies |= first[same] != np.arange(len(band))
        return Near(len(bands), int(copies.sum()))

    def _halve(self) -> None:
        firsts = np.array(self._firsts, np.int64)
        self._below = int(np.median(firsts)) or 1
        kept = firsts < self._below
        self._places = array("q", np.array(self._places, np.int64)[kept].tobytes())
        self._firsts = array("q", firsts[kept].tobytes())
        self._bands = array("q", np.array(self._bands, np.int64).reshape(-1, _BANDS)[kept].tobytes())
