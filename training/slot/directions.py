"""Whether the deviations of an account have a common direction, which rounding has not.

A member may move every segment by less than the limit. In directions that change, such moves add up to little; in one
direction they add up to an update of its choice. So an auditor projects each deviation to few numbers and adds them up.
"""

import hashlib
import math
from collections.abc import Mapping

import numpy as np

MOST = 8.0  # standard deviations
SHARED = 0.01  # mean cosine of honest deviations at most, see docs/threats.md
WIDE = ("weights of the layers' matrices", "weights of embedding and head")  # parts whose chance has DIMENSIONS
DIMENSIONS = 16
MOST_DRAWS = 512  # newest ones of an account that a new one is compared with
_PIECE = 1 << 20  # numbers at a time


class Projection:
    """A count sketch: each number of a tensor goes to one of SIZE sums, with a sign, both random.

    `key` is the auditor's own secret. Whoever knew it could deviate in directions that the sums do not show.
    """

    SIZE = 1024

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, name: str, values: np.ndarray) -> np.ndarray:
        """float64 [SIZE] of the tensor `name`: scalar products with others of the same name are kept on average."""
        seed = hashlib.sha256(self._key + name.encode()).digest()
        generator, flat = np.random.default_rng(int.from_bytes(seed)), values.reshape(-1)
        sums = np.zeros(self.SIZE)
        for at in range(0, len(flat), _PIECE):
            piece = flat[at : at + _PIECE]
            places = generator.integers(0, 2 * self.SIZE, len(piece), dtype=np.uint16)
            signed = np.where(places & 1, piece, -piece)
            sums += np.bincount(places >> 1, signed, self.SIZE)
        return sums


class Common:
    """Sketches of one part's deviations, draw by draw."""

    def __init__(self, part: str, size: int = Projection.SIZE) -> None:
        self._sketches = np.empty((0, size), np.float32)
        self._is_wide = part in WIDE
        self._squares = self._lengths = 0.0
        self._along = self._spread = 0.0  # over pairs: of their scalar products the sum, and that of the squares
        self._pairs = self._square_pairs = 0.0  # over pairs: of the products of their lengths, and of these squared

    def add(self, sketch: np.ndarray) -> None:
        """float32 [size]."""
        products = (self._sketches @ sketch).astype(np.float64)
        square = float(np.square(sketch, dtype=np.float64).sum())
        self._along += float(products.sum())
        self._spread += float(np.square(products).sum())
        self._pairs += math.sqrt(square) * self._lengths
        self._square_pairs += square * self._squares
        self._squares, self._lengths = self._squares + square, self._lengths + math.sqrt(square)
        self._sketches = np.concatenate([self._sketches, sketch[np.newaxis]])[-MOST_DRAWS:]

    @property
    def draws(self) -> int:
        return len(self._sketches)

    @property
    def ratio(self) -> float:
        """|sum|^2 / the sum of squares: about 1 for directions by chance, `draws` for a single one."""
        return 1 + 2 * self._along / self._squares if self._squares else 0.0

    @property
    def cosine(self) -> float:
        """Of two draws' deviations, the mean; long ones weigh more."""
        return self._along / self._pairs if self._pairs else 0.0

    @property
    def score(self) -> float:
        """What the cosines add up to beyond SHARED, in standard deviations of such a sum where directions are chance.

        How alike two chance directions are is taken from the deviations themselves: some have few dimensions.
        """
        variance = min(self._spread, self._square_pairs / DIMENSIONS if self._is_wide else math.inf)
        return (self._along - SHARED * self._pairs) / math.sqrt(variance) if variance else 0.0


class Directions:
    """Of the deviations of one account, part by part."""

    def __init__(self) -> None:
        self.parts: dict[str, Common] = {}

    def add(self, sketches: Mapping[str, bytes]) -> None:
        """Of one draw, by part: float32 [Projection.SIZE]."""
        for part, sketch in sketches.items():
            self.parts.setdefault(part, Common(part)).add(np.frombuffer(sketch, "<f4"))

    def faults(self) -> tuple[str, ...]:
        """What has a common direction."""
        return tuple(
            f"the deviations of {part} add up: a mean cosine of {one.cosine:.2g} in {one.draws} draws, "
            f"{one.score:.0f} standard deviations from chance, at most {MOST:g} is honest"
            for part, one in sorted(self.parts.items())
            if one.score > MOST
        )
