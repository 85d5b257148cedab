"""The view of the chain: never dead in silence."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from coincurve import PrivateKey

from dlx.ledger.errors import LedgerUnavailable, WrongLedger
from dlx.ledger.events import Event, EventPosition, Joined, Left, RunCreated
from dlx.ledger.index.event_index import Head
from dlx.ledger.index.feed import RunUpdate
from dlx.ledger.index.log_reader import IndexLost
from dlx.ledger.keys import peer_id
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import NodeTable, RegisteredNode
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import QUICK, RARE, ChainSeen, Follower, next_look
from dlx.node.daemon.supervisor import Supervisor
from dlx.node.home.errors import Failure
from tests.ledger.ledger_run import config
from tests.node.daemon import virtual_time
from tests.patience import patient

RUN, CREATOR = b"\x01" * 32, f"0x{1:040x}"
AT = EventPosition(1, bytes(32), 0, bytes(32), 1_700_000_000)
CREATED = RunCreated(RUN, CREATOR, config(stages=1, min_replicas=2), "a-run", (bytes([4]) * 32,), (CREATOR,), AT)
JOINED = Joined(RUN, CREATOR, 0, 0, AT)
LATER = Left(RUN, CREATOR, 0, 0, AT)
BACK = Joined(RUN, CREATOR, 0, 0, EventPosition(4, bytes(32), 0, bytes(32), 1_700_000_004))


def update(block: int, *events: Event, reorg: bool = False, complete: bool = True) -> RunUpdate:
    """`events`: all of the run up to the block."""
    view = RunView(RUN, Domain(31337, CREATOR))
    for event in events:
        view.apply(event)
    head = Head(block, bytes([block]) * 32, 1_700_000_000 + block)
    return RunUpdate(head, view, NodeTable(), True, reorg, complete)


class Client:
    """Answers each poll with the next of `answers`, the last one for ever; later feeds with `history`."""

    def __init__(self, *answers: RunUpdate | Exception, history: RunUpdate | None = None) -> None:
        self.answers, self.history = list(answers), history
        self.feeds: list[int] = []

    def follow(self, run: bytes, confirmations: int, keep: int) -> int:
        self.feeds.append(confirmations)
        return len(self.feeds)

    tells = False

    def poll(self, feed: int, wait: float) -> RunUpdate:
        if feed > 1 and self.history is not None:
            return self.history
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def follow(client: Client, program: Callable[[Follower, Supervisor], Awaitable[None]]) -> None:
    async def main() -> None:
        ledger: Any = client
        follower, supervisor = Follower(ledger, RUN, ChainClock()), Supervisor()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.keep, "following the chain", follower.run)
            await program(follower, supervisor)
            nursery.cancel_scope.cancel()

    virtual_time.run(main)


async def until(follower: Follower, wanted: Callable[[ChainSeen], bool]) -> ChainSeen:
    with trio.fail_after(patient(600)):
        async for seen in follower.seen.values():
            if seen is not None and wanted(seen):
                return seen
    raise AssertionError


def test_an_event_that_does_not_fit_has_everything_read_anew_and_what_was_seen_stays_until_then() -> None:
    missed = ViewError("an account left that never joined")  # the endpoint left out the block in which it did
    client = Client(update(1, CREATED), missed, history=update(4, CREATED, JOINED, LATER, BACK))

    async def program(follower: Follower, supervisor: Supervisor) -> None:
        first = await until(follower, lambda seen: True)
        assert first.view.created and not first.view.members()
        seen = await until(follower, lambda seen: bool(seen.view.members()))
        assert seen.head.block == 4
        assert len(client.feeds) == 2
        assert not first.view.members(), "nobody changes what somebody holds"

    follow(client, program)


def test_a_silent_chain_is_waited_for_with_its_reason() -> None:
    client = Client(LedgerUnavailable("connection refused"), update(1, CREATED, JOINED))

    async def program(follower: Follower, supervisor: Supervisor) -> None:
        seen = await follower.first()
        assert seen.view.slot_of(CREATOR) == (0, 0)
        assert follower.silence is None and len(client.feeds) == 1

    follow(client, program)
    silent = Client(LedgerUnavailable("connection refused"))

    async def stays(follower: Follower, supervisor: Supervisor) -> None:
        with trio.move_on_after(20):
            await follower.first()
        assert follower.silence == "connection refused" and follower.seen.value is None
        assert supervisor.reasons() == (), "silence is not a failure of ours"

    follow(silent, stays)


def test_a_full_disk_is_no_silence_and_no_reorg(caplog: pytest.LogCaptureFixture) -> None:
    full = IndexLost("the index of events /d/events.sqlite cannot be used: database or disk is full")
    half = update(1, CREATED, reorg=True, complete=False)
    client = Client(update(2, CREATED, JOINED), full, half, update(3, CREATED, JOINED, LATER))

    async def program(follower: Follower, supervisor: Supervisor) -> None:
        async with trio.open_nursery() as nursery:

            async def never_silent() -> None:
                async for seen in follower.seen.values():
                    assert follower.silence is None
                    assert seen is None or seen.view.members() or seen.head.block == 3, "no half of a run"

            nursery.start_soon(never_silent)
            await until(follower, lambda seen: seen.head.block == 3)
            nursery.cancel_scope.cancel()

    with caplog.at_level(logging.INFO, "dlx"):
        follow(client, program)
    assert [line for line in caplog.messages if "clock" not in line] == [str(full)]


def test_a_reorganised_chain_is_read_from_the_start() -> None:
    client = Client(update(1, CREATED, JOINED), update(2, CREATED, reorg=True))

    async def program(follower: Follower, supervisor: Supervisor) -> None:
        await until(follower, lambda seen: bool(seen.view.members()))
        await until(follower, lambda seen: not seen.view.members())

    follow(client, program)


def test_confirmations_that_become_known_forget_what_may_yet_be_taken_back() -> None:
    client = Client(update(2, CREATED, JOINED), history=update(2, CREATED))

    async def program(follower: Follower, supervisor: Supervisor) -> None:
        await until(follower, lambda seen: bool(seen.view.members()))
        follower.confirm(1, 16)
        assert follower.seen.value is None
        seen = await follower.first()
        assert not seen.view.members() and client.feeds == [0, 1]

    follow(client, program)


def test_half_of_a_run_is_not_taken_for_the_whole() -> None:
    client = Client(update(1, complete=False), update(2, CREATED, complete=False), update(3, CREATED, JOINED))

    async def program(follower: Follower, supervisor: Supervisor) -> None:
        seen = await follower.first()
        assert seen.head.block == 3 and set(seen.view.members()) == {CREATOR}

    follow(client, program)


def test_another_chain_takes_a_person() -> None:
    async def program(follower: Follower, supervisor: Supervisor) -> None:
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as raised:
        follow(Client(WrongLedger("the chain node is on chain 1, not 7")), program)
    assert raised.group_contains(Failure, match="check --rpc-url")


def test_the_peers_of_a_run_are_its_members_and_its_creator():
    member, stranger = f"0x{2:040x}", f"0x{3:040x}"
    where = ("/ip4/203.0.113.7/tcp/1",)
    nodes = NodeTable()
    for number, account in enumerate((CREATOR, member, stranger), 1):
        public_key = PrivateKey(bytes([number]) * 32).public_key.format()
        nodes.nodes[account] = RegisteredNode(peer_id(public_key), where)
    joined = Joined(RUN, member, 0, 0, AT)
    for events, named in (((), ()), ((CREATED,), (CREATOR,)), ((CREATED, joined), (CREATOR, member))):
        seen = ChainSeen(update(1, *events).view, nodes, Head(1, bytes(32), 1_700_000_000))
        assert seen.peers() == {seen.peer_of(account): where for account in named}
    nodes.nodes.pop(member)  # it deregistered
    assert seen.peers() == {seen.peer_of(CREATOR): where}


@pytest.mark.parametrize(
    ("spacing", "since_block", "is_awaited", "notice", "expected"),
    [
        (None, 0, False, 600, QUICK),  # nothing is known yet
        (12, 0, True, 600, 12),  # no block comes earlier
        (12, 11, True, 600, 1.5),  # one is due: it may be late
        (12, 500, True, 600, 1.5),
        (0.25, 0, True, 600, QUICK),
        (2, 0, False, 600, RARE),  # a round trains, and nothing is due
        (2, 0, False, 15, 15 / 4),  # an accusation has to be seen in time
        (12, 0, False, 15, 12),
        (0, 9, False, 0, QUICK),
    ],
)
def test_no_look_is_wasted_and_none_comes_too_late(
    spacing: float | None, since_block: float, is_awaited: bool, notice: float, expected: float
) -> None:
    assert next_look(spacing, since_block, is_awaited, notice) == expected
