"""Exact arithmetic once more, as docs/protocol/exact.md says it: integers of 64 bits in numpy, and plain Python floats.
No BLAS, no torch, no function of a mathematical library."""

import struct
from fractions import Fraction

import numpy as np

Values = np.ndarray


def on_grid(values: Values, bits: int) -> tuple[Values, Values]:
    """Of lines along the last axis: integers, and the exponent of each line."""
    largest = np.abs(values.astype(np.float64)).max(-1, initial=0.0)
    exponents = np.frexp(largest)[1].astype(np.int64) - bits
    return np.rint(np.ldexp(values.astype(np.float64), -exponents[..., None])).astype(np.int64), exponents


def product(left: Values, right: Values, bits: int) -> Values:
    """[n, k] x [k, m]."""
    kept = min(bits, (52 - log2(left.shape[-1])) // 2)
    rows, of_rows = on_grid(left, kept)
    columns, of_columns = on_grid(right.T, kept)
    sums = rows @ columns.T
    return np.ldexp(sums.astype(np.float64), of_rows[:, None] + of_columns[None, :]).astype(np.float32)


def total(values: Values) -> Values:
    """Along the last axis."""
    integers, exponents = on_grid(values, 52 - log2(values.shape[-1]))
    return np.ldexp(integers.sum(-1).astype(np.float64), exponents).astype(values.dtype)


def scattered(values: Values, rows: Values, count: int) -> Values:
    integers, exponents = on_grid(values.T, 52 - log2(len(values)))
    sums = np.zeros((count, values.shape[1]), np.int64)
    for row, one in zip(rows, integers.T, strict=True):
        sums[row] += one
    return np.ldexp(sums.astype(np.float64), exponents[None, :]).astype(values.dtype)


def log2(length: int) -> int:
    return (length - 1).bit_length()


# ---- functions: a Python float is float64, and each operation of it rounds once

LN2 = (float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33"))
QUARTERS = [float.fromhex(one) for one in ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")]


def factorial(number: int) -> float:
    return float(factorial(number - 1) * number) if number else 1.0


def polynomial(coefficients: list[float], at: float) -> float:
    found = coefficients[-1]
    for one in coefficients[-2::-1]:
        found = found * at + one
    return found


def nearest(value: float) -> int:
    """The nearest integer, halves to even."""
    return round(value)


def exp(value: float) -> float:
    value = min(max(value, -700.0), 700.0)
    doublings = nearest(value * float.fromhex("0x1.71547652b82fep+0"))
    rest = (value - doublings * LN2[0]) - doublings * LN2[1]
    return polynomial([1.0 / factorial(power) for power in range(14)], rest) * 2.0**doublings


def log(value: float) -> float:
    exponent = (struct.unpack("<q", struct.pack("<d", value))[0] >> 52) - 1022
    fraction = value / 2.0**exponent  # 0.5 to 1
    if fraction < float.fromhex("0x1.6a09e667f3bcdp-1"):
        fraction, exponent = fraction * 2, exponent - 1
    ratio = (fraction - 1) / (fraction + 1)
    series = polynomial([2.0 / (2 * power + 1) for power in range(12)], ratio * ratio)
    return (ratio * series + exponent * LN2[1]) + exponent * LN2[0]


def turned(value: float, quarter: int) -> float:
    turns, rest = nearest(value * float.fromhex("0x1.45f306dc9c883p-1")), value
    for part in QUARTERS:
        rest = rest - turns * part
    place, square = (turns + quarter) % 4, rest * rest
    sine = rest * polynomial([(-1.0) ** power / factorial(2 * power + 1) for power in range(9)], square)
    cosine = polynomial([(-1.0) ** power / factorial(2 * power) for power in range(9)], square)
    return (cosine if place % 2 else sine) * (-1 if place >= 2 else 1)


def sin(value: float) -> float:
    return turned(value, 0)


def cos(value: float) -> float:
    return turned(value, 1)


def sigmoid(value: float) -> float:
    return 1.0 / (1.0 + exp(-value))


def tanh(value: float) -> float:
    return 1.0 - 2.0 * (1.0 / (exp(2.0 * value) + 1.0))


def erf(value: float) -> float:
    value = min(max(value, -5.0), 5.0)
    coefficients = [float.fromhex("0x1.20dd750429b6dp+0")]
    for power in range(1, 100):
        coefficients.append(coefficients[-1] * 2.0 / (2 * power + 1))
    return (value * polynomial(coefficients, value * value)) * exp(-(value * value))


def power(base: float, exponent: int) -> float:
    found = 1.0
    for digit in reversed(bin(exponent)[2:]):
        if digit == "1":
            found = found * base
        base = base * base
    return found


def exactly(values: Values) -> Fraction:
    """Their sum, without any rounding."""
    return sum((Fraction(float(one)) for one in values.ravel()), Fraction())
