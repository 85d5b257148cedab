"""What two pipe neighbours send each other on an open pipe: tensors in pieces, the round they would train next, and
that they are there."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dlx.p2p.wire import Uint16, Uint32, Uint63, WireError

TENSOR_PIECE = 4 << 20  # bytes of a tensor in one frame
FRAME_LIMIT = TENSOR_PIECE + 128  # bytes of one frame
NO_DATA = memoryview(b"")


class PipeTensor(Struct, frozen=True, array_like=True, tag="t", forbid_unknown_fields=True):
    """The bytes from `offset` on of one message between stages, which has `total` bytes: a micro-batch's activations or
    gradients, or a small per-step exchange. Decoded, `data` is a view of the frame."""

    round: Uint32
    kind: Annotated[str, Meta(max_length=16)]
    step: Uint32
    micro: Uint16
    total: Uint63
    offset: Uint63
    data: Annotated[memoryview, Meta(max_length=TENSOR_PIECE)]

    @property
    def is_last(self) -> bool:
        return self.offset + len(self.data) == self.total


class PipeWant(Struct, frozen=True, array_like=True, tag="w", forbid_unknown_fields=True):
    """The round that the sender would train next, whether it and all stages beyond it could start it now, and for how
    many inner steps they have time (0: not ready)."""

    round: Uint32
    ready: bool
    steps: Uint32


class PipeAlive(Struct, frozen=True, array_like=True, tag="a", forbid_unknown_fields=True):
    """The sender is there, and why it sends nothing else: it computes, and has done so many of its round's steps."""

    doing: Literal["computing"]
    done: Uint32
    all: Uint32


PipeFrame = PipeTensor | PipeWant | PipeAlive
_decoder = msgspec.msgpack.Decoder(PipeFrame)
_encoder = msgspec.msgpack.Encoder()


def encode_frame(frame: PipeFrame) -> bytes:
    return _encoder.encode(frame)


def in_two(frame: PipeFrame) -> tuple[bytes, memoryview]:
    """`encode_frame` in two parts that follow each other: of a tensor the second is its data itself, not copied."""
    if isinstance(frame, PipeTensor):
        return announcing(_encoder.encode(replace(frame, data=NO_DATA)), len(frame.data)), frame.data
    return _encoder.encode(frame), NO_DATA


def announcing(encoded: bytes, size: int) -> bytes:
    """msgpack that ends with empty bytes, as it begins where these are `size` others, which are to follow."""
    width = 1 if size < 1 << 8 else 2 if size < 1 << 16 else 4
    return encoded[:-2] + {1: b"\xc4", 2: b"\xc5", 4: b"\xc6"}[width] + size.to_bytes(width, "big")


def decode_frame(data: bytes | bytearray) -> PipeFrame:
    """Raises WireError for anything else."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise WireError("schema", str(error)) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError("malformed", str(error)) from None
