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
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard

from dlx.training.data import entries, formats
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


@pytest.mark.parametrize(
    ("content", "fetch"),
    [
        (f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 12345\n", "git lfs pull"),
        (f"/annex/objects/SHA256E-s1048576--{'ab' * 32}.txt\n", "git annex get"),
        (f"../../.git/annex/objects/0k/Zq/SHA256E-s5--{'ab' * 32}/SHA256E-s5--{'ab' * 32}", "git annex get"),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("name", ["a.txt", "a", "a.jsonl", "a.json", "a.csv", "a.parquet", "a.arrow", "a.txt.gz"])
def test_a_pointer_in_the_place_of_a_file_is_named_with_what_fetches_it(
    name: str, raw: bool, content: str, fetch: str, tmp_path: Path
) -> None:
    """Beside real text too: nobody means to train on it, or to lose the file in silence."""
    (tmp_path / name).write_text(content)
    (tmp_path / "real.txt").write_text("real")
    with pytest.raises(DataError, match=f"run `{fetch}`") as told:
        formats.read_all(
            formats.find([tmp_path], "text", raw), lambda source: [list(one.pieces) for one in source.documents()]
        )
    assert str(told.value).startswith(f"{tmp_path / name}: is a pointer of ") and "\n" not in str(told.value)


def test_a_text_about_pointers_is_none_and_the_notes_of_dvc_are_left_out(tmp_path: Path) -> None:
    about = "version https://git-lfs.github.com/spec/v1 is how a pointer begins. " * 20
    (tmp_path / "a.txt").write_text(about)
    (tmp_path / "a.txt.dvc").write_text("outs:\n- md5: 0\n")
    assert _read(tmp_path) == {"a.txt": about}


KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU=\n-----END OPENSSH PRIVATE KEY-----\n"

KEYSTORE = json.dumps({"version": 3, "crypto": {"cipher": "aes-128-ctr", "ciphertext": "ab", "kdf": "scrypt"}}).encode()


def _texts_of(found: formats.Found) -> tuple[formats.Found, list[str]]:
    """What is left of it once it was read, and its texts."""
    read = list[str]()

    def note(source: formats.Source) -> None:
        read.extend(b"".join(one.pieces).decode() for one in source.documents())

    return formats.read_all(found, note), read


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("id_rsa", KEY),
        ("notes.txt", b"\n" + KEY),
        ("server.pem", b"-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n" + KEY),
        ("export", b"Bag Attributes\n    friendlyName: me\n" + KEY),
        ("backup.txt", b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n"),
        ("login.ppk", b"PuTTY-User-Key-File-3: ssh-ed25519\n"),
        ("prod.env", b"TOKEN=abc\n"),
        ("PROD.ENV", b"TOKEN=abc\n"),
        ("node.key", b"dlx-sealed\1\x12" + b"a" * 28 + b"\4peer" + b"b" * 48),
        ("lyon.key", b"5e" * 32 + b"\n"),
        ("mine.password", b"correct horse\n"),
        ("UTC--2026-01-01T00-00-00.000000000Z--ab", KEYSTORE),
        ("account.txt", KEYSTORE),
        ("credentials", b"# mine\n[default]\naws_access_key_id = AKIA\naws_secret_access_key = abc\n"),
        ("netrc", b"machine a.example login me password abc\ndefault login me password abc\n"),
        ("env", b"# of the chain\nDLX_RPC_URL=https://a\n\nexport ETH_PRIVATE_KEY='abc'\n"),
        ("env.txt", b"API_KEY=abc\r\n"),
    ],
)
def test_a_secret_is_left_out_of_a_folder_and_refused_by_name_unless_its_bytes_are_wanted(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "a.md").write_text("a text\nwith -----BEGIN RSA PRIVATE KEY----- in it")
    path = tmp_path / name
    path.write_bytes(content)
    for raw in (False, True):  # bytes of a folder are wanted, and not this file's
        for of_bytes in (False, True):
            found, read = _texts_of(formats.find([tmp_path], "text", raw, of_bytes))
            assert len(read) == 1 and read[0].startswith("a text")
            assert str(found) == f"1 .md; left out: 1 secret ({name})"
    with pytest.raises(DataError) as told:
        _texts_of(formats.find([path], "text"))
    assert str(told.value).startswith(f"{path}: seems to be a") and "keep it out of the sources" in str(told.value)
    assert "\n" not in str(told.value)
    assert _texts_of(formats.find([path], "text", raw=True))[1] == [content.decode()]


@pytest.mark.parametrize(("name", "what"), [(".env", "settings"), (".env.local", "settings"), (".netrc", "passwords")])
def test_hidden_secrets_are_refused_where_they_are_named(name: str, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("TOKEN=abc\n")
    with pytest.raises(DataError, match=f"seems to be a file of {what}"):
        _texts_of(formats.find([tmp_path / name], "text"))


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.txt", b'[{"text": "a"}, {"text": "b"}]', r"JSON: name it \.json"),
        ("a.txt", b'[\n  {\n    "text": "a"', r"JSON: name it \.json"),
        ("a", b'{"text": "a"}\n{"text": "b"}\n', r"JSON: name it \.json, or \.jsonl"),
        ("a.txt.gz", gzip.compress(b'[{"text": "a"}]', mtime=0), r"JSON: name it \.json"),
        ("a.txt", b"id,text\n1,a\n2,b\n", r"a table: name it \.csv"),
        ("a.TXT", b'"id";"text"\r\n1;"a\nb;c"\r\n', r"a table: name it \.csv"),
        ("a.txt", b",text\n0,a\n1,b", r"a table: name it \.csv"),
        ("a", b"id\ttext\n" + b"1\ta\n" * 50, r"a table: name it \.csv"),
        (
            "a.txt",
            b"<!DOCTYPE html>\n<html><body>404",
            r"a page of HTML, perhaps one that says an error: name it \.html",
        ),
        ("a.text", b'\n<html lang="en">404', "a page of HTML"),
        ("a.txt", b'<?xml version="1.0"?>\n<!-- a --><!-- b -->\n<!DOCTYPE html>\n<html>', "a page of HTML"),
        ("a.txt", b'["one", "two"]', r"JSON: name it \.json"),
        ("a.txt", b'[ ["one", 1],\n ["two", 2]', r"JSON: name it \.json"),
        ("a", b'[["one"]]\n', r"JSON: name it \.json"),
    ],
)
def test_a_page_a_table_or_json_that_is_named_as_text_is_asked_about(
    name: str, content: bytes, what: str, tmp_path: Path
) -> None:
    """In a folder too: it may be all that there is to learn."""
    path = tmp_path / name
    path.write_bytes(content)
    for given in (path, tmp_path):
        with pytest.raises(DataError, match=rf"{name}: seems to be {what}.*`raw = true`") as told:
            _texts_of(formats.find([given], "text"))
        assert "\n" not in str(told.value)
        assert len(_texts_of(formats.find([given], "text", raw=True))[1]) == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<!DOCTYPE html><html>a page</html>"),
        ("a.txt", "Roses are red, violets are blue,\nsugar is sweet, and so are you.\n"),
        ("a.txt", "Dear John,\nI write, as ever,\nto you.\n"),
        ("a.txt", "[Enter the king] { and his train }\n"),
        ("a.txt", "{{ a template }}"),
        ("a.txt", "<h1>A heading</h1>"),
        ("a.txt", "Notes,more\nof " + "one long line " * 10_000),
        ("a.txt", "PAR1 and GIF8 are how some files begin"),
        ("a.env.md", "about settings"),
        ("a.crt", "-----BEGIN CERTIFICATE-----\nMII="),
        ("a.py", 'KEY = "-----BEGIN PRIVATE KEY-----"'),
        ("a.py", 'import os\n\nAPI_KEY = os.environ["API_KEY"]\n'),
        ("a.py", 'PAD_TOKEN="<pad>"\n'),
        ("a.txt", "Set\nAPI_KEY=abc\nbefore you start.\n"),
        ("a.txt", "key = 5\nmax_tokens = 7\n"),
        ("a.txt", "LANGUAGE=German\n"),
        ("a.txt", "machine login password"),
        ("a.txt", "machine learning needs a login and a password"),
        ("a.txt", "ab" * 31),
        ("a.md", '{"crypto": "about ciphertext"}'),
        ("a.txt", '["Quoted"], he said.'),
        ("a.txt", "[[A link]] to a page"),
        ("a.txt", "[[1]] says otherwise"),
        ("a.txt", "[" * 100_000),
        ("a.txt", "<!-- a -->" * 5_000 + "<p>"),
        ("a.txt", "%!PS-Adobe is how PostScript begins"),
    ],
)
def test_text_that_only_resembles_something_else_is_taken(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert _read(tmp_path) == {name: content}


@pytest.mark.parametrize("relative", [True, False])
def test_a_file_that_is_a_link_into_a_cache_is_read_by_the_name_it_is_given(
    relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As caches by content lay files out: the bytes lie under their hash, and a link has the name."""
    snapshot, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    made = {
        "a.jsonl": texts.json_lines(tmp_path / "made.jsonl", [{"text": row, "id": 1} for row in ROWS]),
        "b.parquet": texts.parquet(tmp_path / "made.parquet", {"text": ROWS}),
    }
    for number, (name, path) in enumerate(made.items()):
        path.rename(blobs / str(number))
        (snapshot / name).symlink_to(Path("..", "..", "blobs", str(number)))
    monkeypatch.chdir(snapshot)
    given = [Path(name) if relative else snapshot / name for name in made]
    assert _read(*given) == _read(snapshot)
    assert list(_read(*given).values()) == 2 * ROWS
    assert formats.find(given, "text").taken == {".jsonl": 1, ".parquet": 1}


def test_a_file_of_two_names_is_taken_once_by_the_first_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one")
    (tmp_path / "a.txt").symlink_to("b.txt")
    both = [tmp_path / "b.txt", tmp_path / "a.txt"]
    assert _read(*both) == _read(*reversed(both)) == {"a.txt": "one"}
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.txt").rename(tmp_path / "folder" / "b.txt")
    (tmp_path / "a.txt").unlink()
    (tmp_path / "a.txt").symlink_to("folder/b.txt")
    assert _read(tmp_path / "a.txt", tmp_path / "folder") == {"b.txt": "one"}, "and by the folder's, where that has it"


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_other_kinds_of_text_columns_are_read_too(kind: pa.DataType, tmp_path: Path) -> None:
    path = texts.parquet(tmp_path / "x.parquet", {"body": pa.array(ROWS).cast(kind)})
    assert list(_read(path, field="body").values()) == ROWS


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_what_pythons_json_writes_is_read(ending: str, tmp_path: Path) -> None:
    """Its numbers that are none, and texts that were cut within an emoji: the same bytes give the same text."""
    rows: list[dict[str, Any]] = [
        {"text": "a", "score": float("nan"), "more": [{"low": float("-inf"), "high": float("inf")}]},
        {"text": "cut \ud83d"},
        {"text": "\ude00\ud83d both \ud83d\U0001f600 whole", "note": "\ud83d", "\udfff": "NaN"},
        {"text": float("nan"), "note": "no text, as null"},
        {"text": 'NaN, "Infinity" and \\ud83d', "score": float("nan")},
    ]
    path = tmp_path / f"a{ending}"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="ascii")
    assert list(_read(path).values()) == [
        "a",
        "cut \ufffd",
        "\ufffd\ufffd both \ufffd\U0001f600 whole",
        'NaN, "Infinity" and \\ud83d',
    ]


def test_a_long_array_with_half_an_emoji_is_read_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_CHUNK", 3)
    rows = [{"text": f"\ud83d {number} \U0001f600", "score": float("-inf")} for number in range(20)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert list(_read(tmp_path / "a.json").values()) == [f"\ufffd {number} \U0001f600" for number in range(20)]


def test_lines_that_are_json_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = texts.json_lines(tmp_path / "a.jsonl", [{"text": f"{row} \U0001f600 NaN"} for row in ROWS])
    monkeypatch.setattr(entries.python_json, "mended", lambda _: pytest.fail("the fast path takes them"))
    assert list(_read(path).values()) == [f"{row} \U0001f600 NaN" for row in ROWS]


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
        (
            b'{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8}',
            "line 2: has no key 'text' but 'a', 'b', 'c', 'd', 'e', 'f' and 2",
        ),
        (b'{"text": 5}', "line 2: the value of its key 'text' is no text"),
        (b'["text"]', "line 2: expected an object with the key 'text'"),
        (b'{"text": 5, "x": ' + b"[" * 100_000, "line 2: is not JSON"),
        (b'{"text": "\xff"}', "line 2: is not UTF-8"),
        (b'{"text": "\\ud800', "line 2: is not JSON"),
        (b'{"texts": "\\ud800", "s": NaN}', "line 2: has no key 'text' but 'texts', 's'"),
        (b'{"text": 5, "s": NaN}', "line 2: the value of its key 'text' is no text"),
        (b'{"text": "a", "s": nan}', "line 2: is not JSON"),
        (b'{"text": "a", "s": NaN, "t": "\xff"}', "line 2: is not UTF-8"),
        (b'{"text": "\xed\xa0\xbd"}', "line 2: is not UTF-8"),  # a surrogate as bytes
        (b'{"x": ' + b"[" * 100_000, "line 2: is not JSON"),
        (b'{"text": "' + b"x" * 2000 + b'"}', "line 2: longer than"),
    ],
)
def test_a_bad_line_is_named(line: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if line.endswith(b'xx"}'):
        monkeypatch.setattr(entries, "MAX_LINE", 1000)
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
    for name in ("e.txt.bz2", "e.tar.gz", "e.parquet.gz", "e.txt.gz.zst"):
        (tmp_path / name).write_bytes(b"\x1f\x8b")
        refuse(tmp_path / name, "unpack it first")
    saved = texts.saved_to_disk(tmp_path / "saved", ROWS)
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
        ("a.xlsx", b"PK\3\4", "is a spreadsheet"),
        ("a.ipynb", b"{}", "is a notebook"),
        ("a.rtf", b"{\\rtf1 a}", "is an office document"),
        ("a.pdf", b"%PDF-1.4\n", "is a PDF document"),
        ("a.tar", _tar(), "is packed; unpack it first"),
        ("a.tgz", b"\x1f\x8b" + gzip.compress(b"a", mtime=0), "is packed; unpack it first"),
        ("a.docx", b"PK\3\4\x14\0", "is an office document"),
        ("a.png", _png(), "is an image"),
        ("a.npy", _npy(), "is an array"),
        ("tar", _tar(), "is no text: it holds a zero byte (byte 5)"),
        ("picture", _png(), "seems to be an image"),
        ("photo", b"\xff\xd8\xff\xe0", "seems to be an image"),
        ("letter", b"PK\3\4\x14\0", "seems to be a zip archive or an office document"),
        ("scan", b"%PDF-1.4\n\xe2\xe3", "seems to be a PDF document"),
        ("scan.txt", b"%PDF-1.4\n1 0 obj", "seems to be a PDF document"),
        ("letter.txt", b"{\\rtf1\\ansi a}", "seems to be an RTF document"),
        ("print.txt", b"%!PS-Adobe-3.0\n%%Pages: 1\n", "seems to be a PostScript document"),
        ("columns", b"PAR1\0", "seems to be Parquet"),
        ("numbers", _npy(), "seems to be an array"),
        ("wide.txt", "text".encode("utf-16-le"), "it holds a zero byte (byte 1)"),
        ("latin.txt", b"caf\xe9 ol\xe9", "not UTF-8 text at byte 3: write it as UTF-8"),
        ("cut.txt", "caf\xe9".encode()[:-1], "not UTF-8 text at byte 3: write it as UTF-8"),
        ("marked.txt", b"\xef\xbb\xbfcaf\xe9", "not UTF-8 text at byte 6: write it as UTF-8"),
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
    assert "unpack it first" in said or "iconv" in said or ("--raw" in said and ".jsonl" in said)
    (source,) = formats.find([path], "text", raw=True, of_bytes=True).sources
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


def test_a_folder_of_such_files_is_refused_at_once_with_how_many_and_the_first(tmp_path: Path) -> None:
    for number in range(1234):
        (tmp_path / f"{number:04}.csv").write_text("id,body")
    (tmp_path / "0001b.jsonl").write_text('{"body": ""}')
    (tmp_path / "fine.txt").write_text("fine")
    found = formats.find([tmp_path], "text")
    read = list[str]()
    with pytest.raises(DataError) as refused:
        formats.read_all(found, lambda source: read.extend(one.name for one in source.documents()))
    said = str(refused.value)
    assert said.startswith(
        f"1,235 of 1,236 files cannot be taken ({tmp_path / '0000.csv'}: expected one column 'text', has "
    )
    assert said.endswith("; and 1,234 more)") and len(said) < 400 and read == ["fine.txt"]


CHATS: list[tuple[dict[str, Any], str, str]] = [  # a row, the field of its text, and what is named
    ({"messages": [{"role": "user", "content": "a"}]}, "text", "'messages'"),
    ({"messages": [{"role": "user", "content": "a"}]}, "messages", "'messages'"),
    ({"conversations": [{"from": "human", "value": "a"}]}, "text", "'conversations'"),
    ({"prompt": "a", "completion": "b"}, "text", "'prompt' and 'completion'"),
    ({"prompt": "a", "completion": "b"}, "prompt", "'prompt' and 'completion'"),
    ({"prompt": "a", "completion": "b"}, "completion", "'prompt' and 'completion'"),
    ({"prompt": [{"role": "user", "content": "a"}], "completion": "b"}, "completion", "'prompt' and 'completion'"),
    ({"instruction": "a", "input": "", "output": "b"}, "instruction", "'instruction' and 'output'"),
    ({"instruction": "a", "input": "", "output": "b"}, "output", "'instruction' and 'output'"),
]


@pytest.mark.parametrize(
    ("kind", "row", "field", "named"),
    [
        (kind, *chat)
        for kind in ("jsonl", "json", "csv", "parquet", "arrow")
        for chat in CHATS
        if (kind, chat[1]) != ("csv", "messages")  # which is a text like any other
    ],
)
def test_chat_data_is_refused_with_what_to_do(
    kind: str, row: dict[str, Any], field: str, named: str, tmp_path: Path
) -> None:
    path = tmp_path / f"chat.{kind}"
    if kind in ("jsonl", "json"):
        path.write_text(json.dumps(row))
    elif kind == "csv":
        cells = [one if isinstance(one, str) else json.dumps(one).replace('"', "'") for one in row.values()]
        path.write_text(",".join(row) + "\n" + ",".join(f'"{one}"' for one in cells) + "\n")
    elif kind == "parquet":
        texts.parquet(path, {key: [value] for key, value in row.items()})
    else:
        pyarrow.feather.write_feather(pa.table({key: [value] for key, value in row.items()}), path)
    with pytest.raises(DataError, match=rf"holds conversations \({named}\): set `chat = true`") as told:
        _read(path, field=field)
    assert str(told.value).startswith(str(path)) and "\n" not in str(told.value)


def test_a_text_beside_a_chat_and_an_answer_alone_are_taken(tmp_path: Path) -> None:
    rows = [{**row, "text": "a"} for row, _, _ in CHATS]
    assert list(_read(texts.json_lines(tmp_path / "both.jsonl", rows)).values()) == ["a"] * len(rows)
    for field in ("completion", "output"):
        alone = texts.json_lines(tmp_path / f"{field}.jsonl", [{field: "b", "id": 1}])
        assert list(_read(alone, field=field).values()) == ["b"]


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
    assert found.taken == {".txt": 3, ".jsonl.zst": 1, "`datasets` folders": 1}
    assert {kind: [str(path.relative_to(folder)) for path in paths] for kind, paths in found.left_out.items()} == {
        "hidden files": [".hidden", "sub/.other"],
        "hidden folders": [".git"],
        "linked folders": ["linked", "sub/loop"],
        "notes on the data": ["LICENSE"],
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


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.txt", "caf\u00e9 \U0001d11e\n", ["caf\u00e9 \U0001d11e\n"]),
        ("a.jsonl", '{"text": "caf\u00e9"}\n\n{"text": ""}\n{"text": "b"}', ["caf\u00e9", "b"]),
        ("a.json", '[{"text": "caf\u00e9", "n": [{"]": 1}]}\n , {"text": null},{"text": "b"}]\n', ["caf\u00e9", "b"]),
        ("a.json", '{"text": "caf\u00e9"}\n{"text": "b"}', ["caf\u00e9", "b"]),
        ("a.csv", 'n,text\r\n1,"caf\u00e9, ""x"""\r\n2,\r\n\r\n3,"two\nlines"\r\n', ['caf\u00e9, "x"', "two\nlines"]),
        ("a.csv", "n;text\n1;caf\u00e9, b\n", ["caf\u00e9, b"]),
        ("a.tsv", "text\tn\ncaf\u00e9, b\t1\n", ["caf\u00e9, b"]),
    ],
)
def test_text_and_tables_are_read_however_they_are_written(
    name: str, content: str, found: list[str], encoding: str, packed: str, tmp_path: Path
) -> None:
    pack: Any = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[packed]
    path = tmp_path / f"{name}{packed}"
    path.write_bytes(pack(content.encode(encoding)))
    assert list(_read(path).values()) == found
    assert formats.find([path], "text").taken == {f"{Path(name).suffix}{packed}": 1}


def test_a_long_array_is_read_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_CHUNK", 3)
    rows = [{"text": f"caf\u00e9 {number}" * number, "more": {"a": ["]", "}", '"']}} for number in range(50)]
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    assert list(_read(tmp_path / "a.json").values()) == [str(row["text"]) for row in rows[1:]]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b'[{"text": "a"}, {"text": "b"', "entry 1: is not JSON"),
        ("a.json", b'[{"text": "a"},', "ends in the middle"),
        ("a.json", b'[{"text": "a"} {"text": "b"}]', "entry 1: is not JSON"),
        ("a.json", b'[{"text": "a"},]', "entry 1: is not JSON"),
        ("a.json", b'[{"text": "a"}, {"body": "b"}]', "entry 1: has no key 'text' but 'body'"),
        ("a.json", b'[{"text": 5}]', "entry 0: the value of its key 'text' is no text"),
        ("a.json", b'[["text"]]', "entry 0: expected an object"),
        ("a.json", b'[{"messages": []}]', "entry 0: holds conversations"),
        ("a.json", b'[{"text": "\xff"}]', "entry 0: is not UTF-8"),
        ("a.json", b"[" * 100_000, "is not JSON"),
        ("a.json", b'[{"x": ' + b"9" * 5000 + b"}]", "entry 0: is not JSON"),
        ("a.json", b'[{"text": "' + b"x" * 2000 + b'"', "entry 0: longer than"),
        ("a.csv", b"id,body\n1,a\n", "expected one column 'text', has 'id', 'body': name the one"),
        ("a.csv", b"text,text\n1,a\n", "expected one column 'text', has 'text', 'text'"),
        ("a.csv", b"prompt,completion\n1,a\n", "holds conversations"),
        ("a.csv", b"id,text\n1,a,b\n", "line 2: has 3 columns, and the first line 2"),
        ("a.csv", b'id,text\n1,"a\n2,b\n', "is no row of a table"),
        ("a.csv", b'id,text\n1,"a"b\n', "line 2: is no row of a table"),
        ("a.csv", b"id,text\n1,caf\xe9\n", "line 2: not UTF-8 text at its byte 5"),
        ("a.csv", b"id,text\n1," + b"x" * 2000, "line 2: longer than"),
        ("a.txt", b"\xff\xfe\0\0a\0\0\0", "is UTF-32"),
        ("a.txt", b"\xff\xfea\0\x00\xd8b\0", "not UTF-16 text, as its byte order mark says, at byte 4"),
        ("a.txt", b"\xff\xfea\0b", "not UTF-16 text, as its byte order mark says, at byte 4"),
        ("a.txt.gz", gzip.compress(b"text", mtime=0)[:-3], "ends in the middle"),
        ("a.txt.gz", b"plain", "cannot be decompressed"),
        ("a.txt.gz", gzip.compress(b"a\0b", mtime=0), "zero byte"),
        ("a.feather", b"FEA1", "version 1"),
        ("a.arrow", b"ARROW1 and no more", "cannot be read"),
    ],
)
def test_a_damaged_table_is_named_with_its_place(
    name: str, content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if b"x" * 2000 in content:
        monkeypatch.setattr(entries, "MAX_LINE", 1000)
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        _read(path)
    said = str(refused.value)
    assert said.startswith(str(path)) and reason in said and "\n" not in said


def test_arrow_files_are_read_as_folders_of_them_are(tmp_path: Path) -> None:
    table = pa.table({"n": range(5), "text": ROWS})
    pyarrow.feather.write_feather(table, tmp_path / "a.feather")
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=2)
    with pa.ipc.new_stream(tmp_path / "c.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    for name in ("a.feather", "b.arrow", "c.arrow"):
        assert list(_read(tmp_path / name).values()) == ROWS


def test_what_is_no_text_is_left_out_of_a_folder_and_refused_where_it_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    files = {
        "a.txt": b"fine", "photo": b"\xff\xd8\xff\xe0", "b.txt": b"a\0b", "c.docx": b"PK\3\4", "d.pdf": b"%PDF-1.4",
        "e.tar.gz": b"", "README.md": b"about", "sub/README.md": b"a document", "clone/.gitattributes": b"",
        "clone/README.md": b"about", "clone/dataset_infos.json": b"{}", "clone/rows.csv": b"text\nrow\n",
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    read = list[str]()

    def note(source: formats.Source) -> None:
        read.extend(b"".join(one.pieces).decode() for one in source.documents())

    found = formats.read_all(formats.find([folder], "text"), note)
    assert read == ["fine", "row", "a document"] and found.taken == {".txt": 1, ".csv": 1, ".md": 1}
    assert str(found) == (
        "1 .txt, 1 .csv, 1 .md; left out: 1 PDF document, 1 hidden file, "
        "3 notes on the data (README.md, README.md, dataset_infos.json), 1 office document, 1 packed file, "
        "2 binary files (b.txt, photo)"
    )
    for name in ("photo", "b.txt", "c.docx", "d.pdf"):
        with pytest.raises(DataError, match="--raw"):
            formats.read_all(formats.find([folder / name], "text"), note)
    assert formats.find([folder / "README.md"], "text").taken == {".md": 1}
