"""For all tests: their order, threads, property tests' settings, options."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch and numpy are imported, and for all processes that tests start: threads of a small model mostly wait for
# each other where other workers take the cores, and burn them while they wait.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# A property has no deadline, which a busy machine would miss, and the same examples each time, so that no change is
# blamed for what another one left. For others: `make test ARGS="--hypothesis-profile default"`.
settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")

# What takes longest, in this order, so that no worker is left with one of them at the end.
_FIRST = ("e2e", "training/slot", "training/inner", "ledger", "node/round", "node/trainer", "node/audit", "p2p")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=5, help="how often the embedded chain is killed under load")
    parser.addoption(
        "--chains", default="", help="runs on faulty chains: of embedded, anvil, hardhat, with commas between"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    top = Path(__file__).parent
    places = [top / folder for folder in _FIRST]

    def place(item: pytest.Item) -> int:
        return next((at for at, folder in enumerate(places) if item.path.is_relative_to(folder)), len(places))

    items.sort(key=place)


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


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests leave nothing in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
