import importlib.util
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.codecs import PLANS, one_input


@given(st.integers(0, len(PLANS) - 1), st.integers(0, 2), st.binary(max_size=900))
def test_whatever_the_bytes_a_decoder_refuses_them_or_is_finite(chosen: int, how: int, data: bytes) -> None:
    one_input(bytes([chosen, how]) + data)


@given(st.integers(0, len(PLANS) - 1), st.binary(min_size=3, max_size=9))
def test_the_same_for_payloads_with_a_few_changes(chosen: int, changes: bytes) -> None:
    one_input(bytes([chosen, 2]) + changes)


@pytest.mark.slow
def test_a_search_guided_by_coverage_finds_nothing() -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this Python or system")
    command = [sys.executable, "-m", "tests.fuzz.codecs", "-runs=3000", "-max_total_time=15", "-max_len=600", "-seed=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done" in done.stderr
