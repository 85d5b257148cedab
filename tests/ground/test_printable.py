"""What strangers write, before it reaches a terminal."""

import pytest

from dlx.ground.printable import printable


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("plain, with ümlauts", "plain, with ümlauts"),
        ("\x1b[31mred\x1b]0;title\x07", "�[31mred�]0;title�"),
        ("two\nlines\r\x85", "two�lines��"),
        ("\u202etxt.exe\u200b", "�txt.exe�"),
        ("x" * 201, "x" * 200 + "..."),
    ],
)
def test_no_text_steers_a_terminal(hostile: str, shown: str) -> None:
    assert printable(hostile) == shown
