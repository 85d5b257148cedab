"""How fast this machine trains a run's model: a few real steps of one of its layers."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from dlx.training.balance.flops import flops, optimiser_flops
from dlx.training.balance.simulated import shortened
from dlx.training.inner.arithmetic import arithmetic
from dlx.training.inner.optimisers import Optimisers
from dlx.training.models.placement import Placement
from dlx.training.models.stages import StageModel
from dlx.training.recipe.recipe import Recipe

_SECONDS = 2.0  # at least, of each


class Measured(NamedTuple):
    """Operations per second that count for the training: none of what is computed again."""

    flops: float  # forward and backward, in the run's precision
    float32: float  # the optimisers' steps; the same where they have no matrix products


def measured(recipe: Recipe, placement: Placement) -> Measured:
    """Of a layer and one micro-batch where `placement` (settled) says, after a first step that does not count."""
    torch.set_num_threads(placement.threads)
    device = placement.device
    recipe, stage = shortened(recipe, 0, 1)
    with arithmetic(recipe):
        model = StageModel(recipe, stage, placement)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    optimisers = Optimisers(model.trained(), recipe)
    samples, length, _ = model.activation_shape
    ids = torch.randint(int(recipe.model.config["vocab_size"]), (samples, length), device=device)

    def micro_batch() -> None:
        begins = ids == 0 if model.has_rows else None
        output = model(ids, ids, begins) if model.is_last else model(ids, begins=begins)
        output.backward(None if model.is_last else torch.ones_like(output))

    one_token = flops(recipe).stage(1, first=True, last=model.is_last)
    with arithmetic(recipe):
        trained = samples * length * one_token / _seconds(micro_batch, device)
        stepped = optimiser_flops(recipe, stage)
        return Measured(trained, stepped / _seconds(lambda: optimisers.step(1.0), device) if stepped else trained)


def _seconds(work: Callable[[], None], device: str) -> float:
    """Of one call."""
    synchronise = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    work()
    synchronise()
    calls, began = 0, time.monotonic()
    while not calls or time.monotonic() - began < _SECONDS:
        work()
        synchronise()
        calls += 1
    return (time.monotonic() - began) / calls
