"""Products and sums of float32 or float64 values that give the same bits in any order, on any machine.

Each factor is rounded to integers on a power-of-two grid, one for each line along which it is summed. Products of such
integers, and their partial sums, are integers below 2**53, or below 2**24 in float32. So floating point adds them
without rounding, whatever the order, the threads, the instruction set or the library. The sum is scaled back by a power
of two and rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_DOUBLE, _SINGLE = 52, 24  # bits of an integer that float64 and float32 hold, whichever its last bit is
_BIAS, _FRACTION = 1023, 52  # of float64


class OnGrid(NamedTuple):
    """Integers (float64) and the exponents of their grids (int64, of size 1 along the line): value = integer x 2**e."""

    integers: Tensor
    exponents: Tensor


def on_grid(values: Tensor, dim: int, bits: int) -> OnGrid:
    """`values` rounded, halves to even, to integers of at most 2**bits beside the largest of each line along `dim`."""
    largest = values.abs().amax(dim, keepdim=True) if values.shape[dim] else values.new_zeros(())
    exponents = torch.frexp(largest).exponent.to(torch.int64) - bits  # largest < 2**(exponents + bits)
    return OnGrid(torch.round(values.double() * power_of_two(-exponents)), exponents)


def power_of_two(exponents: Tensor) -> Tensor:
    """2**exponents (int64) as float64, made of its bits; below 2**-1022 and above 2**1023 it stays there."""
    return ((exponents.clamp(1 - _BIAS, _BIAS) + _BIAS) << _FRACTION).view(torch.float64)


def bits_of(bits: int, length: int) -> int:
    """Bits of each factor of a sum of so many products: as many as asked for, or as float64 has room for."""
    return min(bits, (_DOUBLE - _log2(length)) // 2)


def product(left: Tensor, right: Tensor, bits: int) -> Tensor:
    """The matrix product [.., n, k] x [.., k, m] of float32 matrices, with so many bits of each factor."""
    length = left.shape[-1]
    kept = bits_of(bits, length)
    rows, columns = on_grid(left, -1, kept), on_grid(right, -2, kept)
    if 2 * kept + _log2(length) <= _SINGLE:
        sums = (rows.integers.float() @ columns.integers.float()).double()
    else:
        sums = rows.integers @ columns.integers
    return (_unsigned(sums) * power_of_two(rows.exponents + columns.exponents)).float()


def total(values: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    """The sum along these dimensions (none: all), in the values' type: on a grid as fine as float64 has room for."""
    dims = sorted(dim % values.dim() for dim in dims) if dims else list(range(values.dim()))
    if not dims:
        return values.clone()
    others = [dim for dim in range(values.dim()) if dim not in dims]
    lines = values.permute(*others, *dims).flatten(len(others))  # [.., all that is summed]
    found = on_grid(lines, -1, _DOUBLE - _log2(lines.shape[-1]))
    # Sums of integers below 2**53 are exact, in any order.
    summed = _unsigned(found.integers.sum(-1)) * power_of_two(found.exponents).squeeze(-1)
    if keepdim:
        summed = summed.reshape([1 if dim in dims else size for dim, size in enumerate(values.shape)])
    return summed.to(values.dtype)


def scattered(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """[count, width] whose row i is the sum of the rows of `values` [n, width] that `rows` [n] (int64) say are i's.
    All rows share the grids of their columns. A column with a value that is not finite is NaN in all rows: as a whole
    number it would be another one on each machine."""
    is_finite = values.isfinite().all(0)
    found = on_grid(torch.where(is_finite, values, 0), 0, _DOUBLE - _log2(len(values)))
    sums = torch.zeros(count, values.shape[1], dtype=torch.int64, device=values.device)
    sums.index_add_(0, rows, found.integers.to(torch.int64))
    return torch.where(is_finite, sums.double() * power_of_two(found.exponents), math.nan).to(values.dtype)


def _unsigned(sums: Tensor) -> Tensor:
    """The same with every zero positive: which sign one has depends on the order of the sum."""
    return sums + 0.0


def _log2(length: int) -> int:
    """Rounded up."""
    return max(0, length - 1).bit_length()
