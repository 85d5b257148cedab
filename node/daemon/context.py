"""What a session, and who checks others' work, gets from the node around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlx.ground.blobs import BlobStore
from dlx.ledger.client import LedgerClient
from dlx.ledger.events import Sealed
from dlx.ledger.sealer import Sealer
from dlx.node.daemon.metrics import Metrics, Traffic
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.node.round.rules.deals import Deals
from dlx.p2p.exchange import BlobExchange
from dlx.p2p.gossip import Gossip
from dlx.p2p.message_sync import MessageSync
from dlx.p2p.pipe import PipeService
from dlx.training.data.shards import DataManifest
from dlx.training.models.placement import Placement
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.rounds import Trained


@dataclass(frozen=True)
class Run:
    """What is trained."""

    id: bytes
    manifest: Manifest
    manifest_hash: bytes
    data: DataManifest
    deals: Deals


@dataclass(frozen=True)
class Network:
    """How other nodes are reached."""

    exchange: BlobExchange
    gossip: Gossip
    messages: MessageSync
    pipes: PipeService
    peer_of: Callable[[str], str | None]  # account -> libp2p peer id, as registered
    reject: Callable[[str, str], None]  # counts something refused: (reason, source)
    said_before: Sequence[bytes]  # the messages that our own mailbox had when the node started


@dataclass(frozen=True)
class Chain:
    client: LedgerClient
    sealer: Sealer
    now: Callable[[], float]  # the chain's time, in Unix seconds


@dataclass(frozen=True)
class Storage:
    blobs: BlobStore
    directory: Path  # of this run's state


@dataclass(frozen=True)
class Operator:
    """What the node's operator chose."""

    placement: Placement  # where and how to train
    private_data: Path | None  # a prepared folder to train on instead of the run's data
    data_cache: int  # bytes of shards that stay when no coming round needs them
    rests: Callable[[], bool]  # whether the operator wants the machine now: do the least that counts
    seals_empty: Callable[[], bool]  # whether it wants a founder to seal rounds that nobody seals, and peers are here


@dataclass(frozen=True)
class Observers:
    """Who counts what happens."""

    metrics: Metrics
    traffic: Callable[[], Traffic]  # since the start
    on_trained: Callable[[Trained], None]
    on_sealed: Callable[[Sealed, bool], None]  # a seal of our stage, and whether it counts our contribution


@dataclass(frozen=True)
class RunContext:
    run: Run
    signer: SlashingProtection
    network: Network
    chain: Chain
    storage: Storage
    operator: Operator
    observers: Observers

    @property
    def account(self) -> str:
        """The node's own."""
        return self.signer.account
