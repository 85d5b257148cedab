"""Documents in files: text, JSON Lines, Parquet, and folders that Hugging Face `datasets` wrote with `save_to_disk`.

What a file is follows from its name: `.jsonl` and `.ndjson`, which may be compressed (`.zst`), `.parquet`, anything
else is one document of plain UTF-8 text, or refused.
"""

import codecs
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from dlx.training.data import compressed
from dlx.training.data.shards import PREPARED, DataError, PreparationError, read_prepared

MAX_LINE = 64 * 1024 * 1024  # bytes of one line of JSON

_CHUNK = 1 << 20
_ROWS = 256  # of an Arrow batch
_JSON_LINES = (".jsonl", ".ndjson")
_PACKED = {".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz2", ".txz"}
_NOT_TEXT = {  # what may pass for text by its bytes, or is better said by its name
    **dict.fromkeys((".json", ".geojson"), "JSON"),
    **dict.fromkeys((".csv", ".tsv", ".xls", ".xlsx", ".ods"), "a table"),
    **dict.fromkeys((".doc", ".docx", ".odt", ".rtf", ".ppt", ".pptx", ".odp", ".epub"), "an office document"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ico"), "an image"),
    **dict.fromkeys((".npy", ".npz", ".safetensors", ".pt", ".pkl", ".h5"), "an array"),
    ".ipynb": "a notebook",
    ".pdf": "a PDF document",
}
_STARTS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"%PDF-": "a PDF document",
    b"PK\3\4": "a zip archive or an office document",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"PAR1": "Parquet (which is read where its name ends in .parquet)",
    b"\x93NUMPY": "an array",
    b"SQLite format 3": "a database",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
}
_CHAT = ("messages", "conversations", "prompt", "completion", "instruction")
_MEND = (
    'convert such files to .jsonl with the key "text", keep them out of the sources, or set `raw = true` in [data] '
    "(`data prepare --raw`) to train on their bytes"
)
_ZERO = "its text holds a zero byte, which ends a document where bytes are the tokens: take it out, or use a tokenizer"
_NAMED = 3  # of many files that are refused
_KINDS = 8  # of files that are taken, named in a line


class NotText(DataError):
    """A file that is no plain text."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}: {_MEND}")
        self.fact = f"{path}: {what}"


class Document(NamedTuple):
    name: str  # the file's path below the sources' common folder; with "#number" where a file has many documents
    size: int  # bytes, at least 1
    pieces: Iterable[bytes]  # those bytes; valid UTF-8 but with `raw`. Lazy: read them before the next document


class Source(NamedTuple):
    """A file, or a `datasets` folder. `documents()` starts over each time, always in the same order."""

    name: str
    path: Path
    documents: Callable[[], Iterator[Document]]


class Found(NamedTuple):
    sources: list[Source]
    left_out: dict[str, list[Path]]  # what lies in the folders and is not taken, by its kind, in the plural

    @property
    def taken(self) -> dict[str, int]:
        """Ending of the name -> how many files, the most first."""
        return dict(Counter(map(_kind, self.sources)).most_common())

    def counts(self) -> dict[str, dict[str, int]]:
        """`taken` and `left_out`: kind -> how many."""
        return {"taken": self.taken, "left_out": {kind: len(paths) for kind, paths in self.left_out.items()}}

    def __str__(self) -> str:
        """
        Examples:
            >>> print(Found([], {"hidden files": [Path(".a"), Path(".b")], "linked folders": [Path("c")]}))
            no files; left out: 2 hidden files, 1 linked folder (taken where it is named as a source: c)
        """
        kinds = list(self.taken.items())
        rest = sum(count for _, count in kinds[_KINDS:])
        shown = [*kinds[:_KINDS], *([("others", rest)] if rest else [])]
        taken = ", ".join(f"{count:,} {kind}" for kind, count in shown) or "no files"
        left = ", ".join(
            f"{len(paths):,} {kind if len(paths) > 1 else kind.removesuffix('s')}"
            + (f" (taken where it is named as a source: {paths[0]})" if kind == LINKED else "")
            for kind, paths in self.left_out.items()
        )
        return f"{taken}; left out: {left}" if left else taken


LINKED = "linked folders"


def find(paths: Sequence[Path], field: str, raw: bool = False, of_bytes: bool = False) -> Found:
    """The sources in files and folders, ordered by their names; folders are searched, hidden files and links to
    folders left out.

    Entries have their text in `field`. Of a `DatasetDict` folder the split `train` is taken: name the folder of another
    one to use that. With `raw` a file that is no text is a document of its bytes; `of_bytes`: they are the tokens, and
    byte 0 ends a document. Raises DataError, and so does reading a document that is not what it has to be.
    """
    found: set[Path] = set()
    left_out: dict[str, set[Path]] = {}
    for given in paths:
        path = given.resolve()
        if path.is_dir():
            found.update(_walk(path, left_out))
        elif path.is_file():
            found.add(path)
        else:
            raise PreparationError(f"{given}: no such file or folder")
    folders = [path if path.is_dir() else path.parent for path in (path.resolve() for path in paths)]
    base = os.path.commonpath(folders) if folders else ""
    named = sorted((Path(os.path.relpath(path, base)).as_posix(), path) for path in found)
    sources = [Source(name, path, _reader(name, path, field, raw, of_bytes)) for name, path in named]
    return Found(sources, {kind: sorted(left_out[kind]) for kind in sorted(left_out)})


def read_all(sources: Sequence[Source], read: Callable[[Source], None]) -> None:
    """Have each source read. Raises DataError for all that cannot be, the first few by name."""
    refused, count = list[DataError](), 0
    for source in sources:
        try:
            read(source)
        except PreparationError:
            raise
        except DataError as error:
            count += 1
            refused += [error] if count <= _NAMED else []
    if count == 1:
        raise refused[0]
    if refused:
        said = [error.fact if isinstance(error, NotText) else str(error) for error in refused]
        named = "; ".join([*said, *([f"and {count - _NAMED:,} more"] if count > _NAMED else [])])
        mend = f": {_MEND}" if any(isinstance(error, NotText) for error in refused) else ""
        raise DataError(f"{count:,} of {len(sources):,} files cannot be taken ({named}){mend}")


def _kind(source: Source) -> str:
    if source.path.is_dir():
        return "`datasets` folders"
    return "".join(source.path.suffixes[-2 if _is_compressed_lines(source.path) else -1 :]).lower() or "without ending"


def _walk(folder: Path, left_out: dict[str, set[Path]]) -> Iterator[Path]:
    """Files and `datasets` folders below a folder, links to folders not followed."""

    def leave(kind: str, path: Path) -> None:
        left_out.setdefault(kind, set()).add(path)

    for root, folders, files in os.walk(folder, onerror=_unreadable):
        here = Path(root)
        if PREPARED in files and _is_prepared(here):
            raise DataError(f"{here}: holds prepared data and no documents; keep it out of the sources")
        if "dataset_dict.json" in files:
            chosen = _train_split(here)
            yield chosen
            for name in folders:
                if name != chosen.name:
                    leave("other splits", here / name)
            folders.clear()
        elif _is_dataset(here):
            yield here
            folders.clear()
        else:
            for name in folders:
                if name.startswith(".") or (here / name).is_symlink():
                    leave("hidden folders" if name.startswith(".") else LINKED, here / name)
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                if name.startswith("."):
                    leave("hidden files", here / name)
                elif (here / name).exists() and not (here / name).is_file():  # a socket, a pipe
                    leave("special files", here / name)
                else:  # a link to nothing too, which is refused when it is read
                    yield here / name


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")


def _is_prepared(folder: Path) -> bool:
    try:
        read_prepared(folder)
    except DataError:
        return False  # a document of that name
    return True


def _is_dataset(folder: Path) -> bool:
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def _train_split(folder: Path) -> Path:
    splits = _json(folder / "dataset_dict.json", "splits")
    chosen = "train" if "train" in splits else splits[0] if len(splits) == 1 else None
    if chosen is None:
        raise DataError(f"{folder}: has no split named train; name the folder of one of its splits")
    if not isinstance(chosen, str) or chosen != Path(chosen).name or not _is_dataset(folder / chosen):
        raise DataError(f"{folder}: has no folder of its split {str(chosen)[:80]}")
    return folder / chosen


def _json(path: Path, key: str) -> list[Any]:
    try:
        found = json.loads(path.read_bytes())[key]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise DataError(f"{path}: damaged, or not written by `save_to_disk`: it lists no {key.strip('_')}")
    return found


def _is_compressed_lines(path: Path) -> bool:
    return path.suffix.lower() == ".zst" and Path(path.stem).suffix.lower() in _JSON_LINES


def _reader(name: str, path: Path, field: str, raw: bool, of_bytes: bool) -> Callable[[], Iterator[Document]]:
    ending = path.suffix.lower()
    if path.is_dir():
        return lambda: _dataset(name, path, field, of_bytes)
    if ending in _JSON_LINES or _is_compressed_lines(path):
        return lambda: _json_lines(name, path, field, of_bytes)
    if ending == ".parquet":
        return lambda: _entries(name, path, _arrow_errors(path, _parquet(path, field)), of_bytes)
    return lambda: _text(name, path, raw)


def _text(name: str, path: Path, raw: bool) -> Iterator[Document]:
    if not raw:
        _check_name(path)
    try:
        with open(path, "rb") as file:
            marked = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
            start = file.seek(len(codecs.BOM_UTF8) if marked else 0)
            size = os.fstat(file.fileno()).st_size - start
            if size > 0:
                pieces = _read(path, file, size)
                yield Document(name, size, pieces if raw else _checked(path, pieces, start))
    except OSError as error:
        raise _unread(path, error) from None


def _unread(path: Path, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return DataError(f"{path}: a link to nothing")
    return DataError(f"{path}: cannot be read ({error.strerror})")


def _read(path: Path, file: BinaryIO, size: int) -> Iterator[bytes]:
    """The rest of the file in pieces; raises DataError when it cannot be read or its size changes meanwhile."""
    read = 0
    try:
        while chunk := file.read(_CHUNK):
            yield chunk
            read += len(chunk)
    except OSError as error:
        raise _unread(path, error) from None
    if read != size:
        raise DataError(f"{path}: its size changed while it was read")


def _check_name(path: Path) -> None:
    """Raises DataError for what is no plain text by its name."""
    ending = path.suffix.lower()
    if ending == ".arrow":
        raise DataError(f"{path}: name the whole folder that `save_to_disk` wrote, not a file of it")
    if ending in _PACKED:
        raise DataError(f"{path}: is packed; unpack it first")
    if ending in _NOT_TEXT:
        raise NotText(path, f"is {_NOT_TEXT[ending]}, not plain text")


def _checked(path: Path, pieces: Iterator[bytes], at: int) -> Iterator[bytes]:
    """The pieces, which begin at that byte of the file. Raises NotText where they are no UTF-8 or hold byte 0, which
    stands between documents."""
    decoder, first = codecs.getincrementaldecoder("utf-8")(), b""
    try:
        for piece in pieces:
            first = first or piece
            if (zero := piece.find(0)) >= 0:
                raise NotText(path, _seems(first) or f"is no text: it holds a zero byte (byte {at + zero})")
            decoder.decode(piece)
            at += len(piece)
            yield piece
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        wrong = at - len(decoder.getstate()[0]) + error.start
        raise NotText(path, _seems(first) or f"not UTF-8 text at byte {wrong}") from None


def _seems(start: bytes) -> str | None:
    what = next((what for begin, what in _STARTS.items() if start.startswith(begin)), None)
    return what and f"seems to be {what}, not plain UTF-8 text"


def _json_lines(name: str, path: Path, field: str, of_bytes: bool) -> Iterator[Document]:
    # A type with the one field skips all others without building them.
    try:
        row: Any = msgspec.json.Decoder(msgspec.defstruct("Row", [("text", str | None)], rename={"text": field}))
    except ValueError:
        raise PreparationError(f"{field!r}: expected a key without quotes, backslashes, control characters") from None
    try:
        with compressed.open_file(path) if path.suffix.lower() == ".zst" else open(path, "rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise DataError(f"{path}, line {number}: longer than {MAX_LINE >> 20} MiB")
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line.strip():
                    continue
                try:
                    data = (row.decode(line).text or "").encode()
                except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                    raise DataError(f"{path}, line {number}: {_plain(error, line, field)}") from None
                if of_bytes and 0 in data:
                    raise DataError(f"{path}, line {number}: {_ZERO}")
                if data:
                    yield Document(f"{name}#{number}", len(data), (data,))
    except OSError as error:
        raise _unread(path, error) from None


def _plain(error: Exception, line: bytes, field: str) -> str:
    if isinstance(error, msgspec.ValidationError):
        try:
            row = msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as worse:
            error = worse
        else:
            return _unfit(row, field)
    return "is not UTF-8" if isinstance(error, UnicodeError) else f"is not JSON ({error})"


def _unfit(row: Any, field: str) -> str:
    """Why a line of JSON has no text for us."""
    if not isinstance(row, dict):
        return f"expected an object with the key {field!r}"
    if chat := _chat(list(row), field):
        return chat
    if field in row:
        return f"the value of its key {field!r} is no text"
    other = ", ".join(map(repr, list(row)[:20]))
    return f"has no key {field!r}" + (f" but {other}: name the one with the text as `field`" if other else "")


def _chat(keys: Sequence[str], field: str) -> str | None:
    """What is said of entries that hold a chat where a text is expected."""
    found = " and ".join(repr(key) for key in _CHAT if key in keys)
    if not found or (field in keys and field not in _CHAT):
        return None
    return (
        f"holds chat data ({found}), which is not supported yet: write each conversation as one text, as the model's "
        'chat template has it, with the key "text"'
    )


def _dataset(name: str, path: Path, field: str, of_bytes: bool) -> Iterator[Document]:
    if _json_or_nothing(path / "state.json", "_indices_data_files"):
        raise DataError(f"{path}: keeps its rows' order apart; save it again after `flatten_indices()`")
    names = [
        str(entry.get("filename")) if isinstance(entry, dict) else "" for entry in _json(path / "state.json", _FILES)
    ]
    if any(not file or file != Path(file).name for file in names):
        raise DataError(f"{path / 'state.json'}: lists something else than names of files")

    def texts() -> Iterator[str | None]:
        for file in names:
            yield from _arrow_errors(path / file, _stream(path / file, field))

    return _entries(name, path, texts(), of_bytes)


_FILES = "_data_files"


def _json_or_nothing(path: Path, key: str) -> Any:
    try:
        return json.loads(path.read_bytes()).get(key)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _entries(name: str, path: Path, texts: Iterator[str | None], of_bytes: bool) -> Iterator[Document]:
    for number, text in enumerate(texts):
        if text:
            data = text.encode()
            if of_bytes and 0 in data:
                raise DataError(f"{path}, entry {number}: {_ZERO}")
            yield Document(f"{name}#{number}", len(data), (data,))


def _parquet(path: Path, field: str) -> Iterator[str | None]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
        _expect_text(path, file.schema_arrow, field)
        for batch in file.iter_batches(_ROWS, columns=[field], use_threads=False):
            yield from batch.column(0).to_pylist()


def _stream(path: Path, field: str) -> Iterator[str | None]:
    import pyarrow

    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as reader:
        _expect_text(path, reader.schema, field)
        for batch in reader:
            column = batch.column(field)
            column.validate(full=True)  # a text may claim to end behind the file, and nothing else looks
            for start in range(0, len(column), _ROWS):
                yield from column.slice(start, _ROWS).to_pylist()


def _expect_text(path: Path, schema: Any, field: str) -> None:
    from pyarrow import types

    if field not in schema.names and (chat := _chat(schema.names, field)):
        raise DataError(f"{path}: {chat}")
    if schema.names.count(field) != 1:
        columns = ", ".join(map(repr, schema.names[:20]))
        raise DataError(f"{path}: expected one column {field!r}, has {columns}")
    kind = schema.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise DataError(f"{path}: {_chat(schema.names, field) or f'column {field!r} holds {kind}, not text'}")


def _arrow_errors(path: Path, texts: Iterator[str | None]) -> Iterator[str | None]:
    import pyarrow

    try:
        yield from texts
    except UnicodeError:
        raise DataError(f"{path}: holds text that is not UTF-8") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from None
