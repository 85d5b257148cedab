"""A replica on data of its own: who has to have it, who gets to know, and what it then trains on."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlx.training.data import shards
from dlx.training.data.prepare import Preparation, prepare_folder
from dlx.training.data.shards import DataError, Dataset
from dlx.training.inner.pipeline import Link, PipeBroken
from dlx.training.inner.private import agree
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import BlobRef
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.slot import Slot

DATA = DraftData(source=["corpus"], sequence_length=16, batch_size=4, micro_batches=2, seed=7, private=True)
SPLIT = [(0, 1), (1, 2), (2, 3)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlx.training.inner.private.PAUSE", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.txt").write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(150)))
    prepare_folder(Preparation([tmp_path / "own.txt"]), tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def private(folder: Path) -> Dataset:
    return Dataset.open_private(folder)


def test_every_stage_learns_what_the_ends_train_on_and_nobody_trains_where_they_differ(
    tiny_run: Callable[..., Manifest], together: Callable[..., list[Any]]
) -> None:
    manifest = tiny_run(SPLIT, data=DATA)
    public, own = bytes.fromhex(manifest.data.manifest.sha256), hashlib.sha256(b"own").digest()

    def said(first: bytes, last: bytes, between: bytes | None = None) -> list[Any]:
        mine = [first, between, last]
        return together(3, lambda stage, previous, next: agree(manifest, mine[stage], 40, previous, next))

    assert said(public, public) == [False] * 3
    assert said(own, own) == [True] * 3
    for refused in said(own, public):
        assert isinstance(refused, PipeBroken)
        assert f"private data {own.hex()[:12]} and the run's data: start all" in str(refused)
    assert agree(manifest, own, 0, None, None) is True
    assert said(own, own, own) == [True] * 3, "where all stages read data"
    for refused in said(own, own, public):
        assert isinstance(refused, PipeBroken) and "the run's data" in str(refused)


def test_a_neighbour_that_says_nonsense_breaks_the_pipe_only(tiny_run: Callable[..., Manifest]) -> None:
    class Nonsense:
        def recv(self, kind: str, step: int, micro: int) -> bytes:
            return b"no hash"

    with pytest.raises(PipeBroken, match="32 bytes"):
        agree(tiny_run(SPLIT, data=DATA), bytes(32), 0, Nonsense(), None)  # type: ignore[arg-type]


def _train(
    manifest: Manifest, datasets: list[Dataset | None], folder: Path, blobs: Path, together: Callable[..., list[Any]]
) -> list[Any]:
    def work(stage: int, previous: Link | None, next: Link | None) -> Trained:
        weights = bytes.fromhex(manifest.genesis[stage].sha256)
        lot = (0, manifest.plan.inner_steps * manifest.data.batch_size)
        return slots[stage].train(RoundInputs(0, manifest.plan, 0, 20, 0, weights, (lot,)), previous, next)

    slots = [Slot.open(manifest, stage, folder / str(stage), blobs, one) for stage, one in enumerate(datasets)]
    return together(len(datasets), work)


def test_a_replica_trains_on_its_folder_and_every_contribution_says_so(
    tiny_run: Callable[..., Manifest],
    together: Callable[..., list[Any]],
    dataset: Dataset,
    private: Dataset,
    blobs: Path,
    tmp_path: Path,
) -> None:
    manifest = tiny_run(SPLIT, data=DATA)
    before = {path.name for path in blobs.iterdir()}
    own = _train(manifest, [private, None, private], tmp_path / "a", blobs, together)
    assert [trained.private_data for trained in own] == [True] * 3
    served = {path.name for path in blobs.iterdir()} - before
    assert not served & {blob.sha256 for blob in private.manifest.blobs()}
    public = _train(manifest, [dataset, None, dataset], tmp_path / "b", blobs, together)
    assert [trained.private_data for trained in public] == [False] * 3
    assert public[0].payload != own[0].payload
    mixed = _train(manifest, [private, None, dataset], tmp_path / "c", blobs, together)
    assert all("start all with the same --private-data" in str(refused) for refused in mixed)
    again = _train(manifest, [private, None, private], tmp_path / "d", blobs, together)
    assert [one.payload for one in again] == [one.payload for one in own]


def test_private_data_is_walked_through_whatever_the_ledger_deals(
    tiny_run: Callable[..., Manifest], private: Dataset, blobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, seen = tiny_run([(0, 3)], data=DATA), list[int]()
    honest = Dataset.ids
    monkeypatch.setattr(Dataset, "ids", lambda *known: seen.extend(known[2]) or honest(*known))
    slot = Slot.open(manifest, 0, tmp_path / "slot", blobs, private)
    weights, steps = bytes.fromhex(manifest.genesis[0].sha256), manifest.plan.inner_steps
    slot.train(RoundInputs(0, manifest.plan, 5 * steps, 20 * steps, 0, weights, ((1000, 2000),)), None, None)
    need = steps * manifest.data.batch_size
    assert seen == list(range(5 * need, 6 * need))


def test_a_folder_that_does_not_fit_the_run_or_is_damaged_is_refused(folder: Path, dataset: Dataset) -> None:
    shards.check_private(folder, dataset.manifest)
    other = msgspec.structs.replace(
        dataset.manifest, tokenizer=BlobRef("ab" * 32, 9), vocab_size=300, dtype="uint16", train=[], heldout=[]
    )
    with pytest.raises(DataError, match="another tokenizer"):
        shards.check_private(folder, other)
    shard = folder / shards.read_prepared(folder).train[0].sha256
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    with pytest.raises(DataError, match=f"{shard.name}: its bytes do not match"):
        shards.check_private(folder, dataset.manifest)
