"""The simulation that the convergence benchmark is made of, against what it has to be equal to."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from benchmarks import batched, simulation, trainings
from benchmarks.trainings import MUON, Job, Method, Setting
from dlx.training.data.shards import Dataset
from dlx.training.models.stages import initialise
from dlx.training.recipe.manifest import Manifest

LOWRANK = {"level": 4, "rank": 8, "inner_steps": 1}


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    (tmp_path / "text").write_text("".join(f"{number} bottles of beer on the wall\n" for number in range(2000)))
    setting = Setting(str(tmp_path / "text"), hidden=32, layers=1, sequence=32)
    trainings.prepare(setting, tmp_path)
    return setting


def _opened(setting: Setting, folder: Path, steps: int, **method: Any) -> tuple[Manifest, Dataset]:
    manifest = trainings.manifest_of(Job(Method("", **method), setting, 0.01, 0, steps), folder)
    blobs = folder / "blobs"
    return manifest, Dataset.open(blobs / manifest.data.manifest.sha256, blobs)


def test_one_replica_without_codec_trains_what_the_inner_loop_alone_does(setting: Setting, tmp_path: Path) -> None:
    manifest, dataset = _opened(setting, tmp_path, 6, plan={"inner_steps": 3})
    genesis = initialise(manifest, 0)
    *_, rounds = simulation.diloco(manifest, 1, dataset, genesis, compressed=False)
    *_, steps = simulation.all_reduce(manifest, dataset, genesis, 1)
    assert rounds.steps == steps.steps == 6
    assert rounds.bytes == 2 * 4 * sum(tensor.numel() for tensor in genesis.values()), "two rounds, not six steps"
    for name, tensor in steps.version.items():
        torch.testing.assert_close(rounds.version[name], tensor, rtol=0, atol=1e-6)


PLAIN: dict[str, Any] = {}
DELAYED = {"delay": 1, "lr": 0.8, "alpha": 0.8}
NESTEROV = {"momentum": 0.5, "nesterov": True}
SHAMPOO = MUON | {"optimiser": "shampoo"}


@pytest.mark.parametrize(
    ("codec", "adaptive", "outer"),
    [
        ("int4", False, PLAIN),
        ("int4", False, DELAYED),
        ("lowrank", False, NESTEROV),
        ("lowrank", True, DELAYED),
        ("topk", True, NESTEROV),
        ("topk", True, DELAYED),
    ],
)
def test_every_rule_with_every_codec_learns(
    codec: str, adaptive: bool, outer: dict[str, Any], setting: Setting, tmp_path: Path
) -> None:
    plan = {"int4": {"inner_steps": 1}, "lowrank": LOWRANK, "topk": {"level": 2, "rank": 256, "inner_steps": 1}}[codec]
    manifest, dataset = _opened(setting, tmp_path, 30, codec=codec, outer=outer, plan=plan, adaptive=adaptive)
    genesis = initialise(manifest, 0)
    before = simulation.loss(manifest, genesis, dataset, 8)
    points = list(simulation.diloco(manifest, 2, dataset, genesis))
    assert simulation.loss(manifest, points[-1].version, dataset, 8) < 0.8 * before
    sizes = {after.bytes - now.bytes for now, after in pairwise(points)}
    assert (len(sizes) > 1) == (codec == "lowrank" and adaptive), "only a rank that adapts changes the payload's size"


@pytest.mark.parametrize(
    ("codec", "adaptive", "outer", "inner"),
    [
        ("int4", False, PLAIN, MUON),
        ("int4", False, PLAIN, SHAMPOO),
        ("int4", False, DELAYED | {"ahead": 0.5}, MUON),
        ("ternary", False, NESTEROV | {"ahead": 0.5}, MUON),
        ("lowrank", False, NESTEROV, MUON),
        ("lowrank", True, DELAYED, MUON),
    ],
)
def test_replicas_in_one_computation_train_what_the_nodes_slots_do(
    codec: str, adaptive: bool, outer: dict[str, Any], inner: dict[str, Any], setting: Setting, tmp_path: Path
) -> None:
    """Not bit for bit: sums of float32 are taken in another order, and a codec may round to another side."""
    plan = {"lowrank": LOWRANK, "ternary": {"level": 2}, "int4": {}}[codec] | {"inner_steps": 3}
    steps = 36 if adaptive else 12  # its rank moves after 5 rounds, and with the delay a round later
    manifest, dataset = _opened(
        setting, tmp_path, steps, codec=codec, outer=outer, plan=plan, adaptive=adaptive, inner=inner
    )
    genesis = initialise(manifest, 0)
    slots = list(simulation.diloco(manifest, 3, dataset, genesis))
    together = list(batched.diloco(manifest, 3, dataset, genesis))
    assert [point[:2] for point in together] == [point[:2] for point in slots], "as many steps and bytes"
    sizes = {after.bytes - now.bytes for now, after in pairwise(together)}
    assert (len(sizes) > 1) == adaptive, "the rank has moved"
    moved = torch.cat([(slots[-1].version[name] - genesis[name]).flatten() for name in genesis])
    apart = torch.cat([(slots[-1].version[name] - together[-1].version[name]).flatten() for name in genesis])
    assert apart.norm() < 0.05 * moved.norm()


def test_a_rough_training_ends_where_an_exact_one_does(setting: Setting, tmp_path: Path) -> None:
    manifest, dataset = _opened(
        setting, tmp_path, 60, codec="topk", outer=NESTEROV, plan={"level": 2, "rank": 256, "inner_steps": 3}
    )
    genesis = initialise(manifest, 0)
    before = simulation.loss(manifest, genesis, dataset, 8)
    *_, exact = batched.diloco(manifest, 2, dataset, genesis)
    *_, rough = batched.diloco(manifest, 2, dataset, genesis, rough=True)
    assert rough[:2] == exact[:2]
    losses = [simulation.loss(manifest, one.version, dataset, 8) for one in (exact, rough)]
    assert losses[1] == pytest.approx(losses[0], abs=0.1 * (before - losses[0]))


def test_every_step_in_one_computation_is_that_of_the_inner_loop(setting: Setting, tmp_path: Path) -> None:
    manifest, dataset = _opened(setting, tmp_path, 6, every_step=True, plan={"inner_steps": 3})
    genesis = initialise(manifest, 0)
    for one, other in zip(
        simulation.all_reduce(manifest, dataset, genesis, 2),
        batched.all_reduce(manifest, dataset, genesis, 2),
        strict=True,
    ):
        assert one[:2] == other[:2]
        for name, tensor in one.version.items():
            torch.testing.assert_close(other.version[name], tensor, rtol=0, atol=1e-5)


def test_a_text_with_a_file_that_is_not_utf8_is_tokenised_without_it(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("some words, and some more words\n" * 200)
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    trainings.prepare(Setting(str(tmp_path / "*.txt"), vocabulary=300), tmp_path / "out")
    assert (tmp_path / "out/data.json").exists()
    (tmp_path / "good.txt").unlink()
    with pytest.raises(typer.BadParameter, match="no UTF-8 text"):
        trainings.prepare(Setting(str(tmp_path / "*.txt"), vocabulary=300), tmp_path / "out")
