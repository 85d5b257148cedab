"""Segments of a replica of two stages, replayed by somebody else: honest ones, and ones by every kind of cheat."""

import math
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link
from dlx.training.models import weights
from dlx.training.recipe.manifest import Data, Manifest
from dlx.training.recipe.recipe import Inner, Plan
from dlx.training.slot.replay import Distance, NotReplayable, ReplayError, Segment, read_segment, refuse, replay
from dlx.training.slot.segments import SEGMENT_STEPS, SegmentState, segment
from dlx.training.slot.slot import RoundInputs, Slot, Trained

RunMaker = Callable[..., Manifest]

SPLIT, CONFIG = [(0, 1), (1, 2)], {"num_hidden_layers": 2}
INNER = {
    "adamw": Inner(optimiser="adamw", lr=1e-2, clip=0.5),
    "muon": Inner(optimiser="muon", lr=1e-2, muon_lr=1e-2, clip=0.5, schedule="wsd"),
}
STEPS, TOTAL = 2 * SEGMENT_STEPS + 5, 225  # of a round, of the run


@pytest.fixture(scope="module", params=INNER)
def rounds(
    request: pytest.FixtureRequest,
    tiny_run: RunMaker,
    dataset: Dataset,
    blobs: Path,
    together: Callable[..., list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Manifest, list[Path], list[Trained]]:
    """A manifest, the slots' folders and the first round of each stage, as real slots made it."""
    manifest = tiny_run(SPLIT, config=CONFIG, inner=INNER[request.param], plan=Plan(inner_steps=STEPS))
    folders = [tmp_path_factory.mktemp("slot") for _ in SPLIT]

    def work(stage: int, previous: Link | None, next: Link | None) -> Trained:
        slot = Slot.open(manifest, stage, 1, folders[stage], blobs, dataset)
        base = bytes.fromhex(manifest.genesis[stage].sha256)
        return slot.train(RoundInputs(0, manifest.plan, 0, TOTAL, 0, base), previous, next)

    return manifest, folders, together(2, work)


def _read(rounds: tuple[Manifest, list[Path], list[Trained]], index: int, blobs: Path) -> list[Segment]:
    manifest, folders, trained = rounds
    return [
        read_segment(manifest, stage, *trained[stage].states[index : index + 2], [folders[stage], blobs])
        for stage in range(2)
    ]


def _honest(distances: list[Distance], most: float = 1e-4) -> bool:
    assert [one.stage for one in distances] == [0, 1]
    return all(max(one.weights, one.optimiser) <= most and one.honest for one in distances)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_every_segment_of_an_honest_round_is_replayed_exactly(
    index: int, rounds: tuple[Manifest, list[Path], list[Trained]], dataset: Dataset, blobs: Path
) -> None:
    first, steps = segment(index, 0, STEPS)
    assert steps == (20, 20, 5)[index]
    segments = _read(rounds, index, blobs)
    distances = replay(rounds[0], 1, segments, first, steps, TOTAL, dataset)
    assert distances == [Distance(0, 0.0, 0.0), Distance(1, 0.0, 0.0)]


def test_another_process_with_two_threads_comes_near_enough(
    rounds: tuple[Manifest, list[Path], list[Trained]], blobs: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "pytest", "transformers.models.llama.modeling_llama"])
    here, there = context.Pipe()
    process = context.Process(target=_elsewhere, args=(there, rounds, blobs))
    process.start()
    assert here.poll(60)
    assert _honest([Distance(*one) for one in here.recv()])
    process.join()


def _elsewhere(answer: Any, rounds: tuple[Manifest, list[Path], list[Trained]], blobs: Path) -> None:
    torch.set_num_threads(2)
    dataset = Dataset.open(blobs / rounds[0].data.manifest.sha256, blobs)
    answer.send(replay(rounds[0], 1, _read(rounds, 1, blobs), 20, 20, TOTAL, dataset))


def test_other_micro_batches_come_near_enough(
    rounds: tuple[Manifest, list[Path], list[Trained]], dataset: Dataset, blobs: Path
) -> None:
    """Sums in another order, as on another kind of machine."""
    manifest = _with(rounds[0], data=msgspec.structs.replace(rounds[0].data, micro_batches=4))
    distances = replay(manifest, 1, _read(rounds, 1, blobs), 20, 20, TOTAL, dataset)
    assert _honest(distances)
    assert all(one.weights > 0 for one in distances)


def _with(manifest: Manifest, **changes: Inner | Data) -> Manifest:
    return msgspec.structs.replace(manifest, **changes)


CHEATS: dict[str, dict[str, float]] = {
    "lr": {"rate": 1.01},
    "left out": {"skipped": 7},
    "other data": {"replica": 2},
    "nothing": {"steps": 0},
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_far_above_the_threshold(
    cheat: str,
    rounds: tuple[Manifest, list[Path], list[Trained]],
    dataset: Dataset,
    blobs: Path,
    together: Callable[..., list[Any]],
) -> None:
    how = CHEATS[cheat]
    honest = _read(rounds, 1, blobs)
    claimed = _cheat(rounds[0], how, honest, dataset, together)
    distances = replay(rounds[0], 1, claimed, 20, 20, TOTAL, dataset)
    assert all(one.weights > 5e-3 and not one.honest for one in distances), distances


def _cheat(
    manifest: Manifest,
    how: dict[str, float],
    honest: list[Segment],
    dataset: Dataset,
    together: Callable[..., list[Any]],
) -> list[Segment]:
    """Segments that start where the honest ones do."""
    inner, rate = manifest.inner, how.get("rate", 1.0)
    inner = msgspec.structs.replace(inner, lr=inner.lr * rate, muon_lr=inner.muon_lr * rate)
    manifest = _with(manifest, inner=inner)

    def work(stage: int, previous: Link | None, next: Link | None) -> Segment:
        start = honest[stage]
        loop = InnerLoop(manifest, stage, int(how.get("replica", 1)), dataset)
        loop.load_weights(start.weights)
        loop.load_optimiser_state(start.optimiser)
        for index in range(20, 20 + int(how.get("steps", 20))):
            if index != 20 + how.get("skipped", -1):
                loop.step(index, TOTAL, previous, next)
        return Segment(start.weights, start.optimiser, loop.weights(), loop.optimiser_state())

    return together(2, work)


def test_false_moments_at_the_end_are_seen_although_the_weights_are_right(
    rounds: tuple[Manifest, list[Path], list[Trained]], dataset: Dataset, blobs: Path
) -> None:
    first, second = _read(rounds, 1, blobs)
    kind = "muon.momentum." if rounds[0].inner.optimiser == "muon" else "exp_avg."
    false = {name: one * (1.02 if name.startswith(kind) else 1) for name, one in second.end_optimiser.items()}
    second = Segment(second.weights, second.optimiser, second.end_weights, false)
    distances = replay(rounds[0], 1, [first, second], 20, 20, TOTAL, dataset)
    assert distances[0] == Distance(0, 0.0, 0.0)
    assert distances[1].weights == 0 and distances[1].optimiser > 5e-3 and not distances[1].honest


def test_a_replay_that_diverges_is_infinitely_far(
    rounds: tuple[Manifest, list[Path], list[Trained]], dataset: Dataset, blobs: Path
) -> None:
    first, second = _read(rounds, 1, blobs)
    huge = {name: torch.full_like(one, 1e38) for name, one in second.weights.items()}
    second = Segment(huge, second.optimiser, second.end_weights, second.end_optimiser)
    distances = replay(rounds[0], 1, [first, second], 20, 20, TOTAL, dataset)
    assert distances == [Distance(0, math.inf, math.inf), Distance(1, math.inf, math.inf)]


def test_a_state_that_is_not_the_committed_one_is_refused(
    rounds: tuple[Manifest, list[Path], list[Trained]], blobs: Path, tmp_path: Path
) -> None:
    manifest, folders, trained = rounds
    start, end = trained[0].states[1:3]
    for digest in (start.weights, start.optimiser, end.weights, end.optimiser):
        data = bytearray((folders[0] / digest.hex()).read_bytes())
        data[-1] ^= 1
        (tmp_path / digest.hex()).write_bytes(data)
        with pytest.raises(ReplayError, match="do not match its name"):
            read_segment(manifest, 0, start, end, [tmp_path, folders[0]])
        (tmp_path / digest.hex()).unlink()
    with pytest.raises(ReplayError, match="in none of the folders"):
        read_segment(manifest, 0, SegmentState(bytes(32), start.optimiser), end, folders)
    with pytest.raises(ReplayError, match="expected"):  # another stage's
        read_segment(manifest, 1, start, end, folders)
    not_finite = weights.read(folders[0] / end.weights.hex(), InnerLoop(manifest, 0, 1, _data(manifest, blobs)).shapes)
    next(iter(not_finite.values())).fill_(math.nan)
    with pytest.raises(ReplayError, match="not finite"):
        read_segment(
            manifest,
            0,
            start,
            SegmentState(weights.write_blob(not_finite, tmp_path), end.optimiser),
            [tmp_path, *folders],
        )


def _data(manifest: Manifest, blobs: Path) -> Dataset:
    return Dataset.open(blobs / manifest.data.manifest.sha256, blobs)


def test_what_cannot_be_replayed_is_said_before_anything_is_computed(tiny_run: RunMaker, dataset: Dataset) -> None:
    manifest = tiny_run(SPLIT, config=CONFIG)
    refuse(manifest, private_data=False)
    with pytest.raises(NotReplayable, match="bfloat16"):
        replay(_with(manifest, precision="bfloat16"), 0, [], 0, 20, 40, dataset)
    with pytest.raises(NotReplayable, match="data of its own"):
        replay(manifest, 0, [], 0, 20, 40, dataset, private_data=True)
    with pytest.raises(ValueError, match="expected 2 stages, got 0"):
        replay(manifest, 0, [], 0, 20, 40, dataset)


def test_longer_segments_than_machines_agree_on_are_refused(
    rounds: tuple[Manifest, list[Path], list[Trained]], dataset: Dataset, blobs: Path
) -> None:
    for steps in (0, SEGMENT_STEPS + 1):
        with pytest.raises(ValueError, match="expected 1 to 20 steps"):
            replay(rounds[0], 1, _read(rounds, 1, blobs), 20, steps, TOTAL, dataset)
