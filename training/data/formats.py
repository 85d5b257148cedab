"""Which files of the sources are read, and how: plain text here, entries in `training.data.entries`.

What a file is follows from its name: `.jsonl`, `.ndjson` and `.json`, `.csv` and `.tsv`, `.parquet`, `.arrow` and
`.feather` have entries, anything else is one document of plain text, or none. Text may be compressed (`.gz`, `.zst`),
and UTF-16 with its mark.
"""

import codecs
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dlx.training.data import entries, sniffing
from dlx.training.data.entries import ARROW, is_dataset, train_split
from dlx.training.data.reading import RECODE, Document, bare, open_text, unread
from dlx.training.data.shards import PREPARED, DataError, PreparationError, TextError, read_prepared

_CHUNK = 1 << 20
_PACKED = "a packed file"
_NOT_TEXT = {  # what may pass for text by its bytes, or is better said by its name
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".rar"), _PACKED),
    **dict.fromkeys((".tar", ".tgz", ".tbz2", ".txz", ".parquet", *ARROW), _PACKED),  # in .gz
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "a spreadsheet"),
    **dict.fromkeys((".doc", ".docx", ".odt", ".rtf", ".ppt", ".pptx", ".odp", ".epub"), "an office document"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ico"), "an image"),
    **dict.fromkeys((".npy", ".npz", ".safetensors", ".pt", ".pkl", ".h5"), "an array"),
    ".dvc": "a DVC file",
    ".geojson": "a map",
    ".ipynb": "a notebook",
    ".pdf": "a PDF document",
}
_STARTS = {
    b"%PDF-": "a PDF document",
    b"PK\3\4": "a zip archive or an office document",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"PAR1": "Parquet (which is read where its name ends in .parquet)",
    b"ARROW1": "Arrow (which is read where its name ends in .arrow)",
    b"\x93NUMPY": "an array",
    b"SQLite format 3": "a database",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"\x7fELF": "a program",
}
_NOTES = re.compile(r"(readme|licen[cs]e|copying|notice|citation|authors|changelog)(\.\w+)?|dataset_infos?\.json", re.I)
_MEND = (
    'convert such files to .jsonl with the key "text", keep them out of the sources, or set `raw = true` in [data] '
    "(`data prepare --raw`) to train on their bytes"
)
_NAMED = 3  # of many files that are left out
_KINDS = 8  # of files that are taken, named in a line

LINKED, BINARY, NOTES, SECRETS = "linked folders", "binary files", "notes on the data", "secrets"


class NotText(DataError):
    """A file that is no text at all."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}: {_MEND}")
        self.fact = f"{path}: {what}"


class Secret(DataError):
    """A file that should be known to nobody."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path}: seems to be {what}, whose secrets the data would give away: keep it out of the sources (named by "
            "itself, and with `raw = true`, it is taken)"
        )


class How(NamedTuple):
    """How sources are read: see `find`."""

    field: str | None  # of texts; None: entries are conversations
    raw: bool
    of_bytes: bool


class Source(NamedTuple):
    """A file, or a `datasets` folder. There may be millions, so it has nothing that can be made again."""

    name: str
    base: str  # the folder that the name is below
    how: How
    named: bool  # by itself, not found in a folder

    @property
    def path(self) -> Path:
        return Path(self.base, self.name)

    def documents(self) -> Iterator[Document]:
        """Starts over each time, always in the same order. Reading raises DataError."""
        return _documents(self.name, self.path, self.how, may_be_secret=self.named and self.how.raw)

    def where(self, document: Document) -> str:
        """One of its documents, as errors name it."""
        number = document.name.removeprefix(self.name).removeprefix("#")
        return entries.place(self.path, int(number)) if number else str(self.path)


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
            f"{len(paths):,} {kind if len(paths) > 1 else kind.removesuffix('s')}{_examples(kind, paths)}"
            for kind, paths in self.left_out.items()
        )
        return f"{taken}; left out: {left}" if left else taken


def no_text(found: Found) -> str:
    """What is said where nothing is left to read."""
    return f"there is no text in it ({found}){f': {_MEND}' if found.left_out.keys() - {SECRETS} else ''}"


def _examples(kind: str, paths: Sequence[Path]) -> str:
    if kind == LINKED:
        return f" (taken where it is named as a source: {paths[0]})"
    if kind not in (BINARY, NOTES, SECRETS):
        return ""
    more = ", ..." if len(paths) > _NAMED else ""
    return f" ({', '.join(path.name for path in paths[:_NAMED])}{more})"


def find(paths: Sequence[Path], field: str, raw: bool = False, of_bytes: bool = False, chat: bool = False) -> Found:
    """The sources in files and folders, ordered by their names. Folders are searched; hidden files, links to folders,
    what is no text or a secret by its name, and a data set's README and licence are left out.

    Entries have their text in `field`. Of a `DatasetDict` folder the split `train` is taken: name the folder of another
    one to use that. With `raw` a file that is no text is a document of its bytes; `of_bytes`: they are the tokens, and
    byte 0 ends a document. A secret is taken only with `raw`, and where it is named by itself. With `chat` every
    document is a conversation (see conversations.conversation), so only files that have entries are taken. Raises
    DataError, and so does reading a document that is not what it has to be.
    """
    found: set[str] = set()
    files: dict[Path, str] = {}  # those that are named, by where their bytes lie: the first of several names
    left_out: dict[str, set[Path]] = {}
    places = sorted(map(_place, paths))
    for path in places:
        if path.is_dir():
            found.update(_walk(path, left_out, raw))
        else:
            files.setdefault(path.resolve(), str(path))
    named = {str(real) if str(real) in found else name for real, name in files.items()}
    folders = [*filter(Path.is_dir, places), *(Path(name).parent for name in named)]
    base, how = os.path.commonpath(folders) if folders else "", How(None if chat else field, raw, of_bytes)
    below = len(base.rstrip(os.sep)) + 1
    every = sorted((path[below:].replace(os.sep, "/") or ".", path in named) for path in found | named)
    sources = [Source(name, base, how, is_named) for name, is_named in every]
    left = {kind: sorted(path for path in left_out[kind] if str(path) not in named) for kind in sorted(left_out)}
    return Found(sources, {kind: paths for kind, paths in left.items() if paths})


def _place(given: Path) -> Path:
    """Where a source is. A file keeps its own name, which says what it is, also where it is a link to another. Raises
    PreparationError."""
    if given.is_dir():
        return given.resolve()
    if given.is_file():
        return given.parent.resolve() / given.name
    raise PreparationError(f"{given}: no such file or folder")


def read_all(found: Found, read: Callable[[Source], None]) -> Found:
    """Have each source read, and leave out what turns out to be no text, or a secret, and was found in a folder. Raises
    DataError for all that cannot be taken: how many files, and what the first one lacks."""
    taken, refused = list[Source](), list[DataError]()
    left = {BINARY: list[Path](), SECRETS: list(found.left_out.get(SECRETS, ()))}
    for source in found.sources:
        try:
            read(source)
            taken.append(source)
        except PreparationError:
            raise
        except DataError as error:
            if isinstance(error, NotText | Secret) and not source.named:
                left[BINARY if isinstance(error, NotText) else SECRETS].append(source.path)
                continue
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        first, more = refused[0], f"and {len(refused) - 1:,} more"
        said, mend = (first.fact, f": {_MEND}") if isinstance(first, NotText) else (str(first), "")
        raise DataError(f"{len(refused):,} of {len(found.sources):,} files cannot be taken ({said}; {more}){mend}")
    return Found(taken, found.left_out | {kind: sorted(paths) for kind, paths in left.items() if paths})


def _kind(source: Source) -> str:
    if source.path.is_dir():
        return "`datasets` folders"
    packed = source.path.suffix if bare(source.path) != source.path else ""
    return f"{bare(source.path).suffix}{packed}".lower() or "without ending"


def _walk(folder: Path, left_out: dict[str, set[Path]], raw: bool) -> Iterator[str]:
    """Files and `datasets` folders below a folder, links to folders not followed."""

    def leave(kind: str, path: Path) -> None:
        left_out.setdefault(kind, set()).add(path)

    for root, folders, files in os.walk(folder, onerror=_unreadable):
        here = Path(root)
        if PREPARED in files and _is_prepared(here):
            raise DataError(f"{here}: holds prepared data and no documents; keep it out of the sources")
        if "dataset_dict.json" in files:
            chosen = train_split(here)
            yield str(chosen)
            for name in folders:
                if name != chosen.name:
                    leave("other splits", here / name)
            folders.clear()
        elif is_dataset(here):
            yield root
            folders.clear()
        else:
            for name in folders:
                if name.startswith(".") or (here / name).is_symlink():
                    leave("hidden folders" if name.startswith(".") else LINKED, here / name)
            is_clone = here == folder or ".git" in folders or ".gitattributes" in files
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in files:
                kind = _not_text(here / name)
                if name.startswith("."):
                    leave("hidden files", here / name)
                elif (here / name).exists() and not (here / name).is_file():  # a socket, a pipe
                    leave("special files", here / name)
                elif sniffing.secret(Path(name)):
                    leave(SECRETS, here / name)
                elif kind and not raw:
                    leave(f"{kind.partition(' ')[2]}s", here / name)
                elif is_clone and _NOTES.fullmatch(name):
                    leave(NOTES, here / name)
                else:  # a link to nothing too, which is refused when it is read
                    yield os.path.join(root, name)


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")


def _is_prepared(folder: Path) -> bool:
    try:
        read_prepared(folder)
    except DataError:
        return False  # a document of that name
    return True


def _documents(name: str, path: Path, how: How, may_be_secret: bool) -> Iterator[Document]:
    if (found := entries.documents(name, path, how.field, how.of_bytes)) is not None:
        return found
    if how.field is None:
        raise DataError(f"{path}: conversations are read from entries (.jsonl, .json, .parquet, ...): keep it out")
    return _text(name, path, how.raw, how.of_bytes, may_be_secret)


def _text(name: str, path: Path, raw: bool, of_bytes: bool, may_be_secret: bool) -> Iterator[Document]:
    if not raw:
        _check_name(path)
    try:
        with open_text(path, convert=not raw) as file:  # with `raw` UTF-16 is the bytes that it is
            size = _length(path, raw) if file.size is None else file.size
            if size > 0:
                pieces = _looked_at(path, _read(path, file, size), raw, may_be_secret)
                # What a tokenizer takes is UTF-8, whatever it means.
                yield Document(name, size, pieces if raw and of_bytes else _checked(path, pieces, file.start, raw))
    except OSError as error:
        raise unread(path, error) from None


def _length(path: Path, raw: bool) -> int:
    """Bytes of a text that has to be decompressed or converted, so it is read for it."""
    with open_text(path, convert=not raw) as file:
        return sum(iter(lambda: len(file.read(_CHUNK)), 0))


def _read(path: Path, file: BinaryIO, size: int) -> Iterator[bytes]:
    """The rest of the file in pieces; raises DataError when it cannot be read or its size changes meanwhile."""
    read = 0
    try:
        while chunk := file.read(_CHUNK):
            yield chunk
            read += len(chunk)
    except OSError as error:
        raise unread(path, error) from None
    if read != size:
        raise DataError(f"{path}: its size changed while it was read")


def _not_text(path: Path) -> str | None:
    """What a file that is no plain text is by its name."""
    if path.suffix.lower() in (".parquet", *ARROW):
        return None
    return _NOT_TEXT.get(bare(path).suffix.lower())


def _check_name(path: Path) -> None:
    """Raises DataError for what is no plain text by its name."""
    kind = _not_text(path)
    if kind == _PACKED:
        raise DataError(f"{path}: is packed; unpack it first")
    if kind:
        raise NotText(path, f"is {kind}, not plain text")


def _looked_at(path: Path, pieces: Iterator[bytes], raw: bool, may_be_secret: bool) -> Iterator[bytes]:
    """The pieces. Raises Secret, NotText and DataError for what the first of them gives away."""
    first = next(pieces, b"")
    if not may_be_secret and (what := sniffing.secret(path, first)):
        raise Secret(path, what)
    if not raw and (what := sniffing.document(first)):
        raise NotText(path, f"seems to be {what}, not plain text")
    if not raw and (what := sniffing.misnamed(path, first)):
        raise DataError(
            f"{path}: seems to be {what}; or set `raw = true` in [data] (`data prepare --raw`) to train on it as it is"
        )
    yield first
    yield from pieces


def _checked(path: Path, pieces: Iterator[bytes], at: int, raw: bool) -> Iterator[bytes]:
    """The pieces, which begin at that byte of the file. Raises NotText where they hold byte 0, which stands between
    documents, unless they may (`raw`), and DataError where they are no UTF-8."""
    decoder, first = codecs.getincrementaldecoder("utf-8")(), b""
    try:
        for piece in pieces:
            first = first or piece
            if not raw and (zero := piece.find(0)) >= 0:
                raise NotText(path, _seems(first) or f"is no text: it holds a zero byte (byte {at + zero})")
            decoder.decode(piece)
            at += len(piece)
            yield piece
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        wrong = at - len(decoder.getstate()[0]) + error.start
        if not raw and (seems := _seems(first)):
            raise NotText(path, seems) from None
        raise TextError(f"{path}: not UTF-8 text at byte {wrong}: {RECODE}") from None


def _seems(start: bytes) -> str | None:
    what = next((what for begin, what in _STARTS.items() if start.startswith(begin)), None)
    return what and f"seems to be {what}, not plain UTF-8 text"
