"""The published average: the mean of a run's newest versions, which `pull` gives where the manifest asks for it.

It is made of versions that the run keeps anyway and whose hashes are sealed, by whoever wants it: no node computes,
stores or signs anything for it, and training never sees it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dlx.training.models import weights
from dlx.training.models.weights import Lazy, Shapes, Stored
from dlx.training.outer.arithmetic import approach
from dlx.training.recipe.recipe import Average


def members(average: Average | None, version: int) -> list[int]:
    """The versions whose mean is published as `version`, ascending: itself, and the newest multiples of `every` below
    it, without the genesis, which nobody trained. Only itself: it is published as it is."""
    if average is None:
        return [version]
    newest = (version - 1) // average.every * average.every  # below the version
    earlier = range(newest, 0, -average.every)[: average.versions - 1]
    return [*reversed(earlier), version]


def fold(mean: Path, number: int, version: Path, shapes: Shapes) -> None:
    """Make the mean of `number` - 1 versions in the file `mean` that of `number`, `version` being the next of them.

    Canonical: x = x + (V - x) c with c = float32(1 / number), one IEEE operation at a time. Raises WeightsError for a
    file that is not of these shapes; OSError for a full disk.
    """
    so_far, next_ = Stored(mean, shapes, once=True), Stored(version, shapes, once=True)

    def folded(name: str) -> np.ndarray:
        values = so_far[name]
        approach(values, next_[name], 1 / number)
        return values

    weights.write(Lazy(shapes, folded), mean)
