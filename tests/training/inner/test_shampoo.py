from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dlx.training.data.shards import Dataset
from dlx.training.inner import shampoo
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.optimisers import Optimisers
from dlx.training.inner.shampoo import Shampoo, inverse_root
from dlx.training.models import weights
from dlx.training.models.stages import initialise
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner
from tests.training.inner.stepping import steps

INNER = Inner(optimiser="shampoo", matrix_lr=0.1, matrix_momentum=0.9, weight_decay=0.2)


def _numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("spectrum", ["wide", "one direction", "flat", "tiny"])
@pytest.mark.parametrize("size", [1, 8, 96])
def test_roots_are_those_of_the_damped_covariance(spectrum: str, size: int) -> None:
    values = {
        "wide": torch.logspace(0, -6, size),
        "one direction": torch.tensor([1.0] + [1e-9] * (size - 1)),
        "flat": torch.ones(size),
        "tiny": torch.full((size,), 1e-10),
    }[spectrum]
    vectors = torch.linalg.qr(torch.randn(2, size, size, generator=_numbers(1)))[0]
    covariances = (vectors * values) @ vectors.mT
    damping = shampoo._DAMPING * values.square().mean().sqrt()
    exact = (vectors.double() * (values + damping).double() ** -0.5) @ vectors.double().mT
    assert (inverse_root(covariances) - exact).norm() < 1e-3 * exact.norm()


def test_zeros_have_finite_roots() -> None:
    assert inverse_root(torch.zeros(2, 4, 4)).isfinite().all()


def test_the_step_is_the_written_one(tiny_run: Callable[..., Manifest], dataset: Dataset) -> None:
    """Seven steps against the rule written out in float64, with eigenvectors: roots that stay for five steps, bounded
    updates, decoupled decay, one schedule."""
    inner = Inner(optimiser="shampoo", matrix_lr=3e-2, matrix_momentum=0.9, weight_decay=0.2, clip=1e6, warmup=0.1)
    manifest = tiny_run([(0, 3)], inner=inner)
    loop = InnerLoop(manifest, 0, dataset)
    loop.load_weights(initialise(manifest, 0))
    name = "model.layers.1.mlp.up_proj.weight"
    rows, columns = loop.shapes[name]
    momentum = torch.zeros(rows, columns, dtype=torch.float64)
    left, right, roots = torch.empty(0), torch.empty(0), (torch.empty(0), torch.empty(0))
    for index in range(7):
        before = loop.weights()[name].double()  # a copy
        loop.step(index, 40, loop.positions(index), None, None)
        reached = loop.optimiser_state()[f"shampoo.momentum.{name}"].double()
        gradient = (reached - 0.9 * momentum) / 0.1
        momentum = reached
        if index == 0:
            size = gradient.square().mean().sqrt()
            left, right = (size * torch.eye(one, dtype=torch.float64) for one in (rows, columns))
        if index % 5 == 0:
            roots = _root(left), _root(right)
        whitened = gradient @ roots[1], roots[0] @ gradient
        left = 0.9 * left + 0.1 * whitened[0] @ whitened[0].T / columns
        right = 0.9 * right + 0.1 * whitened[1].T @ whitened[1] / rows
        update = roots[0] @ momentum @ roots[1]
        update /= max(1.0, update.square().mean().sqrt().item())
        rate = 3e-2 * min(1.0, (index + 1) / 4) if index < 4 else 0.0
        if index < 4:  # later the cosine has its own test
            expected = before * (1 - rate * 0.2) - rate * update
            assert torch.allclose(loop.weights()[name].double(), expected, atol=1e-5)
        assert torch.allclose(loop.optimiser_state()[f"shampoo.rows.{name}"][0].double(), left, rtol=1e-2, atol=1e-6)
        assert torch.allclose(
            loop.optimiser_state()[f"shampoo.columns.{name}"][0].double(), right, rtol=1e-2, atol=1e-6
        )


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    return (vectors * (values + shampoo._DAMPING * values.square().mean().sqrt()) ** -0.5) @ vectors.T


def test_whitened_noise_moves_all_directions_alike() -> None:
    """Gradients that are noise of very different sizes in different directions: after a while an update has about the
    same size in each."""
    numbers = _numbers(2)
    sides = [torch.linalg.qr(torch.randn(12, 12, generator=numbers))[0] * torch.logspace(0, -2, 12) for _ in range(2)]
    parameter = torch.zeros(12, 12)
    one = Shampoo([parameter], lr=1.0, momentum=0.0, weight_decay=0.0)
    moved = []
    for _ in range(200):
        before = parameter.clone()
        parameter.grad = sides[0] @ torch.randn(12, 12, generator=numbers) @ sides[1].T
        one.step()
        moved.append(parameter - before)
    last = torch.stack(moved[100:])
    values = torch.linalg.svdvals(last.flatten(1))
    assert last.square().mean().sqrt() == pytest.approx(1.0, rel=0.3), "and that of its noise"
    assert values[0] < 10 * values[-1], "where the gradients' were 10,000 times apart"


def test_a_gradient_that_grows_a_thousandfold_moves_no_more_than_the_rate_allows() -> None:
    numbers, parameter = _numbers(3), torch.zeros(6, 8)
    one = Shampoo([parameter], lr=0.01, momentum=0.9, weight_decay=0.0)
    for step in range(20):
        before = parameter.clone()
        parameter.grad = torch.randn(6, 8, generator=numbers) * (1000 if step >= 12 else 1)
        one.step()
        assert (parameter - before).square().mean().sqrt() <= 0.01 * 1.0001


def test_a_segment_begins_as_from_its_committed_state(tiny_run: Callable[..., Manifest], dataset: Dataset) -> None:
    """Whoever replays it has weights and state alone: the roots between are not in them."""
    manifest = tiny_run([(0, 3)], inner=INNER)
    loop = InnerLoop(manifest, 0, dataset)
    loop.load_weights(initialise(manifest, 0))
    steps(loop, 0, 3)
    kept = {name: one.clone() for name, one in loop.weights().items()}
    state = {name: one.clone() for name, one in loop.optimiser_state().items()}
    replay = InnerLoop(manifest, 0, dataset)
    replay.load_weights(kept)
    replay.load_optimiser_state(state)
    loop.begin_segment()
    for one in (loop, replay):
        steps(one, 3, 7)
    assert weights.weights_hash(loop.weights()) == weights.weights_hash(replay.weights())
    assert weights.weights_hash(loop.optimiser_state()) == weights.weights_hash(replay.optimiser_state())


def _stepped(matrix: Tensor, gradient: Tensor) -> Tensor:
    """Alone, as a matrix of its own."""
    alone = matrix.clone()
    alone.grad = gradient.clone()
    Shampoo([alone], lr=0.1, momentum=0.9, weight_decay=0.2).step()
    return alone


@pytest.mark.parametrize(
    ("name", "shape", "places"),
    [
        ("transformer.h.0.attn.c_attn.weight", (8, 24), [(slice(None), slice(at, at + 8)) for at in (0, 8, 16)]),
        (
            "gpt_neox.layers.0.attention.query_key_value.weight",  # q, k and v of one head, then those of the other
            (24, 8),
            [([*range(at, at + 4), *range(12 + at, 16 + at)],) for at in (0, 4, 8)],
        ),
        (
            "model.layers.0.mlp.experts.gate_up_proj",
            (3, 12, 8),
            [(expert, rows) for expert in range(3) for rows in (slice(0, 6), slice(6, 12))],
        ),
        ("model.layers.0.mlp.experts.down_proj", (3, 8, 6), [(expert,) for expert in range(3)]),
    ],
)
def test_each_of_several_matrices_in_one_tensor_is_whitened_alone(
    tiny_run: Callable[..., Manifest], name: str, shape: tuple[int, ...], places: list[tuple[object, ...]]
) -> None:
    numbers = _numbers(4)
    before, gradient = torch.randn(shape, generator=numbers), torch.randn(shape, generator=numbers)
    after = before.clone()
    after.grad = gradient
    Optimisers({name: after}, tiny_run([(0, 3)], inner=INNER)).step(1.0)  # two heads
    for place in places:
        expected = _stepped(before[place], gradient[place])  # type: ignore[index]
        assert torch.allclose(after[place], expected, atol=1e-6)  # type: ignore[index]


@pytest.mark.parametrize("shape", [(48, 12), (12, 48), (12, 12)])
def test_both_covariances_stay_of_one_size_for_thousands_of_steps(shape: tuple[int, int]) -> None:
    """Their product alone follows from the gradients: unbalanced, one would vanish and the other overflow."""
    numbers, parameter = _numbers(7), torch.zeros(shape)
    one = Shampoo([parameter], lr=0.0, momentum=0.9, weight_decay=0.0)
    for _ in range(4000):
        parameter.grad = torch.randn(shape, generator=numbers) * 1e-3
        one.step()
    for side in ("rows", "columns"):
        mean = one.state[parameter][side].diagonal(dim1=-2, dim2=-1).mean().item()
        assert 0.5e-3 < mean < 2e-3, side


@pytest.mark.parametrize("without", [range(0, 1), range(0, 7), range(40, 300)])
def test_an_expert_without_tokens_waits_and_then_moves_like_the_others(without: range) -> None:
    numbers, parameter = _numbers(5), torch.ones(2, 8, 8)
    one = Shampoo([parameter], lr=0.1, momentum=0.9, weight_decay=0.0)
    moved = []
    for step in range(without.stop + 20):
        before = parameter.clone()
        parameter.grad = torch.randn(2, 8, 8, generator=numbers)
        if step in without:
            parameter.grad[1] = 0
        one.step()
        moved.append((parameter - before).square().mean((1, 2)).sqrt())
    assert parameter.isfinite().all()
    if without.start == 0:
        assert all(moved[step][1] == 0 for step in without)
    elif len(without) > 100:
        assert moved[without.stop - 1][1] < 1e-6, "its momentum is over"
    for fed, waited in moved[-10:]:
        assert 0.3 * fed < waited < 3 * fed
