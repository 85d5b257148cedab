import json
import subprocess
import sys

import msgspec
import pytest

from dlx.ground.untrusted import decode_json, escaped, printable, printable_ascii
from tests.patience import PATIENCE

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


TEXT = '{"a": [1, "x\\\\\\"[[", {"b": null}], "c": 1.5}'


@pytest.mark.parametrize("data", [TEXT, TEXT.encode(), bytearray(TEXT, "ascii")])
def test_values_of_any_shape_come_as_they_are(data: str | bytes | bytearray) -> None:
    assert decode_json(data) == {"a": [1, 'x\\"[[', {"b": None}], "c": 1.5}


def test_what_is_none_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(b"{")


@pytest.mark.parametrize("deep", ["b'[' * n", "b'{\"a\":' * n", "b'{\"r\":\"]]' + b']' * n + b'\",\"s\":' + b'[' * n"])
@pytest.mark.parametrize("limit", [1000, 50_000, 1_000_000])
def test_deeply_nested_json_never_ends_the_process(deep: str, limit: int) -> None:
    """Whatever limit a program has that imports us: decoding it would overflow the C stack, at 50,000."""
    program = f"""
import sys, threading
from dlx.ground.untrusted import decode_json
sys.setrecursionlimit({limit})
n = 3_000_000
def decode():
    try:
        decode_json({deep})
    except RecursionError:
        print("refused")
decode()
other = threading.Thread(target=decode)
other.start()
other.join()
wide = decode_json(b'[' + b'["]",{{"a":[]}}],' * 20_000 + b'[]]')
assert len(wide) == 20_001 and wide[0] == ["]", {{"a": []}}]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "refused\nrefused\n"), done.stderr
