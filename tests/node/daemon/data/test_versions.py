"""Versions on disk: made from the sealed payloads, checked against the seal, and dropped when they are old."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ground.constants import NO_HASH
from dlx.ground.merkle import tree_root
from dlx.node.daemon.data.versions import Versions
from dlx.node.round.actions import ActionFailed, Differs, LocalFault
from dlx.node.trainer.client import BlobTrouble, LocalTrouble, UnusableInput
from dlx.p2p.exchange import BlobContradiction, BlobNotFound, Tree
from dlx.training.outer.step import Version
from dlx.training.recipe.recipe import Retention, WeightsRef
from tests.node.made_statements import contribution
from tests.node.round.simulation import make_rules

STAGE = 1
COUNTED = replace(contribution(), payload=hashlib.sha256(b"payload").digest())


def version_bytes(version: int, what: str = "weights") -> bytes:
    return f"{what} {version}".encode()


def name(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@dataclass
class FakeView:
    """A stage whose rounds are all sealed up to `rounds`; empty seals leave the weights as they are."""

    rounds: int
    momentum_from: int = 1
    empty: set[int] = field(default_factory=set)

    def next_round(self, stage: int) -> int:
        return self.rounds

    def members_in(self, stage: int) -> tuple[str, ...]:
        return ("0x1", "0x2")

    def source(self, version: int) -> int:
        while version - 1 in self.empty:
            version -= 1
        return version

    def weights(self, stage: int, version: int) -> bytes:
        return name(version_bytes(self.source(version)))

    def momentum(self, stage: int, version: int) -> bytes:
        made = self.source(version)
        return name(version_bytes(made, "momentum")) if made >= self.momentum_from else NO_HASH

    @property
    def sealed(self) -> dict[tuple[int, int], Any]:
        return {(STAGE, round): self._seal(round) for round in range(self.rounds)}

    def _seal(self, round: int) -> Any:
        made = self.made(round + 1)
        hashes = made.weights, made.momentum, made.weights_root, made.momentum_root
        records = () if round in self.empty else (COUNTED.record(32768),)
        return SimpleNamespace(outcome=SimpleNamespace(hashes=hashes), round=round, records=records)

    def made(self, version: int) -> Version:
        """What the outer step gives that is sealed as this version."""
        weights, momentum = self.weights(STAGE, version), self.momentum(STAGE, version)
        return Version(weights, momentum, name(b"root" + weights), name(b"root" + momentum))


class Peers:
    """What others have, by name."""

    def __init__(self, store: BlobStore, blobs: list[bytes]) -> None:
        self.store, self.blobs, self.asked = store, {name(data): data for data in blobs}, list[bytes]()
        self.by_parts: dict[bytes, Tree] = {}
        self.parts: Exception | None = None  # why nothing comes that way

    async def fetch(
        self, hash_: bytes, max_size: int, providers: object, deadline_s: float, kind: Kind,
        tree: Tree | None = None, sharers: object = (),
    ) -> Path:  # fmt: skip
        if not self.store.has(hash_):
            if tree is not None:
                members = None if hash_ == name(version_bytes(0)) else ["peer 0x1", "peer 0x2"]
                assert providers == members, "the stage's members; of its first weights anybody"
                self.by_parts[hash_] = tree
                if self.parts is not None:
                    raise self.parts
            self.asked.append(hash_)
            if hash_ not in self.blobs:
                raise BlobNotFound("nobody has it")
            self.store.put(self.blobs[hash_])
        return self.store.path(hash_)


class FakeTrainer:
    """Answers outer steps from a list; an Exception is raised."""

    def __init__(self, *answers: Version | Exception) -> None:
        self.answers = list(answers)

    async def outer(self, weights: bytes, momentum: bytes, payloads: tuple[Any, ...]) -> Any:
        assert [payload.payload for payload in payloads] == [name(b"payload")]
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def make(tmp_path: Path, blobs: list[bytes], *answers: Version | Exception) -> Versions:
    store = BlobStore(tmp_path)
    store.put(COUNTED.encode())
    first = version_bytes(0)
    genesis = WeightsRef(name(first).hex(), 100, tree_root([first]).hex())
    manifest = SimpleNamespace(retention=Retention(versions=3, every=10), genesis=[genesis] * 2)
    trainer = FakeTrainer(*answers)
    return Versions(make_rules(), manifest, STAGE, store, Peers(store, blobs), trainer, "peer {}".format)  # type: ignore[arg-type]


def keep(versions: Versions, *numbers: int) -> None:
    for number in numbers:
        versions.store.put(version_bytes(number))
        if number:
            versions.store.put(version_bytes(number, "momentum"))


def kept(versions: Versions, upto: int, what: str = "weights") -> list[int]:
    return [number for number in range(upto + 1) if versions.store.has(name(version_bytes(number, what)))]


def test_the_newest_unbroken_line_is_found(tmp_path: Path) -> None:
    versions, view = make(tmp_path, []), FakeView(8)
    assert versions.newest(view) == (None, None)  # type: ignore[arg-type]
    keep(versions, 0, 3, 5, 6)
    assert versions.newest(view) == (6, 5)  # type: ignore[arg-type]
    versions.store.path(view.momentum(STAGE, 6)).unlink()
    assert versions.newest(view) == (5, 5), "weights without their momentum are no version"  # type: ignore[arg-type]


def test_a_version_is_made_from_the_sealed_payloads(tmp_path: Path) -> None:
    view = FakeView(4)
    versions = make(tmp_path, [b"payload"], view.made(4))
    keep(versions, 3)
    trio.run(versions.adopt, view, 4)
    assert versions.exchange.asked == [name(b"payload")]  # type: ignore[attr-defined]


WRONG: list[Any] = [
    Version(*(bytes(32),) * 4),
    replace(FakeView(4).made(4), weights_root=bytes(32)),
    replace(FakeView(4).made(4), momentum_root=bytes(32)),
    UnusableInput("a nibble is -8"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_result_over_sound_inputs_differs_when_it_comes_twice(tmp_path: Path, wrong: Any) -> None:
    view = FakeView(4)
    versions = make(tmp_path / "a", [b"payload"], wrong, view.made(4))
    keep(versions, 3)
    trio.run(versions.adopt, view, 4)

    versions = make(tmp_path / "b", [b"payload"], wrong, wrong)
    keep(versions, 3)
    with pytest.raises(Differs, match="the outer step over round 3"):
        trio.run(versions.adopt, view, 4)
    assert kept(versions, 4) == [3], "a version that differs is never adopted, nor fetched instead"


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_result_over_a_payload_damaged_on_our_disk_says_nothing(tmp_path: Path, wrong: Any) -> None:
    view = FakeView(4)
    versions = make(tmp_path, [b"payload"], wrong, wrong, view.made(4))
    keep(versions, 3)
    payload = versions.store.path(name(b"payload"))
    real, asked = versions.trainer.outer, []

    async def outer(*inputs: Any) -> Any:
        if len(asked) < 2:
            payload.write_bytes(b"rotten")
        asked.append(inputs)
        return await real(*inputs)

    versions.trainer.outer = outer  # type: ignore[method-assign]
    trio.run(versions.adopt, view, 4)
    assert len(asked) == 3 and versions.exchange.asked == 3 * [name(b"payload")]  # type: ignore[attr-defined]


def test_a_base_version_damaged_on_our_disk_is_had_again(tmp_path: Path) -> None:
    view = FakeView(3)
    blobs = [b"payload", version_bytes(2), version_bytes(2, "momentum")]
    trouble = BlobTrouble("its bytes do not match its name", (view.weights(STAGE, 2),))
    versions = make(tmp_path, blobs, trouble, view.made(3))
    keep(versions, 0, 2)
    rotten = versions.store.path(view.weights(STAGE, 2))
    rotten.write_bytes(b"rotten")
    trio.run(versions.adopt, view, 3)
    assert rotten.read_bytes() == version_bytes(2)


def test_a_base_version_that_nobody_has_is_made_again(tmp_path: Path) -> None:
    view = FakeView(3)
    versions = make(tmp_path, [b"payload"], view.made(2))
    keep(versions, 1)
    trio.run(versions.mend, view, 2, (view.weights(STAGE, 2), view.momentum(STAGE, 2)))
    assert not versions.trainer.answers, "version 2 was computed from version 1"  # type: ignore[attr-defined]


@pytest.mark.parametrize("trouble", [LocalTrouble("no space left"), OSError(28, "no space left")])
def test_trouble_of_this_machine_is_no_verdict_on_a_seal(tmp_path: Path, trouble: Exception) -> None:
    versions = make(tmp_path, [b"payload"], trouble, trouble)
    keep(versions, 0, 1, 2)
    with pytest.raises(LocalFault, match="no space left"):
        trio.run(versions.adopt, FakeView(3), 3)


def test_a_version_whose_seal_was_taken_back_is_not_adopted(tmp_path: Path) -> None:
    with pytest.raises(ActionFailed, match="taken back"):
        trio.run(make(tmp_path, []).adopt, FakeView(3), 4)


def test_without_the_payloads_or_the_version_before_it_is_fetched_by_its_hash(tmp_path: Path) -> None:
    view, made = FakeView(4), [version_bytes(4), version_bytes(4, "momentum")]
    for here in ([], [3]):
        versions = make(tmp_path / str(here), made)
        keep(versions, *here)
        trio.run(versions.adopt, view, 4)
        assert kept(versions, 4) == [*here, 4] == kept(versions, 4, "momentum")
    versions = make(tmp_path / "neither", made[:1])
    with pytest.raises(ActionFailed, match="nobody has it"):
        trio.run(versions.adopt, view, 4)


@pytest.mark.parametrize("empty", [set(), {2, 3}])
def test_a_version_comes_in_parts_from_its_stages_members(tmp_path: Path, empty: set[int]) -> None:
    view = FakeView(4, empty=empty)
    version = 2 if empty else 4
    blobs = [version_bytes(version), version_bytes(version, "momentum")]
    versions, made = make(tmp_path, blobs), view.made(version)
    trio.run(versions.adopt, view, 4)
    asked = versions.exchange.by_parts  # type: ignore[attr-defined]
    assert asked == {made.weights: Tree(100, made.weights_root), made.momentum: Tree(100, made.momentum_root)}


def test_a_version_that_no_member_gives_comes_from_anybody_and_the_first_in_parts(tmp_path: Path) -> None:
    versions = make(tmp_path / "a", [version_bytes(4), version_bytes(4, "momentum")])
    versions.exchange.parts = BlobNotFound("nobody has it")  # type: ignore[attr-defined]
    trio.run(versions.adopt, FakeView(4), 4)
    assert kept(versions, 4) == [4] and len(versions.exchange.by_parts) == 2  # type: ignore[attr-defined]
    versions = make(tmp_path / "b", [version_bytes(0)])
    trio.run(versions.adopt, FakeView(4), 0)
    first = {name(version_bytes(0)): Tree(100, tree_root([version_bytes(0)]))}
    assert kept(versions, 4) == [0] and versions.exchange.by_parts == first  # type: ignore[attr-defined]


def test_a_seal_whose_name_and_root_are_of_two_files_is_never_adopted(tmp_path: Path) -> None:
    versions = make(tmp_path, [version_bytes(4)])
    versions.exchange.parts = BlobContradiction("its name and its Merkle root are of two files")  # type: ignore
    with pytest.raises(Differs, match="two files"):
        trio.run(versions.adopt, FakeView(4), 4)


def test_a_genesis_with_another_root_than_the_manifest_says_is_not_trained_on(tmp_path: Path) -> None:
    versions = make(tmp_path, [version_bytes(0)])
    false = WeightsRef(name(version_bytes(0)).hex(), 100, "ab" * 32)
    versions.manifest.genesis[:] = [false] * 2
    for _ in range(2):  # also where it is here already
        with pytest.raises(ActionFailed, match=r"do not take part in it"):
            trio.run(versions.adopt, FakeView(0), 0)
