"""Training data as blobs: shards of token ids, a data manifest that lists them, and who trains on which sample.

Importing this module loads neither torch nor pyarrow, so that a node can list a run's shards without them;
`training.data.prepare` makes shards of documents.
"""

import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
import rfc8785
from msgspec import Meta, Struct

from dlx.ground.blobs import LOST, BlobError, Damaged, read_blob
from dlx.ground.errors import DlxError
from dlx.training.data.order import SampleOrder
from dlx.training.recipe.recipe import BlobRef

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 16 * 1024 * 1024  # the largest shard; a whole number of tokens of any dtype
MAX_MANIFEST_BYTES = 16 * 1024 * 1024  # of a data manifest: about two terabytes of data
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024
MAX_VOCABULARY = 1 << 20
OPEN_SHARDS = 16  # at a time: four windows; a file that is removed takes its room on the disk while it is open
BYTE_VALUES = 256  # the vocabulary of data without a tokenizer
PREPARED = "data.json"  # the data manifest in a prepared folder, beside the shards that it lists

Split = Literal["train", "heldout"]

_CHUNK = 1 << 20
_Length = Annotated[int, Meta(ge=1, le=SHARD_BYTES)]


class DataError(DlxError, ValueError):
    """The data is missing, damaged, or not what its manifest says."""


class PreparationError(DataError):
    """What was asked of the preparation cannot be: a path or an option is wrong, whatever the data."""

    exit_code = 2


class TextError(DataError):
    """A document that has no tokens, however often it is tried."""


class DataDamaged(DataError, Damaged):
    """A blob of the data is missing or damaged on this disk: another copy may be good."""


class Shard(Struct, frozen=True, forbid_unknown_fields=True):
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: _Length  # bytes
    tokens: _Length


class DataManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """Token ids of documents one after the other, `separator` after each; they are bytes where there is no
    tokenizer."""

    train: list[Shard]
    heldout: list[Shard]
    tokenizer: BlobRef | Literal["bytes"] = "bytes"  # the blob of a tokenizer.json
    vocab_size: Annotated[int, Meta(ge=2, le=MAX_VOCABULARY)] = BYTE_VALUES  # every token id is below it
    separator: Annotated[int, Meta(ge=0, lt=MAX_VOCABULARY)] = 0
    dtype: Literal["uint8", "uint16", "uint32"] = "uint8"  # little-endian

    def shards(self, split: Split) -> list[Shard]:
        return self.train if split == "train" else self.heldout

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.shards(split))

    def blobs(self) -> list[BlobRef]:
        """Everything that the data is made of, the manifest itself aside."""
        shards = [BlobRef(shard.sha256, shard.size) for shard in self.train + self.heldout]
        return shards if self.tokenizer == "bytes" else [self.tokenizer, *shards]


class Problem(NamedTuple):
    """Something wrong with a blob of the data."""

    blob: str  # hex
    reason: str
    again: bool  # whether the right blob would help


def canonical_bytes(manifest: DataManifest) -> bytes:
    """The data manifest as RFC 8785 JSON."""
    return rfc8785.dumps(msgspec.to_builtins(manifest))


def parse_data_manifest(data: bytes) -> DataManifest:
    """The data manifest in `data`, which may come from anyone. Raises DataError."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise DataError(f"data manifest: expected at most {MAX_MANIFEST_BYTES} bytes, got {len(data)}")
    try:
        manifest = msgspec.json.decode(data, type=DataManifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"data manifest: {error}") from None
    if wrong := _contradiction(manifest):
        raise DataError(f"data manifest: {wrong}")
    if canonical_bytes(manifest) != data:
        raise DataError("data manifest: expected canonical JSON (RFC 8785) with every key present")
    return manifest


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Of a tokenizer's ids in shards."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def read_prepared(folder: Path) -> DataManifest:
    """The data manifest of a prepared folder. Raises DataError."""
    if not (folder / PREPARED).exists():
        raise DataError(f"{folder}: holds no {PREPARED}, so `dlx-node data prepare` has not finished there")
    return read_data_manifest(folder / PREPARED)


def read_data_manifest(path: Path) -> DataManifest:
    """The data manifest in a file; one that is named like a blob has to be that blob. Raises DataError."""
    if re.fullmatch(r"[0-9a-f]{64}", path.name):
        return parse_data_manifest(_load(path, MAX_MANIFEST_BYTES))
    try:
        with open(path, "rb") as file:
            return parse_data_manifest(file.read(MAX_MANIFEST_BYTES + 1))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def check(
    manifest: DataManifest, blobs: Path, progress: Callable[[int], None] = lambda size: None
) -> Iterator[Problem]:
    """What is wrong with the blobs of the data in a folder: all bytes are read. `progress` hears of every blob's
    size once it was read."""
    for blob in dict.fromkeys(manifest.blobs()):  # a shard may be listed many times
        found = problem_of(manifest, blob, blobs / blob.sha256)
        if found:
            yield found
        progress(blob.size)


def problem_of(manifest: DataManifest, blob: BlobRef, path: Path) -> Problem | None:
    """What is wrong with the file as that blob of the data: all its bytes are read."""
    in_shards = manifest.tokenizer != "bytes" and blob != manifest.tokenizer  # a byte is below BYTE_VALUES anyway
    return _wrong(path, blob, manifest.dtype, manifest.vocab_size if in_shards else 0)


def check_private(folder: Path, public: DataManifest) -> None:
    """Raises DataError unless the folder holds intact prepared data, of the same tokens as the run's public data."""
    mine = read_prepared(folder)
    if (mine.tokenizer, mine.separator) != (public.tokenizer, public.separator):
        raise DataError(f"{folder}: was prepared with another tokenizer or separator than the run's data")
    for problem in check(mine, folder):
        raise DataError(f"{folder}: {problem.blob}: {problem.reason}")


def sample_order(manifest: DataManifest, seed: int, sequence_length: int) -> SampleOrder:
    """The order in which a run goes through the training data. Raises DataError for data without a sample."""
    counts = _sample_counts(manifest.train, sequence_length)
    if not any(counts):
        raise DataError(f"the training data has no sample of {sequence_length} tokens and one more")
    return SampleOrder(seed, counts)


class Dataset:
    """Samples read from shards. A sample is `sequence_length` tokens and their successor, all from one shard.

    A shard is opened when a sample of it is asked for, and all its bytes are compared with its name each time that it
    is: any other may be missing. Nothing is mapped: a file that is cut short or cannot be read is one to be had again,
    and no signal. `private` data belongs to one replica alone, which walks through all of it.
    """

    def __init__(self, manifest: DataManifest, blobs: Path, private: bool = False) -> None:
        self.manifest, self.private = manifest, private
        self.vocab_size: int = manifest.vocab_size
        self._blobs = blobs
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._opened = lru_cache(OPEN_SHARDS)(self._open)
        self._ends: dict[tuple[str, int], list[int]] = {}  # sample count up to and including each shard
        self._order = lru_cache(1)(partial(sample_order, manifest))

    @classmethod
    def open(cls, data_manifest: Path, blobs: Path) -> "Dataset":
        """The data that the blob at `data_manifest` lists. Raises DataError, DataDamaged where another copy of it would
        do."""
        return cls(parse_data_manifest(_load(data_manifest, MAX_MANIFEST_BYTES)), blobs)

    @classmethod
    def open_private(cls, folder: Path) -> "Dataset":
        """A prepared folder as the replica's own data; see `check_private`. Raises DataError."""
        return cls(read_prepared(folder), folder, private=True)

    @property
    def identity(self) -> bytes:
        """sha256 of the data manifest: 32 bytes."""
        return hashlib.sha256(canonical_bytes(self.manifest)).digest()

    def tokens(self, split: Split) -> int:
        return self.manifest.tokens(split)

    def len_samples(self, split: Split, sequence_length: int) -> int:
        """How many samples the split has; ids run from 0 to this, exclusive."""
        ends = self._sample_ends(split, sequence_length)
        return ends[-1] if ends else 0

    def batch(self, split: Split, ids: Sequence[int], sequence_length: int) -> "torch.Tensor":
        """int64 [len(ids), sequence_length + 1]: inputs are `[:, :-1]`, labels `[:, 1:]`.

        Raises DataDamaged for a shard that is missing or not what its name says, DataError for one of other tokens than
        the data manifest says, or a sample that there is not.
        """
        import torch

        ends, shards = self._sample_ends(split, sequence_length), self.manifest.shards(split)
        rows = np.empty((len(ids), sequence_length + 1), np.int64)
        for row, sample in zip(rows, ids, strict=True):
            if not ends or not 0 <= sample < ends[-1]:
                raise DataError(f"no sample {sample} in the {split} data ({ends[-1] if ends else 0} samples)")
            shard = bisect_right(ends, sample)
            start = (sample - (ends[shard - 1] if shard else 0)) * sequence_length
            row[:] = self._read(shards[shard], start, sequence_length + 1)
        return torch.from_numpy(rows)

    def ids(self, seed: int, positions: Sequence[int], sequence_length: int) -> list[int]:
        """The training samples at these positions of the run's order. Raises DataError where there is none."""
        return self._order(seed, sequence_length).ids(positions)

    def _sample_ends(self, split: Split, sequence_length: int) -> list[int]:
        key = (split, sequence_length)
        if key not in self._ends:
            self._ends[key] = list(accumulate(_sample_counts(self.manifest.shards(split), sequence_length)))
        return self._ends[key]

    def _read(self, shard: Shard, start: int, tokens: int) -> np.ndarray:
        at, size = start * self._dtype.itemsize, tokens * self._dtype.itemsize
        file = self._opened(shard)  # open as long as it is named: another thread may have it give way
        try:
            data = os.pread(file.fileno(), size, at)
        except OSError as error:
            if error.errno not in LOST:
                raise
            data = b""
        if len(data) < size:
            self._opened.cache_clear()  # the good copy is another file
            raise self._error(Problem(shard.sha256, "cannot be read any more", True))
        return np.frombuffer(data, self._dtype)

    def _open(self, shard: Shard) -> BinaryIO:
        path = self._blobs / shard.sha256
        if problem := problem_of(self.manifest, BlobRef(shard.sha256, shard.size), path):
            raise self._error(problem)
        try:
            return open(path, "rb", buffering=0)
        except FileNotFoundError as error:
            raise self._error(Problem(shard.sha256, str(error), True)) from None

    def _error(self, problem: Problem) -> DataError:
        if problem.again and not self.private:  # else nobody has another copy
            return DataDamaged(bytes.fromhex(problem.blob), problem.reason)
        return DataError(f"{self._blobs}: {problem.blob}: {problem.reason}")


def _sample_counts(shards: Sequence[Shard], sequence_length: int) -> list[int]:
    return [(shard.tokens - 1) // sequence_length for shard in shards]


def _contradiction(manifest: DataManifest) -> str | None:
    """What single keys cannot say."""
    bytewise = manifest.tokenizer == "bytes"
    dtype = "uint8" if bytewise else token_dtype(manifest.vocab_size)
    if bytewise and (manifest.vocab_size, manifest.separator) != (BYTE_VALUES, 0):
        return f"bytes have a vocabulary of {BYTE_VALUES}, and 0 between documents"
    if manifest.dtype != dtype:
        return f"expected dtype {dtype} for this tokenizer, got {manifest.dtype}"
    if manifest.separator >= manifest.vocab_size:
        return f"separator {manifest.separator} is not below vocab_size ({manifest.vocab_size})"
    if not isinstance(manifest.tokenizer, str) and manifest.tokenizer.size > MAX_TOKENIZER_BYTES:
        return f"expected a tokenizer of at most {MAX_TOKENIZER_BYTES} bytes"
    shards = manifest.train + manifest.heldout
    if any(shard.tokens * np.dtype(dtype).itemsize != shard.size for shard in shards):
        return "a shard's tokens differ from its bytes"
    sizes = {shard.sha256: shard.size for shard in shards}
    if any(sizes[shard.sha256] != shard.size for shard in shards):
        return "a shard is listed with two sizes"
    if not isinstance(manifest.tokenizer, str) and manifest.tokenizer.sha256 in sizes:
        return "the tokenizer is listed as a shard too"
    return None


def _load(path: Path, limit: int) -> bytes:
    try:
        return read_blob(path, limit)
    except Damaged as error:
        raise DataDamaged(error.blob, error.reason) from None
    except BlobError as error:
        raise DataError(str(error)) from None


def _wrong(path: Path, blob: BlobRef, dtype: str, limit: int) -> Problem | None:
    """What is wrong with a blob; the token ids in it have to be below `limit`, unless that is 0."""
    digest, kind, largest = hashlib.sha256(), np.dtype(dtype).newbyteorder("<"), 0
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                if limit and size == blob.size:  # then it is a whole number of tokens
                    largest = max(largest, int(np.frombuffer(chunk, kind).max()))
    except OSError as error:
        return Problem(blob.sha256, error.strerror or "cannot be read", True)
    named = digest.hexdigest() == blob.sha256
    if size != blob.size:
        return Problem(blob.sha256, f"expected {blob.size} bytes, got {size}", not named)
    if not named:
        return Problem(blob.sha256, "its bytes do not match its name", True)
    if limit and largest >= limit:
        return Problem(blob.sha256, f"holds token {largest}, which is not below vocab_size ({limit})", False)
    return None
