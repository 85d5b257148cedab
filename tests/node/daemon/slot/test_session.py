"""One slot's session over a fake training process and the simulation's ledger: what it does when things fail."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ground.blobs import BlobStore
from dlx.ground.constants import NO_HASH
from dlx.ground.merkle import file_root
from dlx.ledger import events as chain
from dlx.ledger.errors import Reverted
from dlx.ledger.typed import sign
from dlx.node.daemon.metrics import Metrics
from dlx.node.daemon.slot import executor
from dlx.node.daemon.slot.session import Session
from dlx.node.daemon.stage.stage_session import ClockCorrected
from dlx.node.home.errors import Failure
from dlx.node.home.keys.slashing_protection import Contradiction, SlashingProtection
from dlx.node.round import actions as a
from dlx.node.round import events as e
from dlx.node.round.rules.deals import Deals
from dlx.node.round.rules.round_rules import Rules
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import LocalTrouble
from dlx.p2p import wire
from dlx.p2p.exchange import BlobNotFound
from dlx.training.data.shards import DataManifest, Shard
from dlx.training.outer.step import Version
from dlx.training.recipe.recipe import Retention
from dlx.training.slot.rounds import RoundInputs, Trained
from tests.node.daemon import virtual_time
from tests.node.daemon.contexts import make_context
from tests.node.round.simulation import DOMAIN, RUN, START, Simulation, digest, make_rules
from tests.patience import patient

ROUNDS = 3


def weights(version: int) -> bytes:
    return f"weights {version}".encode()


class Trainer:
    """Trains at once, unless the test holds it up; `faults` are raised by the next outer steps."""

    def __init__(self, store: BlobStore) -> None:
        self.store, self.faults, self.hold = store, list[Exception](), False
        self.trained: list[int] = []
        self.samples: list[Any] = []
        self.fresh = True
        self.tell: Callable[[Any], None] = lambda message: None

    async def open(self, opening: m.Open, on_message: Callable[[Any], None], weights: int) -> m.Opened:
        self.tell = on_message
        return m.Opened(None, ({0: 1000},))

    def post(self, message: Any) -> None:
        if isinstance(message, m.Train):
            self.trained.append(message.inputs.round)
            self.samples.append(message.inputs.samples)
            if not self.hold:
                trio.lowlevel.spawn_system_task(self._finish, message.inputs)

    async def _finish(self, inputs: RoundInputs) -> None:
        await trio.sleep(0.5)
        payload = self.store.put(f"payload {inputs.round}".encode())
        self.tell(m.Finished(trained(inputs, payload, self.fresh and inputs.round == 0)))

    async def check(self, payload: bytes, plan: Any) -> None:
        pass

    async def outer(self, base: bytes, momentum: bytes, payloads: Any) -> Version:
        if self.faults:
            raise self.faults.pop(0)
        version = next(v for v in range(ROUNDS) if base == name_of(v)) + 1
        made = self.store.put(weights(version))
        return Version(made, NO_HASH, digest("root", made), NO_HASH)


def name_of(version: int) -> bytes:
    return hashlib.sha256(weights(version)).digest()


def trained(inputs: RoundInputs, payload: bytes, reset: bool) -> Trained:
    round = inputs.round
    return Trained(
        inputs=inputs, round=round, payload=payload, payload_size=len(f"payload {round}"), payload_root=NO_HASH,
        base_weights=name_of(round), start_payload=NO_HASH, folded=(), weights_before=NO_HASH,
        optimiser_before=NO_HASH, optimiser_after=NO_HASH, change_before=NO_HASH, payload_before=NO_HASH,
        change=NO_HASH, trace=NO_HASH, segments=2, inner_steps=5, tokens=320, loss=5_000_000 - round,
        training_ms=500, reset=reset,
    )  # fmt: skip


class Scene:
    """A run of one node: the simulation's ledger, and the session of its only slot."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rules = make_rules(rounds=ROUNDS, stages=1, delay=0, max_payload_sizes=({0: 1000},))
        monkeypatch.setattr(Rules, "of_run", lambda *_: rules)
        monkeypatch.setattr(executor, "round_bytes", lambda manifest, stage, inner_steps: 3000)
        self.ledger = Simulation(rules, replicas=1, seed=1, genesis=(name_of(0),), founder=0)
        (self.account,) = self.ledger.members
        self.ledger.outer = lambda round, listed, multipliers: name_of(round + 1)  # type: ignore[method-assign]
        self.store = BlobStore(folder / "blobs")
        self.store.put(weights(0))
        self.trainer, self.counted = Trainer(self.store), list[bool]()
        key = self.ledger.members[self.account].key
        self.signer = SlashingProtection(folder / "signed.sqlite", key, DOMAIN)
        self.metrics, self.refusals = Metrics(RUN), 0
        root = file_root(self.store.path(name_of(0))).hex()
        first = SimpleNamespace(sha256=name_of(0).hex(), size=1000, root=root)
        manifest = SimpleNamespace(
            stages=[(0, 1)], retention=Retention(), genesis=[first], base=[], confirmations=0,
            data=SimpleNamespace(seed=0, sequence_length=8, batch_size=4, chat=False),
        )  # fmt: skip
        self.shard = self.store.put(bytes(1000))
        gossip = SimpleNamespace(publish=self._publish, follow=self._follow_topic, neighbours=lambda topic: ())
        self.context = make_context(
            manifest=manifest, data=DataManifest([Shard(self.shard.hex(), 1000, 1000, root)], []),
            deals=Deals(rules, 1, 4),
            signer=self.signer, exchange=self, gossip=gossip, client=self, now=lambda: self.now(), blobs=self.store,
            directory=folder, metrics=self.metrics,
            on_sealed=lambda sealed, counted: self.counted.append(counted),
        )  # fmt: skip
        self.now: Callable[[], float] = lambda: START + trio.current_time()
        self.domain = DOMAIN

    def said_before(self, messages: list[bytes]) -> None:
        """What the node's own mailbox has when it starts."""
        self.context = replace(self.context, network=replace(self.context.network, said_before=messages))

    async def _publish(self, topic: str, data: bytes) -> None:
        pass

    async def _follow_topic(self, reason: str, topics: set[str]) -> None:
        pass

    async def fetch(self, name: bytes, limit: int, peers: Any, seconds: float, *kind: Any) -> Path:
        if not self.store.has(name):
            raise BlobNotFound("nobody has it")
        return self.store.path(name)

    def seal(self, seal: Any, signatures: bytes) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise Reverted("NotYet")
        self.ledger.block += 1
        assert self.ledger.seal(seal, signatures)
        return SimpleNamespace(block=self.ledger.block)

    def play(self, program: Callable[[Session], Awaitable[None]]) -> None:
        async def main() -> None:
            start = trio.current_time()
            self.now = lambda: START + trio.current_time() - start
            slot = self.ledger.view.slot_of(self.account)
            assert slot is not None
            trainer: Any = self.trainer
            session = Session(self.context, trainer, slot, self.ledger.kept.copy(), self.ledger.block)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._follow, session)
                nursery.start_soon(session.run)
                with trio.fail_after(patient(3000)):
                    await program(session)
                nursery.cancel_scope.cancel()

        virtual_time.run(main)

    async def _follow(self, session: Session) -> None:
        while True:
            await trio.sleep(0.5)
            self.ledger.now = self.now()
            self.ledger.block += 1
            session.on_ledger(self.ledger.kept.copy(), self.ledger.block)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await trio.sleep(0.2)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_rounds_are_trained_signed_sealed_and_adopted(scene: Scene) -> None:
    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None and session.machine.version == ROUNDS)

    scene.play(program)
    assert scene.trainer.trained == [0, 1, 2] and scene.counted == [True] * ROUNDS
    assert sorted(scene.signer.contributions(RUN, 0)) == [0, 1, 2]
    assert scene.store.has(name_of(ROUNDS))
    assert scene.trainer.samples == [((20 * round, 20 * round + 20),) for round in range(ROUNDS)], "each lot once"


def test_a_round_waits_for_its_training_data_and_says_so(scene: Scene) -> None:
    content, told = scene.store.path(scene.shard).read_bytes(), list[str | None]()
    scene.store.remove(scene.shard)

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None and bool(session.machine.failing(scene.now())))
        assert session.machine is not None and not scene.trainer.trained
        told.append(session.machine.waiting_for(scene.now()))
        scene.store.put(content)
        await scene.until(lambda: session.machine is not None and session.machine.version == ROUNDS)

    scene.play(program)
    assert told == ["the training data of round 0: nobody has it"]
    assert scene.trainer.trained == [0, 1, 2]


def test_a_full_disk_is_told_and_waited_out_and_nothing_is_lost(scene: Scene) -> None:
    scene.trainer.faults = [LocalTrouble("No space left on device")] * 3
    told: list[str] = []

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None and bool(session.machine.failing(scene.now())))
        assert session.machine is not None
        told.extend(one.reason for one in session.machine.failing(scene.now()))
        await scene.until(lambda: session.machine is not None and session.machine.version == ROUNDS)
        assert session.machine.diverged is None and not session.machine.failing(scene.now())

    scene.play(program)
    assert told == ["No space left on device"]
    assert scene.trainer.trained == [0, 1, 2], "each round once"


def test_a_training_process_that_dies_costs_its_round_and_no_more(scene: Scene) -> None:
    async def program(session: Session) -> None:
        scene.trainer.hold = True
        await scene.until(lambda: scene.trainer.trained == [0])
        scene.trainer.hold = False
        scene.trainer.tell(m.Gone("killed by signal 9"))
        await scene.until(lambda: session.machine is not None and session.machine.training is None)
        scene.trainer.tell(m.Opened(None, ({0: 1000},)))
        await scene.until(lambda: session.machine is not None and session.machine.version == ROUNDS)

    scene.play(program)
    assert scene.trainer.trained == [0, 0, 1, 2]


def test_what_came_too_early_is_judged_once_our_view_of_the_ledger_is_there(scene: Scene) -> None:
    seal = digest("a seal of round 1")
    vote = wire.AttestationMessage(RUN, 0, 1, seal, sign(seal, scene.ledger.members[scene.account].key))
    item: Any = SimpleNamespace(data=wire.encode(vote), origin="a peer")
    heard: list[int] = []

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None)
        machine = session.machine
        assert machine is not None
        handle = machine.handle

        def noting(event: e.Event, now: float) -> list[a.Action]:
            if isinstance(event, e.AttestationSeen):
                heard.append(machine.unsealed)
            return handle(event, now)

        machine.handle = noting  # type: ignore[method-assign]
        session.on_gossip(item)
        await scene.until(lambda: machine.version == ROUNDS)

    scene.play(program)
    assert heard == [0, 1]


def test_a_machine_whose_arithmetic_contradicts_what_it_signed_stops_contributing(scene: Scene) -> None:
    def refuse(*_: object) -> bytes:
        raise Contradiction("another next version was signed for the same contributions")

    scene.signer.sign_seal = refuse  # type: ignore[method-assign]
    reasons: list[str | None] = []

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None and session.machine.diverged is not None)
        assert session.machine is not None
        reasons.append(session.machine.diverged)

    scene.play(program)
    assert reasons == ["version 1 differs from its seal: another next version was signed for the same contributions"]


def test_a_refused_transaction_is_sent_again(scene: Scene) -> None:
    scene.refusals = 2

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None and session.machine.version == ROUNDS)

    scene.play(program)
    assert scene.refusals == 0


def test_it_ends_when_the_slot_is_no_longer_ours(scene: Scene) -> None:
    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None)
        scene.ledger.apply(chain.Left(RUN, scene.account, 0, 0, scene.ledger.at()))
        await scene.until(lambda: session.lost)

    scene.play(program)


def test_without_what_it_has_signed_nothing_is_signed_that_might_contradict_it(scene: Scene) -> None:
    told: list[str] = []
    scene.trainer.fresh = False  # its state has rounds of which nothing signed is known

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None and bool(session.machine.failing(scene.now())))
        assert session.machine is not None
        told.extend(one.reason for one in session.machine.failing(scene.now()))

    scene.play(program)
    assert "signed.sqlite: put the file back" in told[0] and not scene.signer.contributions(RUN, 0)


def test_a_clock_that_was_set_back_has_the_session_begin_anew(scene: Scene) -> None:
    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None)
        true = scene.now
        scene.now = lambda: true() - 3600
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as raised:
        scene.play(program)
    assert raised.group_contains(ClockCorrected)


def test_what_its_account_signed_elsewhere_ends_it_before_it_signs(scene: Scene) -> None:
    """A copied folder, whose original is at work where nobody can dial it."""
    member = scene.ledger.members[scene.account]
    elsewhere = scene.ledger.contribution(member, 0)
    item: Any = SimpleNamespace(data=wire.encode(wire.ContributionMessage(elsewhere.encode())), origin="a peer")

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None)
        session.on_gossip(item)

    with pytest.raises(ExceptionGroup) as raised:
        scene.play(program)
    assert raised.group_contains(Failure, match="works elsewhere too: .* in round 0")
    assert not scene.signer.contributions(RUN, 0)


def test_what_its_own_mailbox_shows_ends_it_before_it_signs(scene: Scene) -> None:
    """A folder from a backup, or one of a lost folder's account."""
    member = scene.ledger.members[scene.account]
    stranger = wire.ContributionMessage(scene.ledger.contribution(member, 0).encode()[:-65] + bytes(65))
    lost = wire.ContributionMessage(scene.ledger.contribution(member, 0).encode())
    scene.said_before([b"junk", wire.encode(stranger), wire.encode(lost)])

    async def program(session: Session) -> None:
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as raised:
        scene.play(program)
    assert raised.group_contains(Failure, match="works elsewhere too: .* in round 0")
    assert not scene.signer.contributions(RUN, 0) and not scene.trainer.trained


def test_its_own_words_in_its_own_mailbox_stop_nobody(scene: Scene) -> None:
    member = scene.ledger.members[scene.account]
    signed = scene.signer.sign_contribution(scene.ledger.contribution(member, 0).contribution)
    scene.said_before([wire.encode(wire.ContributionMessage(signed.encode()))])

    async def program(session: Session) -> None:
        await scene.until(lambda: session.machine is not None)

    scene.play(program)
