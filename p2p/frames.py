"""What two pipe neighbours send each other on an open pipe: tensors, and which round they would train next."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dlx.p2p.wire import Uint16, Uint32, WireError

FRAME_LIMIT = 64 << 20  # bytes: one micro-batch of activations


class PipeTensor(Struct, frozen=True, array_like=True, tag="t", forbid_unknown_fields=True):
    """Raw bytes of one micro-batch's activations or gradients, or of a small per-step exchange."""

    round: Uint32
    kind: Annotated[str, Meta(max_length=16)]
    step: Uint32
    micro: Uint16
    data: bytes


class PipeWant(Struct, frozen=True, array_like=True, tag="w", forbid_unknown_fields=True):
    """The round that the sender would train next, and whether it could start it now."""

    round: Uint32
    ready: bool


PipeFrame = PipeTensor | PipeWant
_decoder = msgspec.msgpack.Decoder(PipeFrame)
_encoder = msgspec.msgpack.Encoder()


def encode_frame(frame: PipeFrame) -> bytes:
    return _encoder.encode(frame)


def decode_frame(data: bytes) -> PipeFrame:
    """Raises WireError for anything else."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise WireError("schema", str(error)) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError("malformed", str(error)) from None
