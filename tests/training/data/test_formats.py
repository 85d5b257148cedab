"""Documents out of files of every kind, and what is said of files that are not what they seem."""

import codecs
import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard

from dlx.training.data import formats
from dlx.training.data.shards import DataError
from tests.training import texts

ROWS = ["first", "zweiter: ü", "third\nwith a line", "4", "fifth"]


def _read(*paths: Path, field: str = "text") -> dict[str, str]:
    found = {}
    for source in formats.find(paths, field).sources:
        for document in source.documents():
            content = b"".join(document.pieces)
            assert len(content) == document.size
            assert document.name not in found
            found[document.name] = content.decode()
    return found


def test_every_kind_of_file_gives_its_texts_in_order(tmp_path: Path) -> None:
    kinds = {
        "a.jsonl": texts.json_lines(tmp_path / "a.jsonl", [{"n": [{}], "text": row} for row in ROWS]),
        "b.parquet": texts.parquet(tmp_path / "b.parquet", {"n": range(5), "text": ROWS}),
        "c": texts.saved_to_disk(tmp_path / "c", ROWS),
        "d/train": texts.dataset_dict(tmp_path / "d", {"test": ["no"], "train": ROWS}),
    }
    (tmp_path / "e.txt").write_text("plain")
    found = _read(tmp_path)
    assert [name.partition("#")[0] for name in found] == [name for name in kinds for _ in ROWS] + ["e.txt"]
    for name in kinds:
        assert [text for key, text in found.items() if key.startswith(name)] == ROWS
    for path in kinds.values():  # alone, by their own path, as well
        assert list(_read(path).values()) == ROWS


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_other_kinds_of_text_columns_are_read_too(kind: pa.DataType, tmp_path: Path) -> None:
    path = texts.parquet(tmp_path / "x.parquet", {"body": pa.array(ROWS).cast(kind)})
    assert list(_read(path, field="body").values()) == ROWS


def test_documents_without_text_do_not_count_and_do_not_move_the_names_of_others(tmp_path: Path) -> None:
    rows = ["", "a", None, "b"]
    assert _read(texts.parquet(tmp_path / "x.parquet", {"text": rows})) == {"x.parquet#1": "a", "x.parquet#3": "b"}
    assert list(_read(texts.saved_to_disk(tmp_path / "set", rows)).values()) == ["a", "b"]
    lines = tmp_path / "x.jsonl"
    lines.write_bytes(b'\xef\xbb\xbf{"text": ""}\r\n{"text": "a"}\n\n \n{"text": null}\n{"text": "b"}')
    assert _read(lines) == {"x.jsonl#2": "a", "x.jsonl#6": "b"}


def test_the_number_of_arrow_files_does_not_name_the_rows(tmp_path: Path) -> None:
    one, three = (texts.saved_to_disk(tmp_path / str(count), ROWS, count) for count in (1, 3))
    assert _read(one) == _read(three)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut', "line 2: is not JSON"),
        (b'{"texts": "x"}', "line 2: has no key 'text'"),
        (b'{"text": 5}', "line 2: the value of its key 'text' is no text"),
        (b'["text"]', "line 2: expected an object with the key 'text'"),
        (b'{"text": 5, "x": ' + b"[" * 100_000, "line 2: is not JSON"),
        (b'{"text": "\xff"}', "line 2: is not UTF-8"),
        (b'{"text": "\\ud800"}', "line 2: is not JSON"),
        (b'{"x": ' + b"[" * 100_000, "line 2: is not JSON"),
        (b'{"text": "' + b"x" * 2000 + b'"}', "line 2: longer than"),
    ],
)
def test_a_bad_line_is_named(line: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if line.endswith(b'xx"}'):
        monkeypatch.setattr(formats, "MAX_LINE", 1000)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(DataError) as refused:
        _read(path)
    assert str(refused.value).startswith(f"{path}, {reason}")


def test_a_compressed_file_gives_what_the_plain_one_does(tmp_path: Path) -> None:
    plain = texts.json_lines(tmp_path / "rows.jsonl", [{"text": f"row {number}"} for number in range(40_000)])
    half, whole = plain.stat().st_size // 2, plain.read_bytes()
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    frames = zstandard.compress(whole[:half]) + skippable + zstandard.compress(whole[half:])
    (tmp_path / "zst").mkdir()
    (tmp_path / "zst" / "rows.jsonl.zst").write_bytes(frames)
    found = _read(tmp_path / "zst" / "rows.jsonl.zst")
    assert len(found) == 40_000 and list(found.values()) == list(_read(plain).values())


def test_a_compressed_file_that_is_cut_damaged_or_a_bomb_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.zst"

    def refuse(content: bytes, reason: str) -> None:
        path.write_bytes(content)
        with pytest.raises(DataError, match=reason) as refused:
            _read(path)
        assert str(path) in str(refused.value) and "\n" not in str(refused.value)

    good = zstandard.compress(b'{"text": "a row"}\n' * 9)
    for cut in (1, 5, len(good) - 1):
        refuse(good[:cut], "ends in the middle")
    refuse(good + b"more than frames", "cannot be decompressed")
    refuse(b"plain text", "cannot be decompressed")
    wide = zstandard.ZstdCompressionParameters.from_level(3, window_log=28, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    refuse(stream.compress(b"{}\n" * 9) + stream.flush(), "too much memory")
    stream = zstandard.ZstdCompressor().compressobj()
    refuse(b"".join(stream.compress(bytes(1 << 20)) for _ in range(200)) + stream.flush(), "line 1: longer than 64 MiB")


def test_files_that_are_not_what_they_seem_are_refused(tmp_path: Path) -> None:
    def refuse(path: Path, reason: str) -> None:
        with pytest.raises(DataError, match=reason) as refused:
            _read(path)
        assert str(path) in str(refused.value) and "\n" not in str(refused.value)

    refuse(
        texts.parquet(tmp_path / "a.parquet", {"body": ROWS, "n": range(5)}),
        "expected one column 'text', has 'body', 'n'",
    )
    refuse(texts.parquet(tmp_path / "b.parquet", {"text": range(5)}), "holds int64, not text")
    twice = pa.Table.from_arrays([pa.array(ROWS), pa.array(ROWS)], names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "twice.parquet")
    refuse(tmp_path / "twice.parquet", "has 'text', 'text'")
    broken = tmp_path / "c.parquet"
    broken.write_bytes(b"PAR1 and no more")
    refuse(broken, "cannot be read")
    latin = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    refuse(texts.parquet(tmp_path / "d.parquet", {"text": latin}), "not UTF-8")
    (tmp_path / "e.txt.gz").write_bytes(b"\x1f\x8b")
    refuse(tmp_path / "e.txt.gz", "unpack it first")
    saved = texts.saved_to_disk(tmp_path / "saved", ROWS)
    refuse(saved / "data-00000-of-00002.arrow", "name the whole folder")
    (saved / "data-00001-of-00002.arrow").write_bytes(b"\0" * 100)
    refuse(saved, "cannot be read")
    (saved / "data-00001-of-00002.arrow").unlink()
    refuse(saved, "cannot be read")
    file = texts.saved_to_disk(tmp_path / "beyond", ["hello", "world"], 1) / "data-00000-of-00001.arrow"
    ends = np.array([0, 5, 10], "<i4").tobytes()
    assert ends in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(ends, np.array([0, 5, 100], "<i4").tobytes()))
    with pytest.raises(DataError, match=r"cannot be read .* out of bounds"):
        _read(file.parent)  # or whatever lies behind it in memory would be trained on
    for state in ({"_data_files": [{"filename": "../c.parquet"}]}, {"_data_files": ["x"]}, {"_data_files": 1}, []):
        (saved / "state.json").write_text(json.dumps(state))
        refuse(saved, "lists ")
    (saved / "state.json").write_text(json.dumps({"_data_files": [], "_indices_data_files": [{"filename": "i"}]}))
    refuse(saved, "flatten_indices")
    refuse(texts.dataset_dict(tmp_path / "splits", {"test": ROWS, "validation": ROWS}), "no split named train")
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["../saved"]}')
    refuse(tmp_path / "splits", "no folder of its split")
    refuse(tmp_path / "none", "no such file or folder")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "corpus").symlink_to(tmp_path / "not-mounted")
    refuse(tmp_path / "half", "corpus: a link to nothing")


def _png() -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        made.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(9))
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.json", b'[{"text": "a"}]', "is JSON"),
        ("a.JSON", b'{"text": "a"}', "is JSON"),
        ("a.csv", b"id,text\n1,a\n", "is a table"),
        ("a.tsv", b"id\ttext\n1\ta\n", "is a table"),
        ("a.ipynb", b"{}", "is a notebook"),
        ("a.rtf", b"{\\rtf1 a}", "is an office document"),
        ("a.pdf", b"%PDF-1.4\n", "is a PDF document"),
        ("a.tar", _tar(), "is packed; unpack it first"),
        ("a.tgz", gzip.compress(b"a", mtime=0), "is packed; unpack it first"),
        ("a.docx", b"PK\3\4\x14\0", "is an office document"),
        ("a.png", _png(), "is an image"),
        ("a.npy", _npy(), "is an array"),
        ("tar", _tar(), "is no text: it holds a zero byte (byte 5)"),
        ("picture", _png(), "seems to be an image"),
        ("photo", b"\xff\xd8\xff\xe0", "seems to be an image"),
        ("letter", b"PK\3\4\x14\0", "seems to be a zip archive or an office document"),
        ("scan", b"%PDF-1.4\n\xe2\xe3", "seems to be a PDF document"),
        ("columns", b"PAR1\0", "seems to be Parquet"),
        ("numbers", _npy(), "seems to be an array"),
        ("wide.txt", "\ufeffa".encode("utf-16-le"), "seems to be UTF-16"),
        ("wide.txt", "\ufeffa".encode("utf-16-be"), "seems to be UTF-16"),
        ("wide.txt", "text".encode("utf-16-le"), "it holds a zero byte (byte 1)"),
        ("latin.txt", b"caf\xe9 ol\xe9", "not UTF-8 text at byte 3"),
        ("cut.txt", "caf\xe9".encode()[:-1], "not UTF-8 text at byte 3"),
        ("marked.txt", b"\xef\xbb\xbfcaf\xe9", "not UTF-8 text at byte 6"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_name_unless_its_bytes_are_wanted(
    name: str, content: bytes, what: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        _read(path)
    said = str(refused.value)
    assert said.startswith(f"{path}: ") and what in said and "\n" not in said
    assert "unpack it first" in said or ("--raw" in said and ".jsonl" in said)
    (source,) = formats.find([path], "text", raw=True).sources
    taken = [b"".join(document.pieces) for document in source.documents()]
    assert taken == [content.removeprefix(codecs.BOM_UTF8)]


def test_a_character_that_is_cut_by_reading_is_none_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_CHUNK", 1)
    path = tmp_path / "a.txt"
    path.write_text("ü語𝄞", encoding="utf-8")
    assert _read(path) == {"a.txt": "ü語𝄞"}
    path.write_bytes("ü語".encode()[:-1] + b"a")
    with pytest.raises(DataError, match="not UTF-8 text at byte 2"):
        _read(path)


def test_a_folder_of_such_files_is_refused_at_once_with_how_many_and_the_first_few(tmp_path: Path) -> None:
    for number in range(1234):
        (tmp_path / f"{number:04}.csv").write_text("id,text")
    (tmp_path / "0001b.jsonl").write_text('{"body": ""}')
    (tmp_path / "fine.txt").write_text("fine")
    found = formats.find([tmp_path], "text")
    read = list[str]()
    with pytest.raises(DataError) as refused:
        formats.read_all(found.sources, lambda source: read.extend(one.name for one in source.documents()))
    said = str(refused.value)
    assert said.startswith(f"1,235 of 1,236 files cannot be taken ({tmp_path / '0000.csv'}: is a table, ")
    assert "0001b.jsonl, line 1: has no key 'text' but 'body'" in said and "and 1,232 more)" in said
    assert said.count("--raw") == 1 and len(said) < 1000 and read == ["fine.txt"]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "text"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "text"),
        ({"prompt": "a", "completion": "b"}, "text"),
        ({"instruction": "a", "output": "b"}, "text"),
    ],
)
def test_chat_data_is_refused_with_what_to_do(row: dict[str, Any], field: str, tmp_path: Path) -> None:
    lines = texts.json_lines(tmp_path / "chat.jsonl", [row])
    columns = texts.parquet(tmp_path / "chat.parquet", {key: [value] for key, value in row.items()})
    for path in (lines, columns):
        with pytest.raises(DataError, match=r"holds chat data .*not supported yet: write each conversation as") as told:
            _read(path, field=field)
        assert str(path) in str(told.value) and repr(next(iter(row))) in str(told.value)
    assert list(_read(texts.json_lines(tmp_path / "both.jsonl", [{**row, "text": "a"}])).values()) == ["a"]


def test_what_is_taken_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for name in ("a.txt", "b.TXT", "c.jsonl.zst", "LICENSE", ".hidden", ".git/config", "sub/.other"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")
    texts.dataset_dict(folder / "set", {"train": ROWS, "test": ROWS})
    elsewhere.mkdir()
    (elsewhere / "d.txt").write_text("text")
    (folder / "file.txt").symlink_to(elsewhere / "d.txt")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "sub" / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    (folder / "to a pipe").symlink_to(folder / "pipe")
    found = formats.find([folder], "text")
    assert found.taken == {".txt": 3, "without ending": 1, ".jsonl.zst": 1, "`datasets` folders": 1}
    assert {kind: [str(path.relative_to(folder)) for path in paths] for kind, paths in found.left_out.items()} == {
        "hidden files": [".hidden", "sub/.other"],
        "hidden folders": [".git"],
        "linked folders": ["linked", "sub/loop"],
        "other splits": ["set/test"],
        "special files": ["pipe", "to a pipe"],
    }
    said = str(found)
    assert (
        said.startswith("3 .txt, ")
        and f"2 linked folders (taken where it is named as a source: {folder / 'linked'})" in said
    )
    assert [source.name for source in formats.find([folder / "linked"], "text").sources] == ["d.txt"], (
        "when it is named"
    )


def test_the_mark_at_the_start_of_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + b"text")
    (tmp_path / "b.txt").write_bytes(codecs.BOM_UTF8)
    assert _read(tmp_path) == {"a.txt": "text"}
