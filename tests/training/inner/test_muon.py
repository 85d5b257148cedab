from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dlx.training.data.shards import Dataset
from dlx.training.inner import muon
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.muon import Muon, orthogonal
from dlx.training.inner.optimisers import Optimisers
from dlx.training.models.stages import initialise
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner


@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16), (1, 8), (8, 1)])
def test_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    result = orthogonal(matrix)
    assert result.shape == matrix.shape and result.dtype == torch.float32
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.5 and values.max() < 1.3
    # The same singular vectors: the product with the factors' transpose is symmetric and positive.
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.T @ result @ right.T
    assert torch.allclose(inside, torch.diag(inside.diagonal()), atol=1e-3)
    assert (inside.diagonal() > 0).all()


def test_a_matrix_of_zeros_and_of_tiny_values_stays_finite() -> None:
    assert not orthogonal(torch.zeros(4, 8)).any()
    assert orthogonal(torch.full((4, 8), 1e-30)).isfinite().all()


def test_the_transpose_takes_the_same_step() -> None:
    matrix = torch.randn(12, 30, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(orthogonal(matrix.T), orthogonal(matrix).T, atol=1e-5)


def test_small_matrices_of_one_shape_step_together_as_they_would_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(muon._TOGETHER, "cpu", 3 * 8 * 12)
    numbers = torch.Generator().manual_seed(4)
    shapes = [(8, 12)] * 5 + [(12, 8), (40, 50)]
    before, slopes = ([torch.randn(shape, generator=numbers) for shape in shapes] for _ in range(2))
    together = [one.clone() for one in before]
    for one, slope in zip(together, slopes, strict=True):
        one.grad = slope
    calls = list[int]()
    monkeypatch.setattr(muon, "orthogonal", lambda one: [calls.append(one.dim()), orthogonal(one)][1])
    Muon(together, lr=0.1, momentum=0.9, weight_decay=0.2).step()
    assert sorted(calls) == [2, 2, 3, 3], "three and two of the first shape, and the others alone"
    alone = [_stepped(*one) for one in zip(before, slopes, strict=True)]
    assert all(torch.allclose(*both, atol=1e-6) for both in zip(together, alone, strict=True))


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest(
    tiny_run: Callable[..., Manifest], dataset: Dataset
) -> None:
    manifest = tiny_run([(0, 3)], inner=Inner(optimiser="muon"))
    loop = InnerLoop(manifest, 0, dataset)
    matrices = {name for name in loop.shapes if name.startswith("model.layers.") and "norm" not in name}
    others = loop.shapes.keys() - matrices
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} < others and len(matrices) == 3 * 7
    assert loop.optimiser_state().keys() == (
        {f"muon.momentum.{name}" for name in matrices}
        | {f"{moment}.{name}" for moment in ("exp_avg", "exp_avg_sq") for name in others}
        | {"step"}
    )


def test_the_step_is_the_written_one(tiny_run: Callable[..., Manifest], dataset: Dataset) -> None:
    """Two steps against the rule written out in float64: momentum, Nesterov, decoupled decay, one schedule for both."""
    inner = Inner(optimiser="muon", matrix_lr=3e-2, matrix_momentum=0.9, weight_decay=0.2, clip=1e6, warmup=0.1)
    manifest = tiny_run([(0, 3)], inner=inner)
    loop = InnerLoop(manifest, 0, dataset)
    loop.load_weights(initialise(manifest, 0))
    name = "model.layers.1.mlp.up_proj.weight"
    momentum = torch.zeros(loop.shapes[name], dtype=torch.float64)
    for index in range(2):
        before = loop.weights()[name].double()  # a copy
        loop.step(index, 40, loop.positions(index), None, None)
        reached = loop.optimiser_state()[f"muon.momentum.{name}"].double()
        gradient = (reached - 0.9 * momentum) / 0.1
        momentum = reached
        rate = 3e-2 * (index + 1) / 4
        direction = orthogonal((0.1 * gradient + 0.9 * momentum).float()).double()
        expected = before * (1 - rate * 0.2) - rate * 0.2 * 24**0.5 * direction
        assert torch.allclose(loop.weights()[name].double(), expected, atol=1e-6)
        change = expected - before * (1 - rate * 0.2)
        assert change.square().mean().sqrt().item() == pytest.approx(0.2 * rate, rel=0.25)  # as large as AdamW's


def _stepped(matrix: Tensor, gradient: Tensor) -> Tensor:
    """Alone, as a matrix of its own."""
    alone = matrix.clone()
    alone.grad = gradient.clone()
    Muon([alone], lr=0.1, momentum=0.9, weight_decay=0.2).step()
    return alone


def _fused(name: str, shape: tuple[int, ...], manifest: Manifest) -> tuple[Tensor, Tensor, Tensor]:
    """A parameter before, its gradient, and the parameter after one step at a tenth of the rate."""
    numbers = torch.Generator().manual_seed(3)
    before, gradient = torch.randn(shape, generator=numbers), torch.randn(shape, generator=numbers)
    after = before.clone()
    after.grad = gradient
    Optimisers({name: after}, manifest).step(1.0)
    return before, gradient, after


def test_fused_queries_keys_and_values_are_three_matrices(tiny_run: Callable[..., Manifest]) -> None:
    """And so are gate and up of each expert; the rest of the experts are one each."""
    inner = Inner(optimiser="muon", matrix_lr=0.1, matrix_momentum=0.9, weight_decay=0.2)
    manifest = tiny_run([(0, 3)], inner=inner)  # two heads

    before, gradient, after = _fused("transformer.h.0.attn.c_attn.weight", (8, 24), manifest)
    for columns in (slice(0, 8), slice(8, 16), slice(16, 24)):
        assert torch.allclose(after[:, columns], _stepped(before[:, columns], gradient[:, columns]), atol=1e-6)

    before, gradient, after = _fused("gpt_neox.layers.0.attention.query_key_value.weight", (24, 8), manifest)
    for first in (0, 4, 8):  # q, k and v of one head, then those of the other
        rows = [*range(first, first + 4), *range(12 + first, 16 + first)]
        assert torch.allclose(after[rows], _stepped(before[rows], gradient[rows]), atol=1e-6)

    before, gradient, after = _fused("model.layers.0.mlp.experts.gate_up_proj", (3, 12, 8), manifest)
    for expert in range(3):
        for rows in (slice(0, 6), slice(6, 12)):
            assert torch.allclose(
                after[expert, rows], _stepped(before[expert, rows], gradient[expert, rows]), atol=1e-6
            )

    before, gradient, after = _fused("model.layers.0.mlp.experts.down_proj", (3, 8, 6), manifest)
    for expert in range(3):
        assert torch.allclose(after[expert], _stepped(before[expert], gradient[expert]), atol=1e-6)


@pytest.mark.parametrize("optimiser", ["adamw", "muon", "shampoo"])
def test_only_matrices_decay(tiny_run: Callable[..., Manifest], optimiser: str) -> None:
    """Without gradients of any size a step is the decay alone."""
    inner = Inner(optimiser=optimiser, lr=0.1, matrix_lr=0.1, weight_decay=0.2)  # type: ignore[arg-type]
    shapes = {"lm_head.weight": (4, 2), "model.layers.0.self_attn.q_proj.weight": (4, 2)}
    shapes |= {
        "model.layers.0.self_attn.q_proj.bias": (4,),
        "model.norm.weight": (2,),
        "model.embed_tokens.weight": (4, 2),
    }
    values = {name: torch.ones(shape) for name, shape in shapes.items()}
    for value in values.values():
        value.grad = torch.zeros_like(value)
    Optimisers(values, tiny_run([(0, 3)], inner=inner)).step(0.5)
    decayed = {name for name, value in values.items() if value.max() < 1}
    assert decayed == {"lm_head.weight", "model.layers.0.self_attn.q_proj.weight"}
    assert all(torch.allclose(values[name], torch.tensor(0.99)) for name in decayed)
