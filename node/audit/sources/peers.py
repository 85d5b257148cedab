"""Blobs from the run's peers over libp2p, under an identity that exists for this once."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import trio

from dlx.ground.blobs import BlobStore
from dlx.ground.errors import cause
from dlx.ground.forks import LOAD_SECONDS
from dlx.ledger.abi import account_bytes
from dlx.ledger.keys import peer_id_to_base58
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import RegisteredNode
from dlx.node import version
from dlx.node.audit.sources.blobs import Attempt, WrongCopy
from dlx.node.home import formatting
from dlx.node.home.errors import Failure
from dlx.p2p import wire
from dlx.p2p.addresses import ip_addresses, parse_address
from dlx.p2p.admission import is_loopback
from dlx.p2p.exchange import BlobError, BlobExchange
from dlx.p2p.host import Host
from dlx.p2p.streams import StreamBroken
from dlx.p2p.verdicts import VerdictExchange

_CONNECT_SECONDS = 15.0
_DIALS = 16  # at once
_ASKED = 8  # peers, for verdicts
_FETCH_SECONDS = 120.0  # without anything worth mentioning; a peer that delivers is given longer
_TELL_SECONDS = 0.5  # between two lines about a download
_STOP_SECONDS = 10.0
_WRONG = {"bad_blob", "blob_size", "blob_malformed"}  # reasons for which a peer's answer was no blob of that name


class Peers:
    """A blob source: peers of the run, dialled at the first blob that no other source has. Use it as a context.

    `nodes` gives those of the ledger by account, `bootstrap` are more multiaddrs; the peers drop whoever is of another
    run. libp2p runs in a thread of its own. `say(line)` is told whom it reached, `show(line)` how far a download is.
    """

    own = False

    def __init__(
        self,
        domain: Domain,
        run: bytes,
        nodes: Callable[[], Mapping[str, RegisteredNode]],
        bootstrap: Sequence[str],
        say: Callable[[str], None] = lambda line: None,
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._hello = wire.Hello(
            wire.VERSIONS, wire.FEATURES, domain.chain_id, account_bytes(domain.ledger), run, version(),
            secrets.token_bytes(8),
        )  # fmt: skip
        self._nodes, self._bootstrap, self._say, self._show = nodes, tuple(bootstrap), say, show
        self._stack = ExitStack()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._reached: tuple[str, ...] = ()
        self._wrong: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._thread is not None:
            if self._thread.is_alive() and self._failure is None:
                trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
            self._thread.join(_STOP_SECONDS)
        self._stack.close()

    def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
        """See `Source`. Raises what starting libp2p raises."""
        if self._thread is None:
            self._start()
        if not self._reached:
            return Attempt(None)
        self._wrong.clear()
        try:
            path = trio.from_thread.run(self._fetch, digest, limit, trio_token=self._token)
        except BlobError:
            path = None
        wrong = tuple(WrongCopy(f"peer {peer}", "gave other bytes") for peer in dict.fromkeys(self._wrong))
        if path is None:
            return Attempt(None, wrong)
        target = into / digest.hex()
        os.replace(path, target)
        return Attempt(target, wrong)

    def verdicts(self, first: int) -> list[tuple[bytes, bytes]]:
        """(report, signature) of what the peers keep of round `first` and later ones: nothing of it is verified."""
        if self._thread is None:
            self._start()
        return trio.from_thread.run(self._ask_verdicts, first, trio_token=self._token)

    async def _ask_verdicts(self, first: int) -> list[tuple[bytes, bytes]]:
        found: dict[tuple[bytes, bytes], None] = {}

        async def ask(peer: str) -> None:
            with suppress(StreamBroken):
                for verdict in await self._verdict_exchange.ask(peer, first):
                    found[verdict.report, verdict.signature] = None

        async with trio.open_nursery() as nursery:
            for peer in self._reached[:_ASKED]:
                nursery.start_soon(ask, peer)
        return list(found)

    async def _fetch(self, digest: bytes, limit: int) -> Path:
        found: Path | Exception
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell, digest, limit)
            try:
                found = await self._exchange.fetch(digest, limit, patience_s=_FETCH_SECONDS)
            except Exception as error:  # outside, so that it comes alone and in no group
                found = error
            nursery.cancel_scope.cancel()
        if isinstance(found, Exception):
            raise found
        return found

    async def _tell(self, digest: bytes, limit: int) -> None:
        """How much of a blob was received, of at most `limit` bytes: of weights just as many."""
        began, before = trio.current_time(), self._host.bytes_received
        while True:
            await trio.sleep(_TELL_SECONDS)
            received = self._host.bytes_received - before
            rate = received / (trio.current_time() - began)
            progress = f"{formatting.size(received)}, {formatting.size(rate)}/s"
            self._show(f"{formatting.bar(received, limit)} {digest.hex()[:16]}: {progress}")

    def _start(self) -> None:
        self._known = self._nodes()
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._run, name="audit-peers", daemon=True)
        self._thread.start()
        if not self._ready.wait(LOAD_SECONDS):  # where it ends instead, that is noticed at once
            raise Failure(f"libp2p did not start within {LOAD_SECONDS:.0f} s: try again, or give --blobs")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except Exception as error:
            self._failure = cause(error)
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        host = Host(
            secrets.token_bytes(32),
            listen=["/ip4/127.0.0.1/tcp/0"],  # others need not call us
            announce=[],
            hello=self._hello,
            bootstrap=self._bootstrap,
            on_reject=self._rejected,
        )
        self._host = host
        # Beside nothing of the user's: the caller's working folder gets finished blobs only.
        store = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dlx-blobs-"))
        self._exchange = BlobExchange(host, BlobStore(Path(store)))
        self._verdict_exchange = VerdictExchange(host)
        with self._scope:
            async with host.run():
                await self._connect(host)
                self._ready.set()
                await trio.sleep_forever()

    async def _connect(self, host: Host) -> None:
        """Dial everybody at once; whoever has not answered by the deadline is left out."""
        named = [peer for text in self._bootstrap if (peer := parse_address(text)[1]) is not None]
        peers = {str(peer) for peer in named}
        for node in self._known.values():
            peer_id = peer_id_to_base58(node.peer_id)
            host.known(peer_id, node.multiaddrs)
            peers.add(peer_id)
        limiter = trio.CapacityLimiter(_DIALS)

        async def connect(peer_id: str) -> None:
            with suppress(StreamBroken):
                async with limiter:
                    await host.connect(peer_id, _CONNECT_SECONDS)

        with trio.move_on_after(_CONNECT_SECONDS):
            async with trio.open_nursery() as nursery:
                for peer_id in peers:
                    nursery.start_soon(connect, peer_id)
        self._reached = host.agreed()
        self._say(_words(len(self._reached), len(peers), self._known.values()))

    def _rejected(self, reason: str, peer: str) -> None:
        if reason in _WRONG:
            self._wrong.append(peer)


def _words(reached: int, known: int, nodes: Iterable[RegisteredNode]) -> str:
    ips = [ip for node in nodes for ip in ip_addresses(node.multiaddrs)]
    if not reached and ips and all(map(is_loopback, ips)):
        return "the run's nodes are of one machine, and none of them is up on this one"
    return f"reached {reached} of {known} known peers"
