"""How much of a run's history, its old payloads and versions, the members of a stage keep, and what that takes."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from msgspec.structs import replace

from dlx.training.codecs import payload_sizes
from dlx.training.models.shapes import stage_shapes
from dlx.training.recipe.draft import Draft
from dlx.training.recipe.recipe import Recipe, Retention

FLOAT = 4  # bytes
MOST = 1_500_000_000_000  # bytes of a member's disk that history takes where a draft says nothing of it
_MOST_ROUNDS = 1_000_000  # that a manifest can say
_SPARE = 4  # rounds that are kept beyond those whose drawn work is served


class History(NamedTuple):
    """Bytes on a member's disk at the run's end, at most."""

    versions: int  # weights and outer momentum
    payloads: int


def history(retention: Retention, rounds: int, version: int, payloads: int) -> History:
    """What a stage takes whose versions have so many bytes each, and the payloads of one round so many together."""
    checkpoints, every = retention.checkpoints, retention.every
    old = rounds // every if isinstance(checkpoints, str) else min(rounds, checkpoints) // every + 2
    stay = rounds if isinstance(retention.payloads, str) else min(rounds, retention.payloads + every)
    return History(versions=(retention.versions + 1 + old) * version, payloads=stay * payloads)


def version_bytes(recipe: Recipe, parameters: int) -> int:
    return FLOAT * parameters * (2 if recipe.outer.momentum else 1)


def with_retention(draft: Draft) -> Draft:
    """The draft with numbers, or all of the run, in place of what it keeps by "size". That is all where all takes at
    most `MOST` of the disk of every stage's member, or the last so many rounds as that takes. It is at least those that
    a check of drawn work and the run's average look back on. By the draft alone, so that whoever reads it comes to the
    same."""
    sizes = []
    for stage in range(len(draft.stages)):
        shapes = stage_shapes(draft, stage)
        parameters = sum(math.prod(shape) for shape in shapes.values())
        payloads = draft.max_replicas * max(payload_sizes(draft, shapes).values())
        sizes.append((version_bytes(draft, parameters), payloads))

    def fits(rounds: Literal["run"] | int) -> bool:
        retention = draft.retention.settled(rounds)
        return all(sum(history(retention, draft.rounds, *each)) <= MOST for each in sizes)

    if fits("run"):
        return replace(draft, retention=draft.retention.settled("run"))
    least = min(draft.audit.window + _SPARE, _MOST_ROUNDS)
    if draft.average is not None:
        least = max(least, draft.average.versions * draft.average.every)
    low, high = least, max(least, min(draft.rounds, _MOST_ROUNDS))
    while low < high:  # the most rounds that fit
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return replace(draft, retention=draft.retention.settled(low))
