import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dlx.training import selftest
from dlx.training.codecs import int4
from dlx.training.codecs import on_device as codecs_on_device
from dlx.training.selftest import SelfTestError
from tests.training.devices import DEVICES

_TABLE = int4._TABLES[4]
_DOUBLE = (2 * _TABLE.values.view(np.float32)).view(_TABLE.values.dtype)
_RUN = "import sys, torch; torch.set_num_threads(int(sys.argv[1])); from dlx.training import selftest; selftest.run()"


@pytest.mark.parametrize(("threads", "instructions"), [("1", "default"), ("3", "avx2")])
def test_passes_whatever_the_threads_and_instructions(threads: str, instructions: str) -> None:
    environment = os.environ | {"ATEN_CPU_CAPABILITY": instructions}  # torch takes less where the machine has less
    command = [sys.executable, "-c", _RUN, threads]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_is_quick() -> None:
    selftest.run()
    began = time.process_time()
    selftest.run()
    assert time.process_time() - began < 1  # 0.03 s on an idle machine


@pytest.mark.parametrize("device", [None, *DEVICES])
def test_every_implementation_has_the_golden_bits(device: str | None) -> None:
    assert selftest.digests(device) == selftest.GOLDEN


def test_a_device_with_other_bits_leaves_canonical_arithmetic_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selftest.arithmetic_device("cpu") == (None, ""), "numpy is what the processor computes with"
    multiplied = codecs_on_device._number
    monkeypatch.setattr(codecs_on_device, "_number", lambda value, beside: multiplied(value * 1.001, beside))
    assert selftest.differs("cpu") == "encoding" and selftest.differs() == ""
    device, note = selftest.arithmetic_device("meta")  # computes nothing
    assert device is None and note.startswith("meta is not used for canonical arithmetic: ") and "\n" not in note


def test_flushing_denormals_is_noticed() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    try:
        with pytest.raises(SelfTestError, match="denormal numbers become zero"):
            selftest.run()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("dlx.training.outer.arithmetic.rounded", lambda value: np.float32(value * 1.0000001).item()),
        ("dlx.training.codecs.int4._TABLES", int4._TABLES | {4: SimpleNamespace(**vars(_TABLE) | {"values": _DOUBLE})}),
        ("numpy.matmul", lambda one, other: np.float32(one) @ np.float32(other)),
        ("json.dumps", lambda *args, **options: "{}"),
    ],
    ids=["outer", "decoding", "product", "layout"],
)
def test_other_arithmetic_or_layout_is_noticed(name: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name, wrong)
    with pytest.raises(SelfTestError, match="gives other bits here"):
        selftest.run()
