"""The network process of a node, composed: peers, chain, HTTP, and a slot in the run, all in one task group."""

import gc
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

import trio
from eth_utils import to_canonical_address
from starlette.types import ASGIApp

from dlx.ground.blobs import BlobStore
from dlx.ground.machine import stop_signals
from dlx.ledger.client import LedgerClient
from dlx.ledger.sealer import Sealer
from dlx.ledger.view.run_view import RunView
from dlx.node import version
from dlx.node.audit.verdict_store import FILE, VerdictStore
from dlx.node.daemon.api.http import serve_http
from dlx.node.daemon.api.overview import Overview
from dlx.node.daemon.api.systemd import notify
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.challenges.draws import Draws
from dlx.node.daemon.challenges.evidence import Effort
from dlx.node.daemon.challenges.leaving import Leaving
from dlx.node.daemon.challenges.responder import ChallengeResponder
from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.context import Chain, Network, Observers, Operator, Run, RunContext, Storage
from dlx.node.daemon.data.public_data import DataMirror, PublicData, private_folder
from dlx.node.daemon.evaluation.evaluating import Evaluating
from dlx.node.daemon.inbound import Inbound
from dlx.node.daemon.mailbox.inbox import Inbox
from dlx.node.daemon.mailbox.outbox import Outbox
from dlx.node.daemon.mailbox.own import said_before, still_open
from dlx.node.daemon.membership.eligibility import notices
from dlx.node.daemon.membership.one_machine import OneMachine
from dlx.node.daemon.membership.reachability import Reachability
from dlx.node.daemon.membership.registration import Membership
from dlx.node.daemon.membership.rest import Rest
from dlx.node.daemon.membership.router import RouterPort
from dlx.node.daemon.messages import MAX_STAGES, contributions_topic, evaluations_topic, seals_topic, verdicts_topic
from dlx.node.daemon.metrics import Metrics, SealCounter, Traffic
from dlx.node.daemon.own_time import OwnTime
from dlx.node.daemon.slot.assignment import Assignment
from dlx.node.daemon.supervisor import ReportHealthy, Supervisor
from dlx.node.daemon.vouching.vouching import Vouching
from dlx.node.home import logs, remote
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.folder_lock import FolderLock
from dlx.node.home.join_line import invitation
from dlx.node.home.keys.identity import Account, NodeKey
from dlx.node.home.keys.site import Site
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.node.home.ledgers import ask_first_funds
from dlx.node.home.mailboxes import mailbox_of
from dlx.node.home.program import called
from dlx.node.home.settings import Settings
from dlx.node.round.challenges import turns
from dlx.node.round.challenges.draw import MOST_WINDOW
from dlx.node.round.rules.deals import Deals
from dlx.node.round.rules.plans import CATCH_UP_ROUNDS, Terms, seals_needed
from dlx.p2p import wire
from dlx.p2p.dialback import DialBack
from dlx.p2p.exchange import BlobExchange
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.relay.carrier import Carrier
from dlx.p2p.relay.punch import Punch
from dlx.p2p.relay.reservations import Reservations
from dlx.p2p.verdicts import VerdictExchange
from dlx.training.data.shards import DataError
from dlx.training.recipe.strict import ManifestError
from dlx.training.slot.rounds import Trained

MEET_SECONDS = 10.0
START_SECONDS = 600.0  # until it trains; afterwards only a session answers for it
log = logs.get(__name__)


@dataclass(frozen=True)
class Startup:
    """What `dlx-node start` was asked to do."""

    run: bytes
    stage: int | None
    settings: Settings
    datadir: DataDir
    lock: FolderLock
    node_key: NodeKey
    account: Account
    site: Site | None = None


def run_node(startup: Startup, client: LedgerClient) -> None:
    """Runs a node until it is stopped: SIGINT finishes the step and leaves, SIGTERM and SIGHUP keep the slot, a second
    signal exits now. Raises Failure where going on needs a person."""
    clock = OwnTime()
    trio.run(Node(startup, client).run, clock=clock, instruments=[clock])


class Node:
    """Makes each part once, and hands it what it needs. Nothing here waits for the chain but what needs it."""

    def __init__(self, startup: Startup, client: LedgerClient) -> None:
        settings, datadir, account = startup.settings, startup.datadir, startup.account.address
        self._startup, self._client = startup, client
        self._directory = datadir.state_of(startup.run)
        self._metrics = Metrics("0x" + startup.run.hex())
        self._supervisor = Supervisor(self._metrics.failed)
        self._clock = ChainClock()
        self._follower = Follower(client, startup.run, self._clock, lambda: self._assignment.awaits_chain)
        self._signer = SlashingProtection(datadir.signed, startup.account.secret, client.domain)
        self._store = BlobStore(datadir.blobs, settings.disk_quota or None, settings.disk_floor)
        self._host = self._make_host()
        self._metrics.count_bytes(self._traffic, self._host.protocols)
        self._inbox = Inbox(
            [remote.address(text, "--mailboxes") for text in settings.mailboxes], self._host.peer_id, self._peers,
            self._host.agreed, lambda data, where: self._inbound.hear(data, where), self._open_round,
            self._directory / "mailboxes",
        )  # fmt: skip
        self._exchange = BlobExchange(self._host, self._store, self._inbox)
        dial_back = DialBack(self._host)
        run = startup.run
        self._gossip = Gossip(
            self._host,
            (contributions_topic(run), verdicts_topic(run), evaluations_topic(run)),
            [seals_topic(run, stage) for stage in range(MAX_STAGES)],
        )
        self._metrics.count_gossip(self._gossip.traffic)
        self._membership = Membership(
            client,
            self._follower,
            self._host,
            startup.run,
            account,
            startup.node_key.secret,
            startup.site,
            partial(invitation, datadir.invitations, startup.run),
        )
        self._one_machine = OneMachine(account, self._host, self._follower, startup.lock)
        self._carrier, reservations = Carrier(self._host, settings.relay), Reservations(self._host)
        Punch(self._host, dial_back)
        self._router = RouterPort(self._host.peer_id, settings.router and not settings.announce, datadir.forwardings)
        self._said_before: list[bytes] | None = None
        self._outbox = self._make_outbox(self._directory / "mailbox")
        self._reachability = Reachability(
            self._host, dial_back, self._follower, self._carrier, reservations, self._router, settings.mailbox_read_at
        )
        self._rest = Rest(datadir.paused, settings.schedule, settings.when_idle, settings.resting)
        self._leaving = Leaving(self._follower, self._membership, self._last_trained)
        self._assignment = Assignment(
            self._follower, self._membership, self._supervisor, startup.stage, startup.settings.placement, self._rest,
            self._leaving.settled,
        )  # fmt: skip
        self._verifier: Verifier | None = None
        self._vouching: Vouching | None = None
        self._evaluating: Evaluating | None = None
        self._inbound = Inbound(
            self._host, self._gossip, lambda: self._assignment.session,
            lambda: self._vouching.sessions.values() if self._vouching else (), lambda: self._verifier,
            lambda: self._evaluating,
        )  # fmt: skip
        self._verdicts = VerdictStore(self._directory / FILE, startup.run, client.domain)
        self._verdict_exchange = VerdictExchange(self._host, self._verdicts.listed)
        self._effort = Effort(settings.audit_share)
        self._seal_counter = SealCounter(self._metrics)
        self._overview = Overview(
            run=startup.run, account=account, rpc_url=settings.rpc_url, host=self._host, follower=self._follower,
            membership=self._membership, assignment=self._assignment, seal_counter=self._seal_counter,
            supervisor=self._supervisor, clock=self._clock, metrics=self._metrics, traffic=self._traffic,
            rest=self._rest, reachability=self._reachability, carrier=self._carrier, inbox=self._inbox,
            outbox=self._outbox,
        )  # fmt: skip

    async def run(self) -> None:
        """Until a stop signal, or a Failure."""
        settings, datadir, keep = self._startup.settings, self._startup.datadir, self._supervisor.keep
        async with self._host.run(), trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._await_signals)
            url = await nursery.start(
                partial(
                    serve_http, settings.http_host, settings.http_port, self._overview.status, self._overview.peers,
                    self._overview.rounds, self._metrics.registry, datadir.http_address, self._page,
                )
            )  # fmt: skip
            notify("READY=1")
            log.info("node started", account=self._startup.account.address, peer=self._host.peer_id, http=url)
            for address in self._host.addresses:
                log.info("listening", address=address)
            nursery.start_soon(keep, "holding the folder", self._one_machine.hold_folder)
            nursery.start_soon(keep, "following the chain", self._follower.run)
            nursery.start_soon(keep, "hearing peers", self._inbound.run)
            nursery.start_soon(keep, "meeting members", self._meet_members)
            nursery.start_soon(keep, "minding the account", self._one_machine.mind_account)
            nursery.start_soon(keep, "reading mailboxes", self._inbox.run)
            if self._outbox is not None:
                nursery.start_soon(keep, "publishing to the mailbox", self._outbox.run)
            nursery.start_soon(keep, "learning whether it can be reached", self._reachability.run)
            nursery.start_soon(keep, "asking the router for a port", self._router.run)
            nursery.start_soon(keep, "measuring", self._measure)
            nursery.start_soon(keep, "minding the slot", self._mind)
            nursery.start_soon(keep, "minding the hours", self._rest.run)
            nursery.start_soon(keep, "training", self._assignment.run)
            await keep("registering the node", self._register)
            nursery.start_soon(keep, "registering other addresses", self._follow_addresses)
            nursery.start_soon(keep, "answering while it starts", self._answer_early)
            await keep("preparing the run", self._prepare)
            self._answer_for_work(nursery)
            gc.collect()
            gc.freeze()  # what is loaded by now stays: looking for garbage becomes cheap, and so is done often,
            gc.collect()  # since Python waits for a quarter more than it found alive the last time
            await trio.sleep_forever()

    # ---- life ----

    async def _await_signals(self) -> None:
        with trio.open_signal_receiver(*stop_signals()) as signals:
            number = await anext(signals)
            notify("STOPPING=1")
            for_good = number == signal.SIGINT and not self._assignment.finished
            doing = "finishing the step"
            if for_good:
                doing += ", then returning the slot if there is one"
                doing += f", when what was drawn of our work is checked ({self._leaving.seconds:.0f} s at most)"
            why = "the terminal closed: " if number == signal.SIGHUP else ""
            log.info(f"{why}stopping: {doing}; a second signal exits at once, and keeps the slot")
            self._overview.stopping = True
            self._rest.close()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._leave, for_good)
                async for again in signals:
                    if again != signal.SIGHUP:  # a terminal that closes says so more than once
                        log.info("a second signal: exits at once, keeps the slot")
                        os._exit(1)  # the training process ends with our end of its socket

    async def _leave(self, for_good: bool) -> None:
        """Give up the round at its step. A person's Ctrl-C also returns the slot, so that nobody waits for us; a
        SIGTERM keeps it, since a service that restarts goes on where it was, and so does a terminal that closes."""
        await self._assignment.close()
        if for_good:
            await self._leaving.give_back()
        self._scope.cancel()

    async def _register(self, report_healthy: ReportHealthy) -> None:
        seen = await self._follower.first()
        if not seen.view.created:
            raise Failure(f"the ledger at {self._client.ledger} knows no run 0x{self._startup.run.hex()}")
        stages, stage = seen.view.config.stages, self._startup.stage
        if stage is not None and stage >= stages:
            raise UsageFailure(f"--stage {stage}: the run has stages 0 to {stages - 1}")
        settings, account = self._startup.settings, self._startup.account.address
        if account not in seen.nodes.nodes:
            await self._assignment.able.wait()  # who could never train has no business on the ledger
        elif self._one_machine.registered == self._host.peer_id:
            await self._one_machine.check_peer(seen.nodes.nodes[account].multiaddrs)
        node = seen.nodes.nodes.get(account)
        self._said_before = await said_before(
            None if self._outbox is None else self._outbox.to,
            None if node is None else mailbox_of(node.multiaddrs),
            self._directory / "mailbox",
        )
        await trio.to_thread.run_sync(ask_first_funds, settings, account, abandon_on_cancel=True)
        await self._membership.register(await self._reachability.settled())

    async def _answer_early(self, report_healthy: ReportHealthy) -> None:
        """Who starts answers whether it is there as soon as it has read the chain: until it trains the slot could be
        lost. A machine that is slow to start has so much longer, and one that never trains has to be counted."""
        began = trio.current_time()
        async for seen in self._follower.seen.values():
            session = self._assignment.session
            if trio.current_time() > began + START_SECONDS:
                return
            if seen is not None and (session is None or session.machine is None):
                await self._membership.answer(seen)
            report_healthy()  # an answer that was refused came too late, and is not wanted any more

    async def _follow_addresses(self, report_healthy: ReportHealthy) -> None:
        await self._membership.follow_addresses(self._reachability.addresses, report_healthy)

    async def _prepare(self, report_healthy: ReportHealthy) -> None:
        """Have the run's manifest and the list of its data; then the slot opens."""
        startup, public = self._startup, PublicData(self._store, self._exchange)
        view = (await self._follower.first()).view
        with trio.move_on_after(MEET_SECONDS):  # nobody has anything before somebody is there
            while not self._store.has(view.config.manifest) and not self._host.agreed():
                await trio.sleep(0.1)
        try:
            manifest = await public.manifest(view)
            listed = await public.begin(manifest)
            private = await trio.to_thread.run_sync(
                private_folder, startup.settings.private_data, self._store.folder, manifest, listed
            )
        except (ManifestError, DataError) as error:
            raise Failure(str(error)) from error  # it stays so
        window = min(manifest.audit.window, MOST_WINDOW)
        self._follower.confirm(manifest.confirmations, max(seals_needed(Terms.of(manifest)), window + CATCH_UP_ROUNDS))
        self._client.confirm(manifest.confirmations)
        self._directory.mkdir(parents=True, exist_ok=True)
        settings, inbound = startup.settings, self._inbound
        context = RunContext(
            Run(startup.run, manifest, view.config.manifest, listed, Deals.of(manifest)),
            self._signer,
            Network(
                self._exchange,
                self._gossip,
                inbound.messages,
                inbound.pipes,
                self._peer_of,
                self._reject,
                self._said_before or (),
            ),
            Chain(self._client, Sealer(self._client, settings.campaigns), self._clock.now),
            Storage(self._store, self._directory),
            Operator(
                settings.placement,
                private,
                settings.data_cache,
                rests=lambda: self._rest.state.value is not None,
                seals_empty=lambda: settings.seal_empty_rounds and bool(self._host.agreed() or self._inbox.read),
            ),
            Observers(self._metrics, self._traffic, self._on_trained, self._seal_counter.add),
        )
        self._assignment.open(context)
        self._context = context

    def _answer_for_work(self, nursery: trio.Nursery) -> None:
        """Serve what is drawn of our own work, check others', and vouch for stages as a founder."""
        keep, context = self._supervisor.keep, self._context
        self._overview.before = context.run.manifest.loss_before
        draws = Draws(self._follower, context.run.manifest, self._client.block_hash, self._clock.now)
        responder = ChallengeResponder(context, draws.rounds, self._view)
        verifier = Verifier(
            context, draws, self._verdicts, self._verdict_exchange, self._effort, self._view, self._host.agreed
        )
        self._overview.responder, self._overview.verifier, self._verifier = responder, verifier, verifier
        self._leaving.open(verifier, context.run.manifest.timing.round_timeout)
        self._overview.vouching = self._vouching = vouching = Vouching(self._follower, context)
        if unpaid := turns.unpaid(context.run.manifest.audit.share, self._effort.share):
            log.warning(unpaid)
        nursery.start_soon(keep, "vouching", vouching.run)
        nursery.start_soon(keep, "drawing", draws.run)
        nursery.start_soon(keep, "keeping drawn work", responder.run)
        nursery.start_soon(keep, "checking others' work", verifier.run)
        if context.run.manifest.evaluation.every:
            self._evaluating = self._overview.evaluating = Evaluating(context, draws, self._view)
            nursery.start_soon(keep, "evaluating versions", self._evaluating.run)
        if self._startup.settings.mirror_data:
            nursery.start_soon(keep, "mirroring the data", DataMirror(context).run)

    def _view(self) -> RunView | None:
        seen = self._follower.seen.value
        return None if seen is None else seen.view

    def _open_round(self) -> int | None:
        view = self._view()
        return view.open_round if view is not None and view.created else None

    def _last_trained(self) -> int | None:
        session = self._assignment.session
        return session.last_trained if session else None

    def _on_trained(self, trained: Trained) -> None:
        self._effort.trained += trained.training_ms / 1000

    # ---- mailboxes ----

    def _make_outbox(self, folder: Path) -> Outbox | None:
        settings, store = self._startup.settings, self._store
        if not settings.mailbox:
            return None
        return Outbox(
            remote.writable(settings.mailbox, "--mailbox"), self._own_blobs,
            store.hashes if settings.mailbox_mirror else None, self._to_say, store.path, folder,
        )  # fmt: skip

    def _to_say(self) -> list[bytes] | None:
        """For our own mailbox; None before what it showed at the start is known."""
        if self._said_before is None:
            return None
        account = self._startup.account.address
        stays = still_open(self._said_before, account, self._open_round() or 0)
        said = self._inbound.said(None if self._startup.settings.mailbox_mirror else account)
        return [*dict.fromkeys([*stays, *said])]

    def _own_blobs(self) -> set[bytes]:
        """What others may need of our own work now. Blocks on the disk."""
        session, responder = self._assignment.session, self._overview.responder
        return {*(session.own_blobs() if session else ()), *(responder.shown() if responder else ())}

    # ---- peers ----

    def _peers(self) -> Mapping[str, Sequence[str]]:
        seen = self._follower.seen.value
        return {} if seen is None else seen.peers()

    def _make_host(self) -> Host:
        settings, client = self._startup.settings, self._client
        ledger = to_canonical_address(client.ledger)
        hello = wire.Hello(
            wire.VERSIONS, wire.FEATURES, settings.chain_id, ledger, self._startup.run, version()[:32], os.urandom(8)
        )  # fmt: skip
        return Host(
            self._startup.node_key.secret, settings.listen, settings.announce, hello, settings.bootstrap,
            self._reject,
            self._directory / "peers.json",
            settings.up_limit, settings.down_limit,
        )  # fmt: skip

    async def _meet_members(self, report_healthy: ReportHealthy) -> None:
        """Stay connected to those whom the ledger names, and keep places for them."""
        async for seen in self._follower.seen.values():
            if seen is not None:
                self._host.meet(seen.peers())

    def _peer_of(self, account: str) -> str | None:
        seen = self._follower.seen.value
        return None if seen is None else seen.peer_of(account)

    def _page(self) -> ASGIApp:
        """The ledger's runs, for who looks at this node's endpoint. An audit is a process of its own, which ends with
        this one; no version is pulled and packed here, because peers wait for what this process does."""
        from dlx.node.audit.sources.places import Places
        from dlx.node.home.config import public_urls
        from dlx.node.web.app import Page
        from dlx.node.web.audits.runner import Auditing, where
        from dlx.node.web.guard import Guard
        from dlx.node.web.reading.reader import Reader

        settings, folder = self._startup.settings, self._startup.datadir
        reach, urls = f"--datadir {quote(str(folder.root))}", public_urls(settings.rpc_url)
        reader = Reader(self._client, folder.blob_folders, reach, settings.campaigns, urls)
        places = Places(nodes=tuple(folder.blob_folders), bootstrap=settings.bootstrap, mailboxes=settings.mailboxes)
        auditing = Auditing(where(settings, folder, places, called()._replace(folder=folder.root)))
        return Page(reader, Guard(None), auditing, reachable=lambda: str(self._reachability)).app()

    def _traffic(self) -> Traffic:
        return self._host.traffic() | {"chain": self._client.rpc.traffic}

    def _reject(self, reason: str, source: str) -> None:
        """Counts something refused, whoever sent it."""
        log.debug("refused", reason=reason, source=source)
        self._metrics.rejected(reason)

    async def _mind(self, report_healthy: ReportHealthy) -> None:
        """Tell a person once what may cost this node its slot, or have it change places."""
        account, known = self._startup.account.address, set[str]()
        async for seen in self._follower.seen.values():
            if seen is None or not seen.view.created:
                continue
            found = {*notices(seen.view, account, self._clock.now()), *self._overview.unreached_neighbours()}
            for notice in sorted(found - known):
                log.warning(notice)
            known = found

    async def _measure(self, report_healthy: ReportHealthy) -> None:
        while True:
            seen = self._follower.seen.value
            if seen is not None:
                self._metrics.ledger_block.set(seen.head.block)
            self._metrics.peers.set(len(self._host.agreed()))
            self._metrics.reachable.set(self._reachability.share)
            await trio.sleep(1)
