"""What an interrupted preparation leaves, so that the same one goes on where it was.

One file, replaced whenever a shard was written: what is being made, how many batches went into the shards, and the
tokens that fill no shard yet. It says nothing that the next call does not check.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dlx.ground import durable
from dlx.training.data.shards import SHARD_BYTES, PreparationError, Shard

NAME = ".unfinished"  # in the folder that is prepared
FORMAT = 4


class Making(Struct, frozen=True, forbid_unknown_fields=True):
    """What decides every bit of the data."""

    format: int  # of this file, and of the batches
    sources: str  # sha256 of the names, sizes and times of all files
    tokenizer: str  # sha256 of its file, or "bytes"
    separator: int
    field: str
    packing: str  # of conversations: what decides it; else empty
    heldout: float  # 0: a set of its own
    mixture: list[float]  # epochs of each section
    drop_copies: bool


class Unfinished(Struct, frozen=True, forbid_unknown_fields=True):
    making: Making
    batches: Annotated[int, Meta(ge=0)] = 0
    train: list[Shard] = msgspec.field(default_factory=list)
    heldout: list[Shard] = msgspec.field(default_factory=list)
    left: tuple[bytes, bytes] = (b"", b"")  # of the two: tokens behind the last shard
    counts: tuple[int, int, int] = (0, 0, 0)  # of conversations: see tokenising.Counts
    sources: list[int] = msgspec.field(default_factory=list)  # tokens of training data, of each section


def load(path: Path, blobs: Path, begun: Unfinished) -> Unfinished:
    """What was kept there, whose shards are in `blobs`, or `begun`. Raises PreparationError where something else was
    being made."""
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=Unfinished)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return begun
    if not found.batches:
        return begun
    for key in Making.__struct_fields__:
        if getattr(found.making, key) != getattr(begun.making, key):
            what = "from files that have changed since, or others" if key == "sources" else f"with another {key}"
            raise PreparationError(f"{blobs}: was begun {what}; give the same again, or name another folder")
    whole = all(_is_there(blobs, shard) for shard in found.train + found.heldout)
    fits = all(len(tokens) < SHARD_BYTES for tokens in found.left)
    return found if whole and fits and len(found.sources) == len(begun.sources) else begun


def save(path: Path, state: Unfinished) -> None:
    """Raises OSError."""
    durable.write_bytes(path, msgspec.msgpack.encode(state))


def _is_there(folder: Path, shard: Shard) -> bool:
    try:
        return (folder / shard.sha256).stat().st_size == shard.size
    except OSError:
        return False
