"""What CI runs: every step, whatever the one before said, and at the end a table and a list of what failed.

`.ci/run` starts it with the system's Python: it imports nothing that has to be installed. `build/ci/STEP.log` has the
whole output of a step. A test that failed runs once more, alone, when all else has ended. Where it passes then, the
clock of a busy machine was the cause: it is named as flaky, and no reason to fail. So is a step that has deadlines.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import NamedTuple

FOLDER = Path("build/ci")
BEGIN_SECONDS = 45 * 60  # no long step begins later: CI gives a run 90 minutes
END_SECONDS = 78 * 60  # what still runs then is ended
TEST_SECONDS = (
    12 * 60
)  # before that no test of a long step begins any more: a slow one has 5 minutes, slow machines more
AGAIN_SECONDS = 86 * 60  # likewise what runs once more
MOST_ALONE = 30  # failed tests of a step that run once more: so many do not fail by the clock
LONGEST = 10
TAIL = 60  # lines of what failed
GRACE_SECONDS = 10.0
ARGS = "{args}"
LATE = "no time is left"  # how the reason of a skip begins, see tests/conftest.py


class Step(NamedTuple):
    """A line for the shell. Where it has `{args}` it is pytest's, whose failed tests run again by themselves."""

    name: str
    command: str
    needs: tuple[str, ...] = ()  # steps without which it cannot run
    beside: bool = False  # mostly waits, or has one thread: the next steps run beside it
    clock: bool = False  # has deadlines, so that all of it runs again where it failed
    long: bool = False  # is not begun when it is late; nor are its tests

    @property
    def is_pytest(self) -> bool:
        return ARGS in self.command


class Failure(NamedTuple):
    name: str  # a test's, or the step's
    text: str


class Outcome(NamedTuple):
    """How a step ended. One that is not pytest's counts as one test."""

    step: Step
    seconds: float = 0.0
    passed: int = 0
    failures: tuple[Failure, ...] = ()
    flaky: tuple[Failure, ...] = ()  # failed first, and passed alone
    longest: tuple[tuple[float, str], ...] = ()  # seconds and names of tests
    may_pass_alone: bool = False
    late: int = 0  # tests that were not begun
    not_run: str = ""  # why

    @property
    def state(self) -> str:
        if self.not_run:
            return f"not run: {self.not_run}"
        ended = "FAILED" if self.failures else "passed, flaky" if self.flaky else "passed"
        return f"{ended}; {self.late} not run: no time was left" if self.late else ended


INSTALL = "make .venv/.dev contracts/node_modules/.installed"
STEPS = (
    Step("install", f"{INSTALL} || {INSTALL}"),  # a registry that is late is asked twice
    Step("contracts-test", "make contracts-test", ("install",), beside=True),
    Step("check", "make --keep-going --jobs 2 --output-sync check", ("install",)),
    Step("test", "make test ARGS='{args}'", ("install",)),
    Step(
        "demo",
        "rm -rf build/ci/demo && make demo ARGS='--datadir build/ci/demo'"
        " && .venv/bin/dlx-node audit --datadir build/ci/demo --level 3",
        ("install",),
        clock=True,
    ),
    Step("test-slow", "make test-slow ARGS='{args}'", ("install",), long=True),
    Step(
        "attacks",
        "make attacks ARGS='--only honest --only sign-flip --harm-rounds 2 --run-rounds 6 --share 1'",
        ("install",),
        clock=True,
        long=True,
    ),
    Step("docs", "make docs", ("install",)),
    Step("chaos", "make chaos ARGS='--chains embedded {args}'", ("install",), beside=True, long=True),
    Step("docs-test", "make docs-test ARGS='{args}'", ("docs",), long=True),
    Step("bench-test", "make bench-test ARGS='{args}'", ("install",), long=True),
    Step("release-check", "make release-check", ("install",), clock=True, long=True),
    Step("contracts-coverage", "make contracts-coverage", ("install",), beside=True, long=True),
    Step("slither", "make slither", ("install",), long=True),
    Step("advisories", "make advisories", long=True),
)


class Gate:
    """Runs steps in their order; their processes end with it."""

    def __init__(
        self,
        folder: Path,
        options: str = "",
        begin: float = BEGIN_SECONDS,
        end: float = END_SECONDS,
        again: float = AGAIN_SECONDS,
        test: float = TEST_SECONDS,
    ) -> None:
        """`options`: for pytest, of every step. `begin`, `end`, `again`: seconds from now. `test`: before the end."""
        self._folder, self._options, self._test_seconds = folder, options, test
        now = time.monotonic()
        self._begin, self._end, self._again_until = now + begin, now + end, now + again
        self._running: set[subprocess.Popen[bytes]] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, steps: Sequence[Step]) -> list[Outcome]:
        """All steps, then once more what failed and may pass alone."""
        outcomes: dict[str, Future[Outcome]] = {}
        beside: Future[Outcome] | None = None
        with ThreadPoolExecutor() as threads:
            for step in steps:
                if beside and step.beside:
                    beside.result()
                reason = self._reason(step, {name: outcomes[name].result() for name in step.needs})
                outcomes[step.name] = threads.submit(self._first, step, reason)
                if step.beside:
                    beside = outcomes[step.name]
                else:
                    outcomes[step.name].result()
        return [self._alone(outcome.result()) for outcome in outcomes.values()]

    def stop(self) -> None:
        """Ends what runs, and what that has started."""
        for process in list(self._running):
            _end_group(process)

    def _reason(self, step: Step, needed: dict[str, Outcome]) -> str:
        """Why it does not run, or nothing."""
        for name, outcome in needed.items():
            if outcome.failures or outcome.not_run:
                return f"{name} did not pass"
        now = time.monotonic()
        return "no time is left" if now > (self._begin if step.long else self._end) else ""

    def _first(self, step: Step, reason: str) -> Outcome:
        outcome = Outcome(step, not_run=reason) if reason else self._once(step, step.name, self._end)
        print(f"gate: {step.name}: {outcome.state}, {outcome.seconds:.0f} s", flush=True)
        return outcome

    def _alone(self, first: Outcome) -> Outcome:
        """What failed, once more: one process, nothing beside it."""
        if not (first.failures and first.may_pass_alone):
            return first
        step, only = first.step, "--numprocesses 0 --last-failed --last-failed-no-failures none"
        second = self._once(step, f"{step.name}-again", self._again_until, only)
        failed = {failure.name for failure in second.failures}
        all_ran = second.passed + len(failed) >= len(first.failures) and not (step.is_pytest and step.name in failed)
        flaky = tuple(one for one in first.failures if one.name not in failed) if all_ran else ()
        outcome = first._replace(
            seconds=first.seconds + second.seconds,
            passed=first.passed + len(flaky),
            failures=second.failures if all_ran else first.failures,
            flaky=flaky,
        )
        print(f"gate: {step.name} once more, alone: {outcome.state}, {second.seconds:.0f} s", flush=True)
        return outcome

    def _once(self, step: Step, name: str, until: float, more: str = "") -> Outcome:
        """Runs it in a group of processes of its own, until then at the latest. `more`: options for pytest."""
        log, report = self._folder / f"{name}.log", self._folder / f"{name}.xml"
        report.unlink(missing_ok=True)
        cache = (self._folder / "cache" / step.name).resolve()
        begun, cut_off = time.monotonic(), ""
        args = f"--junitxml={report} -o cache_dir={cache} {self._options} {more}"
        if step.long and not more:
            args += f" --begin-within {max(1.0, until - begun - self._test_seconds):.0f}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", step.command.replace(ARGS, args)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                process.wait(max(0.0, until - begun))
            except subprocess.TimeoutExpired:
                cut_off = f"ended after {time.monotonic() - begun:.0f} s: no time is left\n"
            _end_group(process)  # also what it left running
            self._running.remove(process)
        seconds = time.monotonic() - begun
        whole = Failure(step.name, cut_off + _tail(log))  # where no test is to blame
        tests = _tests(report) if step.is_pytest else None
        if tests is None:
            failures = () if process.returncode == 0 else (whole,)
            return Outcome(step, seconds, int(not failures), failures, may_pass_alone=step.clock and not cut_off)
        if process.returncode != 0 and not tests.failures:  # such as an interpreter that crashed behind the last test
            return Outcome(step, seconds, tests.passed, (whole,), longest=tests.longest)
        return Outcome(
            step,
            seconds,
            tests.passed,
            tests.failures,
            longest=tests.longest,
            may_pass_alone=len(tests.failures) <= MOST_ALONE,
            late=tests.late,
        )


class _Tests(NamedTuple):
    passed: int
    failures: tuple[Failure, ...]
    longest: tuple[tuple[float, str], ...]
    late: int


def _tests(report: Path) -> _Tests | None:
    """What pytest's report says; a run that was ended has none."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None
    failures, passed, late, longest = dict[str, str](), 0, 0, []
    for case in cases:
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        wrong = [one for kind in ("failure", "error") for one in case.findall(kind)]
        if wrong:
            failures[name] = "\n".join(f"{one.get('message', '')}\n{one.text or ''}" for one in wrong)
        elif (skipped := case.find("skipped")) is None:
            passed += 1
        else:
            late += skipped.get("message", "").startswith(LATE)
        longest.append((float(case.get("time", "0")), name))
    return _Tests(passed, tuple(Failure(*pair) for pair in failures.items()), tuple(sorted(longest)[-LONGEST:]), late)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The process and all of its group: first asked, then ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL:])


def summary(outcomes: Sequence[Outcome], folder: Path) -> str:
    """What was flaky and what failed, with its text; the longest tests; the table; `N passed, N failed` closes it."""
    flaky = [(outcome.step.name, failure) for outcome in outcomes for failure in outcome.flaky]
    failed = [(outcome.step.name, failure) for outcome in outcomes for failure in outcome.failures]
    lines = list[str]()
    for kind, chosen in (("flaky", flaky), ("failed", failed)):
        for _, failure in chosen:
            lines += [f"== {kind}: {failure.name}", *failure.text.splitlines()[-TAIL:], ""]
    lines.append("seconds  the longest tests")
    longest = sorted((test for outcome in outcomes for test in outcome.longest), reverse=True)
    lines += [f"{seconds:7.1f}  {name}" for seconds, name in longest[:LONGEST]]
    lines += ["", "seconds  passed  failed  flaky  step"]
    for outcome in outcomes:
        counts = f"{outcome.passed:6}  {len(outcome.failures):6}  {len(outcome.flaky):5}"
        lines.append(f"{outcome.seconds:7.0f}  {counts}  {outcome.step.name}: {outcome.state}")
    lines.append("")
    for kind, chosen in (("flaky", flaky), ("failed", failed)):
        lines += [f"{kind}: {failure.name} ({folder}/{step}.log)" for step, failure in chosen]
    lines.append(f"{sum(outcome.passed for outcome in outcomes)} passed, {len(failed)} failed")
    return "\n".join(lines)


def main() -> None:
    gate = Gate(FOLDER, shlex.join(sys.argv[1:]))

    def stopped(number: int, frame: FrameType | None) -> None:
        gate.stop()
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped)
    outcomes = gate.run(STEPS)
    print(summary(outcomes, FOLDER), flush=True)
    sys.exit(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    main()
