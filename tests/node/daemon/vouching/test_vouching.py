"""A founder's node without a slot, over a fake training process and the simulation's ledger: what it fetches, computes,
signs and keeps of a stage, and when it stops."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import trio

from dlx.ground.blobs import BlobStore
from dlx.ground.constants import NO_HASH
from dlx.ground.merkle import file_root
from dlx.ledger.typed import Seal, SignedContribution, account_of, recover, sign
from dlx.node.daemon.data.retention import Retention
from dlx.node.daemon.messages import Heard, event_of, seals_topic
from dlx.node.daemon.metrics import Metrics
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.stage.statement_validator import StatementValidator
from dlx.node.daemon.vouching import vouching as module
from dlx.node.daemon.vouching import vouching_session
from dlx.node.daemon.vouching.vouching import Vouching
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.node.round import events as e
from dlx.node.round.rules.round_rules import Rules
from dlx.node.round.sealing import ALONE_PATIENCE
from dlx.node.trainer import messages as m
from dlx.p2p import wire
from dlx.p2p.exchange import BlobNotFound
from dlx.training.outer.step import Version
from dlx.training.recipe.recipe import Retention as Kept
from tests.node.daemon import virtual_time
from tests.node.daemon.contexts import make_context
from tests.node.round.simulation import DOMAIN, FOUNDER, RUN, START, Simulation, digest, make_rules
from tests.patience import patient

GENESIS, NEXT, PAYLOAD = b"weights 0", b"weights 1", b"a payload of the member"
OTHER = b"of somebody else"


class Trainer:
    """Opens a stage without a slot, and takes one outer step."""

    trouble: str | None = None
    opened: ClassVar[list[m.Open]] = []

    def __init__(self, placement: Any) -> None:
        assert placement.device == "cpu", "a device may have no room beside a slot"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def open(self, opening: m.Open, on_message: Callable[[Any], None], weights: int) -> m.Opened:
        self.opened.append(opening)
        self.store = BlobStore(Path(opening.blobs))
        return m.Opened(None, ({0: 1000},))

    async def check(self, payload: bytes, plan: Any) -> None:
        pass

    async def outer(self, base: bytes, momentum: bytes, payloads: Any) -> Version:
        made = self.store.put(NEXT)
        return Version(made, NO_HASH, digest("root", made), NO_HASH)


class Scene:
    """A run of one member; its founder's node hears it and the chain."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, seals_empty: bool = False) -> None:
        rules = make_rules(rounds=2, stages=1, delay=0, max_payload_sizes=({0: 1000},))
        monkeypatch.setattr(Rules, "of_run", lambda *_: rules)
        monkeypatch.setattr(module, "Terms", SimpleNamespace(of=lambda manifest: rules))
        monkeypatch.setattr(vouching_session, "Trainer", Trainer)
        monkeypatch.setattr(Trainer, "opened", [])
        monkeypatch.setattr(StatementValidator, "check", self._sound)
        self.store = BlobStore(folder / "blobs")
        genesis = self.store.put(GENESIS)
        self.ledger = Simulation(rules, replicas=1, seed=1, genesis=(genesis,))
        self.ledger.founder_alive = False  # this scene's is
        self.signer = SlashingProtection(folder / "signed.sqlite", FOUNDER, DOMAIN)
        self.said: list[tuple[str, bytes]] = []
        self.sent: list[Seal] = []
        self.topics: set[str] = set()
        gossip = SimpleNamespace(publish=self._publish, follow=self._follow, neighbours=lambda topic: ())
        root = file_root(self.store.path(genesis)).hex()
        first = SimpleNamespace(sha256=genesis.hex(), size=1000, root=root)
        manifest = SimpleNamespace(stages=[(0, 1)], retention=Kept(), genesis=[first], confirmations=0)
        self.domain = DOMAIN
        self.context = make_context(
            manifest=manifest, signer=self.signer, exchange=self, gossip=gossip, client=self,
            now=lambda: START + trio.current_time(), blobs=self.store, directory=folder, metrics=Metrics(RUN),
            seals_empty=seals_empty,
        )  # fmt: skip
        self.follower = SimpleNamespace(seen=Observable(self.seen()))
        self.vouching = Vouching(self.follower, self.context)  # type: ignore[arg-type]

    def seen(self) -> Any:
        return SimpleNamespace(view=self.ledger.kept.copy(), head=SimpleNamespace(block=self.ledger.block))

    def seal(self, seal: Seal, signatures: bytes) -> SimpleNamespace:
        """What the chain's client does."""
        assert self.ledger.seal(seal, signatures)
        self.sent.append(seal)
        return SimpleNamespace(block=self.ledger.block)

    async def _sound(self, *given: Any) -> None:
        pass

    async def _publish(self, topic: str, data: bytes) -> None:
        self.said.append((topic, data))

    async def _follow(self, reason: str, topics: set[str]) -> None:
        assert reason == "vouching", "the slot's topic is its session's"
        self.topics = topics

    async def fetch(self, name: bytes, *others: Any) -> Path:
        if not self.store.has(name):
            raise BlobNotFound("nobody has it")
        return self.store.path(name)

    def contribution(self) -> SignedContribution:
        """The member's, whose payload lies here."""
        (member,) = self.ledger.members.values()
        name = self.store.put(PAYLOAD)
        path = self.store.path(name)
        facts = {"payload": name, "payload_size": path.stat().st_size, "payload_root": file_root(path)}
        return self.ledger.contribution(member, 0, **facts)

    def hear(self, message: wire.GossipMessage) -> Heard:
        (session,) = self.vouching.sessions.values()
        return session.hear(wire.encode(message), "a peer")

    def play(self, program: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.vouching.run, lambda: None)
                with trio.fail_after(patient(300)):
                    await program()
                nursery.cancel_scope.cancel()

        virtual_time.run(main)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await trio.sleep(0.2)

    @property
    def is_open(self) -> bool:
        return any(session.machine is not None for session in self.vouching.sessions.values())

    def attestations(self) -> list[e.AttestationSeen]:
        found = [event_of(data, "", RUN, DOMAIN) for _, data in self.said]
        return [one for one in found if isinstance(one, e.AttestationSeen)]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_it_signs_what_a_member_would_sign_and_says_nothing_else(scene: Scene) -> None:
    signed = scene.contribution()

    async def program() -> None:
        await scene.until(lambda: scene.is_open)
        assert scene.topics == {seals_topic(RUN, 0)}
        assert scene.hear(wire.ContributionMessage(signed.encode())) is Heard.NEWS
        await scene.until(lambda: bool(scene.attestations()))

    scene.play(program)
    (opening,) = Trainer.opened
    assert opening.directory is None, "it trains nothing"
    vote = scene.attestations()[0]
    assert recover(vote.digest, vote.signature) == account_of(FOUNDER)
    (seal,) = scene.signer.entries().seals
    assert [record.statement for record in seal.seal.records] == [signed.contribution.hash()]
    assert {topic for topic, _ in scene.said} == {seals_topic(RUN, 0)}
    assert all(isinstance(wire.decode(data), wire.AttestationMessage) for _, data in scene.said)


def test_what_is_heard_is_told_apart(scene: Scene) -> None:
    """A mailbox that has only what strangers say, or what the run is through with, shows nobody to be there."""
    (member,) = scene.ledger.members.values()
    seal = digest("a seal")

    def vote(key: bytes, round: int = 0, stage: int = 0) -> wire.AttestationMessage:
        return wire.AttestationMessage(RUN, stage, round, seal, sign(seal, key))

    async def program() -> None:
        await scene.until(lambda: scene.is_open)
        assert scene.hear(wire.AttestationMessage(RUN, 0, 0, seal, bytes(65))) is Heard.JUNK
        assert scene.hear(wire.VerdictMessage(b"report", bytes(65))) is Heard.JUNK, "others take those"
        assert scene.hear(vote(b"\x07" * 32)) is Heard.REFUSED, "a stranger's"
        assert scene.hear(vote(member.key, round=9)) is Heard.REFUSED, "of no round of now"
        assert scene.hear(vote(member.key, stage=9)) is Heard.REFUSED, "a stage that the run has not"
        assert scene.hear(vote(FOUNDER)) is Heard.NO_NEWS, "its own"
        assert scene.hear(vote(member.key)) is Heard.NEWS

    scene.play(program)


@pytest.mark.parametrize("wanted", [True, False])
def test_rounds_that_nobody_seals_are_sealed_empty_where_its_operator_wants_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: bool
) -> None:
    scene = Scene(tmp_path, monkeypatch, seals_empty=wanted)
    timeout = scene.ledger.rules.round_timeout

    async def program() -> None:
        await scene.until(lambda: scene.is_open)
        while trio.current_time() < (ALONE_PATIENCE + 5) * timeout and len(scene.sent) < 2:
            scene.ledger.now = START + trio.current_time()  # of the seal's block
            scene.ledger.block += 1
            scene.follower.seen.set(scene.seen())
            await trio.sleep(1)

    scene.play(program)
    assert [(seal.round, seal.records) for seal in scene.sent] == [(0, ()), (1, ())][: 2 * wanted]
    assert len(scene.signer.entries().seals) == 2 * wanted and not scene.said
    told = f"its members have not sealed it for {ALONE_PATIENCE + 1} round timeouts"
    lines = [line for line in caplog.messages if told in line]
    assert len(lines) == wanted and all("sealing round 0 of stage 0 empty" in line for line in lines)


def test_once_the_stage_needs_no_founder_it_stops_and_keeps_nothing_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[set[str]] = []

    async def program() -> None:
        await scene.until(lambda: scene.is_open)
        await scene.until(lambda: bool(scene.store.owners("vouching/")))
        kept.append(scene.store.owners("vouching/"))
        monkeypatch.setattr(module, "vouched_stages", lambda *given: ())
        await scene.until(lambda: not scene.vouching.sessions and not scene.topics)
        monkeypatch.undo()

    scene.play(program)
    assert kept and not scene.store.owners("vouching/")


def test_a_slots_change_of_stage_releases_nothing_that_is_vouched_for(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    name = store.put(OTHER)
    store.pin(f"vouching/{RUN.hex()[:16]}/0/version/0", [name])
    store.pin(f"{RUN.hex()[:16]}/0/version/0", [name])
    Retention(store, Kept(), make_rules(), RUN, 1).release_other_stages()
    assert store.owners("") == {f"vouching/{RUN.hex()[:16]}/0/version/0"}
    Retention(store, Kept(), make_rules(), RUN, 0, "vouching/").release()
    assert not store.owners("")
