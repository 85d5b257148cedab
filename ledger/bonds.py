"""What an account has at stake in a run, and the evidence that takes it: as Bonds.sol.

Evidence is exact: whoever has it, and a ledger's domain, knows whose it is. No verdict of members is evidence.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from eth_hash.auto import keccak

from dlx.ledger.keys import SIGNATURE_SIZE, SignatureError, recover
from dlx.ledger.typed import (
    SIGNED_SIZE,
    Contribution,
    Domain,
    Seal,
    SignedContribution,
    Signs,
    TypedError,
    encode_records,
    split_entries,
)


class NoContradiction(ValueError):
    """Both things may be said by an honest node."""


@dataclass(frozen=True)
class Bond:
    """Of one account and run, in wei."""

    free: int
    locked: int  # at stake in a slot
    unbonding: int  # at stake until `free_at`, a Unix time
    free_at: int
    slashed: bool  # it locks nothing again

    @property
    def at_stake(self) -> int:
        return self.locked + self.unbonding

    def lacks(self, needed: int) -> int:
        """What a slot that locks so much takes beside what is there."""
        return max(0, needed - self.at_stake - self.free)


@dataclass(frozen=True)
class SignedSeal:
    """A seal with one account's signature over its digest."""

    seal: Seal
    signature: bytes

    def encode(self) -> bytes:
        return self.seal.encode() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises TypedError."""
        if len(data) < SIGNATURE_SIZE:
            raise TypedError(f"a signed seal has more than {len(data)} bytes")
        return cls(Seal.decode(data[:-SIGNATURE_SIZE]), bytes(data[-SIGNATURE_SIZE:]))

    def signer(self, domain: Domain) -> str:
        """Raises SignatureError where the signature is nobody's."""
        return recover(self.seal.digest(domain), self.signature)


@dataclass(frozen=True)
class TwoStatements:
    """Two contributions of one account to one round of a stage."""

    first: SignedContribution
    second: SignedContribution

    kind: ClassVar[int] = 1
    function: ClassVar[str] = "twoStatements"

    @property
    def place(self) -> tuple[bytes, int, int]:
        """Run, stage, round."""
        one = self.first.contribution
        return one.run, one.stage, one.round

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of the contract's function, after the ledger."""
        parts = ((one.contribution.encode(), one.signature) for one in (self.first, self.second))
        return tuple(value for part in parts for value in part)

    def offender(self, domain: Domain) -> str:
        """Raises NoContradiction, SignatureError."""
        if not is_equivocation(self.first.contribution, self.second.contribution):
            raise NoContradiction("the statements are of another round, base or plan, or the same")
        self.first.verify(domain)
        self.second.verify(domain)
        return self.first.contribution.account

    def encode(self) -> bytes:
        """1 + 2 x 961 bytes."""
        return bytes([self.kind]) + self.first.encode() + self.second.encode()


@dataclass(frozen=True)
class TwoSeals:
    """Two seals of one account: of the same records after the same seal, with other hashes."""

    first: SignedSeal
    second: SignedSeal

    kind: ClassVar[int] = 2
    function: ClassVar[str] = "twoSeals"

    @property
    def place(self) -> tuple[bytes, int, int]:
        """Run, stage, round."""
        return _place(self.first.seal)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of the contract's function, after the ledger."""
        (a, b) = (self.first, self.second)
        return _basis(a.seal), _outcome(a.seal), a.signature, _outcome(b.seal), b.signature

    def offender(self, domain: Domain) -> str:
        """Raises NoContradiction, SignatureError."""
        if not contradict(self.first.seal, self.second.seal):
            raise NoContradiction("the seals are of another basis, or name the same version")
        signer = self.first.signer(domain)
        if self.second.signer(domain) != signer:
            raise SignatureError("the seals are signed by two accounts")
        return signer

    def encode(self) -> bytes:
        """1 byte, and two signed seals of one length."""
        return bytes([self.kind]) + self.first.encode() + self.second.encode()


@dataclass(frozen=True)
class FalseVersion:
    """A seal that one account signed, whose version was disproved: which the chain says, not this."""

    signed: SignedSeal

    kind: ClassVar[int] = 3
    function: ClassVar[str] = "falseVersion"

    @property
    def place(self) -> tuple[bytes, int, int]:
        """Run, stage, round."""
        return _place(self.signed.seal)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of the contract's function, after the ledger."""
        return _basis(self.signed.seal), _outcome(self.signed.seal), self.signed.signature

    def offender(self, domain: Domain) -> str:
        """Raises SignatureError."""
        return self.signed.signer(domain)

    def encode(self) -> bytes:
        return bytes([self.kind]) + self.signed.encode()


Evidence = TwoStatements | TwoSeals | FalseVersion


def decode_evidence(data: bytes) -> Evidence:
    """What `encode` wrote; whether it shows anything, `offender` says. Raises TypedError."""
    kind, body = data[:1], data[1:]
    if kind == bytes([TwoStatements.kind]):
        parts = body[:SIGNED_SIZE], body[SIGNED_SIZE:]
        return TwoStatements(*map(SignedContribution.decode, parts))
    if kind == bytes([TwoSeals.kind]) and len(body) % 2 == 0:
        half = len(body) // 2
        return TwoSeals(SignedSeal.decode(body[:half]), SignedSeal.decode(body[half:]))
    if kind == bytes([FalseVersion.kind]):
        return FalseVersion(SignedSeal.decode(body))
    raise TypedError(f"no evidence: {len(data)} bytes that begin with 0x{kind.hex()}")


def false_versions(seal: Seal, signatures: bytes, domain: Domain) -> dict[str, FalseVersion]:
    """Of a disproved seal, with its `signatures` as the ledger has them: account -> evidence, of all who signed it. Who
    signed a record alone is not among them, and what nobody signed is passed over, as by the ledger. Raises TypedError
    for signatures of another length."""
    found = dict[str, FalseVersion]()
    for entry in split_entries(signatures):
        if entry.signs is not Signs.RECORD:
            one = FalseVersion(SignedSeal(seal, entry.signature))
            with suppress(SignatureError):
                found.setdefault(one.offender(domain), one)
    return found


def is_equivocation(one: Contribution, other: Contribution) -> bool:
    """Whether no honest account signs both: two different ones to a round of a stage, from one base and by one plan."""
    said = [(each.run, each.round, each.stage, each.account, each.base_weights, each.plan) for each in (one, other)]
    return said[0] == said[1] and one != other


def contradict(one: Seal, other: Seal) -> bool:
    """Whether no honest account signs both: what follows from the same records, after the same seal, is one version."""
    return _basis(one) == _basis(other) and one.outcome.hashes != other.outcome.hashes


def _place(seal: Seal) -> tuple[bytes, int, int]:
    return seal.run, seal.stage, seal.round


def _basis(seal: Seal) -> tuple[Any, ...]:
    """The struct SealBasis."""
    return *_place(seal), seal.previous, keccak(encode_records(seal.records))


def _outcome(seal: Seal) -> tuple[Any, ...]:
    """The struct Outcome."""
    return *seal.outcome.hashes, seal.outcome.plans
