"""A node that is killed in the middle and goes on: the history is the same, and nothing is lost."""

import shutil
from pathlib import Path

import pytest

from dlx.node.devnet.devnet import Devnet
from tests.e2e.devnets import STAGES, Timing, Watched, create

ROUNDS = 5
# Every seal waits for everybody, however long a restart takes here: then the outcome depends on the training alone.
PATIENT = Timing(grace=400, proposal=2, timeout=500, eviction=500)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_killed_node_resumes_bit_exactly(tmp_path: Path) -> None:
    first = create(tmp_path / "whole", ROUNDS, steps=20, timing=PATIENT, replicas=1)
    first.stop()
    shutil.copytree(first.root, tmp_path / "broken")  # the same manifest and accounts, and so the same run
    whole = train_to_the_end(first, kill=False)
    broken = train_to_the_end(Devnet.open(tmp_path / "broken"), kill=True)
    assert len(whole) == ROUNDS * STAGES
    assert broken == whole


def train_to_the_end(devnet: Devnet, kill: bool) -> dict[tuple[int, int], tuple[object, ...]]:
    """(stage, round) -> what its seal fixes, once the run is finished; `kill`: both nodes die once in the middle."""
    try:
        devnet.start()
        watched = Watched(devnet)
        if kill:
            watched.until_all_count()
            for name in (watched.member_at(replica=0, stage=0), watched.member_at(replica=0, stage=1)):
                watched.until_inside_a_round(name)
                watched.kill(name)
                devnet.start_node(name)
            assert not watched.read().finished
        watched.until("the end of the run", lambda: watched.read().finished)
        watched.assert_sealed_once()
    finally:
        devnet.stop()
    assert all(sealed.count == 1 for sealed in watched.seals())
    return {
        (sealed.stage, sealed.round): (
            sealed.outcome.hashes,
            sealed.mean_loss,
            {(one.payload, one.optimiser_after, one.change) for one in map(watched.stated, sealed.records)},
        )
        for sealed in watched.seals()
    }
