"""The chain's time between its blocks."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.round import actions as a
from tests.node.round.simulation import Simulation, make_rules
from tests.patience import PATIENCE


class Times:
    def __init__(self, wall_ahead: float = 0.0) -> None:
        self.real, self._ahead = 1_800_000_000.0, wall_ahead

    def monotonic(self) -> float:
        return self.real - 1_799_999_000.0

    def wall(self) -> float:
        return self.real + self._ahead

    def clock(self) -> ChainClock:
        return ChainClock(self.monotonic, self.wall)


def test_a_wrong_wall_clock_changes_nothing_and_is_said() -> None:
    times = Times(wall_ahead=300.0)
    clock = times.clock()
    for _ in range(2):
        clock.see(int(times.real))
    times.real += 7.5
    assert clock.now() == times.real
    assert round(clock.skew) == 300 and clock.is_skewed


def test_it_goes_on_while_the_chain_is_silent() -> None:
    times = Times()
    clock = times.clock()
    clock.see(int(times.real))
    times.real += 3600
    assert clock.now() == times.real and not clock.is_skewed


def test_the_old_head_of_an_idle_chain_is_forgotten_with_the_next_block_and_blames_no_clock() -> None:
    times = Times()
    clock = times.clock()
    clock.see(int(times.real) - 29)
    assert clock.now() == times.real - 29 and not clock.is_skewed
    times.real += 1
    clock.see(int(times.real))
    assert clock.now() == times.real and not clock.is_skewed


def test_a_block_that_came_late_does_not_set_it_back() -> None:
    times = Times()
    clock = times.clock()
    clock.see(int(times.real))
    times.real += 10
    clock.see(int(times.real) - 8)
    assert clock.now() == times.real


def test_one_block_with_a_wrong_time_changes_nothing() -> None:
    times = Times()
    clock = times.clock()
    for seconds in (0, 0, 86_400, 0):
        times.real += 5
        clock.see(int(times.real) + seconds)
        assert abs(clock.now() - times.real) <= 1


def test_a_clock_that_was_set_wrong_by_the_first_blocks_is_set_right() -> None:
    times = Times()
    clock = times.clock()
    clock.see(int(times.real) + 86_400)
    assert clock.now() > times.real + 86_000
    for _ in range(3):
        times.real += 5
        clock.see(int(times.real))
    assert abs(clock.now() - times.real) <= 1


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(-25, 25)), max_size=40))
def test_it_never_goes_back_for_blocks_that_come_late_or_are_a_little_off(steps: list[tuple[float, int]]) -> None:
    times = Times()
    clock = times.clock()
    clock.see(int(times.real))
    latest = clock.now()
    for seconds, error in steps:
        times.real += seconds
        clock.see(int(times.real) + error)
        assert clock.now() >= latest
        latest = clock.now()


class Ahead(Simulation):
    """One member's wall clock is five minutes ahead of everybody's; it knows the chain's time by `ChainClock`."""

    def __init__(self) -> None:
        super().__init__(make_rules(rounds=11), replicas=2, seed=4)
        self.clock = ChainClock(lambda: self.now - 1e9, lambda: self.now + 300)
        self.wrong, self.seen = next(iter(self.members.values())), -1
        self.accused: list[Any] = []

    def step(self) -> None:
        if self.block != self.seen:
            self.seen = self.block
            self.clock.see(int(self.now))
        self.wrong.behind = self.now - self.clock.now()
        super().step()

    def transact(self, member: Any, action: Any) -> None:
        if isinstance(action, a.Send) and action.call == "accuse":
            self.accused.append(action)
        super().transact(member, action)


def test_a_machine_five_minutes_ahead_accuses_nobody_in_ten_rounds() -> None:
    sim = Ahead()
    assert sim.run(lambda: sim.view.open_round == 10, 200)
    assert round(sim.clock.skew) == 300 and not sim.accused
    assert all(sealed.count == 2 for sealed in sim.view.sealed.values())


def test_the_chain_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still then, and a block that is new to us afterwards would be minutes late."""
    asleep = 0.0
    sleeps = {getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)}
    counted = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: counted(which) + (asleep if which in sleeps else 0.0))
    clock = ChainClock()
    clock.see(1_800_000_000)
    before = clock.now()
    asleep = 1200.0
    assert 1200 <= clock.now() - before < 1200 + PATIENCE
