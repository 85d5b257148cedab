"""A file of accounts, whoever wrote it: each once, or the line that is wrong."""

from pathlib import Path

import pytest

from dlx.ledger.abi import checksum
from dlx.node.cli import accounts_file
from dlx.node.home.errors import UsageFailure

ONE, TWO = checksum(b"\x1a" * 20), checksum(b"\x2b" * 20)


def test_comments_blank_lines_and_second_namings_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "guests.txt"
    text = f"# guests\r\n\r\n  {ONE}  # \xe9\r\n{TWO}\r\n{ONE.lower()}"
    for encoding in ("utf-8-sig", "utf-16"):
        file.write_bytes(text.encode(encoding))
        assert accounts_file.read(file).accounts == {ONE, TWO}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"{ONE}\n\n{TWO[:-1]}\n", "line 3: '0x2b2B"),
        (f"{ONE} {TWO}\n", "line 1: "),
        (f"{ONE}\n{TWO.swapcase().replace('X', 'x')}\n", "line 2: '0x2B2b"),
        (f"# one\n{ONE}\n0x{40 * '0'}\n", "line 3: the zero address"),
        (f"{ONE}\n\x1b[2J\n", "line 2: "),
        ("# nobody yet\n", "a list has 1 to 65,536 accounts, this one 0"),
        ("#" * 9_000_000, "at most 8,388,608 bytes"),
        (f"{ONE}\n\x00", "is neither UTF-8"),
    ],
)
def test_what_is_no_list_is_refused_by_its_line(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "guests.txt"
    file.write_text(text)
    with pytest.raises(UsageFailure) as refused:
        accounts_file.read(file)
    assert wrong in str(refused.value) and str(file) in str(refused.value) and len(str(refused.value)) < 300


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match="there is no such file"):
        accounts_file.read(tmp_path / "none")
