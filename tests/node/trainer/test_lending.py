"""What `dlx-node rank` does between two meetings."""

import signal
import socket

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from dlx.node.trainer import lending
from dlx.node.trainer.ranks import RankEnded
from dlx.training.models.placement import ONE_THREAD


def test_a_ctrl_c_while_it_waits_to_meet_again_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: object, **named: object) -> None:
        raise RankEnded("rank 1 ended", 1)

    def interrupted(seconds: float) -> None:
        raise SignalException("torch's handler outlives the ranks", signal.SIGINT)

    monkeypatch.setattr(lending, "_await", lambda rendezvous: socket.socket())
    monkeypatch.setattr(lending, "run_ranks", ended)
    monkeypatch.setattr(lending.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lending.lend(ONE_THREAD, 1)
