"""The node's place on the ledger: its peer id and addresses registered, a slot taken, and given back."""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from random import Random

import trio

from dlx.ground.backoff import Backoff
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, Reverted
from dlx.ledger.keys import peer_id_from_base58
from dlx.ledger.transactions.fees import eth
from dlx.ledger.typed import ANY_STAGE, RunConfig
from dlx.node.daemon.chain.follower import ChainSeen, Follower
from dlx.node.daemon.membership import eligibility
from dlx.node.daemon.observable import Observable
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.home.errors import Failure
from dlx.node.home.join_line import Listed, SignedInvitation
from dlx.node.home.keys.site import Site
from dlx.node.home.program import line
from dlx.node.round.actions import Send
from dlx.node.round.liveness import claims, reclaims_soon
from dlx.node.round.rules.sites import Enlist, TakeSlots, Wait, next_step
from dlx.p2p.host import Host

SEEN_SECONDS = 30.0  # until what was mined has to show in the chain's events
UNSEEN_SECONDS = 600.0  # before gas is spent again on what they do not show
TURN_SECONDS = 10.0  # until the next machine of a site does what one has not done
LOOK_SECONDS = 1.0  # between looks at the ledger while the others of a site are waited for
MAX_ADDRESSES = 16
DAY = 86_400.0  # s
CHANGE_PAUSE = Backoff(10.0, 3600.0)  # s for which the registry is wrong before it is told
log = logs.get(__name__)


class NoSlot(LedgerError):
    """The ledger gives no slot now."""


class Membership:
    """Of `account` in `run`. `node_key`: the 32 bytes of libp2p's identity. `site`: with whose machines it sits.
    `kept()` is what `join` keeps by now: it is asked with each try, as long as the account is outside. It raises
    Failure for a file that is damaged, OSError."""

    def __init__(
        self,
        client: LedgerClient,
        follower: Follower,
        host: Host,
        run: bytes,
        account: str,
        node_key: bytes,
        site: Site | None = None,
        kept: Callable[[], SignedInvitation | Listed | None] = lambda: None,
    ) -> None:
        self._client, self._follower, self._host = client, follower, host
        self._run, self._account, self._node_key, self._site = run, account, node_key, site
        self._kept = kept
        self.waiting_for: str | None = None  # before the site has slots
        self._brought: SignedInvitation | Listed | None = None  # what was paid for is not paid again
        self._enlists_again = -inf  # on trio's clock: where the chain does not show a consent that was paid for
        self._placing = trio.Lock()  # held until the chain shows what became of a slot, so that leaving knows of it

    async def register(self, addresses: Sequence[str]) -> None:
        """Bind our peer id and addresses to the account, unless the registry has them already.

        Raises Failure for a peer id of another account, LedgerError.
        """
        nodes, addresses = (await self._follower.first()).nodes, addresses[:MAX_ADDRESSES]
        known, ours = nodes.nodes.get(self._account), peer_id_from_base58(self._host.peer_id)
        member = nodes.account_of(ours)
        if member not in (None, self._account):
            raise Failure(
                f"peer id {self._host.peer_id} is registered by account {member}: a node key serves one account; "
                f"remove the folder's node.key and run `{line('init')}` for a new one"
            )
        if known is None or known.peer_id != ours:
            log.info("registering the node", account=self._account)
            await trio.to_thread.run_sync(self._client.register, self._node_key, addresses, abandon_on_cancel=True)
        elif {*known.multiaddrs} != {*addresses}:
            await self._set_addresses(addresses)

    async def follow_addresses(
        self, addresses: Observable[tuple[str, ...] | None], report_healthy: ReportHealthy
    ) -> None:
        """From now on have the registry know these. It is told once it has been wrong for a pause longer than right,
        since that costs gas. The pause is longer after each time of the last day, so that nobody who has them change
        has us pay much. Raises LedgerError."""
        changes, wrong, then = deque[float](), 0.0, trio.current_time()
        while True:
            await trio.sleep(LOOK_SECONDS)
            now, seen = trio.current_time(), self._follower.seen.value
            passed, then = now - then, now
            known = None if seen is None else seen.nodes.nodes.get(self._account)
            wanted = addresses.value
            if wanted is None or known is None or {*known.multiaddrs} == {*wanted[:MAX_ADDRESSES]}:
                wrong = max(0.0, wrong - passed)
                continue
            wrong += passed
            while changes and changes[0] < now - DAY:
                changes.popleft()
            if wrong >= CHANGE_PAUSE.delay(len(changes) + 1, Random()):
                changes.append(now)
                wrong = 0.0
                await self._set_addresses(wanted[:MAX_ADDRESSES])
                report_healthy()

    async def _set_addresses(self, addresses: Sequence[str]) -> None:
        log.info("registering other addresses", addresses=" ".join(addresses) or "none")
        await trio.to_thread.run_sync(self._client.set_addresses, addresses, abandon_on_cancel=True)

    async def join(self, stages: tuple[int, ...], report_healthy: ReportHealthy) -> None:
        """Take a slot of the first of these stages that has a free one, and wait until the chain shows it. ANY_STAGE is
        where one waits for us, or where we left weight, or whichever needs us most. Whoever belongs to a site takes one
        with its other machines, and asks them for the first of these stages. Raises NoSlot, LedgerError, Failure for an
        account that was convicted or whose bond was slashed, OSError."""
        chain = await self._follower.first()
        if chain.view.is_convicted(self._account):
            raise Failure(
                f"{self._account} was convicted: members found work of it false, or withheld, and it gets no slot of "
                f"this run any more; `{line('history', f'0x{self._run.hex()}', of_ledger=True)}` shows their verdicts"
            )
        await self._enter(chain.view.config)
        waiting = chain.view.waiting_for(self._account, chain.head.time)
        stages = _preferring([stage for _, stage in waiting], chain.view.stage_left(self._account), stages)
        if self._site is not None and not waiting:
            return await self._join_site(self._site, report_healthy, *stages[:1])
        refused, full = "no stage was asked for", list[int]()
        for stage in stages:
            async with self._placing:
                try:
                    slot = await trio.to_thread.run_sync(
                        self._client.join_run, self._run, stage, abandon_on_cancel=True
                    )
                except Reverted as error:
                    refused = str(error)
                    if error.name == "NoFreeSlot":
                        at = await self._follower.first()
                        refused = eligibility.full(at.view, None if stage == ANY_STAGE else stage, at.head.time)
                        full.append(stage)
                        if reclaims_soon(at.view, self._account, stage, at.head.time):
                            break
                    continue
                log.info("joined", replica=slot[0], stage=slot[1])
                await self._until(lambda seen: self.slot_in(seen) is not None, SEEN_SECONDS)
            if self.slot is None:
                raise NoSlot(f"joined, but the chain's events do not show it after {SEEN_SECONDS:.0f} s")
            return
        claimed = await self._claim(full)
        if self.slot is not None:
            return
        raise NoSlot(f"the ledger gives no slot: {refused}{claimed}")

    async def _enter(self, config: RunConfig) -> None:
        """Have what the ledger asks of an account beside a registration: an invitation, a bond. Raises NoSlot where one
        is missing, Failure for a bond that was slashed, LedgerError, OSError."""
        if config.invited:
            outside = await trio.to_thread.run_sync(self._bring_invitation, abandon_on_cancel=True)
            if outside is not None:
                raise NoSlot(outside)
        if config.bond:
            bond = await trio.to_thread.run_sync(self._client.bond, self._run, self._account, abandon_on_cancel=True)
            if bond.slashed:
                raise Failure(f"the bond of {self._account} was slashed: it gets no slot of this run any more")
            if lacking := bond.lacks(config.bond):
                raise NoSlot(
                    f"a slot asks for a bond of {eth(config.bond)} ETH, of which {eth(lacking)} are missing: "
                    f"`{line('bond', 'deposit', f'0x{self._run.hex()}', of_ledger=True)}` pays them"
                )

    def _bring_invitation(self) -> str | None:
        """Why the account is outside of the invited run after that, with what to do. Blocks."""
        if self._is_let_in():
            return None
        try:
            kept = self._kept()
        except Failure as error:
            return str(error)
        join, with_list = line("join", "LINE"), line("join", "LINE", "--accounts", "FILE")
        if isinstance(kept, Listed):
            if kept == self._brought:
                return f"{self._account} was shown to be in the list: the chain node is late, or it was revoked"
            try:
                self._client.admit_listed(self._run, self._account, kept.proof)
            except Reverted as error:
                return (
                    f"the proof of {self._account} is of no use ({error}): ask for the newest list, for `{with_list}`"
                )
            self._brought = kept
            log.info("showed that the account is in the run's list", account=self._account)
            return None
        if kept is None and self._client.list_of(self._run) is not None:
            return f"the run is for the accounts of a list: ask for it and the line, for `{with_list}`"
        if kept is None:
            return f"the run is for invited accounts: ask for {self._account}'s line, for `{join}`"
        guest = kept.invitation.guest
        if guest not in (self._account, self._site and self._site.address):
            return (
                f"the line that is kept is of {guest}: start with that site's key (--site), or ask for "
                f"{self._account}'s own line, for `{join}`"
            )
        if guest != self._account and self._client.is_revoked(self._run, self._account):
            return f"{self._account} was revoked: ask for a line of its own, for `{join}`"
        if not self._client.is_guest(self._run, guest):
            if kept == self._brought:
                return f"{guest}'s invitation was brought and is not there: the chain node is late, or it was revoked"
            try:
                self._client.admit(kept.invitation, kept.signature)
            except Reverted as error:
                return f"the invitation of {guest} is of no use ({error}): ask for a new line, for `{join}`"
            self._brought = kept
            log.info("brought the invitation", guest=guest)
        return None

    def _is_let_in(self) -> bool:
        """By the ledger as it is, or once the account is enlisted for its site. Blocks."""
        client, run, account = self._client, self._run, self._account
        if client.is_admitted(run, account):
            return True
        return (
            self._site is not None and client.is_guest(run, self._site.address) and not client.is_revoked(run, account)
        )

    async def _join_site(self, site: Site, report_healthy: ReportHealthy, stage: int = ANY_STAGE) -> None:
        """Enlist, wait for the other machines, and have all placed by whose turn it is. A machine that the run does not
        let in is passed over. Raises NoSlot where such a one is missing, and as `_enter` does before each consent."""
        began, not_admitted = dict[TakeSlots, float](), set[str]()
        try:
            while self.slot is None:
                seen = await self._follower.first()
                able = seen.nodes.nodes.keys() - not_admitted
                step = next_step(seen.view, site.address, self._account, seen.head.time, able)
                match step:
                    case Enlist() if trio.current_time() < self._enlists_again:
                        raise NoSlot("enlisted for the site, and the chain's events do not show it yet")
                    case Enlist(until=until):
                        await self._enter(seen.view.config)  # who was revoked meanwhile pays for no consent
                        async with self._placing:
                            await self._enlist(site, stage, until)
                            log.info("enlisted for the site", site=site.name, address=site.address)
                            shown = await self._until(
                                lambda seen: seen.view.enlisted_until(self._account) >= until, SEEN_SECONDS
                            )
                        if not shown:
                            self._enlists_again = trio.current_time() + UNSEEN_SECONDS
                        continue
                    case TakeSlots(replica=replica, accounts=accounts, turn=turn):
                        self.waiting_for = f"the slots of replica {replica} for site {site.name}"
                        since = began.setdefault(step, trio.current_time())
                        if trio.current_time() >= since + turn * TURN_SECONDS:
                            async with self._placing:
                                not_admitted |= await self._take_slots(replica, accounts)
                            began = {}
                    case Wait() if self._account in not_admitted:
                        raise NoSlot(f"the run does not let in {self._account}")  # the next try says why
                    case Wait(reason=reason) if not_admitted:
                        missing = ", ".join(sorted(not_admitted))
                        raise NoSlot(f"{reason}; the run does not let in {missing}: `status` of each says why")
                    case Wait(reason=reason):
                        self.waiting_for = reason
                        report_healthy()  # what an earlier try said is over
                await self._until(lambda newer, seen=seen: newer is not seen, LOOK_SECONDS)  # type: ignore[misc]
        finally:
            self.waiting_for = None

    async def _enlist(self, site: Site, stage: int, until: int) -> None:
        signature = site.named(self._client.domain, self._run, self._account)
        await trio.to_thread.run_sync(self._client.enlist, self._run, stage, until, signature, abandon_on_cancel=True)

    async def _take_slots(self, replica: int, accounts: tuple[str, ...]) -> set[str]:
        """The accounts that the ledger named because the run does not let them in."""
        try:
            await trio.to_thread.run_sync(self._client.join_site, self._run, replica, accounts, abandon_on_cancel=True)
        except Reverted as error:  # another machine, or a stranger, was quicker
            log.info("the site's slots were not taken", replica=replica, reason=str(error))
            return set(error.arguments) if error.name == "NotInvited" else set()
        log.info("the site took its slots", replica=replica)
        await self._until(lambda seen: self.slot_in(seen) is not None, SEEN_SECONDS)
        return set()

    async def _until(self, shows: Callable[[ChainSeen], bool], seconds: float) -> bool:
        """Until the chain shows it, or so long; whether it does."""
        with trio.move_on_after(seconds):
            async for seen in self._follower.seen.values():
                if seen is not None and shows(seen):
                    return True
        return False

    async def _claim(self, stages: list[int]) -> str:
        """Where no slot of these stages is free: ask for one that its member has to answer for, or free one whose
        member could not keep it. What was done, in words. Raises LedgerError."""
        seen = await self._follower.first()
        for stage in stages:
            for action in claims(seen.view, self._account, None if stage == ANY_STAGE else stage, seen.head.time):
                match action:
                    case Send("reclaim", str(account)):
                        log.info("taking a slot that stands still", member=account)
                        await trio.to_thread.run_sync(self._client.reclaim, self._run, account, abandon_on_cancel=True)
                        await self._until(lambda newer: self.slot_in(newer) is not None, SEEN_SECONDS)
                        return f"; that of {account} was taken, but the chain's events do not show it"
                    case Send("accuse", str(account)):
                        log.info("asking for a slot", member=account)
                        await trio.to_thread.run_sync(self._client.accuse, self._run, account, abandon_on_cancel=True)
                        seconds = seen.view.config.eviction_time
                        keeps = "only by work" if seen.view.is_forfeit(account) else "by work or an answer"
                        return f"; {account} was asked for its slot, which it can keep {keeps} within {seconds} s"
                    case Send("evict", str(account)):
                        log.info("freeing a slot", member=account)
                        await trio.to_thread.run_sync(self._client.evict, self._run, account, abandon_on_cancel=True)
                        return f"; {account} has lost its slot now"
        return ""

    async def answer(self, seen: ChainSeen) -> None:
        """Say that we are there, where somebody asked that; until the chain shows it. Raises LedgerError."""
        if seen.view.created and seen.view.should_answer(self._account):
            log.info("answering an accusation")
            await trio.to_thread.run_sync(self._client.answer, self._run, abandon_on_cancel=True)
            await self._until(lambda newer: not newer.view.should_answer(self._account), SEEN_SECONDS)

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


def _preferring(waiting: Sequence[int], left: int | None, stages: tuple[int, ...]) -> tuple[int, ...]:
    """These stages; before any stage at all those where a slot waits for the account, and where it `left` weight."""
    if ANY_STAGE not in stages:
        return stages
    own = [*waiting, *([] if left is None else [left])]
    return tuple(dict.fromkeys((*own, *stages)))
