"""The run's order of samples."""

from bisect import bisect_right
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.training.data.order import WINDOW, SampleOrder

COUNTS = st.lists(st.integers(0, 60), min_size=1, max_size=14).filter(any)


@given(counts=COUNTS, seed=st.integers(0, 2**53 - 1))
def test_no_sample_comes_twice_in_an_epoch_and_none_is_left_out(counts: list[int], seed: int) -> None:
    order, samples = SampleOrder(seed, counts), sum(counts)
    assert order.samples == samples
    for epoch in (0, 1, 7):
        assert sorted(order.ids(range(epoch * samples, (epoch + 1) * samples))) == list(range(samples))


@given(samples=st.integers(1, 2**40), first=st.integers(0, 2**50), seed=st.integers(0, 2**53 - 1))
def test_samples_exist_however_far_the_run_and_however_large_the_data(samples: int, first: int, seed: int) -> None:
    ids = SampleOrder(seed, [samples]).ids(range(first, first + 8))
    assert len(ids) == 8
    assert all(0 <= sample < samples for sample in ids)


def test_the_order_is_shuffled_and_differs_by_seed_and_epoch() -> None:
    def order(seed: int, first: int) -> list[int]:
        return SampleOrder(seed, [250] * 4).ids(range(first, first + 1000))

    orders = [order(0, 0), order(1, 0), order(0, 1000)]
    for one in orders:
        assert sum(a == b for a, b in zip(one, sorted(one), strict=True)) < 20
        assert abs(float(np.corrcoef(one, np.arange(1000))[0, 1])) < 0.15
        assert sum(abs(a - b) == 1 for a, b in pairwise(one)) < 20
    assert sum(a == b for a, b in zip(orders[0], orders[1], strict=True)) < 20
    assert sum(a == b for a, b in zip(orders[0], orders[2], strict=True)) < 20


def test_each_epoch_puts_other_shards_together() -> None:
    order = SampleOrder(3, [10] * 40)
    windows = [{frozenset(order.shards([(at, at + 1)])) for at in range(low, low + 400)} for low in (0, 400)]
    assert all(len(one) == 10 for one in windows)
    assert not windows[0] & windows[1]


@pytest.mark.parametrize("need", [1, 80, 4000])
def test_a_round_reads_few_shards_of_a_large_data_set(need: int) -> None:
    """2,000 shards of 8,192 samples: a lot lies in the shards of one window, or of two where it ends one."""
    counts = [8192] * 2000
    order, ends = SampleOrder(5, counts), list(accumulate(counts))
    for first in (0, 123_456, 16_000_000, 16_384_000 - need // 2):
        read = {bisect_right(ends, sample) for sample in order.ids(range(first, first + need))}
        assert read <= set(order.shards([(first, first + need)]))
        assert len(order.shards([(first, first + need)])) <= 2 * WINDOW


def test_shards_are_named_in_the_order_in_which_they_are_read() -> None:
    order = SampleOrder(0, [4] * 16)
    whole = order.shards([(0, 64)])
    assert sorted(whole) == list(range(16))
    assert order.shards([(16, 64), (64, 65)]) == [
        *whole[4:],
        *(one for one in order.shards([(64, 65)]) if one in whole[:4]),
    ]


def test_shards_without_a_sample_are_not_read() -> None:
    assert SampleOrder(0, [0, 7, 0]).shards([(0, 20)]) == [1]
    assert sorted(SampleOrder(9, [0, 7, 0]).ids(range(7))) == list(range(7))


def test_the_order_does_not_change_from_one_release_to_the_next() -> None:
    assert SampleOrder(7, [300, 100, 0, 250, 50, 300]).ids(range(416, 424)) == [338, 456, 442, 913, 38, 825, 131, 783]
    assert SampleOrder(0, [123_456_789]).ids(range(4)) == [123252298, 118034687, 75947205, 78626348]
