"""The published examples of every kind of wire message: what its fields are, and its bytes.

`wire.msgpack` is a map: `format`, `version`, and `messages` and `frames`, lists of {kind, tag, fields, bytes}. `fields`
is in the order of the schema; a message is the map {type: tag, **fields}, a frame the array [tag, *fields]. After a
change of the protocol, `python -m tests.vectors.wire` in the repository's root writes the file anew.
"""

from pathlib import Path
from typing import Any, get_args

import msgpack
import msgspec

from dlx.p2p import wire
from dlx.p2p.frames import PipeAlive, PipeFrame, PipeTensor, PipeWant, encode_frame

FILE = Path(__file__).resolve().parents[2] / "docs" / "vectors" / "wire.msgpack"
VERSION = 1


def _bytes(length: int, start: int) -> bytes:
    return bytes((start + i) % 256 for i in range(length))


RUN, SIGNATURE = _bytes(32, 0), _bytes(65, 150)
MESSAGES: list[wire.Message] = [
    wire.Hello((12, 12), (), 31337, _bytes(20, 7), RUN, "0.1.0", _bytes(8, 40)),
    wire.Hello((2, 300), ("a-feature", "b2"), 2**63 - 1, _bytes(20, 7), RUN, "", _bytes(8, 48)),
    wire.Taken(),
    wire.ContributionMessage(_bytes(961, 3)),
    wire.ProposalMessage(RUN, 0, 127, 128, _bytes(209, 1), SIGNATURE),
    wire.ProposalMessage(RUN, 65535, 2**32 - 1, 255, _bytes(209 + 64 * 44, 1), SIGNATURE),
    wire.AttestationMessage(RUN, 256, 65536, _bytes(32, 50), SIGNATURE),
    wire.ReportMessage(RUN, 1, 2, 1_800_000_000_123, [], [], SIGNATURE),
    wire.ReportMessage(RUN, 1, 2, 1_800_000_000_123, [_bytes(32, i) for i in range(128)], [_bytes(32, 9)], SIGNATURE),
    wire.RecordsRequest(0, 7, False, []),
    wire.RecordsRequest(3, 70000, True, [_bytes(8, 100), _bytes(8, 200)]),
    wire.RecordsReply([]),
    wire.RecordsReply([_bytes(967, 5), _bytes(300, 6)]),
    wire.VerdictMessage(b"", SIGNATURE),
    wire.VerdictMessage(_bytes(4096, 11), SIGNATURE),
    wire.VerdictsRequest(70000),
    wire.EvaluationMessage(RUN, _bytes(321, 13)),
    wire.RelayRequest("16Uiu2HAkvsLtjxCcafH3iWGXufqopwGZdCjcAFUmxzFHQocwYapn"),
    wire.RelayAnswer("all places are taken", b"", ""),
    wire.RelayAnswer("", _bytes(16, 90), "192.0.2.7"),
    wire.RelayComing(_bytes(16, 91), "2001:db8::1"),
    wire.PipeHello(RUN, 2, 3, _bytes(20, 8)),
    wire.PipeAnswer(""),
    wire.PipeAnswer("no such stage: this refusal is longer than 31"),
    wire.BlobRequest(RUN, None, False, 2**32, 1 << 20),
    wire.BlobRequest(RUN, _bytes(32, 60), True, 0, 64),
    wire.BlobReply(None, None, 0),
    wire.BlobReply(2**63 - 1, None, 65536),
    wire.BlobReply(300_000, _bytes(10, 100), 0),
]
FRAMES: list[PipeFrame] = [
    PipeTensor(0, "", 0, 0, 0, 0, memoryview(b"")),
    PipeTensor(70000, "activation", 20, 3, 2**32, 4 << 20, memoryview(_bytes(300, 0))),
    PipeWant(0, False, 0),
    PipeWant(2**32 - 1, True, 2**32 - 1),
    PipeAlive("computing", 3, 20),
]


def kinds() -> set[type]:
    """Every kind that a node may send."""
    return {*get_args(wire.Message), *get_args(PipeFrame)}


def content() -> dict[str, Any]:
    """What belongs into the file."""
    return {
        "format": "dlx-node wire vectors",
        "version": VERSION,
        "messages": [_vector(message, wire.encode(message)) for message in MESSAGES],
        "frames": [_vector(frame, encode_frame(frame)) for frame in FRAMES],
    }


def fields_of(message: msgspec.Struct) -> dict[str, Any]:
    """The fields as msgpack has them: a tuple is an array, and a view its bytes."""
    return {name: _plain(getattr(message, name)) for name in message.__struct_fields__}


def _vector(message: msgspec.Struct, data: bytes) -> dict[str, Any]:
    kind = type(message)
    return {"kind": kind.__name__, "tag": kind.__struct_config__.tag, "fields": fields_of(message), "bytes": data}


def _plain(value: Any) -> Any:
    match value:
        case tuple():
            return list(value)
        case memoryview():
            return bytes(value)
    return value


if __name__ == "__main__":
    FILE.write_bytes(msgpack.packb(content()))
