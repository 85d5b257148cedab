"""What a running node says about itself: the bodies of /v1/status, /v1/peers and /v1/rounds.

Rounds are the ledger's, from 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class LedgerStatus(msgspec.Struct, frozen=True, kw_only=True):
    rpc_url: str  # as config.redacted_urls gives them: no credentials
    reachable: bool
    block: int | None  # newest block seen
    age_seconds: float | None  # since that block was made
    clock_skew_seconds: float | None  # this machine's clock ahead of the chain's; nothing depends on it


class SealStatus(msgspec.Struct, frozen=True, kw_only=True):
    round: int
    counted: int  # contributions
    replicas: int  # complete now, so many contributions there could be
    inner_steps: int  # of the round
    steps: dict[int, int]  # counted replica -> those that it did
    transaction: str  # 0x hex
    weights: str  # hash of the new version, hex


class Bytes(msgspec.Struct, frozen=True, kw_only=True):
    sent: int
    received: int


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Since the start. Payloads are what the protocol saves; pipes carry activations inside a replica."""

    payload: Bytes
    pipe: Bytes
    blobs: Bytes  # all others: manifest, data, versions
    relayed: Bytes  # of connections that this node carries between others
    gossip: Bytes  # what members say of rounds and work
    signalling: Bytes  # discovery, pings, handshakes, headers
    chain: Bytes  # questions to the chain node and their answers

    @classmethod
    def of(cls, counted: Mapping[str, tuple[int, int]]) -> Traffic:
        """By kind: (sent, received)."""
        return cls(**{kind: Bytes(sent=sent, received=received) for kind, (sent, received) in counted.items()})


class Relaying(msgspec.Struct, frozen=True, kw_only=True):
    """What the node does for members that cannot be reached."""

    members: int  # that others can call through it
    connections: int  # that it carries now


class Mailboxes(msgspec.Struct, frozen=True, kw_only=True):
    """Places through which members hear of each other that are not connected."""

    to: str | None  # where this node publishes
    published: int  # blobs that are there
    read: int  # others' that answered in the last minute, and had news of members then, in this round or in the last


class CheckStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Replays of drawn work, of the manifest's window: by what was given and heard."""

    drawn: int  # segments of contributions
    checked: int
    honest: int
    false: int
    withheld: int
    served: int  # own contributions of which segments were drawn
    undecided_bytes: int  # of own rounds whose draw is not known yet
    seconds: float  # that checking others took since the start
    allowed_seconds: float  # that it may take by now, but for alarms
    waits: str | None = None  # for what drawn work that nobody replayed does


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Am I connected, do I hold a slot, was I counted in the last round, what am I waiting for."""

    version: str
    account: str
    peer_id: str
    addresses: tuple[str, ...]  # that others are told
    listens: tuple[str, ...]  # where it listens, on the addresses that this machine has now
    reachable: str  # whether peers can connect to it, and what mends it where not
    relays: Relaying
    mailboxes: Mailboxes
    unreached: tuple[str, ...]  # neighbours in its replica, and members of its stage, that are not connected: why
    run: str  # 0x hex
    stage: int | None  # None: no slot held
    replica: int | None
    site: str | None  # address of the site whose machines hold all slots of this node's replica
    round: int | None
    step: int  # inner steps done of this round's `steps`
    steps: int
    phase: str
    waiting_for: str | None
    failing: tuple[str, ...]  # parts of the node, and actions, that fail now: why, and when they are tried again
    trained_on: str | None  # device and threads, as the training process opened the slot
    peers: int
    ledger: LedgerStatus
    last_counted_round: int | None
    counted_in_last_round: bool | None  # None: no round was sealed while this node held a slot
    weight: str | None  # how much this node's signature weighs in its stage; None: no slot held
    lacks_founder: str | None  # whose signature alone the open round's seal lacks, and since when
    vouches: dict[int, str | None]  # stages whose seals it signs as a founder without a slot: what each waits for
    notices: tuple[str, ...]  # what may cost this node its slot, or has, and whom it may dismiss as a founder
    loss: float | None  # of training, nats per token, of the newest inner step
    held_out: float | None  # nats per token (bytes: per byte), of `held_out_version` by the ledger; None: not known
    held_out_version: int | None
    held_out_before: float | None  # that of the model that the run starts from, by its creator; None: not known
    tokens_per_second: float | None
    traffic: Traffic
    last_seal: SealStatus | None
    checks: CheckStatus | None  # None: the run's public data is not here yet
    not_ready: tuple[str, ...]  # empty when ready
    rejected: dict[str, int]  # reason -> messages refused
    started_at: float  # Unix time
    resting: str | None = None  # why the node does the least that keeps its slot, or has none; None: it works


class PeerView(msgspec.Struct, frozen=True, kw_only=True):
    peer_id: str
    addresses: tuple[str, ...]
    connected_seconds: float
    rtt_ms: float | None
    agreed: bool  # said hello with the same chain, ledger and run
    relay: str | None = None  # peer id of who carries the connection


class RoundView(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed round as the node's stage sealed it; of a node without a slot, the last stage."""

    round: int
    loss: float | None  # of training, nats per token, of the last stage's seal; None: empty, or not sealed yet
    held_out: float | None = None  # of the version that it made, by the ledger; None: not evaluated, or not known here
    counted: int  # contributions
    ours: bool  # whether this node's is one of them
    steps: int  # inner steps that the round's plan asks for
    time: int  # of the seal's block, Unix seconds


class Peers(msgspec.Struct, frozen=True):
    """Those whom the node is connected to."""

    peers: list[PeerView]
    reachable: str  # as in the status
    unreached: tuple[str, ...]


class Rounds(msgspec.Struct, frozen=True):
    """The newest sealed rounds that the node remembers, oldest first."""

    rounds: list[RoundView]
