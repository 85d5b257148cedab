"""What the network process and the training process say to each other, length-prefixed msgpack over a socket pair.

Both ends are ours; blobs pass by hash, tensors of the pipe by value.
"""

import struct
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dlx.p2p.frames import NO_DATA, PipeTensor, announcing
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.outer.policy import Measured
from dlx.training.outer.step import Version
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.rounds import RoundInputs, Trained

Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Kind(StrEnum):
    LOCAL = "local"  # disk, memory, a bug: says nothing about what was asked
    BLOBS = "blobs"  # inputs are missing or damaged on our disk: fetch them again
    WRONG = "wrong"  # the inputs are what their names say, and yet cannot be used


class Trouble(Struct, frozen=True):
    """Why something was not done."""

    kind: Kind
    reason: str
    blobs: tuple[Hash, ...] = ()  # the inputs of Kind.BLOBS


class Load(Struct, frozen=True, tag="load"):
    """First message: what a slot will be trained on, so that a node without it takes no slot."""

    placement: Placement


class Open(Struct, frozen=True, tag="open"):
    """Which slot to train, and where its files are; without a directory there is no slot: the process only answers
    questions about the stage's versions and payloads."""

    manifest: Hash
    stage: int
    directory: str | None
    blobs: str
    private_data: str | None = None  # a prepared folder, trained on instead of the run's data
    placement: Placement = ONE_THREAD


class Train(Struct, frozen=True, tag="train"):
    inputs: RoundInputs
    pipes: dict[str, int] = {}  # by link, the number of the pipe to that neighbour: frames of others are void


class Stop(Struct, frozen=True, tag="stop"):
    """Give up the round under way at the next step or wait."""

    reason: str


class SealedPayload(Struct, frozen=True):
    payload: Hash
    steps: int
    multiplier: int
    plan: Plan


class Outer(Struct, frozen=True, tag="outer"):
    """One canonical outer step; `request` comes back with the answer."""

    request: int
    weights: Hash
    momentum: Hash
    payloads: tuple[SealedPayload, ...]


class Measure(Struct, frozen=True, tag="measure"):
    """What does the run's aggregation policy need to know of these payloads? Their multipliers do not matter."""

    request: int
    payloads: tuple[SealedPayload, ...]


class Check(Struct, frozen=True, tag="check"):
    """Does this payload decode to finite tensors of the stage's shapes?"""

    request: int
    payload: Hash
    plan: Plan


class Start(Struct, frozen=True, tag="start"):
    """What is the hash of a round's start: of this version's weights, less alpha times this payload?"""

    request: int
    base: Hash
    payload: Hash
    plan: Plan


class Tensor(Struct, frozen=True, tag="tensor"):
    """A piece for, or from, the neighbour at `link` ("previous" or "next"), by the pipe of this number."""

    link: str
    pipe: int
    piece: PipeTensor


class Alive(Struct, frozen=True, tag="alive"):
    """The neighbour at `link` is there, by the pipe of this number, and does something; `moving`: it is sending."""

    link: str
    pipe: int
    moving: bool
    doing: str


class Working(Struct, frozen=True, tag="working"):
    """What the process has used so far, in seconds of its processors and thousands of blocks of disks: said now and
    then, so that a long request is told from a process that hangs."""

    used: float


class Loaded(Struct, frozen=True, tag="loaded"):
    """The process is there, with torch and the rest imported, and has found the placement: a slot opens quickly now."""


class Opened(Struct, frozen=True, tag="opened"):
    """The slot's saved state: the last round trained here; each stage's largest payload in bytes, by rank; and where
    and how it is trained, with what the operator should know of that."""

    trained: Trained | None
    max_payload_sizes: tuple[dict[int, int], ...]
    placement: Placement = ONE_THREAD
    notes: tuple[str, ...] = ()


class Step(Struct, frozen=True, tag="step"):
    round: int
    step: int
    loss: float


class Finished(Struct, frozen=True, tag="finished"):
    """The round is trained and saved."""

    trained: Trained


class Abandoned(Struct, frozen=True, tag="abandoned"):
    """Moments, residual and own payloads are as before the round."""

    round: int
    reason: str
    trouble: Trouble | None = None  # None: it was stopped, or a pipe broke


class Answer(Struct, frozen=True, tag="answer"):
    """To an Outer (version), a Measure (measured), a Start (start) or a Check (no trouble: it is fine)."""

    request: int
    trouble: Trouble | None = None
    version: Version | None = None
    measured: Measured | None = None
    start: Hash | None = None


class Failed(Struct, frozen=True, tag="failed"):
    """The training process cannot go on."""

    trouble: Trouble


class Gone(Struct, frozen=True, tag="gone"):
    """The process has ended, and is started again: whatever was asked of it is void. `Opened` follows when the slot is
    open again. Made by the client; it never travels."""

    reason: str
    blobs: tuple[Hash, ...] = ()  # among them are damaged ones: the slot cannot be opened, or a payload not be read


ToTrainer = Load | Open | Train | Stop | Outer | Measure | Check | Start | Tensor | Alive
FromTrainer = Loaded | Working | Opened | Step | Finished | Abandoned | Answer | Failed | Gone | Tensor


def payloads_of(message: ToTrainer) -> tuple[bytes, ...]:
    """Names of the payloads that the training process reads for it, all but an older own one in a round's start."""
    match message:
        case Outer(payloads=listed) | Measure(payloads=listed):
            return tuple(one.payload for one in listed)
        case Check(payload=payload) | Start(payload=payload):
            return (payload,)
        case Train(inputs=inputs):
            return (*([inputs.previous] if inputs.previous else []), *inputs.left_out)
    return ()


LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
to_trainer = msgspec.msgpack.Decoder(ToTrainer)
from_trainer = msgspec.msgpack.Decoder(FromTrainer)


def pack(message: ToTrainer | FromTrainer) -> bytearray:
    """A length-prefixed frame."""
    frame = bytearray(LENGTH.size)
    _encoder.encode_into(message, frame, LENGTH.size)
    LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
    return frame


def pack_in_two(message: ToTrainer | FromTrainer) -> tuple[bytes | bytearray, memoryview]:
    """`pack` in two parts that follow each other: of a tensor the second is its data itself, not copied."""
    if not isinstance(message, Tensor):
        return pack(message), NO_DATA
    data = message.piece.data
    head = announcing(_encoder.encode(replace(message, piece=replace(message.piece, data=NO_DATA))), len(data))
    return LENGTH.pack(len(head) + len(data)) + head, data
