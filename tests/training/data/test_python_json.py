"""What Python's `json` writes and others refuse is read as Python reads it, with U+FFFD for halves of characters."""

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dlx.training.data import python_json

PIECES = ["\ud83d", "\ude00", "\U0001f600", "\\", "u", "d83d", "\\ud83d", "\\ude00", '"', "NaN", "-Infinity", "é", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.booleans())
def test_texts_of_all_kinds_are_as_python_has_them(text: str, upper: bool) -> None:
    row: dict[str, Any] = {"text": text, "more": [float("nan"), float("-inf"), text]}
    written = json.dumps(row)
    if upper:
        written = re.sub(r"(?<!\\)\\u[0-9a-f]{4}", lambda found: rf"\u{found[0][2:].upper()}", written)
    python = json.loads(written)["text"]
    whole = re.sub("[\ud800-\udfff]", "\ufffd", python)
    assert python_json.decode(written) == {"text": whole, "more": [None, None, whole]}
    assert json.loads(python_json.mended(written)) == {"text": whole, "more": [None, None, whole]}
    assert python_json.may_have_halves(written) or whole == python


@given(st.text(alphabet='{}[]":,\\uNaInfity-0d8 ', max_size=20))
def test_what_is_no_json_stays_none(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        expected = ValueError
    try:
        found = python_json.decode(text)
    except python_json.WRONG:
        found = ValueError
    assert found == expected
