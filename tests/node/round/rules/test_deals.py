"""Who trains on what, from a view of the ledger."""

import time
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ledger.typed import Plan
from dlx.ledger.view.seal_log import SealLog
from dlx.node.round.rules.deals import Deals
from dlx.node.round.rules.plans import Terms
from dlx.training.data.dealing import Intervals
from dlx.training.recipe.recipe import Adaptive

STEPS, BATCH, REPLICAS = 5, 4, 8
NEED = STEPS * BATCH


def terms(delay: int, **changes: Any) -> Terms:
    values: dict[str, Any] = {"plan": Plan(4, 0, STEPS), "codec": "int4", "adaptive": None, "tokens_per_step": 64}
    return Terms(rounds=1000, delay=delay, **(values | changes))


class View:
    """As much of a run's view as deals rest on: what the seals of stage 0 count and plan."""

    def __init__(self) -> None:
        self.sealed = SealLog(keep=2)

    def next_round(self, stage: int) -> int:
        assert stage == 0
        return self.sealed.rounds(0)

    def seal(self, *replicas: int, steps: int = STEPS, done: int = STEPS) -> "View":
        outcome = SimpleNamespace(weights=bytes(32), momentum=bytes(32), plan=SimpleNamespace(inner_steps=steps))
        records = [SimpleNamespace(replica=one, inner_steps=done) for one in replicas]
        one: Any = SimpleNamespace(stage=0, round=self.next_round(0), outcome=outcome, records=records)
        self.sealed.append(one, bytes(32))
        return self


def view(*seals: Sequence[int]) -> Any:
    found = View()
    for one in seals:
        found.seal(*one)
    return found


def _places(intervals: Intervals) -> list[int]:
    return [one for low, high in intervals for one in range(low, high)]


@pytest.mark.parametrize("delay", [0, 1])
def test_lots_are_known_with_the_version_that_the_round_begins_with(delay: int) -> None:
    deals = Deals(terms(delay), REPLICAS, BATCH)
    assert deals.known(view(), delay) and not deals.known(view(), delay + 1)
    assert deals.lot(view(), 0, 3) == ((3 * NEED, 4 * NEED),)
    with pytest.raises(KeyError):
        deals.lot(view(), delay + 1, 0)
    assert deals.lot(view([1, 3]), delay + 1, 3) != deals.lot(view([1, 3]), delay + 1, 1)


def test_whoever_asks_in_whatever_order_gets_the_same() -> None:
    chance, seen = Random(2), View()
    for _ in range(150):
        seen.seal(*sorted(chance.sample(range(REPLICAS), chance.randrange(4))))
    whole: Any = seen
    rounds = list(range(150))
    chance.shuffle(rounds)
    kept = Deals(terms(1), REPLICAS, BATCH)
    for round in [*rounds[:40], 149, 150, 151]:
        replica = chance.randrange(REPLICAS)
        assert kept.lot(whole, round, replica) == Deals(terms(1), REPLICAS, BATCH).lot(whole, round, replica)


def test_seals_that_were_taken_back_are_dealt_anew() -> None:
    deals = Deals(terms(0), REPLICAS, BATCH)
    before = [[0, 1]] * 40
    first, other, shorter = view(*before, [0, 1], [0, 1]), view(*before, [1], [1]), view(*before[:35])
    fresh = Deals(terms(0), REPLICAS, BATCH)
    assert deals.lot(first, 42, 1) != deals.lot(other, 42, 1) == fresh.lot(other, 42, 1)
    assert deals.lot(first, 42, 1) == Deals(terms(0), REPLICAS, BATCH).lot(first, 42, 1)
    assert deals.lot(shorter, 35, 0) == Deals(terms(0), REPLICAS, BATCH).lot(shorter, 35, 0)


def test_an_adaptive_rounds_lot_is_as_long_as_its_seals_plan() -> None:
    adapts = terms(1, adaptive=Adaptive(inner_steps=1000))
    seen: Any = View().seal(0, 1, steps=7).seal(0, 1, steps=9)
    deals = Deals(adapts, REPLICAS, BATCH)
    lots = [[_places(deals.lot(seen, round, replica)) for replica in (0, 1)] for round in range(4)]
    assert [len(lot) for lot, _ in lots] == [STEPS * BATCH, STEPS * BATCH, 7 * BATCH, 9 * BATCH]
    seen_twice = [one for round in lots for lot in round for one in lot]
    assert len(seen_twice) == len(set(seen_twice))


@pytest.mark.parametrize("delay", [0, 1])
def test_what_a_slow_replica_had_no_time_for_is_dealt_again(delay: int) -> None:
    deals = Deals(terms(delay), REPLICAS, BATCH)

    def dealt(seen: View) -> set[int]:
        """In the rounds after the first one is decided, of which the second is empty."""
        whole: Any = seen.seal()
        lots = [deals.lot(whole, delay + at, replica) for at in (1, 2) for replica in range(REPLICAS)]
        return {one for lot in lots for one in _places(lot)}

    lot = _places(deals.lot(view(), 0, 1))
    assert dealt(View().seal(1)).isdisjoint(lot)
    assert dealt(View().seal(1, done=2)) & set(lot) == set(lot[2 * BATCH :])


@pytest.mark.parametrize("delay", [0, 1])
def test_what_comes_is_foreseen_while_the_same_are_counted(delay: int) -> None:
    """So that shards are here before their round: a newcomer's too, who expects to be counted."""
    seen, deals = view(*[[2, 4]] * 10), Deals(terms(delay), REPLICAS, BATCH)
    expected = _places(deals.coming(seen, 10, 2, 3))
    trained = []
    for round in (10, 11, 12):
        while not deals.known(seen, round):
            seen.seal(2, 4)
        trained += _places(deals.lot(seen, round, 2))
    assert expected == trained
    assert len(_places(deals.coming(view(), 0, 5, 3))) == 3 * NEED


def test_a_long_run_is_taken_up_in_time_that_grows_with_its_rounds_and_followed_at_once() -> None:
    def seconds(rounds: int) -> tuple[float, float]:
        """To take up a run of so many rounds, and to follow 100 more."""
        seen, deals = View(), Deals(terms(1), 64, BATCH)
        for round in range(rounds):
            seen.seal(*((0, 1, 5) if round % 3 else (0, 5)))
        whole: Any = seen
        began = time.process_time()
        deals.lot(whole, rounds + 1, 0)
        taken_up = time.process_time()
        for round in range(rounds, rounds + 100):
            seen.seal(0, 1)
            deals.lot(whole, round, 1)
        return taken_up - began, time.process_time() - taken_up

    (tenth, _), (whole, followed) = seconds(4_000), seconds(40_000)
    assert whole < 30 * tenth, "ten times the rounds: a hundred times the work if each looked at all before it"
    assert followed < whole / 5
