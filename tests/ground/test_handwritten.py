"""What people write is read from whatever their editor made of it."""

from pathlib import Path

import pytest

from dlx.ground import handwritten

TEXT = 'note = "Grüße, 世界 🙂"\r\nport = 4650\n'
AS_UTF_8 = "neither UTF-8, nor UTF-16 with a byte order mark: save it as UTF-8 text"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),  # Notepad's "UTF-8 with BOM"
        b"\xff\xfe" + TEXT.encode("utf-16-le"),  # PowerShell's >, Notepad's "UTF-16 LE"
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
    ],
)
def test_a_mark_is_no_part_of_the_text(tmp_path: Path, data: bytes) -> None:
    (path := tmp_path / "written").write_bytes(data)
    assert handwritten.read(path, 1000) == TEXT


def test_only_one_mark_is_taken_away(tmp_path: Path) -> None:
    (path := tmp_path / "written").write_bytes("\ufeff\ufeffa".encode())
    assert handwritten.read(path, 1000) == "\ufeffa"


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
def test_a_mark_alone_is_an_empty_text(tmp_path: Path, data: bytes) -> None:
    (path := tmp_path / "written").write_bytes(data)
    assert handwritten.read(path, 1000) == ""


@pytest.mark.parametrize(
    "data",
    [
        "Grüße".encode("cp1252"),
        "Grüße".encode("utf-16-le"),  # without a mark, as `iconv` writes it
        b"\xff\xfe" + b"a",  # half a character
        b"\xff\xfe\x3d\xd8",  # half an emoji
        "Grüße".encode("utf-32"),
        b"\x89PNG\r\n\x1a\n\0\0",
    ],
)
def test_anything_else_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    (path := tmp_path / "written").write_bytes(data)
    with pytest.raises(ValueError) as refused:
        handwritten.read(path, 1000)
    assert str(refused.value) == f"{path}: is {AS_UTF_8}"


def test_a_file_without_end_is_read_no_further_than_it_may_go(tmp_path: Path) -> None:
    (path := tmp_path / "written").write_bytes(b"ab")
    assert handwritten.read(path, 2) == "ab"
    with pytest.raises(ValueError, match=r"^/dev/zero: expected at most 1,000 bytes$"):
        handwritten.read(Path("/dev/zero"), 1000)


def test_a_file_that_is_not_there_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        handwritten.read(tmp_path / "none", 1000)
