"""One rank of a training process of several: rank 0 is what talks to the network process, the others serve it.

Run by the agent (see ranks) as `python -m dlx.node.trainer.rank FOLDER STORE DEVICES THREADS`; without a STORE the
ranks meet where the launcher's machines did.
"""

import os
import shutil
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path

import torch.distributed as dist

from dlx.node.trainer.process import Server
from dlx.node.trainer.ranks import take_hand
from dlx.training import selftest
from dlx.training.inner.ranks.group import Group, RankLost
from dlx.training.inner.ranks.loop import serve
from dlx.training.models.placement import Placement, take
from dlx.training.slot.ranked import take_part

_GRACE_SECONDS = 5.0  # an agent that ends takes its ranks with it, and nobody complains


def main(folder: Path, store: str, devices: list[str], threads: int) -> None:
    """Until rank 0 has nobody to talk to any more, or any rank or the agent ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the agent's way to end us, also while torch waits
    try:
        hand = take_hand(folder)
    except OSError:
        sys.exit(1)  # the agent is gone
    life = threading.Thread(target=_end_with, args=(hand.agent, folder), daemon=True)
    life.start()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = devices[int(os.environ["LOCAL_RANK"])]  # of this machine's

    def meet() -> Group:
        place = dist.FileStore(store, ranks) if store else next(dist.rendezvous("env://"))[0]
        return Group(place, rank, ranks, device, beside=int(os.environ["LOCAL_WORLD_SIZE"]))

    if hand.channel is not None:
        server = Server(hand.channel, meet)
        signal.signal(signal.SIGTERM, lambda *_: server.fail("another rank of this stage ended"))
        server.run(hand.received)
        life.join(_GRACE_SECONDS)
        os._exit(0)
    take(Placement(device=device, threads=threads))
    try:
        serve(meet(), partial(take_part, device=selftest.arithmetic_device(device)[0]))
    except RankLost as error:
        life.join(_GRACE_SECONDS)
        sys.exit(f"rank {rank} of {ranks}: {error}")


def _end_with(agent: socket.socket, folder: Path) -> None:
    agent.recv(1)
    shutil.rmtree(folder, ignore_errors=True)  # one that was killed left it
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), int(sys.argv[4]))
