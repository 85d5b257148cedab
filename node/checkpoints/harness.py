"""Tasks of lm-evaluation-harness (the extra `evaluate`) on a pulled model, by its own classes and nothing of ours."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dlx.node.home.errors import Failure, UsageFailure


def run(
    folder: Path, tasks: Sequence[str], folders: Sequence[Path], limit: int | None, batch: int, device: str
) -> dict[str, Any]:
    """`tasks`: for each its `version`, `samples` and `metrics` (value and standard error, None where it has none), and
    `harness`, the version of lm_eval. Raises UsageFailure for a task that there is not, Failure
    where one cannot be run.
    """
    with _quiet():
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=[str(path) for path in folders])
        known = set(manager.all_tasks)
        for name in tasks:
            if name not in known:
                raise UsageFailure(f"--tasks {name}: lm_eval {version('lm_eval')} knows no such task; --include-path?")
        try:
            model = HFLM(
                pretrained=str(folder), tokenizer=str(folder), dtype="float32", device=device, batch_size=batch
            )
            found = simple_evaluate(
                model, tasks=list(tasks), task_manager=manager, limit=limit, log_samples=False, bootstrap_iters=1000
            )
        except Exception as error:  # whatever a task, its data and its code bring about
            raise Failure(f"the tasks cannot be run ({' '.join(str(error).split())[:300]})") from error
    assert found is not None
    return {"tasks": {name: _result(name, found) for name in found["results"]}, "harness": version("lm_eval")}


def _result(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    values = found["results"][name]
    metrics = {
        key.removesuffix(",none"): {"value": value, "stderr": _number(values.get(_stderr(key)))}
        for key, value in values.items()
        if isinstance(value, int | float) and "," in key and "_stderr," not in key
    }
    samples = found.get("n-samples", {}).get(name, {}).get("effective")
    return {"version": found.get("versions", {}).get(name), "samples": samples, "metrics": metrics}


def _stderr(metric: str) -> str:
    name, _, filtered = metric.partition(",")
    return f"{name}_stderr,{filtered}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Its talk goes to stderr, warnings and worse alone; nothing is asked of a hub where a task has its own data."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr):
        yield
