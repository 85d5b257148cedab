"""The node's place on the ledger: its peer id and addresses registered, a slot taken, and given back."""

from collections.abc import Callable

import trio

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, Reverted
from dlx.ledger.keys import peer_id_from_base58
from dlx.ledger.typed import ANY_STAGE
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.membership import eligibility
from dlx.node.home import logs
from dlx.node.home.errors import Failure
from dlx.node.home.keys.site import Site
from dlx.node.round.actions import Send
from dlx.node.round.liveness import claims
from dlx.node.round.rules.sites import Enlist, TakeSlots, Wait, next_step
from dlx.p2p.host import Host

SEEN_SECONDS = 30.0  # until what was mined has to show in the chain's events
TURN_SECONDS = 10.0  # until the next machine of a site does what one has not done
LOOK_SECONDS = 1.0  # between looks at the ledger while the others of a site are waited for
MAX_ADDRESSES = 16
log = logs.get(__name__)


class NoSlot(LedgerError):
    """The ledger gives no slot now."""


class Membership:
    """Of `account` in `run`. `node_key`: the 32 bytes of libp2p's identity. `site`: with whose machines it sits."""

    def __init__(
        self,
        client: LedgerClient,
        follower: Follower,
        host: Host,
        run: bytes,
        account: str,
        node_key: bytes,
        site: Site | None = None,
    ) -> None:
        self._client, self._follower, self._host = client, follower, host
        self._run, self._account, self._node_key, self._site = run, account, node_key, site
        self.waiting_for: str | None = None  # before the site has slots
        self._placing = trio.Lock()  # held until the chain shows what became of a slot, so that leaving knows of it

    async def register(self) -> None:
        """Bind our peer id and addresses to the account, unless the registry has them already.

        Raises Failure for a peer id of another account, LedgerError.
        """
        nodes, addresses = (await self._follower.first()).nodes, self._host.addresses[:MAX_ADDRESSES]
        known, ours = nodes.nodes.get(self._account), peer_id_from_base58(self._host.peer_id)
        member = nodes.account_of(ours)
        if member not in (None, self._account):
            raise Failure(
                f"peer id {self._host.peer_id} is registered by account {member}: a node key serves one account; "
                "remove the folder's node.key and run `dlx-node init` for a new one"
            )
        if known is None or known.peer_id != ours:
            log.info("registering the node", account=self._account)
            await trio.to_thread.run_sync(self._client.register, self._node_key, addresses, abandon_on_cancel=True)
        elif known.multiaddrs != tuple(addresses):
            await trio.to_thread.run_sync(self._client.set_addresses, addresses, abandon_on_cancel=True)

    async def join(self, stages: tuple[int, ...]) -> None:
        """Take a slot of the first of these stages that has a free one (none: of whichever stage needs us most), and
        wait until the chain shows it. Whoever belongs to a site takes one with its other machines, and asks them for
        the first of these stages. Raises NoSlot, LedgerError, Failure for an account that was convicted."""
        chain = await self._follower.first()
        if chain.view.is_convicted(self._account):
            raise Failure(
                f"{self._account} was convicted: members found work of it false, or withheld, and it gets no slot of "
                "this run any more; `dlx-node history` shows their verdicts"
            )
        if self._site is not None and not _may_return(chain, self._account):
            return await self._join_site(self._site, *stages[:1])
        refused, full = "no stage was asked for", list[int]()
        for stage in stages or (ANY_STAGE,):
            async with self._placing:
                try:
                    slot = await trio.to_thread.run_sync(
                        self._client.join_run, self._run, stage, abandon_on_cancel=True
                    )
                except Reverted as error:
                    refused = str(error)
                    if error.name == "NoFreeSeat":
                        at = await self._follower.first()
                        refused = eligibility.full(at.view, None if stage == ANY_STAGE else stage, at.head.time)
                        full.append(stage)
                    continue
                log.info("joined", replica=slot[0], stage=slot[1])
                await self._until(lambda seen: self.slot_in(seen) is not None, SEEN_SECONDS)
            if self.slot is None:
                raise NoSlot(f"joined, but the chain's events do not show it after {SEEN_SECONDS:.0f} s")
            return
        claimed = await self._claim(full)
        raise NoSlot(f"the ledger gives no slot: {refused}{claimed}")

    async def _join_site(self, site: Site, stage: int = ANY_STAGE) -> None:
        """Enlist, wait for the other machines, and have all placed by whose turn it is. Raises LedgerError."""
        began: dict[TakeSlots, float] = {}
        try:
            while self.slot is None:
                seen = await self._follower.first()
                step = next_step(seen.view, site.address, self._account, seen.head.time, seen.nodes.nodes)
                match step:
                    case Enlist(until=until):
                        async with self._placing:
                            await self._enlist(site, stage, until)
                            log.info("enlisted for the site", site=site.name, address=site.address)
                            await self._until(
                                lambda seen: seen.view.enlisted_until(self._account) >= until, SEEN_SECONDS
                            )
                        continue
                    case TakeSlots(replica=replica, accounts=accounts, turn=turn):
                        self.waiting_for = f"the slots of replica {replica} for site {site.name}"
                        since = began.setdefault(step, trio.current_time())
                        if trio.current_time() >= since + turn * TURN_SECONDS:
                            async with self._placing:
                                await self._take_slots(replica, accounts)
                            began = {}
                    case Wait(reason=reason):
                        self.waiting_for = reason
                await self._until(lambda newer, seen=seen: newer is not seen, LOOK_SECONDS)  # type: ignore[misc]
        finally:
            self.waiting_for = None

    async def _enlist(self, site: Site, stage: int, until: int) -> None:
        signature = site.named(self._client.domain, self._run, self._account)
        await trio.to_thread.run_sync(self._client.enlist, self._run, stage, until, signature, abandon_on_cancel=True)

    async def _take_slots(self, replica: int, accounts: tuple[str, ...]) -> None:
        try:
            await trio.to_thread.run_sync(self._client.join_site, self._run, replica, accounts, abandon_on_cancel=True)
        except Reverted as error:  # another machine, or a stranger, was quicker
            log.info("the site's slots were not taken", replica=replica, reason=str(error))
        else:
            log.info("the site took its slots", replica=replica)
            await self._until(lambda seen: self.slot_in(seen) is not None, SEEN_SECONDS)

    async def _until(self, shows: Callable[[ChainSeen], bool], seconds: float) -> None:
        """Until the chain shows it, or so long."""
        with trio.move_on_after(seconds):
            async for seen in self._follower.seen.values():
                if seen is not None and shows(seen):
                    return

    async def _claim(self, stages: list[int]) -> str:
        """Where no slot of these stages is free: ask for one that is forfeit, or free one whose member could not keep
        it. What was done, in words. Raises LedgerError."""
        seen = await self._follower.first()
        for stage in stages:
            for action in claims(seen.view, self._account, None if stage == ANY_STAGE else stage, seen.head.time):
                match action:
                    case Send("accuse", str(account)):
                        log.info("asking for a slot that is forfeit", member=account)
                        await trio.to_thread.run_sync(self._client.accuse, self._run, account, abandon_on_cancel=True)
                        seconds = seen.view.config.eviction_time
                        return f"; {account} was asked for its slot, which it can keep only by work within {seconds} s"
                    case Send("evict", str(account)):
                        log.info("freeing a slot that is forfeit", member=account)
                        await trio.to_thread.run_sync(self._client.evict, self._run, account, abandon_on_cancel=True)
                        return f"; {account} has lost its slot now"
        return ""

    async def leave(self) -> None:
        """Give the slot back, so that nobody waits for us, also one that is just being asked for; without one, take
        back that our site may give us a slot. Raises LedgerError."""
        async with self._placing:
            seen = self._follower.seen.value
            enlisted = seen is not None and seen.view.enlisted_until(self._account) >= seen.head.time
            if self.slot is None and self._site is not None and enlisted:
                await self._enlist(self._site, ANY_STAGE, 0)
            if self.slot is not None:
                await trio.to_thread.run_sync(self._client.leave_run, self._run, abandon_on_cancel=True)
                log.info("slot returned to the ledger")
                await self._until(lambda seen: self.slot_in(seen) is None, SEEN_SECONDS)

    @property
    def slot(self) -> tuple[int, int] | None:
        """(replica, stage) that the ledger says is ours."""
        return self.slot_in(self._follower.seen.value)

    def slot_in(self, seen: ChainSeen | None) -> tuple[int, int] | None:
        return seen.view.slot_of(self._account) if seen is not None and seen.view.created else None


def _may_return(seen: ChainSeen, account: str) -> bool:
    """Whether a slot waits for the account alone."""
    view = seen.view
    return any(
        kept.account == account and kept.until >= seen.head.time and view.member_at(*slot) is None
        for slot, kept in view.returns.items()
    )
