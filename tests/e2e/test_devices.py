"""Two nodes of one machine train on its one GPU, as `device = auto` has them."""

from pathlib import Path

import pytest

from dlx.node.devnet.devnet import Devnet
from tests.e2e.devnets import BLOCK_TIME, Timing, Watched, draft
from tests.training.devices import DEVICES

TIMING = Timing(grace=3, proposal=1, timeout=60, eviction=60)


@pytest.mark.skipif(DEVICES == ["cpu"], reason="no GPU here; what follows runs on the CPU in every other test")
def test_two_nodes_share_a_gpu_and_are_counted(tmp_path: Path) -> None:
    text = draft(100_000, 5, TIMING, replicas=2, stages=1)
    devnet = Devnet.create(tmp_path / "devnet", 100_000, 2, 1, lambda line: None, text, BLOCK_TIME)
    try:
        devnet.start()
        watched = Watched(devnet)
        first = watched.until_all_count()
        watched.until_all_count(first + 2)
        trained_on = {name: status.trained_on or "" for name, status in watched.everybody().items()}
        assert len(trained_on) == 2 and all(one.startswith(DEVICES[-1]) for one in trained_on.values()), trained_on
    finally:
        devnet.stop()
