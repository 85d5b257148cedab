"""How far a step of the inner optimisers moves, against what the policy allows."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from dlx.training.inner.optimisers import Optimisers
from dlx.training.models.stages import initialise
from dlx.training.outer.reach import reach_of_a_step
from dlx.training.recipe.draft import Draft
from dlx.training.recipe.recipe import Inner
from tests.training.conftest import tiny_draft

STEPS = 40
Gradient = Callable[[Tensor, int], Tensor]
OFTEN: dict[str, Gradient] = {
    "noise": lambda one, step: torch.randn_like(one),
    "always the same": lambda one, step: torch.ones_like(one),
    "heavy tails": lambda one, step: torch.randn_like(one) ** 5,
    "one row of each": lambda one, step: torch.zeros_like(one).index_fill_(0, torch.tensor([step % len(one)]), 1.0),
    "now and then": lambda one, step: torch.randn_like(one) * (step % 10 == 9),
    "hundredfold": lambda one, step: torch.randn_like(one) * 100 ** (step % 3),
}


def moves(draft: Draft, gradient: Gradient) -> Iterator[float]:
    """How far each step goes, from weights that hardly decay."""
    torch.manual_seed(1)
    weights = {name: torch.zeros_like(one).requires_grad_() for name, one in initialise(draft, 0).items()}
    optimisers = Optimisers(weights, draft)
    for step in range(STEPS):
        if step % 20 == 0:
            optimisers.begin_segment()
        before = {name: one.detach().clone() for name, one in weights.items()}
        for one in weights.values():
            one.grad = gradient(one.detach(), step)
        optimisers.step(1.0)
        yield sum(float((weights[name] - one).detach().square().sum()) for name, one in before.items()) ** 0.5


@pytest.mark.parametrize("optimiser", ["adamw", "muon", "shampoo"])
@pytest.mark.parametrize("gradient", OFTEN.values(), ids=OFTEN)
def test_no_step_of_an_honest_optimiser_goes_further(optimiser: str, gradient: Gradient) -> None:
    draft = tiny_draft([(0, 3)], inner=Inner(optimiser=optimiser, lr=1e-3, matrix_lr=0.01))
    found = list(moves(draft, gradient))
    assert 0 < max(found) <= 1.00001 * reach_of_a_step(draft, 0)


def test_the_reach_follows_the_rates_and_the_stage() -> None:
    def reach(**inner: float) -> float:
        return reach_of_a_step(tiny_draft([(0, 1), (1, 3)], inner=Inner(optimiser="muon", **inner)), 1)

    usual = reach(lr=1e-3, matrix_lr=0.01)
    assert reach(lr=2e-3, matrix_lr=0.02) == pytest.approx(2 * usual)
    adamw = reach_of_a_step(tiny_draft([(0, 1), (1, 3)], inner=Inner(optimiser="adamw", lr=1e-3)), 1)
    assert adamw == pytest.approx(
        1e-3 * sum(one.numel() for one in initialise(tiny_draft([(0, 1), (1, 3)]), 1).values()) ** 0.5
    )
