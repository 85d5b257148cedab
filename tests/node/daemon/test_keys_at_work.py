"""A node whose account another one has ends; and one that starts answers before it can train."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dlx.node.daemon.membership.one_machine import TWIN_SECONDS, OneMachine
from dlx.node.daemon.node import START_SECONDS, Node
from dlx.node.daemon.observable import Observable
from dlx.node.home.errors import Failure

PEER, OTHER = (
    "16Uiu2HAmPMpMdrLnNrrLdXAQdwWzdhvwDqCQCFtEHmBnfZmMSTeP",
    "16Uiu2HAkvsLtjxCcafH3iWGXufqopwGZdCjcAFUmxzFHQocwYapn",
)
ACCOUNT = f"0x{1:040x}"


class Ledger:
    """What it says of the account: as a follower shows it."""

    def __init__(self, registered: str) -> None:
        self.registered = registered
        self.seen = Observable[Any](self)

    def peer_of(self, account: str) -> str | None:
        return self.registered if account == ACCOUNT else None


def minded(ledger: Ledger) -> OneMachine:
    host: Any = SimpleNamespace(peer_id=PEER)
    follower: Any = ledger
    lock: Any = None  # of no folder
    return OneMachine(ACCOUNT, host, follower, lock)


class Starting:
    """Of a node that starts: what it does about a slot."""

    def __init__(self) -> None:
        self.seen = Observable[Any](SimpleNamespace())
        self.session: Any = None
        self._follower, self._assignment, self._membership = self, self, self
        self.answered, self.healthy = 0, list[int]()

    async def answer(self, seen: Any) -> None:
        self.answered += 1


def passes(seconds: float, work: Any, *arguments: Any) -> float:
    """How long it takes, at most so many seconds."""

    async def main() -> float:
        began = trio.current_time()
        with trio.move_on_after(seconds):
            await work(*arguments)
        return trio.current_time() - began

    return float(trio.run(main, clock=MockClock(autojump_threshold=0)))


def test_a_node_whose_account_another_one_has_registered_ends() -> None:
    async def moves(ledger: Ledger, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(minded(ledger).mind_account, lambda: None)
            await trio.sleep(5)
            ledger.registered = OTHER
            await trio.sleep(seconds)
            ledger.registered = PEER

    with pytest.RaisesGroup(pytest.RaisesExc(Failure, match=f"for account {ACCOUNT}, as {OTHER}")):
        passes(1000, moves, Ledger(PEER), TWIN_SECONDS + 5)
    assert passes(1000, moves, Ledger(PEER), TWIN_SECONDS / 2) == 1000, "a reorg took our own registration back"
    new = minded(Ledger(OTHER))
    assert passes(1000, new.mind_account, lambda: None) == 1000, "this one is about to register itself"


def test_who_starts_answers_until_it_trains_and_not_for_ever() -> None:
    async def seen_again_and_again(parts: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Node._answer_early, parts, lambda: parts.healthy.append(parts.answered))
            for _ in range(4):
                await trio.sleep(START_SECONDS / 3)
                parts.seen.set(SimpleNamespace())
            nursery.cancel_scope.cancel()

    starting, training = Starting(), Starting()
    passes(10 * START_SECONDS, seen_again_and_again, starting)
    assert 2 <= starting.answered <= 4
    training.session = SimpleNamespace(machine=object())
    passes(10 * START_SECONDS, seen_again_and_again, training)
    assert training.answered == 0 and training.healthy, "it is well where there is nothing to answer"
