"""What the round machine asks for. Each action runs itself with the session's `Hands`, and says how it is retried.

A `Prompt` action is carried out at once, in the order of asking, and cannot fail. A `Task` takes its time and comes to
an event; where it cannot be done now it raises ActionFailed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from dlx.ground.backoff import Backoff
from dlx.ledger.typed import Plan, Seal, SignedContribution
from dlx.node.round import events as e
from dlx.node.round.faults import BadPayload, BadStatement, Differs
from dlx.node.round.rules.round_rules import OuterResult, PayloadFacts
from dlx.training.outer.policy import Measured
from dlx.training.slot.rounds import Trained


class Hands(Protocol):
    """What actions need done in the world; the session does it. Coroutines raise ActionFailed."""

    def start_round(self, order: StartRound) -> None: ...

    def stop_round(self, reason: str) -> None: ...

    def want_round(self, link: str, round: int, ready: bool, steps: int) -> None: ...

    def reset_pipes(self, reason: str) -> None: ...

    def reject(self, reason: str, source: str) -> None: ...

    async def fetch(self, signed: SignedContribution) -> PayloadFacts:
        """Have a payload on disk and decoded. Raises BadPayload too, and BadStatement."""

    async def check(self, signed: SignedContribution) -> None:
        """Compare a statement with what its account stated before. Raises BadStatement where it does not follow."""

    async def outer(self, round: int, listed: Sequence[SignedContribution], multipliers: Sequence[int]) -> OuterResult:
        """V[s,round+1] over these contributions."""

    async def measure(self, round: int, listed: Sequence[SignedContribution]) -> Measured: ...

    async def have_samples(self, round: int) -> None:
        """Have the shards on disk that our samples of a round lie in."""

    async def adopt(self, version: int) -> None:
        """Have V[s,version] on disk as it was sealed. Raises Differs too."""

    async def contribute(self, trained: Trained, plan: Plan, exchange_seconds: float | None) -> SignedContribution:
        """Our statement about a trained round, signed and on disk."""

    async def sign(self, seal: Seal) -> bytes:
        """Our signature over its digest. Raises Differs for another result of inputs that we signed for before."""

    async def keep_evidence(self, first: SignedContribution, second: SignedContribution) -> None: ...

    async def gossip(self, statement: Statement) -> None: ...

    # Transactions: each gives the number of the block that took it.

    async def send_seal(self, seal: Seal, signatures: bytes) -> int: ...

    async def send_accuse(self, account: str) -> int: ...

    async def send_answer(self) -> int: ...

    async def send_evict(self, account: str) -> int: ...

    async def send_move_down(self) -> int: ...

    async def send_deal(self, replica: int) -> int: ...


class Prompt:
    """Carried out at once."""

    __slots__ = ()

    def act(self, hands: Hands) -> None:
        raise NotImplementedError


class Task:
    """Carried out beside everything else; what it comes to is the machine's `Done`, or `Failed`."""

    __slots__ = ()
    retry: ClassVar[Backoff] = Backoff(first=1, cap=30)

    def key(self) -> Hashable:
        """What it is about: one at a time for each."""
        return type(self).__name__

    async def run(self, hands: Hands) -> e.Event | None:
        raise NotImplementedError


# ---- the round ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRound(Prompt):
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

    def key(self) -> Hashable:
        return START

    def act(self, hands: Hands) -> None:
        hands.start_round(self)


START = StartRound.__name__


@dataclass(frozen=True, slots=True)
class AbandonRound(Prompt):
    round: int
    reason: str

    def act(self, hands: Hands) -> None:
        hands.stop_round(self.reason)


@dataclass(frozen=True, slots=True)
class WantRound(Prompt):
    """Tell the pipe neighbour at `link` which round this member would train next, whether it and all stages beyond it
    could start now, and for how many inner steps all of these have time (0: not ready)."""

    link: str
    round: int
    ready: bool
    steps: int

    def act(self, hands: Hands) -> None:
        hands.want_round(self.link, self.round, self.ready, self.steps)


@dataclass(frozen=True, slots=True)
class ResetPipes(Prompt):
    """Break the pipes: a neighbour may already wait in a round that this member will not train."""

    reason: str

    def act(self, hands: Hands) -> None:
        hands.reset_pipes(self.reason)


@dataclass(frozen=True, slots=True)
class Reject(Prompt):
    """Something hostile or mistaken was refused: counted by `reason`."""

    reason: str
    source: str

    def act(self, hands: Hands) -> None:
        hands.reject(self.reason, self.source)


# ---- payloads and versions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPayload(Task):
    signed: SignedContribution
    retry: ClassVar[Backoff] = Backoff(first=1, cap=15)

    def key(self) -> Hashable:
        statement = self.signed.contribution
        return "payload", statement.round, statement.payload, statement.payload_size, statement.payload_root

    async def run(self, hands: Hands) -> e.Event:
        statement = self.signed.contribution
        try:
            facts = await hands.fetch(self.signed)
        except BadPayload as error:
            return e.PayloadRefused(statement.round, statement.payload, error.reason)
        except BadStatement as error:  # others may state the same payload, and be right
            return e.StatementRefused(statement.round, statement.hash(), error.reason)
        return e.PayloadReady(statement.round, statement.payload, facts)


@dataclass(frozen=True, slots=True)
class CheckStatement(Task):
    """Does a contribution's statement follow from what its account stated before?"""

    signed: SignedContribution
    retry: ClassVar[Backoff] = Backoff(first=1, cap=15)

    def key(self) -> Hashable:
        return "statement", self.signed.contribution.hash()

    async def run(self, hands: Hands) -> e.Event:
        statement = self.signed.contribution
        try:
            await hands.check(self.signed)
        except BadStatement as error:
            return e.StatementRefused(statement.round, statement.hash(), error.reason)
        return e.StatementSound(statement.round, statement.hash())


@dataclass(frozen=True, slots=True)
class ComputeOuter(Task):
    """V[s,round+1] from V[s,round] and `listed` (ascending replicas)."""

    round: int
    listed: tuple[SignedContribution, ...]
    multipliers: tuple[int, ...]

    def key(self) -> Hashable:
        return "outer", self.round, names(self.listed), self.multipliers

    async def run(self, hands: Hands) -> e.Event:
        result = await hands.outer(self.round, self.listed, self.multipliers)
        return e.OuterComputed(self.round, names(self.listed), self.multipliers, result)


@dataclass(frozen=True, slots=True)
class MeasurePolicy(Task):
    """What the run's aggregation policy needs to know of `listed` (ascending replicas)."""

    round: int
    listed: tuple[SignedContribution, ...]

    def key(self) -> Hashable:
        return "policy", self.round, names(self.listed)

    async def run(self, hands: Hands) -> e.Event:
        return e.PolicyMeasured(self.round, names(self.listed), await hands.measure(self.round, self.listed))


@dataclass(frozen=True, slots=True)
class HaveSamples(Task):
    """The training data of a round: most often it is here already, see daemon.shards."""

    round: int
    retry: ClassVar[Backoff] = Backoff(first=1, cap=15)

    async def run(self, hands: Hands) -> e.Event:
        await hands.have_samples(self.round)
        return e.SamplesHere(self.round)


HAVE_SAMPLES = HaveSamples.__name__


@dataclass(frozen=True, slots=True)
class AdoptVersion(Task):
    """Make V[s,version] ours: by the outer step over the sealed payloads when `version - 1` is here, else by hash."""

    version: int

    async def run(self, hands: Hands) -> e.Event:
        try:
            await hands.adopt(self.version)
        except Differs as error:
            return e.VersionDiffers(self.version, str(error))
        return e.VersionAdopted(self.version)


# ---- statements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contribute(Task):
    """Sign what was trained; `exchange_seconds` as the adaptive plan compares them (None: not measured)."""

    trained: Trained
    plan: Plan
    exchange_seconds: float | None

    async def run(self, hands: Hands) -> e.Event:
        return e.RoundTrained(await hands.contribute(self.trained, self.plan, self.exchange_seconds))


@dataclass(frozen=True, slots=True)
class SignSeal(Task):
    seal: Seal
    digest: bytes

    def key(self) -> Hashable:
        return "sign", self.digest

    async def run(self, hands: Hands) -> e.Event:
        try:
            return e.SealSigned(self.digest, await hands.sign(self.seal))
        except Differs as error:
            return e.VersionDiffers(self.seal.round + 1, str(error))


@dataclass(frozen=True, slots=True)
class KeepEvidence(Task):
    """Two different contributions by one account to one round."""

    first: SignedContribution
    second: SignedContribution

    def key(self) -> Hashable:
        return "evidence", self.second.contribution.hash()

    async def run(self, hands: Hands) -> e.Event:
        await hands.keep_evidence(self.first, self.second)
        return e.EvidenceKept(self.second)


class Statement(Task):
    """Said to everybody. It is repeated until the round is sealed, whether or not this time it went out."""

    __slots__ = ()

    async def run(self, hands: Hands) -> None:
        await hands.gossip(self)


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
    retry: ClassVar[Backoff] = Backoff(first=2, cap=60)

    async def run(self, hands: Hands) -> e.Event:
        return e.Mined(await self.send(hands))

    async def send(self, hands: Hands) -> int:
        """The number of the block that took it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SendSeal(Transaction):
    seal: Seal
    signatures: bytes  # entries
    retry: ClassVar[Backoff] = Backoff(first=2, cap=15)

    def key(self) -> Hashable:
        return "seal", self.seal.round

    async def send(self, hands: Hands) -> int:
        return await hands.send_seal(self.seal, self.signatures)


@dataclass(frozen=True, slots=True)
class SendAccuse(Transaction):
    account: str

    def key(self) -> Hashable:
        return "accuse", self.account

    async def send(self, hands: Hands) -> int:
        return await hands.send_accuse(self.account)


@dataclass(frozen=True, slots=True)
class SendAnswer(Transaction):
    """We were accused and are alive."""

    retry: ClassVar[Backoff] = Backoff(first=1, cap=5)

    async def send(self, hands: Hands) -> int:
        return await hands.send_answer()


@dataclass(frozen=True, slots=True)
class SendEvict(Transaction):
    account: str

    def key(self) -> Hashable:
        return "evict", self.account

    async def send(self, hands: Hands) -> int:
        return await hands.send_evict(self.account)


@dataclass(frozen=True, slots=True)
class SendMoveDown(Transaction):
    """A lower replica has a free slot of our stage."""

    async def send(self, hands: Hands) -> int:
        return await hands.send_move_down()


@dataclass(frozen=True, slots=True)
class SendDeal(Transaction):
    """A complete replica is not counted any more, and nobody can prove who breaks it."""

    replica: int

    def key(self) -> Hashable:
        return "deal", self.replica

    async def send(self, hands: Hands) -> int:
        return await hands.send_deal(self.replica)


Action = Prompt | Task


def names(listed: Sequence[SignedContribution]) -> tuple[bytes, ...]:
    """The names of contributions."""
    return tuple(signed.contribution.hash() for signed in listed)
