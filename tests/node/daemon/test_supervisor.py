"""A part of the node that fails is started again, and says why it does not run."""

import itertools
import logging
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from dlx.ground.backoff import Backoff
from dlx.ledger.errors import LedgerError
from dlx.node.daemon.supervisor import Supervisor
from dlx.node.home.errors import Failure

EVEN = Backoff(1.0, 8.0, jitter=0.0)


def run(program: Callable[[Supervisor, list[float]], object]) -> list[float]:
    """The times at which the program's part was started."""
    started: list[float] = []

    async def main() -> None:
        await program(Supervisor(), started)  # type: ignore[misc]

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return started


def test_each_failure_doubles_the_pause_up_to_the_cap_and_a_success_begins_anew() -> None:
    async def program(supervisor: Supervisor, started: list[float]) -> None:
        async def part(report_healthy: Callable[[], None]) -> None:
            started.append(trio.current_time())
            if len(started) == 7:
                report_healthy()
            if len(started) < 9:
                raise LedgerError("no answer")

        await supervisor.keep("part", part, EVEN)
        assert supervisor.reasons() == ()

    started = run(program)
    pauses = [later - earlier for earlier, later in itertools.pairwise(started)]
    assert pauses == [1, 2, 4, 8, 8, 8, 1, 2]


def test_the_reason_is_told_while_it_does_not_run() -> None:
    async def program(supervisor: Supervisor, started: list[float]) -> None:
        async def part(report_healthy: Callable[[], None]) -> None:
            raise LedgerError("the disk is full")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.keep, "storing", part, EVEN)
            await trio.sleep(2)
            (reason,) = supervisor.reasons()
            assert reason == "storing: the disk is full (failed 2 times, tried again in 1 s)"
            nursery.cancel_scope.cancel()
        assert supervisor.reasons() == (), "what is stopped does not fail"

    run(program)


def test_a_failure_that_takes_a_person_ends_it_even_from_within_task_groups() -> None:
    async def program(supervisor: Supervisor, started: list[float]) -> None:
        async def part(report_healthy: Callable[[], None]) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(fall)

        async def fail() -> None:
            raise Failure("choose another folder")

        async def fall() -> None:
            raise LedgerError("and this came of it")

        with pytest.raises(Failure, match="choose another folder"):
            await supervisor.keep("part", part, EVEN)

    run(program)


def test_a_fault_of_our_own_is_logged_with_its_traceback_and_does_not_end_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[str] = []

    async def main() -> None:
        tries = 0

        async def part(report_healthy: Callable[[], None]) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ZeroDivisionError("a bug")

        await Supervisor(counted.append).keep("part", part, EVEN)

    with caplog.at_level(logging.ERROR, logger="dlx"):
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert counted == ["part"]
    assert any(record.exc_info for record in caplog.records)
