"""Deadlines of tests know how slow the machine is, and what waits without knowing is found."""

from __future__ import annotations

import pytest

from tests import patience, waits


def test_a_slow_machine_is_waited_for_longer_and_no_machine_for_less() -> None:
    idle = patience.slowness(0.0)
    assert idle == 1.0
    assert patience.slowness(0.22) == pytest.approx(2.0)
    assert patience.slowness(1e9) == 8.0, "a machine that stood still for a moment"
    assert patience.patient(10) == 10 * patience.SLOWNESS


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("process.wait(30)", 30),
        ("process.wait(timeout=30.0)", 30),
        ("sender.wait(pending, 30)", 30),
        ("with trio.fail_after(LONG): pass", 60),
        ("subprocess.run(command, timeout=300)", 300),
        ("future.result(10)", 10),
    ],
)
def test_a_deadline_that_is_a_plain_number_is_found(line: str, seconds: float) -> None:
    assert waits.impatient(f"LONG = 60\n{line}\n") == [(2, seconds)]


@pytest.mark.parametrize(
    "line",
    [
        "process.wait(patient(30))",
        "process.wait(PATIENCE)",
        "stop.wait(0.5)",  # a pause
        "story.join(90, 40, 0)",  # no wait
        "' '.join(words)",
        "Timing(timeout=60)",  # of a run's rounds
    ],
)
def test_what_knows_the_machine_or_is_no_deadline_is_let_be(line: str) -> None:
    assert waits.impatient(f"{line}\n") == []
