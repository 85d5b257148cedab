"""What comes in goes to the session of the moment, and is turned away while there is none."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dlx.node.daemon import inbound as module
from dlx.node.daemon.inbound import Inbound
from dlx.node.daemon.messages import Heard
from dlx.p2p import wire


class Session:
    def __init__(self, takes: bool, stage: int = 0) -> None:
        self.stage = stage
        self.heard, self.taken, self.takes = list[str](), list[Any](), takes
        self.pipes = SimpleNamespace(refusal=lambda peer, hello: f"asked for {peer}")
        self.pool = SimpleNamespace(beyond=lambda request: [f"messages of stage {stage}"])

    def on_gossip(self, item: Any) -> None:
        self.heard.append(item.message)

    def take_pipe(self, pipe: Any) -> bool:
        self.taken.append(pipe)
        return self.takes


class Pipe:
    closed = False

    async def aclose(self) -> None:
        self.closed = True


def test_the_session_of_the_moment_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, vouching, judged, evaluated = list[Session](), list[Session](), list[str](), list[str]()

    async def main() -> None:
        send_gossip, messages = trio.open_memory_channel[Any](9)
        send_pipe, incoming = trio.open_memory_channel[Pipe](9)
        made: Any = lambda host, refuse: SimpleNamespace(incoming=incoming, refuse=refuse)  # noqa: E731
        monkeypatch.setattr(module, "PipeService", made)
        monkeypatch.setattr(module, "MessageSync", lambda host, beyond: SimpleNamespace(beyond=beyond))
        nobody: Any = None
        gossip: Any = SimpleNamespace(messages=messages)
        of_now: Any = lambda: sessions[-1] if sessions else None  # noqa: E731
        verifier: Any = SimpleNamespace(take=lambda message, source: judged.append(source))
        evaluating: Any = SimpleNamespace(take=lambda message, source: evaluated.append(source))
        inbound: Any = Inbound(nobody, gossip, of_now, lambda: vouching, lambda: verifier, lambda: evaluating)
        early, refused, taken = Pipe(), Pipe(), Pipe()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbound.run, lambda: None)
            assert inbound.pipes.refuse("a peer", None) == "no slot yet"
            assert not list(inbound.messages.beyond(SimpleNamespace(stage=0)))
            rounds = ([], early, "early"), ([Session(False)], refused, "first"), ([Session(True)], taken, "second")
            for arriving, pipe, item in rounds:
                sessions.extend(arriving)
                send_gossip.send_nowait(SimpleNamespace(message=item))
                verdict = wire.VerdictMessage(b"report", bytes(65))
                send_gossip.send_nowait(SimpleNamespace(message=verdict, origin=item))
                said = wire.EvaluationMessage(bytes(32), bytes(321))
                send_gossip.send_nowait(SimpleNamespace(message=said, origin=item))
                send_pipe.send_nowait(pipe)
                await trio.testing.wait_all_tasks_blocked()
            assert inbound.pipes.refuse("a peer", None) == "asked for a peer"
            vouching.append(Session(False, stage=1))
            send_gossip.send_nowait(SimpleNamespace(message="third"))
            await trio.testing.wait_all_tasks_blocked()
            found = [inbound.messages.beyond(SimpleNamespace(stage=stage)) for stage in range(3)]
            assert found == [["messages of stage 0"], ["messages of stage 1"], ["messages of stage 0"]]
            nursery.cancel_scope.cancel()
        assert (early.closed, refused.closed, taken.closed) == (True, True, False)

    trio.run(main)
    assert [session.heard for session in sessions] == [["first"], ["second", "third"]]
    assert vouching[0].heard == ["third"], "what is heard is for every stage that the node follows"
    assert judged == ["early", "first", "second"], "a verdict needs no session"


def test_a_mailboxs_message_goes_to_whom_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PipeService", lambda host, refuse: None)
    monkeypatch.setattr(module, "MessageSync", lambda host, beyond: None)
    heard: list[tuple[str, bytes]] = []

    def session(stage: int) -> Any:
        def hear(data: bytes, source: str) -> Heard:
            heard.append((f"stage {stage} of {source}", data))
            return Heard(2 + stage)

        pool = SimpleNamespace(said=lambda account: [b"%d of %s" % (stage, str(account).encode())])
        return SimpleNamespace(stage=stage, machine=None, hear=hear, pool=pool)

    def takes(name: str) -> Any:
        def take(message: wire.GossipMessage, source: str) -> Heard:
            heard.append((name, source))  # type: ignore[arg-type]
            return Heard.REFUSED

        return SimpleNamespace(take=take, said=lambda account: [])

    ours, vouched = session(0), session(1)
    nobody: Any = None
    verifier, evaluating = takes("verifier"), takes("evaluating")
    inbound = Inbound(nobody, nobody, lambda: ours, lambda: [vouched], lambda: verifier, lambda: evaluating)
    run, signature = bytes(32), bytes(65)
    contribution = wire.encode(wire.ContributionMessage(bytes(961)))
    attestation = wire.encode(wire.AttestationMessage(run, 1, 0, bytes(32), signature))
    verdict = wire.encode(wire.VerdictMessage(b"report", signature))
    evaluation = wire.encode(wire.EvaluationMessage(run, bytes(321)))
    assert inbound.hear(contribution, "it") is None, "nobody listens yet"
    ours.machine = vouched.machine = object()
    told = [inbound.hear(message, "it") for message in (contribution, attestation, verdict, evaluation)]
    assert told == [Heard.NEWS, Heard.NEWS, Heard.REFUSED, Heard.REFUSED], "what any of them can use is of use"
    assert heard == [
        ("stage 0 of it", contribution), ("stage 1 of it", contribution), ("stage 1 of it", attestation),
        ("verifier", "it"), ("evaluating", "it"),
    ]  # fmt: skip
    for junk in (b"junk", b"", wire.encode(wire.VerdictsRequest(0))):
        assert inbound.hear(junk, "it") is Heard.JUNK
    other = wire.encode(wire.AttestationMessage(run, 9, 0, bytes(32), signature))
    inbound.hear(other, "it")
    assert heard[-1] == ("stage 0 of it", other), "somebody judges also what is of no stage here"
    assert inbound.said("0xA") == [b"0 of 0xA", b"1 of 0xA"]
