"""Having a run's public data: whatever the network and the disk do, only what its name says is used."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dlx.ground.blobs import BlobStore
from dlx.node.daemon import public as module
from dlx.node.daemon.public import PublicData
from dlx.node.daemon.supervisor import Supervisor
from dlx.node.home.errors import Failure
from dlx.p2p.exchange import BlobNotFound
from dlx.training.recipe.recipe import BlobRef

GOOD = b"a run's data"
NAME = hashlib.sha256(GOOD).digest()
REF = BlobRef(sha256=NAME.hex(), size=len(GOOD))


class Exchange:
    """Each fetch does the next of `answers`: an error to raise, or bytes that then lie on the disk."""

    def __init__(self, store: BlobStore, *answers: bytes | Exception) -> None:
        self.store, self.answers = store, list(answers)

    async def fetch(self, name: bytes, size: int, providers: Any, deadline: float) -> Path:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.store.path(name).write_bytes(answer)
        return self.store.path(name)


def test_it_is_asked_for_until_it_is_here_and_a_damaged_copy_is_had_again(tmp_path: Path) -> None:
    store, told = BlobStore(tmp_path), list[str]()
    exchange: Any = Exchange(store, BlobNotFound("nobody has it"), OSError(28, "No space left"), b"damaged!", GOOD)

    async def main() -> None:
        supervisor = Supervisor(lambda part: told.extend(one.reason for one in supervisor.troubles.values()))

        async def part(well: Any) -> None:
            await PublicData(store, exchange)._fetch_all([REF])

        await supervisor.keep("preparing the run", part)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert not exchange.answers and store.path(NAME).read_bytes() == GOOD
    assert told == ["nobody has it", "No space left"], "each with its reason"


def test_a_disk_that_damages_everything_is_at_fault_and_nobody_else(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    exchange: Any = Exchange(store, b"damaged!", b"damaged!")
    with pytest.raises(ExceptionGroup) as raised:
        trio.run(PublicData(store, exchange)._fetch_all, [REF])
    assert raised.group_contains(OSError, match="this disk damages what is written to it")


def test_a_manifest_that_the_ledger_contradicts_takes_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path)
    exchange: Any = Exchange(store, GOOD)
    view: Any = type("View", (), {"config": type("Config", (), {"manifest": NAME})})
    monkeypatch.setattr(module, "parse", lambda content: content)
    monkeypatch.setattr(module, "differences", lambda manifest, view: ["rounds is 5, there 6"])
    with pytest.raises(Failure, match="do not train it: rounds is 5, there 6"):
        trio.run(PublicData(store, exchange).manifest, view)
