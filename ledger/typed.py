"""What is signed: contributions, seals, verdicts, reports, registrations (EIP-712), and their exact bytes.

Decoders are strict: exact length, every field within its type, one encoding per value. TypedError otherwise.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
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
    U128,
    U256,
    WORD,
    ZERO32,
    ZERO_ACCOUNT,
    Address,
    Bool,
    Bytes32,
    TypedError,
    ascending,
    decode_words,
    encode_words,
    type_hash,
    word,
)
from dlx.ledger.keys import SIGNATURE_SIZE, SignatureError, account_of, recover, sign

__all__ = [
    "ANY_STAGE",
    "CONTRIBUTION_SIZE",
    "EVALUATION_SIZE",
    "FALSE",
    "HONEST",
    "MAX_REPLICAS",
    "PRIVATE_DATA",
    "RECORD_SIZE",
    "SIGNED_SIZE",
    "STATE_RESET",
    "UNIT",
    "WITHHELD",
    "Agreement",
    "Contribution",
    "ConvictionEntry",
    "Counted",
    "Domain",
    "Entry",
    "Evaluation",
    "Invitation",
    "Outcome",
    "Plan",
    "Record",
    "Report",
    "RunConfig",
    "Scores",
    "Seal",
    "SignatureError",
    "SignedContribution",
    "SignedEvaluation",
    "SignedVerdict",
    "Signs",
    "SiteMember",
    "TypedError",
    "Verdict",
    "account_of",
    "ascending",
    "conviction_entries",
    "decode_records",
    "encode_records",
    "entries",
    "has_founder",
    "recover",
    "registration_digest",
    "run_id",
    "sign",
    "split_conviction",
    "split_entries",
]  # fmt: skip

PRIVATE_DATA, STATE_RESET = 1, 2  # Contribution.flags
HONEST, FALSE, WITHHELD = 1, 2, 3  # Verdict.finding
ANY_STAGE = 65535  # joinRun: the lowest stage with a free slot
MAX_REPLICAS = 64  # of any run
CONTRIBUTION_SIZE = 28 * WORD
SIGNED_SIZE = CONTRIBUTION_SIZE + SIGNATURE_SIZE
EVALUATION_SIZE = 8 * WORD + SIGNATURE_SIZE  # signed
_LEDGER_NAME, _LEDGER_VERSION = "dlx-node TrainingLedger", "3"
_REGISTRY_NAME, _REGISTRY_VERSION = "dlx-node NodeRegistry", "1"
_INVITATIONS_NAME, _INVITATIONS_VERSION = "dlx-node Invitations", "1"
_RECORD = struct.Struct(">B32sIIBH")  # replica, statement, loss, inner steps, exchange, multiplier
_SEAL = struct.Struct(">32sHI32s32s32s32s32s11s")  # run, stage, round, previous, four hashes, plans
_PLANS = struct.Struct(">IBHI")  # this round's inner steps; level, rank, inner steps of a later round's plan
RECORD_SIZE = _RECORD.size
_ENTRY_SIZE = 1 + SIGNATURE_SIZE
_CONVICTION_ENTRY_SIZE = 1 + WORD + SIGNATURE_SIZE


@dataclass(frozen=True)
class Domain:
    """The EIP-712 domain of one ledger contract."""

    chain_id: int
    ledger: str

    @cached_property
    def separator(self) -> bytes:
        return _separator(_LEDGER_NAME, _LEDGER_VERSION, self.chain_id, self.ledger)


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
    horizon: U16  # non-empty seals that weight remembers: a power of two
    min_round_time: U32
    round_timeout: U32
    eviction_time: U32
    max_inner_steps: U32  # of a round
    start_time: U64  # Unix time before which round 0 does not open
    tokens_per_step: U64
    invited: Bool  # only whom its creator or a steward invited may join
    bond: U128  # wei that a slot locks; 0: none
    outer: Bytes32  # keccak of what a proof of the outer step needs to know; zero: none can be made


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
    """The statement about one payload. Sizes in bytes, loss in micro-nats (2^32 - 1: that or more), times in
    milliseconds; `kept` is the part of the change's energy that the payload keeps (UNIT = 1.0, 0 where no rank
    adapts)."""

    run: Bytes32
    round: U32
    stage: U16
    replica: U16
    account: Address
    base_weights: Bytes32
    payload: Bytes32
    payload_size: U64
    payload_root: Bytes32
    plan: Bytes32
    inner_steps: U32
    loss: U32
    previous: Bytes32
    start_payload: Bytes32
    folded_payload: Bytes32
    folded_payload2: Bytes32
    weights_before: Bytes32
    optimiser_before: Bytes32
    optimiser_after: Bytes32
    change_before: Bytes32
    payload_before: Bytes32
    change: Bytes32
    trace: Bytes32
    segments: U16
    compute_ms: U32
    exchange_ms: U32
    kept: U16
    flags: U8

    def encode(self) -> bytes:
        """896 bytes: the public blob that `hash` names."""
        return encode_words(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return decode_words(cls, data)

    def hash(self) -> bytes:
        """sha256 of `encode()`: the contribution's name everywhere."""
        return self._hash

    @property
    def exchange(self) -> int:
        """Percent of the computing time that the exchange took, 1 to 255, halves rounded up; 0: not measured."""
        if not self.compute_ms or not self.exchange_ms:
            return 0
        return min(255, max(1, (200 * self.exchange_ms + self.compute_ms) // (2 * self.compute_ms)))

    def record(self, multiplier: int) -> "Record":
        """What a seal says of it."""
        return Record(self.replica, self._hash, self.loss, self.inner_steps, self.exchange, multiplier)

    def digest(self, domain: Domain) -> bytes:
        """What its account signs: the record that any seal will have of it, whatever its multiplier."""
        return self.record(0).digest(domain, self.run, self.round, self.stage)

    def sign(self, domain: Domain, key: bytes) -> "SignedContribution":
        return SignedContribution(self, sign(self.digest(domain), key))

    @cached_property
    def _hash(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()


@dataclass(frozen=True)
class SignedContribution:
    """A contribution with a signature that is not yet known to be its account's: see `verify`."""

    contribution: Contribution
    signature: bytes

    def encode(self) -> bytes:
        """961 bytes, as gossip carries it."""
        if len(self.signature) != SIGNATURE_SIZE:
            raise TypedError(f"a signature has {SIGNATURE_SIZE} bytes, got {len(self.signature)}")
        return self.contribution.encode() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) != SIGNED_SIZE:
            raise TypedError(f"a signed contribution has {SIGNED_SIZE} bytes, got {len(data)}")
        return cls(Contribution.decode(data[:CONTRIBUTION_SIZE]), bytes(data[CONTRIBUTION_SIZE:]))

    def signer(self, domain: Domain) -> str:
        """Raises SignatureError where the signature is nobody's."""
        return recover(self.contribution.digest(domain), self.signature)

    def verify(self, domain: Domain) -> None:
        """Raises SignatureError unless the contribution's own account signed it."""
        signer = self.signer(domain)
        if signer != self.contribution.account:
            raise SignatureError(f"signed by {signer}, not by {self.contribution.account}")


@dataclass(frozen=True, slots=True)
class Record:
    """A counted contribution as its seal has it. Loss in micro-nats, exchange in percent of the computing time (0: not
    measured), multiplier UNIT = 1.0."""

    replica: int
    statement: bytes
    loss: int
    inner_steps: int
    exchange: int
    multiplier: int

    def encode(self) -> bytes:
        """44 bytes. Raises TypedError for fields out of range."""
        data = _pack(_RECORD, "a record", self._fields)
        if self.replica >= MAX_REPLICAS:
            raise TypedError(f"a record is of one of {MAX_REPLICAS} replicas, not of {self.replica}")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) != RECORD_SIZE:
            raise TypedError(f"a record has {RECORD_SIZE} bytes, got {len(data)}")
        if data[0] >= MAX_REPLICAS:
            raise TypedError(f"a record is of one of {MAX_REPLICAS} replicas, not of {data[0]}")
        return cls(*_RECORD.unpack(data))

    def digest(self, domain: Domain, run: bytes, round: int, stage: int) -> bytes:
        """What its maker signed."""
        words = run + word(round) + word(stage) + word(self.replica) + self.statement
        words += word(self.loss) + word(self.inner_steps) + word(self.exchange)
        return _digest(domain.separator, keccak(_CONTRIBUTION_TYPE + words))

    @property
    def _fields(self) -> tuple[int | bytes, ...]:
        return self.replica, self.statement, self.loss, self.inner_steps, self.exchange, self.multiplier


class Counted:
    """What the records of a sealed round come to."""

    records: tuple[Record, ...]

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def steps(self) -> int:
        """Inner steps, of all records."""
        return sum(record.inner_steps for record in self.records)

    @property
    def mean_loss(self) -> int:
        """Micro-nats, weighed by inner steps and rounded down; 0 for no records."""
        total = sum(record.loss * record.inner_steps for record in self.records)
        return total // self.steps if total else 0


@dataclass(frozen=True)
class Outcome:
    """What a sealed (round, stage) came to. Of an empty seal the four hashes are zero: nothing changes."""

    weights: bytes  # sha256 of V[s,t+1]
    momentum: bytes  # sha256 of the outer momentum; zero where there is none
    weights_root: bytes  # RFC 6962 roots (ground.merkle) of the same two files
    momentum_root: bytes
    inner_steps: int  # of this round
    plan: Plan  # of round t + delay + 1

    @property
    def hashes(self) -> tuple[bytes, bytes, bytes, bytes]:
        return self.weights, self.momentum, self.weights_root, self.momentum_root

    @property
    def plans(self) -> bytes:
        """11 bytes, as the ledger packs them."""
        return _pack(_PLANS, "plans", (self.inner_steps, self.plan.level, self.plan.rank, self.plan.inner_steps))

    @classmethod
    def of(cls, weights: bytes, momentum: bytes, weights_root: bytes, momentum_root: bytes, plans: bytes) -> Self:
        """From the fields as the ledger has them, with the 11 bytes of the plans."""
        inner_steps, *plan = _PLANS.unpack(plans)
        return cls(weights, momentum, weights_root, momentum_root, inner_steps, Plan(*plan))

    @classmethod
    def empty(cls, inner_steps: int, plan: Plan) -> Self:
        """Of a seal that counts nothing."""
        return cls(ZERO32, ZERO32, ZERO32, ZERO32, inner_steps, plan)


@dataclass(frozen=True)
class Seal(Counted):
    """What closes (round, stage); `previous` is the digest of the stage's seal before, or its genesis weights."""

    run: bytes
    stage: int
    round: int
    previous: bytes
    outcome: Outcome
    records: tuple[Record, ...]  # replicas strictly ascending

    def encode(self) -> bytes:
        """209 bytes and 44 for each record."""
        outcome = self.outcome
        head = (self.run, self.stage, self.round, self.previous, *outcome.hashes, outcome.plans)
        return _pack(_SEAL, "a seal", head) + encode_records(self.records)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) < _SEAL.size:
            raise TypedError(f"a seal has at least {_SEAL.size} bytes, got {len(data)}")
        run, stage, round, previous, *outcome = _SEAL.unpack(data[: _SEAL.size])
        return cls(run, stage, round, previous, Outcome.of(*outcome), decode_records(data[_SEAL.size :]))

    def digest(self, domain: Domain) -> bytes:
        """What attesters sign, and the stage's head on the ledger once it is sealed. Raises TypedError."""
        return _digest(domain.separator, self._hash)

    @cached_property
    def _hash(self) -> bytes:
        data = self.encode()
        run, _, _, *hashes, plans = _SEAL.unpack(data[: _SEAL.size])
        words = run + word(self.stage) + word(self.round) + b"".join(hashes) + plans + bytes(WORD - len(plans))
        return keccak(_SEAL_TYPE + words + keccak(data[_SEAL.size :]))


class Signs(Enum):
    """What an entry of a seal's signatures is over, and for whom."""

    SEAL = 0  # the seal, and with it the record of its replica
    RECORD = 128  # the Contribution of the record of its replica
    FOUNDER = 192  # the seal, for a founder's weight


@dataclass(frozen=True, slots=True)
class Entry:
    """One of a seal's signatures."""

    signs: Signs
    replica: int  # of the signer's record where it has one, else its current one; of a founder 0
    signature: bytes


def entries(
    seal_signatures: Mapping[str, tuple[int, bytes]],
    record_signatures: Mapping[int, bytes],
    founder_signature: bytes | None = None,
) -> bytes:
    """The `signatures` of a seal: account -> (replica, signature of the seal); replica -> signature of its record for
    those makers who did not sign the seal; and a founder's signature of the seal. Accounts ascend, as those without a
    slot must."""
    ordered = (seal_signatures[account] for account in ascending([*seal_signatures]))
    found = [Entry(Signs.SEAL, *signed) for signed in ordered]
    found += [Entry(Signs.RECORD, *signed) for signed in sorted(record_signatures.items())]
    found += [] if founder_signature is None else [Entry(Signs.FOUNDER, 0, founder_signature)]
    parts = []
    for entry in found:
        if not 0 <= entry.replica < MAX_REPLICAS or len(entry.signature) != SIGNATURE_SIZE:
            raise TypedError(f"an entry has a replica and {SIGNATURE_SIZE} bytes, not {entry}")
        parts.append(bytes([entry.replica + entry.signs.value]) + entry.signature)
    return b"".join(parts)


def split_entries(data: bytes) -> tuple[Entry, ...]:
    """The `signatures` of a seal, in their order."""
    if len(data) % _ENTRY_SIZE:
        raise TypedError(f"signatures come in entries of {_ENTRY_SIZE} bytes, got {len(data)}")
    return tuple(
        Entry(*_signs(data[i]), bytes(data[i + 1 : i + _ENTRY_SIZE])) for i in range(0, len(data), _ENTRY_SIZE)
    )


def has_founder(data: bytes) -> bool:
    """Whether the `signatures` of a seal have a founder's, be it one or not."""
    return max(data[::_ENTRY_SIZE], default=0) >= Signs.FOUNDER.value


def _signs(first: int) -> tuple[Signs, int]:
    """By the first byte of an entry, as the contract reads it: what it signs, and the replica."""
    if first >= Signs.FOUNDER.value:
        return Signs.FOUNDER, 0
    return (Signs.RECORD, first - Signs.RECORD.value) if first >= Signs.RECORD.value else (Signs.SEAL, first)


@dataclass(frozen=True)
class Agreement:
    """What the members at both ends of a pipe recorded of it in a round. The ledger never sees it: each keeps the
    other's signature in its trace."""

    run: Bytes32
    round: U32
    replica: U16
    stage: U16  # the earlier of the two
    recorded: Bytes32

    def digest(self, domain: Domain) -> bytes:
        """What both sign. Raises TypedError for fields out of range."""
        return _digest(domain.separator, keccak(type_hash(Agreement) + encode_words(self)))


@dataclass(frozen=True)
class Verdict:
    """What a checker found of a contribution: HONEST, FALSE or WITHHELD. `report`: sha256 of the blob that says why."""

    run: Bytes32
    stage: U16
    round: U32
    account: Address  # whose contribution it is
    statement: Bytes32  # its name
    finding: U8
    report: Bytes32

    @property
    def convicts(self) -> bool:
        """Whether the ledger takes it for a vote to convict."""
        return self.finding in (FALSE, WITHHELD)

    @property
    def contribution(self) -> tuple[bytes, int, int, str, bytes]:
        """What it is about: run, stage, round, account, statement."""
        return self.run, self.stage, self.round, self.account, self.statement

    def digest(self, domain: Domain) -> bytes:
        """What its checker signs. Raises TypedError for fields out of range."""
        return _digest(domain.separator, keccak(type_hash(Verdict) + encode_words(self)))

    def sign(self, domain: Domain, key: bytes) -> "SignedVerdict":
        return SignedVerdict(self, sign(self.digest(domain), key))


@dataclass(frozen=True)
class SignedVerdict:
    """A verdict with a signature; whose, `signer` says."""

    verdict: Verdict
    signature: bytes

    def signer(self, domain: Domain) -> str:
        """Raises SignatureError where the signature is nobody's."""
        return recover(self.verdict.digest(domain), self.signature)


@dataclass(frozen=True, slots=True)
class ConvictionEntry:
    """One of a conviction's verdicts, without what all of them say alike."""

    finding: int
    report: bytes
    signature: bytes


def conviction_entries(verdicts: Iterable[SignedVerdict], domain: Domain) -> bytes:
    """The `entries` of a conviction, 98 bytes each: finding, report, signature. Their signers ascend, as they must.
    Raises TypedError unless all verdicts are about one contribution, and none finds it honest; SignatureError for a
    signature of nobody."""
    verdicts = sorted(verdicts, key=lambda signed: int(signed.signer(domain), 16))
    if len({signed.verdict.contribution for signed in verdicts}) != 1:
        raise TypedError("a conviction takes verdicts on one contribution")
    parts = []
    for signed in verdicts:
        if not signed.verdict.convicts or len(signed.verdict.report) != WORD or len(signed.signature) != SIGNATURE_SIZE:
            raise TypedError(f"a conviction takes signed verdicts of false or withheld, not {signed}")
        parts.append(bytes([signed.verdict.finding]) + signed.verdict.report + signed.signature)
    return b"".join(parts)


def split_conviction(data: bytes) -> tuple[ConvictionEntry, ...]:
    """The `entries` of a conviction, in their order."""
    size = _CONVICTION_ENTRY_SIZE
    if len(data) % size:
        raise TypedError(f"verdicts come in entries of {size} bytes, got {len(data)}")
    parts = (data[i : i + size] for i in range(0, len(data), size))
    return tuple(ConvictionEntry(part[0], bytes(part[1 : 1 + WORD]), bytes(part[1 + WORD :])) for part in parts)


@dataclass(frozen=True)
class Report:
    """Which payloads of a round (named by their contributions) a member holds and lacks; `made`: when it said so, in ms
    of the chain's time."""

    run: Bytes32
    round: U32
    stage: U16
    made: U64
    holding: Annotated[tuple[bytes, ...], "bytes32[]"]
    missing: Annotated[tuple[bytes, ...], "bytes32[]"]

    def digest(self, domain: Domain) -> bytes:
        if any(len(name) != WORD for name in self.holding + self.missing):
            raise TypedError("holding, missing: expected 32 bytes each")
        lists = keccak(b"".join(self.holding)) + keccak(b"".join(self.missing))
        return _digest(domain.separator, keccak(type_hash(Report) + encode_words(self) + lists))


@dataclass(frozen=True)
class Evaluation:
    """What a stage of a drawn replica computed of a version on held-out samples. `previous`: the name of the signed
    evaluation of the stage before, whose activations it took; of the first stage zero. Only the last stage has `sum`
    and `count`: of the losses in micronats, over so many tokens. Only the others have `activations`, a blob's name."""

    run: Bytes32
    version: U32
    replica: U16
    stage: U16
    previous: Bytes32
    activations: Bytes32
    sum: U64
    count: U32

    def digest(self, domain: Domain) -> bytes:
        return _digest(domain.separator, keccak(type_hash(Evaluation) + encode_words(self)))

    def sign(self, domain: Domain, key: bytes) -> "SignedEvaluation":
        return SignedEvaluation(self, sign(self.digest(domain), key))


@dataclass(frozen=True)
class SignedEvaluation:
    evaluation: Evaluation
    signature: bytes

    @property
    def name(self) -> bytes:
        """sha256 of the encoding: what the ledger and the next stage's evaluation name."""
        return hashlib.sha256(self.encode()).digest()

    def signer(self, domain: Domain) -> str:
        """Raises SignatureError for a signature of nobody."""
        return recover(self.evaluation.digest(domain), self.signature)

    def encode(self) -> bytes:
        """EVALUATION_SIZE bytes."""
        return encode_words(self.evaluation) + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises TypedError; the signature is not verified."""
        if len(data) != EVALUATION_SIZE:
            raise TypedError(f"a signed evaluation has {EVALUATION_SIZE} bytes, got {len(data)}")
        return cls(decode_words(Evaluation, data[:-SIGNATURE_SIZE]), bytes(data[-SIGNATURE_SIZE:]))


@dataclass(frozen=True)
class Scores:
    """What an account signs who says how well a version does in tasks; `statement`: sha256 of the JSON that says it.
    The ledger never sees it."""

    run: Bytes32
    version: U32
    statement: Bytes32

    def digest(self, domain: Domain) -> bytes:
        """Raises TypedError for fields out of range."""
        return _digest(domain.separator, keccak(type_hash(Scores) + encode_words(self)))


@dataclass(frozen=True)
class SiteMember:
    """What a site's key signs: that the account is one of its machines. The key's address is the site."""

    run: Bytes32
    account: Address

    def digest(self, domain: Domain) -> bytes:
        """What the site's key signs."""
        return _digest(domain.separator, keccak(type_hash(SiteMember) + encode_words(self)))

    def sign(self, domain: Domain, key: bytes) -> bytes:
        return sign(self.digest(domain), key)


@dataclass(frozen=True)
class Invitation:
    """Whom the creator or a steward of an invited run lets in: an account, or all machines of a site; the other is
    zero. Unix times: a revocation ends what was issued until then, and nobody brings one after `expiry`."""

    ledger: Address
    run: Bytes32
    account: Address
    site: Address
    issued: U64
    expiry: U64

    @property
    def guest(self) -> str:
        """The account or the site."""
        return self.site if self.account == ZERO_ACCOUNT else self.account

    def encode(self) -> bytes:
        """192 bytes."""
        return encode_words(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return decode_words(cls, data)

    def digest(self, chain_id: int, invitations: str) -> bytes:
        """What its maker signs, for the contract Invitations at that address. Raises TypedError."""
        separator = _separator(_INVITATIONS_NAME, _INVITATIONS_VERSION, chain_id, invitations)
        return _digest(separator, keccak(type_hash(Invitation) + encode_words(self)))


@dataclass(frozen=True)
class Registration:
    """What a node key signs to be bound to an account."""

    account: Address
    nonce: U256


def registration_digest(chain_id: int, registry: str, account: str, nonce: int) -> bytes:
    """The digest that the NODE key signs; the nonce is the registry's for the account."""
    words = encode_words(Registration(account, nonce))
    return _digest(
        _separator(_REGISTRY_NAME, _REGISTRY_VERSION, chain_id, registry), keccak(type_hash(Registration) + words)
    )


def encode_records(records: Iterable[Record]) -> bytes:
    """The `records` of a seal. Raises TypedError unless replicas are strictly ascending."""
    records = tuple(records)
    _check_ascending(records)
    return b"".join(record.encode() for record in records)


def decode_records(data: bytes) -> tuple[Record, ...]:
    """The `records` of a seal. Raises TypedError unless replicas are strictly ascending."""
    if len(data) % RECORD_SIZE:
        raise TypedError(f"records have {RECORD_SIZE} bytes each, got {len(data)}")
    records = tuple(Record.decode(data[i : i + RECORD_SIZE]) for i in range(0, len(data), RECORD_SIZE))
    _check_ascending(records)
    return records


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
_SEAL_TYPE = keccak(
    b"Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previous,bytes32 weights,bytes32 momentum,bytes32 weightsRoot,"
    b"bytes32 momentumRoot,bytes11 plans,bytes records)"
)
_CONTRIBUTION_TYPE = keccak(
    b"Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,bytes32 statement,uint32 loss,"
    b"uint32 innerSteps,uint8 exchange)"
)


def _separator(name: str, version: str, chain_id: int, contract: str) -> bytes:
    domain = _EIP712Domain(keccak(name.encode()), keccak(version.encode()), chain_id, contract)
    return keccak(_DOMAIN_TYPE + encode_words(domain))


def _digest(separator: bytes, struct_hash: bytes) -> bytes:
    return keccak(b"\x19\x01" + separator + struct_hash)


def _check_ascending(records: tuple[Record, ...]) -> None:
    if any(a.replica >= b.replica for a, b in pairwise(records)):
        raise TypedError("records must be in strictly ascending order of replica")


def _pack(layout: struct.Struct, what: str, values: tuple[int | bytes, ...]) -> bytes:
    """Raises TypedError where a value does not fit, or is shorter than its place."""
    try:
        data = layout.pack(*values)
    except struct.error as error:
        raise TypedError(f"{what}: {error}") from None
    if layout.unpack(data) != values:
        raise TypedError(f"{what}: a hash of another length")
    return data
