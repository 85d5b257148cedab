"""A training process of several ranks: torch's elastic launcher keeps them together, and ends all when one has ended.

The training process that was asked to open such a slot becomes their agent. Each rank is a process of its own
(`python -m dlx.node.trainer.rank`), which finds the agent by a socket in a folder that only we may enter. Rank 0 gets
the channel to the network process there, with what came over it so far. Whoever loses the agent ends.

On the other machines of a site `dlx-node rank` is the agent of their ranks.
"""

import os
import shutil
import signal
import socket
import struct
import sys
import threading
from multiprocessing import connection
from pathlib import Path
from typing import NamedTuple, NoReturn

from dlx.ground.errors import DlxError
from dlx.ground.machine import for_sockets
from dlx.node.trainer.spawn import in_words
from dlx.training.models.placement import Placement

NUMBER = struct.Struct(">I")
_AGENT = "agent"  # the socket in the folder
_STORE = "store"  # where the ranks of one machine meet
_MEET_SECONDS = 120.0  # of a rank and its agent
_SITE_SECONDS = 600  # of the machines of a site
_WATCH_SECONDS = 0.2  # between two looks at the ranks
_LOOK_SECONDS = 1.0  # between two looks whether they have ended


class RankEnded(DlxError):
    """A rank ended by itself, `status` as of `subprocess`; so all of this machine have ended."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Hand(NamedTuple):
    """What a rank gets of its agent."""

    agent: socket.socket  # at its end the agent has ended
    channel: socket.socket | None  # rank 0's
    received: bytes  # over the channel


def launch(channel: socket.socket, received: bytes, placement: Placement) -> NoReturn:
    """Be the agent of this machine's ranks until one of them ends; then end like the first that did."""
    try:
        run_ranks(placement, 0, channel, received)
        status = 0
    except RankEnded as error:
        print(error, file=sys.stderr, flush=True)
        status = error.status
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def run_ranks(
    placement: Placement,
    machine: int,
    channel: socket.socket | None = None,
    received: bytes = b"",
    life: socket.socket | None = None,
) -> None:
    """The ranks of this settled placement on this `machine` of its site, until all have ended; the channel is rank 0's.

    They also end at the end of `life`, a connection. Raises RankEnded; RuntimeError where the machines do not meet.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    folder = for_sockets("dlx-ranks-")
    if placement.machines == 1:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        # No rank can be reached from outside of this machine, and the launcher opens no port for them to meet.
        os.environ |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        store, meeting = str(folder / _STORE), {
            "rdzv_backend": "c10d",
            "rdzv_endpoint": str(folder / "rendezvous"),
            "rdzv_configs": {"store_type": "file", "keep_alive_interval": 24 * 3600},  # each is written to that file
            "local_addr": "localhost",
        }  # fmt: skip
    else:
        store, meeting = "", {
            "rdzv_backend": "static",
            "rdzv_endpoint": placement.rendezvous,
            "rdzv_configs": {"rank": machine, "timeout": _SITE_SECONDS},
        }  # fmt: skip
    config = LaunchConfig(
        min_nodes=placement.machines,
        max_nodes=placement.machines,
        nproc_per_node=len(placement.devices),
        run_id="stage",
        max_restarts=0,  # the node starts all anew
        monitor_interval=_WATCH_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        **meeting,  # type: ignore[arg-type]
    )
    arguments = ("-m", "dlx.node.trainer.rank", str(folder), store, ",".join(placement.devices), placement.threads)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / _AGENT))
            listener.listen(len(placement.devices))
            threading.Thread(target=_hand_out, args=(listener, channel, received, life), daemon=True).start()
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        raise RankEnded(f"rank {rank} ended: {in_words(first.exitcode)}", first.exitcode) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def take_hand(folder: Path) -> Hand:
    """A rank's part. Raises OSError."""
    agent = socket.socket(socket.AF_UNIX)
    agent.settimeout(_MEET_SECONDS)
    agent.connect(str(folder / _AGENT))
    agent.sendall(NUMBER.pack(int(os.environ["RANK"])))
    data, descriptors, _, _ = socket.recv_fds(agent, NUMBER.size, 1)
    (size,) = NUMBER.unpack(data)
    with agent.makefile("rb") as reader:
        received = reader.read(size)
    agent.settimeout(None)
    return Hand(agent, socket.socket(fileno=descriptors[0]) if descriptors else None, received)


def _hand_out(
    listener: socket.socket, channel: socket.socket | None, received: bytes, life: socket.socket | None
) -> None:
    """The agent's part; the ranks' connections stay open as long as it lives, and the connection `life`."""
    ranks: list[socket.socket] = []
    while listener.fileno() >= 0:  # the ranks have not ended
        ready = connection.wait([listener] if life is None else [listener, life], _LOOK_SECONDS)
        if life in ready:
            break
        if listener not in ready:
            continue
        rank, _ = listener.accept()
        ranks.append(rank)
        if NUMBER.unpack(rank.recv(NUMBER.size))[0] == 0 and channel is not None:
            socket.send_fds(rank, [NUMBER.pack(len(received))], [channel.fileno()])
            rank.sendall(received)
        else:
            rank.sendall(NUMBER.pack(0))
    for one in (listener, *ranks):
        one.close()
