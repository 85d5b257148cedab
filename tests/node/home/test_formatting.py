import pytest

from dlx.node.home.formatting import bar, counted, lasting, size


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (884_600, "884.6 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (464_812_345, "464.8 MB"),
        (3 * 10**18, "3,000.0 PB"),
    ],
)
def test_bytes_for_people(count: int, said: str) -> None:
    assert size(count) == said


@pytest.mark.parametrize(
    ("days", "said"),
    [(0.00001, "864 ms"), (1, "24 h"), (729.9, "729.9 days"), (730, "2.0 years"), (86_070.9, "235.6 years")],
)
def test_times_for_people(days: float, said: str) -> None:
    assert lasting(days * 86400) == said


def test_counted_work_says_of_what() -> None:
    assert counted([2, 2], 3) == "2 of 3 replicas"
    assert counted([1], 1) == "1 of 1 replica"
    assert counted([2, 0, 1], 2) == "0 to 2 of 2 replicas"


def test_a_bar_says_how_much_is_done_and_never_more_than_all() -> None:
    assert bar(0, 4) == f"[{'.' * 20}] 0%" and bar(1, 4) == f"[#####{'.' * 15}] 25%"
    assert bar(9, 4) == bar(0, 0) == f"[{'#' * 20}] 100%"
