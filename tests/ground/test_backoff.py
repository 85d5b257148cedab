from random import Random

import pytest

from dlx.ground.backoff import Backoff


class Never(Random):
    def random(self) -> float:
        return 0.0


class Always(Random):
    def random(self) -> float:
        return 1.0


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(first=0.5, cap=5)
    assert [backoff.delay(failures, Never()) for failures in range(1, 7)] == [0.5, 1, 2, 4, 5, 5]
    assert backoff.delay(10**6, Never()) == 5


def test_chance_takes_off_at_most_the_jitter() -> None:
    backoff = Backoff(first=1, cap=8, jitter=0.25)
    assert backoff.delay(1, Always()) == 0.75
    delays = {backoff.delay(3, Random(seed)) for seed in range(20)}
    assert len(delays) == 20 and all(3 <= delay <= 4 for delay in delays)


@pytest.mark.parametrize("wrong", [{"first": 0, "cap": 1}, {"first": 2, "cap": 1}, {"first": 1, "cap": 1, "jitter": 1}])
def test_a_back_off_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="back-off"):
        Backoff(**wrong)
