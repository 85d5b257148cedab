"""What is signed: contributions, seals, reports, registrations (EIP-712), and their exact bytes.

Decoders are strict: exact length, every word within its type, one encoding per value. TypedError otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Self

from eth_hash.auto import keccak

from dlx.ground.constants import UNIT
from dlx.ledger.abi import (
    U8,
    U16,
    U32,
    U64,
    U256,
    WORD,
    Address,
    Bytes32,
    TypedError,
    ascending,
    decode_words,
    encode_words,
    static_fields,
    type_hash,
    word,
)
from dlx.ledger.keys import SIGNATURE_SIZE, SignatureError, account_of, recover, sign
from dlx.ledger.merkle import merkle_proof, merkle_root

__all__ = [
    "ANY_STAGE", "CONTRIBUTION_SIZE", "PRIVATE_DATA", "RECORD_SIZE", "STATE_RESET", "UNIT", "Contribution", "Domain",
    "Plan", "Report", "RunConfig", "Seal", "SignatureError", "SignedContribution", "Summary", "TypedError",
    "account_of", "ascending", "decode_records", "encode_records", "join_signatures", "merkle_proof", "merkle_root",
    "recover", "registration_digest", "run_id", "sign", "split_signatures", "summarise",
]  # fmt: skip

PRIVATE_DATA, STATE_RESET = 1, 2  # Contribution.flags
ANY_STAGE = 65535  # joinRun: the lowest stage with a free seat
CONTRIBUTION_SIZE = 27 * WORD
RECORD_SIZE = CONTRIBUTION_SIZE + SIGNATURE_SIZE
_LEDGER_NAME, _REGISTRY_NAME, _VERSION = "dlx-node TrainingLedger", "dlx-node NodeRegistry", "1"


@dataclass(frozen=True)
class Domain:
    """The EIP-712 domain of one ledger contract."""

    chain_id: int
    ledger: str

    @cached_property
    def separator(self) -> bytes:
        return _separator(_LEDGER_NAME, self.chain_id, self.ledger)


@dataclass(frozen=True)
class RunConfig:
    """What the ledger itself knows of a run; times in seconds."""

    manifest: Bytes32
    rounds: U32
    stages: U16
    min_replicas: U16
    max_replicas: U16
    quorum_numerator: U16
    quorum_denominator: U16
    round_timeout: U32
    eviction_time: U32
    tokens_per_step: U64


@dataclass(frozen=True)
class Plan:
    """Codec level and rank, and the inner steps of a round."""

    level: U8
    rank: U16
    inner_steps: U32

    def hash(self) -> bytes:
        return keccak(encode_words(self))


@dataclass(frozen=True)
class Contribution:
    """The statement about one payload. Sizes in bytes, loss in micro-nats, times in milliseconds."""

    run: Bytes32
    round: U32
    stage: U16
    replica: U16
    account: Address
    base_weights: Bytes32
    payload: Bytes32
    payload_size: U64
    plan: Bytes32
    inner_steps: U32
    tokens: U64
    loss: U64
    previous: Bytes32
    start_payload: Bytes32
    folded_payload: Bytes32
    folded_payload2: Bytes32
    weights_before: Bytes32
    weights_after: Bytes32
    optimiser_before: Bytes32
    optimiser_after: Bytes32
    residual_before: Bytes32
    residual_after: Bytes32
    segments_root: Bytes32
    segments: U16
    compute_ms: U32
    exchange_ms: U32
    flags: U8

    def encode(self) -> bytes:
        """864 bytes."""
        return encode_words(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return decode_words(cls, data)

    def hash(self) -> bytes:
        """The struct hash: the contribution's name everywhere."""
        return self._hash

    def digest(self, domain: Domain) -> bytes:
        return _digest(domain.separator, self._hash)

    def sign(self, domain: Domain, key: bytes) -> "SignedContribution":
        return SignedContribution(self, sign(self.digest(domain), key))

    @cached_property
    def _hash(self) -> bytes:
        return keccak(type_hash(Contribution) + self.encode())


@dataclass(frozen=True)
class SignedContribution:
    """A contribution with a signature that is not yet known to be its account's: see `verify`."""

    contribution: Contribution
    signature: bytes

    def encode(self) -> bytes:
        """929 bytes: the record as gossip and the seal carry it."""
        if len(self.signature) != SIGNATURE_SIZE:
            raise TypedError(f"a signature has {SIGNATURE_SIZE} bytes, got {len(self.signature)}")
        return self.contribution.encode() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) != RECORD_SIZE:
            raise TypedError(f"a contribution record has {RECORD_SIZE} bytes, got {len(data)}")
        return cls(Contribution.decode(data[:CONTRIBUTION_SIZE]), bytes(data[CONTRIBUTION_SIZE:]))

    def signer(self, domain: Domain) -> str:
        """Raises SignatureError where the signature is nobody's."""
        return recover(self.contribution.digest(domain), self.signature)

    def verify(self, domain: Domain) -> None:
        """Raises SignatureError unless the contribution's own account signed it."""
        signer = self.signer(domain)
        if signer != self.contribution.account:
            raise SignatureError(f"signed by {signer}, not by {self.contribution.account}")


@dataclass(frozen=True)
class Seal:
    """What closes (round, stage). Multipliers: one integer per contribution, UNIT = 1.0."""

    run: Bytes32
    stage: U16
    round: U32
    previous_weights: Bytes32
    next_weights: Bytes32
    previous_momentum: Bytes32
    next_momentum: Bytes32
    contributions_root: Bytes32
    contributions_hash: Bytes32
    count: U16
    total_tokens: U64
    mean_loss: U64
    plan_level: U8
    plan_rank: U16
    plan_inner_steps: U32
    multipliers: Annotated[tuple[int, ...], "bytes"]

    @property
    def plan(self) -> Plan:
        """The plan for round + delay + 1."""
        return Plan(self.plan_level, self.plan_rank, self.plan_inner_steps)

    def encode(self) -> bytes:
        """abi.encode(seal): an offset word, the static words, the multipliers' offset and length, padded bytes."""
        packed = self.packed_multipliers()
        padding = bytes(-len(packed) % WORD)
        return word(WORD) + encode_words(self) + word(_SEAL_HEAD) + word(len(packed)) + packed + padding

    @classmethod
    def decode(cls, data: bytes) -> Self:
        tail = WORD + _SEAL_HEAD
        if len(data) < tail + WORD:
            raise TypedError(f"a seal has at least {tail + WORD} bytes, got {len(data)}")
        length = int.from_bytes(data[tail : tail + WORD], "big")
        packed = data[tail + WORD : tail + WORD + length]
        if length > len(data) or length % 2:
            raise TypedError(f"a seal's multipliers cannot take {length} bytes")
        multipliers = tuple(int.from_bytes(packed[i : i + 2], "big") for i in range(0, length, 2))
        seal = decode_words(cls, data[WORD : tail - WORD], multipliers=multipliers)
        if seal.encode() != data:
            raise TypedError("a seal has one encoding only, and this is another")
        return seal

    def hash(self) -> bytes:
        """The struct hash."""
        return keccak(type_hash(Seal) + encode_words(self) + keccak(self.packed_multipliers()))

    def digest(self, domain: Domain) -> bytes:
        """What attesters sign and the ledger stores."""
        return _digest(domain.separator, self.hash())

    def packed_multipliers(self) -> bytes:
        """Big-endian uint16 each."""
        if any(not 0 <= m < 1 << 16 for m in self.multipliers):
            raise TypedError("multipliers: each must be a uint16")
        return b"".join(m.to_bytes(2, "big") for m in self.multipliers)


_SEAL_HEAD = WORD * (len(static_fields(Seal)) + 1)


@dataclass(frozen=True)
class Report:
    """Which payloads of a round (named by their contributions' struct hashes) a member holds and lacks."""

    run: Bytes32
    round: U32
    stage: U16
    holding: Annotated[tuple[bytes, ...], "bytes32[]"]
    missing: Annotated[tuple[bytes, ...], "bytes32[]"]

    def digest(self, domain: Domain) -> bytes:
        if any(len(name) != WORD for name in self.holding + self.missing):
            raise TypedError("holding, missing: expected 32 bytes each")
        lists = keccak(b"".join(self.holding)) + keccak(b"".join(self.missing))
        return _digest(domain.separator, keccak(type_hash(Report) + encode_words(self) + lists))


@dataclass(frozen=True)
class Registration:
    """What a node key signs to be bound to an account."""

    account: Address
    nonce: U256


def registration_digest(chain_id: int, registry: str, account: str, nonce: int) -> bytes:
    """The digest that the NODE key signs; the nonce is the registry's for the account."""
    struct = keccak(type_hash(Registration) + encode_words(Registration(account, nonce)))
    return _digest(_separator(_REGISTRY_NAME, chain_id, registry), struct)


@dataclass(frozen=True)
class Summary:
    """What a seal states about its contributions, recomputed."""

    root: bytes
    hash: bytes
    count: int
    total_tokens: int
    mean_loss: int


def summarise(records: Sequence[SignedContribution]) -> Summary:
    """The seal's fields for these records, which must be in ascending order of account."""
    contributions = [record.contribution for record in records]
    total = sum(c.tokens for c in contributions)
    loss = sum(c.loss * c.tokens for c in contributions)
    root = merkle_root([c.hash() for c in contributions])
    return Summary(root, keccak(encode_records(records)), len(records), total, loss // total if total else 0)


def encode_records(records: Sequence[SignedContribution]) -> bytes:
    """The `contributions` argument of a seal. Raises TypedError unless accounts are strictly ascending."""
    _check_ascending(records)
    return b"".join(record.encode() for record in records)


def decode_records(data: bytes) -> tuple[SignedContribution, ...]:
    """The records in a seal's `contributions`. Raises TypedError unless accounts are strictly ascending."""
    if len(data) % RECORD_SIZE:
        raise TypedError(f"contributions come in records of {RECORD_SIZE} bytes, got {len(data)}")
    records = tuple(SignedContribution.decode(data[i : i + RECORD_SIZE]) for i in range(0, len(data), RECORD_SIZE))
    _check_ascending(records)
    return records


def join_signatures(signatures: dict[str, bytes]) -> bytes:
    """The `signatures` argument of a seal from account -> signature: in ascending order of account."""
    return b"".join(signatures[account] for account in ascending(set(signatures)))


def split_signatures(data: bytes) -> tuple[bytes, ...]:
    """The 65-byte signatures of a seal."""
    if len(data) % SIGNATURE_SIZE:
        raise TypedError(f"signatures come in {SIGNATURE_SIZE} bytes each, got {len(data)}")
    return tuple(data[i : i + SIGNATURE_SIZE] for i in range(0, len(data), SIGNATURE_SIZE))


def run_id(chain_id: int, ledger: str, creator: str, manifest: bytes) -> bytes:
    """The id the ledger gives to a run."""
    return keccak(encode_words(_RunKey(chain_id, ledger, creator, manifest)))


@dataclass(frozen=True)
class _RunKey:
    chain_id: U256
    ledger: Address
    creator: Address
    manifest: Bytes32


@dataclass(frozen=True)
class _EIP712Domain:
    name: Bytes32
    version: Bytes32
    chain_id: U256
    verifying_contract: Address


_DOMAIN_TYPE = keccak(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


def _separator(name: str, chain_id: int, contract: str) -> bytes:
    domain = _EIP712Domain(keccak(name.encode()), keccak(_VERSION.encode()), chain_id, contract)
    return keccak(_DOMAIN_TYPE + encode_words(domain))


def _digest(separator: bytes, struct_hash: bytes) -> bytes:
    return keccak(b"\x19\x01" + separator + struct_hash)


def _check_ascending(records: Sequence[SignedContribution]) -> None:
    accounts = [int(record.contribution.account, 16) for record in records]
    if any(a >= b for a, b in pairwise(accounts)):
        raise TypedError("contributions must be in strictly ascending order of account")
