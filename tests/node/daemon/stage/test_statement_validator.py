"""Others' statements: refused for what they say of their start, never for what cannot be had yet."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ledger.typed import STATE_RESET, Contribution, SignedContribution
from dlx.node.audit.resets import densest
from dlx.node.daemon.stage.open_stage import OpenStage
from dlx.node.daemon.stage.statement_validator import StatementValidator
from dlx.node.round.actions import ActionFailed, BadStatement, LocalFault
from dlx.node.round.rules.plans import RESET_WINDOW, RESETS
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
    seals: dict[tuple[int, int], Any] = field(default_factory=lambda: _Sealed())

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
        past = StatementValidator(OpenStage(context, rules, 0, trainer, versions))
        past.__dict__["_unused"] = digest("no moments")
        view: Any = SimpleNamespace(
            next_round=lambda stage: self.sealed, weights=lambda stage, version: BASE, sealed=self.seals
        )
        trio.run(past.check, view, SignedContribution(statement, bytes(65)))


class _Sealed(dict[Any, Any]):
    """Seals at hand."""

    def oldest(self, stage: int) -> int:
        return min((round for _, round in self), default=1)


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


def _seal(round: int, *counted: Contribution) -> Any:
    """What a view has of a round's seal that counts these."""
    records = tuple(
        SimpleNamespace(replica=one.replica, statement=one.hash(), inner_steps=one.inner_steps) for one in counted
    )
    return SimpleNamespace(round=round, records=records, accounts=tuple(one.account for one in counted))


@dataclass
class Resetting:
    """An account that begins from zeros in these rounds and in the last one, and was counted in every round before."""

    resets: tuple[int, ...]
    last: int

    def __post_init__(self) -> None:
        first, _ = _statements()
        zeros = {"optimiser_before": digest("no moments"), "change_before": bytes(32), "payload_before": bytes(32)}
        starts = {"start_payload": bytes(32), "weights_before": BASE, "base_weights": BASE}
        begun = replace(first, flags=STATE_RESET, **starts, **zeros)
        self.made = [
            replace(begun, round=at, flags=STATE_RESET if at in self.resets or at == self.last else 0)
            for at in range(self.last + 1)
        ]
        self.seals = _Sealed()
        for one in self.made[:-1]:
            self.seals[0, one.round] = _seal(one.round, one)

    def check(self, folder: Path, there: int, sealed: int) -> None:
        """By a member that gets the newest so many statements from others and sees so many rounds sealed."""
        seals = _Sealed({at: seal for at, seal in self.seals.items() if at[1] < sealed})
        World(folder, self.made[-1 - there :], sealed=sealed, seals=seals).check(self.made[-1])


def test_a_fifth_reset_is_refused_by_whoever_can_judge_it(tmp_path: Path) -> None:
    """What decides is on the ledger and in what it names: a member that begins with an empty folder, or sees a seal
    more, says the same."""
    often = Resetting(resets=(10, 30, 50, 71), last=73)
    for sealed in (72, 73):
        with pytest.raises(BadStatement) as error:
            often.check(tmp_path / str(sealed), there=73, sealed=sealed)
        assert error.value.reason == "too_many_resets"
    with pytest.raises(ActionFailed, match="nobody has it"):  # not refused, as long as it cannot be known
        often.check(tmp_path / "gone", there=20, sealed=73)


@pytest.mark.parametrize(
    "resets",
    [
        (10, 30, 50),  # a disk dies now and then
        (9, 30, 50, 71),  # 64 rounds ago
        (10, 30, 50, 72),  # of a seal that not all have who can judge: its round trained beside this one
    ],
)
def test_fewer_resets_are_taken(tmp_path: Path, resets: tuple[int, ...]) -> None:
    for sealed in (72, 73):
        Resetting(resets, last=73).check(tmp_path / str(sealed), there=73, sealed=sealed)


def test_who_was_hardly_counted_is_looked_up_nowhere(tmp_path: Path) -> None:
    Resetting(resets=(0, 1, 2), last=4).check(tmp_path, there=0, sealed=4)


@pytest.mark.parametrize(("delay", "most"), [(0, RESETS), (1, RESETS + 1)])
def test_who_resets_in_every_round_is_counted_in_hardly_any(tmp_path: Path, delay: int, most: int) -> None:
    """With a delay the fifth follows the fourth before a seal of that is there to be looked at."""
    made, rules = Resetting(resets=(), last=0).made[0], make_rules(delay=delay)
    world = World(tmp_path, [], sealed=0, seals=_Sealed())
    for at in range(2 * RESET_WINDOW):
        stated, world.sealed = replace(made, round=at), at
        try:
            world.check(stated, rules)
        except BadStatement as error:
            assert error.reason == "too_many_resets"
            world.seals[0, at] = _seal(at)
        else:
            world.there.append(stated)
            world.seals[0, at] = _seal(at, stated)
    counted = [one.round for one in world.there]
    assert counted[:most] == list(range(most)), "that a disk dies is borne"
    assert densest(counted) == most and len(counted) > most, "and again, when it is long ago"


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
