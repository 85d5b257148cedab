"""Entries: lines and arrays of JSON, rows of tables, Parquet and Arrow, and folders that Hugging Face `datasets` wrote.

Each is a document: its text in one field, or the conversation that it holds.
"""

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from dlx.training.data import python_json
from dlx.training.data.conversations import BESIDE, KEYS, PAIRS, ConversationError, conversation
from dlx.training.data.reading import RECODE, Document, bare, open_text, unread
from dlx.training.data.shards import DataError, PreparationError
from dlx.training.recipe.pointers import pointer

MAX_LINE = 64 * 1024 * 1024  # bytes of one line, and characters of one value of JSON
ARROW = (".arrow", ".feather")

_CHUNK = 1 << 20
_ROWS = 256  # of an Arrow batch
_JSON_LINES = (".jsonl", ".ndjson")
_DELIMITERS = {".csv": ",;\t", ".tsv": "\t"}  # the first one by which the first line names the column
_ZERO = "its text holds a zero byte, which ends a document where bytes are the tokens: take it out, or use a tokenizer"
_BLANK = re.compile(r"[ \t\r\n]*")
_SHOWN = 6  # keys or columns of a line that says which there are


def documents(name: str, path: Path, field: str | None, of_bytes: bool) -> Iterator[Document] | None:
    """Of a file or folder of entries, in order; None for what is none by its name. `field`: of their texts; None: they
    are conversations. `of_bytes`: their bytes are the tokens. Reading raises DataError."""
    ending, columns = bare(path).suffix.lower(), path.suffix.lower()
    if path.is_dir():
        return _dataset(name, path, field, of_bytes)
    if columns == ".parquet":
        return _entries(name, path, field, _arrow_errors(path, _parquet(path, field)), of_bytes)
    if columns in ARROW:
        return _entries(name, path, field, _arrow_errors(path, _arrow(path, field)), of_bytes)
    if ending in _JSON_LINES:
        return _json_lines(name, path, field, of_bytes)
    if ending == ".json":
        return _entries(name, path, field, _json_values(path, field), of_bytes)
    if ending in _DELIMITERS:
        return _entries(name, path, field, _table(path, field, _DELIMITERS[ending]), of_bytes)
    return None


def place(path: Path, number: int) -> str:
    """One of a file's entries, as errors name it: by its line from 1 on where each has one, else from 0 on.

    Examples:
        >>> place(Path("a.jsonl.gz"), 8), place(Path("a.parquet"), 0)
        ('a.jsonl.gz, line 8', 'a.parquet, entry 0')
    """
    return f"{path}, {'line' if bare(path).suffix.lower() in _JSON_LINES else 'entry'} {number}"


def is_dataset(folder: Path) -> bool:
    """Whether `datasets` wrote it."""
    return (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()


def train_split(folder: Path) -> Path:
    """The folder of the split that is trained on. Raises DataError."""
    splits = _json(folder / "dataset_dict.json", "splits")
    chosen = "train" if "train" in splits else splits[0] if len(splits) == 1 else None
    if chosen is None:
        raise DataError(f"{folder}: has no split named train; name the folder of one of its splits")
    if not isinstance(chosen, str) or chosen != Path(chosen).name or not is_dataset(folder / chosen):
        raise DataError(f"{folder}: has no folder of its split {str(chosen)[:80]}")
    return folder / chosen


def _json_lines(name: str, path: Path, field: str | None, of_bytes: bool) -> Iterator[Document]:
    """`field`: of its texts; None: the entries are conversations."""
    read = msgspec.json.decode if field is None else _text_in(field)
    try:
        with open_text(path) as file:
            for number, line in enumerate(_lines(path, file), 1):
                if not line.strip():
                    continue
                where = place(path, number)
                try:
                    row = read(line)
                except python_json.WRONG as error:
                    row = _mended(error, line, read, where, field)
                if data := _content(row, field, where, of_bytes):
                    yield Document(f"{name}#{number}", len(data), (data,))
    except OSError as error:
        raise unread(path, error) from None


def _mended(
    error: Exception, line: bytes, read: Callable[[bytes], dict[str, Any]], where: str, field: str | None
) -> dict[str, Any]:
    """What a line that cannot be read says once it is mended. Raises DataError."""
    try:
        mended = python_json.mended(line.decode()).encode()
        if mended != line:
            line = mended
            return read(line)
    except python_json.WRONG as worse:
        error = worse
    raise DataError(f"{where}: {_plain(error, line, field)}")


def _text_in(field: str) -> Callable[[bytes], dict[str, Any]]:
    # A type with the one field, and the other half of its pair as bytes, skips all others without building them.
    other = _other_half(field)
    fields: list[Any] = [("text", str | None)]
    if other:
        fields.append(("other", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET))
    try:
        row: Any = msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename={"text": field, "other": other or ""}))
    except ValueError:
        raise PreparationError(f"{field!r}: expected a key without quotes, backslashes, control characters") from None

    def read(line: bytes) -> dict[str, Any]:
        found = row.decode(line)
        return {field: found.text} | ({other: found.other} if other and found.other is not msgspec.UNSET else {})

    return read


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """With what ends them."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DataError(f"{path}, line {number}: longer than {MAX_LINE >> 20} MiB")
        yield line


def _content(row: Any, field: str | None, where: str, of_bytes: bool) -> bytes | None:
    """An entry as a document's bytes: its text in `field`, or its conversation; None where it has none. Raises
    DataError."""
    if field is not None and _other_half(field) in row:
        raise DataError(f"{where}: {_chat(list(row), field)}")
    try:
        data = conversation(row) if field is None else (row[field] or "").encode()
    except ConversationError as error:
        raise DataError(f"{where}: {error}") from None
    if of_bytes and data and 0 in data:
        raise DataError(f"{where}: {_ZERO}")
    return data or None


def _json_values(path: Path, field: str | None) -> Iterator[Any]:
    """The objects of one array, or those that follow each other."""
    try:
        with open_text(path) as file:
            for number, row in enumerate(_json_objects(path, file)):
                if field is not None:
                    text = row.get(field) if isinstance(row, dict) else 0
                    if not isinstance(text, str | None) or field not in row:
                        raise DataError(f"{place(path, number)}: {_unfit(row, field)}")
                yield row
    except OSError as error:
        raise unread(path, error) from None


def _json_objects(path: Path, file: BinaryIO) -> Iterator[Any]:
    """One after the other, with no more than the largest in memory."""
    decoder, utf8 = json.JSONDecoder(parse_constant=lambda _: None), codecs.getincrementaldecoder("utf-8")()
    text, at, number, in_array, comma = "", 0, 0, False, False

    def more() -> bool:
        nonlocal text, at
        piece = file.read(max(_CHUNK, len(text) - at))  # as much as there is: what is tried again is tried seldom
        try:
            text, at = text[at:] + utf8.decode(piece, final=not piece), 0
        except UnicodeDecodeError:
            raise DataError(f"{place(path, number)}: is not UTF-8") from None
        return bool(piece)

    while True:
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            if more():
                continue
            if in_array:
                raise DataError(f"{path}: ends in the middle: it was not written or copied whole")
            return
        if number == 0 and not in_array and text[at] == "[":
            in_array, at = True, at + 1
        elif in_array and text[at] == "]" and (number == 0 or not comma):
            in_array, at, number = False, at + 1, number or 1
        elif in_array and text[at] == "," and number and not comma:
            comma, at = True, at + 1
        elif in_array and number and not comma:
            raise DataError(f"{place(path, number)}: is not JSON (expected a comma before it)")
        else:
            try:
                row, end = decoder.raw_decode(text, at)
                if python_json.may_have_halves(text, at, end):
                    row = decoder.decode(python_json.mended(text[at:end]))
            except json.JSONDecodeError as error:
                if len(text) - at > MAX_LINE:
                    raise DataError(f"{place(path, number)}: longer than {MAX_LINE >> 20} MiB") from None
                if more():
                    continue
                raise DataError(f"{place(path, number)}: is not JSON ({error.msg})") from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{place(path, number)}: is not JSON ({str(error)[:100]})") from None
            yield row
            at, number, comma = end, number + 1, False


def _table(path: Path, field: str | None, delimiters: str) -> Iterator[dict[str, Any]]:
    """The rows of a table whose first line names the columns."""
    csv.field_size_limit(MAX_LINE)
    try:
        with open_text(path) as file:
            lines = _decoded(path, file)
            first = next(lines, "")
            rows = csv.reader(chain([first], lines), delimiter=_delimiter(first, field, delimiters), strict=True)
            names = next(rows, [])
            if not names:
                return
            columns = [(name, names.index(name)) for name in _columns(path, names, field)]
            for row in rows:
                if row and len(row) != len(names):
                    raise DataError(
                        f"{path}, line {rows.line_num}: has {len(row):,} columns, and the first line {len(names):,}"
                    )
                yield {name: row[at] if row else None for name, at in columns}
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: is no row of a table ({error})") from None
    except OSError as error:
        raise unread(path, error) from None


def _delimiter(first: str, field: str | None, delimiters: str) -> str:
    rows = {one: next(csv.reader([first], delimiter=one), []) for one in delimiters}
    return next((one for one, row in rows.items() if field in row), max(rows, key=lambda one: len(rows[one])))


def _decoded(path: Path, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(_lines(path, file), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, line {number}: not UTF-8 text at its byte {error.start}: {RECODE}") from None


def _plain(error: Exception, line: bytes, field: str | None) -> str:
    if isinstance(error, msgspec.ValidationError) and field is not None:
        try:
            row = msgspec.json.decode(line)
        except python_json.WRONG as worse:
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
    other = _some(list(row))
    return f"has no key {field!r}" + (f" but {other}: name the one with the text as `field`" if other else "")


def _chat(keys: Sequence[str], field: str) -> str | None:
    """What is said of entries that hold a chat where a text is expected."""
    pair = next((pair for pair in PAIRS if field in pair and set(pair) <= set(keys)), ())
    held = pair or [key for key in KEYS if key in keys]
    if not held or (field in keys and field not in held):
        return None
    found = " and ".join(map(repr, held))
    return f"holds conversations ({found}): set `chat = true` in [data] (`data prepare --chat`) to learn the answers"


def _other_half(field: str) -> str | None:
    """The key that is to `field` what an answer is to its question, or the other way round."""
    return next((other for pair in PAIRS for one, other in (pair, pair[::-1]) if one == field), None)


def _dataset(name: str, path: Path, field: str | None, of_bytes: bool) -> Iterator[Document]:
    if _json_or_nothing(path / "state.json", "_indices_data_files"):
        raise DataError(f"{path}: keeps its rows' order apart; save it again after `flatten_indices()`")
    names = [
        str(entry.get("filename")) if isinstance(entry, dict) else "" for entry in _json(path / "state.json", _FILES)
    ]
    if any(not file or file != Path(file).name for file in names):
        raise DataError(f"{path / 'state.json'}: lists something else than names of files")

    def rows() -> Iterator[dict[str, Any]]:
        for file in names:
            yield from _arrow_errors(path / file, _arrow(path / file, field))

    return _entries(name, path, field, rows(), of_bytes)


_FILES = "_data_files"


def _json_or_nothing(path: Path, key: str) -> Any:
    try:
        return json.loads(path.read_bytes()).get(key)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _entries(name: str, path: Path, field: str | None, rows: Iterator[Any], of_bytes: bool) -> Iterator[Document]:
    for number, row in enumerate(rows):
        if data := _content(row, field, place(path, number), of_bytes):
            yield Document(f"{name}#{number}", len(data), (data,))


def _parquet(path: Path, field: str | None) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
        columns = _typed(path, file.schema_arrow, field)
        for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
            yield from batch.to_pylist()


def _arrow(path: Path, field: str | None) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow file, which Feather is too, or of a stream."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        start = file.read(6)
        file.seek(0)
        if start[:4] == b"FEA1":
            raise DataError(f"{path}: is Feather of version 1: write it again as version 2, or as Parquet")
        if start == b"ARROW1":
            with pyarrow.ipc.open_file(file) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches))
                yield from _batches(batches, _typed(path, reader.schema, field))
        else:
            with pyarrow.ipc.open_stream(file) as reader:
                yield from _batches(reader, _typed(path, reader.schema, field))


def _batches(batches: Iterable[Any], columns: list[str]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        chosen = batch.select(columns)
        chosen.validate(full=True)  # a text may claim to end behind the file, and nothing else looks
        for start in range(0, len(chosen), _ROWS):
            yield from chosen.slice(start, _ROWS).to_pylist()


def _columns(path: Path, names: Sequence[str], field: str | None) -> list[str]:
    """Those that are read. Raises DataError."""
    if field is not None:
        if names.count(field) != 1:
            raise DataError(f"{path}: {_no_column(names, field)}")
        if _other_half(field) in names:
            raise DataError(f"{path}: {_chat(names, field)}")
        return [field]
    columns = [name for name in (*KEYS, *BESIDE) if names.count(name) == 1]
    if not columns or columns[0] in BESIDE:
        there = ", ".join(map(repr, names[:20]))
        raise DataError(f"{path}: expected a column {', '.join(KEYS[:3])}, or {KEYS[4]}, has {there}")
    return columns


def _typed(path: Path, schema: Any, field: str | None) -> list[str]:
    """The columns that are read; a text is one. Raises DataError."""
    from pyarrow import types

    columns = _columns(path, schema.names, field)
    if field is None:
        return columns
    kind = schema.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise DataError(f"{path}: {_chat(schema.names, field) or f'column {field!r} holds {kind}, not text'}")
    return columns


def _no_column(names: Sequence[str], field: str) -> str:
    """Why a table has no text for us."""
    if field not in names and (chat := _chat(names, field)):
        return chat
    return f"expected one column {field!r}, has {_some(names)}: name the one with the text as `field`"


def _some(names: Sequence[str]) -> str:
    """The first of them, in quotes."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _arrow_errors(path: Path, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    import pyarrow

    try:
        yield from rows
    except UnicodeError:
        raise DataError(f"{path}: holds text that is not UTF-8") from None
    except (pyarrow.ArrowException, OSError) as error:
        why = pointer(path) or f"cannot be read ({' '.join(str(error).split())[:200]})"
        raise DataError(f"{path}: {why}") from None


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
