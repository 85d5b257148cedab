"""This node's own mailbox: its blobs and messages, published for those who cannot connect to it.

The newest contributions come first, then what is said of them. So whoever hears of a payload finds it there. With all
that this node serves, it stands in for the peers of members that can reach none.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import trio

from dlx.ground import durable
from dlx.node.daemon.mailbox.messages_file import MESSAGES, pack
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs, remote
from dlx.node.home.errors import Failure

LOOK = 1.0  # s between two looks at what is to be published
SWEEP = 5.0  # s between two at all that this node serves
FEW = 16  # blobs of a sweep before it looks again
log = logs.get(__name__)


class _Record(msgspec.Struct, frozen=True):
    """Of what was published, so that a later process can take it back. Blobs by their hex."""

    to: str
    there: tuple[str, ...]
    begun: tuple[str, ...]  # and perhaps not there


class Outbox:
    """`to`: a `remote.writable` address. `own()`: blobs of ours that others may need now; `served()`: all that this
    node serves, None where only our own go there. `messages()`: encoded gossip messages, those that matter most first;
    None while those that are there have to stay. `path(blob)`: where a blob is on this disk. `folder`: of this part's
    own files."""

    def __init__(
        self,
        to: str,
        own: Callable[[], Collection[bytes]],
        served: Callable[[], Collection[bytes]] | None,
        messages: Callable[[], Iterable[bytes] | None],
        path: Callable[[bytes], Path],
        folder: Path,
    ) -> None:
        self.to = to
        self._own, self._served, self._messages, self._path = own, served, messages, path
        self._folder, self._record = folder, folder / "published.json"
        self._published, self._begun = set[bytes](), set[bytes]()
        self._under_way = set[bytes]()
        self._said: bytes | None = None

    @property
    def published(self) -> int:
        """Blobs that are there now."""
        return len(self._published)

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Raises OSError where the place takes nothing; what is there stays."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await trio.to_thread.run_sync(self._read_record)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            while True:
                await self._publish(await trio.to_thread.run_sync(self._own))
                messages = self._messages()
                if messages is not None and (data := pack(messages)) != self._said:
                    await self._say(data)
                report_healthy()
                await trio.sleep(LOOK)

    async def _sweep(self) -> None:
        """All else that is to be there, the smallest first; what is of no use any more goes."""
        while True:
            own = await trio.to_thread.run_sync(self._own)
            served = await trio.to_thread.run_sync(self._served) if self._served is not None else set[bytes]()
            done = await self._publish(served, FEW)
            useless = [*(self._published | self._begun).difference(own, served)][:FEW]
            for name in useless:
                await self._remove(name)
            if useless:
                await trio.to_thread.run_sync(self._write_record)
            if done + len(useless) < FEW:
                await trio.sleep(SWEEP)

    async def _publish(self, names: Collection[bytes], most: int | None = None) -> int:
        """How many were begun."""
        missing = await trio.to_thread.run_sync(self._by_size, {*names} - self._published - self._under_way)
        chosen = missing[:most]
        if not chosen:
            return 0
        self._begun |= {*chosen}
        self._under_way |= {*chosen}
        try:
            await trio.to_thread.run_sync(self._write_record)
            for name in chosen:
                await self._put(name)
        finally:
            self._under_way -= {*chosen}
        await trio.to_thread.run_sync(self._write_record)
        return len(chosen)

    async def _put(self, name: bytes) -> None:
        try:
            await self._do(remote.put, self._path(name), self.to)
        except OSError:
            if self._path(name).is_file():
                raise
            return  # it was removed meanwhile
        self._published.add(name)
        self._begun.discard(name)

    async def _remove(self, name: bytes) -> None:
        """A place that does not allow it keeps what it has."""
        try:
            await self._do(remote.remove, f"{self.to}/{name.hex()}")
        except OSError as error:
            log.debug("not removed", blob=name.hex()[:12], reason=str(error))
        self._published.discard(name)
        self._begun.discard(name)

    def _by_size(self, names: Collection[bytes]) -> list[bytes]:
        """Those that are on this disk, the smallest first."""
        sizes = dict[bytes, int]()
        for name in names:
            with suppress(FileNotFoundError):
                sizes[name] = self._path(name).stat().st_size
        return sorted(sizes, key=lambda name: (sizes[name], name))

    async def _say(self, data: bytes) -> None:
        path = self._folder / MESSAGES
        await trio.to_thread.run_sync(path.write_bytes, data)
        await self._do(remote.put, path, self.to)
        self._said = data

    async def _do(self, work: Callable[..., None], *arguments: object) -> None:
        """Raises OSError."""
        try:
            await trio.to_thread.run_sync(partial(_explained, self.to, work, *arguments), abandon_on_cancel=True)
        except Failure as error:  # it may go better later: no reason to end the node
            raise OSError(f"the mailbox: {error}") from None

    def _read_record(self) -> None:
        with suppress(OSError, ValueError, msgspec.MsgspecError):
            found = msgspec.json.decode(self._record.read_bytes(), type=_Record)
            if found.to == self.to:
                self._published |= set(map(bytes.fromhex, found.there))
                self._begun |= set(map(bytes.fromhex, found.begun)) - self._published

    def _write_record(self) -> None:
        there, begun = (tuple(sorted(name.hex() for name in each)) for each in (self._published, self._begun))
        record = _Record(self.to, there, begun)
        durable.write_bytes(self._record, msgspec.json.encode(record))


def _explained(to: str, work: Callable[..., None], *arguments: object) -> None:
    with remote.explained(to):
        work(*arguments)
