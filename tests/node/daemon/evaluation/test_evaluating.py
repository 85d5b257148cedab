"""A node's parts of evaluations: in turn, once, and the same after a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dlx.ground.blobs import BlobStore
from dlx.ground.constants import NO_HASH
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Domain, SignedEvaluation
from dlx.node.daemon.evaluation import evaluating
from dlx.node.daemon.evaluation.evaluating import Evaluating
from dlx.node.daemon.messages import Heard
from dlx.node.daemon.observable import Observable
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.node.trainer.evaluations import Pass, PassOutcome
from dlx.node.trainer.job import JobFailed
from dlx.p2p import wire
from dlx.training.data.shards import DataManifest, Shard
from tests.node.daemon import virtual_time
from tests.node.daemon.contexts import make_context
from tests.patience import PATIENCE

RUN, DOMAIN = b"\x01" * 32, Domain(31337, account_of(b"\x99" * 32))
KEYS = [b"\x21" * 32, b"\x22" * 32]
ACCOUNTS = [account_of(key) for key in KEYS]
DATA = DataManifest([], [Shard("ab" * 32, 161, 161, "cd" * 32)])
LOST = b"\x77" * 32


class Net:
    """Two members of one replica, and what is evaluated of its version 4: by `outcome`."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.asked, self.sent = tmp_path, list[Pass](), list[tuple[Any, ...]]()
        self.nodes: list[Evaluating] = []
        self.lose = 0  # messages that do not arrive
        self.fail = 0  # passes that fail
        records = (SimpleNamespace(replica=2),)
        self.seals = {
            (stage, 3): SimpleNamespace(
                run=RUN, round=3, stage=stage, digest=bytes([stage]) * 32, records=records, accounts=(account,)
            )
            for stage, account in enumerate(ACCOUNTS)
        }
        self.view: Any = SimpleNamespace(
            config=SimpleNamespace(stages=2),
            next_round=lambda stage: 0,  # no version to show the loss of
            accounts=ACCOUNTS,
            open_round=4,
            sealed=self.seals,
            weights=lambda stage, version: bytes([stage, version]) * 16,
            members_in=lambda stage: (),
            evaluation=lambda account, version: None,
            slot_of=lambda account: (2, ACCOUNTS.index(account)),
        )
        self.rounds: Any = Observable({3: SimpleNamespace(block=90, block_hash=b"\x05" * 32)})

    def node(self, stage: int) -> Evaluating:
        folder = self.folder / str(stage)
        for made in (folder, folder / "state"):
            made.mkdir(exist_ok=True)
        manifest = SimpleNamespace(
            evaluation=SimpleNamespace(every=2, samples=3, replicas=3),
            data=SimpleNamespace(sequence_length=16, batch_size=4, micro_batches=2, chat=False),
            timing=SimpleNamespace(round_timeout=10),
            genesis=[SimpleNamespace(size=100)] * 2,
            base=[],
            stages=[(0, 1), (1, 2)],
            model=SimpleNamespace(config={}),
        )
        context = make_context(
            run=RUN,
            manifest=manifest,
            data=DATA,
            signer=SlashingProtection(folder / "signed.sqlite", KEYS[stage], DOMAIN),
            exchange=None,
            gossip=SimpleNamespace(publish=self._publish),
            peer_of=lambda account: account,
            client=SimpleNamespace(domain=DOMAIN, evaluate=lambda *said: self.sent.append(said)),
            blobs=BlobStore(folder / "blobs"),
            directory=folder / "state",
        )
        made = Evaluating(context, SimpleNamespace(rounds=self.rounds), lambda: self.view)  # type: ignore[arg-type]
        self.nodes.append(made)
        return made

    async def _publish(self, topic: str, data: bytes) -> None:
        if self.lose:
            self.lose -= 1
            return
        message = wire.decode_as(wire.EvaluationMessage, data)
        for node in self.nodes:
            node.take(message, "somebody")

    async def evaluate(self, work: Pass, deadline_s: float) -> PassOutcome:
        if self.fail:
            self.fail -= 1
            raise JobFailed("killed")
        self.asked.append(work)
        last = work.stage == 1
        return PassOutcome(done=True, sum=70, count=48) if last else PassOutcome(done=True, activations=b"\x06" * 32)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Net:
    made = Net(tmp_path)

    async def nothing(*arguments: Any, **named: Any) -> None:
        pass

    monkeypatch.setattr(evaluating, "evaluate", made.evaluate)
    for name in ("fetch", "fetch_file"):
        monkeypatch.setattr(evaluating, name, nothing)
    monkeypatch.setattr(evaluating, "PublicData", lambda *arguments: SimpleNamespace(shards=nothing, base=nothing))
    monkeypatch.setattr(evaluating, "roots", lambda *arguments: {})
    monkeypatch.setattr(evaluating, "embedding_shape", lambda manifest: None)
    monkeypatch.setattr(evaluating, "activations_size", lambda manifest, samples: 100)
    return made


def until(done: Callable[[], bool], *nodes: Evaluating, seconds: float = 3600.0) -> None:
    """Run nodes until it is so."""

    async def main() -> None:
        with trio.fail_after(seconds):
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    nursery.start_soon(node.run, lambda: None)
                while not done():
                    await trio.sleep(0.5)
                nursery.cancel_scope.cancel()

    virtual_time.run(main)


def test_the_stages_go_on_from_each_other_and_the_last_tells_the_ledger(net: Net) -> None:
    first, last = net.node(0), net.node(1)
    until(lambda: bool(net.sent), first, last)
    assert [(work.stage, work.incoming, len(work.samples)) for work in net.asked] == [
        (0, NO_HASH, 3),
        (1, b"\x06" * 32, 3),
    ]
    (run, version, total, count, name), *more = net.sent
    assert (run, version, total, count, more) == (RUN, 4, 70, 48, [])
    said = SignedEvaluation.decode((net.folder / "1" / "blobs" / name.hex()).read_bytes())
    before = SignedEvaluation.decode((net.folder / "0" / "blobs" / said.evaluation.previous.hex()).read_bytes())
    assert (said.signer(DOMAIN), before.signer(DOMAIN)) == (ACCOUNTS[1], ACCOUNTS[0])
    assert before.evaluation.activations == b"\x06" * 32 and before.evaluation.replica == 2


def test_who_starts_again_says_what_it_said_and_computes_nothing(net: Net) -> None:
    until(lambda: bool(net.sent), net.node(0), net.node(1))
    computed, said = len(net.asked), net.sent[0]
    net.nodes.clear()
    net.sent.clear()
    until(lambda: bool(net.sent), net.node(0), net.node(1))
    assert (len(net.asked), net.sent[0]) == (computed, said)


def test_a_lost_message_comes_again_and_a_pass_that_failed_is_tried_again(net: Net) -> None:
    net.lose, net.fail = 1, 2
    until(lambda: bool(net.sent), net.node(0), net.node(1))
    assert len(net.asked) == 2


def test_a_stranger_says_nothing_of_a_part(net: Net) -> None:
    last = net.node(1)
    until(lambda: bool(net.nodes), last)
    message = net.node(0)
    signer = SlashingProtection(net.folder / "other.sqlite", b"\x55" * 32, DOMAIN)
    until(lambda: bool(net.asked), message)
    (path,) = (net.folder / "0" / "state" / "evaluations").iterdir()
    honest = SignedEvaluation.decode(path.read_bytes())
    forged = signer.sign_evaluation(honest.evaluation)
    asked = len(net.asked)
    net.nodes.clear()
    node = net.node(1)
    assert node.take(wire.EvaluationMessage(RUN, forged.encode()), "somebody") is Heard.REFUSED
    broken = honest.encode()[:-65] + bytes(65)
    assert node.take(wire.EvaluationMessage(RUN, broken), "somebody") is Heard.JUNK
    assert node.take(wire.EvaluationMessage(bytes(32), honest.encode()), "somebody") is Heard.JUNK
    with pytest.raises(trio.TooSlowError):
        until(lambda: len(net.asked) > asked, node, seconds=PATIENCE)
    assert node.take(wire.EvaluationMessage(RUN, honest.encode()), "somebody") is Heard.NO_NEWS
    until(lambda: bool(net.sent), node)
    other = SlashingProtection(net.folder / "again.sqlite", KEYS[0], DOMAIN).sign_evaluation(
        replace(honest.evaluation, activations=b"\x07" * 32)
    )
    assert node.take(wire.EvaluationMessage(RUN, other.encode()), "a mirror") is Heard.NO_NEWS, "its second word"


def test_what_left_the_window_is_kept_no_longer(net: Net) -> None:
    until(lambda: bool(net.sent), net.node(0), net.node(1))
    net.nodes.clear()
    net.rounds.set({5: SimpleNamespace(block=90, block_hash=b"\x05" * 32)})
    node = net.node(1)
    folder = net.folder / "1" / "state" / "evaluations"
    until(lambda: not any(folder.iterdir()), node)
    assert node._store.owners("evaluation/") == set()
