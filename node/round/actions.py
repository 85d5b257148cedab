"""What the round machine asks for, as plain data; each also says what it is about, and how it is tried again.

A `Prompt` action is carried out at once, in the order of asking, and cannot fail. A `Task` takes its time and comes to
an event; where it cannot be done now it is asked for again after a while. `daemon.stage.stage_executor` does them, and
`daemon.slot.executor` those of a slot. Both raise what can go wrong with one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dlx.ground.backoff import Backoff
from dlx.ledger.bonds import Evidence
from dlx.ledger.typed import Plan, Seal, SignedContribution
from dlx.training.slot.rounds import Trained


class Retried:
    """Asked for again after a failure, one at a time for each `key`."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """For people and metrics."""
        return type(self).__name__

    @property
    def retry(self) -> Backoff:
        return Backoff(first=1, cap=30)

    def key(self) -> Hashable:
        """What it is about."""
        return self.name


class Prompt:
    """Carried out at once."""

    __slots__ = ()


class Task(Retried):
    """Carried out beside everything else; what it comes to is the machine's `Done`, or `Failed`."""

    __slots__ = ()


# ---- the round ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRound(Prompt, Retried):
    """Train the first `steps` of `round` from `base`, of `own_steps` that this member has time for; `left_out` are own
    payloads to fold back. It ends with RoundFinished, or with RoundAbandoned: then the next start waits, whichever
    round that is, because what spoils one spoils the next."""

    round: int
    base: int
    plan: Plan
    steps: int
    own_steps: int
    steps_before: int
    left_out: tuple[bytes, ...]
    retry: ClassVar[Backoff] = Backoff(first=0.5, cap=30)


START = StartRound.__name__


@dataclass(frozen=True, slots=True)
class AbandonRound(Prompt):
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class WantRound(Prompt):
    """Tell the pipe neighbour at `link` which round this member would train next.

    `ready`: whether this member and all stages beyond it could start now. `steps`: for how many inner steps all of
    these have time (0: not ready)."""

    link: str
    round: int
    ready: bool
    steps: int


@dataclass(frozen=True, slots=True)
class ResetPipes(Prompt):
    """Break the pipes: a neighbour may already wait in a round that this member will not train."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reject(Prompt):
    """Something hostile or mistaken was refused: counted by `reason`."""

    reason: str
    source: str


# ---- payloads and versions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPayload(Task):
    """Have a contribution's payload on disk, and know that it decodes."""

    signed: SignedContribution
    retry: ClassVar[Backoff] = Backoff(first=1, cap=15)

    def key(self) -> Hashable:
        statement = self.signed.contribution
        return "payload", statement.round, statement.payload, statement.payload_size, statement.payload_root


@dataclass(frozen=True, slots=True)
class CheckStatement(Task):
    """Does a contribution's statement follow from what its account stated before?"""

    signed: SignedContribution
    retry: ClassVar[Backoff] = Backoff(first=1, cap=15)

    def key(self) -> Hashable:
        return "statement", self.signed.contribution.hash()


@dataclass(frozen=True, slots=True)
class ComputeOuter(Task):
    """V[s,round+1] from V[s,round] and `listed` (ascending replicas)."""

    round: int
    listed: tuple[SignedContribution, ...]
    multipliers: tuple[int, ...]

    def key(self) -> Hashable:
        return "outer", self.round, names(self.listed), self.multipliers


@dataclass(frozen=True, slots=True)
class MeasurePolicy(Task):
    """What the run's aggregation policy needs to know of `listed` (ascending replicas)."""

    round: int
    listed: tuple[SignedContribution, ...]

    def key(self) -> Hashable:
        return "policy", self.round, names(self.listed)


@dataclass(frozen=True, slots=True)
class JudgeEnd(Task):
    """Say whether the run stops with a round: who was drawn to evaluate versions, the chain's blocks say."""

    round: int
    retry: ClassVar[Backoff] = Backoff(first=1, cap=15)


@dataclass(frozen=True, slots=True)
class HaveSamples(Task):
    """Have the shards on disk that our samples of a round lie in: most often they are, see daemon.data.shards."""

    round: int
    retry: ClassVar[Backoff] = Backoff(first=1, cap=15)


HAVE_SAMPLES = HaveSamples.__name__


@dataclass(frozen=True, slots=True)
class AdoptVersion(Task):
    """Make V[s,version] ours: by the outer step over the sealed payloads when `version - 1` is here, else by hash."""

    version: int


# ---- statements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contribute(Task):
    """Sign what was trained; `exchange_seconds` as the adaptive plan compares them (None: not measured)."""

    trained: Trained
    plan: Plan
    exchange_seconds: float | None


@dataclass(frozen=True, slots=True)
class SignSeal(Task):
    """Sign the digest of a seal, unless we signed another result of the same inputs before."""

    seal: Seal
    digest: bytes

    def key(self) -> Hashable:
        return "sign", self.digest


@dataclass(frozen=True, slots=True)
class KeepEvidence(Task):
    """What shows that `account` contradicted itself in a round."""

    account: str
    evidence: Evidence

    def key(self) -> Hashable:
        return "evidence", self.evidence


class Statement(Task):
    """Said to everybody. It is repeated until the round is sealed, whether or not this time it went out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GossipContribution(Statement):
    signed: SignedContribution


@dataclass(frozen=True, slots=True)
class GossipProposal(Statement):
    seal: Seal
    attempt: int
    signature: bytes


@dataclass(frozen=True, slots=True)
class GossipAttestation(Statement):
    round: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class GossipReport(Statement):
    round: int
    holding: tuple[bytes, ...]
    missing: tuple[bytes, ...]


# ---- transactions -------------------------------------------------------------------------------------------------


class Transaction(Task):
    """Once mined it is not sent again before the view contains its block: until then nothing says that it counts."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SendSeal(Transaction):
    seal: Seal
    signatures: bytes  # entries
    retry: ClassVar[Backoff] = Backoff(first=2, cap=15)

    def key(self) -> Hashable:
        return "seal", self.seal.round


Call = Literal["accuse", "answer", "deal", "evict", "move_down", "reclaim"]


@dataclass(frozen=True, slots=True)
class Send(Transaction):
    """A call of the ledger about `subject`.

    - "accuse", "evict": a member, by its account.
    - "reclaim": a member that stands still in the stage where we left weight, by its account.
    - "answer": none. We were accused and are alive.
    - "deal": a complete replica that is not counted any more, and nobody can prove who breaks it.
    - "move_down": none. A lower replica has a free slot of our stage.
    """

    call: Call
    subject: str | int | None = None

    @property
    def name(self) -> str:
        return "Send" + self.call.title().replace("_", "")

    @property
    def retry(self) -> Backoff:
        return Backoff(first=1, cap=5) if self.call == "answer" else Backoff(first=2, cap=60)

    def key(self) -> Hashable:
        return self.call, self.subject


Action = Prompt | Task


def names(listed: Sequence[SignedContribution]) -> tuple[bytes, ...]:
    """The names of contributions."""
    return tuple(signed.contribution.hash() for signed in listed)


# ---- what goes wrong ----------------------------------------------------------------------------------------------


class ActionFailed(Exception):
    """What was asked could not be done now; the message says why in one line. It is asked for again after a while."""


class LocalFault(ActionFailed):
    """This machine is at fault (its disk, its memory, its training process): it says nothing about what was asked."""


class BadPayload(Exception):
    """The bytes are what their name says and can never count: `reason` is a short metric label."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class BadStatement(Exception):
    """A statement that does not follow from what its account stated before, or contradicts itself: `reason` is a short
    metric label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Differs(Exception):
    """Recomputed from inputs that are what their names say, a version is not what its seal says."""
