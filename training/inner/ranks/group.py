"""The ranks of one stage: a torch.distributed process group, and the few ways in which tensors and words pass in it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dlx.ground.errors import DlxError
from dlx.training.inner.pipeline import PipeBroken
from dlx.training.inner.ranks.cuts import Cut, padded

_TENSOR_SECONDS = 600.0  # no rank lets the others wait for longer, or all of them end
_WORD_SECONDS = 3600.0  # the same of rank 0, which may wait for a neighbour's message over a slow link

T = TypeVar("T")


class RankLost(DlxError):
    """Another rank ended, is too late, or all are out of step: nothing goes on until all are started anew."""


class Group:
    """This process's place among the ranks. Methods are collectives, but where they say otherwise: all ranks call them,
    in the same order.

    Nothing is pickled. What passes in main memory goes over gloo, what lies on a GPU over NCCL.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, device: str, beside: int) -> None:
        """Waits for all ranks. `beside`: how many of this machine's there are; what rank 0 says of its own counts. They
        are the first ones. Raises RankLost."""
        self.rank, self.size, self.device = rank, size, torch.device(device)
        backend = "gloo" if self.device.type == "cpu" else f"cpu:gloo,{self.device.type}:nccl"
        try:
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=_TENSOR_SECONDS)
            )
            self._words = dist.new_group(timeout=timedelta(seconds=_WORD_SECONDS), backend="gloo")
            self.beside = int(self._say(torch.tensor([beside])))  # ranks on rank 0's machine
        except (RuntimeError, ValueError) as error:
            raise RankLost(f"the ranks did not meet: {error}") from error
        self._broken: PipeBroken | None = None
        self._meshes: dict[int, DeviceMesh] = {}

    def close(self) -> None:
        dist.destroy_process_group()

    def mesh(self, parallel: int) -> DeviceMesh:
        """Of dimensions `data` and `parallel`: as many neighbours."""
        if parallel not in self._meshes:  # one for all time: what torch remembers in a thread goes by equal meshes
            shape = (self.size // parallel, parallel)
            self._meshes[parallel] = init_device_mesh(self.device.type, shape, mesh_dim_names=("data", "parallel"))
        return self._meshes[parallel]

    # ---- words of rank 0

    def tell(self, message: msgspec.Struct) -> None:
        """Rank 0's part; the others `hear` it."""
        data = torch.frombuffer(bytearray(msgspec.msgpack.encode(message)), dtype=torch.uint8)
        self._say(torch.tensor([len(data)]))
        self._say(data)

    def hear(self, kind: Any) -> Any:
        """What rank 0 tells, decoded as `kind`."""
        size = self._say(torch.zeros(1, dtype=torch.int64))
        data = self._say(torch.empty(int(size), dtype=torch.uint8))
        return msgspec.msgpack.decode(data.numpy().tobytes(), type=kind)

    def decide(self, count: int, work: Callable[[], Sequence[float]]) -> list[float]:
        """What rank 0's `work` gives, `count` numbers, on all ranks. Raises PipeBroken on all where it does there."""
        numbers = torch.zeros(1 + count, dtype=torch.float64)
        broken = self._broken
        if self.rank == 0 and broken is None:
            try:
                numbers[1:] = torch.tensor([*work()], dtype=torch.float64)
            except PipeBroken as error:
                broken = error
        numbers[0] = float(broken is not None)
        self._broken = None
        self._say(numbers)
        if broken is not None:
            raise broken
        if numbers[0]:
            raise PipeBroken("rank 0 says so")
        return numbers[1:].tolist()

    def first(self, mine: bytes) -> bytes:
        """What the first rank gives that does not give nothing."""
        found = torch.tensor([self.rank if mine else self.size])
        dist.all_reduce(found, dist.ReduceOp.MIN, self._words)
        source = int(found)
        if source == self.size:
            return b""
        size = self._say(torch.tensor([len(mine)]), source)
        data = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if source == self.rank else None
        return self._say(torch.empty(int(size), dtype=torch.uint8) if data is None else data, source).numpy().tobytes()

    def break_off(self, error: PipeBroken) -> None:
        """Rank 0 alone: the next decision is that the step is over."""
        self._broken = error

    # ---- a tensor in main memory, from one rank to another: no collectives

    def send(self, tensor: Tensor, to: int) -> None:
        dist.send(tensor, to)

    def receive(self, tensor: Tensor, source: int) -> None:
        """Into `tensor`, contiguous and as large as what is sent."""
        dist.recv(tensor, source)

    def pass_on(self, whole: Tensor | None, into: Tensor | None, source: int, to: int) -> None:
        """Rank `source`'s tensor `whole` into rank `to`'s `into`, of the same shape; each may lie on its device."""
        if self.rank == source and source != to:
            assert whole is not None
            self.send(whole.cpu().contiguous(), to)
        if self.rank == to:
            assert into is not None
            found = whole
            if source != to:
                self.receive(found := torch.empty(into.shape), source)
            assert found is not None
            into.copy_(found)

    # ---- tensors, of which each rank has a piece

    def gather(self, mine: Tensor, cut: Cut, to: int) -> Tensor | None:
        """The whole tensor from every rank's piece; None but on rank `to`."""
        mine = padded(mine, cut.piece[0])
        if self.rank != to:
            dist.gather(mine, None, to)
            return None
        pieces = mine.new_empty(self.size, *cut.piece)
        dist.gather(mine, list(pieces), to)
        return cut.joined(pieces)

    def scatter(self, whole: Tensor | None, mine: Tensor, cut: Cut, source: int) -> None:
        """The counterpart: fill `mine`, this rank's piece, from the whole tensor that rank `source` has."""
        piece = mine if tuple(mine.shape) == cut.piece and mine.is_contiguous() else mine.new_empty(cut.piece)
        pieces = None
        if self.rank == source:
            assert whole is not None
            pieces = cut.pieces(whole.to(mine.device))
        dist.scatter(piece, pieces, source)
        if piece is not mine:
            mine.copy_(piece[: len(mine)])

    def share(self, tensor: Tensor) -> Tensor:
        """Rank 0's, in place."""
        dist.broadcast(tensor, 0)
        return tensor

    def add(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks', in place."""
        dist.all_reduce(tensor)
        return tensor

    def _say(self, words: Tensor, source: int = 0) -> Tensor:
        dist.broadcast(words, source, self._words)
        return words
