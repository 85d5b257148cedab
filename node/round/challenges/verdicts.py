"""A verdict on a drawn segment of a contribution: what its checker found, in bytes that anybody may have sent.

The report is a public blob, named by its sha256; the verdict that its checker signs (EIP-712) names it.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from dlx.ground.errors import DlxError
from dlx.ledger import typed
from dlx.ledger.abi import checksum
from dlx.ledger.typed import Domain, SignatureError, SignedVerdict, TypedError, Verdict
from dlx.node.round.challenges.draw import Drawn

MAX_BYTES = 4096  # of a report
MAX_REASONS, MAX_REASON = 8, 200

_Bytes20 = Annotated[bytes, Meta(min_length=20, max_length=20)]
_Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Uint16 = Annotated[int, Meta(ge=0, lt=2**16)]
_Uint32 = Annotated[int, Meta(ge=0, lt=2**32)]
_Short = Annotated[str, Meta(max_length=32, pattern=r"^[ -~]*\Z")]
_Reason = Annotated[str, Meta(max_length=MAX_REASON, pattern=r"^[ -~]*\Z")]


class Finding(IntEnum):
    HONEST = typed.HONEST
    FALSE = typed.FALSE
    WITHHELD = typed.WITHHELD

    @property
    def word(self) -> str:
        return self.name.lower()


class VerdictError(DlxError, ValueError):
    """Bytes or a signature that are no verdict."""


class Distances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a replayed segment from what was claimed, relative; None: not compared."""

    weights: float | None = None
    optimiser: float | None = None
    activations: float | None = None
    gradients: float | None = None


class VerdictReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a checker found. Losses in nats per token, means over the round (stated) and the segment (replayed)."""

    run: _Bytes32
    round: _Uint32
    stage: _Uint16
    replica: _Uint16
    account: _Bytes20  # whose contribution it is
    statement: _Bytes32
    finding: Annotated[int, Meta(ge=1, le=3)]
    segment: _Uint16
    distances: Distances = Distances()
    loss_stated: float | None = None
    loss_replayed: float | None = None
    reasons: Annotated[tuple[_Reason, ...], Meta(max_length=MAX_REASONS)] = ()
    software: _Short = ""
    hardware: _Short = ""
    checker: _Bytes20

    def encode(self) -> bytes:
        """Canonical msgpack. Raises VerdictError where it is no report."""
        data = _encoder.encode(self)
        decode(data)
        return data

    @property
    def key(self) -> tuple[bytes, int]:
        """As that of what was drawn: the statement's name and the segment."""
        return self.statement, self.segment

    def is_about(self, drawn: Drawn) -> bool:
        """Whether it judges this segment of this contribution."""
        place = (self.statement, self.round, self.replica, self.stage, self.segment)
        same = place == (drawn.statement, drawn.round, drawn.replica, drawn.stage, drawn.segment)
        return same and checksum(self.account) == drawn.account

    def verdict(self, report: bytes) -> Verdict:
        """What is signed; `report`: sha256 of `encode()`."""
        account = checksum(self.account)
        return Verdict(self.run, self.stage, self.round, account, self.statement, self.finding, report)


@dataclass(frozen=True)
class ReportedVerdict:
    """A verdict with its report; its checker's signature was verified."""

    report: VerdictReport
    data: bytes  # the report's
    signature: bytes

    @classmethod
    def make(cls, report: VerdictReport, sign: Callable[[Verdict], SignedVerdict]) -> Self:
        """Raises VerdictError for a report that others would refuse."""
        data = report.encode()
        return cls(report, data, sign(report.verdict(_name(data))).signature)

    @classmethod
    def read(cls, data: bytes, signature: bytes, run: bytes, domain: Domain) -> Self:
        """From anybody's bytes. Raises VerdictError."""
        report = decode(data)
        if report.run != run:
            raise VerdictError("of another run")
        found = cls(report, data, signature)
        try:
            signer = found.signed.signer(domain)
        except (SignatureError, TypedError) as error:
            raise VerdictError(str(error)) from None
        if signer != found.checker:
            raise VerdictError("not signed by the checker that it names")
        return found

    @property
    def signed(self) -> SignedVerdict:
        """As the ledger takes it."""
        return SignedVerdict(self.report.verdict(self.name), self.signature)

    @property
    def name(self) -> bytes:
        """sha256 of the report."""
        return _name(self.data)

    @property
    def checker(self) -> str:
        return checksum(self.report.checker)

    @property
    def account(self) -> str:
        """Whose contribution it is about."""
        return checksum(self.report.account)

    @property
    def finding(self) -> Finding:
        return Finding(self.report.finding)


def decode(data: bytes) -> VerdictReport:
    """Parse a report. Raises VerdictError and nothing else; only canonical bytes pass."""
    if len(data) > MAX_BYTES:
        raise VerdictError(f"a report of {len(data)} bytes, at most {MAX_BYTES}")
    try:
        report = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise VerdictError(str(error)) from None
    numbers = [*msgspec.structs.astuple(report.distances), report.loss_stated, report.loss_replayed]
    if any(number is not None and (math.isnan(number) or number < 0) for number in numbers):
        raise VerdictError("a distance or loss that is none")
    if _encoder.encode(report) != bytes(data):
        raise VerdictError("not the canonical encoding")
    return report


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(VerdictReport)


def _name(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
