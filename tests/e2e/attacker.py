"""A hostile member: our own p2p parts under keys of its choice, used against the rules that honest nodes keep. It holds
a slot of a replica that nobody completes, since gossip of others is not even looked at."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import requests
import trio
from coincurve import PrivateKey
from eth_utils import to_canonical_address
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2
from prometheus_client.parser import text_string_to_metric_families

from dlx.ledger.abi import checksum
from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import fund
from dlx.ledger.keys import account_of, recover
from dlx.ledger.typed import Contribution, Domain, Seal, SignatureError, SignedContribution, TypedError
from dlx.node.daemon.messages import contributions_topic, seals_topic
from dlx.node.home.keys import identity
from dlx.node.home.keys.identity import Account
from dlx.p2p import wire
from dlx.p2p.exchange import BlobExchange
from dlx.p2p.gossip import Gossip
from dlx.p2p.host import Host
from dlx.p2p.pipe import PipeService
from dlx.p2p.streams import StreamBroken, write_all
from tests.e2e.devnets import Watched
from tests.liars import Unchecked
from tests.patience import PATIENCE

DELAY = 1  # of the runs in devnets.py
ATTEMPTS = 40
AGAIN = 3.0  # seconds until a message is repeated: its round may have been sealed under way


class Fault(Enum):
    """One lie in an otherwise true contribution; the value is the reason that honest nodes count."""

    FORGED_SIGNATURE = "bad_signature"
    STRANGER = "not_a_member"
    FOREIGN_SLOT = "wrong_slot"
    MORE_STEPS = "wrong_steps"
    OTHER_BASE = "wrong_base"
    HUGE_PAYLOAD = "payload_size"
    OTHER_RUN = "wrong_run"
    AFTER_THE_END = "wrong_round"


@dataclass(frozen=True)
class Overheard:
    """An honest proposal for an open round."""

    message: wire.ProposalMessage
    proposer: str
    seal: Seal
    votes: dict[str, bytes]  # account -> signature


class Attacker:
    """`async with attacker.connected()` inside a trio program. It checks nothing that it sends."""

    def __init__(self, watched: Watched, directory: Path) -> None:
        self.watched, self.domain = watched, domain_of(watched)
        self.run = bytes.fromhex(watched.devnet.shape.run[2:])
        statuses = watched.everybody()
        self.victims = {name: status.peer_id for name, status in statuses.items()}
        self._first = {status.peer_id for status in statuses.values() if status.stage == 0}
        settings, self._node_key = watched.devnet.settings, PrivateKey().secret
        account = PrivateKey().secret
        fund(settings.rpc_url, account_of(account))
        self._client = LedgerClient(settings.rpc_url, self.domain.ledger, account, chain_id=settings.chain_id)
        self._members = {status.account for status in statuses.values()}
        self.contributions, self.seals = contributions_topic(self.run), seals_topic(self.run, 0)
        self.host = Host(
            self._node_key,
            ["/ip4/127.0.0.1/tcp/0"],
            [],
            wire.Hello(
                wire.VERSIONS,
                wire.FEATURES,
                self.domain.chain_id,
                to_canonical_address(self.domain.ledger),
                self.run,
                "6.6.6",
                b"attacker",
            ),
            [address for status in statuses.values() for address in status.addresses],
        )
        self.host.members = frozenset({self.host.peer_id, *self.victims.values()})
        self.gossip = Gossip(self.host, (self.contributions, self.seals))
        self.pipes = PipeService(self.host, lambda peer, hello: "never")
        self._store = Unchecked(directory)
        BlobExchange(self.host, self._store)
        self._proposals: dict[bytes, wire.ProposalMessage] = {}  # by the seal's digest
        self._votes: dict[bytes, dict[str, bytes]] = defaultdict(dict)  # digest -> account -> signature

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Agreed with every victim, each of which it hears; seals are those of stage 0."""
        everybody = set(self.victims.values())
        await trio.to_thread.run_sync(self._client.register, self._node_key, ())
        await trio.to_thread.run_sync(self._client.join_run, self.run)
        try:
            async with self.host.run(), trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                with trio.fail_after(PATIENCE):
                    while not (
                        everybody <= set(self.host.agreed())
                        and everybody <= set(self.gossip.neighbours(self.contributions))
                        and self._first <= set(self.gossip.neighbours(self.seals))
                    ):
                        await trio.sleep(0.05)
                yield
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._client.leave_run, self.run)

    def serve_as(self, name: bytes, data: bytes) -> None:
        """Offer `data` to whoever asks for the blob `name`, true or not."""
        self._store.path(name).write_bytes(data)

    async def say(self, topic: str, *messages: bytes) -> None:
        """Any bytes to every victim, correctly signed by our libp2p key."""
        rpc = rpc_pb2.RPC(publish=[self._signed(topic, data) for data in messages]).SerializeToString()
        for peer in self.victims.values():
            if peer not in self.host.agreed():
                continue  # it has thrown us out
            stream = await self.host.open_stream(peer, PROTOCOL_ID_V11, 10)
            await write_all(stream, _varint(len(rpc)) + rpc)

    async def contribute(self, signed: SignedContribution) -> None:
        await self.say(self.contributions, wire.encode(wire.ContributionMessage(signed.encode())))

    async def flood(self, victim: str, size: int) -> None:
        """One gossip message of `size` bytes, as far as the victim takes it. Raises StreamBroken when it does not."""
        stream = await self.host.open_stream(self.victims[victim], PROTOCOL_ID_V11, 10)
        await write_all(stream, _varint(size))
        for _ in range(size >> 20):
            await write_all(stream, bytes(1 << 20))

    async def overhear(self, stage: int, votes: int) -> Overheard:
        """A proposal of the stage that is made from now on, once that many members have signed it."""
        known = set(self._proposals)
        with trio.fail_after(PATIENCE):
            while True:
                for digest, message in self._proposals.items():
                    if digest not in known and message.stage == stage and len(self._votes[digest]) >= votes:
                        proposer = recover(digest, message.signature)
                        votes_so_far = dict(self._votes[digest])
                        return Overheard(message, proposer, Seal.decode(message.seal), votes_so_far)
                await trio.sleep(0.01)

    async def until_refused(
        self, by: Iterable[str], reasons: Sequence[str], attack: Callable[[], Awaitable[None]]
    ) -> None:
        """Attacks, repeatedly if need be, until all of `by` have counted one more refusal for each reason."""
        before = {name: refusals(self.watched, name) for name in by}

        def missing() -> list[tuple[str, str]]:
            now = {name: refusals(self.watched, name) for name in before}
            return [(n, r) for n in before for r in reasons if now[n].get(r, 0) <= before[n].get(r, 0)]

        for _ in range(ATTEMPTS):
            try:
                await attack()
            except StreamBroken:
                pass  # thrown out in the middle of it
            with trio.move_on_after(AGAIN):
                while await trio.to_thread.run_sync(missing):
                    await trio.sleep(0.1)
                return
        raise AssertionError(f"not refused and counted in {ATTEMPTS} attempts: {missing()}")

    async def _listen(self) -> None:
        async for item in self.gossip.messages:
            with contextlib.suppress(TypedError, SignatureError):  # other attackers' words still go round
                self._take(item.message)

    def _take(self, message: wire.GossipMessage) -> None:
        match message:
            case wire.ProposalMessage(seal=seal, signature=signature):
                digest = Seal.decode(seal).digest(self.domain)
                self._proposals[digest] = message
                self._vote(digest, signature)
            case wire.AttestationMessage(digest=digest, signature=signature):
                self._vote(digest, signature)

    def _vote(self, digest: bytes, signature: bytes) -> None:
        account = recover(digest, signature)
        if account in self._members:
            self._votes[digest][account] = signature

    def _signed(self, topic: str, data: bytes) -> rpc_pb2.Message:
        message = rpc_pb2.Message(
            data=data, topicIDs=[topic], from_id=self.host.libp2p.get_id().to_bytes(), seqno=os.urandom(8)
        )
        message.signature = self.host.libp2p.get_private_key().sign(b"libp2p-pubsub:" + message.SerializeToString())
        message.key = self.host.libp2p.get_public_key().serialize()
        return message


def lie(fault: Fault, watched: Watched, member: Account, domain: Domain) -> SignedContribution:
    """What the member could soon state truly, but for one thing."""
    true, stranger = claim(watched, member.address), PrivateKey().secret
    lies: dict[Fault, dict[str, Any]] = {
        Fault.STRANGER: {"account": account_of(stranger)},
        Fault.FOREIGN_SLOT: {"replica": 1 - true.replica},
        Fault.MORE_STEPS: {"inner_steps": 2 * true.inner_steps},
        Fault.OTHER_BASE: {"base_weights": os.urandom(32)},
        Fault.HUGE_PAYLOAD: {"payload_size": 1 << 40},
        Fault.OTHER_RUN: {"run": os.urandom(32)},
        Fault.AFTER_THE_END: {"round": watched.view.config.rounds},
    }
    by_stranger = fault in (Fault.FORGED_SIGNATURE, Fault.STRANGER)
    return replace(true, **lies.get(fault, {})).sign(domain, stranger if by_stranger else member.secret)


def claim(watched: Watched, account: str, **other: Any) -> Contribution:
    """A statement about the round after the open one that nothing on the ledger contradicts."""
    view = watched.view
    round, slot = view.last_round_counted(account), view.slot_of(account)
    assert round is not None and slot is not None
    sealed = view.sealed[slot[1], round]
    newest = watched.stated(sealed.records[sealed.accounts.index(account)])
    ahead = view.next_round(slot[1]) + DELAY
    fields = {"round": ahead, "base_weights": view.weights(slot[1], ahead - DELAY), "payload": os.urandom(32), **other}
    return replace(newest, **fields)


def domain_of(watched: Watched) -> Domain:
    settings = watched.devnet.settings
    return Domain(settings.chain_id, checksum(bytes.fromhex(settings.ledger[2:])))


def stolen(watched: Watched, name: str) -> Account:
    """A node's account: a devnet's keystores open with a password that everybody knows."""
    return identity.load_account(watched.devnet.folder(name), watched.devnet.settings)


def refusals(watched: Watched, name: str) -> dict[str, float]:
    """A node's dlx_rejected_total by reason, as its /metrics say."""
    text = _get(watched, name, "/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {s.labels["reason"]: s.value for s in samples if s.name == "dlx_rejected_total"}


def agreed_peers(watched: Watched, name: str) -> set[str]:
    """The peer ids that a node counts as its peers, as its /v1/peers say."""
    return {peer["peer_id"] for peer in _get(watched, name, "/v1/peers").json()["peers"] if peer["agreed"]}


def _get(watched: Watched, name: str, path: str) -> requests.Response:
    url = json.loads(watched.devnet.folder(name).http_address.read_text())["url"]
    return requests.get(url + path, timeout=PATIENCE)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
