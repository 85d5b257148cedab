"""Functions made of additions, subtractions, multiplications, divisions and square roots alone, each rounded once as
IEEE 754 says, in float64. So their bits are the same on every machine, which those of a mathematical library are not.

Each operation is a call of its own: compilers fuse none of them. The errors are a few units of float64, so that rounded
to float32 nearly all values are the nearest ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dlx.training.exact.grid import power_of_two

# ln 2 in two parts: the first has 32 bits, so its products with exponents are exact.
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
_PER_LN2 = float.fromhex("0x1.71547652b82fep+0")
# pi / 2 in three parts of 33 bits each, likewise.
_QUARTERS = tuple(map(float.fromhex, ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")))
_PER_QUARTER = float.fromhex("0x1.45f306dc9c883p-1")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_EXP = [1.0 / math.factorial(power) for power in range(14)]
_SIN = [(-1.0) ** power / math.factorial(2 * power + 1) for power in range(9)]
_COS = [(-1.0) ** power / math.factorial(2 * power) for power in range(9)]
_LOG = [2.0 / (2 * power + 1) for power in range(12)]
_FARTHEST = 5.0  # of an argument of erf: 1 - erf 5 is below 2e-12
_ERF = [float.fromhex("0x1.20dd750429b6dp+0")]  # 2 / sqrt(pi)
for _power in range(1, 100):
    _ERF.append(_ERF[-1] * 2.0 / (2 * _power + 1))
_LARGEST = 700.0  # of an argument of exp


def exp(values: Tensor) -> Tensor:
    """Of float64; below -700 and above 700 as there."""
    values = values.clamp(-_LARGEST, _LARGEST)
    doublings = torch.round(values * _PER_LN2)
    rest = (values - doublings * _LN2_HIGH) - doublings * _LN2_LOW  # within ln 2 / 2 of 0
    return _polynomial(_EXP, rest) * power_of_two(doublings.to(torch.int64))


def log(values: Tensor) -> Tensor:
    """Of positive float64; of 0 it is -inf, of negative ones nan."""
    fraction, exponent = torch.frexp(values)
    low = fraction < _SQRT_HALF
    fraction, doublings = torch.where(low, fraction * 2, fraction), exponent.double() - low.double()
    ratio = (fraction - 1) / (fraction + 1)  # ln f = 2 artanh of this
    found = ratio * _polynomial(_LOG, ratio * ratio) + doublings * _LN2_LOW
    found = found + doublings * _LN2_HIGH
    found = torch.where(values == 0, -math.inf, found)
    return torch.where(values < 0, math.nan, found)


def sin(values: Tensor) -> Tensor:
    """Of float64 below 2**20."""
    return _turned(values, 0)


def cos(values: Tensor) -> Tensor:
    """Of float64 below 2**20."""
    return _turned(values, 1)


def inverse(values: Tensor) -> Tensor:
    """1 / values, by a division: a number over a tensor may be computed otherwise."""
    return torch.ones_like(values) / values


def sigmoid(values: Tensor) -> Tensor:
    """Of float64."""
    return inverse(1.0 + exp(-values))


def tanh(values: Tensor) -> Tensor:
    """Of float64; near 0 its absolute error is that of float64's 1."""
    return 1.0 - 2.0 * inverse(exp(2.0 * values) + 1.0)


def erf(values: Tensor) -> Tensor:
    """Of float64; below -5 and above 5 as there."""
    values = values.clamp(-_FARTHEST, _FARTHEST)
    square = values * values
    return (values * _polynomial(_ERF, square)) * exp(-square)


def power(base: float, exponent: int) -> float:
    """base**exponent, exponent at least 0, by squares: the least binary digit first."""
    found, square = 1.0, base
    while exponent:
        if exponent & 1:
            found = found * square
        square, exponent = square * square, exponent >> 1
    return found


def _turned(values: Tensor, quarter: int) -> Tensor:
    """The sine of values + quarter x pi / 2."""
    turns = torch.round(values * _PER_QUARTER)
    rest = values
    for part in _QUARTERS:
        rest = rest - turns * part
    square, place = rest * rest, (turns.to(torch.int64) + quarter) & 3
    found = torch.where(place % 2 == 0, rest * _polynomial(_SIN, square), _polynomial(_COS, square))
    return torch.where(place >= 2, -found, found)


def _polynomial(coefficients: list[float], at: Tensor) -> Tensor:
    found = torch.full_like(at, coefficients[-1])
    for one in reversed(coefficients[:-1]):
        found = found * at
        found = found + one
    return found
