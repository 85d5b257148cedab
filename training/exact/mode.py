"""The mode under which torch computes exactly: each operator below autograd is passed on, computed here, or refused.

Passed on are operators that move values, compare them, or round each result once (`+ - * /` and square roots). Products
and sums are taken on grids (`grid`), functions by `functions`. Fused operators are taken apart, since compilers may
leave out roundings in them. Whatever else meets floating point is refused by name: so nothing is exact by hope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dlx.training.exact import functions
from dlx.training.exact.grid import product, scattered, total


class NotExact(RuntimeError):
    """An operator that is not computed exactly; it is named."""


class Exact(TorchDispatchMode):
    """`bits` of each factor of a product, where float64 has room for them: 7 (then products may be float32's) to 21."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, schema = dict(kwargs or {}), func._schema
        space, _, name = schema.name.partition("::")
        made = name.rstrip("_")  # of which `name` may be the form that changes a tensor in place
        if space != "aten" and _floating((args, named)):  # what it does inside is not seen
            raise NotExact(f"{schema.name} is not computed exactly")
        if space != "aten" or name in _PASSED or made in _PASSED:
            return func(*args, **named)
        if not _floating((args, named)):
            found = func(*args, **named)
            if _floating(found) and not (name == "arange" and all(isinstance(one, int) for one in args)):
                raise NotExact(f"{name} makes values that are not computed exactly")
            return found
        handler = _COMPUTED.get(name) or _COMPUTED.get(made)
        if handler is None:
            raise NotExact(f"{name} is not computed exactly")
        out = named.pop("out", None)
        found = handler(self._bits, schema.overload_name, *args, **named)
        if name.startswith("_foreach") or name == "_fused_adamw_":
            return found
        into = args[0] if name != made and name.endswith("_") else out
        return found if into is None else into.copy_(found)


def _floating(given: Any) -> bool:
    """Whether values of a floating point take part; on "meta" there are none."""
    tensors = (one for one in tree_leaves(given) if isinstance(one, Tensor))
    return any(one.is_floating_point() and one.device.type != "meta" for one in tensors)


# Values are moved, compared, or rounded once.
_PASSED = frozenset({
    "_local_scalar_dense", "_to_copy", "_unsafe_view", "abs", "alias", "amax", "amin", "any", "all",
    "as_strided", "bitwise_and", "bitwise_not", "cat", "ceil", "clamp", "clamp_min", "clamp_max",
    "clone", "constant_pad_nd", "copy_", "detach", "diagonal", "embedding", "empty", "empty_like",
    "eq", "expand", "eye", "fill_", "flip", "floor", "full", "full_like", "gather", "ge", "gt", "index",
    "index_select", "is_nonzero", "isfinite", "isinf", "isnan", "item", "le", "lift_fresh", "logical_and",
    "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum", "mul",
    "narrow", "ne", "neg", "new_empty", "new_ones", "new_zeros", "ones", "ones_like", "permute",
    "relu", "repeat", "reshape", "resize_", "round", "scalar_tensor", "select", "select_backward", "set_", "sign",
    "slice", "slice_backward", "slice_scatter", "split", "split_with_sizes", "sqrt", "squeeze", "stack", "t",
    "threshold_backward", "transpose", "tril", "triu", "unbind", "unflatten", "unsqueeze", "view", "where",
    "zero_", "zeros", "zeros_like",
})  # fmt: skip


def _add(bits: int, overload: str, left: Any, right: Any, alpha: float = 1) -> Tensor:
    return torch.add(left, right if alpha == 1 else right * alpha)


def _sub(bits: int, overload: str, left: Any, right: Any, alpha: float = 1) -> Tensor:
    return torch.sub(left, right if alpha == 1 else right * alpha)


def _div(bits: int, overload: str, left: Tensor, right: Any, rounding_mode: str | None = None) -> Tensor:
    """By a tensor of the same device: by a number a GPU multiplies with its reciprocal."""
    if not isinstance(right, Tensor) or right.device != left.device:
        right = torch.as_tensor(right, dtype=left.dtype, device=left.device)
    return torch.div(left, right, rounding_mode=rounding_mode)


def _lerp(bits: int, overload: str, start: Tensor, end: Tensor, weight: Any) -> Tensor:
    way = end - start
    way = way * weight
    return start + way


def _addcmul(bits: int, overload: str, values: Tensor, one: Tensor, other: Tensor, value: float = 1) -> Tensor:
    made = one * other
    return values + (made if value == 1 else made * value)


def _addcdiv(bits: int, overload: str, values: Tensor, one: Tensor, other: Tensor, value: float = 1) -> Tensor:
    made = one / other
    return values + (made if value == 1 else made * value)


def _product(bits: int, overload: str, left: Tensor, right: Tensor) -> Tensor:
    return product(left, right, bits)


def _add_product(
    bits: int, overload: str, values: Tensor, left: Tensor, right: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    made = product(left, right, bits)
    made, kept = made if alpha == 1 else made * alpha, values if beta == 1 else values * beta
    return kept + made


def _sum(
    bits: int, overload: str, values: Tensor, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    dims = [] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    return total(values if dtype is None else values.to(dtype), dims, keepdim)


def _mean(
    bits: int, overload: str, values: Tensor, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    found = _sum(bits, overload, values, dims, keepdim, dtype)
    return found / torch.full_like(found, values.numel() // max(1, found.numel()))


def _norm(
    bits: int,
    overload: str,
    values: Tensor,
    order: float = 2,
    dims: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if order != 2:
        raise NotExact(f"a norm of order {order} is not computed exactly")
    wide = values.double()
    return torch.sqrt(_sum(bits, overload, wide * wide, dims, keepdim)).to(dtype or values.dtype)


def _rounded(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Of each value in float64, rounded once."""
    return lambda bits, overload, values: function(values.double()).to(values.dtype)


def _power(bits: int, overload: str, base: Any, exponent: Any) -> Tensor:
    if isinstance(exponent, Tensor):  # frequencies of positions
        wide = exponent.double() * functions.log(torch.as_tensor(base, dtype=torch.float64))
        return functions.exp(wide).to(exponent.dtype)
    if exponent in (1, 2, 3):
        found = base.clone()
        for _ in range(int(exponent) - 1):
            found = found * base
        return found
    raise NotExact(f"a power of {exponent} is not computed exactly")


def _silu(values: Tensor) -> Tensor:
    return values * functions.sigmoid(values)


def _silu_backward(bits: int, overload: str, slope: Tensor, values: Tensor) -> Tensor:
    wide = values.double()
    part = functions.sigmoid(wide)
    inner = 1.0 - part
    inner = wide * inner
    inner = part * (inner + 1.0)
    return (slope.double() * inner).to(slope.dtype)


_PER_SQRT_2PI = float.fromhex("0x1.9884533d43651p-2")  # 1 / sqrt(2 pi)
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_SQRT_2_PER_PI = float.fromhex("0x1.9884533d43651p-1")
_OF_CUBE = 0.044715


def _gelu(bits: int, overload: str, values: Tensor, approximate: str = "none") -> Tensor:
    wide = values.double()
    part, _ = _gelu_part(wide, approximate)
    return (wide * part).to(values.dtype)


def _gelu_backward(bits: int, overload: str, slope: Tensor, values: Tensor, approximate: str = "none") -> Tensor:
    wide = values.double()
    part, rise = _gelu_part(wide, approximate)
    rise = wide * rise
    return (slope.double() * (part + rise)).to(slope.dtype)


def _gelu_part(values: Tensor, approximate: str) -> tuple[Tensor, Tensor]:
    """By what each of the values (float64) is multiplied, and the slope of that."""
    square = values * values
    if approximate == "none":
        part = 0.5 * (functions.erf(values * _SQRT_HALF) + 1.0)
        return part, functions.exp(square * -0.5) * _PER_SQRT_2PI
    inner = square * _OF_CUBE
    inner = (inner + 1.0) * values
    bent = functions.tanh(inner * _SQRT_2_PER_PI)
    rise = square * (3 * _OF_CUBE)
    rise = (rise + 1.0) * _SQRT_2_PER_PI
    flat = bent * bent
    return 0.5 * (bent + 1.0), (0.5 * rise) * (1.0 - flat)


def _layer_norm(
    bits: int,
    overload: str,
    values: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide, dims = values.double(), list(range(-len(shape), 0))
    mean = _mean(bits, overload, wide, dims, True)
    away = wide - mean
    variance = _mean(bits, overload, away * away, dims, True)
    scale = functions.inverse(torch.sqrt(variance + eps))
    found = (away * scale).to(values.dtype)
    found = found if weight is None else found * weight
    found = found if bias is None else found + bias
    return found, mean.to(values.dtype), scale.to(values.dtype)


def _layer_norm_backward(
    bits: int,
    overload: str,
    slope: Tensor,
    values: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    wide, dims = slope.double(), list(range(-len(shape), 0))
    normed = (values.double() - mean.double()) * scale.double()
    of_normed = wide if weight is None else wide * weight.double()
    along = normed * _mean(bits, overload, of_normed * normed, dims, True)
    of_values = (of_normed - _mean(bits, overload, of_normed, dims, True)) - along
    others = list(range(slope.dim() - len(shape)))
    found = (
        of_values * scale.double(),
        total(wide * normed, others) if others else wide * normed,
        total(wide, others) if others else wide,
    )
    return tuple(one.to(slope.dtype) if asked else None for one, asked in zip(found, wanted, strict=True))  # type: ignore[return-value]


def _topk(
    bits: int, overload: str, values: Tensor, number: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """Of equal values the first."""
    found, places = torch.sort(values, dim=dim, descending=largest, stable=True)
    return found.narrow(dim, 0, number), places.narrow(dim, 0, number)


def _tanh_backward(bits: int, overload: str, slope: Tensor, output: Tensor) -> Tensor:
    square = output * output
    return slope * (1 - square)


def _sigmoid_backward(bits: int, overload: str, slope: Tensor, output: Tensor) -> Tensor:
    part = (1 - output) * output
    return slope * part


def _softmax64(values: Tensor, dim: int) -> Tensor:
    """Of float64. Where all of a line is -inf it is nan."""
    raised = functions.exp(values - values.amax(dim, keepdim=True))
    raised = torch.where(values == -math.inf, 0.0, raised)
    return raised / total(raised, [dim], keepdim=True)


def _softmax(bits: int, overload: str, values: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _softmax64(values.double(), dim).to(values.dtype)


def _softmax_backward(bits: int, overload: str, slope: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    both = slope.double() * output.double()
    along = output.double() * total(both, [dim], keepdim=True)
    return (both - along).to(dtype)


def _log_softmax(bits: int, overload: str, values: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = values.double()
    lowered = wide - wide.amax(dim, keepdim=True)
    return (lowered - functions.log(total(functions.exp(lowered), [dim], keepdim=True))).to(values.dtype)


def _log_softmax_backward(
    bits: int, overload: str, slope: Tensor, output: Tensor, dim: int, dtype: torch.dtype
) -> Tensor:
    wide = slope.double()
    along = functions.exp(output.double()) * total(wide, [dim], keepdim=True)
    return (wide - along).to(dtype)


_NONE, _MEAN = 0, 1  # reductions


def _nll(
    bits: int, overload: str, values: Tensor, targets: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor]:
    _refuse_weight(weight)
    counts = targets != ignored
    picked = values.gather(-1, torch.where(counts, targets, 0).unsqueeze(-1)).squeeze(-1)
    found, number = torch.where(counts, -picked, 0.0), counts.sum().to(values.dtype)
    if reduction == _NONE:
        return found, torch.zeros_like(number)
    whole = total(found, [])
    return (whole / number if reduction == _MEAN else whole), number


def _nll_backward(
    bits: int,
    overload: str,
    slope: Tensor,
    values: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    number: Tensor,
) -> Tensor:
    _refuse_weight(weight)
    each = -slope / number if reduction == _MEAN else -slope
    each = torch.where(targets != ignored, each, 0.0)
    place = torch.where(targets != ignored, targets, 0).unsqueeze(-1)
    return torch.zeros_like(values).scatter(-1, place, each.unsqueeze(-1))


def _refuse_weight(weight: Tensor | None) -> None:
    if weight is not None:
        raise NotExact("a loss with weights of classes is not computed exactly")


def _embedding_backward(
    bits: int, overload: str, slope: Tensor, rows: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor:
    if padding >= 0 or by_frequency:
        raise NotExact("an embedding with padding is not computed exactly")
    return scattered(slope.flatten(0, -2), rows.flatten(), count)


def _index_add(
    bits: int, overload: str, values: Tensor, dim: int, rows: Tensor, added: Tensor, alpha: float = 1
) -> Tensor:
    if dim != 0 or values.dim() != 2 or alpha != 1:
        raise NotExact("index_add of other than rows is not computed exactly")
    return values + scattered(added, rows, len(values))


def _index_put(
    bits: int,
    overload: str,
    values: Tensor,
    indices: Sequence[Tensor | None],
    added: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    """As the gradient of `values[indices]`: what has the same place is added up."""
    places = [one for one in indices if one is not None]
    if not accumulate or len(places) < len(indices) or any(one.dtype != torch.int64 for one in places):
        raise NotExact("index_put of other than sums at whole numbers is not computed exactly")
    sizes = values.shape[: len(places)]
    rows = torch.zeros_like(places[0])
    for size, place in zip(sizes, places, strict=True):
        rows = rows * size + torch.where(place < 0, place + size, place)
    wide = added.expand(*rows.shape, *values.shape[len(places) :]).reshape(rows.numel(), -1)
    return values + scattered(wide, rows.flatten(), sizes.numel()).view(values.shape)


def _scatter(bits: int, overload: str, values: Tensor, dim: int, places: Tensor, given: Any, **reduced: Any) -> Tensor:
    often = torch.zeros(values.shape, dtype=torch.int64, device=values.device)
    often = often.scatter_add(dim, places, torch.ones_like(places))
    if reduced or (often > 1).any():
        raise NotExact("scatter of several values to one place is not computed exactly")
    return values.scatter(dim, places, given)


def _attention(
    bits: int,
    overload: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As torch's flash attention on a CPU: the output, and what its backward pass does not need here."""
    if dropout:
        raise NotExact("dropout is not computed exactly")
    part = _parts(bits, query, key, causal, attn_mask, scale)
    return product(part, value, bits), query.new_zeros(query.shape[:-1])


def _attention_backward(
    bits: int,
    overload: str,
    slope: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    dropout: float,
    causal: bool,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    part, factor = _parts(bits, query, key, causal, attn_mask, scale), _factor(query, scale)
    of_part = product(slope, value.transpose(-1, -2), bits)
    of_score = _softmax_backward(bits, overload, of_part, part, -1, query.dtype)
    of_score = of_score * factor
    return (
        product(of_score, key, bits),
        product(of_score.transpose(-1, -2), query, bits),
        product(part.transpose(-1, -2), slope, bits),
    )


def _parts(bits: int, query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = product(query, key.transpose(-1, -2), bits)
    scores = scores * _factor(query, scale)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(seen, scores, -math.inf)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    return _softmax64(scores.double(), -1).to(query.dtype)


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale  # a square root is rounded once everywhere


def _adamw(
    bits: int,
    overload: str,
    parameters: Sequence[Tensor],
    slopes: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    most: Sequence[Tensor],
    counts: Sequence[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """AdamW (arXiv 1711.05101), its `counts` one higher already. Scalars are float64, rounded to float32 where they
    meet tensors."""
    for values, slope, mean, square, count in zip(parameters, slopes, means, squares, counts, strict=True):
        steps = int(count)
        values.mul_(1 - lr * weight_decay)
        mean.mul_(beta1).add_(slope * (1 - beta1))
        square.mul_(beta2).add_((slope * slope) * (1 - beta2))
        rate = lr / (1 - functions.power(beta1, steps))
        size = torch.sqrt(square) / torch.full_like(square, math.sqrt(1 - functions.power(beta2, steps)))
        way = mean / (size + eps)
        values.sub_(way * rate)


def _each(function: Callable[[Tensor, Any], Any]) -> Callable[..., None]:
    def change(bits: int, overload: str, tensors: Sequence[Tensor], by: Any) -> None:
        for at, tensor in enumerate(tensors):
            function(tensor, by[at] if isinstance(by, (list, tuple)) else by)

    return change


def _each_norm(
    bits: int, overload: str, tensors: Sequence[Tensor], order: float = 2, dtype: Any = None
) -> list[Tensor]:
    return [_norm(bits, overload, one, order, dtype=dtype) for one in tensors]


_COMPUTED: Mapping[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "div": _div,
    "rsub": lambda bits, overload, left, right, alpha=1: _sub(bits, overload, right, left),
    "lerp": _lerp, "addcmul": _addcmul, "addcdiv": _addcdiv,
    "mm": _product, "bmm": _product, "addmm": _add_product, "baddbmm": _add_product,
    "sum": _sum, "mean": _mean, "linalg_vector_norm": _norm,
    "exp": _rounded(functions.exp), "log": _rounded(functions.log), "sin": _rounded(functions.sin),
    "cos": _rounded(functions.cos), "tanh": _rounded(functions.tanh), "sigmoid": _rounded(functions.sigmoid),
    "gelu": _gelu, "gelu_backward": _gelu_backward, "topk": _topk, "erf": _rounded(functions.erf),
    "native_layer_norm": _layer_norm, "native_layer_norm_backward": _layer_norm_backward,
    "silu": _rounded(_silu), "rsqrt": _rounded(lambda values: functions.inverse(torch.sqrt(values))),
    "reciprocal": _rounded(functions.inverse), "pow": _power, "silu_backward": _silu_backward,
    "tanh_backward": _tanh_backward, "sigmoid_backward": _sigmoid_backward,
    "_softmax": _softmax, "_softmax_backward_data": _softmax_backward,
    "_log_softmax": _log_softmax, "_log_softmax_backward_data": _log_softmax_backward,
    "nll_loss_forward": _nll, "nll_loss_backward": _nll_backward,
    "embedding_dense_backward": _embedding_backward, "index_add": _index_add,
    "index_put": _index_put, "_index_put_impl": _index_put, "scatter": _scatter,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_fused_adamw_": _adamw, "_foreach_norm": _each_norm,
    "_foreach_add_": _each(lambda one, by: one.add_(by)), "_foreach_mul_": _each(lambda one, by: one.mul_(by)),
}  # fmt: skip
