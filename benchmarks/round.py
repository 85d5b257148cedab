"""What a round costs beside its inner steps: time, memory and disk for one slot and for each payload that it receives.

`python -m benchmarks.round [--params 1M,10M,100M] [--preset NAME] [--payloads N] [--json FILE]`. One replica of one
stage in a fresh process per size, torch on one thread, a tiny batch: so nearly all memory is the state's, not the
activations'. With a delay the outer step runs beside the training, as it does in a node. Private memory is what the
process has for itself (Linux's RssAnon) beyond what it has before the slot is opened; files in the page cache are not
in it. Times are nanoseconds per parameter, by the clock and of all threads' processor time, the least of a few rounds;
on a machine with other work believe the second. What the slot keeps on disk is counted when the draw of its last round
is not known yet.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import typer
from msgspec.structs import replace

from dlx.ground.blobs import write_blob
from dlx.ground.merkle import file_root
from dlx.training.codecs import codec
from dlx.training.data.prepare import prepare
from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.presets import PRESETS
from dlx.training.recipe.recipe import WeightsRef
from dlx.training.slot.rounds import RoundInputs
from dlx.training.slot.undecided import Undecided

SIZES = {  # parameters, about -> layers, width, width of the feed-forward layers, tokens
    "1M": (5, 128, 344, 256),
    "10M": (12, 256, 688, 1024),
    "100M": (12, 768, 2048, 8192),
}
ROUNDS, INNER_STEPS = 3, 1
THREADS = 2  # of the outer step, as in a node
_WARMING = (1, 64, 64, 256)
_PHASES = ("load", "end", "commit")  # of a round: the end is encoded while files are hashed and written

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
    payloads: Annotated[int, typer.Option(min=3, help="Payloads that are received and counted.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print what each phase of a round costs."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # as a node starts its training process
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
            runs = [(_WARMING, f"{folder}/warming"), (SIZES[size], f"{folder}/run")]
            manifests = [pool.apply(_make, (shape, preset, payloads, where)) for shape, where in runs]
        ours, theirs = context.Pipe()
        process = context.Process(target=_run, args=(*manifests, payloads, folder, theirs))
        process.start()
        theirs.close()
        found, peaks = _watch(process.pid or 0, ours, size)
        process.join(60)
    count, before = found["parameters"], peaks.pop("before")
    memory = {phase: round((peak - before) / count, 2) for phase, peak in peaks.items()}
    slot = {phase: spent.per(count) for phase, spent in found["slot"].items()}
    received = {phase: spent.per(count) for phase, spent in found["received"].items()}
    return {
        "preset": preset,
        "parameters": count,
        "slot": slot | {"all but the inner steps": _sum(slot["round but steps"], slot["outer step"])},
        "received_payload": received | {"all": _sum(*received.values())},
        "private_bytes": memory | {"peak": max(memory.values()), "as run plan says": _planned(manifests[1], count)},
        "written_times_the_weights": round(found["written"] / (4 * count), 2),
        "kept_times_the_weights": round(found["kept"] / (4 * count), 2),
    }


def _planned(manifest: Manifest, count: int) -> float:
    """The peak that `run plan` predicts, in the same unit."""
    from dlx.training.balance.costs import BASE, costs

    return round((costs(manifest)[0].memory.host - BASE) / count, 2)


class Spent(NamedTuple):
    """Seconds by the clock, and of processor time in all threads."""

    wall: float
    processor: float

    def __add__(self, other: Any) -> "Spent":
        return Spent(self.wall + other.wall, self.processor + other.processor)

    def __sub__(self, other: Any) -> "Spent":
        return Spent(self.wall - other.wall, self.processor - other.processor)

    def __mul__(self, factor: Any) -> "Spent":
        return Spent(self.wall * factor, self.processor * factor)

    def __truediv__(self, count: float) -> "Spent":
        return self * (1 / count)

    def per(self, count: int) -> dict[str, float]:
        """Nanoseconds for each of so many."""
        return {name: round(seconds / count * 1e9, 2) for name, seconds in self._asdict().items()}


def _least(spent: Sequence[Spent]) -> Spent:
    """Other work on the machine only adds."""
    return Spent(min(one.wall for one in spent), min(one.processor for one in spent))


def _sum(*spent: dict[str, float]) -> dict[str, float]:
    return {name: round(sum(one[name] for one in spent), 2) for name in Spent._fields}


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
    lines = [f"\n{row['parameters'] / 1e6:.1f}M parameters, {row['preset']}{'ns wall':>24}{'ns processor':>14}"]
    for title in ("slot", "received_payload"):
        lines.append(f"  {title.replace('_', ' ')}")
        lines += [f"    {name:<36}{one['wall']:>10.2f}{one['processor']:>14.2f}" for name, one in row[title].items()]
    lines.append("  private bytes")
    lines += [f"    {name:<36}{value:>10.2f}" for name, value in row["private_bytes"].items()]
    lines += [
        f"  {what:<38}{row[f'{what}_times_the_weights']:>10.2f} times the weights" for what in ("written", "kept")
    ]
    return "\n".join(lines) + "\n"


# ---- in processes of their own


def _make(shape: tuple[int, int, int, int], preset: str, payloads: int, folder: str) -> Manifest:
    """A run, its blobs in the folder, and payloads of others in `received`."""
    layers, hidden, intermediate, tokens = shape
    root = Path(folder)
    blobs, received, corpus = root / "blobs", root / "received", root / "corpus.txt"
    blobs.mkdir(parents=True)
    received.mkdir()
    corpus.write_text("".join(f"{line} times {line} is {line * line}.\n" for line in range(2000)))
    numbers = {"layers": layers, "hidden": hidden, "intermediate": intermediate, "tokens": tokens}
    draft_file = root / "run.toml"
    draft_file.write_text(_DRAFT.format(preset=preset, heads=hidden // 64, rounds=ROUNDS + 1, **numbers))
    draft = draft_from_toml(draft_file)
    plan = replace(draft.plan, inner_steps=INNER_STEPS)
    draft = replace(draft, plan=plan, adaptive=None, rounds=ROUNDS + 1)
    shapes = stage_shapes(draft, 0)
    name = weights.write_blob(weights.Lazy(shapes, partial(_random, shapes, 0, 0.02)), blobs)
    path = blobs / name.hex()
    genesis = WeightsRef(path.name, path.stat().st_size, file_root(path).hex())
    manifest = complete(draft, [genesis], prepare([corpus], blobs), salt=bytes(32))
    chosen = codec(manifest.codec.name)
    for index in range(payloads):
        update = weights.Lazy(shapes, partial(_random, shapes, index + 1, 1e-3))
        (received / str(index)).write_bytes(chosen.encode(update, manifest.plan))
    return manifest


def _random(shapes: weights.Shapes, seed: int, size: float, name: str) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shapes[name], np.float32)
    values *= np.float32(size)
    return values


def _run(warming: Manifest, manifest: Manifest, payloads: int, folder: str, pipe: Connection) -> None:
    """Train and count some rounds; tells the phases, and at the end what was measured."""
    import torch

    torch.set_num_threads(1)
    _Rounds(warming, Path(folder) / "warming", payloads).run(lambda phase: None)  # loads what is loaded once
    pipe.send("before")
    time.sleep(4 * _SAMPLING)
    rounds = _Rounds(manifest, Path(folder) / "run", payloads)
    rounds.run(pipe.send)
    pipe.send(rounds.result())


class _Rounds:
    """A slot, and a node's work on the payloads of others."""

    def __init__(self, manifest: Manifest, folder: Path, payloads: int) -> None:
        from dlx.training.slot import slot

        self._manifest, self._folder, self._blobs = manifest, folder, folder / "blobs"
        self._shapes = stage_shapes(manifest, 0)
        self._versions: list[tuple[bytes, bytes | None]] = [(bytes.fromhex(manifest.genesis[0].sha256), None)]
        self._received = self._sealed(payloads)
        self._open = partial(slot.Slot.open, manifest, 0, folder / "slot", self._blobs)
        self._spent: dict[str, list[Spent]] = {}

    def run(self, begin: Callable[[str], object]) -> None:
        """Calls `begin` with the name of each phase."""
        from dlx.training.data.shards import Dataset

        begin("opening")
        dataset = Dataset.open(self._blobs / self._manifest.data.manifest.sha256, self._blobs)
        slot = self._open(dataset)
        with self._timed(slot):
            for t in range(ROUNDS):
                self._round(slot, t, begin)
                if t == 0:
                    self._spent.clear()  # there was no change before, and the optimiser's zeros were hashed
        self._receive(begin)

    def result(self) -> dict[str, Any]:
        one, more = self._least("outer step of one"), self._least("outer step of all")
        each = (more - one) / (len(self._received) - 1)
        steps = self._rounds("inner steps", INNER_STEPS)
        rest = [whole - done for whole, done in zip(self._rounds("train"), steps, strict=True)]
        # Of the outer step the part that does not grow with the payloads is the slot's.
        slot = {"inner steps": _least(steps), "round but steps": _least(rest), "outer step": one - each}
        slot |= {label: self._least(label) for label in _PHASES}
        received = {"outer step": each}
        received |= {label: self._least(label) / len(self._received) for label in ("check", "measure")}
        return {
            "parameters": sum(int(np.prod(shape)) for shape in self._shapes.values()),
            "slot": slot,
            "received": received,
            "written": self._written,
            "kept": _size(self._folder / "slot"),
        }

    def _round(self, slot: Any, t: int, begin: Callable[[str], object]) -> None:
        delay, plan = self._manifest.outer.delay, self._manifest.plan
        begin("training" if t else "first round")
        written = _written()
        outer = threading.Thread(target=self._outer_step, args=(self._received,))
        if delay and t:  # the last round's outer step, beside the training
            outer.start()
        base, need = max(0, t - delay), INNER_STEPS * self._manifest.data.batch_size
        inputs = RoundInputs(
            round=t,
            plan=plan,
            steps_before=t * INNER_STEPS,
            total_steps=(ROUNDS + 1) * INNER_STEPS,
            base_version=base,
            base_weights=self._versions[base][0],
            samples=((t * need, (t + 1) * need),),
        )
        with self._timing("train"):
            slot.train(inputs, None, None)
        if not delay:
            begin("outer step")
            self._outer_step(self._received)
        elif t:
            outer.join()
        self._written = _written() - written
        Undecided(self._folder / "slot").decide(t - 1, (), self._blobs)  # its draw is known by now

    def _receive(self, begin: Callable[[str], object]) -> None:
        """The work that grows with the payloads, once more and alone."""
        from dlx.training.outer.inner_products import InnerProducts
        from dlx.training.outer.step import measure_round

        for _ in range(2):
            products = InnerProducts(codec(self._manifest.codec.name), self._shapes, THREADS)
            begin("check")
            with self._timing("check"):
                for one in self._received:
                    products.norms([(one.payload, one.plan)])
            begin("measure")
            with self._timing("measure"):
                measure_round(self._manifest, 0, self._received, products)
            begin("outer step")
            for label, payloads in (("one", self._received[:1]), ("all", self._received)):
                with self._timing(f"outer step of {label}"):
                    self._outer_step(payloads)

    def _outer_step(self, payloads: list[Any]) -> None:
        from dlx.training.outer.step import apply_round

        version, momentum = self._versions[-1]
        paths = self._blobs / version.hex(), None if momentum is None else self._blobs / momentum.hex()
        made = apply_round(self._manifest, 0, *paths, payloads, self._blobs, threads=THREADS)
        self._versions.append((made.weights, made.momentum if any(made.momentum) else None))

    def _sealed(self, count: int) -> list[Any]:
        from dlx.training.outer.step import SealedPayload

        plan = self._manifest.plan
        paths = [self._folder / "received" / str(index) for index in range(count)]
        names = [write_blob(self._blobs, [path.read_bytes()]) for path in paths]
        return [SealedPayload(self._blobs / name.hex(), plan.inner_steps, 32768, plan) for name in names]

    @contextmanager
    def _timing(self, label: str) -> Iterator[None]:
        wall, processor = time.perf_counter(), time.process_time()
        yield
        spent = Spent(time.perf_counter() - wall, time.process_time() - processor)
        self._spent.setdefault(label, []).append(spent)

    @contextmanager
    def _timed(self, slot: Any) -> Iterator[None]:
        methods = (
            (slot, "_load", "load"),
            (slot, "_end", "end"),
            (slot._files, "commit", "commit"),
            (slot._loop, "step", "inner steps"),
        )
        with ExitStack() as patches:
            for owner, name, label in methods:
                patches.enter_context(patch.object(owner, name, self._wrapped(getattr(owner, name), label)))
            yield

    def _wrapped(self, method: Callable[..., Any], label: str) -> Callable[..., Any]:
        def timed(*known: Any, **named: Any) -> Any:
            with self._timing(label):
                return method(*known, **named)

        return timed

    def _least(self, label: str) -> Spent:
        return _least(self._rounds(label))

    def _rounds(self, label: str, times: int = 1) -> list[Spent]:
        """Of each round; `times` in one."""
        found = self._spent[label]
        return [sum(found[at : at + times], Spent(0, 0)) for at in range(0, len(found), times)]


def _size(folder: Path) -> int:
    """Bytes of all files, whatever the number of their names."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({one.st_ino: one.st_size for one in files}.values())


def _written() -> int:
    """Bytes that this process has written to files and pipes."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


if __name__ == "__main__":
    typer.run(main)
