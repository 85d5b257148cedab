"""What a device gives to a node: tokens a second beside a bare loop, bits of the outer step, distance of replays.

`python -m benchmarks.device [--device cuda] [--size 100M] [--json FILE]`. The bare loop is transformers' own model with
torch's AdamW, the same batches, precision and device, and nothing else; node and bare loop take turns, and the best
turn of each counts. The outer step's arithmetic is computed on the device and on the CPU. A replica of three stages
trains on the CPU, and its last segment is trained again on the device, as level 3 of the audit does.
"""

import hashlib
import json
import os
import platform
import shlex
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
import typer
from torch import Tensor

from benchmarks.replay import Bench, Case, summary
from dlx.training.data.prepare import prepare
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models.placement import Placement, PlacementError, hardware, settle, take
from dlx.training.models.stages import initialise
from dlx.training.outer import arithmetic
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.families import LlamaConfig
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, Outer, Plan, WeightsRef

TARGET_RATIO = 0.95  # at 100M parameters or more, in bfloat16, on a GPU
WARM_UP_STEPS = 3
TURNS = 3


class Size(NamedTuple):
    """Of a Llama, and of its batches."""

    width: int
    layers: int
    vocabulary: int
    length: int  # tokens of a sample
    samples: int  # of a micro-batch
    micro_batches: int = 2


SIZES = {
    "1M": Size(128, 4, 512, 128, 8),
    "10M": Size(320, 6, 4096, 256, 4),
    "100M": Size(768, 12, 32_000, 1024, 8),
    "1B": Size(2048, 18, 32_000, 2048, 4),
}


def main(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    size: Annotated[str, typer.Option(help=f"About so many parameters: {', '.join(SIZES)}.")] = "",
    precision: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    steps: Annotated[int, typer.Option(min=1, help="Inner steps of each turn.")] = 10,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: all cores.")] = 0,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the layers of both loops.")] = False,
    replays: Annotated[bool, typer.Option(help="Measure the distance of replays too: some minutes.")] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print tokens a second of a node's inner loop and of a bare one, and what the device changes in bits.

    Exits with 1 where a GPU misses the target at 100M parameters or more in bfloat16, or a replay its limits.
    """
    try:
        placement = settle(Placement(device=device, threads=threads, compile=compile))
    except PlacementError as error:
        raise typer.BadParameter(str(error)) from error
    on_gpu = placement.device != "cpu"
    size = size or ("100M" if on_gpu else "1M")
    if size not in SIZES or precision not in ("bfloat16", "float32"):
        raise typer.BadParameter(f"no size {size} or precision {precision}")
    take(placement)
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.device", *sys.argv[1:]]),
        "machine": _machine(placement),
        "size": size,
        "precision": precision,
    }
    result |= _speed(SIZES[size], precision, placement, steps)
    result["outer_step_bits"] = "those of the CPU" if _same_bits(placement.device) else "others than the CPU's"
    rows = _replays(placement.device) if replays else []
    for key, value in result.items():
        sys.stdout.write(f"{key:<26} {value}\n")
    for row in rows:
        distances = ", ".join(f"{name} {value:.1e}" for name, value in row["distances"].items())
        sys.stdout.write(f"replay {row['precision']:<9}{row['optimiser']:<7} {distances}: {row['verdict']}\n")
    if json_file is not None:
        json_file.write_text(json.dumps(result | {"replays": rows}, indent=2) + "\n")
    slow = on_gpu and precision == "bfloat16" and SIZES[size].width >= 768 and result["ratio"] < TARGET_RATIO
    if slow:
        sys.stderr.write(f"missed: at least {TARGET_RATIO} of the bare loop's tokens a second\n")
    raise typer.Exit(1 if slow or any(row["verdict"] != "honest" for row in rows) else 0)


def _machine(placement: Placement) -> str:
    cores = f"{os.cpu_count()} cores, {placement}"
    return f"{hardware(placement.device)}, {cores}, torch {torch.__version__}, Python {platform.python_version()}"


# ---- tokens a second


def _speed(size: Size, precision: str, placement: Placement, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dlx-device-") as folder:
        manifest, dataset = _run(size, precision, Path(folder))
        parameters = sum(tensor.numel() for tensor in initialise(manifest, 0).values())
        loops = {"node": _node(manifest, dataset, placement), "bare": _bare(manifest, dataset, placement)}
        seconds: dict[str, float] = {}
        for turn in range(TURNS + 1):
            for name, step in loops.items():
                took = _seconds(step, placement, steps if turn else WARM_UP_STEPS)
                if turn:
                    seconds[name] = min(took, seconds.get(name, took))
    rates = {name: steps * manifest.tokens_per_step / took for name, took in seconds.items()}
    return {
        "parameters": parameters,
        "tokens_per_step": manifest.tokens_per_step,
        "node_tokens_per_second": round(rates["node"]),
        "bare_tokens_per_second": round(rates["bare"]),
        "ratio": round(rates["node"] / rates["bare"], 3),
    }


def _run(size: Size, precision: str, folder: Path) -> tuple[Manifest, Dataset]:
    """A run of one stage on the standard library's sources, as bytes."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    data = prepare(sources, folder)
    heads = max(2, size.width // 64)
    model = LlamaConfig(
        vocab_size=size.vocabulary, hidden_size=size.width, intermediate_size=size.width // 3 * 8,
        num_hidden_layers=size.layers, num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=size.length,
    )  # fmt: skip
    batch = size.samples * size.micro_batches
    draft = Draft(
        name="device",
        model=DraftModel(msgspec.to_builtins(model)),
        stages=[(0, size.layers)],
        data=DraftData(
            source=[str(path) for path in sources],
            sequence_length=size.length,
            batch_size=batch,
            micro_batches=size.micro_batches,
        ),
        inner=Inner(optimiser="adamw"),
        plan=Plan(inner_steps=20),
        precision=precision,  # type: ignore[arg-type]
        rounds=100,
        tokens_per_step=batch * size.length,
    )
    manifest = complete(draft, [WeightsRef("00" * 32, 1, "00" * 32)], data, bytes(32))
    return manifest, Dataset.open(folder / data.sha256, folder)


def _seconds(step: Callable[[int], None], placement: Placement, steps: int) -> float:
    """What so many steps take; on the CPU the processor's time, which a busy machine does not change."""
    clock = time.process_time if placement.device == "cpu" else time.perf_counter
    began = clock()
    for index in range(steps):
        step(index)
    if placement.device.startswith("cuda"):
        torch.cuda.synchronize(placement.device)
    elif placement.device == "mps":
        torch.mps.synchronize()
    return (clock() - began) / (placement.threads if placement.device == "cpu" else 1)


def _node(manifest: Manifest, dataset: Dataset, placement: Placement) -> Callable[[int], None]:
    loop = InnerLoop(manifest, 0, dataset, placement)
    loop.load_weights(initialise(manifest, 0))

    def step(index: int) -> None:
        loop.step(index, 2000, loop.positions(index), None, None)

    return step


def _bare(manifest: Manifest, dataset: Dataset, placement: Placement) -> Callable[[int], None]:
    from transformers import LlamaConfig as Config
    from transformers import LlamaForCausalLM

    device, data, inner = placement.device, manifest.data, manifest.inner
    options: dict[str, Any] = {key: value for key, value in manifest.model.config.items() if key != "model_type"}
    options |= {"attn_implementation": "sdpa", "use_cache": False}
    model: Any = LlamaForCausalLM(Config(**options))
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=inner.lr, weight_decay=inner.weight_decay, fused=True)
    forward = torch.compile(model) if placement.compile else model
    kind = torch.device(device).type

    def step(index: int) -> None:
        for ids in _micro_batches(dataset, manifest, index):
            there = ids.pin_memory().to(device, non_blocking=True) if kind == "cuda" else ids.to(device)
            with torch.autocast(kind, torch.bfloat16, enabled=manifest.precision == "bfloat16"):
                logits = forward(there[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), there[:, 1:].flatten())
            (loss / data.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), inner.clip)
        optimiser.step()
        optimiser.zero_grad()

    return step


def _micro_batches(dataset: Dataset, manifest: Manifest, index: int) -> Iterator[Tensor]:
    data = manifest.data
    places = range(index * data.batch_size, (index + 1) * data.batch_size)
    batch = dataset.batch("train", dataset.ids(data.seed, places, data.sequence_length), data.sequence_length)
    yield from batch.chunk(data.micro_batches)


# ---- bits, and distances


def _same_bits(device: str) -> bool:
    """Whether the outer step's arithmetic gives on the device what it gives on the CPU."""
    return _outer_steps("cpu") == _outer_steps(device)


def _outer_steps(device: str) -> bytes:
    """A hash of what two outer steps with momentum come to."""
    outer = Outer(lr=0.7, momentum=0.9, nesterov=True)
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:  # of every magnitude, denormal numbers too
        values = torch.randn(1_000_003, generator=generator)
        return (values * torch.randint(-140, 20, values.shape, generator=generator).float().exp2()).to(device)

    values, moment = draw(), draw()
    for _ in range(2):
        mean = torch.zeros_like(values)
        for part in (0.625, 1 / 3):
            arithmetic.add_part(mean, draw(), part)
        arithmetic.descend(values, moment, mean, outer)
    return hashlib.sha256(values.cpu().numpy().tobytes() + moment.cpu().numpy().tobytes()).digest()


def _replays(device: str) -> list[dict[str, Any]]:
    """Of each precision and optimiser the largest distances over the stages."""
    rows = []
    for precision in ("float32", "bfloat16"):
        for optimiser in ("adamw", "muon", "shampoo"):
            with tempfile.TemporaryDirectory(prefix="dlx-device-") as folder:
                case = Case(f"on {device}", device=device)
                distances = summary(Bench(Path(folder), precision, optimiser, 96).measure(case), case)
            verdict = "honest" if distances["limit"] <= 1 else "FALSE"
            rows.append({"precision": precision, "optimiser": optimiser, "distances": distances, "verdict": verdict})
    return rows


if __name__ == "__main__":
    typer.run(main)
