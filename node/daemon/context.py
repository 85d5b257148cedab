"""What a session gets from the node around it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dlx.ground.blobs import BlobStore
from dlx.ledger.client import LedgerClient
from dlx.ledger.events import Sealed
from dlx.node.daemon.metrics import Metrics, Traffic
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.node.round.rules.deals import Deals
from dlx.p2p.exchange import BlobExchange
from dlx.p2p.gossip import Gossip
from dlx.p2p.message_sync import Records
from dlx.p2p.pipe import PipeService
from dlx.training.data.shards import DataManifest
from dlx.training.models.placement import Placement
from dlx.training.recipe.manifest import Manifest
from dlx.training.slot.records import Trained


@dataclass(frozen=True)
class RunContext:
    run: bytes
    manifest: Manifest
    manifest_hash: bytes
    data: DataManifest
    deals: Deals
    account: str
    signer: SlashingProtection
    client: LedgerClient
    store: BlobStore
    exchange: BlobExchange
    gossip: Gossip
    pipe_service: PipeService
    metrics: Metrics
    directory: Path  # of this run's state
    private_data: Path | None  # a prepared folder to train on instead of the run's data
    data_cache: int  # bytes of shards that stay when no coming round needs them
    placement: Placement  # where and how to train, as the operator chose
    records: Records
    peer_of: Callable[[str], str | None]  # account -> libp2p peer id, as registered
    reject: Callable[[str, str], None]  # counts something refused: (reason, source)
    on_trained: Callable[[Trained], None]
    on_sealed: Callable[[Sealed, bool], None]  # a seal of our stage, and whether it counts our contribution
    traffic: Callable[[], Traffic]  # since the start
    now: Callable[[], float]  # the chain's time, in Unix seconds
    rests: Callable[[], bool] = lambda: False  # whether the operator wants the machine: do the least that counts
