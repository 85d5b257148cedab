"""What the round machine is told (events) and what it asks for (actions): plain data, no I/O."""

from dataclasses import dataclass

from dlx.ledger.typed import Plan, Seal, SignedContribution
from dlx.ledger.view import RunView
from dlx.training.outer.policy import Measured

# ---- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class LedgerSeen:
    """A snapshot of the run at a confirmed block."""

    view: RunView
    block: int


@dataclass(frozen=True, slots=True)
class ContributionSeen:
    """A contribution from gossip, its signer recovered; `peer` brought it."""

    signed: SignedContribution
    signer: str
    peer: str


@dataclass(frozen=True, slots=True)
class PayloadReady:
    """A payload of `size` bytes lies in the blob store and decodes to finite tensors under the round's plan."""

    round: int
    payload: bytes
    size: int


@dataclass(frozen=True, slots=True)
class PayloadRefused:
    """A payload's bytes do not decode under the round's plan; its contribution can never count."""

    round: int
    payload: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class PayloadMissing:
    """Nobody gave the payload before the deadline; it is asked for again later."""

    round: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ProposalSeen:
    """A proposer's seal, signed by it, with the struct hashes and the signatures of the contributions it lists."""

    seal: Seal
    listed: tuple[bytes, ...]
    record_signatures: tuple[bytes, ...]
    attempt: int
    signature: bytes
    signer: str


@dataclass(frozen=True, slots=True)
class AttestationSeen:
    round: int
    stage: int
    digest: bytes
    signature: bytes
    signer: str


@dataclass(frozen=True, slots=True)
class ReportSeen:
    """What a member holds of a round, and what it lacks of a proposal."""

    round: int
    stage: int
    holding: tuple[bytes, ...]
    missing: tuple[bytes, ...]
    signer: str


@dataclass(frozen=True, slots=True)
class OuterComputed:
    """Our own outer step over `listed` of `round` with these multipliers. Energy: rank -> the part that it keeps of the
    mean, for the ranks asked for (as far as the update has matrices)."""

    round: int
    listed: tuple[bytes, ...]
    multipliers: tuple[int, ...]
    weights: bytes
    momentum: bytes
    energy: dict[int, float]


@dataclass(frozen=True, slots=True)
class OuterFailed:
    round: int
    listed: tuple[bytes, ...]
    multipliers: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PolicyMeasured:
    """What the run's aggregation policy needs to know of the payloads `listed` in `round`."""

    round: int
    listed: tuple[bytes, ...]
    measured: Measured


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    round: int
    listed: tuple[bytes, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SealSigned:
    """Our own signature over a seal (the edge holds the key)."""

    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class VersionAdopted:
    """V[s,version] is on disk and matches its seal."""

    version: int


@dataclass(frozen=True, slots=True)
class VersionDiffers:
    """Recomputed twice, V[s,version] is not what was sealed: never adopt it."""

    version: int
    detail: str


@dataclass(frozen=True, slots=True)
class VersionUnavailable:
    """Neither the payloads nor the weights of V[s,version] could be had yet."""

    version: int


@dataclass(frozen=True, slots=True)
class NeighbourWants:
    """A pipe neighbour says which round it would train next and whether it could start now; None: its pipe is gone."""

    link: str  # "previous" or "next"
    round: int | None
    ready: bool = False


@dataclass(frozen=True, slots=True)
class RoundTrained:
    """Our own contribution to `round` is on disk, signed."""

    signed: SignedContribution


@dataclass(frozen=True, slots=True)
class RoundAbandoned:
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """A transaction that the machine asked for was mined, reverted or given up."""

    action: "Action"
    ok: bool
    detail: str


Event = (
    Tick
    | LedgerSeen
    | ContributionSeen
    | PayloadReady
    | PayloadRefused
    | PayloadMissing
    | ProposalSeen
    | AttestationSeen
    | ReportSeen
    | OuterComputed
    | OuterFailed
    | PolicyMeasured
    | PolicyFailed
    | SealSigned
    | VersionAdopted
    | VersionDiffers
    | VersionUnavailable
    | NeighbourWants
    | RoundTrained
    | RoundAbandoned
    | TransactionEnded
)

# ---- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRound:
    """Train `round` from `base`; `left_out` are own payloads to fold back."""

    round: int
    base: int
    plan: Plan
    steps_before: int
    left_out: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AbandonRound:
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class WantRound:
    """Tell the pipe neighbours which round this holder would train next, and whether it could start now."""

    round: int
    ready: bool


@dataclass(frozen=True, slots=True)
class ResetPipes:
    """Break the pipes: a neighbour may already wait in a round that this holder will not train."""

    reason: str


@dataclass(frozen=True, slots=True)
class GossipContribution:
    signed: SignedContribution


@dataclass(frozen=True, slots=True)
class FetchPayload:
    signed: SignedContribution


@dataclass(frozen=True, slots=True)
class ComputeOuter:
    """V[s,round+1] from V[s,round] and `listed` (ascending accounts), and what these ranks keep of the mean."""

    round: int
    listed: tuple[SignedContribution, ...]
    multipliers: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeasurePolicy:
    """What the run's aggregation policy needs to know of `listed` (ascending accounts)."""

    round: int
    listed: tuple[SignedContribution, ...]


@dataclass(frozen=True, slots=True)
class SignSeal:
    seal: Seal


@dataclass(frozen=True, slots=True)
class GossipProposal:
    seal: Seal
    listed: tuple[bytes, ...]
    record_signatures: tuple[bytes, ...]
    attempt: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class GossipAttestation:
    round: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class GossipReport:
    round: int
    holding: tuple[bytes, ...]
    missing: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SendSeal:
    seal: Seal
    listed: tuple[SignedContribution, ...]
    signatures: tuple[tuple[str, bytes], ...]  # (account, signature), ascending


@dataclass(frozen=True, slots=True)
class SendAccuse:
    account: str


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """We were accused and are alive."""


@dataclass(frozen=True, slots=True)
class SendEvict:
    account: str


@dataclass(frozen=True, slots=True)
class SendMoveDown:
    """A lower replica has a free seat of our stage."""


@dataclass(frozen=True, slots=True)
class AdoptVersion:
    """Make V[s,version] ours: by the outer step over the sealed payloads when `version - 1` is here, else by hash."""

    version: int


@dataclass(frozen=True, slots=True)
class KeepEvidence:
    """Two different contributions by one account to one round."""

    first: SignedContribution
    second: SignedContribution


@dataclass(frozen=True, slots=True)
class Reject:
    """Something hostile or mistaken was refused: counted by `reason`."""

    reason: str
    source: str


Action = (
    StartRound
    | AbandonRound
    | WantRound
    | ResetPipes
    | GossipContribution
    | FetchPayload
    | ComputeOuter
    | MeasurePolicy
    | SignSeal
    | GossipProposal
    | GossipAttestation
    | GossipReport
    | SendSeal
    | SendAccuse
    | SendAnswer
    | SendEvict
    | SendMoveDown
    | AdoptVersion
    | KeepEvidence
    | Reject
)
