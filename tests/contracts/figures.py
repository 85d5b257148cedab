"""What proofs of one element cost: calldata, transactions and gas, measured on the chain in this process.

`python -m tests.contracts.figures` prints a row for each codec and number of payloads, of a stage of 4,000,000
parameters in two tensors, with Nesterov momentum, where the disputed seal is the newest. It takes some minutes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dlx.node.audit.element_proof import Element
from dlx.node.audit.prove import split
from dlx.training.recipe.recipe import Outer
from tests.contracts.sealed import Stage
from tests.contracts.solidity import Chain

SHAPES = {"a": (1000, 3000), "b": (1000, 1000)}
PAYLOADS = (1, 2, 8, 32, 64)


def _flip(version: Any, momentum: Any) -> None:
    version["b"].reshape(-1).view(np.uint32)[_CHANGED] ^= 1


if __name__ == "__main__":
    print("| codec | payloads | calldata, bytes | transactions | gas |\n|---|---:|---:|---:|---:|")
    monkeypatch = pytest.MonkeyPatch()
    for kind in ("int4", "ternary", "topk"):
        with tempfile.TemporaryDirectory() as folder:
            one = Stage(Chain(), Path(folder), kind, Outer(lr=0.7, momentum=0.9, nesterov=True), SHAPES)
            data = one.encode()
            monkeypatch.setattr(one, "encode", lambda data=data: data)
            _CHANGED = int(np.flatnonzero(one.form.codec.decode_arrays(data, SHAPES, one.form.plan)["b"])[-1])
            one.step([20], [32768])
            for count in PAYLOADS:
                one.step([20] * count, [32768] * count, _flip)
                calls = split(one.proof(len(one.rounds) - 1, Element(False, 1, _CHANGED)))
                size = sum(len(one.proofs.data(call.function, *call.arguments)) for call in calls)
                gas = sum(one.proofs.write(call.function, *call.arguments).gas_used for call in calls)
                print(f"| {kind} | {count} | {size:,} | {len(calls)} | {gas:,} |", flush=True)
