"""Having a run's public data: whatever the network and the disk do, only what its name says is used."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dlx.ground.blobs import BlobStore, Kind
from dlx.node.daemon.data import public_data as module
from dlx.node.daemon.data.public_data import DataMirror, PublicData
from dlx.node.daemon.supervisor import Supervisor
from dlx.node.home.errors import Failure
from dlx.p2p.exchange import BlobContradiction, BlobNotFound, Tree
from dlx.training.data.shards import DataError, DataManifest, Shard, canonical_bytes
from dlx.training.recipe.recipe import BlobRef, WeightsRef
from tests.node.daemon.contexts import make_context

GOOD = b"a run's data"
NAME = hashlib.sha256(GOOD).digest()
ROOT = "ab" * 32
LISTED = DataManifest([Shard(NAME.hex(), len(GOOD), len(GOOD), ROOT)], [])


class Exchange:
    """Each fetch does the next of its name's `answers`: an error to raise, or bytes that then lie on the disk."""

    def __init__(self, store: BlobStore, answers: dict[bytes, list[bytes | Exception]]) -> None:
        self.store, self.answers, self.trees = store, answers, dict[bytes, Any]()

    async def fetch(
        self, name: bytes, size: int, providers: Any, deadline: float, kind: Kind = Kind.PUBLIC, tree: Any = None
    ) -> Path:
        self.trees[name] = tree
        answer = self.answers[name].pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.store.note(name, kind)
        self.store.path(name).write_bytes(answer)
        return self.store.path(name)


def test_it_is_asked_for_until_it_is_here_and_a_damaged_copy_is_had_again(tmp_path: Path) -> None:
    store, told = BlobStore(tmp_path), list[str]()
    exchange: Any = Exchange(
        store, {NAME: [BlobNotFound("nobody has it"), OSError(28, "No space left"), b"damaged!", GOOD]}
    )

    async def main() -> None:
        supervisor = Supervisor(lambda part: told.extend(one.reason for one in supervisor.troubles.values()))

        async def part(report_healthy: Any) -> None:
            await PublicData(store, exchange).shards(LISTED, LISTED.train, Kind.SHARD, "a test")

        await supervisor.keep("preparing the run", part)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert exchange.answers == {NAME: []} and store.path(NAME).read_bytes() == GOOD
    assert told == ["nobody has it", "No space left"], "each with its reason"
    assert store.kind(NAME) is Kind.SHARD


def test_a_disk_that_damages_everything_is_at_fault_and_nobody_else(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    exchange: Any = Exchange(store, {NAME: [b"damaged!", b"damaged!"]})
    with pytest.raises(OSError, match="this disk damages what is written to it"):
        trio.run(PublicData(store, exchange).shards, LISTED, LISTED.train, Kind.SHARD, "a test")


def test_a_shard_of_tokens_that_the_vocabulary_lacks_is_refused_whoever_serves_it(tmp_path: Path) -> None:
    store, tokens = BlobStore(tmp_path), b"\7\0\10\0"
    shard = Shard(hashlib.sha256(tokens).hexdigest(), 4, 2, ROOT)
    listed = DataManifest([shard], [], tokenizer=BlobRef("ab" * 32, 9), vocab_size=8, dtype="uint16")
    exchange: Any = Exchange(store, {bytes.fromhex(shard.sha256): [tokens]})
    with pytest.raises(DataError, match="holds token 8, which is not below vocab_size"):
        trio.run(PublicData(store, exchange).shards, listed, listed.train, Kind.SHARD, "a test")


def test_what_is_here_is_not_asked_for_and_one_that_nobody_has_keeps_none_of_the_others_away(tmp_path: Path) -> None:
    store, here, missing = BlobStore(tmp_path), b"here already", hashlib.sha256(b"gone").hexdigest()
    store.put(here)
    shards = [
        Shard(hashlib.sha256(here).hexdigest(), len(here), len(here), ROOT),
        Shard(missing, 4, 4, ROOT),
        *LISTED.train,
    ]
    exchange: Any = Exchange(store, {bytes.fromhex(missing): [BlobNotFound("nobody has it")], NAME: [GOOD]})
    with pytest.raises(BlobNotFound):
        trio.run(PublicData(store, exchange).shards, LISTED, shards, Kind.SHARD, "a test")
    assert not any(exchange.answers.values()) and store.has(NAME)


def test_a_node_begins_with_the_lists_of_a_run_and_without_its_data_or_any_weights(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    blobs = {hashlib.sha256(content).digest(): content for content in (canonical_bytes(LISTED), b'{"version":1}')}
    named, usage = (BlobRef(name.hex(), len(content)) for name, content in blobs.items())
    manifest: Any = SimpleNamespace(
        data=SimpleNamespace(manifest=named), usage=usage, genesis=[BlobRef(NAME.hex(), len(GOOD))], base=[]
    )
    exchange: Any = Exchange(store, {name: [content] for name, content in blobs.items()})
    assert trio.run(PublicData(store, exchange).begin, manifest) == LISTED
    assert store.hashes() == blobs.keys(), "and how the model is used, for whoever pulls"


def test_of_an_adapters_base_a_member_has_its_own_stage_in_parts_by_its_root(tmp_path: Path) -> None:
    store, stages = BlobStore(tmp_path), [b"base of stage 0", b"base of stage 1"]
    first, second = (hashlib.sha256(data).digest() for data in stages)
    base = [WeightsRef(one.hex(), len(stages[0]), "ab" * 32) for one in (first, second)]
    exchange: Any = Exchange(store, {second: [BlobNotFound("nobody has it"), stages[1]]})
    have = PublicData(store, exchange).base
    with pytest.raises(BlobNotFound):
        trio.run(have, SimpleNamespace(base=base), 1)
    trio.run(have, SimpleNamespace(base=base), 1)
    assert store.hashes() == {second} and store.kind(second) is Kind.PUBLIC
    assert exchange.trees[second] == Tree(len(stages[1]), bytes.fromhex("ab" * 32))
    trio.run(have, SimpleNamespace(base=[]), 1)


def test_a_mirror_has_all_data_and_the_first_weights_of_all_stages_and_keeps_them(tmp_path: Path) -> None:
    store, stages = BlobStore(tmp_path), [b"weights of stage 0", b"weights of stage 1"]
    own, other = (hashlib.sha256(data).digest() for data in stages)
    store.put(stages[0], Kind.VERSION)  # had for its own slot
    genesis = [WeightsRef(one.hex(), len(stages[0]), ROOT) for one in (own, other)]
    context = make_context(
        blobs=store, data=LISTED, manifest=SimpleNamespace(genesis=genesis, base=[]),
        exchange=Exchange(store, {other: [stages[1]], NAME: [GOOD]}),
    )  # fmt: skip
    trio.run(DataMirror(context).run, lambda: None)
    assert {name: store.kind(name) for name in (own, other, NAME)} == dict.fromkeys((own, other, NAME), Kind.PUBLIC)
    assert store.hashes() == {own, other, NAME}
    trees = {other: Tree(len(stages[1]), bytes.fromhex(ROOT)), NAME: Tree(len(GOOD), bytes.fromhex(ROOT))}
    assert context.network.exchange.trees == trees, "in parts from all who have some"


def test_a_shard_whose_name_and_root_are_of_two_files_is_the_creators_fault(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    exchange: Any = Exchange(store, {NAME: [BlobContradiction("two files")]})
    with pytest.raises(DataError, match="two files"):
        trio.run(PublicData(store, exchange).shards, LISTED, LISTED.train, Kind.SHARD, "a test")


def test_a_manifest_that_the_ledger_contradicts_takes_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path)
    exchange: Any = Exchange(store, {NAME: [GOOD]})
    view: Any = type("View", (), {"config": type("Config", (), {"manifest": NAME})})
    monkeypatch.setattr(module, "parse", lambda content: content)
    monkeypatch.setattr(module, "differences", lambda manifest, view: ["rounds is 5, there 6"])
    with pytest.raises(Failure, match="do not train it: rounds is 5, there 6"):
        trio.run(PublicData(store, exchange).manifest, view)
