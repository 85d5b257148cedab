"""Registering the node, taking a slot and giving it back, with a ledger that refuses and a chain that lags."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import trio
from trio.testing import MockClock

from dlx.ledger.errors import Reverted
from dlx.ledger.events import Accused, EventPosition, Joined, RunCreated, RunOpened, SiteEnlisted, SiteSeated
from dlx.ledger.index.event_index import Head
from dlx.ledger.keys import peer_id_from_base58
from dlx.ledger.typed import ANY_STAGE, Domain, SiteMember, recover
from dlx.ledger.view.node_registry import NodeTable, RegisteredNode
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.membership.registration import Membership, NoSlot
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.home.keys.site import Site, make
from tests.ledger.ledger_run import config

RUN, ACCOUNT, OTHER, THIRD = b"\x01" * 32, f"0x{1:040x}", f"0x{2:040x}", f"0x{3:040x}"
STALLED = 1000  # seconds, far beyond the config's round timeouts of 2 s
PEER = "16Uiu2HAmPMpMdrLnNrrLdXAQdwWzdhvwDqCQCFtEHmBnfZmMSTeP"
ADDRESSES = ("/ip4/127.0.0.1/tcp/4001",)
AT = EventPosition(1, bytes(32), 0, bytes(32), 1_700_000_000)


class Ledger:
    """Gives a slot of any stage but those in `full`; remembers what was sent."""

    def __init__(self, full: tuple[int, ...] = ()) -> None:
        self.full, self.sent = full, list[tuple[Any, ...]]()

    def register(self, key: bytes, addresses: tuple[str, ...]) -> None:
        self.sent.append(("register", addresses))

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        self.sent.append(("set_addresses", addresses))

    def join_run(self, run: bytes, stage: int) -> tuple[int, int]:
        if stage in self.full:
            raise Reverted("NoFreeSeat")
        self.sent.append(("join", stage))
        return 0, 0

    def accuse(self, run: bytes, account: str) -> None:
        self.sent.append(("accuse", account))

    def evict(self, run: bytes, account: str) -> None:
        self.sent.append(("evict", account))

    domain = Domain(31337, OTHER)

    def enlist(self, run: bytes, stage: int, until: int, signature: bytes) -> None:
        self.sent.append(("enlist", stage, recover_site(signature)))
        self.until = until

    def join_site(self, run: bytes, replica: int, accounts: tuple[str, ...]) -> None:
        self.sent.append(("join_site", replica, accounts))
        if self.full:
            raise Reverted("NoFreeSeat")

    def leave_run(self, run: bytes) -> None:
        self.sent.append(("leave",))


def recover_site(signature: bytes) -> str:
    return recover(SiteMember(RUN, ACCOUNT).digest(Ledger.domain), signature)


def seen(member: bool = False, nodes: dict[str, RegisteredNode] | None = None) -> ChainSeen:
    view, table = RunView(RUN, Domain(31337, OTHER)), NodeTable()
    view.apply(RunCreated(RUN, OTHER, config(stages=1, min_replicas=2, max_replicas=2), "a", (bytes([4]) * 32,), AT))
    if member:
        view.apply(Joined(RUN, ACCOUNT, 0, 0, AT))
    table.nodes = nodes or {}
    return ChainSeen(view, table, Head(1, bytes(32), 1_700_000_000))


async def at_once(function: Callable[..., Any], *args: Any, abandon_on_cancel: bool) -> Any:
    """In place of a thread, so that no time passes while the machine is busy."""
    await trio.lowlevel.checkpoint()
    return function(*args)


def act(ledger: Ledger, chain: ChainSeen, program: Callable[[Membership, Follower], Awaitable[None]]) -> None:
    async def main() -> None:
        client: Any = ledger
        host: Any = SimpleNamespace(peer_id=PEER, addresses=ADDRESSES)
        follower = Follower(client, RUN, ChainClock())
        follower.seen.set(chain)
        await program(Membership(client, follower, host, RUN, ACCOUNT, bytes(32)), follower)

    with mock.patch.object(trio.to_thread, "run_sync", at_once):
        trio.run(main, clock=MockClock(autojump_threshold=0))


def registered(nodes: dict[str, RegisteredNode]) -> list[tuple[Any, ...]]:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower) -> None:
        await membership.register()

    act(ledger, seen(nodes=nodes), program)
    return ledger.sent


def test_only_what_the_registry_does_not_know_is_sent() -> None:
    ours = peer_id_from_base58(PEER)
    assert registered({}) == [("register", ADDRESSES)]
    assert registered({ACCOUNT: RegisteredNode(b"\x07" * 39, ADDRESSES)}) == [("register", ADDRESSES)]
    assert registered({ACCOUNT: RegisteredNode(ours, ("/ip4/10.0.0.1/tcp/1",))}) == [("set_addresses", ADDRESSES)]
    assert registered({ACCOUNT: RegisteredNode(ours, ADDRESSES)}) == []


def test_a_peer_id_of_another_account_takes_a_person() -> None:
    with pytest.raises(Failure, match=r"is registered by account .* remove the folder's node\.key"):
        registered({OTHER: RegisteredNode(peer_id_from_base58(PEER), ADDRESSES)})


def test_a_full_stage_is_passed_over_and_the_slot_waited_for() -> None:
    ledger = Ledger(full=(1,))

    async def program(membership: Membership, follower: Follower) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (1, ANY_STAGE))
            await trio.sleep(1)
            assert membership.slot is None
            follower.seen.set(seen(member=True))
        assert membership.slot == (0, 0)

    act(ledger, seen(), program)
    assert ledger.sent == [("join", ANY_STAGE)]


def test_no_slot_says_why() -> None:
    async def refused(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match="gives no slot: stage 1 is full: all its 2 slots are taken"):
            await membership.join((1,))

    async def unseen(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match="the chain's events do not show it after 30 s"):
            await membership.join((0,))

    act(Ledger(full=(1,)), seen(), refused)
    act(Ledger(), seen(), unseen)


def test_where_nothing_is_free_a_slot_that_is_forfeit_is_asked_for_and_then_freed() -> None:
    ledger, chain = Ledger(full=(0, ANY_STAGE)), seen()
    chain.view.apply(Joined(RUN, OTHER, 0, 0, AT))
    chain.view.apply(Joined(RUN, THIRD, 1, 0, AT))
    chain.view.apply(RunOpened(RUN, AT.time, AT))

    def at(seconds: int) -> ChainSeen:
        return replace(chain, head=Head(2, bytes(32), AT.time + seconds))

    async def program(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match="stage 0 is full: all its 2 slots are taken"):
            await membership.join((0,))
        assert not ledger.sent, "who works keeps the slot"
        follower.seen.set(at(STALLED))
        with pytest.raises(NoSlot, match=f"{OTHER} was asked for its slot, which it can keep only by work within 2 s"):
            await membership.join((0, ANY_STAGE))
        position = replace(AT, time=AT.time + STALLED)
        chain.view.apply(Accused(RUN, OTHER, ACCOUNT, True, position))
        follower.seen.set(at(STALLED + 2))
        with pytest.raises(NoSlot, match=f"{OTHER} has lost its slot now"):
            await membership.join((0,))

    act(ledger, chain, program)
    assert ledger.sent == [("accuse", OTHER), ("evict", OTHER)]


def test_only_who_holds_a_slot_gives_one_back() -> None:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower) -> None:
        await membership.leave()
        assert not ledger.sent
        follower.seen.set(seen(member=True))
        await membership.leave()

    act(ledger, seen(), program)
    assert ledger.sent == [("leave",)]


def test_a_slot_that_is_just_being_asked_for_is_given_back_too() -> None:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (0,))
            await trio.sleep(1)
            nursery.start_soon(membership.leave)
            await trio.sleep(1)
            assert ledger.sent == [("join", 0)], "what the chain does not show yet cannot be given back"
            follower.seen.set(seen(member=True))
            await trio.sleep(1)
            nursery.start_soon(membership.leave)
            await trio.sleep(1)
            assert ledger.sent == [("join", 0), ("leave",)], "what is being given back is not given back twice"
            follower.seen.set(seen())

    act(ledger, seen(), program)
    assert ledger.sent == [("join", 0), ("leave",)]


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(2000):
        while not condition():
            await trio.sleep(1)


def with_site(ledger: Ledger, tmp_path: Path, program: Callable[[Membership, Follower, Site], Awaitable[None]]) -> None:
    site = make(DataDir(tmp_path), "home")

    async def joining(membership: Membership, follower: Follower) -> None:
        client: Any = ledger
        host: Any = SimpleNamespace(peer_id=PEER, addresses=ADDRESSES)
        await program(Membership(client, follower, host, RUN, ACCOUNT, bytes(32), site), follower, site)

    act(ledger, two_stages(), joining)


def two_stages(*events: Any) -> ChainSeen:
    view = RunView(RUN, Domain(31337, OTHER))
    view.apply(
        RunCreated(RUN, OTHER, config(stages=2, min_replicas=2, max_replicas=2), "a", (bytes([4]) * 32,) * 2, AT)
    )
    for event in events:
        view.apply(event)
    table = NodeTable()
    table.nodes = dict.fromkeys((ACCOUNT, OTHER), RegisteredNode(peer_id_from_base58(PEER), ADDRESSES))
    return ChainSeen(view, table, Head(1, bytes(32), AT.time))


def enlisted(account: str, site: Site) -> SiteEnlisted:
    return SiteEnlisted(RUN, account, site.address, ANY_STAGE, AT.time + 1800, AT)


def test_a_machine_of_a_site_enlists_waits_for_the_others_and_has_all_placed(tmp_path: Path) -> None:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (1, ANY_STAGE))
            await until(lambda: ledger.sent == [("enlist", 1, site.address)])
            follower.seen.set(two_stages(enlisted(ACCOUNT, site)))
            await until(lambda: "1 of 2 are here" in (membership.waiting_for or ""))
            both = (enlisted(ACCOUNT, site), enlisted(OTHER, site))
            follower.seen.set(two_stages(*both))
            await until(lambda: ledger.sent[1:] == [("join_site", 0, (ACCOUNT, OTHER))])
            slots = (ACCOUNT, OTHER)
            joined = [Joined(RUN, account, 0, stage, AT) for stage, account in enumerate(slots)]
            follower.seen.set(two_stages(*both, SiteSeated(RUN, site.address, 0, slots, AT), *joined))
        assert membership.slot == (0, 0) and membership.waiting_for is None
        assert len(ledger.sent) == 2

    with_site(ledger, tmp_path, program)


def test_a_machine_that_leaves_before_it_is_placed_takes_its_consent_back(tmp_path: Path) -> None:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        await membership.leave()
        assert not ledger.sent, "it never enlisted"
        follower.seen.set(two_stages(enlisted(ACCOUNT, site)))
        await membership.leave()
        assert ledger.sent == [("enlist", ANY_STAGE, site.address)] and ledger.until == 0

    with_site(ledger, tmp_path, program)


def test_a_site_whose_slots_were_taken_meanwhile_looks_again(tmp_path: Path) -> None:
    ledger = Ledger(full=(0,))

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        both = (enlisted(ACCOUNT, site), enlisted(OTHER, site))
        follower.seen.set(two_stages(*both))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (ANY_STAGE,))
            await until(lambda: ("join_site", 0, (ACCOUNT, OTHER)) in ledger.sent)
            follower.seen.set(two_stages(*both, Joined(RUN, THIRD, 0, 0, AT)))
            await until(lambda: ledger.sent[-1] == ("join_site", 1, (ACCOUNT, OTHER)))
            nursery.cancel_scope.cancel()

    with_site(ledger, tmp_path, program)
