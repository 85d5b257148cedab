"""How a node ends after a stop signal: its slot given back or kept, and nothing that holds it up."""

import logging
import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from dlx.ground.machine import stop_signals
from dlx.ledger.errors import LedgerUnavailable
from dlx.node.daemon.challenges.leaving import LOOK_SECONDS, RETURN_SECONDS, Leaving
from dlx.node.daemon.node import Node
from dlx.node.round.challenges.leaving import Owed
from tests.patience import PATIENCE


class Parts:
    """Of a node, whose slot's return takes `seconds`, or fails."""

    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        self.asked, self.closed = 0, False
        self._seconds, self._error = seconds, error
        self.owes = 0  # looks at it, until nothing is
        self.slot: tuple[int, int] | None = (0, 0)
        self.silence: str | None = None  # of the chain
        itself = cast(Any, self)
        self._assignment, self._scope = itself, trio.CancelScope()
        self._leaving = Leaving(itself, itself, lambda: None)
        self._leaving.open(itself, 120)

    def owed(self, trained: int | None) -> Owed:
        self.owes = max(0, self.owes - 1)
        return Owed(rounds=(3,)) if self.owes else Owed()

    async def close(self) -> None:
        self.closed = True

    async def leave(self) -> None:
        self.asked += 1
        await trio.sleep(self._seconds)
        if self._error is not None:
            raise self._error


def end(parts: Any, for_good: bool) -> float:
    """The seconds that it takes."""

    async def main() -> float:
        began = trio.current_time()
        await Node._leave(parts, for_good)
        return trio.current_time() - began

    seconds = trio.run(main, clock=MockClock(autojump_threshold=0))
    assert parts.closed and parts._scope.cancel_called
    return seconds


def test_the_slot_is_given_back_by_who_leaves_for_good_alone() -> None:
    kept, left = Parts(2), Parts(2)
    assert end(kept, for_good=False) == 0 and kept.asked == 0
    assert end(left, for_good=True) == 2 and left.asked == 1


def test_the_slot_is_returned_when_what_was_drawn_is_checked_and_kept_where_nobody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    noted = SimpleNamespace(warning=lambda line, **_: said.append(line), info=lambda line, **_: said.append(line))
    monkeypatch.setattr("dlx.node.daemon.challenges.leaving.log", noted)
    soon, never = Parts(2), Parts(2)
    soon.owes, never.owes = 11, 10**9
    assert end(soon, for_good=True) == 10 * LOOK_SECONDS + 2 and soon.asked == 1
    assert said == ["serving our work before the slot is returned"], "said once"
    assert end(never, for_good=True) == 960 and never.asked == 0
    assert said[-1].startswith("the slot is kept")
    assert end(never, for_good=False) == 0
    lost = Parts(2)
    lost.owes, lost.slot = 10**9, None
    assert end(lost, for_good=True) == 2, "who was convicted meanwhile has nothing to wait for"
    gone = Parts(2)
    gone.owes, gone.silence = 10**9, "no answer"
    assert end(gone, for_good=True) == pytest.approx(RETURN_SECONDS, abs=2 * LOOK_SECONDS) and gone.asked == 0


@pytest.mark.parametrize(
    ("parts", "seconds", "said"),
    [
        (Parts(1000), RETURN_SECONDS, "the slot may still be ours: the chain did not show its return within 30 s"),
        (Parts(1, LedgerUnavailable("no answer")), 1, "the slot could not be returned"),
    ],
    ids=["no block", "no chain"],
)
def test_a_return_that_the_chain_does_not_take_holds_nobody_up(
    parts: Parts, seconds: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(
        "dlx.node.daemon.challenges.leaving.log", SimpleNamespace(warning=lambda line, **_: warned.append(line))
    )
    assert end(parts, for_good=True) == seconds
    assert warned == [said]


class Signalled:
    """What of a node hears a signal."""

    def __init__(self) -> None:
        self._assignment, self._overview = SimpleNamespace(finished=False), SimpleNamespace(stopping=False)
        self._rest = SimpleNamespace(close=lambda: None)
        self.asked, self.left, self._leaving = trio.Event(), trio.Event(), SimpleNamespace(seconds=960.0)
        self.for_good: bool | None = None

    async def _leave(self, for_good: bool) -> None:
        self.for_good = for_good
        self.asked.set()
        await self.left.wait()


@pytest.mark.parametrize(
    ("number", "for_good", "said"),
    [
        (
            signal.SIGINT,
            True,
            "stopping: finishing the step, then returning the slot",
        ),
        (signal.SIGTERM, False, "stopping: finishing the step; a second signal exits at once"),
        (signal.SIGHUP, False, "the terminal closed: stopping: finishing the step; a second signal exits at once"),
    ],
)
def test_every_signal_to_stop_is_told_and_a_terminal_that_closes_says_so_twice(
    number: signal.Signals, for_good: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        node: Any = Signalled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Node._await_signals, node)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(os.getpid(), number)
            with trio.fail_after(PATIENCE):
                await node.asked.wait()
            os.kill(os.getpid(), signal.SIGHUP)  # the kernel's and the shell's: no second wish
            await trio.testing.wait_all_tasks_blocked()
            assert node.for_good == for_good and node._overview.stopping
            nursery.cancel_scope.cancel()

    with caplog.at_level(logging.INFO, "dlx"):
        trio.run(main)
    assert any(line.startswith(said) for line in caplog.messages)


def test_what_was_started_to_outlive_its_terminal_does() -> None:
    assert signal.SIGHUP in stop_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert stop_signals() == (signal.SIGINT, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
