import subprocess
import sys

import msgspec
import pytest

from dlx.ground import untyped

TEXT = '{"a": [1, "x\\\\\\"[[", {"b": null}], "c": 1.5}'


@pytest.mark.parametrize("data", [TEXT, TEXT.encode(), bytearray(TEXT, "ascii")])
def test_values_of_any_shape_come_as_they_are(data: str | bytes | bytearray) -> None:
    assert untyped.decode(data) == {"a": [1, 'x\\"[[', {"b": None}], "c": 1.5}


def test_what_is_none_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        untyped.decode(b"{")


@pytest.mark.parametrize("deep", ["b'[' * n", "b'{\"a\":' * n", "b'{\"r\":\"]]' + b']' * n + b'\",\"s\":' + b'[' * n"])
@pytest.mark.parametrize("limit", [1000, 50_000, 1_000_000])
def test_deeply_nested_json_never_ends_the_process(deep: str, limit: int) -> None:
    """Whatever limit a program has that imports us: decoding it would overflow the C stack, at 50,000."""
    program = f"""
import sys, threading
from dlx.ground import untyped
sys.setrecursionlimit({limit})
n = 3_000_000
def decode():
    try:
        untyped.decode({deep})
    except RecursionError:
        print("refused")
decode()
other = threading.Thread(target=decode)
other.start()
other.join()
wide = untyped.decode(b'[' + b'["]",{{"a":[]}}],' * 20_000 + b'[]]')
assert len(wide) == 20_001 and wide[0] == ["]", {{"a": []}}]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "refused\nrefused\n"), done.stderr
