"""For all tests: their order, threads, property tests' settings, options."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from hypothesis import settings

from tests.gate import LATE
from tests.patience import patient

# Before torch and numpy are imported, and for all processes that tests start: threads of a small model mostly wait for
# each other where other workers take the cores, and burn them while they wait.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# What tests start hears of a closed terminal, also where they run under nohup themselves.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A property has no deadline, which a busy machine would miss, and the same examples each time, so that no change is
# blamed for what another one left. For others: `make test ARGS="--hypothesis-profile default"`.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")

# What mostly waits, for blocks and other processes, and what computes: their files take turns, so that workers neither
# all wait nor all compute at a time; of both the longest come first, so that no worker is left with one at the end.
_WAITING = "e2e"
_WAIT_LONG = ("survival", "hostile", "demo", "level3", "uneven", "ranks", "resume")
_COMPUTE_LONG = (  # files, then folders
    "training/slot/test_ranked.py",
    "training/inner/test_ranks.py",
    "training/slot/test_replay.py",
    "training/slot/test_slot.py",
    "node/trainer/test_ranks.py",
    "ledger/test_view_differential.py",
    "node/round/test_contest.py",
    "node/round/test_continuity.py",
    "ledger/test_faults.py",
    *("training/inner", "ledger", "node/round", "node/trainer", "node/audit", "p2p"),
)


BEGUN = time.monotonic()
FAST_SECONDS, SLOW_SECONDS = 120.0, 300.0  # what hangs is ended then; on a slow machine later
MISSING = "missing: "  # how the reason of a skip begins that an installation would end


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=5, help="how often the embedded chain is killed under load")
    parser.addoption("--begin-within", type=float, default=0, help="seconds after which no test begins; 0: none")
    parser.addoption("--complete", action="store_true", help="fail where a test is skipped for what is not installed")
    parser.addoption("--conditions", default="", help="runs on bad links and machines: short, or long (an hour)")
    parser.addoption(
        "--chains", default="", help="runs on faulty chains: of embedded, anvil, hardhat, with commas between"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(patient(_limit(item))), append=False)
    top = Path(__file__).parent
    waiting, longest = top / _WAITING, [top / _WAITING / f"test_{name}.py" for name in _WAIT_LONG]
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waits = [path for path in files if path.is_relative_to(waiting)]
    computes = [path for path in files if not path.is_relative_to(waiting)]
    waits.sort(key=lambda path: _place(path, longest))
    computes.sort(key=lambda path: _place(path, [top / name for name in _COMPUTE_LONG]))
    turns = chain.from_iterable(zip_longest(waits, computes))
    items[:] = chain.from_iterable(files[path] for path in turns if path is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    within = item.config.getoption("--begin-within")
    if within and time.monotonic() > BEGUN + within:
        pytest.skip(f"{LATE}: it would begin after {within:g} s")


def _limit(item: pytest.Item) -> float:
    """Seconds on an idle machine for a test and its fixtures."""
    own = item.get_closest_marker("timeout")
    if own:
        return float(own.args[0])
    return SLOW_SECONDS if item.get_closest_marker("slow") else FAST_SECONDS


def _place(path: Path, order: Sequence[Path]) -> int:
    """The first of `order` that it is, or is in."""
    return next((at for at, one in enumerate(order) if path.is_relative_to(one)), len(order))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything has to be tried, a reason that begins with "missing: " is a failure."""
    report = yield
    if item.config.getoption("--complete") and report.skipped and MISSING in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Likewise of a whole file."""
    report = yield
    if collector.config.getoption("--complete") and report.skipped and MISSING in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """What failed inside task groups is shown, and not ten of the groups around it."""
    try:
        return (yield)
    except BaseExceptionGroup as group:
        raise _inmost(group) from None


def _inmost(error: BaseException) -> BaseException:
    """The only error of the group, or of a group in it that has several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@pytest.fixture(autouse=True)
def _called_with_nothing() -> None:
    """Lines to paste are not of the folder that a command of an earlier test named."""
    if (program := sys.modules.get("dlx.node.home.program")) is not None:
        program.called_with(program.Called())


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests leave nothing in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
