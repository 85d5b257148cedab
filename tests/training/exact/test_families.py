"""Every model family that a manifest may name is trained to the same bits on machines of unlike kinds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dlx.training.recipe.manifest import Manifest, canonical_bytes
from dlx.training.recipe.recipe import Inner, Model
from tests.patience import patient
from tests.training.exact.families import stepped
from tests.training.models.test_adapters import BOTH, adapter_run
from tests.training.recipe.test_families import CASES, full

__all__ = ["adapter_run"]

OTHER_MACHINE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_WAIT_POLICY": "PASSIVE"}
TIED: dict[str, Any] = {"tie_word_embeddings": True}
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gelu of erf": ("llama", {"hidden_act": "gelu"}, {}),
    "gelu of tanh": ("llama", {"hidden_act": "gelu_pytorch_tanh"}, {}),
    "tied embeddings": ("gpt2", TIED, {}),
    "AdamW alone": ("qwen3", {}, {"inner": Inner(optimiser="adamw", lr=1e-2, schedule="wsd")}),
    "few bits": ("llama", {}, {"exact_bits": 7}),
}


def test_every_family_is_trained_to_the_same_bits_everywhere(
    tiny_run: Callable[..., Manifest], adapter_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    cases = {case: (case, {}, {}) for case in CASES} | VARIANTS
    runs = {
        name: tiny_run([(0, 3)], model=Model(full(CASES[case][0] | keys)), arithmetic="exact", **changes)
        for name, (case, keys, changes) in cases.items()
    }
    runs["an adapter"] = replace(adapter_run("qwen2", [(0, 3)], BOTH), arithmetic="exact")
    here = {name: stepped(manifest, blobs) for name, manifest in runs.items()}
    given = tmp_path / "given"
    texts = {name: canonical_bytes(manifest).decode() for name, manifest in runs.items()}
    given.write_text(json.dumps([texts, str(blobs)]))
    command = [sys.executable, "-m", "tests.training.exact.families", str(given), "2"]
    made = subprocess.run(
        command, env=os.environ | OTHER_MACHINE, capture_output=True, text=True, timeout=patient(120), check=True
    )
    assert json.loads(made.stdout) == here
