"""The training process: reads requests from the socket, trains in one thread, does outer steps and checks in another.

The fork server makes it, with everything imported. It ends when the network process closes the socket.
"""

import contextlib
import io
import os
import queue
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from dlx.ground import durable
from dlx.ground.blobs import BlobError, Damaged, read_blob
from dlx.ground.errors import DlxError
from dlx.node.trainer import messages as m
from dlx.node.trainer.links import SocketLink
from dlx.node.trainer.ranks import launch
from dlx.p2p.streams import Data, drop
from dlx.training import selftest
from dlx.training.codecs import CodecError, codec, payload_sizes
from dlx.training.data.shards import DataError, Dataset
from dlx.training.exact.mode import NotExact
from dlx.training.inner.loop import InnerLoop, TrainingError
from dlx.training.inner.pipeline import PipeBroken
from dlx.training.inner.ranks.group import Group, RankLost
from dlx.training.inner.ranks.loop import RankedLoop
from dlx.training.models.placement import (
    Placement,
    PlacementError,
    arithmetic_threads,
    lacking,
    of_run,
    settle,
    take,
    unused_gpu,
)
from dlx.training.models.stages import stage_shapes
from dlx.training.models.weights import WeightsError
from dlx.training.outer.inner_products import InnerProducts
from dlx.training.outer.step import OuterError, SealedPayload, apply_round, measure_round, start_hash
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.recipe.strict import ManifestError
from dlx.training.slot.files import SlotError
from dlx.training.slot.ranked import RankedSlot
from dlx.training.slot.slot import Slot

IDLE_SECONDS = 5.0  # then the ranks look whether all are still there
WORKING_SECONDS = 5.0  # between two words of what this process has used


def main(descriptor: int) -> None:
    """Serves one network process until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches us too; the network process decides
    with socket.socket(fileno=descriptor) as channel:
        with contextlib.suppress(ConnectionError):
            received, opening = _opening(channel)
            if opening is not None and opening.placement.is_shared:
                _share(channel, received, opening.placement)
            Server(channel).run(received)
    os._exit(0)  # a training thread may still wait for a neighbour


def _opening(channel: socket.socket) -> tuple[bytes, m.Open | None]:
    """What comes until the slot is named, to its last byte and no further; None where the network process hangs up."""
    received = bytearray()
    while True:
        header = _exactly(channel, m.LENGTH.size)
        body = _exactly(channel, m.LENGTH.unpack(header)[0]) if header else b""
        message = m.to_trainer.decode(body) if body else None
        if isinstance(message, m.Load):
            channel.sendall(m.pack(_loaded(message.placement)))
            continue
        received += header + body
        if message is None or isinstance(message, m.Open):
            return bytes(received), message


def _loaded(placement: Placement) -> m.Loaded | m.Failed:
    try:
        settle(placement)
    except PlacementError as error:
        return m.Failed(trouble_of(error))
    return m.Loaded()


def _exactly(channel: socket.socket, size: int) -> bytes:
    """Empty where it hangs up."""
    data = channel.recv(size, socket.MSG_WAITALL)
    return data if len(data) == size else b""


def _share(channel: socket.socket, received: bytes, placement: Placement) -> None:
    """Have the ranks of this placement do it."""
    try:
        launch(channel, received, settle(placement))
    except PlacementError as error:
        trouble = trouble_of(error)
    except RuntimeError as error:  # torch's own, before any rank was started
        trouble = m.Trouble(m.Kind.LOCAL, f"the machines did not meet at {placement.rendezvous}: {error}")
    channel.sendall(m.pack(m.Failed(trouble)))


class Server:
    """Dispatches messages; owns the slot and its two threads. `meet`: the other ranks of the slot's stage."""

    def __init__(self, channel: socket.socket, meet: Callable[[], Group] | None = None) -> None:
        self._channel, self._meet = channel, meet
        self._sending = threading.Lock()
        self._links = {name: SocketLink(name, self.send) for name in ("previous", "next")}
        self._stop = threading.Event()
        self._work: queue.SimpleQueue[m.Outer | m.Measure | m.Check | m.Start] = queue.SimpleQueue()
        self._rounds: queue.SimpleQueue[m.Train] = queue.SimpleQueue()

    def run(self, received: bytes = b"") -> None:
        """Reads until the other side closes; `received` is what came before."""
        threading.Thread(target=self._guard, args=(self._tell_working,), daemon=True).start()
        with contextlib.suppress(ConnectionError):  # a reset, where it went away with messages of ours unread
            self._read(io.BytesIO(received))
            self._read(self._channel.makefile("rb", buffering=1 << 18))

    def _read(self, reader: io.IOBase) -> None:
        while len(header := reader.read(m.LENGTH.size)) == m.LENGTH.size:
            (size,) = m.LENGTH.unpack(header)
            body = reader.read(size)
            if len(body) < size:
                return
            self._dispatch(m.to_trainer.decode(body))

    def fail(self, reason: str) -> None:
        """Say why this process cannot go on."""
        with contextlib.suppress(OSError):
            self.send(m.Failed(m.Trouble(m.Kind.LOCAL, reason)))

    def send(self, message: m.FromTrainer) -> None:
        with self._sending:
            left: list[Data] = [*m.pack_in_two(message)]
            while left:  # in one piece, mostly: the other side wakes once
                drop(left, self._channel.sendmsg(left))

    def _dispatch(self, message: m.ToTrainer) -> None:
        match message:
            case m.Tensor():
                self._links[message.link].push(message.pipe, message.piece)
            case m.Alive():
                self._links[message.link].alive(message.pipe, message.moving, message.doing)
            case m.Open():
                threading.Thread(target=self._guard, args=(self._open, message), daemon=True).start()
            case m.Train():
                self._stop.clear()
                self._rounds.put(message)
            case m.Stop():
                self._stop.set()
                for link in self._links.values():
                    link.close(message.reason)
            case m.Outer() | m.Measure() | m.Check() | m.Start():
                self._work.put(message)

    def _guard(self, target, *args) -> None:  # type: ignore[no-untyped-def]
        """Any surprise in a thread is told, not lost."""
        try:
            target(*args)
        except ConnectionError:
            pass  # the network process is gone: the reader sees it too, and ends us
        except Exception as error:
            trouble = trouble_of(error)
            self.send(m.Failed(trouble))
            if trouble.kind is m.Kind.LOCAL and not isinstance(error, DlxError | OSError):
                raise  # a fault of ours, which deserves its traceback

    def _open(self, message: m.Open) -> None:
        blobs = Path(message.blobs)
        manifest = parse(read_blob(blobs / message.manifest.hex(), MAX_BYTES))
        placement = settle(of_run(manifest, message.placement))
        take(placement)
        selftest.run()
        durable.drop_drafts(blobs)  # a process before this one may have been killed while it wrote
        self._manifest, self._blobs, self._stage = manifest, blobs, message.stage
        self._shapes = stage_shapes(manifest, message.stage)
        self._threads = arithmetic_threads(placement)
        self._device, note = selftest.arithmetic_device(placement.device)
        self._products = InnerProducts(codec(manifest.codec.name, self._device), self._shapes, self._threads)
        notes = [note] if note else []
        if message.placement.device == "auto" and placement.device == "cpu" and (why := unused_gpu()):
            notes.append(f"trains on the CPU: {why}")
        if manifest.is_exact and settle(message.placement).device != placement.device:
            notes.append("trains on the CPU: there exact arithmetic is computed")
        if message.directory is None:
            self.send(m.Opened(None, _max_payload_sizes(manifest), placement, tuple(notes)))
            self._answer_requests()
        if message.private_data:
            dataset = Dataset.open_private(Path(message.private_data))
        else:
            dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
        slot_of = manifest, message.stage, dataset, placement, blobs
        kept = message.stage, Path(message.directory), blobs, self._device, self._threads
        if self._meet is None:
            slot = Slot(manifest, loop := InnerLoop(*slot_of), *kept)
        else:
            slot = RankedSlot(manifest, loop := RankedLoop(self._meet(), *slot_of), *kept)
        if message.placement.compile and not placement.compile:
            notes.append(f"the layers are not compiled: {_uncompiled(manifest, placement)}")
        self.send(m.Opened(slot.last, _max_payload_sizes(manifest), placement, tuple(notes)))
        threading.Thread(target=self._guard, args=(self._answer_requests,), daemon=True).start()
        self._guard(self._train_rounds, slot, loop.idle)

    def _next_round(self, idle: Callable[[], None]) -> m.Train:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._rounds.get(timeout=IDLE_SECONDS)
            idle()

    def _train_rounds(self, slot: Slot, idle: Callable[[], None]) -> None:
        last = len(self._manifest.stages) - 1
        while True:
            order = self._next_round(idle)
            for name, link in self._links.items():
                link.begin(order.inputs.round, order.pipes.get(name, 0), self._manifest.timing.round_timeout)
            if self._stop.is_set():
                self.send(m.Abandoned(order.inputs.round, "stopped before it began"))
                continue
            try:
                trained = slot.train(
                    order.inputs,
                    self._links["previous"] if self._stage > 0 else None,
                    self._links["next"] if self._stage < last else None,
                    self._stop.is_set,
                    partial(self._tell_step, order.inputs.round),
                )
            except PipeBroken as error:
                self.send(m.Abandoned(order.inputs.round, str(error)))
            except (SlotError, RankLost):
                raise
            except Exception as error:
                trouble = trouble_of(error)
                self.send(m.Abandoned(order.inputs.round, trouble.reason, trouble))
            else:
                self.send(m.Finished(trained))

    def _tell_step(self, round: int, step: int, loss: float | None) -> None:
        self.send(m.Step(round, step, loss or 0.0))

    def _tell_working(self) -> None:
        while True:
            used = resource.getrusage(resource.RUSAGE_SELF)
            blocks = used.ru_inblock + used.ru_oublock
            self.send(m.Working(round(used.ru_utime + used.ru_stime + blocks / 1000, 2)))
            time.sleep(WORKING_SECONDS)

    def _answer_requests(self) -> NoReturn:
        while True:
            request = self._work.get()
            try:
                self.send(self._answer(request))
            except Exception as error:
                self.send(m.Answer(request.request, trouble_of(error)))

    def _answer(self, request: m.Outer | m.Measure | m.Check | m.Start) -> m.Answer:
        match request:
            case m.Outer():
                return self._outer(request)
            case m.Measure():
                return self._measure(request)
            case m.Check():
                return self._check(request)
            case m.Start():
                return self._start(request)

    def _outer(self, request: m.Outer) -> m.Answer:
        version = apply_round(
            self._manifest,
            self._stage,
            self._blobs / request.weights.hex(),
            self._blobs / request.momentum.hex() if any(request.momentum) else None,
            self._sealed(request.payloads),
            self._blobs,
            self._threads,
            self._device,
        )
        return m.Answer(request.request, version=version)

    def _measure(self, request: m.Measure) -> m.Answer:
        measured = measure_round(self._manifest, self._stage, self._sealed(request.payloads), self._products)
        return m.Answer(request.request, measured=measured)

    def _sealed(self, payloads: tuple[m.SealedPayload, ...]) -> list[SealedPayload]:
        return [SealedPayload(self._blobs / one.payload.hex(), one.steps, one.multiplier, one.plan) for one in payloads]

    def _check(self, request: m.Check) -> m.Answer:
        self._products.norms([(self._blobs / request.payload.hex(), request.plan)])
        return m.Answer(request.request)

    def _start(self, request: m.Start) -> m.Answer:
        base, payload = self._blobs / request.base.hex(), self._blobs / request.payload.hex()
        return m.Answer(request.request, start=start_hash(self._manifest, self._stage, base, payload, request.plan))


def _uncompiled(manifest: Manifest, placement: Placement) -> str:
    """Why."""
    if manifest.is_exact:
        return "the run's arithmetic is exact"
    return "ranks share the stage" if placement.is_shared else f"this machine has no {lacking(placement.device)}"


def trouble_of(error: Exception) -> m.Trouble:
    """What an error of the training code says about what was asked."""
    match error:
        case Damaged():
            return m.Trouble(m.Kind.BLOBS, str(error), (error.blob,))
        case BlobError() | CodecError() | DataError() | ManifestError() | OuterError() | WeightsError():
            return m.Trouble(m.Kind.WRONG, str(error))
        case NotExact() | PlacementError() | selftest.SelfTestError() | SlotError() | TrainingError():
            return m.Trouble(m.Kind.WRONG, str(error))
        case RankLost():
            return m.Trouble(m.Kind.LOCAL, str(error))
        case _:  # a full disk, no memory, a bug
            return m.Trouble(m.Kind.LOCAL, f"{type(error).__name__}: {error}")


def _max_payload_sizes(manifest: Manifest) -> tuple[dict[int, int], ...]:
    """Of each stage: rank -> the largest payload in bytes."""
    return tuple(payload_sizes(manifest, stage_shapes(manifest, stage)) for stage in range(len(manifest.stages)))
