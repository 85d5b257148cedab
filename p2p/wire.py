"""Everything that crosses the network: schemas, sizes, encoding.

msgpack maps with a `type` tag. Whoever decodes gets a value that fits its schema exactly, or WireError.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

GOSSIP_LIMIT = 16 * 1024
REPLY_LIMIT = 16 * 1024  # bytes of an answer about a blob, without the blob's
VERSIONS = (14, 14)  # of this protocol, the oldest and the newest that this node speaks
FEATURES: tuple[str, ...] = ()  # what a version may leave out, by name; none yet

Bytes8 = Annotated[bytes, Meta(min_length=8, max_length=8)]
Bytes20 = Annotated[bytes, Meta(min_length=20, max_length=20)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=65, max_length=65)]
Signed = Annotated[bytes, Meta(min_length=961, max_length=961)]
SignedEvaluation = Annotated[bytes, Meta(min_length=321, max_length=321)]
SealBytes = Annotated[bytes, Meta(min_length=209, max_length=209 + 64 * 44)]
Uint16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Uint32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Uint63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Feature = Annotated[str, Meta(max_length=32, pattern=r"^[0-9a-z-]+\Z")]
GossipBytes = Annotated[bytes, Meta(min_length=1, max_length=8192)]
Have = Annotated[bytes, Meta(max_length=REPLY_LIMIT - 128)]
ReportBytes = Annotated[bytes, Meta(max_length=4096)]
Hashes64 = Annotated[list[Bytes32], Meta(max_length=64)]
Hashes128 = Annotated[list[Bytes32], Meta(max_length=128)]


class WireError(Exception):
    """A message was refused. `reason` is a short metric label: oversize, malformed or schema."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """First words on a connection; peers of another chain, ledger or run part, and those without a common version.

    A feature that one of the two does not name is not used between them. `instance` is another one whenever a node is
    started: two with one peer id are a copied folder, or a node whose end nobody has noticed yet.
    """

    versions: tuple[Uint32, Uint32]
    features: Annotated[tuple[Feature, ...], Meta(max_length=16)]
    chain_id: Uint63
    ledger: Bytes20
    run: Bytes32
    software: Annotated[str, Meta(max_length=32, pattern=r"^[0-9A-Za-z.+-]*\Z")]
    instance: Bytes8

    def common_version(self, other: "Hello") -> int | None:
        """The highest that both speak."""
        highest = min(self.versions[1], other.versions[1])
        return highest if highest >= max(self.versions[0], other.versions[0]) else None


class Taken(_Message, frozen=True, tag="taken"):
    """The answer to a hello whose peer id is that of another node, which is connected and was heard of just now."""


class RelayRequest(_Message, frozen=True, tag="relay-request"):
    """To a relay: keep a place for this peer, or (`peer`, the base58 text of its id) call one that has a place."""

    peer: Annotated[str, Meta(max_length=128)]


class RelayAnswer(_Message, frozen=True, tag="relay-answer"):
    """Why not; or for a call a token, and the IP address of who is called; of a place nothing."""

    refusal: Annotated[str, Meta(max_length=200)]
    token: Annotated[bytes, Meta(max_length=16)]
    address: Annotated[str, Meta(max_length=64)]


class RelayComing(_Message, frozen=True, tag="relay-coming"):
    """To whom a place is kept for: somebody calls. `address`: the caller's IP address, as the relay sees it."""

    token: Annotated[bytes, Meta(min_length=16, max_length=16)]
    address: Annotated[str, Meta(max_length=64)]


class ContributionMessage(_Message, frozen=True, tag="contribution"):
    statement: Signed  # and its signature


class ProposalMessage(_Message, frozen=True, tag="proposal"):
    run: Bytes32
    stage: Uint16
    round: Uint32
    attempt: Uint32
    seal: SealBytes
    signature: Signature


class AttestationMessage(_Message, frozen=True, tag="attestation"):
    run: Bytes32
    stage: Uint16
    round: Uint32
    digest: Bytes32
    signature: Signature


class ReportMessage(_Message, frozen=True, tag="report"):
    run: Bytes32
    stage: Uint16
    round: Uint32
    made: Uint63  # ms of the chain's time: a later one replaces it
    holding: Hashes128
    missing: Hashes64
    signature: Signature


class RecordsRequest(_Message, frozen=True, tag="records"):
    """Gossip messages about a round of a stage beyond those in `have` (the first 8 bytes of their sha256); with `seals`
    not the contributions alone."""

    stage: Uint16
    round: Uint32
    seals: bool
    have: Annotated[list[Bytes8], Meta(max_length=1400)]


class RecordsReply(_Message, frozen=True, tag="records-reply"):
    """As many as there is room for."""

    records: Annotated[list[GossipBytes], Meta(max_length=128)]


class VerdictMessage(_Message, frozen=True, tag="verdict"):
    """A verdict's report, and its checker's signature."""

    report: ReportBytes
    signature: Signature


class VerdictsRequest(_Message, frozen=True, tag="verdicts"):
    """The verdicts on contributions to a round and later ones, each a VerdictMessage; nothing ends them."""

    first: Uint32


class EvaluationMessage(_Message, frozen=True, tag="evaluation"):
    """What a stage of a drawn replica computed of a version on held-out samples."""

    run: Bytes32
    evaluation: SignedEvaluation


class PipeHello(_Message, frozen=True, tag="pipe"):
    """Opens a pipe: who speaks, for which slot of which run."""

    run: Bytes32
    replica: Uint16
    stage: Uint16
    account: Bytes20


class PipeAnswer(_Message, frozen=True, tag="pipe-answer"):
    """An empty refusal accepts."""

    refusal: Annotated[str, Meta(max_length=200, pattern=r"^[ -~]*\Z")]


class BlobRequest(_Message, frozen=True, tag="blob"):
    """`length` bytes of a blob from `offset`; length 0 only asks for the size. With the Merkle `root` of its file also
    of a blob that is still coming; with `leaves` not of the blob but of the hashes of its leaves."""

    hash: Bytes32
    root: Bytes32 | None
    leaves: bool
    offset: Uint63
    length: Uint32


class BlobReply(_Message, frozen=True, tag="blob-reply"):
    """`size` of the whole blob, None if not held; `length` raw bytes follow. Of a blob that is still coming `have`
    says, in the answer to length 0, which pieces are there: a bit each, the lowest of a byte first; None: all."""

    size: Uint63 | None
    have: Have | None
    length: Uint32


Message = (
    Hello
    | Taken
    | ContributionMessage
    | ProposalMessage
    | AttestationMessage
    | ReportMessage
    | RecordsRequest
    | RecordsReply
    | VerdictMessage
    | VerdictsRequest
    | EvaluationMessage
    | RelayRequest
    | RelayAnswer
    | RelayComing
    | PipeHello
    | PipeAnswer
    | BlobRequest
    | BlobReply
)
GossipMessage = (
    ContributionMessage | ProposalMessage | AttestationMessage | ReportMessage | VerdictMessage | EvaluationMessage
)

_M = TypeVar("_M", bound=_Message)
_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The canonical bytes of a message. Raises WireError if a field breaks its schema.

    Examples:
        >>> hello = Hello((1, 3), (), chain_id=31337, ledger=bytes(20), run=bytes(32), software="me", instance=bytes(8))
        >>> decode(encode(hello)) == hello
        True
    """
    data = _encoder.encode(message)
    decode(data)
    return data


def decode(data: bytes) -> Message:
    """Parse at most GOSSIP_LIMIT bytes. Raises WireError and nothing else.

    Only canonical bytes pass, so one message has one content address.

    Examples:
        >>> decode(b"hello")
        Traceback (most recent call last):
        ...
        dlx.p2p.wire.WireError: ...
    """
    if len(data) > GOSSIP_LIMIT:
        raise WireError("oversize", f"{len(data)} bytes, at most {GOSSIP_LIMIT}")
    try:
        message = _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise WireError("schema", str(error)) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError("malformed", str(error)) from None
    if _encoder.encode(message) != bytes(data):
        raise WireError("malformed", "not the canonical encoding")
    return message


def decode_as(kind: type[_M], data: bytes) -> _M:
    """Like decode, for a place where only one kind of message may come."""
    message = decode(data)
    if not isinstance(message, kind):
        raise WireError("schema", f"expected {kind.__name__}")
    return message
