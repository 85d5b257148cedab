"""Registering the node, taking a slot and giving it back, with a ledger that refuses and a chain that lags."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dlx.ledger.abi import ZERO_ACCOUNT
from dlx.ledger.bonds import Bond
from dlx.ledger.errors import Reverted
from dlx.ledger.events import Accused, EventPosition, Joined, RunCreated, RunOpened, SiteEnlisted, SitePlaced
from dlx.ledger.index.event_index import Head
from dlx.ledger.keys import peer_id_from_base58
from dlx.ledger.typed import ANY_STAGE, Domain, Invitation, SiteMember, recover
from dlx.ledger.view.node_registry import NodeTable, RegisteredNode
from dlx.ledger.view.run_state import Member, Return
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.membership import registration
from dlx.node.daemon.membership.registration import Membership, NoSlot
from dlx.node.daemon.observable import Observable
from dlx.node.home import join_line
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.home.join_line import Listed, SignedInvitation
from dlx.node.home.keys.site import Site, make
from dlx.node.round.actions import Send
from tests.ledger.ledger_run import config
from tests.node.daemon import virtual_time
from tests.patience import patient

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
            raise Reverted("NoFreeSlot")
        self.sent.append(("join", stage))
        return 0, 0

    def accuse(self, run: bytes, account: str) -> None:
        self.sent.append(("accuse", account))

    def evict(self, run: bytes, account: str) -> None:
        self.sent.append(("evict", account))

    def reclaim(self, run: bytes, account: str) -> None:
        self.sent.append(("reclaim", account))

    domain = Domain(31337, OTHER)
    guests: tuple[str, ...] = ()  # accounts and sites
    revoked: tuple[str, ...] = ()
    list_root: bytes | None = None
    not_admitted: tuple[str, ...] = ()  # machines of the site that the run does not let in
    at_stake = Bond(0, 0, 0, 0, False)

    def is_admitted(self, run: bytes, account: str) -> bool:
        return account in self.guests

    is_guest = is_admitted

    def is_revoked(self, run: bytes, guest: str) -> bool:
        return guest in self.revoked

    def list_of(self, run: bytes) -> bytes | None:
        return self.list_root

    def admit(self, invitation: Invitation, signature: bytes) -> None:
        if self.full:
            raise Reverted("Expired", (5,))
        self.sent.append(("admit", invitation.guest))
        self.guests = (*self.guests, invitation.guest)

    def admit_listed(self, run: bytes, account: str, proof: tuple[bytes, ...]) -> None:
        if self.full:
            raise Reverted("NotListed", (account,))
        self.sent.append(("admit listed", account, proof))
        self.guests = (account,)

    def bond(self, run: bytes, account: str) -> Bond:
        return self.at_stake

    def enlist(self, run: bytes, stage: int, until: int, signature: bytes) -> None:
        self.sent.append(("enlist", stage, recover_site(signature)))
        self.until = until

    def join_site(self, run: bytes, replica: int, accounts: tuple[str, ...]) -> None:
        self.sent.append(("join_site", replica, accounts))
        if found := [one for one in accounts if one in self.not_admitted]:
            raise Reverted("NotInvited", (found[0],))
        if self.full:
            raise Reverted("NoFreeSlot")

    def answer(self, run: bytes) -> None:
        self.sent.append(("answer",))

    def leave_run(self, run: bytes) -> None:
        self.sent.append(("leave",))


def recover_site(signature: bytes) -> str:
    return recover(SiteMember(RUN, ACCOUNT).digest(Ledger.domain), signature)


def seen(member: bool = False, nodes: dict[str, RegisteredNode] | None = None, **terms: Any) -> ChainSeen:
    view, table = RunView(RUN, Domain(31337, OTHER)), NodeTable()
    settings = config(stages=1, min_replicas=2, max_replicas=2, **terms)
    view.apply(RunCreated(RUN, OTHER, settings, "a", (bytes([4]) * 32,), (OTHER,), AT))
    if member:
        view.apply(Joined(RUN, ACCOUNT, 0, 0, AT))
    table.nodes = nodes or {}
    return ChainSeen(view, table, Head(1, bytes(32), 1_700_000_000))


def act(
    ledger: Ledger,
    chain: ChainSeen,
    program: Callable[[Membership, Follower], Awaitable[None]],
    kept: Callable[[], SignedInvitation | Listed | None] = lambda: None,
) -> None:
    async def main() -> None:
        client: Any = ledger
        host: Any = SimpleNamespace(peer_id=PEER, addresses=ADDRESSES)
        follower = Follower(client, RUN, ChainClock())
        follower.seen.set(chain)
        membership = Membership(client, follower, host, RUN, ACCOUNT, bytes(32), kept=kept)
        await program(membership, follower)

    virtual_time.run(main)


def registered(nodes: dict[str, RegisteredNode]) -> list[tuple[Any, ...]]:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower) -> None:
        await membership.register(ADDRESSES)

    act(ledger, seen(nodes=nodes), program)
    return ledger.sent


def test_only_what_the_registry_does_not_know_is_sent() -> None:
    ours = peer_id_from_base58(PEER)
    assert registered({}) == [("register", ADDRESSES)]
    assert registered({ACCOUNT: RegisteredNode(b"\x07" * 39, ADDRESSES)}) == [("register", ADDRESSES)]
    assert registered({ACCOUNT: RegisteredNode(ours, ("/ip4/10.0.0.1/tcp/1",))}) == [("set_addresses", ADDRESSES)]
    assert registered({ACCOUNT: RegisteredNode(ours, ADDRESSES)}) == []


def told(
    program: Callable[[Observable[tuple[str, ...] | None], list[tuple[float, tuple[str, ...]]]], Awaitable[None]],
) -> list[tuple[float, tuple[str, ...]]]:
    """When the registry, which knows ADDRESSES, got what, while `program(wanted, told)` sets what it should have."""
    ledger, ours, times = Ledger(), peer_id_from_base58(PEER), list[tuple[float, tuple[str, ...]]]()
    wanted: Observable[tuple[str, ...] | None] = Observable(None)

    async def follow(membership: Membership, follower: Follower) -> None:
        def pays(addresses: tuple[str, ...]) -> None:
            times.append((trio.current_time(), addresses))
            follower.seen.set(seen(nodes={ACCOUNT: RegisteredNode(ours, addresses)}))

        ledger.set_addresses = pays  # type: ignore[method-assign]
        pays(ADDRESSES)
        times.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.follow_addresses, wanted, lambda: None)
            await program(wanted, times)
            nursery.cancel_scope.cancel()

    act(ledger, seen(), follow)
    return times


def test_the_registry_is_told_once_it_was_wrong_for_a_while_and_later_each_time() -> None:
    """Who has our address change every minute does not have us pay for each."""

    async def program(wanted: Observable[tuple[str, ...] | None], times: list[tuple[float, tuple[str, ...]]]) -> None:
        await trio.sleep(100)
        assert not times, "nothing is known yet"
        wanted.set(ADDRESSES[::-1])
        await trio.sleep(100)
        assert not times, "the order is nothing to pay for"
        began = trio.current_time()
        wanted.set(("/ip4/9.9.9.9/tcp/1",))
        await trio.sleep(5)
        wanted.set(("/ip4/8.8.8.8/tcp/1",))
        await trio.sleep(90)
        assert len(times) == 1 and 7 <= times[0][0] - began < 20
        for number in range(4 * 60):
            wanted.set((f"/ip4/8.8.{number % 7}.8/tcp/1",))
            await trio.sleep(60)

    assert 3 < len(told(program)) < 16, "addresses that never stay are registered too, ever more rarely"


@pytest.mark.parametrize("up, down", [(300, 300), (301, 3), (200, 400)])
def test_relays_that_flap_keep_the_others_from_no_registry(up: int, down: int) -> None:
    """Two that give and take a place, as they like, beside one that lasts."""
    wrong = [0.0]

    async def program(wanted: Observable[tuple[str, ...] | None], times: list[tuple[float, tuple[str, ...]]]) -> None:
        registered: tuple[str, ...] = ADDRESSES
        for number in range(24 * 3600 // (up + down)):
            for seconds, flapping in ((up, ADDRESSES), (down, (f"other-{number % 2}",))):
                wanted.set((*flapping, "lasting"))
                await trio.sleep(seconds)
                registered = times[-1][1] if times else registered
                wrong[0] += 0.0 if "lasting" in registered else seconds

    times = told(program)
    assert wrong[0] <= up + down and len(times) < 32


def test_what_is_right_again_for_a_moment_now_and_then_is_wrong() -> None:
    async def program(wanted: Observable[tuple[str, ...] | None], times: list[tuple[float, tuple[str, ...]]]) -> None:
        for number in range(20):  # it has changed often before: the pause is long
            wanted.set((f"/ip4/8.8.{number}.8/tcp/1",))
            await trio.sleep(7200)
            if len(times) >= 6:
                break
        before = times[-1][1]
        for _ in range(24):
            wanted.set(("lasting",))
            await trio.sleep(250)
            wanted.set(before)
            await trio.sleep(50)

    assert told(program)[-1][1] == ("lasting",)


def test_a_peer_id_of_another_account_takes_a_person() -> None:
    with pytest.raises(Failure, match=r"is registered by account .* remove the folder's node\.key"):
        registered({OTHER: RegisteredNode(peer_id_from_base58(PEER), ADDRESSES)})


def test_a_full_stage_is_passed_over_and_the_slot_waited_for() -> None:
    ledger = Ledger(full=(1,))

    async def program(membership: Membership, follower: Follower) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (1, ANY_STAGE), lambda: None)
            await trio.sleep(1)
            assert membership.slot is None
            follower.seen.set(seen(member=True))
        assert membership.slot == (0, 0)

    act(ledger, seen(), program)
    assert ledger.sent == [("join", ANY_STAGE)]


def test_where_we_left_weight_a_slot_that_stands_still_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "claims", lambda view, account, stage, now: [Send("reclaim", THIRD)])
    monkeypatch.setattr(registration, "reclaims_soon", lambda view, account, stage, now: True)
    ledger = Ledger(full=(0,))

    async def program(membership: Membership, follower: Follower) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (0, ANY_STAGE), lambda: None)
            await trio.sleep(1)
            assert membership.slot is None
            follower.seen.set(seen(member=True))
        assert membership.slot == (0, 0)

    act(ledger, seen(), program)
    assert ledger.sent == [("reclaim", THIRD)], "no slot of another stage, where the weight would be lost"


@pytest.mark.parametrize(
    "waits, left, asked, expected",
    [
        (None, 1, (0, ANY_STAGE), [1]),
        (1, None, (ANY_STAGE,), [1]),
        (1, 0, (ANY_STAGE,), [1]),
        (None, None, (0, ANY_STAGE), [0]),
        (1, 1, (0,), [0]),
    ],
)
def test_whoever_asks_for_any_slot_asks_first_where_one_waits_for_it_or_it_left_weight(
    waits: int | None, left: int | None, asked: tuple[int, ...], expected: list[int]
) -> None:
    """In another stage its weight would be lost, and the slot would wait in vain."""
    chain, ledger = two_stages(), Ledger()
    if waits is not None:
        chain.view.returns[0, waits] = Return(ACCOUNT, AT.time)
    if left is not None:
        chain.view.accounts[ACCOUNT] = Member(stage=left, weight=1000, left_at=AT.time)

    async def program(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot):
            await membership.join(asked, lambda: None)

    act(ledger, chain, program)
    assert ledger.sent == [("join", stage) for stage in expected]


def test_where_its_stage_is_full_and_works_it_takes_a_slot_of_another() -> None:
    chain, ledger = two_stages(), Ledger(full=(1,))
    chain.view.accounts[ACCOUNT] = Member(stage=1, weight=1000, left_at=AT.time)

    async def program(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot):
            await membership.join((ANY_STAGE,), lambda: None)

    act(ledger, chain, program)
    assert ledger.sent == [("join", ANY_STAGE)]


LISTED = Listed((b"\7" * 32, b"\x08" * 32))
INVITED = SignedInvitation(Invitation(OTHER, RUN, ACCOUNT, ZERO_ACCOUNT, 1, 2), bytes(65))


def test_an_invitation_is_brought_once_before_a_slot_is_asked_for() -> None:
    async def program(membership: Membership, follower: Follower) -> None:
        for _ in range(2):
            with pytest.raises(NoSlot, match="do not show it"):
                await membership.join((0,), lambda: None)

    ledger = Ledger()
    act(ledger, seen(invited=True), program, lambda: INVITED)
    assert ledger.sent == [("admit", ACCOUNT), ("join", 0), ("join", 0)]
    ledger = Ledger()
    act(ledger, seen(invited=True), program, lambda: LISTED)
    assert ledger.sent == [("admit listed", ACCOUNT, LISTED.proof), ("join", 0), ("join", 0)]
    ledger = Ledger()
    act(ledger, seen(), program, lambda: INVITED)
    assert ledger.sent == [("join", 0), ("join", 0)], "an open run needs none"


def test_without_an_invitation_or_by_one_that_is_over_there_is_no_slot() -> None:
    listed = Ledger()
    listed.list_root = bytes(32)
    cases = (
        (Ledger(), None, f"ask for {ACCOUNT}'s line, for `.*dlx-node join LINE`"),
        (Ledger(full=(0,)), INVITED, rf"of {ACCOUNT} is of no use \(.*Expired.*\): ask for a new line"),
        (Ledger(full=(0,)), LISTED, rf"of {ACCOUNT} is of no use \(.*NotListed.*\): .* join LINE --accounts FILE`"),
    )

    async def join(membership: Membership, follower: Follower) -> None:
        await membership.join((0,), lambda: None)

    for ledger, kept, said in (*cases, (listed, None, "ask for it and the line, for `.*join LINE --accounts FILE`")):
        with pytest.raises(NoSlot, match=said):
            act(ledger, seen(invited=True), join, lambda kept=kept: kept)  # type: ignore[misc]
        assert not ledger.sent


def test_what_join_keeps_reaches_a_node_that_runs(tmp_path: Path) -> None:
    """Its first line is damaged, and then over, and so it waits: the newest line counts from its next look on."""
    ledger = Ledger(full=(0,))
    line = join_line.JoinLine(31337, OTHER, RUN, ("http://127.0.0.1:1",), ())

    async def program(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match="is for invited accounts"):
            await membership.join((0,), lambda: None)
        (tmp_path / RUN.hex()).write_text("dlx1-AAAA\n")
        with pytest.raises(NoSlot, match=f"{tmp_path / RUN.hex()}: .* is damaged: give it to `join` again"):
            await membership.join((0,), lambda: None)
        join_line.keep(tmp_path, replace(line, invited=INVITED))
        with pytest.raises(NoSlot, match="is of no use"):
            await membership.join((0,), lambda: None)
        join_line.keep(tmp_path, line, LISTED)
        ledger.full = ()
        with pytest.raises(NoSlot, match="do not show it"):
            await membership.join((0,), lambda: None)

    act(ledger, seen(invited=True), program, lambda: join_line.invitation(tmp_path, RUN))
    assert ledger.sent == [("admit listed", ACCOUNT, LISTED.proof), ("join", 0)]


def test_a_bond_is_named_before_gas_is_spent_for_it() -> None:
    async def missing(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match=r"a bond of 1\.?\S* ETH, of which 0\.6\S* are missing: `.*dlx-node bond"):
            await membership.join((0,), lambda: None)

    async def slashed(membership: Membership, follower: Follower) -> None:
        with pytest.raises(Failure, match="was slashed"):
            await membership.join((0,), lambda: None)

    for at_stake, program in ((Bond(10**17, 10**17, 2 * 10**17, 9, False), missing), (Bond(0, 0, 0, 0, True), slashed)):
        ledger = Ledger()
        ledger.at_stake = at_stake
        act(ledger, seen(bond=10**18), program)
        assert not ledger.sent


def test_no_slot_says_why() -> None:
    async def refused(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match="gives no slot: stage 1 is full: all its 2 slots are taken"):
            await membership.join((1,), lambda: None)

    async def unseen(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match="the chain's events do not show it after 30 s"):
            await membership.join((0,), lambda: None)

    act(Ledger(full=(1,)), seen(), refused)
    act(Ledger(), seen(), unseen)


def test_where_nothing_is_free_and_a_round_is_open_for_very_long_a_slot_is_asked_for_and_then_freed() -> None:
    ledger, chain = Ledger(full=(0, ANY_STAGE)), seen()
    chain.view.apply(Joined(RUN, OTHER, 0, 0, AT))
    chain.view.apply(Joined(RUN, THIRD, 1, 0, AT))
    chain.view.apply(RunOpened(RUN, AT.time, AT))

    def at(seconds: int) -> ChainSeen:
        return replace(chain, head=Head(2, bytes(32), AT.time + seconds))

    async def program(membership: Membership, follower: Follower) -> None:
        with pytest.raises(NoSlot, match="stage 0 is full: all its 2 slots are taken"):
            await membership.join((0,), lambda: None)
        assert not ledger.sent, "who works keeps the slot"
        follower.seen.set(at(STALLED))
        with pytest.raises(NoSlot, match=f"{OTHER} was asked .* which it can keep by work or an answer within 2 s"):
            await membership.join((0, ANY_STAGE), lambda: None)
        position = replace(AT, time=AT.time + STALLED)
        chain.view.apply(Accused(RUN, OTHER, ACCOUNT, False, position))
        follower.seen.set(at(STALLED + 2))
        with pytest.raises(NoSlot, match=f"{OTHER} has lost its slot now"):
            await membership.join((0,), lambda: None)

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
            nursery.start_soon(membership.join, (0,), lambda: None)
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
    with trio.fail_after(patient(2000)):
        while not condition():
            await trio.sleep(1)


def with_site(
    ledger: Ledger,
    tmp_path: Path,
    program: Callable[[Membership, Follower, Site], Awaitable[None]],
    kept: Callable[[], SignedInvitation | Listed | None] = lambda: None,
    **terms: Any,
) -> None:
    site = make(DataDir(tmp_path), "home")

    async def joining(membership: Membership, follower: Follower) -> None:
        client: Any = ledger
        host: Any = SimpleNamespace(peer_id=PEER, addresses=ADDRESSES)
        membership = Membership(client, follower, host, RUN, ACCOUNT, bytes(32), site, kept)
        await program(membership, follower, site)

    act(ledger, two_stages(**terms), joining)


def two_stages(*events: Any, **terms: Any) -> ChainSeen:
    view = RunView(RUN, Domain(31337, OTHER))
    settings = config(stages=2, min_replicas=2, max_replicas=2, **terms)
    view.apply(RunCreated(RUN, OTHER, settings, "a", (bytes([4]) * 32,) * 2, (OTHER,), AT))
    for event in events:
        view.apply(event)
    table = NodeTable()
    table.nodes = dict.fromkeys((ACCOUNT, OTHER, THIRD), RegisteredNode(peer_id_from_base58(PEER), ADDRESSES))
    return ChainSeen(view, table, Head(1, bytes(32), AT.time))


def enlisted(account: str, site: Site) -> SiteEnlisted:
    return SiteEnlisted(RUN, account, site.address, ANY_STAGE, AT.time + 1800, AT)


def test_a_machine_of_a_site_enlists_waits_for_the_others_and_has_all_placed(tmp_path: Path) -> None:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (1, ANY_STAGE), lambda: None)
            await until(lambda: ledger.sent == [("enlist", 1, site.address)])
            follower.seen.set(two_stages(enlisted(ACCOUNT, site)))
            await until(lambda: "1 of 2 are here" in (membership.waiting_for or ""))
            both = (enlisted(ACCOUNT, site), enlisted(OTHER, site))
            follower.seen.set(two_stages(*both))
            await until(lambda: ledger.sent[1:] == [("join_site", 0, (ACCOUNT, OTHER))])
            slots = (ACCOUNT, OTHER)
            joined = [Joined(RUN, account, 0, stage, AT) for stage, account in enumerate(slots)]
            follower.seen.set(two_stages(*both, SitePlaced(RUN, site.address, 0, slots, AT), *joined))
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
            nursery.start_soon(membership.join, (ANY_STAGE,), lambda: None)
            await until(lambda: ("join_site", 0, (ACCOUNT, OTHER)) in ledger.sent)
            follower.seen.set(two_stages(*both, Joined(RUN, THIRD, 0, 0, AT)))
            await until(lambda: ledger.sent[-1] == ("join_site", 1, (ACCOUNT, OTHER)))
            nursery.cancel_scope.cancel()

    with_site(ledger, tmp_path, program)


def test_a_stale_proof_keeps_no_machine_of_a_site_that_is_invited_from_its_slot(tmp_path: Path) -> None:
    """Another machine of the site brought its invitation."""
    ledger = Ledger(full=(0,))

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        ledger.guests = (site.address,)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (ANY_STAGE,), lambda: None)
            await until(lambda: ledger.sent == [("enlist", ANY_STAGE, site.address)])
            ledger.full = ()
            both = (enlisted(ACCOUNT, site), enlisted(OTHER, site))
            follower.seen.set(two_stages(*both, invited=True))
            await until(lambda: ledger.sent[1:] == [("join_site", 0, (ACCOUNT, OTHER))])
            nursery.cancel_scope.cancel()

    with_site(ledger, tmp_path, program, lambda: LISTED, invited=True)


def test_a_machine_of_a_site_that_the_run_does_not_let_in_keeps_no_others_from_their_slots(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.guests, ledger.not_admitted = (ACCOUNT,), (OTHER,)

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        two = (enlisted(ACCOUNT, site), enlisted(OTHER, site))
        follower.seen.set(two_stages(*two, invited=True))
        said = f"1 of 2 are here.*; the run does not let in {OTHER}: `status` of each says why"
        with pytest.raises(NoSlot, match=said):
            await membership.join((ANY_STAGE,), lambda: None)
        ledger.sent.clear()
        follower.seen.set(two_stages(*two, enlisted(THIRD, site), invited=True))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (ANY_STAGE,), lambda: None)
            await until(lambda: ("join_site", 0, (ACCOUNT, THIRD)) in ledger.sent)
            nursery.cancel_scope.cancel()

    with_site(ledger, tmp_path, program, invited=True)


def test_a_machine_of_a_site_that_is_outside_says_why_pays_nothing_and_looks_again(tmp_path: Path) -> None:
    """It says so before it names a bond, and also where a slot of its own waits for it."""
    ledger, kept = Ledger(full=(0,)), [LISTED]
    stale = rf"^the proof of {ACCOUNT} is of no use \(.*join LINE --accounts FILE`"

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        fresh, listed = (two_stages(*more, invited=True, bond=10**18) for more in ((), (enlisted(ACCOUNT, site),)))
        returns = two_stages(invited=True)
        returns.view.returns[0, 0] = Return(ACCOUNT, AT.time + 100)
        for chain in (fresh, listed, returns):
            follower.seen.set(chain)
            with pytest.raises(NoSlot, match=stale):
                await membership.join((ANY_STAGE,), lambda: None)
        assert not ledger.sent
        follower.seen.set(two_stages(enlisted(ACCOUNT, site), enlisted(OTHER, site), invited=True))
        ledger.full, kept[0] = (), Listed((b"\x09" * 32,))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (ANY_STAGE,), lambda: None)
            await until(lambda: ("join_site", 0, (ACCOUNT, OTHER)) in ledger.sent)
            nursery.cancel_scope.cancel()
        assert ledger.sent[0] == ("admit listed", ACCOUNT, kept[0].proof)

    with_site(ledger, tmp_path, program, lambda: kept[0], invited=True)


@pytest.mark.parametrize("is_revoked", [True, False])
def test_a_machine_that_its_lines_site_does_not_let_in_says_so_and_pays_for_no_consent(
    tmp_path: Path, is_revoked: bool
) -> None:
    ledger, kept = Ledger(), list[SignedInvitation]()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        guest = site.address if is_revoked else THIRD
        kept.append(SignedInvitation(Invitation(OTHER, RUN, ZERO_ACCOUNT, guest, 1, 2), bytes(65)))
        ledger.guests, ledger.revoked = (guest,), (ACCOUNT,) if is_revoked else ()
        other, revoked = (
            f"is of {guest}: start with that site's key",
            f"^{ACCOUNT} was revoked: ask for a line of its own",
        )
        said = revoked if is_revoked else other
        for _ in range(2):
            with pytest.raises(NoSlot, match=said), trio.fail_after(patient(2000)):
                await membership.join((ANY_STAGE,), lambda: None)
        assert not ledger.sent

    with_site(ledger, tmp_path, program, lambda: kept[0], invited=True)


def test_a_machine_that_is_revoked_while_it_waits_for_others_pays_for_no_other_consent(tmp_path: Path) -> None:
    ledger = Ledger()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        ledger.guests, waits = (site.address,), two_stages(enlisted(ACCOUNT, site), invited=True)
        follower.seen.set(waits)

        async def is_revoked() -> None:
            await until(lambda: "1 of 2 are here" in (membership.waiting_for or ""))
            ledger.revoked = (ACCOUNT,)
            follower.seen.set(replace(waits, head=Head(2, bytes(32), AT.time + 1600)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(is_revoked)
            with pytest.raises(NoSlot, match="is for invited accounts"), trio.fail_after(patient(2000)):
                await membership.join((ANY_STAGE,), lambda: None)
        assert not ledger.sent

    with_site(ledger, tmp_path, program, invited=True)


def test_a_site_that_was_not_invited_yet_is_by_the_line_of_a_machine(tmp_path: Path) -> None:
    ledger, kept = Ledger(), list[SignedInvitation]()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        kept.append(SignedInvitation(Invitation(OTHER, RUN, ZERO_ACCOUNT, site.address, 1, 2), bytes(65)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (ANY_STAGE,), lambda: None)
            await until(lambda: len(ledger.sent) == 2)
            nursery.cancel_scope.cancel()
        assert ledger.sent == [("admit", site.address), ("enlist", ANY_STAGE, site.address)]

    with_site(ledger, tmp_path, program, lambda: kept[0], invited=True)


def test_what_the_chain_does_not_show_is_not_paid_for_again_with_each_try(tmp_path: Path) -> None:
    """A chain node that is late, or lies: an invitation is brought once, a consent is given again in ten minutes."""
    kept = list[SignedInvitation]()

    class Late(Ledger):
        shows = False

        def is_admitted(self, run: bytes, account: str) -> bool:
            return self.shows and account in self.guests

        is_guest = is_admitted

    ledger = Late()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        kept.append(SignedInvitation(Invitation(OTHER, RUN, ZERO_ACCOUNT, site.address, 1, 2), bytes(65)))
        for said in (f"^{site.address}'s invitation was brought and is not there", "events do not show it yet"):
            for _ in range(3):
                with pytest.raises(NoSlot, match=said):
                    await membership.join((ANY_STAGE,), lambda: None)
            ledger.shows = True
        assert ledger.sent == [("admit", site.address), ("enlist", ANY_STAGE, site.address)]
        began = trio.current_time()
        with trio.fail_after(patient(700)):
            while len(ledger.sent) < 3:
                with suppress(NoSlot):
                    await membership.join((ANY_STAGE,), lambda: None)
                await trio.sleep(1)
        assert trio.current_time() > began + 500

    with_site(ledger, tmp_path, program, lambda: kept[0], invited=True)


def test_a_machine_that_waits_for_the_others_of_its_site_is_in_no_trouble(tmp_path: Path) -> None:
    ledger, healthy = Ledger(), list[str | None]()

    async def program(membership: Membership, follower: Follower, site: Site) -> None:
        follower.seen.set(two_stages(enlisted(ACCOUNT, site)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(membership.join, (ANY_STAGE,), lambda: healthy.append(membership.waiting_for))
            await until(lambda: bool(healthy))
            nursery.cancel_scope.cancel()
        assert "1 of 2 are here" in (healthy[0] or "")

    with_site(ledger, tmp_path, program)


def test_an_accusation_is_answered_once_and_nothing_else_is() -> None:
    ledger, accused = Ledger(), seen(member=True)
    accused.view.apply(Joined(RUN, OTHER, 1, 0, AT))
    accused.view.apply(RunOpened(RUN, AT.time, AT))
    accused.view.apply(Accused(RUN, ACCOUNT, OTHER, False, replace(AT, block=9, time=AT.time + STALLED)))

    async def answers(membership: Membership, follower: Follower) -> None:
        chain = follower.seen.value
        assert chain is not None
        await membership.answer(chain)

    act(ledger, seen(member=True), answers)
    assert not ledger.sent
    act(ledger, accused, answers)
    assert ledger.sent == [("answer",)]
