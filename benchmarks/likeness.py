"""How alike honest payloads are, which is what the policies hold them against: cosines of pairs, and lengths beside the
reach of a step.

`python -m benchmarks.likeness [--json FILE]` trains honest replicas with the nodes' own engine, by each optimiser and
codec, and looks at every round's payloads. A pair with a cosine below 0 pulls against each other; `clip+cosine` drops
who does so with more than half of the others. A length is that of a payload divided by its inner steps.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.attacks import SOURCE, STEPS
from benchmarks.harm import Company, rounds_of
from benchmarks.trainings import Job, Setting, manifest_of, prepare
from dlx.training.data.shards import Dataset
from dlx.training.outer.policy import measure, multipliers
from dlx.training.outer.reach import reach_of_a_step
from tests.attacks.lies import LIES


@dataclass
class Found:
    """Of all rounds of one training."""

    pairs: int = 0
    against: int = 0  # pairs with a cosine below 0
    lowest: float = 1.0  # cosine
    dropped: int = 0  # contributions
    longest: float = 0.0  # in reaches of a step
    clipped: int = 0  # contributions that the reach alone shortens


COMPANIES = [
    Company(optimiser="muon"), Company(optimiser="adamw"), Company(optimiser="shampoo"), Company(replicas=8),
    Company(delay=1), Company(codec="topk"), Company(codec="lowrank"), Company(replicas=8, codec="topk", delay=1),
]  # fmt: skip


def main(
    rounds: Annotated[int, typer.Option(min=2, help="Of each training.")] = 40,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each kind.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the rows there.")] = None,
) -> None:
    """Train honest replicas and print what the policies would see."""
    torch.set_num_threads(1)
    setting, rows = Setting(SOURCE, hidden=32, layers=2, sequence=32, batch=4), list[dict[str, Any]]()
    print("| optimiser | codec | replicas | delay | pairs | below 0 | lowest cosine | dropped | longest / reach |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="dlx-likeness-") as folder:
        out = Path(folder)
        prepare(setting, out)
        for company in COMPANIES:
            found = Found()
            for seed in range(seeds):
                look(company, setting, seed, rounds, out, found)
            rows.append(asdict(company) | asdict(found))
            print(
                f"| {company.optimiser} | {company.codec} | {company.replicas} | {company.delay} | {found.pairs:,} "
                f"| {found.against} | {found.lowest:.3f} | {found.dropped} | {found.longest:.0%} |",
                flush=True,
            )
    if json_file is not None:
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        command = f"python -m benchmarks.likeness {' '.join(sys.argv[1:])}"
        json_file.write_text(json.dumps({"command": command, "machine": machine, "rows": rows}, indent=2) + "\n")


def look(company: Company, setting: Setting, seed: int, rounds: int, out: Path, found: Found) -> None:
    """Add to `found` what the payloads of one training show; it is sealed as the default policy does."""
    manifest = manifest_of(Job(company.method("clip+cosine", STEPS), setting, 1e-2, seed, rounds * STEPS), out)
    dataset = Dataset.open(out / "blobs" / manifest.data.manifest.sha256, out / "blobs")
    reach = reach_of_a_step(manifest, 0)
    for one in rounds_of(manifest, dataset, company.lies(LIES["honest"]), rounds):
        norms = [math.sqrt(one.products[index][index]) for index in range(len(one.steps))]
        for low, high in combinations(range(len(norms)), 2):
            cosine = one.products[low][high] / (norms[low] * norms[high])
            found.pairs, found.against = found.pairs + 1, found.against + (cosine < 0)
            found.lowest = min(found.lowest, cosine)
        found.dropped += multipliers(measure("clip+cosine", one.steps, one.products, reach)).count(0)
        for norm, steps in zip(norms, one.steps, strict=True):
            found.longest = max(found.longest, norm / steps / reach)
            found.clipped += norm / steps > reach


if __name__ == "__main__":
    typer.run(main)
