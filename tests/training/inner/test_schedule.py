from itertools import pairwise

import pytest

from dlx.training.inner.schedule import factor
from dlx.training.recipe.recipe import Inner


def _factors(total: int, **keys: object) -> list[float]:
    inner = Inner(**({"warmup": 0.1, "final": 0.1} | keys))  # type: ignore[arg-type]
    return [factor(inner, index, total) for index in range(total + 1)]


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_rate_warms_up_in_a_straight_line(schedule: str) -> None:
    factors = _factors(100, schedule=schedule)
    assert factors[:10] == [pytest.approx((index + 1) / 10) for index in range(10)]
    assert factors[10] == 1.0


def test_a_cosine_goes_down_from_the_warm_up_on() -> None:
    factors = _factors(100)
    assert factors[55] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(factors[10:]))


def test_wsd_is_stable_and_then_goes_down_in_a_straight_line() -> None:
    factors = _factors(100, schedule="wsd", decay=0.2)
    assert factors[10:81] == [1.0] * 71
    assert factors[81] == pytest.approx(1 - 0.9 / 20)
    assert factors[90] == pytest.approx(0.55)
    assert factors[99] == pytest.approx(0.1 + 0.9 / 20)
    assert factors[100] == pytest.approx(0.1)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_ends_of_the_keys_ranges(schedule: str) -> None:
    assert _factors(1, schedule=schedule, warmup=1.0)[0] == 1.0
    assert _factors(1, schedule=schedule, warmup=0.0)[0] == 1.0
    assert _factors(10, schedule=schedule, warmup=1.0) == [pytest.approx((i + 1) / 10) for i in range(10)] + [1.0]
    assert _factors(10, schedule=schedule, final=1.0)[1:] == [1.0] * 10
    assert _factors(10, schedule=schedule, final=0.0)[10] == pytest.approx(0, abs=1e-12)
    assert factor(Inner(schedule=schedule, final=0.1), 1000, 100) == pytest.approx(0.1)  # type: ignore[arg-type]


def test_wsd_without_a_decay_never_goes_down_and_with_decay_all_the_way_starts_after_the_warm_up() -> None:
    assert _factors(50, schedule="wsd", decay=0.0)[5:50] == [1.0] * 45
    factors = _factors(100, schedule="wsd", decay=1.0)
    assert factors[10] == 1.0 > factors[11]
    assert factors[55] == pytest.approx(0.55)


def test_the_factor_is_that_of_the_step_however_the_steps_are_divided_into_rounds() -> None:
    inner, total = Inner(schedule="wsd"), 100
    fixed = [factor(inner, round * 10 + step, total) for round in range(10) for step in range(10)]
    lengths, steps_before, adaptive = [5, 20, 50, 25], 0, []
    for steps in lengths:
        adaptive += [factor(inner, steps_before + step, total) for step in range(steps)]
        steps_before += steps
    assert adaptive == fixed
