"""How the inner learning rates change over the run: a factor that AdamW's rate and the matrices' are multiplied by.

Indexed by the run's own inner steps, not by rounds, so that it holds when a round's number of inner steps changes.
"""

import math

import torch

from dlx.training.exact import functions
from dlx.training.recipe.recipe import Inner


def factor(inner: Inner, index: int, total_steps: int) -> float:
    """The factor at the run's inner step `index` of `total_steps`; past the end it stays where it ended.

    A linear warm-up from 1/n to 1 over the first n steps. Then `cosine`, down to `final` at the end, or `wsd` (warm-up,
    stable, decay): 1 until the last fraction `decay` of the run, then a straight line down to `final`.

    Examples:
        >>> cosine = Inner(schedule="cosine", warmup=0.05, final=0.1)
        >>> [round(factor(cosine, index, 100), 3) for index in (0, 4, 52, 100, 150)]
        [0.2, 1.0, 0.557, 0.1, 0.1]
        >>> wsd = Inner(schedule="wsd", warmup=0.05, decay=0.2, final=0.1)
        >>> [round(factor(wsd, index, 100), 3) for index in (0, 50, 80, 90, 100)]
        [0.2, 1.0, 1.0, 0.55, 0.1]
    """
    warmup = int(inner.warmup * total_steps)
    if index < warmup:
        return (index + 1) / warmup
    if inner.schedule == "cosine":
        done = _done(index, warmup, total_steps)
        turned = functions.cos(torch.tensor(math.pi * done, dtype=torch.float64)).item()  # the same on every machine
        return inner.final + (1 - inner.final) * 0.5 * (1 + turned)
    decay_from = max(warmup, total_steps - int(inner.decay * total_steps))
    return 1 - (1 - inner.final) * _done(index, decay_from, total_steps)


def _done(index: int, low: int, high: int) -> float:
    """Which part of the way from step `low` to step `high` lies behind, 0 to 1."""
    return min(1.0, max(0, index - low) / max(1, high - low))
