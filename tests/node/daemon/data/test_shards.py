"""The training data of a slot: here before its round, gone after, and never all of it at once."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dlx.ground.blobs import BlobStore, Kind
from dlx.ledger.typed import Plan
from dlx.node.daemon.challenges import evidence as module
from dlx.node.daemon.challenges.evidence import Effort, Evidence
from dlx.node.daemon.data.shards import AHEAD, Shards
from dlx.node.round.actions import ActionFailed, LocalFault
from dlx.node.round.rules.deals import Deals
from dlx.node.round.rules.plans import Terms
from dlx.node.trainer.checks import Outcome
from dlx.p2p.exchange import BlobNotFound
from dlx.training.data.order import WINDOW
from dlx.training.data.shards import DataManifest
from dlx.training.data.shards import Shard as Listed
from tests.node.daemon.contexts import make_context
from tests.node.round.rules.test_deals import view

SIZE, SHARDS, LENGTH, BATCH, STEPS = 65, 80, 8, 4, 2  # 8 samples a shard, 8 a round


class Network:
    """Who has every shard, but for the `lost`."""

    def __init__(self, store: BlobStore) -> None:
        self.contents = {bytes([n]) * SIZE for n in range(SHARDS)}
        self.store, self.served, self.lost = store, list[str](), set[str]()
        elsewhere = {store.put(one): one for one in self.contents}
        self.names = [name.hex() for name in elsewhere]
        self._have = {name.hex(): one for name, one in elsewhere.items()}
        for name in elsewhere:
            store.remove(name)

    async def fetch(self, name: bytes, size: int, providers: Any, deadline: float, kind: Kind, *rest: Any) -> Path:
        if name.hex() in self.lost:
            raise BlobNotFound(f"nobody who was asked has {name.hex()[:8]}")
        if not self.store.has(name):
            self.served.append(name.hex())
            self.store.put(self._have[name.hex()], kind)
        return self.store.path(name)


class Slot:
    def __init__(self, folder: Path, stage: int = 0, cache: int = 1 << 30, private: Path | None = None) -> None:
        self.store = BlobStore(folder)
        self.network = Network(self.store)
        data = SimpleNamespace(seed=3, sequence_length=LENGTH, batch_size=BATCH, chat=False)
        terms = Terms(
            rounds=99, delay=0, plan=Plan(4, 0, STEPS), codec="int4", adaptive=None, tokens_per_step=BATCH * LENGTH
        )
        manifest = SimpleNamespace(data=data, stages=[(0, 1)] * 3, base=[], timing=SimpleNamespace(round_timeout=60))
        self.context = make_context(
            manifest=manifest, private_data=private, peer_of=lambda account: "its peer",
            data=DataManifest([Listed(name, SIZE, SIZE, "cd" * 32) for name in self.network.names], []),
            deals=Deals(terms, 4, BATCH), data_cache=cache, blobs=self.store, exchange=self.network,
        )  # fmt: skip
        self.shards = Shards(self.context, (1, stage))

    def here(self) -> int:
        return sum(self.store.has(bytes.fromhex(name)) for name in self.network.names)


def test_a_round_fetches_a_window_and_not_the_set(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    trio.run(slot.shards.have, view([1]), 1)
    assert 0 < slot.here() <= 2 * WINDOW < SHARDS
    assert all(slot.store.kind(bytes.fromhex(name)) is Kind.SHARD for name in slot.network.served)


def test_what_the_coming_rounds_need_is_here_when_they_begin_and_what_is_past_gives_way(tmp_path: Path) -> None:
    slot, seals = Slot(tmp_path, cache=2 * WINDOW * SIZE), list[list[int]]()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slot.shards.run)
            for round in range(30):
                before = len(slot.network.served)
                await slot.shards.have(view(*seals), round)
                assert not round or len(slot.network.served) == before, "its shards were fetched before it began"
                slot.shards.look_ahead(view(*seals), round)
                while slot.shards.is_looking:
                    await trio.sleep(0.01)
                assert slot.here() <= 6 * WINDOW
                seals.append([1])
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert len(set(slot.network.served)) > 20, "other shards as the run goes on"
    assert AHEAD == 2


def test_a_shard_that_nobody_has_is_named_and_asked_for_again(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    slot.network.lost = set(slot.network.names)
    with pytest.raises(ActionFailed, match="nobody who was asked has"):
        trio.run(slot.shards.have, view(), 0)
    slot.network.lost = set()
    trio.run(slot.shards.have, view(), 0)
    assert slot.here()


def test_however_often_a_round_is_asked_for_the_one_under_way_keeps_its_shards(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    trio.run(slot.shards.have, view(*[[1]] * 3), 3)
    under_way = set(slot.network.served)
    slot.network.lost = set(slot.network.names)
    for _ in range(3):
        with pytest.raises(ActionFailed):
            trio.run(slot.shards.have, view(*[[1]] * 4), 4)
    slot.store.shrink(Kind.SHARD, 0)
    assert all(slot.store.has(bytes.fromhex(name)) for name in under_way)


def test_a_disk_without_room_for_the_index_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(owner: str, hashes: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    slot = Slot(tmp_path)
    monkeypatch.setattr(slot.store, "pin", full)
    with pytest.raises(LocalFault, match="No space left"):
        trio.run(slot.shards.have, view(), 0)
    monkeypatch.undo()
    trio.run(slot.shards.have, view(), 0)
    assert slot.here()


def test_what_this_disk_has_lost_is_had_again(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    trio.run(slot.shards.have, view(), 0)
    name = bytes.fromhex(slot.network.served[0])
    slot.store.path(name).write_bytes(b"damaged")
    assert trio.run(slot.shards.mend, [name, b"p" * 32]) == {name}, "a payload is none of its business"
    assert slot.store.sound(name)


def test_a_check_has_a_shard_again_that_this_disk_has_damaged(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    evidence, wanted = Evidence(slot.context, Effort(1)), slot.context.run.data.train[:2]

    async def sound() -> list[bool]:
        async with evidence.data(wanted, 0):
            return [slot.store.sound(bytes.fromhex(shard.sha256)) for shard in wanted]

    assert trio.run(sound) == [True, True]
    slot.store.path(bytes.fromhex(wanted[0].sha256)).write_bytes(b"damaged")
    assert trio.run(sound) == [True, True]


def test_a_check_has_evidence_again_that_this_disk_has_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = Slot(tmp_path)
    name = bytes.fromhex(slot.network.names[0])
    slot.store.path(name).write_bytes(b"damaged")

    async def check(work: Any, deadline: float) -> Outcome:
        here = slot.store.path(name).read_bytes() in slot.network.contents
        return Outcome(done=True) if here else Outcome(missing=(name,))

    monkeypatch.setattr(module, "check", check)
    monkeypatch.setattr(module, "check_seconds", lambda work, round_timeout: 60.0)
    work: Any = SimpleNamespace(shared=lambda ahead: set())
    drawn: Any = SimpleNamespace(account="0x01", stage=0)
    view: Any = None  # only what others share is looked for there
    inner: Any = SimpleNamespace(largest_file=lambda stage: SIZE, terms=SimpleNamespace(ahead=0.0))
    assert trio.run(Evidence(slot.context, Effort(1))._checked, work, drawn, view, inner).done


@pytest.mark.parametrize(("stage", "private"), [(1, None), (0, Path("/own")), (2, Path("/own"))])
def test_a_middle_stage_and_private_data_fetch_nothing(tmp_path: Path, stage: int, private: Path | None) -> None:
    slot = Slot(tmp_path, stage, private=private)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slot.shards.run)
            slot.shards.look_ahead(view(), 0)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock())
    assert not slot.shards.are_read and not slot.network.served
