"""Canonical arithmetic: the operations that the weights go through, bit for bit the same on every machine.

Only float32 element-wise operations of one IEEE operation each (multiply, then add or subtract), in a fixed order; no
fused form and no reduction. Scalars are rounded to float32 before they are used. The same lines serve numpy's arrays
(who audits has no torch) and torch's tensors, on any device on which the self-test finds the same bits.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dlx.training.recipe.recipe import Outer

if TYPE_CHECKING:
    from torch import Tensor

Values = TypeVar("Values", np.ndarray, "Tensor")


def rounded(value: float) -> float:
    """To the nearest float32.

    Examples:
        >>> rounded(0.1)
        0.10000000149011612
    """
    return struct.unpack("<f", struct.pack("<f", value))[0]


def add_part(total: Values, gradient: Values, part: float) -> None:
    """Add to the sum so far a gradient times its part; uses the gradient up."""
    gradient *= rounded(part)
    total += gradient


def approach(mean: Values, values: Values, part: float) -> None:
    """Move a mean by this part of the way to `values`, which are used up."""
    values -= mean
    values *= rounded(part)
    mean += values


def descend(values: Values, moment: Values | None, mean: Values, outer: Outer) -> None:
    """One outer step of `values` with the mean gradient, which is used up; `moment` is the momentum, if there is any.
    All in place."""
    if moment is not None:
        moment *= rounded(outer.momentum)
        moment += mean
        if outer.nesterov:
            mean += moment * rounded(outer.momentum)
        else:
            mean[...] = moment
    mean *= rounded(outer.lr)
    values -= mean
