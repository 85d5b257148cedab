"""How fast each codec is on one core, how small its payloads are, and how much memory it takes beside its input.

`python -m benchmarks.codecs [--params N] [--quick] [--json FILE]`. Every codec runs in a process of its own, with one
thread, on random weights of a Llama of about N parameters. Speed is MB of float32 per second of processor time, the
best of several tries, so that other work on the machine hardly shows. Bits are a payload's for each value
that it sends: of topk's each that is kept. Extra memory is the highest resident size beside the input, the decoded
tensors included, as a multiple of the input.
"""

import json
import math
import multiprocessing
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from dlx.training.recipe.recipe import Plan

CASES = {
    "int4": ("int4", Plan(level=4)),
    "int4 8 bits": ("int4", Plan(level=8)),
    "lowrank": ("lowrank", Plan(level=4, rank=32)),
    "ternary": ("ternary", Plan(level=2)),
    "topk": ("topk", Plan(level=2, rank=128)),
}
TARGET_MB_S = {"int4": 200, "lowrank": 200, "ternary": 200, "topk": 100}
TARGET_EXTRA = 2.0

_QUICK_PARAMS = 2_000_000


def main(
    params: Annotated[int, typer.Option(min=100_000, help="Parameters of the model, about.")] = 100_000_000,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small model, one process, no targets: does it run?")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print speed, ratio and extra memory of every codec; exit code 1 when one misses its target."""
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=None if quick else 1) as pool:
        for label in CASES:
            sys.stderr.write(f"codecs: {label}\n")
            rows.append(pool.apply(measure, (label, _QUICK_PARAMS if quick else params, 1 if quick else 5)))
    command = shlex.join([Path(sys.executable).name, "-m", "benchmarks.codecs", *sys.argv[1:]])
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    sys.stdout.write(f"{command}\n{machine}, one thread\n\n{_table(rows)}")
    if json_file is not None:
        json_file.write_text(json.dumps({"command": command, "machine": machine, "rows": rows}, indent=2) + "\n")
    missed = [] if quick else [row["codec"] for row in rows if not _reached(row)]
    if missed:
        sys.stderr.write(f"missed: MB/s at least {TARGET_MB_S}, extra at most {TARGET_EXTRA}: {', '.join(missed)}\n")
    raise typer.Exit(1 if missed else 0)


def measure(label: str, params: int, tries: int) -> dict[str, Any]:
    """One row, measured in this process, which should be a fresh one. A payload starts from the one before it."""
    import torch

    from dlx.training.codecs import codec

    torch.set_num_threads(1)
    name, plan = CASES[label]
    chosen = codec(name)
    small = _tensors(_QUICK_PARAMS // 10)
    chosen.decode(chosen.encode(small, plan), {key: tuple(one.shape) for key, one in small.items()}, plan)
    tensors = _tensors(params)
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    count = sum(tensor.numel() for tensor in tensors.values())

    resident = psutil.Process().memory_info().rss
    _reset_peak()
    payload = chosen.encode(tensors, plan)
    chosen.decode(payload, shapes, plan)
    extra = _peak() - resident

    megabytes = 4 * count / 1e6
    return {
        "codec": label,
        "params": count,
        "encode_mb_s": round(megabytes / _seconds(tries, lambda: chosen.encode(tensors, plan, (payload, plan))), 1),
        "decode_mb_s": round(megabytes / _seconds(tries, lambda: chosen.decode(payload, shapes, plan)), 1),
        "ratio": round(4 * count / len(payload), 2),
        "bits": round(8 * len(payload) / (count * plan.rank / 4096 if name == "topk" else count), 2),
        "peak_extra": round(extra / (4 * count), 3),
    }


def _tensors(params: int) -> dict[str, Any]:
    """Random float32 weights of a Llama with 12 layers and about `params` parameters; 100 million give width 768."""
    import torch

    generator = torch.Generator().manual_seed(0)
    width = max(12, round(math.sqrt(params / (12 * 32 / 3 + 2 * 64 / 3)) / 12) * 12)
    narrow, wide, vocabulary = width // 3, width * 8 // 3, width * 64 // 3
    layer: dict[str, tuple[int, ...]] = {"norm": (width,)}
    layer |= {"q_proj": (width, width), "k_proj": (narrow, width), "v_proj": (narrow, width), "o_proj": (width, width)}
    layer |= {"gate_proj": (wide, width), "up_proj": (wide, width), "down_proj": (width, wide)}
    shapes = {f"model.layers.{index}.{key}.weight": shape for index in range(12) for key, shape in layer.items()}
    shapes |= {"model.embed_tokens.weight": (vocabulary, width), "lm_head.weight": (vocabulary, width)}
    return {name: torch.empty(shape).normal_(0, 1e-3, generator=generator) for name, shape in shapes.items()}


def _seconds(tries: int, work: Callable[[], object]) -> float:
    """The least processor time that `work` took."""
    taken = []
    for _ in range(tries):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the peak is then that of the whole process so far: never too low


def _peak() -> int:
    """The highest resident size in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reached(row: dict[str, Any]) -> bool:
    least = TARGET_MB_S[CASES[row["codec"]][0]]
    return min(row["encode_mb_s"], row["decode_mb_s"]) >= least and row["peak_extra"] <= TARGET_EXTRA


def _table(rows: list[dict[str, Any]]) -> str:
    columns = {"codec": "<12", "params": ">12,", "encode_mb_s": ">12.0f", "decode_mb_s": ">12.0f"}
    columns |= {"ratio": ">7.1f", "bits": ">7.2f", "peak_extra": ">11.2f"}
    head = " ".join(f"{key:{form.rstrip(',f').partition('.')[0]}}" for key, form in columns.items())
    lines = [" ".join(f"{row[key]:{form}}" for key, form in columns.items()) for row in rows]
    return "\n".join([head, *lines]) + "\n"


if __name__ == "__main__":
    typer.run(main)
