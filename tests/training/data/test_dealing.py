"""Who trains on which positions: everything once, whoever is there."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.training.data.dealing import Deal, Dealing, cut, positions, union

REPLICAS = 8
INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda one: (one[0], sum(one))), max_size=8)


@dataclass
class Run:
    """Rounds dealt one after the other; `taken`: what those took of their lots whom the round's seal counted."""

    delay: int
    dealing: Dealing = field(init=False)
    deals: list[Deal] = field(default_factory=list)
    taken: list[Mapping[int, int]] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)  # positions that were counted, in the order of their rounds

    def __post_init__(self) -> None:
        self.dealing = Dealing(REPLICAS, self.delay)

    def round(self, counted: Sequence[int], need: int, taken: Mapping[int, int] | None = None) -> None:
        deal, taken = self.dealing.deal(need), dict.fromkeys(counted, need) if taken is None else taken
        for replica, took in taken.items():
            self.trained += positions(deal.lot(replica), 0, took)
        self.deals.append(deal)
        self.taken.append(taken)
        decided = len(self.deals) - 1 - self.delay
        self.dealing = self.dealing.after(need, self.taken[decided] if decided >= 0 else None)


def _two(round: int, chance: Random) -> list[int]:
    return [0, 1]


def _scattered(round: int, chance: Random) -> list[int]:
    return [3, 6]


def _coming_and_going(round: int, chance: Random) -> list[int]:
    present = ([0, 1], [0, 5], [5, 7], [2, 5, 7], [2])[round // 40 % 5]
    return [one for one in present if chance.random() < 0.8]


def _unsealed(round: int, chance: Random) -> list[int]:
    return [] if chance.random() < 0.3 else [1, 4]


def _same(round: int) -> int:
    return 8


def _adaptive(round: int) -> int:
    return (8, 12, 20, 28, 20)[round // 30 % 5]


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("who", [_two, _scattered, _coming_and_going, _unsealed])
@pytest.mark.parametrize("need", [_same, _adaptive])
def test_every_sample_is_seen_once_before_any_twice(
    delay: int, who: Callable[[int, Random], list[int]], need: Callable[[int], int]
) -> None:
    run, chance, samples = Run(delay), Random(1), 50_000
    while len(run.trained) < samples:
        run.round(who(len(run.deals), chance), need(len(run.deals)))
    seen = Counter(run.trained)
    assert max(seen.values()) == 1, "no position is counted twice"
    assert sum(one < samples for one in seen) >= 0.99 * samples
    assert sum(high - low for low, high in run.dealing.free[:-1]) <= 3 * REPLICAS * need(len(run.deals) - 1)


@pytest.mark.parametrize("who", [[0, 1], [3, 6], [0, 7]])
def test_two_of_eight_replicas_see_all_of_a_tiny_data_set_in_its_first_epoch(who: list[int]) -> None:
    run = Run(0)
    while len(run.trained) < 1000:
        run.round(who, 4)
    assert sorted(run.trained) == list(range(1000))


@given(
    delay=st.integers(0, 1),
    rounds=st.lists(
        st.integers(1, 7).flatmap(
            lambda need: st.tuples(
                st.dictionaries(st.integers(0, REPLICAS - 1), st.integers(1, need), max_size=REPLICAS), st.just(need)
            )
        ),
        max_size=25,
    ),
)
def test_lots_are_whole_apart_from_each_other_and_nothing_is_lost(
    delay: int, rounds: list[tuple[dict[int, int], int]]
) -> None:
    run = Run(delay)
    for taken, need in rounds:
        run.round((), need, taken)
        deal = run.deals[-1]
        lots = [positions(deal.lot(replica), 0, need) for replica in range(REPLICAS)]
        assert all(len(lot) == need for lot in lots)
        mine = [one for lot in lots for one in lot]
        others = {
            one
            for before in run.deals[max(0, len(run.deals) - 1 - delay) : -1]
            for replica in range(REPLICAS)
            for one in positions(before.lot(replica), 0, before.need)
        }
        assert len({*mine, *others}) == len(mine) + len(others), "nor from what is not decided yet"
    undecided = {
        one
        for deal in run.dealing.open
        for replica in range(REPLICAS)
        for one in positions(deal.lot(replica), 0, deal.need)
    }
    *holes, (tail, _) = run.dealing.free
    free = {one for low, high in holes for one in range(low, high)}
    assert len(run.trained) == len(set(run.trained))
    assert free | undecided | set(run.trained) == set(range(max([tail, *(one + 1 for one in undecided)])))
    assert not free & (undecided | set(run.trained))


@pytest.mark.parametrize("delay", [0, 1])
def test_whoever_is_counted_round_after_round_walks_on_without_gaps(delay: int) -> None:
    """So that a round reads where the round before ended."""
    run = Run(delay)
    for _ in range(60):
        run.round([2, 5], 10)
    for before, deal in zip(run.deals[-10:], run.deals[-9:], strict=False):
        assert len(union([*deal.lot(2), *deal.lot(5)])) == 1
        assert deal.lot(2)[0][0] == before.lot(5)[-1][1]


def test_an_unsealed_lot_comes_again_at_once_and_to_whoever_was_counted() -> None:
    run = Run(0)
    run.round([0, 1], 10)
    lost = run.dealing.deal(10).lot(1)
    run.round([0], 10)
    assert run.dealing.deal(10).lot(0) == lost
    run.round([], 10)
    assert run.dealing.deal(10).lot(0) == lost


def test_a_hundred_thousand_rounds_are_dealt_in_seconds() -> None:
    began, dealing, everybody = time.process_time(), Dealing(64, 1), dict.fromkeys(range(0, 64, 2), 80)
    for round in range(100_000):
        dealing = dealing.after(80, everybody if round else None)
    assert time.process_time() - began < 10
    assert dealing.free[-1][0] >= 100_000 * 80 * 31


@pytest.mark.slow
def test_seals_that_count_at_random_leave_few_pieces() -> None:
    """Each who takes a part of its lot cuts it in two, for a round or a few: what is left is dealt next. So there are a
    few for each replica, and no more after thousands of rounds than after hundreds."""
    chance, dealing = Random(0), Dealing(64, 1)
    pieces = list[int]()
    for round in range(3000):
        taken = {one: chance.randint(1, 70) for one in chance.sample(range(64), chance.randrange(64))}
        dealing = dealing.after(chance.choice((70, 80, 113)), taken if round else None)
        pieces.append(len(dealing.free))
    assert max(pieces) < 5 * 64
    assert statistics.fmean(pieces[1500:]) < 1.1 * statistics.fmean(pieces[300:1500])


@given(intervals=INTERVALS, skip=st.integers(0, 80), length=st.integers(0, 80))
def test_intervals_are_sets_of_positions(intervals: list[tuple[int, int]], skip: int, length: int) -> None:
    def each(found: Sequence[tuple[int, int]]) -> list[int]:
        return [one for low, high in found for one in range(low, high)]

    whole = union(intervals)
    assert each(whole) == sorted(set(each(intervals)))
    assert each(cut(whole, skip, length)) == each(whole)[skip : skip + length] == positions(whole, skip, length)
