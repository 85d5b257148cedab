"""The port that a home's router forwards to this node, where peers cannot connect to it otherwise.

It is asked by PCP first: one packet finds out whether it speaks that or NAT-PMP, and no forwarding is for ever. Else by
UPnP. Who forwards is asked again in the same way, and one forwarding is ended before another is asked for.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from dlx.node.daemon.membership import forwardings
from dlx.node.daemon.membership.forwardings import Forwarding
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.p2p import pcp, upnp
from dlx.p2p.admission import is_global
from dlx.p2p.pcp import Gateway
from dlx.p2p.upnp import Router, RouterError

LEASE = 3600  # s for which a router forwards, if nothing renews it
RENEW = 1200.0  # s; sooner where it gives less than asked, at half of that
SOONEST = 60.0  # s, whatever it gives
AGAIN = 3600.0  # s until one is asked again that forwarded nothing; SOONEST after it did, and twice as long each time
PATIENCE = 40.0  # s for all of an asking
ENDING = 3.0  # s to have the router forward no longer
LOOK = 1.0  # s
log = logs.get(__name__)
_Answered = TypeVar("_Answered")


@dataclass(frozen=True)
class Answer:
    """What a router `said`, in words; the port that it forwards; and in how many seconds that is renewed."""

    said: str
    external: int | None = None
    renew: float = RENEW


class RouterPort:
    """`wanted` is set from outside: the IP address and port of this machine that the router should forward to.
    `external`: the port that it says it forwards. Whether that is so, peers tell who dial back.

    Where `asks` is false, none is asked for a port. `record`: a file of what may be forwarded, for the next start."""

    def __init__(self, peer_id: str, asks: bool, record: Path) -> None:
        self.wanted: tuple[str, int] | None = None
        self.external: int | None = None
        self._asks, self._record = asks, record
        self._made: list[Forwarding] = []  # until a router says that it forwards this no longer
        self._asked: tuple[str, int] | None = None  # wanted when it was asked last
        self._answer = Answer("")
        self._kind: type[Router | Gateway] | None = None  # of who forwarded last
        self._given = dict[str, int]()  # IP address of this machine -> external port of who forwarded last
        self._pause = AGAIN  # s after the next answer that is none
        digest = hashlib.sha256(peer_id.encode()).digest()  # the same after a restart, as others remember it
        self._spare = 20_000 + int.from_bytes(digest[:4], "big") % 40_000  # external port where ours is another's

    def __str__(self) -> str:
        """What the router answered, in words; empty where it was not asked."""
        return self._answer.said

    @property
    def is_awaited(self) -> bool:
        """Whether its first answer is still to come."""
        return self._asks and self.wanted not in (None, self._asked)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Asks, renews, and has the router forward no longer at the end; first what a node that was killed has left.
        Raises OSError."""
        due = 0.0
        self._made = forwardings.read(self._record)
        try:
            await self._end(self._made)
            while self._asks:
                wanted = self.wanted
                if wanted != self._asked or (wanted is not None and trio.current_time() >= due):
                    if wanted != self._asked:
                        self.external = None
                    await self._end([one for one in self._made if (one.router.own, one.port) != wanted])
                    if wanted is not None:
                        due = await self._ask(*wanted)
                    self._asked = wanted
                    report_healthy()
                await trio.sleep(LOOK)
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(ENDING) as scope:
                scope.shield = True
                await self._end(self._made)
            self.external, self._asked = None, None

    async def _ask(self, ip: str, port: int) -> float:
        """Sets what came of it. When to ask again, by Trio's clock."""
        answer = Answer("the router does not answer to the end")
        with trio.move_on_after(PATIENCE):
            answer = await self._answered(ip, port)
        if answer.said != self._answer.said:
            log.info(f"port forwarding: {answer.said}")
        self.external, self._answer = answer.external, answer
        if answer.external is not None:
            self._given, self._pause = {ip: answer.external}, SOONEST
            return trio.current_time() + answer.renew
        pause, self._pause = self._pause, min(2 * self._pause, AGAIN)
        return trio.current_time() + pause

    async def _answered(self, ip: str, port: int) -> Answer:
        """By whichever way a router forwards the port now."""
        ways: dict[type[Router | Gateway], Callable[[str, int], Awaitable[Answer]]]
        ways, said = {Gateway: self._by_pcp, Router: self._by_upnp}, list[str]()
        for kind in sorted(ways, key=lambda kind: kind is not self._kind):
            made = [one for one in self._made if (one.router.own, one.port) == (ip, port)]
            await self._end([one for one in made if not isinstance(one.router, kind)])
            answer = await ways[kind](ip, port)
            if answer.external is not None:
                self._kind = kind
                return answer
            said.append(answer.said)
        return Answer("; ".join(dict.fromkeys(said)))

    async def _by_pcp(self, ip: str, port: int) -> Answer:
        gateway = pcp.gateway(ip)
        if gateway is None:
            return Answer("no gateway is known that could be asked by PCP")
        for one in self._made:  # it knows us by the nonce
            if isinstance(one.router, Gateway) and (one.router.ip, one.router.own, one.port) == (gateway.ip, ip, port):
                gateway = one.router
        external = self._given.get(ip, port)  # else a router that forgot what it forwards could give another
        asked = Forwarding(gateway, port, port)
        try:
            lease = await self._forward(asked, partial(pcp.forward, gateway, port, external, LEASE))
        except RouterError as error:
            return Answer(f"the router at {gateway.ip} forwards no port by PCP: {error}")
        if lease.outside and not is_global(lease.outside):
            await self._stop(asked)
            return Answer(_is_not_the_last(lease.outside))
        said = f"the router at {gateway.ip} forwards port {lease.external} by {lease.by}"
        return Answer(said, lease.external, max(SOONEST, min(RENEW, lease.seconds / 2)))

    async def _by_upnp(self, ip: str, port: int) -> Answer:
        said = "no router answers to UPnP"
        for router in await upnp.find(ip):
            said = f"the router at {router.ip} forwards no port by UPnP"
            try:
                if (outside := await _outside(router)) and not is_global(outside):
                    said = _is_not_the_last(outside)
                    continue
                for external in (port, self._spare):
                    if await _is_free(router, external, port):
                        asked = Forwarding(router, external, port)
                        await self._forward(asked, partial(upnp.forward, router, external, port, LEASE))
                        return Answer(f"the router at {router.ip} forwards port {external} by UPnP", external)
            except RouterError as error:
                said = f"{said}: {error}"
        return Answer(said)

    async def _forward(self, one: Forwarding, ask: Callable[[], Awaitable[_Answered]]) -> _Answered:
        """Recorded first: it stays when this node is killed, by UPnP maybe for ever. Raises RouterError, OSError."""
        is_new = one not in self._made
        if is_new:
            self._keep(forwardings.with_newest(self._made, one))
        try:
            return await ask()
        except RouterError as error:
            may_last = isinstance(one.router, Router) and not error.code  # who says nothing may forward nevertheless
            if is_new and not may_last:
                self._keep([other for other in self._made if other != one])
            raise

    async def _end(self, made: Sequence[Forwarding]) -> None:
        """All at once, as routers of networks that were left say nothing. Raises OSError."""
        async with trio.open_nursery() as nursery:
            for one in made:
                nursery.start_soon(self._stop, one)

    async def _stop(self, one: Forwarding) -> None:
        try:
            match one.router:
                case Gateway() as gateway:
                    await pcp.stop_forwarding(gateway, one.port)
                case Router() as router if await _is_ours(router, one.external, one.port):
                    await upnp.stop_forwarding(router, one.external)
            log.info("the router forwards no longer", port=one.external)
        except RouterError as error:
            log.debug("the router's port", error=str(error))
            return
        self._keep([other for other in self._made if other != one])

    def _keep(self, made: list[Forwarding]) -> None:
        self._made = made
        forwardings.write(self._record, made)


def _is_not_the_last(outside: str) -> str:
    return f"the router's own address {outside} is private: its provider, or a second router, has another"


async def _outside(router: Router) -> str:
    """Empty where it does not know: it may forward nevertheless."""
    try:
        return await upnp.external_address(router)
    except RouterError:
        return ""


async def _is_free(router: Router, external: int, port: int) -> bool:
    """Whether it is forwarded to nobody else: some routers would take it away from who has it."""
    try:
        there = await upnp.forwarded_to(router, external)
    except RouterError:
        return True  # it does not say
    return there in (None, (router.own, str(port)))


async def _is_ours(router: Router, external: int, port: int) -> bool:
    """Whether the router forwards it to this node, and not to who has the port by now. Where it does not say, yes."""
    try:
        return await upnp.forwarded_to(router, external) == (router.own, str(port))
    except RouterError:
        return True
