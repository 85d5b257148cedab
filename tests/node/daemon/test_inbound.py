"""What comes in goes to the session of the moment, and is turned away while there is none."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dlx.node.daemon import inbound as module
from dlx.node.daemon.inbound import Inbound
from dlx.p2p import wire


class Session:
    def __init__(self, takes: bool) -> None:
        self.heard, self.taken, self.takes = list[str](), list[Any](), takes
        self.pipes = SimpleNamespace(refusal=lambda peer, hello: f"asked for {peer}")
        self.pool = SimpleNamespace(beyond=lambda request: [f"messages of {request}"])

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
    sessions, judged = list[Session](), list[str]()

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
        inbound: Any = Inbound(nobody, gossip, of_now, lambda: verifier)
        early, refused, taken = Pipe(), Pipe(), Pipe()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbound.run, lambda: None)
            assert inbound.pipes.refuse("a peer", None) == "no slot yet"
            assert not list(inbound.messages.beyond("a round"))
            rounds = ([], early, "early"), ([Session(False)], refused, "first"), ([Session(True)], taken, "second")
            for arriving, pipe, item in rounds:
                sessions.extend(arriving)
                send_gossip.send_nowait(SimpleNamespace(message=item))
                verdict = wire.VerdictMessage(b"report", bytes(65))
                send_gossip.send_nowait(SimpleNamespace(message=verdict, origin=item))
                send_pipe.send_nowait(pipe)
                await trio.testing.wait_all_tasks_blocked()
            assert inbound.pipes.refuse("a peer", None) == "asked for a peer"
            assert inbound.messages.beyond("a round") == ["messages of a round"]
            nursery.cancel_scope.cancel()
        assert (early.closed, refused.closed, taken.closed) == (True, True, False)

    trio.run(main)
    assert [session.heard for session in sessions] == [["first"], ["second"]]
    assert judged == ["early", "first", "second"], "a verdict needs no session"
