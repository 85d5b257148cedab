"""Others' payloads: refused for what their bytes are, never for what our own disk or training process did."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ground.blobs import BlobStore, Kind, NoRoom
from dlx.ground.merkle import tree_root
from dlx.node.daemon.data.versions import Versions
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.daemon.stage.payloads import Payloads
from dlx.node.round.actions import ActionFailed, BadPayload, BadStatement, LocalFault
from dlx.node.round.rules.round_rules import PayloadFacts
from dlx.node.trainer.client import BlobTrouble, LocalTrouble, TrainerSilent, UnusableInput
from dlx.p2p.exchange import BlobContradiction, BlobNotFound, BlobTooLarge
from tests.node.daemon.contexts import make_context
from tests.node.daemon.data.test_versions import STAGE, FakeView, name
from tests.node.made_statements import contribution
from tests.node.round.simulation import make_rules

GOOD, LONG, STATEMENT = b"payload", b"x" * 2000, b"what its maker states"
FACTS = PayloadFacts(len(GOOD), tree_root([GOOD]))


@dataclass
class World:
    """A store, peers that have `there`, and a training process that raises the `answers` one by one, then agrees."""

    folder: Path
    there: tuple[bytes, ...] = (GOOD,)
    answers: list[Exception | None] = field(default_factory=list)
    disk: Exception | None = None
    fetched: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = BlobStore(self.folder)

    async def fetch(
        self, hash_: bytes, max_size: int, peers: Any, seconds: float, kind: Kind, tree: Any = None, sharers: Any = ()
    ) -> Path:
        if not self.store.has(hash_):
            if self.disk is not None:
                raise self.disk
            data = next((data for data in self.there if name(data) == hash_), None)
            if data is None:
                raise BlobNotFound("nobody has it")
            self.fetched.append(self.store.put(data))
        size = self.store.path(hash_).stat().st_size
        if size > max_size:
            raise BlobTooLarge(f"{size} bytes, allowed were {max_size}")
        return self.store.path(hash_)

    async def check(self, payload: bytes, plan: Any) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def payloads(self) -> Payloads:
        made, trainer = make_rules(), SimpleNamespace(check=self.check)
        context = make_context(exchange=self, blobs=self.store)
        manifest: Any = SimpleNamespace(genesis=[SimpleNamespace(size=100)] * 2)
        versions = Versions(made, manifest, STAGE, self.store, self, trainer, str)  # type: ignore[arg-type]
        return Payloads(OpenStage(context, made, STAGE, trainer, versions))  # type: ignore[arg-type]

    def have(self, data: bytes, view: Any = None) -> PayloadFacts:
        """Fetch it as a contribution to round 0 would."""
        stated = {"payload": name(data), "payload_size": len(data), "payload_root": tree_root([data])}
        statement = SimpleNamespace(round=0, account="0x1", encode=lambda: STATEMENT, **stated)
        return trio.run(self.payloads().fetch, view or FakeView(0), SimpleNamespace(contribution=statement))


def test_a_payload_that_decodes_is_taken_for_what_it_is_and_its_statement_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.have(GOOD) == FACTS
    assert world.store.path(name(STATEMENT)).read_bytes() == STATEMENT
    assert world.store.kind(name(STATEMENT)) is Kind.PAYLOAD


def test_bytes_that_are_what_their_name_says_and_do_not_decode_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadPayload) as error:
        World(tmp_path, answers=[UnusableInput("a nibble is -8")]).have(GOOD)
    assert error.value.reason == "bad_payload"
    with pytest.raises(BadPayload) as error:
        World(tmp_path, there=(LONG,)).have(LONG)
    assert error.value.reason == "payload_size"


@pytest.mark.parametrize("rotten", [b"rotten", b"r" * 2000], ids=["other bytes", "and too many"])
def test_a_payload_that_our_disk_has_damaged_is_had_again_and_nobody_blamed(tmp_path: Path, rotten: bytes) -> None:
    trouble = BlobTrouble("its bytes do not match its name", (name(GOOD),))
    world = World(tmp_path, answers=[trouble] if len(rotten) < 1000 else [])
    world.store.path(name(GOOD)).write_bytes(rotten)
    assert world.have(GOOD) == FACTS
    assert world.fetched == [name(GOOD)]


@pytest.mark.parametrize(
    "trouble", [LocalTrouble("out of memory"), TrainerSilent("no answer")], ids=["memory", "silence"]
)
def test_trouble_of_the_training_process_is_our_own(tmp_path: Path, trouble: Exception) -> None:
    with pytest.raises(LocalFault):
        World(tmp_path, answers=[trouble]).have(GOOD)


def test_a_full_disk_is_our_own_trouble_and_says_so(tmp_path: Path) -> None:
    full = NoRoom(tmp_path, "the disk quota: 9 bytes too little")
    with pytest.raises(LocalFault, match="the disk quota: 9 bytes too little"):
        World(tmp_path, disk=full).have(GOOD)


def test_a_payload_that_nobody_has_is_asked_for_again_later(tmp_path: Path) -> None:
    with pytest.raises(ActionFailed, match="nobody has it") as error:
        World(tmp_path, there=()).have(GOOD)
    assert not isinstance(error.value, LocalFault)


def test_a_root_of_another_file_speaks_against_the_statement_not_the_payload(tmp_path: Path) -> None:
    """Others may state the same payload, and be right."""
    lie = BlobContradiction("its name and its Merkle root are of two files")
    with pytest.raises(BadStatement) as error:
        World(tmp_path, disk=lie).have(GOOD)  # type: ignore[arg-type]
    assert error.value.reason == "payload_root"


@pytest.mark.parametrize("withheld", [False, True])
def test_what_a_seal_counts_is_had_with_what_audits_judge_it_by(tmp_path: Path, withheld: bool) -> None:
    """Whoever did not check a contribution comes to it so; what its maker withholds stops nothing else."""
    traces = b"a trace", b"another"
    made = [replace(contribution(4), trace=name(traces[0]))]
    for round in (5, 6, 7):
        made.append(replace(made[-1], round=round, previous=made[-1].hash()))
    other = replace(made[0], replica=2, trace=name(traces[1]))
    there = [one.encode() for one in (*made, other) if not withheld or one is not made[2]]
    world = World(tmp_path, there=(*traces, *there))
    records, outcome = (made[3].record(0), other.record(0)), SimpleNamespace(inner_steps=10)
    sealed: Any = SimpleNamespace(accounts=("0x1", "0x3"), records=records, outcome=outcome)
    trio.run(world.payloads().have_statements, sealed)
    assert [world.store.has(one.hash()) for one in made] == [False, not withheld, not withheld, True]
    assert all(world.store.has(one) for one in (other.hash(), *map(name, traces)))
