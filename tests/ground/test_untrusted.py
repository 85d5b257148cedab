import json

import pytest

from dlx.ground.untrusted import escaped, printable, printable_ascii

HOSTILE = "\x1b[2J\x07a\nb\x9b31m\u202ec\ud800\x7f"


def test_nothing_of_it_steers_a_terminal_or_begins_a_line() -> None:
    assert printable(HOSTILE) == "\ufffd[2J\ufffda\ufffdb\ufffd31m\ufffdc\ufffd\ufffd"
    assert printable("Grüße, 世界 🙂") == "Grüße, 世界 🙂"


@pytest.mark.parametrize(
    ("text", "most", "said"), [("abcdef", 3, "abc..."), ("abc", 3, "abc"), ("\x1b\x1b", 1, "\ufffd...")]
)
def test_it_is_cut_where_there_is_room_for_less(text: str, most: int, said: str) -> None:
    assert printable(text, most) == said


def test_ascii_fields_take_nothing_else() -> None:
    assert printable_ascii("ü\x1b~", 200) == "??~" and printable_ascii("a" * 300, 200) == "a" * 197 + "..."


def test_json_keeps_its_values() -> None:
    value = {"a": "\x9b31m\u202e \U000e0001 Grüße"}
    shown = escaped(json.dumps(value, ensure_ascii=False))
    assert shown.isprintable() and "Grüße" in shown and json.loads(shown) == value
