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
from dlx.ground.untrusted import decode_json
from dlx.training.data.order import SampleOrder
from dlx.training.data.rows import BEGINS, IDS, SILENT
from dlx.training.recipe.recipe import BlobRef, Sha256

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 16 * 1024 * 1024  # the largest shard; a whole number of tokens of any dtype
MAX_MANIFEST_BYTES = 16 * 1024 * 1024  # of a data manifest: over a terabyte of data
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024
MAX_VOCABULARY = 1 << 20
OPEN_SHARDS = 16  # at a time: four windows; a file that is removed takes its room on the disk while it is open
MAX_ROW = (1 << 16) + 1  # tokens: of the longest sample
MAX_TEMPLATE_BYTES = 128 * 1024
BYTE_VALUES = 256  # the vocabulary of data without a tokenizer
MAX_SOURCES = 1000  # of a mixture
PREPARED = "data.json"  # the data manifest in a prepared folder, beside the shards that it lists

Split = Literal["train", "heldout"]

SourceName = Annotated[str, Meta(pattern=r"^[ -~]{1,100}\Z")]

_CHUNK = 1 << 20
_Length = Annotated[int, Meta(ge=1, le=SHARD_BYTES)]
_Number = Annotated[int, Meta(ge=0, lt=1 << 53)]


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
    sha256: Sha256
    size: _Length  # bytes
    tokens: _Length
    root: Sha256  # of its Merkle tree (ground.merkle): parts of it are checked, and passed on, as they come


class Counted(Struct, frozen=True, forbid_unknown_fields=True):
    """A source of a mixture: how many tokens of the training data are its."""

    name: SourceName
    tokens: _Number


class Rows(Struct, frozen=True, forbid_unknown_fields=True):
    """Of data that is conversations. The counts are its maker's word."""

    tokens: Annotated[int, Meta(ge=2, le=MAX_ROW)]  # of each row
    template: BlobRef  # the chat template that made text of them
    conversations: Annotated[int, Meta(ge=1, lt=1 << 53)]  # in the rows
    cut: _Number  # of these, longer than a row: their ends are left out
    left_out: _Number  # beside these: a row would not reach to the assistant's first token

    def __str__(self) -> str:
        """
        Examples:
            >>> print(Rows(1025, BlobRef("ab" * 32, 9), 1000, 2, 0))
            1,000 conversations in rows of 1,025 tokens; 2 are cut, 0 left out: longer than a row
        """
        return (
            f"{self.conversations:,} conversations in rows of {self.tokens:,} tokens; {self.cut:,} are cut, "
            f"{self.left_out:,} left out: longer than a row"
        )


class DataManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """Token ids of documents one after the other, `separator` after each; they are bytes where there is no tokenizer.
    With `rows` words of conversations, packed: see training.data.rows."""

    train: list[Shard]
    heldout: list[Shard]
    format: Literal[4] = 4
    rows: Rows | None = None
    tokenizer: BlobRef | Literal["bytes"] = "bytes"  # the blob of a tokenizer.json
    vocab_size: Annotated[int, Meta(ge=2, le=MAX_VOCABULARY)] = BYTE_VALUES  # every token id is below it
    separator: Annotated[int, Meta(ge=0, lt=MAX_VOCABULARY)] = 0
    dtype: Literal["uint8", "uint16", "uint32"] = "uint8"  # little-endian
    sources: Annotated[list[Counted], Meta(max_length=MAX_SOURCES)] = msgspec.field(default_factory=list)  # a mixture's

    def shards(self, split: Split) -> list[Shard]:
        return self.train if split == "train" else self.heldout

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.shards(split))

    def blobs(self) -> list[BlobRef]:
        """Everything that the data is made of, the manifest itself aside."""
        shards = [BlobRef(shard.sha256, shard.size) for shard in self.train + self.heldout]
        return [*self.files(), *shards]

    @property
    def kind(self) -> str:
        """In words."""
        return f"conversations in rows of {self.rows.tokens} tokens" if self.rows else "documents"

    def files(self) -> list[BlobRef]:
        """Those blobs that are no shards: what made the tokens."""
        tokenizer = [] if self.tokenizer == "bytes" else [self.tokenizer]
        return tokenizer if self.rows is None else [*tokenizer, self.rows.template]


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
        manifest = decode_json(data, DataManifest)
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
    in_shards = manifest.tokenizer != "bytes" and blob not in manifest.files()  # a byte is below BYTE_VALUES anyway
    return _wrong(path, blob, manifest.dtype, manifest.vocab_size if in_shards else 0, manifest.rows is not None)


def check_private(folder: Path, public: DataManifest) -> None:
    """Raises DataError unless the folder holds intact prepared data, of the same tokens as the run's public data."""
    mine = read_prepared(folder)
    if (mine.tokenizer, mine.separator) != (public.tokenizer, public.separator):
        raise DataError(f"{folder}: was prepared with another tokenizer or separator than the run's data")
    if (mine.rows and mine.rows.tokens) != (public.rows and public.rows.tokens):
        raise DataError(f"{folder}: has {mine.kind}, and the run's data {public.kind}")
    for problem in check(mine, folder):
        raise DataError(f"{folder}: {problem.blob}: {problem.reason}")


def sample_order(manifest: DataManifest, seed: int, sequence_length: int) -> SampleOrder:
    """The order in which a run goes through the training data. Raises DataError for data without a sample."""
    counts = _sample_counts(manifest, "train", sequence_length)
    if not any(counts):
        raise DataError(f"the training data has no sample of {sequence_length} tokens and one more")
    return SampleOrder(seed, counts)


def held_out_samples(manifest: DataManifest, sequence_length: int) -> int:
    """How many the held-out data has."""
    return sum(_sample_counts(manifest, "heldout", sequence_length))


def held_out_shards(manifest: DataManifest, samples: Sequence[int], sequence_length: int) -> list[Shard]:
    """The shards that these held-out samples lie in."""
    ends = list(accumulate(_sample_counts(manifest, "heldout", sequence_length)))
    return [manifest.heldout[place] for place in sorted({bisect_right(ends, sample) for sample in samples})]


class Dataset:
    """Samples read from shards. A sample is `sequence_length` tokens and their successor, all from one shard: a row,
    where the data has rows.

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
        """int64 [len(ids), sequence_length + 1], words (see training.data.rows): inputs are `[:, :-1]`, labels
        `[:, 1:]`.

        Raises DataDamaged for a shard that is missing or not what its name says, DataError for one of other tokens than
        the data manifest says, or a sample that there is not.
        """
        import torch

        ends, shards = self._sample_ends(split, sequence_length), self.manifest.shards(split)
        apart = sequence_length + 1 if self.manifest.rows else sequence_length  # the starts of two samples
        rows = np.empty((len(ids), sequence_length + 1), np.int64)
        for row, sample in zip(rows, ids, strict=True):
            if not ends or not 0 <= sample < ends[-1]:
                raise DataError(f"no sample {sample} in the {split} data ({ends[-1] if ends else 0} samples)")
            shard = bisect_right(ends, sample)
            start = (sample - (ends[shard - 1] if shard else 0)) * apart
            row[:] = self._read(shards[shard], start, sequence_length + 1)
        return torch.from_numpy(rows)

    def ids(self, seed: int, positions: Sequence[int], sequence_length: int) -> list[int]:
        """The training samples at these positions of the run's order. Raises DataError where there is none."""
        return self._order(seed, sequence_length).ids(positions)

    def _sample_ends(self, split: Split, sequence_length: int) -> list[int]:
        key = (split, sequence_length)
        if key not in self._ends:
            self._ends[key] = list(accumulate(_sample_counts(self.manifest, split, sequence_length)))
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


def _sample_counts(manifest: DataManifest, split: Split, sequence_length: int) -> list[int]:
    """Of each shard; none where the rows have another length."""
    shards, rows = manifest.shards(split), manifest.rows
    if rows is None:
        return [(shard.tokens - 1) // sequence_length for shard in shards]
    return [shard.tokens // rows.tokens if rows.tokens == sequence_length + 1 else 0 for shard in shards]


def _contradiction(manifest: DataManifest) -> str | None:
    """What single keys cannot say."""
    bytewise = manifest.tokenizer == "bytes"
    rows, dtype = manifest.rows, "uint8" if bytewise else token_dtype(manifest.vocab_size)
    if rows is not None:
        if bytewise:
            return "rows of conversations need a tokenizer"
        if rows.template.size > MAX_TEMPLATE_BYTES:
            return f"expected a chat template of at most {MAX_TEMPLATE_BYTES} bytes"
        dtype = "uint32"
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
    if rows is not None and any(shard.tokens % rows.tokens for shard in shards):
        return "a shard has a part of a row"
    sizes = {shard.sha256: (shard.size, shard.root) for shard in shards}
    if any(sizes[shard.sha256] != (shard.size, shard.root) for shard in shards):
        return "a shard is listed with two sizes or two Merkle roots"
    files = [blob.sha256 for blob in manifest.files()]
    if any(name in sizes for name in files):
        return "the tokenizer or the chat template is listed as a shard too"
    if len({*files}) < len(files):
        return "the tokenizer is listed as the chat template too"
    if sum(source.tokens for source in manifest.sources) > manifest.tokens("train"):
        return "its sources have more tokens than the training data"
    return None


def _load(path: Path, limit: int) -> bytes:
    try:
        return read_blob(path, limit)
    except Damaged as error:
        raise DataDamaged(error.blob, error.reason) from None
    except BlobError as error:
        raise DataError(str(error)) from None


def _wrong(path: Path, blob: BlobRef, dtype: str, limit: int, words: bool) -> Problem | None:
    """What is wrong with a blob; the token ids in it have to be below `limit`, unless that is 0. `words`: of rows."""
    digest, kind, largest = hashlib.sha256(), np.dtype(dtype).newbyteorder("<"), 0
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                if limit and size == blob.size:  # then it is a whole number of tokens
                    found = np.frombuffer(chunk, kind)
                    if words and ((found & BEGINS != 0) & (found & SILENT == 0)).any():
                        return Problem(blob.sha256, "holds a document's first token whose loss counts", False)
                    largest = max(largest, int((found & IDS if words else found).max()))
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
