"""What the round machine is told: plain data, no I/O."""

from dataclasses import dataclass

from dlx.ledger.bonds import Evidence
from dlx.ledger.typed import Seal, SignedContribution
from dlx.ledger.view.run_view import RunView
from dlx.node.round.actions import Retried
from dlx.node.round.rules.round_rules import OuterResult, PayloadFacts
from dlx.training.outer.policy import Measured
from dlx.training.slot.rounds import Trained


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
    """A payload lies in the blob store and decodes to finite tensors under the round's plan."""

    round: int
    payload: bytes
    facts: PayloadFacts


@dataclass(frozen=True, slots=True)
class PayloadRefused:
    """A payload's bytes do not decode under the round's plan; its contribution can never count."""

    round: int
    payload: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class StatementSound:
    """A contribution's statement follows from what its account stated before."""

    round: int
    name: bytes


@dataclass(frozen=True, slots=True)
class StatementRefused:
    """It does not, and never will."""

    round: int
    name: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ProposalSeen:
    """A proposer's seal, signed by it."""

    seal: Seal
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
    """What a member holds of a round, and what it lacks of a proposal; `made`: when it said so, in ms."""

    round: int
    stage: int
    holding: tuple[bytes, ...]
    missing: tuple[bytes, ...]
    signer: str
    made: int


@dataclass(frozen=True, slots=True)
class OuterComputed:
    """Our own outer step over `listed` of `round` with these multipliers."""

    round: int
    listed: tuple[bytes, ...]
    multipliers: tuple[int, ...]
    result: OuterResult


@dataclass(frozen=True, slots=True)
class PolicyMeasured:
    """What the run's aggregation policy needs to know of the payloads `listed` in `round`."""

    round: int
    listed: tuple[bytes, ...]
    measured: Measured


@dataclass(frozen=True, slots=True)
class EndJudged:
    """Whether the run stops with `round`, which the block with hash `opening` opened."""

    round: int
    opening: bytes | None
    is_over: bool


@dataclass(frozen=True, slots=True)
class SealSigned:
    """Our own signature over a seal (the edge holds the key)."""

    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class SamplesHere:
    """The shards that our replica's samples of a round lie in are on disk."""

    round: int


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
class NeighbourWants:
    """A pipe neighbour says which round it would train next, whether it and all beyond it could start now, and for how
    many inner steps they have time; None: its pipe is gone."""

    link: str  # "previous" or "next"
    round: int | None
    ready: bool = False
    steps: int = 0


@dataclass(frozen=True, slots=True)
class RoundFinished:
    """A round is trained and saved; what says so is not signed yet. `step_seconds`: of each step, as measured."""

    trained: Trained
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RoundTrained:
    """Our own contribution to `round` is on disk, signed."""

    signed: SignedContribution


@dataclass(frozen=True, slots=True)
class RoundAbandoned:
    """`local`: by a fault of this machine."""

    round: int
    reason: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class TrainerGone:
    """The training process has ended, and with it the round under way; it is being started again."""

    reason: str


@dataclass(frozen=True, slots=True)
class TrainerBack:
    """It can train again."""


@dataclass(frozen=True, slots=True)
class EvidenceKept:
    """It is on disk."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Mined:
    """A transaction of ours is in this block."""

    block: int


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for was done, and this came of it."""

    action: Retried
    outcome: "Event"


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for could not be done now; `local`: by a fault of this machine."""

    action: Retried
    reason: str
    local: bool = False


AboutRound = ContributionSeen | ProposalSeen | AttestationSeen | ReportSeen  # what members say to each other

Event = (
    Tick
    | LedgerSeen
    | AboutRound
    | PayloadReady
    | PayloadRefused
    | StatementSound
    | StatementRefused
    | OuterComputed
    | PolicyMeasured
    | EndJudged
    | SealSigned
    | SamplesHere
    | VersionAdopted
    | VersionDiffers
    | NeighbourWants
    | RoundFinished
    | RoundTrained
    | RoundAbandoned
    | TrainerGone
    | TrainerBack
    | EvidenceKept
    | Mined
    | Done
    | Failed
)
