"""Others' statements: refused for what they say of their start, never for what cannot be had yet."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ledger.typed import STATE_RESET, Contribution, SignedContribution
from dlx.node.daemon.slot.open_slot import OpenSlot
from dlx.node.daemon.slot.statement_validator import StatementValidator
from dlx.node.round.actions import ActionFailed, BadStatement, LocalFault
from dlx.node.round.rules.round_rules import Rules
from dlx.node.trainer.client import BlobTrouble, LocalTrouble, UnusableInput
from dlx.p2p.exchange import BlobNotFound
from tests.node.daemon.contexts import make_context
from tests.node.round.simulation import Simulation, digest, make_rules

RULES = make_rules(delay=1, alpha=0.5)
BASE, START = digest("V[1]"), digest("start of round 2")


@dataclass
class World:
    """A store, peers that have `there`, and a training process that gives the `answers` one by one, then START."""

    folder: Path
    there: list[Contribution]
    answers: list[Exception | bytes] = field(default_factory=list)
    mended: list[bytes] = field(default_factory=list)
    sealed: int = 1

    def __post_init__(self) -> None:
        self.store = BlobStore(self.folder)

    async def fetch(self, hash_: bytes, max_size: int, peers: Any, seconds: float, kind: Kind, *more: Any) -> Path:
        if not self.store.has(hash_):
            data = next((one.encode() for one in self.there if one.hash() == hash_), None)
            if data is None:
                raise BlobNotFound("nobody has it")
            self.store.put(data, kind)
        return self.store.path(hash_)

    async def start(self, base: bytes, payload: bytes, plan: Any) -> bytes:
        assert base == BASE
        answer = self.answers.pop(0) if self.answers else START
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def mend(self, view: Any, round: int, blobs: Any) -> None:
        assert round == 1
        self.mended += blobs

    def check(self, statement: Contribution, rules: Rules = RULES) -> None:
        context = make_context(exchange=self, blobs=self.store)
        versions: Any = SimpleNamespace(mend=self.mend, plan=lambda view, round: RULES.plan)
        trainer: Any = SimpleNamespace(start=self.start)
        past = StatementValidator(OpenSlot(context, rules, 0, 0, trainer, versions))
        past.__dict__["_unused"] = digest("no moments")
        view: Any = SimpleNamespace(
            next_round=lambda stage: self.sealed, weights=lambda stage, version: BASE, sealed=_Sealed()
        )
        trio.run(past.check, view, SignedContribution(statement, bytes(65)))


class _Sealed(dict[Any, Any]):
    """Nothing at hand."""

    def oldest(self, stage: int) -> int:
        return 1


def _statements() -> tuple[Contribution, Contribution]:
    """Of rounds 1 and 2."""
    sim = Simulation(RULES, replicas=1, seed=1)
    member = sim.members[sim.view.member_at(0, 0)]  # type: ignore[index]
    first = replace(sim.contribution(member, 0).contribution, round=1, optimiser_after=digest("o"), change=digest("c"))
    second = replace(
        first, round=2, previous=first.hash(), payload=digest("payload"), base_weights=BASE, weights_before=START,
        start_payload=first.payload, optimiser_before=first.optimiser_after,
        change_before=first.change, payload_before=first.payload,
    )  # fmt: skip
    return first, second


def test_a_statement_that_follows_is_taken_and_one_before_it_kept(tmp_path: Path) -> None:
    first, second = _statements()
    world = World(tmp_path, [first])
    world.check(second)
    assert world.store.kind(first.hash()) is Kind.PAYLOAD


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights_before": bytes(32)}, "wrong_start"),
        ({"start_payload": bytes(32)}, "wrong_start"),
        ({"folded_payload": digest("junk")}, "wrong_folded"),
        ({"optimiser_before": digest("junk")}, "wrong_state"),
        ({"change_before": digest("junk")}, "wrong_state"),
        ({"payload_before": digest("junk")}, "wrong_state"),
        ({"flags": 4}, "wrong_flags"),
        ({"account": "0x" + 40 * "1"}, "wrong_previous"),
    ],
)
def test_one_that_does_not_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    first, second = _statements()
    with pytest.raises(BadStatement) as error:
        World(tmp_path, [first]).check(replace(second, **changes))
    assert error.value.reason == reason


def test_a_start_that_has_a_residual_in_it_is_left_to_level_3(tmp_path: Path) -> None:
    first, second = _statements()
    rules, hidden = make_rules(delay=1, alpha=0.5, ahead=0.5), replace(second, weights_before=digest("hidden"))
    World(tmp_path / "asks nobody", [first], answers=[UnusableInput("nobody can")]).check(hidden, rules)
    for changes in ({"start_payload": bytes(32)}, {"change_before": bytes(32)}, {"flags": STATE_RESET}):
        with pytest.raises(BadStatement):
            World(tmp_path / "other", [first]).check(replace(hidden, **changes), rules)
    zeros = {"optimiser_before": digest("no moments"), "change_before": bytes(32), "payload_before": bytes(32)}
    reset = replace(second, flags=STATE_RESET, start_payload=bytes(32), weights_before=BASE, **zeros)
    World(tmp_path / "reset", [first]).check(reset, rules)
    with pytest.raises(BadStatement) as error:
        World(tmp_path / "junk", [first]).check(replace(reset, weights_before=digest("junk")), rules)
    assert error.value.reason == "wrong_start", "without a residual everybody can tell"


def test_a_payload_in_its_start_that_is_none_is_refused(tmp_path: Path) -> None:
    first, second = _statements()
    with pytest.raises(BadStatement) as error:
        World(tmp_path, [first], answers=[UnusableInput("a nibble is -8")]).check(second)
    assert error.value.reason == "wrong_start"


def test_what_cannot_be_had_now_is_asked_for_again_later(tmp_path: Path) -> None:
    first, second = _statements()
    with pytest.raises(ActionFailed, match="nobody has it") as error:
        World(tmp_path, []).check(second)
    assert not isinstance(error.value, LocalFault)
    with pytest.raises(ActionFailed, match="taken back"):
        World(tmp_path, [first], sealed=0).check(second)
    with pytest.raises(LocalFault):
        World(tmp_path, [first], answers=[LocalTrouble("out of memory")]).check(second)


def test_what_our_disk_has_lost_is_had_again_and_nobody_blamed(tmp_path: Path) -> None:
    first, second = _statements()
    world = World(tmp_path, [first], answers=[BlobTrouble("gone", (BASE,))])
    world.check(second)
    assert world.mended == [BASE]
    world.store.path(first.hash()).write_bytes(b"rotten")
    with pytest.raises(ActionFailed):
        world.check(second)
    world.check(second)
