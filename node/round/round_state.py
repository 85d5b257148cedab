"""What one member holds of one round of its stage: contributions, payloads, reports, proposals and signatures."""

from collections.abc import Callable
from dataclasses import dataclass, field

from dlx.ledger.bonds import SignedSeal, TwoSeals, contradict
from dlx.ledger.typed import Contribution, Seal, SignedContribution
from dlx.node.round.rules.round_rules import OuterResult, PayloadFacts
from dlx.training.outer.policy import Measured

MAX_PROPOSALS_PER_SIGNER = 8  # honest proposers need one per attempt, and most of those are the same
MAX_DIGESTS_PER_SIGNER = 8
MAX_REPORTED = 128  # what a report message has room for


@dataclass(frozen=True, slots=True)
class Proposal:
    seal: Seal
    attempt: int
    signer: str
    since: float  # when it came

    @property
    def listed(self) -> tuple[bytes, ...]:
        """The names of what it counts, in ascending order of replica: a record's statement is one."""
        return tuple(record.statement for record in self.seal.records)


@dataclass(slots=True)
class RoundState:
    """Everything is keyed by name, so duplicates and any order of arrival give the same state."""

    round: int
    contributions: dict[bytes, SignedContribution] = field(default_factory=dict)
    heard: dict[bytes, float] = field(default_factory=dict)  # name -> when it came first
    by_signer: dict[str, list[bytes]] = field(default_factory=dict)
    ready: dict[bytes, PayloadFacts] = field(default_factory=dict)  # of payloads that lie on disk and decode
    refused: set[bytes] = field(default_factory=set)  # payload hashes that never will
    sound: set[bytes] = field(default_factory=set)  # contributions whose statements follow from those before
    unsound: set[bytes] = field(default_factory=set)  # and those whose do not
    held_since: dict[int, float] = field(default_factory=dict)  # replica -> since when we have something usable of it
    reports: dict[str, frozenset[bytes]] = field(default_factory=dict)
    proposals: dict[bytes, Proposal] = field(default_factory=dict)  # by seal digest
    proposed: dict[str, set[bytes]] = field(default_factory=dict)  # signer -> digests, those refused since included
    signatures: dict[bytes, dict[str, bytes]] = field(default_factory=dict)  # digest -> signer -> signature
    measured: dict[tuple[bytes, ...], Measured] = field(default_factory=dict)  # by what is listed
    outer: dict[tuple[tuple[bytes, ...], tuple[int, ...]], OuterResult] = field(default_factory=dict)  # and multipliers
    ends: dict[bytes | None, bool] = field(default_factory=dict)  # by the block that opened it: whether the run stops
    enough_since: float | None = None  # when what is usable was of a quorum of the votes
    gathered_since: float | None = None  # when it was of everybody who is waited for
    ready_since: float | None = None  # when this member could first have proposed
    quorum_since: dict[bytes, float] = field(default_factory=dict)
    lacks_founder: dict[bytes, float] = field(default_factory=dict)  # digest -> since when it lacks nothing else
    alone_since: float | None = None  # when the ledger could first have taken a founder's empty seal
    alone: bytes | None = None  # that seal's digest, once it is to be signed
    contradicting: set[str] = field(default_factory=set)  # who signed two seals that contradict each other
    foreseen: bool = False  # whether this member has made up a seal that the proposer will propose

    def add(self, signed: SignedContribution, now: float) -> str:
        """Files a validated contribution: "new", "known", "conflict" (with the first one) or "duplicate" (a third)."""
        name = signed.contribution.hash()
        if name in self.contributions:
            return "known"
        mine = self.by_signer.setdefault(signed.contribution.account, [])
        if len(mine) >= 2:
            return "duplicate"
        mine.append(name)
        self.contributions[name] = signed
        self.heard[name] = now
        return "conflict" if len(mine) == 2 else "new"

    def misstated(self, statement: Contribution) -> str:
        """What it states otherwise than its payload has it (a short metric label), as far as that is known, or "": such
        a one is never listed."""
        facts = self.ready.get(statement.payload)
        if facts is None:
            return ""
        if facts.size != statement.payload_size:
            return "payload_size"
        return "payload_root" if facts.root != statement.payload_root else ""

    def is_ready(self, name: bytes) -> bool:
        signed = self.contributions.get(name)
        if signed is None or signed.contribution.payload not in self.ready or name not in self.sound:
            return False
        return not self.misstated(signed.contribution)

    def usable(self, may_count: Callable[[Contribution], bool]) -> dict[int, bytes]:
        """replica -> the contribution for it whose payload is ready and that may count, ascending replicas. Nothing of
        who contradicts itself: others may have heard two other statements of it, and cannot agree to these."""
        found: dict[int, bytes] = {}
        for names in self.by_signer.values():
            if len(names) == 1 and self.is_ready(names[0]):
                statement = self.contributions[names[0]].contribution
                if may_count(statement):
                    found.setdefault(statement.replica, names[0])
        return dict(sorted(found.items()))

    def listing(self, names: tuple[bytes, ...]) -> tuple[SignedContribution, ...]:
        return tuple(self.contributions[name] for name in names)

    def holding(self, is_whole: Callable[[Contribution], bool]) -> tuple[bytes, ...]:
        """What a report names."""
        ready = (name for name, signed in self.contributions.items() if is_whole(signed.contribution))
        return tuple(sorted(name for name in ready if self.is_ready(name)))[:MAX_REPORTED]

    def propose(self, digest: bytes, proposal: Proposal) -> bool:
        """Keeps a proposal; False when the signer has made too many of this round. Others' take no room from it."""
        made = self.proposed.setdefault(proposal.signer, set())
        if digest not in made and len(made) >= MAX_PROPOSALS_PER_SIGNER:
            return False
        made.add(digest)
        self.proposals.setdefault(digest, proposal)
        return True

    def sign(self, digest: bytes, signer: str, signature: bytes) -> None:
        """Keeps a signature; of a signer with too many seals in this round, the newest ones."""
        signed = [known for known, signers in self.signatures.items() if signer in signers]
        if digest not in signed and len(signed) >= MAX_DIGESTS_PER_SIGNER:
            del self.signatures[signed[0]][signer]
            if not self.signatures[signed[0]]:
                del self.signatures[signed[0]]
        self.signatures.setdefault(digest, {}).setdefault(signer, signature)

    def contradicted_by(self, late: SignedSeal, signer: str) -> TwoSeals | None:
        """What a seal that came after the round's own contradicts, once a signer. It is not filed: it seals nothing."""
        for digest, proposal in self.proposals.items():
            signature = self.signatures.get(digest, {}).get(signer)
            if signature is None or signer in self.contradicting:
                continue
            if contradict(proposal.seal, late.seal):
                self.contradicting.add(signer)
                return TwoSeals(SignedSeal(proposal.seal, signature), late)
        return None

    def contradictions(self, digest: bytes) -> list[tuple[TwoSeals, str]]:
        """Of those who signed the seal, as far as it was proposed: with whom each contradicts itself, once a signer."""
        found = []
        proposal, signers = self.proposals.get(digest), self.signatures.get(digest, {})
        for other, earlier in self.proposals.items():
            if proposal is None or not contradict(proposal.seal, earlier.seal):
                continue
            for signer in (signers.keys() & self.signatures.get(other, {}).keys()) - self.contradicting:
                first = SignedSeal(earlier.seal, self.signatures[other][signer])
                found.append((TwoSeals(first, SignedSeal(proposal.seal, signers[signer])), signer))
                self.contradicting.add(signer)
        return found
