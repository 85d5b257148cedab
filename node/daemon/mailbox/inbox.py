"""Others' mailboxes: their messages are heard where their owners are not connected, and blobs that no peer gives are
looked for there.

Those on the ledger were written by strangers: they lead to public hosts only, by https, and all that comes is bounded
beforehand. Their owners may be anybody, so a mailbox that fails is left for a while, and one that is slow holds up
nobody for long. What comes is believed as little as what peers send: blobs by their sha256, messages by their
signatures.
"""

from __future__ import annotations

import math
import os
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import NoRoom
from dlx.node.daemon.mailbox import messages_file
from dlx.node.daemon.messages import Heard
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs, remote
from dlx.node.home.errors import Failure
from dlx.node.home.mailboxes import MOST, WrongBytes, have_blob, mailbox_of
from dlx.p2p.exchange import Sought
from dlx.p2p.message_sync import short_id
from dlx.p2p.token_buckets import TokenBuckets
from dlx.p2p.wire import WireError

READ = Backoff(2.0, 10.0)  # s between two looks for messages, longer the longer there is nothing new
LEFT = Backoff(5.0, 600.0)  # s for which one that failed is left
AGAIN = 30.0  # s after which a message that is still there is heard again: the ledger may be seen later than by others
FALSE = 3600.0  # s for which false bytes are remembered
FRESH = 60.0  # s for which a look counts
STRIKES = 256  # messages of a mailbox that were refused when they came, regained in STRIKES_SECONDS
STRIKES_SECONDS = 60.0
REST = 30.0  # s for which the messages of one without strikes are let be
NEW = 128  # messages of one look
DOWNLOADS = 4  # at once, of one mailbox
HEDGE, SLOW = 5.0, 64 * 1024  # s; bytes a second below which one more mailbox is asked for the same blob
AT_ONCE = 4  # that are
THREADS = 32  # for blobs
LOOKS = 16  # at messages, at once
log = logs.get(__name__)


@dataclass(eq=False)
class Mailbox:
    """`owner`: peer id; None: the operator named it, so it may be anywhere."""

    uri: str
    owner: str | None
    failures: int = 0  # in a row
    left_until: float = 0.0
    false_until: float = 0.0  # no success makes up for its failures
    blobs: int = 0  # that it gave
    quiet: int = 0  # looks in a row without news
    look_at: float = 0.0  # when its messages are looked at next
    looked_at: float | None = None  # the last time that it answered
    told_at: float | None = None  # the last time that it had news
    told_in: int | None = None  # the round that was open then
    is_looking: bool = False
    heard: dict[bytes, float] = field(default_factory=dict)  # short id -> when
    downloads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(DOWNLOADS))

    def matters(self, sought: Sought) -> bool:
        """Whether nobody can be said to have a blob as long as this one does not answer: strangers cannot have all
        others wait for them."""
        return self.owner is None or self.owner in sought.makers

    def has_answered(self, since: float) -> bool:
        return self.looked_at is not None and self.looked_at > since

    def has_told(self, since: float, oldest: int) -> bool:
        """Whether it had news after that time, or while that round was open or a later one."""
        is_of_now = self.told_in is not None and self.told_in >= oldest
        return self.told_at is not None and (self.told_at > since or is_of_now)

    @property
    def is_strangers(self) -> bool:
        """Whether one named it on the ledger."""
        return self.owner is not None


class Inbox:
    """`named`: addresses by the operator. `peers()`: the addresses that the ledger has of members, by peer id, our own
    (`own`) among them. `agreed()`: who is connected. `hear(message, where)`: what that is, None where nobody listens
    yet. `open_round()`: the run's, None where it has none. `work`: a folder for files on their way."""

    def __init__(
        self,
        named: Sequence[str],
        own: str,
        peers: Callable[[], Mapping[str, Sequence[str]]],
        agreed: Callable[[], Collection[str]],
        hear: Callable[[bytes, str], Heard | None],
        open_round: Callable[[], int | None],
        work: Path,
    ) -> None:
        self._named, self._own, self._peers, self._agreed, self._hear = tuple(named), own, peers, agreed, hear
        self._open_round, self._work, self._random = open_round, work, Random()
        self._strikes = TokenBuckets(STRIKES / STRIKES_SECONDS, STRIKES)
        self._known: dict[str, Mailbox] = {}  # by owner, or by the address that the operator named
        self._threads, self._looks = trio.CapacityLimiter(THREADS), trio.CapacityLimiter(LOOKS)

    @property
    def read(self) -> int:
        """Others' mailboxes that answered lately, and had news of members as lately, or in the open round or the one
        before."""
        since, oldest = trio.current_time() - FRESH, (self._open_round() or 0) - 1
        others = [one for one in self._known.values() if one.owner != self._own]
        return sum(one.has_answered(since) and one.has_told(since, oldest) for one in others)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Hear those whose owners are not connected, and our own, where another node of our account may publish.
        Raises what is said of such a one."""
        self._work.mkdir(parents=True, exist_ok=True)
        for left in self._work.iterdir():  # by a process that was killed
            left.unlink(missing_ok=True)
        async with trio.open_nursery() as nursery:
            while True:
                now, agreed = trio.current_time(), set(self._agreed())
                for one in self._mailboxes():
                    if now >= max(one.look_at, one.left_until) and not one.is_looking and one.owner not in agreed:
                        nursery.start_soon(self._look, one)
                report_healthy()
                await trio.sleep(0.5)

    async def fetch(self, sought: Sought) -> tuple[Path | None, bool]:
        """See `p2p.exchange.Mailboxes`."""
        every = [one for one in self._mailboxes() if one.owner != self._own]
        waiting = [one for one in every if trio.current_time() >= one.left_until]
        waiting.sort(key=lambda one: (one.owner not in sought.makers, -one.blobs, self._random.random()))
        is_unsure = any(one not in waiting and one.matters(sought) for one in every)
        search = _Search(sought, deque(waiting), is_unsure)
        async with trio.open_nursery() as nursery:
            while search.waiting or search.asked:
                if search.waiting:
                    one = search.waiting.popleft()
                    search.asked[one] = trio.CancelScope()
                    nursery.start_soon(self._ask, one, search, nursery.cancel_scope)
                while search.asked and not await search.wants_more():
                    pass
        if search.found is None and search.error is not None:
            raise search.error
        for one in search.given_up if search.found is not None else ():
            self._leave(one, "too slow")
        return search.found, search.unsure

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _mailboxes(self) -> list[Mailbox]:
        """Each owner's keeps what is known of it where its address is another one, and where it is not asked now."""
        places: dict[str, tuple[str, str | None]] = {uri: (uri, None) for uri in self._named}
        for peer, addresses in sorted(self._peers().items(), key=lambda item: (item[0] != self._own, item[0])):
            uri = mailbox_of(addresses)
            if uri is not None and uri not in self._named:
                places[peer] = uri, peer
        self._known = {key: self._known.get(key) or Mailbox(*place) for key, place in places.items()}
        for key, (uri, _) in places.items():
            self._known[key].uri = uri
        return list(self._known.values())[:MOST]

    async def _ask(self, one: Mailbox, search: _Search, every: trio.CancelScope) -> None:
        with search.asked[one] as given_up:
            try:
                path = await self._blob(one, search)
                search.unsure = search.unsure or (trio.current_time() < one.left_until and one.matters(search.sought))
                if path is not None and search.found is not None:
                    _drop(path)
                elif path is not None:
                    search.found = path
                    search.given_up.discard(one)
            except _NoRoomBeside:
                search.waiting.appendleft(one)
                search.give_up_slow()
            except OSError as error:
                search.error = error
        if given_up.cancelled_caught:
            search.waiting.append(one)
        search.ended(one)
        if search.found is not None or search.error is not None:
            every.cancel()

    async def _blob(self, one: Mailbox, search: _Search) -> Path | None:
        """None where it is not there, or is not what it should be. Raises OSError of our disk."""
        sought = search.sought
        into: Path | None = None
        began, bytes_ = trio.current_time(), 0

        def count(came: int) -> None:
            """Ends a thread that was given up."""
            nonlocal bytes_
            bytes_ += came
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(search.count, came)

        def get() -> Path:
            nonlocal into
            is_beside = trio.from_thread.run_sync(search.begins, one)  # only now that its turn has come
            try:
                into = sought.draft(is_beside)
            except NoRoom as error:
                if is_beside:
                    raise _NoRoomBeside from error
                raise
            have_blob(one.uri, one.is_strangers, sought.hash, sought.sizes, into, count)
            return into

        both = _Both(one.downloads, self._threads)
        try:
            found = await trio.to_thread.run_sync(get, abandon_on_cancel=True, limiter=both)
        except remote.Absent:
            return None
        except Failure as error:
            if isinstance(error, WrongBytes):
                one.false_until = trio.current_time() + FALSE
            self._leave(one, str(error))
            return None
        except trio.Cancelled:  # another was sooner, or may be
            if into is not None:
                _drop(into)  # its thread may wait for long yet
            seconds = trio.current_time() - began
            if seconds > HEDGE and bytes_ < SLOW * seconds:
                search.given_up.add(one)
            raise
        one.failures = one.failures if trio.current_time() < one.false_until else 0
        one.blobs += 1
        return found

    async def _look(self, one: Mailbox) -> None:
        one.is_looking = True
        try:
            await self._look_at(one)
        finally:
            one.is_looking = False

    async def _look_at(self, one: Mailbox) -> None:
        into = self._work / secrets.token_hex(8)  # a look that was given up may still write to its own
        get = partial(messages_file.read, one.uri, one.is_strangers, into)
        try:
            messages = await trio.to_thread.run_sync(get, abandon_on_cancel=True, limiter=self._looks)
        except remote.Absent:
            messages = []
        except (Failure, WireError) as error:
            return self._leave(one, str(error))
        try:
            pause = await self._take(one, messages)  # what it raises else is about this node, not about the mailbox
        except WireError as error:
            return self._leave(one, str(error))
        one.failures = one.failures if trio.current_time() < one.false_until else 0
        one.looked_at = trio.current_time()
        one.look_at = trio.current_time() + pause

    async def _take(self, one: Mailbox, messages: Collection[bytes]) -> float:
        """The seconds until the next look. Raises WireError for what is no message."""
        new, now = 0, trio.current_time()
        names = [short_id(message) for message in messages]
        one.heard = {name: one.heard[name] for name in names if name in one.heard}
        for name, message in zip(names, messages, strict=True):
            is_new = name not in one.heard
            if now < one.heard.get(name, -math.inf) + AGAIN or new >= NEW:
                continue
            heard = self._hear(message, one.uri)
            if heard is None:
                break
            if heard is Heard.JUNK:
                raise WireError("malformed", "no message of the run")
            if heard is Heard.NEWS:
                one.told_at, one.told_in = now, self._open_round()
            one.heard[name] = now
            new += is_new
            if heard is Heard.REFUSED and is_new and not self._strikes.take(one.owner or one.uri):
                return REST
            await trio.sleep(0)
        one.quiet = 0 if new else one.quiet + 1
        return READ.delay(one.quiet + 1, self._random)

    def _leave(self, one: Mailbox, reason: str) -> None:
        one.failures += 1
        pause = LEFT.delay(one.failures, self._random)
        one.left_until = trio.current_time() + pause
        say = log.info if one.failures == 1 else log.debug
        say("a mailbox is left for a while", mailbox=one.uri, reason=reason, seconds=round(pause))


class _Both:
    """A thread's two limits. Both hold until it has ended, also where it was given up."""

    def __init__(self, first: trio.CapacityLimiter, then: trio.CapacityLimiter) -> None:
        self._first, self._then = first, then

    async def acquire_on_behalf_of(self, borrower: Any) -> None:
        await self._first.acquire_on_behalf_of(borrower)
        try:
            await self._then.acquire_on_behalf_of(borrower)
        except BaseException:
            self._first.release_on_behalf_of(borrower)
            raise

    def release_on_behalf_of(self, borrower: Any) -> None:
        self._then.release_on_behalf_of(borrower)
        self._first.release_on_behalf_of(borrower)


class _NoRoomBeside(Exception):
    """For a second file of a blob."""


@dataclass
class _Search:
    """For one blob."""

    sought: Sought
    waiting: deque[Mailbox]
    unsure: bool
    asked: dict[Mailbox, trio.CancelScope] = field(default_factory=dict)  # now
    writing: list[Mailbox] = field(default_factory=list)  # those of them that have a file
    slow: list[Mailbox] = field(default_factory=list)  # those that brought too little for HEDGE seconds
    given_up: set[Mailbox] = field(default_factory=set)  # for others' sake
    came: int = 0  # bytes
    found: Path | None = None
    error: OSError | None = None
    changed: trio.Event = field(default_factory=trio.Event)

    def begins(self, one: Mailbox) -> bool:
        """Whether another file is on its way."""
        self.writing.append(one)
        return len(self.writing) > 1

    def ended(self, one: Mailbox) -> None:
        del self.asked[one]
        self.writing = [other for other in self.writing if other is not one]
        self.changed.set()

    def give_up_slow(self) -> None:
        """One that takes the room of others; once, because it may be the only one that has the blob."""
        for one in self.slow:
            if one in self.writing and one not in self.given_up:
                self.given_up.add(one)
                return self.asked[one].cancel()

    def count(self, bytes_: int) -> None:
        """So many came."""
        self.came += bytes_
        self.sought.came(bytes_)

    async def wants_more(self) -> bool:
        """Whether one more is asked, after HEDGE seconds; sooner where one has answered. One that has given blobs
        before is asked anyway, because what comes may be false."""
        before, asked, self.changed = self.came, list(self.asked), trio.Event()
        with trio.move_on_after(HEDGE):
            await self.changed.wait()
            return False
        is_slow = self.came < before + SLOW * HEDGE
        self.slow = asked if is_slow else []
        gave = any(one.blobs for one in list(self.waiting)[:1])
        return len(self.asked) < AT_ONCE and (gave or is_slow)


def _drop(draft: Path) -> None:
    """Its bytes are free at once, also where somebody has it open."""
    with suppress(FileNotFoundError):
        os.truncate(draft, 0)
        draft.unlink()
