"""A replica on slow machines, in real processes: it does fewer steps, is counted, and what it did can be replayed."""

import json
from pathlib import Path

import pytest

from tests.e2e.devnets import Timing, Watched, create
from tests.node.command import dlx

pytestmark = pytest.mark.slow

# Whose roots are taken where a segment begins, however many steps a replica has time for.
SHAMPOO = '\n[inner]\noptimiser = "shampoo"\nmatrix_lr = 0.0057\n'
TIMING = Timing(grace=60, proposal=2, timeout=80, eviction=120)
STEPS, ROUNDS, SETTLED = 12, 4, 2
SLOW = 0.5  # seconds more of a step, which takes some hundredths


def test_a_slower_stage_has_its_replica_do_fewer_steps_and_be_counted(tmp_path: Path) -> None:
    """All its stages do as few, though only one is slow."""
    devnet = create(tmp_path / "devnet", ROUNDS, STEPS, TIMING, more=f"{SHAMPOO}\n[audit]\nshare = 1\nwindow = 200\n")
    *fast, slow = devnet.names
    try:
        for name in fast:
            devnet.start_node(name)
        devnet.start_node(slow, ("tests.e2e.slow", str(SLOW)))
        watched = Watched(devnet)
        watched.until(f"{ROUNDS} rounds", lambda: watched.sealed_rounds() >= ROUNDS or None)
        slower = watched.status(slow).account
        for round in range(ROUNDS):
            seals = [watched.view.sealed[stage, round] for stage in range(2)]
            replica = next(
                record.replica
                for seal in seals
                for record, account in zip(seal.records, seal.accounts, strict=True)
                if account == slower
            )
            assert [[record.replica for record in seal.records] for seal in seals] == [[0, 1]] * 2
            steps = [{record.replica: record.inner_steps for record in seal.records} for seal in seals]
            assert steps[0] == steps[1], "the stages of a replica agree"
            if round >= SETTLED:
                assert steps[0][1 - replica] == STEPS and 1 <= steps[0][replica] < STEPS, steps

        def served() -> bool:
            found = [status.checks for status in watched.everybody().values()]
            return all(one is not None and (one.drawn, one.undecided_bytes) == (4 * ROUNDS, 0) for one in found)

        watched.until("what was drawn of all rounds to be served", served)
        report = json.loads(dlx("audit", "--datadir", devnet.root, devnet.shape.run, "--level", 3, "--json").stdout)
        training = report["training"]
        assert (training["replica_rounds"], training["honest"]) == (2 * ROUNDS, training["segments"]) and report[
            "established"
        ], report
    finally:
        devnet.stop()
