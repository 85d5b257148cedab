"""Tensors far larger than a frame, from one training process to another, through both network processes and TCP."""

import math
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import trio

from dlx.node.daemon.slot.pipes import Pipes
from dlx.node.trainer import client
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import Trainer
from dlx.node.trainer.process import Server
from dlx.p2p import wire
from dlx.p2p.frames import FRAME_LIMIT, PipeAlive, PipeTensor, PipeWant
from dlx.training.inner.pipeline import as_bytes, as_tensor
from dlx.training.inner.traffic import Incoming
from tests.p2p.network import Node, network, until
from tests.patience import PATIENCE, patient

RUN = b"R" * 32
SHAPE = (1, 8192, 4096)  # 128 MiB of float32
SIZE = 4 * math.prod(SHAPE)
AHEAD = 2
SECONDS = patient(120.0)  # for 512 MiB in all; 16 were measured on a busy machine, with all in one interpreter


class Slot:
    """The member of one of two stages: a host, its pipes, and a training process that is a thread here."""

    def __init__(self, node: Node, stage: int) -> None:
        self.node, self.stage, self.link = node, stage, "next" if stage == 0 else "previous"
        kind, after, ahead = ("gradient", "activation", 0) if stage == 0 else ("activation", "gradient", AHEAD)
        self.rejected: list[str] = []
        self.pipes = Pipes(
            node.pipes,
            wire.PipeHello(RUN, 0, stage, bytes(20)),
            2,
            self,
            lambda reason, peer: self.rejected.append(reason),
        )
        self._incoming = {kind: Incoming((SIZE,), after, ahead)}
        self.peer = ""
        self.trainer, (ours, theirs) = Trainer(), socket.socketpair()
        self.server, self.spawned = Server(theirs), _Spawned(ours)
        theirs.sendall(m.pack(m.Loaded()))
        threading.Thread(target=self.server.run, daemon=True).start()
        self.trainer._on_message = self._on_trainer

    def member_at(self, stage: int) -> tuple[str, str]:
        return "0x" + "00" * 20, self.peer

    def incoming(self, link: str) -> dict[str, Incoming]:
        return self._incoming

    def on_pipe_open(self, link: str) -> None:
        pass

    def on_pipe_gone(self, link: str) -> None:
        pass

    def on_want(self, link: str, want: PipeWant) -> None:
        pass

    def on_tensor(self, link: str, pipe: int, piece: PipeTensor) -> None:
        self.trainer.post(m.Tensor(link, pipe, piece))

    def alive(self) -> PipeAlive | None:
        return None

    def on_alive(self, link: str, pipe: int, moving: bool, doing: str) -> None:
        self.trainer.post(m.Alive(link, pipe, moving, doing))

    def _on_trainer(self, message: m.FromTrainer) -> None:
        if isinstance(message, m.Tensor):
            self.pipes.post(message.link, message.pipe, message.piece)

    def begin(self) -> Any:
        """The link of a round, for the thread that trains."""
        link = self.server._links[self.link]
        link.begin(0, self.pipes.number(self.link))
        return link


class _Spawned:
    pid = 0

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def end(self) -> str:
        self.channel.close()
        return "the test is over"


@pytest.mark.slow
def test_activations_of_128_mib_go_there_and_their_gradients_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them under way at once, as many as a first stage of two sends before it needs a gradient."""
    first = torch.arange(math.prod(SHAPE)).remainder(1009).float().view(SHAPE)

    def train_first(link: Any) -> bool:
        for micro in range(AHEAD):
            link.send("activation", 0, micro, as_bytes(first + micro))
        return all(torch.equal(as_tensor(link.recv("gradient", 0, one), SHAPE), first * 2) for one in range(AHEAD))

    def train_second(link: Any) -> bool:
        sound = True
        for micro in range(AHEAD):
            activation = as_tensor(link.recv("activation", 0, micro), SHAPE)
            sound = sound and torch.equal(activation, first + micro)
            link.send("gradient", 0, micro, as_bytes((activation - micro) * 2))
        return sound

    async def main() -> None:
        async with network(tmp_path, 2, frame_limit=FRAME_LIMIT) as nodes, trio.open_nursery() as nursery:
            slots = [Slot(node, stage) for stage, node in enumerate(nodes)]
            channels = iter([slot.spawned for slot in slots])
            monkeypatch.setattr(client, "spawn", lambda: next(channels))
            for slot, other in zip(slots, reversed(slots), strict=True):
                slot.peer = other.node.id
                await nursery.start(slot.pipes.run)
                await nursery.start(slot.trainer.run)
                with trio.fail_after(PATIENCE):
                    await slot.trainer.loaded.wait()
            slots[0].pipes.dial()
            with trio.fail_after(PATIENCE):
                slots[1].pipes.take(await slots[1].node.pipes.incoming.receive())
            await until(lambda: all(slot.pipes.number(slot.link) for slot in slots))
            sound: list[bool] = []

            async def train(work: Any, slot: Slot) -> None:
                sound.append(await trio.to_thread.run_sync(work, slot.begin(), abandon_on_cancel=True))

            with trio.fail_after(SECONDS):
                async with trio.open_nursery() as rounds:
                    rounds.start_soon(train, train_first, slots[0])
                    rounds.start_soon(train, train_second, slots[1])
            assert sound == [True, True]
            assert not slots[0].rejected + slots[1].rejected
            nursery.cancel_scope.cancel()

    trio.run(main)
