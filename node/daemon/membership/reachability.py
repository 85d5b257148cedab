"""Can others connect to this node? Members are asked to dial back, and the ledger gets what they could reach.

Where the run's others have public addresses, private ones help nobody: two homes have the same.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import trio

from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.membership.router import RouterPort
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.home.settings import DEFAULTS
from dlx.p2p.addresses import (
    CIRCUIT,
    AddressError,
    ip_addresses,
    is_public,
    parse_address,
    private_listener,
    source,
    tcp_at,
)
from dlx.p2p.admission import is_global, is_loopback, prefix
from dlx.p2p.dialback import MOST_PORTS, DialBack
from dlx.p2p.host import Host, PeerStatus
from dlx.p2p.relay.carrier import Carrier
from dlx.p2p.relay.reservations import Reservations
from dlx.p2p.streams import StreamBroken

ENOUGH, MOST = 2, 3  # answers of different networks; with those that are asked where two contradict each other
HOUR = 3600.0  # s between two askings where nothing changes
PAUSE = 60.0  # s between two where something does
GATHERING = 5.0  # s from the first peer, in which others may come that are asked too
RELAY_PATIENCE = 10.0  # s for the first relay to be found
ROUTER_PATIENCE = 30.0  # s for the router to answer, and peers to try
SOON = 5.0  # s between two askings where the router forwards another port
PATIENCE = 15.0  # s for which a node that begins waits to know its addresses
LOOK = 1.0  # s
_PORT = re.compile(r"/tcp/(\d+)")
log = logs.get(__name__)


@dataclass(frozen=True)
class Answer:
    """What a peer said that was asked to dial back."""

    address: str  # IP address by which it sees this node
    reached: Mapping[int, bool]  # port -> whether it connected there


@dataclass(frozen=True)
class Verdict:
    """What came of asking. `at`: multiaddrs that peers reached, `closed`: IP:port that they did not."""

    reachable: bool
    at: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()


LOCAL = Verdict(True)  # all peers are on this machine


def judge(answers: Sequence[Answer], own: Iterable[str]) -> Verdict:
    """`own`: IP addresses of this machine's interfaces. An address is believed when more reached it than did not: two
    of them, unless it is our own or nobody else was asked. So no single peer has us announce somebody else's.

    By a public address that peers see, or else by whichever they see, this node is reachable or not."""
    tally: dict[tuple[str, int], list[bool]] = {}
    for answer in answers:
        for port, reached in answer.reached.items():
            tally.setdefault((answer.address, port), []).append(reached)
    ours = set(own)

    def is_reached(at: tuple[str, int], said: list[bool]) -> bool:
        return 2 * sum(said) > len(said) and (sum(said) > 1 or at[0] in ours or len(answers) == 1)

    at = sorted((one for one, said in tally.items() if is_reached(one, said)), key=lambda one: not is_global(one[0]))
    closed = [one for one in tally if one not in at]
    matter = [one for one in tally if is_global(one[0])] or list(tally)
    return Verdict(
        any(one in at for one in matter),
        tuple(tcp_at(ip, port) for ip, port in at),
        tuple(f"{f'[{ip}]' if ':' in ip else ip}:{port}" for ip, port in closed),
    )


def advertised(
    announced: Sequence[str], own: Sequence[str], verdict: Verdict | None, relayed: Sequence[str], others_public: bool
) -> tuple[str, ...]:
    """The multiaddrs that others are told. `announced`: by the operator, whose word counts. `own`: at which the node
    listens. `relayed`: where relays carry connections to it. `others_public`: whether other members of the run have
    public addresses.

    First the public ones: those that were reached; and of a family by which nobody sees this node, the first own one.
    Then those of relays. Private ones only where nobody has a public one: there whatever was reached, or else all there
    are. A node that peers of its own network alone see and reach tells just that, whatever others tell."""
    if announced:
        return *announced, *relayed
    judged = {text.split("/")[1] for text in (verdict.at if verdict else ())}
    judged |= {"ip6" if text.startswith("[") else "ip4" for text in (verdict.closed if verdict else ())}
    reached = verdict.at if verdict else ()
    found = [text for text in reached if _is_public(text)]
    if verdict and verdict.reachable and reached and not found:
        return *reached, *relayed
    for text in own:
        if _is_public(text) and text.split("/")[1] not in judged:
            judged.add(text.split("/")[1])
            found.append(text)
    if found or relayed or others_public:
        return *found, *relayed
    return tuple(reached or own)


def needs_relays(verdict: Verdict | None, others: Iterable[Sequence[str]], has_ip4: bool) -> bool:
    """Whether relays should carry connections to this node. `others`: the multiaddrs of other members. `has_ip4`:
    whether packets can leave this machine by IPv4.

    Also who is reached, but has no IPv4, where others have nothing else. The other way round it is for them: else one
    member that claims to have IPv6 alone would have everybody take places."""
    if verdict is None or not verdict.reachable:
        return verdict is not None
    return not has_ip4 and any(_is_ip4_only(texts) for texts in others)


def contradictory(answers: Sequence[Answer]) -> bool:
    """Whether one more has to be asked."""
    return len({(one.address, any(one.reached.values())) for one in answers}) > 1


def in_words(verdict: Verdict | None, listening: Sequence[str], relayed: Sequence[str] = (), router: str = "") -> str:
    """Of a person's status; with what mends it. `router`: what that answered; empty: it was not asked."""
    match verdict:
        case None:
            return "not known: no peer was asked yet"
        case Verdict(reachable=True, at=()):
            return "yes, for peers on this machine; others were not asked"
        case Verdict(reachable=True):
            return f"yes, at {', '.join(verdict.at)}" + (f"; {router}" if router else "")
    closed, is_hidden = ", ".join(verdict.closed), all(is_loopback(ip) for ip in ip_addresses(listening))
    port = _PORT.findall(" ".join(DEFAULTS.listen if is_hidden else listening))[0]
    mend = f"forward port {port} to this machine"
    if is_hidden:
        mend = f"listen to others too (the default of --listen), and where a router is between, {mend}"
    if router:
        mend = f"{mend} ({router})"
    if relayed:
        return f"by relay at {', '.join(relayed)}; to do without, {mend}"
    return f"no: no connection to {closed}, and no member relays; {mend}"


def any_public(peers: Iterable[Sequence[str]]) -> bool:
    """Whether one of several peers has a public address on the ledger."""
    return any(_is_public(text) for texts in peers for text in texts)


class Reachability:
    """Asks at the start, once others have come or gone or this machine's addresses changed, and every hour.

    `addresses`: what others are told, with our peer id; None until that is known well enough to be registered.
    `mailbox`: where others read what this node publishes, if anywhere: it stands first there."""

    def __init__(
        self,
        host: Host,
        dial_back: DialBack,
        follower: Follower,
        carrier: Carrier,
        reservations: Reservations,
        router: RouterPort,
        mailbox: str = "",
    ) -> None:
        """Sets whether `carrier` carries, whether `reservations` are wanted, and what the `router` should forward."""
        self._mailbox = [mailbox] if mailbox else []
        self._carrier, self._reservations, self._router = carrier, reservations, router
        self.verdict: Verdict | None = None
        self.addresses: Observable[tuple[str, ...] | None] = Observable(None)
        self._host, self._dial_back, self._follower = host, dial_back, follower
        self._answers: list[Answer] = []
        self._asked: frozenset[tuple[str, float]] = frozenset()  # peers, and since when they were connected
        self._networks = 0  # of those that could be asked then
        self._forwarded: int | None = None  # port that the router forwarded then
        self._listening: tuple[str, ...] = ()
        self._decided_at, self._said = -HOUR, ""
        self._told: tuple[str, ...] | None = None
        self._asked_at = -HOUR
        self._met_at: float | None = None  # the first peer

    def __str__(self) -> str:
        words = in_words(self.verdict, self._listening, self._reservations.addresses, str(self._router))
        return "; ".join([words, *(f"by its mailbox at {one}" for one in self._mailbox)])

    @property
    def share(self) -> float:
        """1 where peers can connect, 0.5 where they can by a relay, 0 where they cannot; NaN: not known."""
        if self.verdict is None:
            return math.nan
        return 1.0 if self.verdict.reachable else 0.5 if self._reservations.addresses else 0.0

    async def run(self, report_healthy: ReportHealthy) -> None:
        began = trio.current_time()
        while True:
            listening = self._host.listening()
            if self._is_due(listening):
                await self._ask(listening)
                report_healthy()
            self._listening = listening
            if self._router.wanted or (self.verdict and not self.verdict.reachable):
                self._router.wanted = private_listener(listening)
            self._tell(trio.current_time() >= began + PATIENCE)
            await trio.sleep(LOOK)

    async def settled(self) -> tuple[str, ...]:
        """The addresses, once they are known well enough."""
        async for addresses in self.addresses.values():
            if addresses is not None:
                return addresses
        raise AssertionError("the values of an observable do not end")

    def _is_due(self, listening: tuple[str, ...]) -> bool:
        now, there = trio.current_time(), self._there()
        if not there:
            return False
        if self._met_at is None:
            self._met_at = now
        networks = len({_network(peer) for peer in there})
        if self.verdict is None:
            return networks >= ENOUGH or now >= self._met_at + GATHERING
        if now >= self._asked_at + HOUR:
            return True
        connections = {(peer.peer_id, peer.connected_since) for peer in there}
        has_changed = (
            listening != self._listening  # another network, or another address of it
            or not self._asked <= connections  # what ended may have ended with our address
            or (len(self._answers) < ENOUGH and networks > self._networks)
        )
        has_port, was_answered = self._router.external != self._forwarded, self._decided_at >= self._asked_at
        pause = SOON if has_port and was_answered else PAUSE
        return (has_changed or has_port) and now >= self._asked_at + pause

    def _there(self) -> list[PeerStatus]:
        """Who may be asked: members first. Not whom our router lets in because we met half way."""
        agreed = [peer for peer in self._host.peers() if peer.agreed and peer.addresses]
        direct = [peer for peer in agreed if peer.relay is None and not peer.is_met_half_way]
        return sorted(direct, key=lambda peer: not self._host.is_registered(peer.peer_id))

    async def _ask(self, listening: tuple[str, ...]) -> None:
        there = self._there()
        self._asked_at = trio.current_time()
        self._networks = len({_network(peer) for peer in there})
        remote = [peer for peer in there if not is_loopback(_ip(peer))]
        if not remote:
            self._asked = frozenset((peer.peer_id, peer.connected_since) for peer in there)
            return self._decide([], LOCAL)
        answers, asked, networks = list[Answer](), set[tuple[str, float]](), set[str]()
        ports = sorted({int(port) for text in (*listening, *self._host.announced) for port in _PORT.findall(text)})
        if (forwarded := self._router.external) is not None and forwarded not in ports:
            ports.insert(0, forwarded)
        for peer in remote:
            if len(answers) >= (MOST if contradictory(answers) else ENOUGH):
                break
            if _network(peer) in networks:
                continue
            try:
                answers.append(Answer(*await self._dial_back.ask(peer.peer_id, ports[:MOST_PORTS])))
            except StreamBroken as error:
                log.debug("not dialled back", peer=peer.peer_id, error=str(error))
                continue
            networks.add(_network(peer))
            asked.add((peer.peer_id, peer.connected_since))
        if answers:
            self._asked, self._forwarded = frozenset(asked), forwarded
            self._decide(answers, judge(answers, ip_addresses(listening)))

    def _decide(self, answers: list[Answer], verdict: Verdict) -> None:
        self._answers, self.verdict, self._decided_at = answers, verdict, trio.current_time()
        self._carrier.is_open = verdict.reachable and bool(verdict.at)

    @property
    def _a_relay_may_come(self) -> bool:
        """The first one, soon."""
        is_soon = trio.current_time() < self._decided_at + RELAY_PATIENCE
        is_member = self._host.peer_id in self._host.members  # others get none
        return self._reservations.is_wanted and not self._reservations.addresses and is_soon and is_member

    @property
    def _the_router_may_help(self) -> bool:
        """Soon, once peers have tried the port that it forwards."""
        is_soon = trio.current_time() < self._decided_at + ROUTER_PATIENCE
        return is_soon and (self._router.is_awaited or self._router.external != self._forwarded)

    def _tell(self, is_late: bool) -> None:
        """What others are told now, and an operator whenever that changes."""
        seen = self._follower.seen.value
        others = [texts for peer, texts in seen.peers().items() if peer != self._host.peer_id] if seen else []
        self._reservations.is_wanted = needs_relays(self.verdict, others, bool(source("ip4")))
        may_change = self._a_relay_may_come or self._the_router_may_help
        if self.verdict is not None and not may_change and (said := str(self)) != self._said:
            self._said = said
            (log.warning if said.startswith("no:") else log.info)(f"reachable: {said}")
        if seen is None:
            return
        others_public = any_public(others)
        if others_public and (may_change or (self.verdict is None and not is_late)):
            return
        relayed = self._reservations.addresses if self._reservations.is_wanted else ()  # else they are just given back
        found = advertised(self._host.announced, self._listening, self.verdict, relayed, others_public)
        if found != self._told:
            self._told = found
            self._host.announce(found)
            self.addresses.set((*self._mailbox, *self._host.addresses))


def _is_ip4_only(texts: Sequence[str]) -> bool:
    public = [text for text in texts if _is_public(text) and CIRCUIT not in text]
    return bool(public) and all(text.split("/")[1] in ("ip4", "dns4") for text in public)


def _ip(peer: PeerStatus) -> str:
    return next(iter(ip_addresses(peer.addresses)), "")


def _network(peer: PeerStatus) -> str:
    return prefix(_ip(peer))


def _is_public(text: str) -> bool:
    try:
        return is_public(parse_address(text)[0])
    except AddressError:
        return False
