"""What one member holds of one round of its stage: contributions, payloads, reports, proposals and signatures."""

from dataclasses import dataclass, field

from dlx.ledger.typed import Seal, SignedContribution, ascending
from dlx.node.round.rules import OuterResult
from dlx.training.outer.policy import Measured

MAX_PROPOSALS_PER_SIGNER = 8  # honest proposers need one per attempt, and most of those are the same
MAX_DIGESTS_PER_SIGNER = 8
MAX_REPORTED = 128  # what a report message has room for


@dataclass(frozen=True, slots=True)
class Proposal:
    """`record_signatures` are part of what is sealed: an account can sign one contribution in many valid ways."""

    seal: Seal
    listed: tuple[bytes, ...]
    record_signatures: tuple[bytes, ...]
    attempt: int
    signer: str


@dataclass(slots=True)
class Book:
    """Everything is keyed by struct hash, so duplicates and any order of arrival give the same book."""

    round: int
    contributions: dict[bytes, SignedContribution] = field(default_factory=dict)
    by_signer: dict[str, list[bytes]] = field(default_factory=dict)
    ready: dict[bytes, int] = field(default_factory=dict)  # sizes in bytes of payloads that lie on disk and decode
    refused: set[bytes] = field(default_factory=set)  # payload hashes that never will
    reports: dict[str, frozenset[bytes]] = field(default_factory=dict)
    proposals: dict[bytes, Proposal] = field(default_factory=dict)  # by seal digest
    proposed: dict[str, set[bytes]] = field(default_factory=dict)  # signer -> digests, those refused since included
    signatures: dict[bytes, dict[str, bytes]] = field(default_factory=dict)  # digest -> signer -> signature
    measured: dict[tuple[bytes, ...], Measured] = field(default_factory=dict)  # by what is listed
    outer: dict[tuple[tuple[bytes, ...], tuple[int, ...]], OuterResult] = field(default_factory=dict)  # and multipliers
    ready_since: float | None = None  # when this member could first have proposed
    quorum_since: dict[bytes, float] = field(default_factory=dict)

    def add(self, signed: SignedContribution) -> tuple[str, SignedContribution | None]:
        """Files a validated contribution: "new", "known", "conflict" (with the first one) or "duplicate" (a third)."""
        identity = signed.contribution.hash()
        if identity in self.contributions:
            return "known", None
        mine = self.by_signer.setdefault(signed.contribution.account, [])
        if len(mine) >= 2:
            return "duplicate", None
        mine.append(identity)
        self.contributions[identity] = signed
        return ("conflict", self.contributions[mine[0]]) if len(mine) == 2 else ("new", None)

    def misstates(self, signed: SignedContribution) -> bool:
        """Whether it states another size than its payload has, as far as that is known: then it is never listed."""
        size = signed.contribution.payload_size
        return self.ready.get(signed.contribution.payload, size) != size

    def is_ready(self, identity: bytes) -> bool:
        signed = self.contributions.get(identity)
        return signed is not None and self.ready.get(signed.contribution.payload) == signed.contribution.payload_size

    def usable(self) -> dict[str, bytes]:
        """account -> the first of its contributions whose payload is ready, ascending accounts."""
        found = {}
        for account in ascending(set(self.by_signer)):
            identity = next((one for one in self.by_signer[account] if self.is_ready(one)), None)
            if identity is not None:
                found[account] = identity
        return found

    def listing(self, identities: tuple[bytes, ...]) -> tuple[SignedContribution, ...]:
        return tuple(self.contributions[identity] for identity in identities)

    def holding(self) -> tuple[bytes, ...]:
        """What a report names."""
        return tuple(sorted(identity for identity in self.contributions if self.is_ready(identity)))[:MAX_REPORTED]

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
