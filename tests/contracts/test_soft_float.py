"""The library SoftFloat against numpy: thousands of cases for each operation, none of which may differ in a bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.contracts.solidity import Chain, Contract

_SPECIAL = np.array(
    [0, 1, 0x7FFFFF, 0x800000, 0x800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x3F800000, 0x33800000, 0x33800001],
    np.uint32,
)
_BATCH = 1000


@pytest.fixture(scope="module")
def arithmetic() -> Contract:
    return Chain().deploy("Arithmetic")


def batch(arithmetic: Contract, operation: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found: list[int] = []
    for start in range(0, len(a), _BATCH):
        here = slice(start, start + _BATCH)
        found += arithmetic.read("batch", operation, a[here].tolist(), b[here].tolist())[0]
    return np.array(found, np.uint32)


def pairs(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Any bits, special ones, numbers of the outer step, subnormal products, sums that nearly cancel, and ties."""
    special = np.concatenate([_SPECIAL, _SPECIAL | 0x80000000])
    near, high = rng.integers(0x3F000000, 0x40000000, n, dtype=np.uint32), rng.integers(26, 250, n, dtype=np.uint32)

    def scaled(low: int, top: int) -> np.ndarray:
        return (rng.normal(0, 1, n) * 2.0 ** rng.integers(low, top, n)).astype(np.float32).view(np.uint32)

    rows = [
        (rng.integers(0, 2**32, n, dtype=np.uint32), rng.integers(0, 2**32, n, dtype=np.uint32)),
        (np.repeat(special, len(special)), np.tile(special, len(special))),
        (scaled(-12, 1), scaled(-12, 1)),
        (scaled(-140, -60), scaled(-80, 0)),
        (near, near + rng.integers(-3, 4, n).astype(np.uint32) ^ np.uint32(0x80000000)),
        (
            high << 23 | rng.integers(0, 1 << 23, n, dtype=np.uint32),
            high - rng.integers(20, 26, n, dtype=np.uint32) << 23 | rng.integers(0, 4, n, dtype=np.uint32) << 21,
        ),
    ]
    return np.concatenate([a for a, _ in rows]), np.concatenate([b for _, b in rows])


@pytest.mark.parametrize("cases", [300, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("operation", "function"), [(0, np.multiply), (1, np.add), (2, np.subtract)])
def test_it_computes_as_numpy(arithmetic, operation, function, cases):
    a, b = pairs(np.random.default_rng(operation + cases), cases)
    with np.errstate(all="ignore"):
        right = function(a.view(np.float32), b.view(np.float32))
    bits = np.where(np.isnan(right), np.uint32(0x7FC00000), right.view(np.uint32))
    np.testing.assert_array_equal(batch(arithmetic, operation, a, b), bits)


def test_it_divides_as_python(arithmetic):
    rng = np.random.default_rng(0)
    n = [
        1,
        3,
        2**96,
        2**111 - 1,
        0,
        32768,
        *(int(rng.integers(1, 2**62)) << int(rng.integers(0, 50)) for _ in range(900)),
    ]
    d = [
        2**117,
        3,
        2**96 + 1,
        2**117,
        5,
        32768,
        *(int(rng.integers(1, 2**62)) << int(rng.integers(0, 50)) for _ in range(900)),
    ]
    # Halves between two float32, which only the first rounding shows.
    n += [(1 << 60) + (2 * k + 1 << 36) + e for k in range(50) for e in (-1, 0, 1)]
    d += [1 << 60] * 150
    right = [np.float32(a / b) for a, b in zip(n, d, strict=True)]
    found = arithmetic.read("batch", 3, n, d)[0]
    np.testing.assert_array_equal(np.array(found, np.uint32), np.array(right).view(np.uint32))


def test_it_decodes_every_scale(arithmetic):
    """All finite binary16 numbers that are not negative, with codes of either sign."""
    scales = np.concatenate([np.arange(0, 0x400, 3), np.arange(0x400, 0x7C00, 29)])
    codes = np.random.default_rng(1).integers(-127, 128, len(scales))
    right = codes.astype(np.float32) * scales.astype(np.uint16).view(np.float16).astype(np.float32)
    a = abs(codes) * 2 + (codes < 0)
    np.testing.assert_array_equal(batch(arithmetic, 4, a, scales), right.view(np.uint32))
