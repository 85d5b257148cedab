"""What a round costs beside its inner steps: time, memory and disk for one slot and for each payload that it receives.

`python -m benchmarks.round [--params 1M,10M,100M] [--preset NAME] [--payloads N] [--json FILE]`. One replica of one
stage in a fresh process per size, torch on one thread, a tiny batch: so nearly all memory is the state's, not the
activations'. With a delay the outer step runs beside the training, as it does in a node. Private memory is what the
process has for itself (Linux's RssAnon) beyond what it has before the slot is opened; files in the page cache are not
in it. Times are wall-clock nanoseconds per parameter, of the last of three rounds.
"""

import json
import multiprocessing
import os
import platform
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from msgspec.structs import replace

from dlx.training.codecs import codec
from dlx.training.data.prepare import prepare
from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.presets import PRESETS
from dlx.training.recipe.recipe import BlobRef

SIZES = {  # parameters, about -> layers, width, width of the feed-forward layers, tokens
    "1M": (5, 128, 344, 256),
    "10M": (12, 256, 688, 1024),
    "100M": (12, 768, 2048, 8192),
}
ROUNDS, INNER_STEPS = 3, 2
TARGETS = {"slot ns": 20.0, "payload ns": 6.0, "written": 4.2}  # per parameter; written: times the weights
TARGET_MEMORY = {"default": 18.0, "dilocox": 26.0}  # bytes per parameter

_SAMPLING = 0.004  # s
_DRAFT = """
name = "round"
preset = "{preset}"
stages = [[0, {layers}]]
rounds = {rounds}
max_replicas = 64
[model.config]
model_type = "llama"
vocab_size = {tokens}
hidden_size = {hidden}
intermediate_size = {intermediate}
num_hidden_layers = {layers}
num_attention_heads = {heads}
num_key_value_heads = {heads}
max_position_embeddings = 64
[data]
source = ["corpus.txt"]
sequence_length = 16
batch_size = 1
"""


def main(
    params: Annotated[str, typer.Option(help=f"Sizes, of {', '.join(SIZES)}.")] = "1M,10M,100M",
    preset: Annotated[str, typer.Option(help=f"The recipe: one of {', '.join(PRESETS)}.")] = "default",
    payloads: Annotated[int, typer.Option(min=2, help="Payloads that are received and counted.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print what each phase of a round costs."""
    sizes = params.split(",")
    if preset not in PRESETS or not set(sizes) <= set(SIZES):
        raise typer.BadParameter(f"expected --params of {', '.join(SIZES)} and --preset of {', '.join(PRESETS)}")
    command = shlex.join([Path(sys.executable).name, "-m", "benchmarks.round", *sys.argv[1:]])
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    sys.stdout.write(f"{command}\n{machine}\n")
    rows = []
    for size in sizes:
        row = _measured(size, preset, payloads)
        rows.append(row)
        sys.stdout.write(_table(row))
    if json_file is not None:
        json_file.write_text(json.dumps({"command": command, "machine": machine, "rows": rows}, indent=2) + "\n")


def _measured(size: str, preset: str, payloads: int) -> dict[str, Any]:
    """One row, from processes of its own: one makes the run, another is measured."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="dlx-round-") as folder:
        sys.stderr.write(f"round: {size}: making the run\n")
        with context.Pool(1) as pool:
            manifest = pool.apply(_make, (size, preset, payloads, folder))
        ours, theirs = context.Pipe()
        process = context.Process(target=_run, args=(manifest, payloads, folder, theirs))
        process.start()
        theirs.close()
        found, peaks = _watch(process.pid or 0, ours, size)
        process.join(60)
    count = found.pop("parameters")
    before = peaks.pop("before")
    memory = {phase: round((peak - before) / count, 2) for phase, peak in peaks.items()}
    slot = {phase: round(seconds / count * 1e9, 2) for phase, seconds in found["slot"].items()}
    received = {phase: round(seconds / count * 1e9, 2) for phase, seconds in found["received"].items()}
    return {
        "preset": preset,
        "parameters": count,
        "slot_ns": slot | {"all but the inner steps": round(sum(slot.values()) - slot["inner steps"], 2)},
        "received_payload_ns": received | {"all": round(sum(received.values()), 2)},
        "private_bytes": memory | {"peak": max(memory.values())},
        "process_before_bytes": before,
        "written_times_the_weights": round(found["written"] / (4 * count), 2),
    }


def _watch(process: int, pipe: Connection, size: str) -> tuple[dict[str, Any], dict[str, int]]:
    """What the process found in the end, and the peak of its private memory in each phase that it named."""
    phase, peaks = "start", dict[str, int]()
    while True:
        peaks[phase] = max(peaks.get(phase, 0), _private(process))
        if pipe.poll(_SAMPLING):
            try:
                message = pipe.recv()
            except EOFError:
                raise SystemExit("the measured process failed") from None
            if isinstance(message, dict):
                return message, {name: peak for name, peak in peaks.items() if name != "start"}
            phase = message
            sys.stderr.write(f"round: {size}: {phase}\n")


def _private(process: int) -> int:
    """Bytes."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")), 0)


def _table(row: dict[str, Any]) -> str:
    lines = [f"\n{row['parameters'] / 1e6:.1f}M parameters, {row['preset']}"]
    for title, unit in (
        ("slot_ns", "ns per parameter"),
        ("received_payload_ns", "ns per parameter"),
        ("private_bytes", "bytes per parameter"),
    ):
        lines.append(f"  {title.replace('_', ' ').removesuffix(' ns').removesuffix(' bytes')} ({unit})")
        lines += [f"    {name:<24} {value:>8.2f}" for name, value in row[title].items()]
    return "\n".join([*lines, f"  written: {row['written_times_the_weights']} times the weights\n"])


# ---- in processes of their own


def _make(size: str, preset: str, payloads: int, folder: str) -> Manifest:
    """A run, its blobs in the folder, and payloads of others in `received`."""
    layers, hidden, intermediate, tokens = SIZES[size]
    blobs, corpus = Path(folder) / "blobs", Path(folder) / "corpus.txt"
    blobs.mkdir()
    corpus.write_text("".join(f"{line} times {line} is {line * line}.\n" for line in range(2000)))
    (Path(folder) / "run.toml").write_text(
        _DRAFT.format(
            preset=preset,
            tokens=tokens,
            hidden=hidden,
            intermediate=intermediate,
            layers=layers,
            heads=hidden // 64,
            rounds=ROUNDS + 1,
        )
    )
    draft = draft_from_toml(Path(folder) / "run.toml")
    plan = replace(draft.plan, inner_steps=INNER_STEPS)
    draft = replace(draft, plan=plan, adaptive=None, rounds=ROUNDS + 1)
    shapes = stage_shapes(draft, 0)
    name = weights.write_blob(weights.Lazy(shapes, partial(_random, shapes, 0, 0.02)), blobs)
    genesis = BlobRef(name.hex(), (blobs / name.hex()).stat().st_size)
    manifest = complete(draft, [genesis], prepare([corpus], blobs), salt=bytes(32))
    received = Path(folder) / "received"
    received.mkdir()
    chosen = codec(manifest.codec.name)
    for index in range(payloads):
        update = partial(_random, shapes, index + 1, 1e-3)
        (received / str(index)).write_bytes(chosen.encode(weights.Lazy(shapes, update), manifest.plan))
    return manifest


def _random(shapes: weights.Shapes, seed: int, size: float, name: str) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shapes[name], np.float32)
    values *= np.float32(size)
    return values


def _run(manifest: Manifest, payloads: int, folder: str, pipe: Connection) -> None:
    """Train and count some rounds; tells the phases, and at the end what was measured."""
    import torch

    torch.set_num_threads(1)
    measured = _Measured(manifest, Path(folder), payloads)
    pipe.send("before")
    time.sleep(4 * _SAMPLING)
    pipe.send("opened")
    measured.open()
    for round in range(ROUNDS):
        for phase in measured.round(round):
            pipe.send(phase)
    pipe.send(measured.result())


class _Measured:
    """A slot, and a node's work on the payloads of others."""

    def __init__(self, manifest: Manifest, folder: Path, payloads: int) -> None:
        from dlx.training.data.shards import Dataset
        from dlx.training.inner.loop import InnerLoop
        from dlx.training.outer import step
        from dlx.training.slot import records, slot

        self._manifest, self._folder, self._blobs = manifest, folder, folder / "blobs"
        self._dataset = Dataset.open(self._blobs / manifest.data.manifest.sha256, self._blobs)
        self._outer, self._records, self._slots, self._loops = step, records, slot, InnerLoop
        self._shapes = stage_shapes(manifest, 0)
        self._versions: list[tuple[bytes, bytes | None]] = [(bytes.fromhex(manifest.genesis[0].sha256), None)]
        self._received = self._sealed(payloads)
        self._seconds: dict[str, float] = {}

    def open(self) -> None:
        self._loop = self._loops(self._manifest, 0, 0, self._dataset)
        self._slot = self._slots.Slot(self._manifest, self._loop, 0, self._folder / "slot", self._blobs)

    def round(self, t: int) -> Iterator[str]:
        """One round: yields the name of each phase before it begins."""
        delay, manifest = self._manifest.outer.delay, self._manifest
        yield "training" if t else "first round"
        written, self._seconds = _written(), {}
        outer = threading.Thread(target=self._outer_step, args=(self._received,))
        if delay and t:  # the last round's outer step, beside the training
            outer.start()
        with self._timed_steps(), self._timing("training"):
            base = self._versions[max(0, t - delay)][0]
            inputs = self._records.RoundInputs(
                round=t,
                plan=manifest.plan,
                steps_before=t * INNER_STEPS,
                total_steps=(ROUNDS + 1) * INNER_STEPS,
                base_version=max(0, t - delay),
                base_weights=base,
            )
            self._slot.train(inputs, None, None)
        if not delay:
            yield "outer step"
            self._outer_step(self._received)
        elif t:
            outer.join()
        self._bytes = _written() - written
        if t == ROUNDS - 1:
            yield from self._received_payloads()

    def result(self) -> dict[str, Any]:
        seconds = self._seconds
        # Of the outer step the part that does not grow with the payloads is the slot's.
        each = (seconds["outer, all"] - seconds["outer, two"]) / max(1, len(self._received) - 2)
        slot = {"inner steps": seconds["inner steps"]}
        slot |= {"round's start and end": seconds["training"] - seconds["inner steps"]}
        slot |= {"outer step": seconds["outer, two"] - 2 * each}
        received = {"outer step": each} | {
            phase: seconds[phase] / len(self._received) for phase in ("check", "measure")
        }
        return {
            "parameters": sum(int(np.prod(shape)) for shape in self._shapes.values()),
            "slot": slot,
            "received": received,
            "written": self._bytes,
        }

    def _received_payloads(self) -> Iterator[str]:
        yield "checking payloads"
        with self._timing("check"):
            for one in self._received:
                self._outer.read_payload(self._manifest, self._shapes, one.payload, one.plan)
        yield "measuring payloads"
        with self._timing("measure"):
            self._outer.measure_round(self._manifest, 0, self._received)
        yield "outer steps"
        for label, payloads in (("outer, two", self._received[:2]), ("outer, all", self._received)):
            with self._timing(label):
                self._outer_step(payloads)

    def _outer_step(self, payloads: list[Any]) -> None:
        version, momentum = self._versions[-1]
        paths = self._blobs / version.hex(), None if momentum is None else self._blobs / momentum.hex()
        made = self._outer.apply_round(self._manifest, 0, *paths, payloads, self._blobs)
        self._versions.append((made.weights, made.momentum if any(made.momentum) else None))

    def _sealed(self, count: int) -> list[Any]:
        found = []
        for index in range(count):
            data = (self._folder / "received" / str(index)).read_bytes()
            name = self._slots.write_blob(self._blobs, [data])
            plan = self._manifest.plan
            found.append(self._outer.SealedPayload(self._blobs / name.hex(), plan.inner_steps, 32768, plan))
        return found

    @contextmanager
    def _timing(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - began

    @contextmanager
    def _timed_steps(self) -> Iterator[None]:
        step: Callable[..., float] = self._loop.step

        def timed(*known: Any, **named: Any) -> float:
            with self._timing("inner steps"):
                return step(*known, **named)

        with patch.object(self._loop, "step", timed):
            yield


def _written() -> int:
    """Bytes that this process has written to files and pipes."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


if __name__ == "__main__":
    typer.run(main)
