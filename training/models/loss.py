"""The loss of the last stage without all its logits at a time: at a large vocabulary they are the largest tensor there.

The logits of a chunk of tokens are dropped once they have given the chunk's loss and gradients, so the product with the
head is not computed a second time. Not `torch.nn.functional.linear_cross_entropy`: with inputs in bfloat16 it gives the
loss in bfloat16 too, which is off by a tenth of a nat.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dlx.training.models.batches import IGNORED

_CHUNK = {"cuda": 1 << 27}  # logits; a GPU adds each chunk's gradient to the head's in its memory, which takes its time
_CPU_CHUNK = 1 << 24
_FAKE_CHUNKS = 3  # without values one is like another


def chunk_rows(device: str, vocabulary: int) -> int:
    """How many tokens' logits there are at a time on a device ("cuda", "cuda:1", "cpu")."""
    return max(1, _CHUNK.get(device.partition(":")[0], _CPU_CHUNK) // vocabulary)


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the cross-entropies of float32 logits [tokens, vocabulary], in nats, without labels to be ignored."""
    return functional.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)


def cross_entropy(
    head: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    rows: int,
    hidden: Tensor,
    labels: Tensor,
    count: Tensor | int | None = None,
    summed: Callable[[Tensor, Tensor], Tensor] = summed,
) -> Tensor:
    """Mean cross-entropy in nats, a scalar, of `head(hidden)` (logits [tokens, vocabulary]) against labels int64
    [tokens], of `rows` tokens at a time. It is their sum / `count`; None: the labels' number. `parameters` are those
    that `head` uses; its gradients can be taken once. `summed`: where logits are apart."""
    divisor = len(labels) if count is None else count

    def part(piece: Tensor, wanted: Tensor) -> Tensor:
        """The chunk's part of the mean."""
        return summed(head(piece).float(), wanted) / divisor

    if torch.is_grad_enabled():
        return _Chunked.apply(part, rows, hidden, labels, *parameters)
    pieces = zip(hidden.split(rows), labels.split(rows), strict=True)
    return sum((part(piece, wanted) for piece, wanted in pieces), hidden.new_zeros(()).float())


class _Chunked(torch.autograd.Function):
    """Takes the gradients in its forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        part: Callable[[Tensor, Tensor], Tensor],
        rows: int,
        hidden: Tensor,
        labels: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        total, gradient = hidden.new_zeros((), dtype=torch.float32), torch.empty_like(hidden)
        sums: list[Tensor] = []
        chunks = list(zip(hidden.split(rows), labels.split(rows), gradient.split(rows), strict=True))
        for piece, wanted, into in chunks[: _FAKE_CHUNKS if isinstance(hidden, FakeTensor) else None]:
            with torch.enable_grad():
                source = piece.detach().requires_grad_()
                loss = part(source, wanted)
                first, *others = torch.autograd.grad(loss, (source, *parameters))
            into.copy_(first)
            total += loss.detach()
            if sums:
                torch._foreach_add_(sums, others)
            else:
                sums = others
        ctx.gradients = gradient, sums  # not as saved tensors, so that the sums can become the parameters' gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        (gradient, sums), ctx.gradients = ctx.gradients, None
        torch._foreach_mul_([gradient, *sums], scale)
        return None, None, gradient, None, *sums
