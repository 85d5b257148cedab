"""How long a demo's rounds train on this machine, from which the times of its run follow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from dlx.ground.limits import cores

if TYPE_CHECKING:
    from dlx.training.balance.measured import Measured
    from dlx.training.recipe.draft import Draft

_SHORTEST = 5.0  # seconds that a proposer may take: nodes also start, check and talk meanwhile
_TURN = 2.5  # rounds' training, where that is longer
_TURNS = {"straggler_grace": 4, "proposal_timeout": 1, "round_timeout": 5, "eviction_time": 3}


def times(trains: float) -> dict[str, int]:
    """The manifest's `timing`, where a round trains for so many seconds."""
    turn = math.ceil(max(_SHORTEST, _TURN * trains))
    return {name: turns * turn for name, turns in _TURNS.items()}


def measured_round(path: Path, replicas: int, threads: int) -> float:
    """Seconds for which a round of the draft trains on this machine, as busy as it is: by a few real steps."""
    import torch

    from dlx.training.balance.measured import measured
    from dlx.training.models.placement import Placement
    from dlx.training.recipe.draft import draft_from_toml

    draft, before = draft_from_toml(path), torch.get_num_threads()
    speed = measured(draft, Placement(device="cpu", threads=threads))
    torch.set_num_threads(before)
    return lasts(draft, speed, max(1.0, replicas * threads / cores()))


def lasts(draft: Draft, speed: Measured, share: float) -> float:
    """Seconds for which a replica computes in a round, where `share` of them want the same cores."""
    from dlx.training.balance.flops import flops, optimiser_flops

    layers, tokens = draft.stages[-1][1], draft.data.batch_size * draft.data.sequence_length
    trained = tokens * flops(draft).stage(layers, first=True, last=True) / speed.flops
    stepped = sum(optimiser_flops(draft, stage) for stage in range(len(draft.stages))) / speed.float32
    return share * draft.plan.inner_steps * (trained + stepped)
