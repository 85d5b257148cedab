"""Documents in files: text, JSON Lines, Parquet, and folders that Hugging Face `datasets` wrote with `save_to_disk`.

What a file is follows from its name: `.jsonl` and `.ndjson`, which may be compressed (`.zst`), `.parquet`, anything
else is one document of text.
"""

import codecs
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dlx.training.data import compressed
from dlx.training.data.shards import PREPARED, DataError, PreparationError, read_prepared

MAX_LINE = 64 * 1024 * 1024  # bytes of one line of JSON

_CHUNK = 1 << 20
_ROWS = 256  # of an Arrow batch
_JSON_LINES = (".jsonl", ".ndjson")
_ENDINGS = {".gz", ".bz2", ".xz", ".zst", ".zip", ".7z"}


class Document(NamedTuple):
    name: str  # the file's path below the sources' common folder; with "#number" where a file has many documents
    size: int  # bytes, at least 1
    pieces: Iterable[bytes]  # those bytes; of records valid UTF-8. Lazy: read them before the next document


class Source(NamedTuple):
    """A file, or a `datasets` folder. `documents()` starts over each time, always in the same order."""

    name: str
    path: Path
    documents: Callable[[], Iterator[Document]]


def find(paths: Sequence[Path], field: str) -> list[Source]:
    """The sources in files and folders, ordered by their names; folders are searched, hidden files left out.

    Records have their text in `field`. Of a `DatasetDict` folder the split `train` is taken: name the folder of another
    one to use that. Raises DataError, and so does reading a document that is not what it has to be.
    """
    found: set[Path] = set()
    for given in paths:
        path = given.resolve()
        if path.is_dir():
            found.update(_walk(path))
        elif path.is_file():
            found.add(path)
        else:
            raise PreparationError(f"{given}: no such file or folder")
    folders = [path if path.is_dir() else path.parent for path in (path.resolve() for path in paths)]
    base = os.path.commonpath(folders) if folders else ""
    named = sorted((Path(os.path.relpath(path, base)).as_posix(), path) for path in found)
    return [Source(name, path, _reader(name, path, field)) for name, path in named]


def _walk(folder: Path) -> Iterator[Path]:
    """Files and `datasets` folders below a folder, links to folders not followed."""
    for root, folders, files in os.walk(folder, onerror=_unreadable):
        here = Path(root)
        if PREPARED in files and _is_prepared(here):
            raise DataError(f"{here}: holds prepared data and no documents; keep it out of the sources")
        if "dataset_dict.json" in files:
            yield _train_split(here)
            folders.clear()
        elif _is_dataset(here):
            yield here
            folders.clear()
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in (name for name in files if not name.startswith(".")):
                if (here / name).is_symlink() and not (here / name).exists():
                    raise DataError(f"{here / name}: a link to nothing")
                if (here / name).is_file():  # no socket or pipe
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


def _reader(name: str, path: Path, field: str) -> Callable[[], Iterator[Document]]:
    ending = path.suffix.lower()
    if path.is_dir():
        return lambda: _dataset(name, path, field)
    if ending in _JSON_LINES or (ending == ".zst" and Path(path.stem).suffix.lower() in _JSON_LINES):
        return lambda: _json_lines(name, path, field)
    if ending == ".parquet":
        return lambda: _records(name, _arrow_errors(path, _parquet(path, field)))
    if ending == ".arrow":
        raise DataError(f"{path}: name the whole folder that `save_to_disk` wrote, not a file of it")
    if ending in _ENDINGS:
        raise DataError(f"{path}: is compressed; unpack it first")
    return lambda: _text(name, path)


def _text(name: str, path: Path) -> Iterator[Document]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if size:
        yield Document(name, size, _read(path, size))


def _read(path: Path, size: int) -> Iterator[bytes]:
    """The file in pieces; raises DataError when it cannot be read or its size changes meanwhile."""
    read = 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
                read += len(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if read != size:
        raise DataError(f"{path}: its size changed while it was read")


def _json_lines(name: str, path: Path, field: str) -> Iterator[Document]:
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
                    raise DataError(f"{path}, line {number}: {_plain(error, field)}") from None
                if data:
                    yield Document(f"{name}#{number}", len(data), (data,))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _plain(error: Exception, field: str) -> str:
    if "missing required field" in str(error):
        return f"has no key {field!r}"
    if isinstance(error, UnicodeError):
        return "is not UTF-8"
    return str(error) if isinstance(error, msgspec.ValidationError) else f"is not JSON ({error})"


def _dataset(name: str, path: Path, field: str) -> Iterator[Document]:
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

    return _records(name, texts())


_FILES = "_data_files"


def _json_or_nothing(path: Path, key: str) -> Any:
    try:
        return json.loads(path.read_bytes()).get(key)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _records(name: str, texts: Iterator[str | None]) -> Iterator[Document]:
    for number, text in enumerate(texts):
        if text:
            data = text.encode()
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

    if schema.names.count(field) != 1:
        columns = ", ".join(map(repr, schema.names[:20]))
        raise DataError(f"{path}: expected one column {field!r}, has {columns}")
    kind = schema.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise DataError(f"{path}: column {field!r} holds {kind}, not text")


def _arrow_errors(path: Path, texts: Iterator[str | None]) -> Iterator[str | None]:
    import pyarrow

    try:
        yield from texts
    except UnicodeError:
        raise DataError(f"{path}: holds text that is not UTF-8") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from None
