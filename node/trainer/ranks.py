"""A training process of several ranks: torch's elastic launcher keeps them together, and ends all when one has ended.

The training process that was asked to open such a slot becomes their agent. Each rank is a process of its own
(`python -m dlx.node.trainer.rank`), which finds the agent by a socket in a folder that only we may enter; rank 0 gets
the channel to the network process there, with what came over it so far. Whoever loses the agent ends.
"""

import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple, NoReturn

from dlx.training.models.placement import Placement

AGENT = "agent"  # the socket in the folder
STORE = "store"  # where the ranks of one machine meet
NUMBER = struct.Struct(">I")
_MEET_SECONDS = 120.0
_WATCH_SECONDS = 0.2  # between two looks at the ranks


class Hand(NamedTuple):
    """What a rank gets of its agent."""

    agent: socket.socket  # at its end the agent has ended
    channel: socket.socket | None  # rank 0's
    came: bytes  # over the channel


def launch(channel: socket.socket, came: bytes, placement: Placement) -> NoReturn:
    """Be the agent of the ranks of this settled placement until one of them ends; then end like the first that did."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    folder = Path(tempfile.mkdtemp(prefix="dlx-ranks-"))  # only we may enter it
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    # No rank can be reached from outside of this machine, and the launcher opens no port for them to meet.
    os.environ |= {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=placement.ranks,
        run_id="stage",
        rdzv_backend="c10d",
        rdzv_endpoint=str(folder / "rendezvous"),
        rdzv_configs={"store_type": "file", "keep_alive_interval": 24 * 3600},  # every one is written to that file
        local_addr="localhost",
        max_restarts=0,  # the node starts all anew
        monitor_interval=_WATCH_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    status = 0
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / AGENT))
            listener.listen(placement.ranks)
            threading.Thread(target=_hand_out, args=(listener, channel, came), daemon=True).start()
            elastic_launch(config, sys.executable)(
                "-m", "dlx.node.trainer.rank", str(folder), ",".join(placement.devices), placement.threads
            )
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        print(f"rank {rank} of {placement.ranks} ended: {first.message}", file=sys.stderr, flush=True)
        status = first.exitcode
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def take_hand(folder: Path) -> Hand:
    """A rank's part. Raises OSError."""
    agent = socket.socket(socket.AF_UNIX)
    agent.settimeout(_MEET_SECONDS)
    agent.connect(str(folder / AGENT))
    rank = int(os.environ["RANK"])
    agent.sendall(NUMBER.pack(rank))
    data, descriptors, _, _ = socket.recv_fds(agent, NUMBER.size, 1)
    (size,) = NUMBER.unpack(data)
    with agent.makefile("rb") as reader:
        came = reader.read(size)
    agent.settimeout(None)
    return Hand(agent, socket.socket(fileno=descriptors[0]) if descriptors else None, came)


def _hand_out(listener: socket.socket, channel: socket.socket, came: bytes) -> None:
    """The agent's part; the ranks' connections stay open as long as it lives."""
    ranks = []
    while True:
        rank, _ = listener.accept()
        ranks.append(rank)
        if NUMBER.unpack(rank.recv(NUMBER.size))[0] == 0:
            socket.send_fds(rank, [NUMBER.pack(len(came))], [channel.fileno()])
            rank.sendall(came)
        else:
            rank.sendall(NUMBER.pack(0))
