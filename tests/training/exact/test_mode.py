"""What torch computes under the exact mode: near what it computes elsewhere, and the same bits everywhere."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dlx.training.exact.mode import Exact, NotExact
from tests.patience import patient
from tests.training.exact.trained import prepared, trained

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "products": lambda one, other: one @ other.mT,
    "products and sums": lambda one, other: torch.addmm(one, one, other.mT @ other, beta=0.5, alpha=2.0),
    "batches": lambda one, other: torch.bmm(one.expand(3, 6, 6), other.expand(3, 6, 6)),
    "elementwise": lambda one, other: (one * other - 3 * one) / (other * other + 1),
    "means": lambda one, other: (other - one.mean(-1, keepdim=True)) * torch.rsqrt(one.pow(2).mean(-1, True) + 1e-6),
    "softmax": lambda one, other: torch.softmax(one, -1) * other,
    "silu": lambda one, other: functional.silu(one) * other,
    "functions": lambda one, other: (
        torch.exp(one) + torch.sin(other) + torch.cos(one) * torch.tanh(other) * torch.sigmoid(one)
    ),
    "loss": lambda one, other: functional.cross_entropy(one @ other, torch.tensor([1, 2, 0, 5, -100, 3])),
    "embedding": lambda one, other: functional.embedding(torch.tensor([[1, 1, 4], [0, 5, 1]]), one) @ other,
    "attention": lambda one, other: functional.scaled_dot_product_attention(
        one.view(1, 2, 3, 6), other.view(1, 2, 3, 6), one.view(1, 2, 3, 6), is_causal=True
    ),
    "attention with a mask": lambda one, other: functional.scaled_dot_product_attention(
        one.view(1, 2, 3, 6), other.view(1, 2, 3, 6), one.view(1, 2, 3, 6), torch.eye(3, dtype=torch.bool)
    ),
    "gelu": lambda one, other: functional.gelu(one) * functional.gelu(other, approximate="tanh"),
    "layer norm": lambda one, other: functional.layer_norm(one, (6,), other[0], other[1], 1e-5) * other,
    "the largest": lambda one, other: (one * other).topk(3, -1).values,
    "rows by an index": lambda one, other: one[torch.tensor([1, 1, 4]), torch.tensor([0, 0, 2])] * other[0, :3],
    "norms": lambda one, other: torch.stack([one.norm(), torch.linalg.vector_norm(other)]),
    "between": lambda one, other: one.lerp(other, 0.25) + torch.addcmul(one, one, other, value=0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_are_near_those_of_float64(name: str) -> None:
    numbers = torch.Generator().manual_seed(1)
    given = [torch.randn(6, 6, generator=numbers) for _ in range(2)]
    found = []
    for mode, of_type in ((Exact(21), torch.float32), (None, torch.float64)):
        inputs = [one.to(of_type).requires_grad_() for one in given]
        with mode or torch.enable_grad():
            made = FUNCTIONS[name](*inputs)
            gradients = torch.autograd.grad((made * made).sum(), inputs)
        found.append([made.detach(), *gradients])
    for exact, true in zip(*found, strict=True):
        assert exact.dtype == torch.float32 and float((exact - true).abs().max()) <= 2e-6 * float(true.abs().max())


def test_what_is_not_computed_exactly_is_refused_by_name() -> None:
    with Exact(21), pytest.raises(NotExact, match="linalg_inv"):
        torch.linalg.inv(torch.eye(2))
    with Exact(21), pytest.raises(NotExact, match=r"a power of 2\.5"):
        torch.ones(2) ** 2.5
    with Exact(21), pytest.raises(NotExact, match="rand makes"):
        torch.rand(3)
    with Exact(21), pytest.raises(NotExact, match="several values to one place"):
        torch.zeros(3).scatter(0, torch.tensor([1, 1]), torch.ones(2))
    with Exact(21):
        assert torch.arange(5).sum() == 10, "whole numbers are exact anyway"


@pytest.mark.parametrize("bits", [7, 21])
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_training_has_the_same_bits_with_other_instructions_and_threads(
    optimiser: str, bits: int, tmp_path: Path
) -> None:
    prepared(tmp_path)
    here, loss = trained(tmp_path, optimiser, bits)
    plain, usual = trained(tmp_path, optimiser, 0)
    assert here != plain and loss == pytest.approx(usual, rel=0.02 if bits == 7 else 1e-5)
    command = [sys.executable, "-m", "tests.training.exact.trained", str(tmp_path), optimiser, str(bits), "2"]
    others = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
    made = subprocess.run(
        command, env=os.environ | others, capture_output=True, text=True, timeout=patient(60), check=True
    )
    assert json.loads(made.stdout) == [here, loss]


def test_an_operator_that_is_not_torchs_own_is_refused() -> None:
    """What it does inside is not seen."""

    @torch.library.custom_op("dlx_tests::doubled", mutates_args=())
    def doubled(values: Tensor) -> Tensor:
        return values * 2

    assert doubled(torch.ones(2)).tolist() == [2.0, 2.0]
    with Exact(21), pytest.raises(NotExact, match="dlx_tests::doubled is not computed exactly"):
        doubled(torch.ones(2))
