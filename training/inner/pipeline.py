"""One inner step of a replica: activations and their gradients between stage neighbours, one forward one backward.

Every stage sees the micro-batches in the same order, so the gradients are bit-equal to those of the unsplit model.
All of a link's messages come in an order that both sides know; anything else is a broken pipe.
"""

import math
import queue
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dlx.training.inner.packing import pack, packed_bytes, unpack
from dlx.training.models.batches import counted, parted
from dlx.training.models.stages import StageModel
from dlx.training.models.transfers import to_device, to_host

Bytes = bytes | bytearray | memoryview


class PipeBroken(Exception):
    """A neighbour is gone, too late, or sent something else than expected: the replica's round is abandoned."""


class Stopped(PipeBroken):
    """This node was asked to stop in the middle of a step."""


class Link(Protocol):
    """A connection to a stage neighbour. Each side sends and receives in its own thread of control."""

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        """Hand over one message without waiting for the neighbour to receive it (two blocking senders would wait for
        each other for ever). Raises PipeBroken."""

    def recv(self, kind: str, step: int, micro: int) -> Bytes:
        """The next message, which must carry this kind, step and micro-batch; a bytearray is the caller's to keep.
        Raises PipeBroken, also after the link's deadline."""


def run_step(
    model: StageModel,
    step: int,
    micro_batches: Sequence[Tensor] | None,
    previous: Link | None,
    next: Link | None,
    stop: Callable[[], bool] = lambda: False,
    count: Tensor | None = None,
) -> Tensor | None:
    """Add the mean gradient over the step's micro-batches to the model's `.grad`s, in 1F1B order.

    Where the first stage's embedding is the last one's head, it goes there first, and its gradient comes back last.

    `micro_batches`: words int64 [n, length + 1] each, on stages that read data. Between stages go activations and
    gradients of `model.activation_shape`, as `model.packing` says. Returns the mean loss in nats on the last stage over
    those of the batch's tokens that count, a scalar on its device, None elsewhere. `count`: how many there are; None:
    those of these micro-batches. Raises PipeBroken, or Stopped once `stop()` is true.
    """
    number, shape = model.micro_batches, model.activation_shape
    batches = None if micro_batches is None else [parted(words, model.has_rows) for words in micro_batches]
    if next is None and count is None:
        count = counted(torch.cat(list(micro_batches)))  # type: ignore[arg-type]
    in_flight: dict[int, tuple[Tensor, Tensor]] = {}  # micro-batch to (input, output)
    losses: list[Tensor] = []  # asking for a number here would have the device wait for us, at every micro-batch

    def received(link: Link, kind: str, micro: int) -> Tensor:
        data = expect(link.recv(kind, step, micro), packed_bytes(shape, model.packing))
        return unpack(data, shape, model.packing, model.device)

    def forward(micro: int) -> None:
        _check(stop)
        batch = None if batches is None else batches[micro]
        begins = None if batch is None else batch.begins
        if previous is None:
            source = batch.ids  # type: ignore[union-attr]
        else:
            source = received(previous, "activation", micro).requires_grad_()
        if next is None:
            output = model(source, batch.labels, begins, count)  # type: ignore[union-attr]
            losses.append(output.detach())
        else:
            output = model(source, begins=begins)
            next.send("activation", step, micro, pack(output, model.packing))
        in_flight[micro] = (source, output)

    def backward(micro: int) -> None:
        _check(stop)
        source, output = in_flight.pop(micro)
        output.backward(None if next is None else received(next, "gradient", micro))
        if previous is not None:
            previous.send("gradient", step, micro, pack(source.grad, model.packing))  # type: ignore[arg-type]

    _hand_on_embedding(model, step, previous, next)
    ahead = min(model.stages - model.stage - 1, number)
    for micro in range(ahead):
        forward(micro)
    for micro in range(number):
        if micro + ahead < number:
            forward(micro + ahead)
        backward(micro)
    _hand_back_gradient(model, step, previous, next)
    return torch.stack(losses).sum(dtype=_wide(losses[0])) if next is None else None


def _hand_on_embedding(model: StageModel, step: int, previous: Link | None, next: Link | None) -> None:
    if model.tied_shape is None:
        return
    if previous is None:
        next.send("embedding", step, 0, as_bytes(model.embedding.detach()))  # type: ignore[union-attr]
        return
    data = previous.recv("embedding", step, 0)
    tensor = as_tensor(data, model.tied_shape)
    if next is not None:
        next.send("embedding", step, 0, data)
    else:
        assert model.tied_head is not None
        model.tied_head.grad = None
        model.tied_head.data.copy_(tensor)


def _hand_back_gradient(model: StageModel, step: int, previous: Link | None, next: Link | None) -> None:
    if model.tied_shape is None:
        return
    if next is None:
        assert model.tied_head is not None and model.tied_head.grad is not None
        previous.send("tied gradient", step, 0, as_bytes(model.tied_head.grad))  # type: ignore[union-attr]
        model.tied_head.grad = None
        return
    data = next.recv("tied gradient", step, 0)
    tensor = as_tensor(data, model.tied_shape)
    if previous is not None:
        previous.send("tied gradient", step, 0, data)
    else:
        assert model.embedding.grad is not None
        model.embedding.grad += to_device(tensor, model.device)


class Norms(NamedTuple):
    """Of one inner step's gradient."""

    received: float  # the sum of squares that came from the stages before; 0.0 on the first
    passed_on: float  # the same with this stage's
    replica: float  # the norm of all stages


def add_norms(
    squares: Sequence[float], loss: float | None, step: int, previous: Link | None, next: Link | None
) -> tuple[Norms, float]:
    """The gradient norms and the loss, from what `squares_and_loss` found here; the whole replica's have the same bits
    on every stage.

    Squared norms are added one tensor after the other along the pipe, so the sum does not depend on where the model is
    split; the last stage, which knows the loss, sends both back. Raises PipeBroken.
    """
    received = 0.0 if previous is None else _numbers(previous.recv("norm", step, 0), 1)[0]
    total = received
    for square in squares:
        total += square
    if next is None:
        assert loss is not None
        norm = math.sqrt(total)  # rounded correctly everywhere, as a power is not
    else:
        next.send("norm", step, 0, struct.pack("<d", total))
        norm, loss = _numbers(next.recv("total", step, 0), 2)
        if norm < (least := math.sqrt(total)):  # a liar would have the gradients not clipped
            raise PipeBroken(f"the replica's gradient norm cannot be {norm:g}: up to this stage it is {least:g}")
    if previous is not None:
        previous.send("total", step, 0, struct.pack("<2d", norm, loss))
    return Norms(received, total, norm), loss


def squares_and_loss(gradients: Sequence[Tensor], mean: Tensor | None) -> tuple[list[float], float | None]:
    """Each gradient's squared norm, and the loss where it is known: one transfer, one wait for the device."""
    values = list(torch._foreach_norm(list(gradients), dtype=_wide(gradients[0]))) if gradients else []
    if mean is not None:
        values.append(mean)
    numbers = torch.stack(values).tolist() if values else []
    return [norm * norm for norm in numbers[: len(gradients)]], None if mean is None else numbers[-1]


def _wide(tensor: Tensor) -> torch.dtype:
    """The widest that its device adds in."""
    return torch.float32 if tensor.is_mps else torch.float64


def barrier(
    step: int, previous: Link | None, next: Link | None, behind: bytes = b"", ahead: bytes = b""
) -> tuple[bytes, bytes]:
    """Return only once every stage of the replica has come here: a wave to the last stage and back.

    `behind` and `ahead` are what this stage recorded of the links to the previous and the next one. Returns what came
    behind the same records of these: their signatures, empty of a stage that there is not and inside one process.
    Raises PipeBroken where a neighbour recorded something else: nobody is to publish what contradicts it.
    """
    before = after = b""
    if previous is not None:
        before = _signature(previous.recv("barrier", step, 0), behind, "previous")
    if next is not None:
        next.send("barrier", step, 0, ahead)
        after = _signature(next.recv("release", step, 0), ahead, "next")
    if previous is not None:
        previous.send("release", step, 0, behind)
    return before, after


def _signature(its: Bytes, mine: bytes, which: str) -> bytes:
    if its[: len(mine)] != mine:
        raise PipeBroken(f"the {which} stage recorded other tensors or norms of this round than went over the pipe")
    return bytes(its[len(mine) :])


def queue_links(timeout: float = 60.0) -> tuple[Link, Link]:
    """The two ends of a link inside one process; `timeout` in seconds for every receive."""
    there: queue.SimpleQueue[_Message] = queue.SimpleQueue()
    back: queue.SimpleQueue[_Message] = queue.SimpleQueue()
    return _QueueLink(there, back, timeout), _QueueLink(back, there, timeout)


_Message = tuple[str, int, int, Bytes]


class _QueueLink:
    def __init__(self, out: "queue.SimpleQueue[_Message]", into: "queue.SimpleQueue[_Message]", timeout: float) -> None:
        self._out, self._into, self._timeout = out, into, timeout

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        self._out.put((kind, step, micro, data))

    def recv(self, kind: str, step: int, micro: int) -> Bytes:
        try:
            *tag, data = self._into.get(timeout=self._timeout)
        except queue.Empty:
            raise PipeBroken(f"no {kind} of step {step}, micro-batch {micro} within {self._timeout:g} s") from None
        if tag != [kind, step, micro]:
            raise PipeBroken(f"expected {kind} of step {step}, micro-batch {micro}, got {tag}")
        return data


def _check(stop: Callable[[], bool]) -> None:
    if stop():
        raise Stopped("asked to stop")


def as_bytes(tensor: Tensor) -> memoryview:
    """The tensor's own memory, where that is main memory."""
    return to_host(tensor.detach()).contiguous().numpy().data.cast("B")


def as_tensor(data: Bytes, shape: tuple[int, ...]) -> Tensor:
    """float32, little-endian as on every supported machine."""
    return torch.frombuffer(expect(data, 4 * torch.Size(shape).numel()), dtype=torch.float32).view(shape)


def expect(data: Bytes, size: int) -> bytearray:
    """The same bytes, ours to keep. Raises PipeBroken where there are more or fewer."""
    if len(data) != size:
        raise PipeBroken(f"expected {size} bytes, got {len(data)}")
    return data if isinstance(data, bytearray) else bytearray(data)


def _numbers(data: Bytes, count: int) -> tuple[float, ...]:
    """Norms and losses: float64, not negative, but infinite or NaN where the replica has diverged."""
    if len(data) != 8 * count:
        raise PipeBroken(f"expected {8 * count} bytes of float64, got {len(data)}")
    numbers = struct.unpack(f"<{count}d", data)
    if any(number < 0 for number in numbers):
        raise PipeBroken(f"expected norms and losses, got {numbers}")
    return numbers
