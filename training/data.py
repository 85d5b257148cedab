"""Training data as blobs: shards of raw bytes, a data manifest that lists them, and who trains on which sample.

A document is one file; its bytes are followed by one byte 0. Importing this module loads neither torch nor numpy's
heavier parts, so that a node can list a run's shards without them.
"""

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
import rfc8785
from msgspec import Meta, Struct

from training import atomic
from training.manifest import BlobRef

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 16 * 1024 * 1024  # the largest shard
MAX_MANIFEST_BYTES = 16 * 1024 * 1024  # of a data manifest: about two terabytes of data

Split = Literal["train", "heldout"]

_CHUNK = 1 << 20
_Length = Annotated[int, Meta(ge=1, le=SHARD_BYTES)]


class DataError(ValueError):
    """The data is missing, damaged, or not what its manifest says."""


class Shard(Struct, frozen=True, forbid_unknown_fields=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: _Length  # bytes
    tokens: _Length


class DataManifest(Struct, frozen=True, forbid_unknown_fields=True):
    train: list[Shard]
    heldout: list[Shard]
    tokenizer: Literal["bytes"] = "bytes"
    vocab_size: Literal[256] = 256
    dtype: Literal["uint8"] = "uint8"

    def shards(self, split: Split) -> list[Shard]:
        return self.train if split == "train" else self.heldout


def prepare(
    sources: Sequence[Path], blobs: Path, heldout: float = 0.05, progress: Callable[[int, int], None] | None = None
) -> BlobRef:
    """Write text files as shards to `blobs` and return the data manifest's blob.

    `sources` are files or folders (searched for files, hidden ones left out). The files are read in the order of their
    paths below the sources' common folder, which with their bytes decides every bit of the result. About `heldout` of
    the bytes are held out: whole files, chosen by a hash of their relative path, or the end of the largest file where
    the files are too few or too large for that. `progress(done, total)` is called with bytes. Raises DataError.
    """
    documents = _documents(sources)
    kept, total = _held_out_from(documents, heldout), sum(size for _, _, size in documents)
    blobs.mkdir(parents=True, exist_ok=True)
    train, held, done = _ShardWriter(blobs), _ShardWriter(blobs), 0
    for name, path, size in documents:
        for chunk, offset in _read(path, size):
            cut = min(max(kept[name] - offset, 0), len(chunk))
            train.add(chunk[:cut])
            held.add(chunk[cut:])
            done += len(chunk)
            if progress:
                progress(done, total)
        if kept[name] > 0:
            train.add(b"\0")
        if kept[name] < size:
            held.add(b"\0")
    manifest = rfc8785.dumps(msgspec.to_builtins(DataManifest(train=train.finish(), heldout=held.finish())))
    return BlobRef(sha256=atomic.write_blob(blobs, [manifest]).hex(), size=len(manifest))


def parse_data_manifest(data: bytes) -> DataManifest:
    """The data manifest in `data`, which may come from anyone. Raises DataError."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise DataError(f"data manifest: expected at most {MAX_MANIFEST_BYTES} bytes, got {len(data)}")
    try:
        manifest = msgspec.json.decode(data, type=DataManifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"data manifest: {error}") from None
    if any(shard.tokens != shard.size for shard in manifest.train + manifest.heldout):
        raise DataError("data manifest: a shard's tokens differ from its bytes")
    if rfc8785.dumps(msgspec.to_builtins(manifest)) != data:
        raise DataError("data manifest: expected canonical JSON (RFC 8785) with every key present")
    return manifest


def verify_shards(data_manifest: Path, blobs: Path) -> list[str]:
    """The names of shards that are missing in `blobs` or whose bytes do not match their name: fetch those again."""
    manifest = parse_data_manifest(_load(data_manifest, MAX_MANIFEST_BYTES))
    return [shard.sha256 for shard in manifest.train + manifest.heldout if not _intact(blobs / shard.sha256, shard)]


class Dataset:
    """Memory-mapped shards. A sample is `sequence_length` tokens and their successor, all from one shard."""

    def __init__(self, manifest: DataManifest, blobs: Path) -> None:
        self.manifest = manifest
        self.vocab_size: int = manifest.vocab_size
        self._shards = {
            "train": [_map(blobs, shard) for shard in manifest.train],
            "heldout": [_map(blobs, shard) for shard in manifest.heldout],
        }
        self._ends: dict[tuple[str, int], list[int]] = {}  # sample count up to and including each shard

    @classmethod
    def open(cls, data_manifest: Path, blobs: Path) -> "Dataset":
        """The data that the blob at `data_manifest` lists. Checks sizes only, see `verify_shards`. Raises DataError."""
        return cls(parse_data_manifest(_load(data_manifest, MAX_MANIFEST_BYTES)), blobs)

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.manifest.shards(split))

    def len_samples(self, split: Split, sequence_length: int) -> int:
        """How many samples the split has; ids run from 0 to this, exclusive."""
        ends = self._sample_ends(split, sequence_length)
        return ends[-1] if ends else 0

    def batch(self, split: Split, ids: Sequence[int], sequence_length: int) -> "torch.Tensor":
        """int64 [len(ids), sequence_length + 1]: inputs are `[:, :-1]`, labels `[:, 1:]`."""
        import torch

        ends = self._sample_ends(split, sequence_length)
        rows = np.empty((len(ids), sequence_length + 1), np.int64)
        for row, sample in zip(rows, ids, strict=True):
            if not ends or not 0 <= sample < ends[-1]:
                raise DataError(f"no sample {sample} in the {split} data ({ends[-1] if ends else 0} samples)")
            shard = bisect_right(ends, sample)
            start = (sample - (ends[shard - 1] if shard else 0)) * sequence_length
            row[:] = self._shards[split][shard][start : start + sequence_length + 1]
        return torch.from_numpy(rows)

    def _sample_ends(self, split: Split, sequence_length: int) -> list[int]:
        key = (split, sequence_length)
        if key not in self._ends:
            counts = ((shard.tokens - 1) // sequence_length for shard in self.manifest.shards(split))
            self._ends[key] = list(accumulate(counts))
        return self._ends[key]


def sample_ids(seed: int, step_index: int, replica: int, max_replicas: int, batch_size: int, samples: int) -> list[int]:
    """The samples that a replica trains on in one inner step of the run, computed by anyone from these numbers alone.

    The run walks through keyed permutations of all `samples`, one per epoch, in which every (step, replica) has its own
    place: no two of them share a sample within an epoch, whoever takes part. Raises DataError without any samples.
    """
    if samples < 1:
        raise DataError("the training data has no sample of this sequence length")
    first = (step_index * max_replicas + replica) * batch_size
    return [_permuted(seed, *divmod(position, samples), samples) for position in range(first, first + batch_size)]


def _permuted(seed: int, epoch: int, position: int, samples: int) -> int:
    """Where `position` goes in the epoch's permutation of range(samples).

    A Feistel network over the pairs (left < rows, right < columns), a few more pairs than samples; positions that land
    past the end walk on, which keeps it a permutation.
    """
    purpose = b"dlx sample order" + seed.to_bytes(8, "big") + epoch.to_bytes(8, "big")
    key = hashlib.blake2b(purpose, digest_size=32).digest()
    rows = isqrt(samples - 1) + 1
    columns = -(-samples // rows)
    while True:
        left, right = divmod(position, columns)
        for turn in range(0, 8, 2):
            left = (left + _keyed(key, turn, right)) % rows
            right = (right + _keyed(key, turn + 1, left)) % columns
        position = left * columns + right
        if position < samples:
            return position


def _keyed(key: bytes, turn: int, value: int) -> int:
    digest = hashlib.blake2b(value.to_bytes(8, "big") + bytes([turn]), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "big")


def _documents(sources: Sequence[Path]) -> list[tuple[str, Path, int]]:
    """(relative path, path, bytes) of every non-empty file, in the order of the relative paths."""
    found: set[Path] = set()
    for source in (path.resolve() for path in sources):
        if source.is_dir():
            below = (path for path in source.rglob("*") if path.is_file())
            found.update(path for path in below if not any(p.startswith(".") for p in path.relative_to(source).parts))
        elif source.is_file():
            found.add(source)
        else:
            raise DataError(f"{source}: no such file or folder")
    folders = [path if path.is_dir() else path.parent for path in (path.resolve() for path in sources)]
    base = os.path.commonpath(folders) if folders else ""
    named = sorted((Path(os.path.relpath(path, base)).as_posix(), path) for path in found)
    documents = [(name, path, path.stat().st_size) for name, path in named]
    documents = [document for document in documents if document[2]]
    if sum(size for _, _, size in documents) < 2:
        raise DataError("the data sources hold no text")
    return documents


def _held_out_from(documents: list[tuple[str, Path, int]], fraction: float) -> dict[str, int]:
    """For each document the offset from which on its bytes are held out (its size: nothing is)."""
    start = {name: size for name, _, size in documents}
    left = int(sum(start.values()) * fraction)
    for name in sorted(start, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if start[name] <= left and len(start) > 1:
            left -= start[name]
            start[name] = 0
    wanted = int(sum(size for _, _, size in documents) * fraction)
    if wanted - left < left:  # too little: take the end of the largest one as well
        largest = max(start, key=lambda name: start[name])
        start[largest] -= left
    return start


def _read(path: Path, size: int) -> Iterator[tuple[bytes, int]]:
    """The file in (chunk, offset) pieces; raises DataError when it cannot be read or its size changes meanwhile."""
    offset = 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk, offset
                offset += len(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if offset != size:
        raise DataError(f"{path}: its size changed while it was read")


class _ShardWriter:
    """Cuts a stream of bytes into shard blobs."""

    def __init__(self, blobs: Path) -> None:
        self._blobs = blobs
        self._buffer = bytearray()
        self._shards: list[Shard] = []

    def add(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= SHARD_BYTES:
            self._flush(SHARD_BYTES)

    def finish(self) -> list[Shard]:
        if self._buffer:
            self._flush(len(self._buffer))
        return self._shards

    def _flush(self, size: int) -> None:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._shards.append(Shard(sha256=atomic.write_blob(self._blobs, [data]).hex(), size=size, tokens=size))


def _load(path: Path, limit: int) -> bytes:
    try:
        return atomic.read_blob(path, limit)
    except atomic.BlobError as error:
        raise DataError(str(error)) from None


def _map(blobs: Path, shard: Shard) -> np.ndarray:
    path = blobs / shard.sha256
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise DataError(f"data shard {shard.sha256}: cannot be opened ({error})") from None
    if len(data) != shard.size:
        raise DataError(f"data shard {shard.sha256}: expected {shard.size} bytes, got {len(data)}")
    return data


def _intact(path: Path, shard: Shard) -> bool:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != shard.size:
                return False
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return False
    return digest.hexdigest() == shard.sha256
