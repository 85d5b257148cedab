"""The convergence benchmark's picture: its curves end where the table says, and can be told apart without colours."""

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import picture
from benchmarks.convergence import METHODS
from benchmarks.trainings import Job, Result, Setting


def result(end: float) -> Result:
    curve = [(steps, 100 * steps, end + 1 / steps) for steps in (10, 20)] + [(30, 3000, end)]
    return {"loss": end, "curve": curve}


@pytest.fixture
def trained() -> tuple[list[Job], dict[str, Result]]:
    jobs = [Job(method, Setting("*.py"), 0.01, seed, 30) for method in METHODS for seed in range(method.seeds)]
    return jobs, {job.key: result(1 + index / 10) for index, job in enumerate(jobs)}


def test_a_curve_ends_with_the_loss_in_the_table(trained: tuple[list[Job], dict[str, Result]]) -> None:
    jobs, results = trained
    curves = picture.curves(jobs, results)
    assert [curve.name for curve in curves] == [method.name for method in METHODS]
    for curve in curves:
        losses = [results[job.key]["loss"] for job in jobs if job.method.name == curve.name]
        assert curve.points[-1] == (30 * 4 * 2 * 128, 3000, pytest.approx(statistics.mean(losses)))


def test_every_method_has_a_look_of_its_own_in_few_colours(trained: tuple[list[Job], dict[str, Result]]) -> None:
    looks = picture.styles(picture.curves(*trained))
    assert len(set(looks)) == len(METHODS)
    assert len({colour for colour, _, _ in looks}) <= 4


def test_names_are_moved_apart_no_more_than_needed() -> None:
    assert picture.spread([5.0, 1.0, 3.0], 1.0) == [5.0, 1.0, 3.0]
    assert picture.spread([2.0, 2.0], 1.0) == [1.5, 2.5]
    places = [1.12, 1.21, 1.18, 1.2, 1.23, 1.26, 1.3, 1.34, 1.37, 1.88]
    moved = picture.spread(places, 0.06)
    assert all(b - a > 0.0599 for a, b in pairwise(sorted(moved)))
    assert sorted(range(10), key=moved.__getitem__) == sorted(range(10), key=places.__getitem__)
    assert moved[-1] == 1.88


def test_the_picture_is_drawn(trained: tuple[list[Job], dict[str, Result]], tmp_path: Path) -> None:
    picture.draw(picture.curves(*trained), tmp_path / "convergence.png")
    assert (tmp_path / "convergence.png").stat().st_size > 10_000
