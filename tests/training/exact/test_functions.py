"""Functions of five operations, beside a second implementation in Python's floats and beside the true values."""

import mpmath
import pytest
import torch

from dlx.training.exact import functions
from tests.training.exact import second

RANGES = {
    "exp": (-60.0, 60.0),
    "log": (1e-30, 1e30),
    "sin": (-5000.0, 5000.0),
    "cos": (-5000.0, 5000.0),
    "sigmoid": (-40.0, 40.0),
    "tanh": (-20.0, 20.0),
    "erf": (-5.0, 5.0),
}


def arguments(low: float, high: float) -> torch.Tensor:
    numbers = torch.rand(3000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if low > 0:
        return low * (high / low) ** numbers
    return torch.cat([low + (high - low) * numbers, torch.tensor([0.0, 1.0, -1.0, 0.5, low, high]).double()])


@pytest.mark.parametrize("name", RANGES)
def test_a_function_has_the_bits_of_the_second_implementation(name: str) -> None:
    given = arguments(*RANGES[name])
    found = getattr(functions, name)(given)
    assert found.tolist() == [getattr(second, name)(one) for one in given.tolist()]


@pytest.mark.parametrize("name", RANGES)
def test_a_function_is_near_the_true_values(name: str) -> None:
    given = arguments(*RANGES[name])
    mpmath.mp.prec = 200
    true_of = {"sigmoid": lambda one: 1 / (1 + mpmath.exp(-one))}.get(name, getattr(mpmath, name, None))
    for at, one in zip(given.tolist(), getattr(functions, name)(given).tolist(), strict=True):
        true = true_of(mpmath.mpf(at))
        least = mpmath.mpf(1) if name in ("sin", "cos", "tanh", "erf") else mpmath.mpf(0)
        assert abs(one - true) <= 5 * mpmath.mpf(2) ** -52 * max(abs(true), least), at


def test_ends_are_what_is_expected() -> None:
    zero, infinity = torch.tensor([0.0]).double(), torch.tensor([float("inf")]).double()
    assert functions.log(zero) == -infinity and functions.log(-infinity).isnan() and functions.exp(zero) == 1
    assert functions.exp(-infinity) == functions.exp(torch.tensor([-700.0]).double())
    assert functions.sigmoid(-infinity) < 1e-300 and functions.tanh(infinity) == 1


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 100, 12345])
def test_a_power_is_made_of_products(exponent: int) -> None:
    found = functions.power(0.95, exponent)
    assert found == second.power(0.95, exponent) and found == pytest.approx(0.95**exponent, rel=1e-12)
