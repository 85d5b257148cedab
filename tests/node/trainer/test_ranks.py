"""A training process of two ranks of gloo: what it trains, what it says, and what becomes of it when one dies."""

import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from dlx.node.trainer import messages as m
from dlx.training.data.shards import Dataset
from dlx.training.models.placement import Placement
from dlx.training.recipe.manifest import Manifest
from tests.node.trainer.test_supervision import Run, in_trio, soon, trainer

__all__ = ["soon"]
TWO = Placement(device="cpu", threads=1, ranks=2)


@pytest.fixture
def run(tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path) -> Run:
    return Run(tiny_run([(0, 3)], rounds=4), blobs, tmp_path)


def _opening(run: Run) -> m.Open:
    return msgspec.structs.replace(run.opening, placement=TWO)


def _ranks(pid: int) -> list[psutil.Process]:
    """The processes of the ranks, rank 0 first."""
    found = psutil.Process(pid).children()
    return sorted(found, key=lambda one: int(one.environ()["RANK"]))


def test_a_round_of_two_ranks_is_that_of_one_and_any_rank_that_dies_is_made_up_for(run: Run, dataset: Dataset) -> None:
    alone = run.trained_here(dataset)

    async def test() -> None:
        async with trainer(run) as one:
            opened = await one.open(_opening(run), run.hear)
            assert str(opened.placement) == "2 ranks on cpu, 1 thread"
            for number in (1, 0):
                assert one.pid is not None
                ranks = _ranks(one.pid)
                assert len(ranks) == 2
                ranks[number].send_signal(signal.SIGKILL)
                gone = await run.next(m.Gone)
                assert ("rank of this stage ended" if number else "SIGKILL") in gone.reason
                await run.next(m.Opened)
                psutil.wait_procs(ranks, 10)
            one.post(m.Train(run.inputs))
            await run.next(m.Step)
            assert one.pid is not None
            _ranks(one.pid)[1].send_signal(signal.SIGKILL)  # in the middle of the round
            await run.next(m.Gone)
            await run.next(m.Opened)
            one.post(m.Train(run.inputs))
            trained = (await run.next(m.Finished)).trained
            assert (trained.payload_size, trained.weights_before) == (alone.payload_size, alone.weights_before)
            assert trained.loss == pytest.approx(alone.loss, rel=1e-5)

    in_trio(test)
