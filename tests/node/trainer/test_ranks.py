"""A training process of two ranks of gloo: what it trains, what it says, and what becomes of it when one dies."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import psutil
import pytest

from dlx.node.home.errors import Failure
from dlx.node.trainer import messages as m
from dlx.training.data.shards import Dataset
from dlx.training.models.placement import Placement
from tests.node.trainer.test_supervision import Run, in_trio, run, soon, trainer
from tests.patience import PATIENCE
from tests.ports import lasting_port

__all__ = ["run", "soon"]
TWO = Placement(device="cpu", threads=1, ranks=2)


def _opening(run: Run) -> m.Open:
    return msgspec.structs.replace(run.opening, placement=TWO)


def _ranks(pid: int) -> list[psutil.Process]:
    """The processes of the ranks, rank 0 first."""
    found = psutil.Process(pid).children()
    return sorted(found, key=lambda one: int(one.environ()["RANK"]))


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_ranks_cannot_share_ends_the_node_in_one_line(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    four = Placement(device="cpu", threads=1, ranks=4, tensor_parallel=4)

    async def test() -> None:
        async with trainer(run) as one:
            await one.open(msgspec.structs.replace(run.opening, placement=four), run.hear)

    with pytest.raises(ExceptionGroup) as caught:
        in_trio(test)
    assert caught.group_contains(Failure, match=r"tensor_parallel 4: it has to divide the number of heads \(2\)")
    assert "Traceback" not in capfd.readouterr().err


@contextlib.contextmanager
def _lent(rendezvous: str) -> Iterator[psutil.Process]:
    """Another machine's `dlx-node rank`, on this one."""
    command = [sys.executable, "-m", "dlx.node.cli.app", "rank", "--rendezvous", rendezvous]
    with subprocess.Popen([*command, "--device", "cpu", "--threads", "1"]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130


@pytest.mark.slow
def test_two_machines_share_a_stage_and_meet_again_when_one_loses_a_rank(run: Run, dataset: Dataset) -> None:
    alone = run.trained_here(dataset)
    rendezvous = f"127.0.0.1:{lasting_port()}"
    site = Placement(device="cpu", threads=1, machines=2, rendezvous=rendezvous)

    async def test(lent: psutil.Process) -> None:
        async with trainer(run) as one:
            opened = await one.open(msgspec.structs.replace(run.opening, placement=site), run.hear)
            assert str(opened.placement) == "1 rank on cpu, one of 2 machines, 1 thread"
            lent.children()[0].send_signal(signal.SIGKILL)
            await run.next(m.Gone)
            await run.next(m.Opened)
            one.post(m.Train(run.inputs))
            trained = (await run.next(m.Finished)).trained
            assert trained.loss == pytest.approx(alone.loss, rel=1e-5)

    with _lent(rendezvous) as lent:
        in_trio(lambda: test(lent))
