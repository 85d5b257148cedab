"""What CI says: all failures of one run, and which of them were the clock's."""

import re
import sys
from pathlib import Path

import pytest

from tests.gate import STEPS, Gate, Outcome, Step, summary
from tests.patience import until

ONCE = "p = pathlib.Path('tried'); tried = p.exists(); p.touch(); assert tried, 'too late'"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Also the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_tests(folder: Path, name: str, *tests: str) -> Step:
    """A step that runs these tests, each a function's body."""
    bodies = [f"def test_{at}():\n    {test}\n" for at, test in enumerate(tests)]
    (folder / f"test_{name}.py").write_text("import pathlib, os, signal\n" + "\n".join(bodies))
    return Step(name, f"{sys.executable} -m pytest -c /dev/null --rootdir . test_{name}.py {{args}}")


def by_name(outcomes: list[Outcome]) -> dict[str, Outcome]:
    return {outcome.step.name: outcome for outcome in outcomes}


def test_every_step_runs_and_all_that_failed_is_named(folder: Path) -> None:
    steps = [
        Step("check", "echo a line is too long; exit 1"),
        of_tests(folder, "fast", "pass", "assert 1 == 2"),
        of_tests(folder, "slow", "raise ValueError('gone')"),
        Step("contracts", "echo a revert; exit 3", beside=True),
        Step("late", "true"),
        Step("site", "true", needs=("contracts",)),
    ]
    outcomes = Gate(folder / "ci").run(steps)
    counts = {outcome.step.name: (outcome.passed, len(outcome.failures)) for outcome in outcomes}
    assert counts.pop("late") == (1, 0) and counts.pop("site") == (0, 0)
    assert counts == {"check": (0, 1), "fast": (1, 1), "slow": (0, 1), "contracts": (0, 1)}
    assert by_name(outcomes)["site"].state == "not run: contracts did not pass"
    said = summary(outcomes, folder / "ci")
    for text in ("a line is too long", "assert 1 == 2", "ValueError: gone", "a revert", "test_fast::test_1"):
        assert text in said
    assert said.splitlines()[-1] == "2 passed, 4 failed"
    assert "a line is too long" in (folder / "ci/check.log").read_text()


def test_what_passes_alone_is_flaky_and_no_reason_to_fail(folder: Path) -> None:
    steps = [
        of_tests(folder, "fast", "pass", ONCE),
        Step("run", "test -e run-before || { touch run-before; echo no round in time; exit 1; }", clock=True),
    ]
    outcomes = Gate(folder / "ci").run(steps)
    assert [(outcome.passed, outcome.failures, outcome.state) for outcome in outcomes] == [
        (2, (), "passed, flaky"),
        (1, (), "passed, flaky"),
    ]
    said = summary(outcomes, folder / "ci")
    assert "too late" in said and "no round in time" in said  # the first failures' text
    assert "flaky: test_fast::test_1" in said and said.splitlines()[-1] == "3 passed, 0 failed"
    assert "1 passed" in (folder / "ci/fast-again.log").read_text()


def test_one_of_two_failures_that_lasts_is_red(folder: Path) -> None:
    (outcome,) = Gate(folder / "ci").run([of_tests(folder, "fast", ONCE, "assert False, 'always'")])
    assert [failure.name for failure in outcome.flaky] == ["test_fast::test_0"]
    assert [failure.name for failure in outcome.failures] == ["test_fast::test_1"]


def test_what_dies_when_it_runs_alone_stays_red(folder: Path) -> None:
    dies = "p = pathlib.Path('tried'); p.exists() and os.kill(os.getpid(), signal.SIGKILL); p.touch(); assert False"
    (outcome,) = Gate(folder / "ci").run([of_tests(folder, "fast", "assert False", dies)])
    assert len(outcome.failures) == 2 and not outcome.flaky


def test_tests_whose_process_dies_have_failed(folder: Path) -> None:
    (outcome,) = Gate(folder / "ci").run([of_tests(folder, "fast", "os.kill(os.getpid(), signal.SIGKILL)")])
    assert outcome.passed == 0 and [failure.name for failure in outcome.failures] == ["fast"]


def test_what_hangs_is_ended_and_nothing_begins_without_time(folder: Path) -> None:
    hangs = Step("hangs", "sleep 600 & echo $! > child; sleep 600", clock=True)
    outcomes = by_name(Gate(folder / "ci", begin=0.0, end=1.0).run([hangs, Step("after", "true")]))
    assert outcomes["hangs"].failures[0].text.startswith("ended after 1 s")
    assert outcomes["after"].state == "not run: no time is left"
    has_ended(folder / "child")


def test_a_long_step_is_not_begun_late(folder: Path) -> None:
    long, short = Gate(folder / "ci", begin=0.0).run([Step("long", "true", long=True), Step("short", "true")])
    assert long.state == "not run: no time is left" and short.state == "passed"


def test_tests_that_a_slow_machine_does_not_come_to_are_counted_and_no_reason_to_fail(folder: Path) -> None:
    first, second = "import tests.conftest as began; began.BEGUN -= 1000", "assert False, 'it ran'"
    step = of_tests(folder, "slow", first, second)._replace(long=True)
    plugin = f"PYTHONPATH={Path(__file__).parents[1]} {step.command.replace('-c', '-p tests.conftest -c')}"
    (outcome,) = Gate(folder / "ci", end=1000.0, test=400.0).run([step._replace(command=plugin)])
    assert (outcome.passed, outcome.failures, outcome.late) == (1, (), 1)
    said = summary([outcome], folder / "ci")
    assert "slow: passed; 1 not run: no time was left" in said and said.splitlines()[-1] == "1 passed, 0 failed"


def test_what_a_step_leaves_running_ends_with_it(folder: Path) -> None:
    Gate(folder / "ci").run([Step("leaves", "sleep 600 & echo $! > child")])
    has_ended(folder / "child")


def has_ended(file: Path) -> None:
    state = Path("/proc", file.read_text().strip(), "stat")
    until("the process ends", lambda: not state.exists() or state.read_text().split()[2] == "Z")


def test_the_steps_run_targets_that_there_are() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    for step in STEPS:
        target = re.search(r"make (?:--\S+ |\d )*(\S+)", step.command)
        assert target and f"\n{target[1].replace('.venv', '$(VENV)')}:" in makefile, step.name
        assert all(needed in names[: names.index(step.name)] for needed in step.needs)
