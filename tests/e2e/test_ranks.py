"""A node whose stage two processes share, beside one with a single process, in a real run."""

import signal
from pathlib import Path

import psutil
import pytest

from tests.e2e.devnets import Timing, Watched
from tests.e2e.test_level3 import audit, checking
from tests.node.command import dlx

pytestmark = pytest.mark.slow

# A round waits for ranks that start again, however long that takes here.
PATIENT = Timing(grace=6, proposal=1, timeout=400, eviction=400)


def test_a_node_of_two_ranks_trains_with_others_survives_the_loss_of_one_and_replays_as_honest(tmp_path: Path) -> None:
    devnet = checking(tmp_path / "devnet", rounds=3, replicas=1, timing=PATIENT)
    shared = devnet.names[1]  # no founder, whose node has a process for each stage it vouches for
    config = devnet.folder(shared).config
    config.write_text(config.read_text().replace("# ranks = 1", "ranks = 2"))
    try:
        devnet.start()
        watched = Watched(devnet)
        watched.until(
            "two ranks at work", lambda: str(watched.status(shared).trained_on).startswith("2 ranks on cpu, ")
        )
        psutil.Process(watched.trainer(shared)).children()[1].send_signal(signal.SIGKILL)

        def served() -> bool:
            found = [status.checks for status in watched.everybody().values()]
            return all(one is not None and one.served == 3 for one in found)

        watched.until("all rounds to be trained, drawn and served", served)
        assert all(seal.count == 1 for seal in watched.seals()), "the round was trained again"
        stranger = tmp_path / "stranger"
        dlx("init", "--datadir", stranger, "--insecure-devnet", "--json")
        report = audit(devnet, "--ledger", devnet.settings.ledger, "--datadir", stranger)
        training = report["training"]
        assert (training["replica_rounds"], training["segments"], training["honest"]) == (3, 3, 3) and report[
            "established"
        ], report
        assert report["verdict"]["ledger"] == report["verdict"]["outer_steps"] == "PASS", report
    finally:
        devnet.stop()
