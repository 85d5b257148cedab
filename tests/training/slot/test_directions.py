"""Deviations that have a common direction, and those that have none."""

import numpy as np
import pytest

from dlx.training.slot.directions import MOST, WIDE, Common, Directions, Projection
from dlx.training.slot.distances import WEIGHTS, Part

MATRICES, NORMS = (str(Part(WEIGHTS, tensors)) for tensors in ("matrices", "vectors"))  # type: ignore[arg-type]
RANDOM = np.random.default_rng(0)


def _common(part: str, draws: int, steady: float, dimensions: int = 5000, noise: float = 1.0) -> Common:
    """Of deviations of a steady direction of that length and of chance."""
    found, projection, direction = Common(part), Projection(b"mine"), _direction(dimensions)
    for _ in range(draws):
        deviation = noise * _direction(dimensions) + steady * direction
        found.add(projection.of("a", deviation).astype(np.float32))
    return found


def _direction(dimensions: int) -> np.ndarray:
    values = RANDOM.standard_normal(dimensions)
    return values / np.linalg.norm(values)


def test_a_projection_keeps_scalar_products_and_nobody_knows_it_without_the_key() -> None:
    one, other, mine = _direction(3 << 19), _direction(3 << 19), Projection(b"mine")
    assert np.square(mine.of("a", one)).sum() == pytest.approx(1, abs=0.2)
    assert mine.of("a", one) @ mine.of("a", 3 * one + other) == pytest.approx(3, abs=0.6)
    for projection, name in ((mine, "b"), (Projection(b"yours"), "a")):
        assert abs(mine.of("a", one) @ projection.of(name, one)) < 0.2
    assert np.array_equal(mine.of("a", one.reshape(3, -1)), Projection(b"mine").of("a", one))


@pytest.mark.parametrize(("part", "dimensions"), [(MATRICES, 5000), (NORMS, 5000), (NORMS, 16), (NORMS, 4)])
def test_directions_by_chance_are_honest_however_few_dimensions_there_are(part: str, dimensions: int) -> None:
    for draws in (2, 12, 60):
        found = _common(part, draws, 0.0, dimensions)
        assert found.score < MOST and found.draws == draws
    assert _common(part, 60, 0.0).ratio == pytest.approx(1, abs=0.3)


def test_a_single_direction_is_found_in_4_draws_where_chance_has_many_dimensions_and_in_12_elsewhere() -> None:
    assert [_common(MATRICES, draws, 1.0, noise=0.0).score > MOST for draws in (3, 4)] == [False, True]
    assert [_common(NORMS, draws, 1.0, noise=0.0).score > MOST for draws in (11, 12)] == [False, True]
    steady = _common(NORMS, 12, 1.0, noise=0.0)
    assert steady.ratio == pytest.approx(12) and steady.cosine == pytest.approx(1)


@pytest.mark.parametrize(("steady", "draws"), [(0.6, 12), (0.3, 60)])
def test_noise_of_ones_own_hides_a_direction_only_where_little_is_drawn(steady: float, draws: int) -> None:
    assert _common(MATRICES, draws, steady).score > MOST
    assert _common(MATRICES, 2, steady).score < MOST


def test_faults_name_the_part() -> None:
    directions, steady = Directions(), Projection(b"mine").of("a", _direction(100)).astype("<f4").tobytes()
    directions.add({MATRICES: steady, NORMS: steady})
    assert directions.faults() == ()
    for _ in range(3):
        directions.add({MATRICES: steady})
    (fault,) = directions.faults()
    assert fault.startswith("the deviations of weights of the layers' matrices add up: a mean cosine of 1 in 4 draws")


def test_the_parts_of_many_dimensions_are_parts() -> None:
    assert (MATRICES, str(Part(WEIGHTS, "embeddings"))) == WIDE
