"""The network process of a node: peers, ledger, HTTP, and a session for whichever slot the ledger gives us."""

import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
from eth_utils import to_canonical_address

from dlx.ground.blobs import BlobStore
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, LedgerUnavailable, Reverted
from dlx.ledger.events import Sealed
from dlx.ledger.feed import Head
from dlx.ledger.keys import peer_id_from_base58, peer_id_to_base58
from dlx.ledger.nodes import NodeTable
from dlx.ledger.typed import ANY_STAGE
from dlx.ledger.view import RunView, ViewError
from dlx.node import version
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.http import serve_http
from dlx.node.daemon.kept import kept_stage
from dlx.node.daemon.metrics import Metrics
from dlx.node.daemon.overview import Overview
from dlx.node.daemon.session import Session
from dlx.node.home import logs
from dlx.node.home.config import Settings
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.home.identity import Account, NodeKey
from dlx.node.home.signed import SignedBook, take_over_files
from dlx.node.round import plans
from dlx.node.round.plans import Terms
from dlx.node.runs.fit import check_pipes, differences
from dlx.node.trainer.client import Trainer
from dlx.p2p import wire
from dlx.p2p.exchange import BlobError, BlobExchange
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.pipe import PipeService
from dlx.training.data import shards
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.recipe.recipe import BlobRef

POLL_SECONDS = 0.4
BLOB_SECONDS = 30.0  # one try to fetch a public blob; it is repeated until the node is stopped
JOIN_RETRY_SECONDS = 5.0
LEAVE_SECONDS = 8.0
log = logs.get(__name__)


@dataclass(frozen=True)
class Startup:
    """What `dlx-node start` was asked to do."""

    run: bytes
    stage: int | None
    settings: Settings
    datadir: DataDir
    node_key: NodeKey
    account: Account


class Node:
    """One task group owns everything; `run` ends after a stop signal or with the Failure that made going on useless."""

    def __init__(self, startup: Startup, client: LedgerClient) -> None:
        self.startup, self.client = startup, client
        self.metrics = Metrics()
        self.view, self.nodes = RunView(startup.run), NodeTable()
        self.head: Head | None = None
        self.ledger_reachable = True
        self.session: Session | None = None
        self.last_seal: Sealed | None = None
        self.counted: bool | None = None
        self.stopping = False
        self._sealed_at: float | None = None
        self._terms: Terms | None = None
        self._signed = SignedBook(startup.datadir.signed, startup.account.address)
        take_over_files(self._signed, startup.datadir.state)
        settings = startup.settings
        self.store = BlobStore(startup.datadir.blobs)
        for leftover in startup.datadir.blobs.glob(".*.tmp"):  # of a process killed while it wrote
            leftover.unlink()
        hello = wire.Hello(
            wire.VERSIONS,
            wire.FEATURES,
            client.chain_id,
            to_canonical_address(client.ledger),
            startup.run,
            version()[:32],
        )
        self.host = Host(
            startup.node_key.secret, settings.listen, settings.announce, hello, settings.bootstrap, self.reject
        )
        prefix = f"/dlx/{startup.run.hex()}"
        self._topics = f"{prefix}/contributions", f"{prefix}/seals"
        self._exchange = BlobExchange(self.host, self.store)
        self._gossip = Gossip(self.host, self._topics)
        self._pipes = PipeService(self.host, self._refuse_pipe)

    @property
    def finished(self) -> bool:
        """Whether the run is over; as long as its manifest is not here, by its number of rounds alone."""
        return self.view.finished if self._terms is None else plans.finished(self._terms, self.view)

    # ---- life ----

    async def run(self) -> None:
        """Train until stopped: SIGINT finishes the step and leaves, SIGTERM keeps the slot; a second one exits now."""
        await self._poll_once()
        if not self.view.created:
            raise Failure(f"the ledger at {self.client.ledger} knows no run 0x{self.startup.run.hex()}")
        async with self.host.run(), trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._await_signals)
            await self._register()
            self._meet_members()
            overview = Overview(self)
            url = await nursery.start(
                partial(
                    serve_http, self.startup.settings.http_host, self.startup.settings.http_port, overview.status,
                    overview.peers, self.metrics.registry, self.startup.datadir.http_address,
                )
            )  # fmt: skip
            log.info("node started", account=self.startup.account.address, peer=self.host.peer_id, http=url)
            for address in self.host.addresses:
                log.info("listening", address=address)
            for task in (self._poll_ledger, self._read_gossip, self._take_pipes, self._measure):
                nursery.start_soon(task)
            self._trainer = Trainer()
            await nursery.start(self._trainer.run)
            await self._train(await self._prepare())

    async def _await_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            number = await anext(signals)
            log.info("stopping: finishing the step; a second signal exits at once")
            self.stopping = True
            self._nursery.start_soon(self._leave, number == signal.SIGINT)
            await anext(signals)
            os._exit(1)  # the training process ends with our end of its socket

    async def _leave(self, for_good: bool) -> None:
        """Give up the round at its step. A person's Ctrl-C also returns the slot, so that nobody waits for us; a
        SIGTERM keeps it, since a service that restarts goes on where it was."""
        with trio.move_on_after(LEAVE_SECONDS):
            if self.session is not None:
                await self.session.finish_step(LEAVE_SECONDS / 2)
            held = self.view.slot_of(self.startup.account.address) is not None and not self.finished
            if for_good and held:
                try:
                    await trio.to_thread.run_sync(self.client.leave_run, self.startup.run, abandon_on_cancel=True)
                    log.info("slot returned to the ledger")
                except LedgerError as error:
                    log.warning("the slot could not be returned", error=str(error))
        self._nursery.cancel_scope.cancel()

    async def _train(self, context: RunContext) -> None:
        """A session for the slot we hold; another one whenever the ledger gives us another slot."""
        while not self.stopping:
            await self._trainer.loaded.wait()  # a round that opens with us must not wait for our imports
            slot = self.view.slot_of(context.account)
            if slot is None:
                if self.finished:
                    log.info("the run is finished: serving its blobs until stopped")
                    await trio.sleep_forever()
                await self._join(context)
                continue
            assert self.head is not None
            self.session = Session(context, self._trainer, slot, self.view.copy(), self.head.block)
            await self.session.run()
            self.session = None
            self._trainer.close()
            self._trainer = Trainer()
            await self._nursery.start(self._trainer.run)
            log.warning("the slot is no longer ours", replica=slot[0], stage=slot[1])
        await trio.sleep_forever()

    async def _join(self, context: RunContext) -> None:
        kept = kept_stage(context.directory)
        wanted = [ANY_STAGE] if kept is None else [kept, ANY_STAGE]
        for stage in wanted if self.startup.stage is None else [self.startup.stage]:
            try:
                slot = await trio.to_thread.run_sync(
                    self.client.join_run, self.startup.run, stage, abandon_on_cancel=True
                )
                log.info("joined", replica=slot[0], stage=slot[1])
                with trio.move_on_after(JOIN_RETRY_SECONDS):
                    while self.view.slot_of(context.account) is None:
                        await trio.sleep(POLL_SECONDS / 2)
                return
            except Reverted as error:
                log.warning("no slot", error=str(error))
            except LedgerError as error:
                log.warning("could not join yet", error=str(error))
        await trio.sleep(JOIN_RETRY_SECONDS)

    # ---- ledger ----

    async def _register(self) -> None:
        """Bind our peer id and addresses to the account, unless the registry has them already."""
        account, addresses = self.startup.account.address, self.host.addresses[:16]
        known = self.nodes.nodes.get(account)
        ours = peer_id_from_base58(self.host.peer_id)
        holder = self.nodes.account_of(ours)
        if holder not in (None, account):
            raise Failure(
                f"peer id {self.host.peer_id} is registered by account {holder}: a node key serves one account; "
                f"remove {self.startup.datadir.node_key} and run `dlx-node init` for a new one"
            )
        if known is None or known.peer_id != ours:
            log.info("registering the node", account=account)
            await trio.to_thread.run_sync(self.client.register, self.startup.node_key.secret, addresses)
        elif known.multiaddrs != tuple(addresses):
            await trio.to_thread.run_sync(self.client.set_addresses, addresses)

    async def _poll_ledger(self) -> None:
        while True:
            try:
                await self._poll_once()
                if not self.ledger_reachable:
                    log.info("the chain answers again")
                self.ledger_reachable = True
            except LedgerUnavailable as error:
                if self.ledger_reachable:
                    log.warning("the chain does not answer; training goes on", error=str(error))
                self.ledger_reachable = False
            except (LedgerError, ViewError) as error:
                log.warning("the chain's answer cannot be used", error=str(error))
            await trio.sleep(POLL_SECONDS)

    async def _poll_once(self) -> None:
        if self.head is None:
            self._feed = self.client.feed(self.startup.run, 0)
        feed = self._feed
        update = await trio.to_thread.run_sync(self.client.poll, feed, abandon_on_cancel=True)
        if feed is not self._feed:
            return  # replaced meanwhile: the new one tells everything from the start
        if update.reorg:
            log.warning("the chain was reorganised: reading the run again")
            self.view, self.nodes = RunView(self.startup.run), NodeTable()
        for event in update.events:
            self.view.apply(event)
            self.nodes.apply(event)
        new_block = self.head is None or update.head.block != self.head.block
        self.head = update.head
        self.metrics.ledger_block.set(update.head.block)
        if update.events or update.reorg:
            self._meet_members()
        if self.session is not None and (update.events or new_block):
            self.session.on_ledger(self.view.copy(), update.head.block)

    def _meet_members(self) -> None:
        for account in {*self.view.members(), self.view.creator}:  # the creator serves the run's public blobs
            peer, record = self.peer_of(account), self.nodes.nodes.get(account)
            if peer is not None and record is not None and account != self.startup.account.address:
                self.host.known(peer, record.multiaddrs)

    def peer_of(self, account: str) -> str | None:
        """The libp2p peer id that the account registered."""
        record = self.nodes.nodes.get(account)
        return None if record is None else peer_id_to_base58(record.peer_id)

    # ---- public blobs ----

    async def _prepare(self) -> RunContext:
        """Have manifest, data and genesis of the run, all by hash, before training."""
        manifest = parse(await self._public_blob(self.view.config.manifest, MAX_BYTES))
        if wrong := differences(manifest, self.view):
            raise Failure(f"the run's manifest and its registration disagree, do not train it: {'; '.join(wrong)}")
        check_pipes(manifest)
        named = manifest.data.manifest
        path = await self._fetch(_hash(named), min(named.size, shards.MAX_MANIFEST_BYTES))
        listed = shards.parse_data_manifest(path.read_bytes())
        await self._public_blobs([*listed.blobs(), *manifest.genesis])
        while damaged := await trio.to_thread.run_sync(shards.verify_shards, path, self.startup.datadir.blobs):
            for name in damaged:
                self.store.path(bytes.fromhex(name)).unlink(missing_ok=True)
            await self._public_blobs(listed.blobs())
        private_data = await trio.to_thread.run_sync(_private_data, self.startup, manifest, listed)
        self._restart_feed(manifest)
        self._terms = Terms.of(manifest)
        directory = self.startup.datadir.state / self.startup.run.hex()[:16]
        directory.mkdir(parents=True, exist_ok=True)
        return RunContext(
            run=self.startup.run, manifest=manifest, manifest_hash=self.view.config.manifest,
            account=self.startup.account.address, account_key=self.startup.account.secret, signed=self._signed,
            client=self.client, store=self.store, exchange=self._exchange, gossip=self._gossip,
            pipe_service=self._pipes, metrics=self.metrics, directory=directory,
            blobs_directory=self.startup.datadir.blobs, private_data=private_data,
            checkpoint_activations=self.startup.settings.checkpoint_activations,
            contributions_topic=self._topics[0], seals_topic=self._topics[1], peer_of=self.peer_of,
            reject=self.reject, on_sealed=self._on_sealed, bytes_sent=lambda: self.host.bytes_sent,
        )  # fmt: skip

    def _restart_feed(self, manifest: Manifest) -> None:
        """From here on events count after the manifest's confirmations only."""
        if manifest.confirmations:
            self._feed = self.client.feed(self.startup.run, manifest.confirmations)
            self.view, self.nodes = RunView(self.startup.run), NodeTable()

    async def _public_blobs(self, blobs: Sequence[BlobRef]) -> None:
        missing = [blob for blob in blobs if not self.store.has(_hash(blob))]
        if missing:
            log.info("fetching public blobs", count=len(missing), bytes=sum(blob.size for blob in missing))
        limit = trio.CapacityLimiter(4)

        async def one(blob: BlobRef) -> None:
            async with limit:
                await self._fetch(_hash(blob), blob.size)

        async with trio.open_nursery() as nursery:
            for blob in missing:
                nursery.start_soon(one, blob)

    async def _public_blob(self, name: bytes, size: int) -> bytes:
        return (await self._fetch(name, size)).read_bytes()

    async def _fetch(self, name: bytes, size: int) -> Path:
        told = -math.inf
        while True:
            try:
                return await self._exchange.fetch(name, size, None, BLOB_SECONDS)
            except (BlobError, OSError) as error:
                if time.monotonic() > told + 10:
                    told = time.monotonic()
                    log.info("waiting for a public blob", blob=name.hex()[:12], error=str(error))
                await trio.sleep(0.3)

    # ---- peers ----

    def _refuse_pipe(self, peer_id: str, hello: wire.PipeHello) -> str | None:
        return "no slot yet" if self.session is None else self.session.pipes.refusal(peer_id, hello)

    async def _take_pipes(self) -> None:
        async for pipe in self._pipes.incoming:
            if self.session is None or not self.session.take_pipe(pipe):
                self._nursery.start_soon(pipe.aclose)

    async def _read_gossip(self) -> None:
        async for item in self._gossip.messages:
            if self.session is not None:
                self.session.on_gossip(item)

    def reject(self, reason: str, source: str) -> None:
        """Counts something refused, whoever sent it."""
        log.debug("refused", reason=reason, source=source)
        self.metrics.rejected(reason)

    # ---- what is counted ----

    def _on_sealed(self, sealed: Sealed, counted: bool) -> None:
        self.last_seal, self.counted = sealed, counted
        self.metrics.seals.inc()
        if counted:
            self.metrics.counted.inc()
        if self._sealed_at is not None:
            self.metrics.round_seconds.observe(max(0.0, sealed.at.time - self._sealed_at))
        self._sealed_at = sealed.at.time

    async def _measure(self) -> None:
        sent = received = 0
        while True:
            self.metrics.peers.set(len(self.host.agreed()))
            self.metrics.bytes_sent.inc(self.host.bytes_sent - sent)
            self.metrics.bytes_received.inc(self.host.bytes_received - received)
            sent, received = self.host.bytes_sent, self.host.bytes_received
            await trio.sleep(1)


def run_node(startup: Startup, client: LedgerClient) -> None:
    """Runs a node until it is stopped. Raises Failure."""
    trio.run(Node(startup, client).run)


def _private_data(startup: Startup, manifest: Manifest, public: shards.DataManifest) -> Path | None:
    """The folder of private data that the user named, checked. Raises Failure and DataError."""
    if not startup.settings.private_data:
        return None
    folder = Path(startup.settings.private_data).expanduser().resolve()
    if not manifest.data.private:
        raise Failure("this run allows no private data (data.private in its manifest): start without --private-data")
    if folder.is_relative_to(startup.datadir.blobs.resolve()):
        raise Failure(f"{folder} is served to everybody: move the private data elsewhere")
    shards.check_private(folder, public)
    log.info("training on private data", folder=str(folder))
    return folder


def _hash(blob: BlobRef) -> bytes:
    return bytes.fromhex(blob.sha256)
