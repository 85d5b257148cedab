"""Deadlines of a process that the machine lets wait."""

import math
import socket
import time

import trio

from dlx.node.daemon.own_time import SLACK, OwnTime


class Machine:
    """Its monotonic clock, and the time that the thread had of it."""

    def __init__(self) -> None:
        self.now, self.computed = 1000.0, 7.0

    def __call__(self) -> float:
        return self.now


def test_what_a_turn_of_the_loop_or_waking_takes_beyond_the_usual_does_not_count() -> None:
    machine = Machine()
    clock = OwnTime(machine, lambda: machine.computed)
    clock.start_clock()
    assert clock.current_time() == 1000.0
    machine.now += 30  # asleep while it computed
    assert clock.current_time() == 1000.0 + SLACK, "and never back"
    clock.before_io_wait(2.0)
    assert math.isclose(clock.late, 30 - SLACK) and math.isclose(clock.current_time(), 1000.0 + SLACK)
    machine.now += 2.0
    clock.after_io_wait(2.0)
    assert math.isclose(clock.current_time(), 1002.0 + SLACK), "what was waited for counts"
    clock.before_io_wait(2.0)
    machine.now += 1200  # asleep while it waited
    clock.after_io_wait(2.0)
    assert math.isclose(clock.current_time(), 1004.0 + 2 * SLACK)
    clock.before_io_wait(math.inf)
    machine.now += 1200
    clock.after_io_wait(math.inf)
    assert math.isclose(clock.current_time(), 2204.0 + 2 * SLACK), "who waits for whatever comes is not late"


def test_what_is_computed_counts_and_what_is_waited_for_meanwhile_does_not() -> None:
    machine = Machine()
    clock = OwnTime(machine, lambda: machine.computed)
    clock.start_clock()
    machine.now, machine.computed = machine.now + 3, machine.computed + 2
    assert clock.current_time() == 1000.0 + SLACK, "until the turn ends"
    clock.before_io_wait(0.0)
    assert math.isclose(clock.current_time(), 1002.0 + SLACK) and math.isclose(clock.late, 1 - SLACK)
    machine.now += 5
    clock.after_io_wait(0.0)
    assert math.isclose(clock.current_time(), 1002.0 + 2 * SLACK), "it was counted once"


def test_much_to_compute_stretches_no_deadline() -> None:
    clock = OwnTime()

    async def compute() -> None:
        while True:
            until = time.thread_time() + 0.006  # of a handshake
            while time.thread_time() < until:
                pass
            await trio.lowlevel.checkpoint()

    async def wait() -> float:
        before = time.thread_time()
        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(compute)
            with trio.move_on_after(0.5):
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()
        return time.thread_time() - before

    assert trio.run(wait, clock=clock, instruments=[clock]) < 0.5 + 3 * 64 * 0.006


def test_what_came_while_the_machine_was_busy_is_read_though_its_deadline_has_passed() -> None:
    clock, found = OwnTime(), []

    async def read() -> None:
        here, there = socket.socketpair()
        with trio.socket.from_stdlib_socket(here) as ours, there:
            with trio.move_on_after(1.0) as scope:
                there.send(b"a piece")
                time.sleep(1.5)  # the machine does something else
                await trio.sleep(0.2)
                found.append(await ours.recv(7))
            assert not scope.cancelled_caught

    trio.run(read, clock=clock, instruments=[clock])
    assert found == [b"a piece"] and clock.late > 1


def test_who_is_silent_is_given_up_as_ever() -> None:
    clock = OwnTime()

    async def wait() -> float:
        began = trio.current_time()
        with trio.move_on_after(0.3) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        return trio.current_time() - began

    began = time.monotonic()
    assert trio.run(wait, clock=clock, instruments=[clock]) >= 0.3
    assert time.monotonic() - began >= 0.3
