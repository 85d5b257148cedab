"""Products and sums whose bits depend on no order, beside a second implementation in integers."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dlx.training.exact.grid import bits_of, on_grid, power_of_two, product, scattered, total
from tests.training.devices import DEVICES
from tests.training.exact import second

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32) | st.just(0.0)


def matrix(rows: int, columns: int, seed: int) -> np.ndarray:
    """Lines of very different sizes."""
    numbers = np.random.default_rng(seed)
    found = numbers.standard_normal((rows, columns)) * np.exp(4 * numbers.standard_normal((rows, 1)))
    return found.astype(np.float32)


@pytest.mark.parametrize("bits", [7, 15, 21])
@pytest.mark.parametrize(("rows", "length", "columns"), [(1, 1, 1), (3, 5, 4), (17, 300, 9), (5, 1025, 3)])
def test_a_product_is_that_of_integers(rows: int, length: int, columns: int, bits: int) -> None:
    left, right = matrix(rows, length, 1), matrix(length, columns, 2)
    found = product(torch.from_numpy(left), torch.from_numpy(right), bits).numpy()
    assert found.tobytes() == second.product(left, right, bits).tobytes()
    scale = np.abs(left).max(1)[:, None] * np.abs(right).max(0)[None, :] * length
    assert (np.abs(found - left.astype(np.float64) @ right) <= scale * 2.0 ** (1 - bits)).all()


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
@pytest.mark.parametrize("bits", [7, 21])
def test_order_batches_and_devices_change_no_bit(bits: int, device: str) -> None:
    left, right = torch.from_numpy(matrix(24, 700, 3)), torch.from_numpy(matrix(700, 10, 4))
    whole, order = product(left, right, bits), torch.randperm(700, generator=torch.Generator().manual_seed(1))
    assert torch.equal(product(left[:, order], right[order], bits), whole)
    assert torch.equal(product(left.to(device), right.to(device), bits).cpu(), whole)
    stacked = product(left.view(4, 6, 700), right.expand(4, 700, 10), bits)
    assert torch.equal(stacked.view(24, 10), whole)
    assert torch.equal(product(right.mT.contiguous(), left.mT.contiguous(), bits), whole.mT)


@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 40)), elements=FLOATS))
def test_a_sum_is_that_of_integers_and_near_the_true_one(values: np.ndarray) -> None:
    found = total(torch.from_numpy(values), [1]).numpy()
    assert found.tobytes() == second.total(values).tobytes()
    for line, one in zip(values, found, strict=True):
        true, largest = second.exactly(line), Fraction(float(np.abs(line).max()))
        assert abs(Fraction(float(one)) - true) <= abs(true) * Fraction(2) ** -24 + largest * Fraction(2) ** -39


def test_sums_take_any_dimensions() -> None:
    values = torch.from_numpy(matrix(24, 30, 5)).view(4, 6, 30)
    for dims in ([], [0], [-1], [0, 2], [1, 0]):
        kept = total(values, dims, keepdim=True)
        assert torch.allclose(kept, values.double().sum(dims or None, keepdim=True).float())
        assert torch.equal(total(values, dims), kept.reshape(total(values, dims).shape))
    assert total(torch.zeros(3, 0), [1]).tolist() == [0, 0, 0]
    assert total(torch.tensor(2.5), []) == 2.5


def test_scattered_rows_are_summed_in_integers() -> None:
    values, rows = matrix(50, 7, 6), np.random.default_rng(7).integers(0, 9, 50)
    found = scattered(torch.from_numpy(values), torch.from_numpy(rows), 12).numpy()
    assert found.tobytes() == second.scattered(values, rows, 12).tobytes()
    assert not found[9:].any()


@given(st.lists(FLOATS, min_size=1, max_size=8), st.integers(2, 40))
def test_a_grid_holds_a_line_to_half_of_its_unit(line: list[float], bits: int) -> None:
    values = torch.tensor(line)
    found = on_grid(values, 0, bits)
    assert (found.integers.abs() <= 2**bits).all() and torch.equal(found.integers, found.integers.round())
    unit = power_of_two(found.exponents)
    assert ((found.integers * unit - values.double()).abs() <= unit / 2).all()


def test_bits_that_float64_has_no_room_for_are_left_out() -> None:
    assert [bits_of(21, length) for length in (1, 1024, 1025, 1 << 20)] == [21, 21, 20, 16]
    assert bits_of(7, 1 << 20) == 7


def test_a_zero_is_positive_whatever_the_order_made_of_it() -> None:
    zeros = torch.tensor([[-1.0, 1.0]]) * torch.zeros(2, 2)
    for found in (product(torch.tensor([[-1.0]]), torch.zeros(1, 1), 21), total(-zeros, [1]), total(zeros, [0])):
        assert not found.signbit().any()


def test_a_column_that_is_not_finite_is_nan_in_all_rows() -> None:
    """As a whole number it would be another one on each machine."""
    values = torch.tensor([[1.0, math.inf, 3.0], [2.0, 5.0, math.nan]])
    found = scattered(values, torch.tensor([0, 1]), 3)
    assert found[:, 0].tolist() == [1.0, 2.0, 0.0] and found[:, 1:].isnan().all()
