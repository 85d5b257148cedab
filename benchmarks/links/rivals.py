"""One replica of a way to train that is not ours: `python -m benchmarks.links.rivals JSON`, run on each replica's host.

All share the bare loop (model, data, optimiser, micro-batches) and differ in what they exchange. The process prints
{"seconds", "bytes"} of its timed rounds: between two barriers, and as its own network interface counted what came.
"""

import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.bare import WARM_UP_STEPS, Loop

OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}  # DiLoCo's
AGREED = 0.01  # of the weights' norm: what 16 bits and a different order of sums may come to
_GLOO_PORT, _LIGHTHOUSE_PORT = 29500, 29510
_RECEIVED = Path("/sys/class/net/eth0/statistics/rx_bytes")


@dataclass(frozen=True)
class Peer:
    """What one replica is told."""

    method: str  # a key of METHODS
    rank: int
    addresses: list[str]  # of all replicas, by rank
    manifest: str  # files
    blobs: str
    threads: int
    inner_steps: int  # of a round, which ends with an exchange
    rounds: int  # that are timed
    patience: float  # seconds that any exchange may take

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @property
    def timeout(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.patience)


Round = Callable[[int], None]  # from this inner step on


def main(peer: Peer) -> None:
    """Trains the rounds. Raises what the method does where it fails."""
    import torch
    import torch.distributed as dist

    loop = Loop(Path(peer.manifest), Path(peer.blobs), peer.threads)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{peer.addresses[0]}:{_GLOO_PORT}",
        rank=peer.rank,
        world_size=len(peer.addresses),
        timeout=peer.timeout,
    )
    with METHODS[peer.method](peer, loop) as round:
        first = peer.rank * 100_000  # every replica has its own part of the data
        with _alone_of(loop):
            for step in range(WARM_UP_STEPS):
                loop.step(step)  # the same data for all: what averages gradients never brings weights together
        dist.all_reduce(torch.zeros(1))  # a barrier
        began, before = time.monotonic(), _received()
        for number in range(peer.rounds):
            round(first + WARM_UP_STEPS + number * peer.inner_steps)
        dist.all_reduce(torch.zeros(1))
        found = {"seconds": time.monotonic() - began, "bytes": _received() - before}
        if peer.method != "alone":
            _check_agreement(loop)
    print(json.dumps(found), flush=True)


@contextmanager
def _alone(peer: Peer, loop: Loop) -> Iterator[Round]:
    """No exchange at all: what a step costs when all replicas compute at once."""
    yield lambda first: _steps(peer, loop, first)


@contextmanager
def _ddp(peer: Peer, loop: Loop) -> Iterator[Round]:
    """torch's DistributedDataParallel: float32 gradients all-reduced in every step, overlapping the backward pass."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(loop.model, init_sync=False)  # the first weights are the same by their seed
    loop.forward = wrapped
    yield lambda first: _steps(peer, loop, first, wrapped.no_sync)


@contextmanager
def _diloco(peer: Peer, loop: Loop) -> Iterator[Round]:
    """DiLoCo in plain torch: a float32 pseudo-gradient all-reduced at a round's end, then an outer step (Nesterov)."""
    import torch
    import torch.distributed as dist

    parameters = list(loop.model.parameters())
    start = torch.nn.utils.parameters_to_vector(parameters).detach().clone().requires_grad_()
    outer = torch.optim.SGD([start], **OUTER)  # type: ignore[arg-type]

    def round(first: int) -> None:
        _steps(peer, loop, first)
        with torch.no_grad():
            start.grad = (start - torch.nn.utils.parameters_to_vector(parameters)) / len(peer.addresses)
        dist.all_reduce(start.grad)
        outer.step()
        torch.nn.utils.vector_to_parameters(start.detach().clone(), parameters)

    yield round


@contextmanager
def _torchft(peer: Peer, loop: Loop) -> Iterator[Round]:
    """torchft's DiLoCo over gloo, with its manager and, at the first replica, its lighthouse."""
    import torch
    from torch.distributed import TCPStore
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    class Inner(torch.optim.Optimizer):
        """Steps nothing: DiLoCo only wants to be told of each step."""

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    own, world = peer.addresses[peer.rank], len(peer.addresses)
    lighthouse = None
    if peer.rank == 0:
        lighthouse = LighthouseServer(bind=f"[::]:{_LIGHTHOUSE_PORT}", min_replicas=world)
    store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=peer.timeout),
        load_state_dict=loop.model.load_state_dict,
        state_dict=loop.model.state_dict,
        min_replica_size=world,
        use_async_quorum=False,
        timeout=peer.timeout,
        quorum_timeout=peer.timeout,
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=store.port,
        lighthouse_addr=f"http://{peer.addresses[0]}:{_LIGHTHOUSE_PORT}",
        hostname=own,
        replica_id=f"replica-{peer.rank}",
        init_sync=False,
    )
    inner = Inner(loop.model.parameters(), {})
    outer = torch.optim.SGD(loop.model.parameters(), **OUTER)  # type: ignore[arg-type]
    try:
        with DiLoCo(manager, [loop.model], inner, outer, sync_every=peer.inner_steps):

            def round(first: int) -> None:
                exchanged = manager.current_step()
                for step in range(first, first + peer.inner_steps):
                    loop.step(step)
                    inner.step()
                if manager.current_step() != exchanged + 1:
                    raise RuntimeError(f"torchft discarded its round {exchanged}: {manager.errored()}")

            yield round
    finally:
        manager.shutdown(wait=False)
        if lighthouse is not None:
            lighthouse.shutdown()


@contextmanager
def _hivemind(peer: Peer, loop: Loop) -> Iterator[Round]:
    """hivemind's averager: the weights, as 16-bit numbers, averaged among all at a round's end. (Its 8-bit compression
    averages nothing with torch 2.13: "received 58.3% results".)"""
    import torch
    import torch.distributed as dist
    from hivemind import DHT, DecentralizedAverager
    from hivemind.compression import Float16Compression

    own = [f"/ip4/{peer.addresses[peer.rank]}/tcp/0"]
    quiet = {"auto_nat": False, "nat_port_map": False, "use_relay": False}  # all are on one network
    told: list[list[str]] = [[]]
    if peer.rank == 0:
        dht = DHT(start=True, host_maddrs=own, **quiet)
        told = [[str(address) for address in dht.get_visible_maddrs()]]
    dist.broadcast_object_list(told)
    if peer.rank:
        dht = DHT(told[0], start=True, host_maddrs=own, **quiet)
    parameters = list(loop.model.parameters())
    averager = DecentralizedAverager(
        [one.detach().clone() for one in parameters],
        dht,
        start=True,
        prefix="links",
        target_group_size=len(peer.addresses),
        min_group_size=len(peer.addresses),
        min_matchmaking_time=2.0,
        request_timeout=1.0,
        compression=Float16Compression(),
        allow_state_sharing=False,
    )

    def round(first: int) -> None:
        _steps(peer, loop, first)
        with averager.get_tensors() as tensors, torch.no_grad():
            for shared, one in zip(tensors, parameters, strict=True):
                shared.copy_(one)
        if averager.step(timeout=peer.patience) is None:
            raise RuntimeError("hivemind found no group to average in")
        with averager.get_tensors() as tensors, torch.no_grad():
            for shared, one in zip(tensors, parameters, strict=True):
                one.copy_(shared)

    try:
        yield round
    finally:
        averager.shutdown()
        dht.shutdown()


METHODS = {"alone": _alone, "ddp": _ddp, "diloco": _diloco, "torchft": _torchft, "hivemind": _hivemind}


def _steps(peer: Peer, loop: Loop, first: int, but_the_last: Any = nullcontext) -> None:
    for step in range(first, first + peer.inner_steps):
        loop.step(step, but_the_last)


def _alone_of(loop: Loop) -> Any:
    """What has DDP exchange nothing."""
    return loop.forward.no_sync() if hasattr(loop.forward, "no_sync") else nullcontext()


def _check_agreement(loop: Loop) -> None:
    """Raises RuntimeError where the replicas' weights differ after their last exchange, beyond rounding."""
    import torch
    import torch.distributed as dist

    own = max(loop.model.parameters(), key=lambda one: one.numel()).detach().flatten()[:1000].clone()
    mean = own.clone()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    apart = torch.stack([(own - mean).norm() / mean.norm()])
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    if apart.item() > AGREED:
        raise RuntimeError(f"the replicas' weights are {apart.item():.1%} apart after the last exchange")


def _received() -> int:
    return int(_RECEIVED.read_text())


if __name__ == "__main__":
    main(Peer(**json.loads(sys.argv[1])))
