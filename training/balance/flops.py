"""Operations of a model's parts, and how to share its layers so that no stage has more of them than it must."""

import math
from itertools import accumulate

from msgspec import Struct

from dlx.training.inner.shampoo import EVERY, root_scales
from dlx.training.inner.states import divide
from dlx.training.models.shapes import active, factor_shapes, model_shapes, stage_shapes
from dlx.training.recipe.parameters import matrix_shape, rule
from dlx.training.recipe.recipe import Recipe, parse_model
from dlx.training.slot.segments import segment_steps

_STEPS = 5  # of Newton-Schulz, as inner/muon.py takes them


class Flops(Struct, frozen=True):
    """Floating-point operations of one token, forward and backward. They are 6 for each weight of a matrix that it
    meets (a looked-up embedding takes none, and of a layer's experts it meets those that it is sent to). One that an
    adapter leaves as it is takes 4, as nothing is added up for it. Added are those of attention, in which a token sees
    half of its sample on average; the eager one computes the other half too."""

    first: int  # before the layers
    layer: int
    last: int  # after the layers

    def stage(self, layers: int, *, first: bool, last: bool) -> int:
        return layers * self.layer + first * self.first + last * self.last


def flops(recipe: Recipe) -> Flops:
    """Of a token of the run."""
    config = parse_model(recipe.model)
    layout, shapes = config.layout, dict(model_shapes(config))

    def weights(*parts: str) -> int:
        inside = tuple(f"{part}." for part in parts if part)
        return sum(active(config, shape) for name, shape in shapes.items() if name.startswith(inside))

    head, each, factors = layout.tokens if config.tie_word_embeddings else layout.head, 6, 0
    if recipe.adapter is not None:
        each, beside = 4, factor_shapes(recipe, 0).items()
        factors = sum(math.prod(shape) for name, shape in beside if name.startswith(f"{layout.layers}.0."))
    length = recipe.data.sequence_length
    attention = 6 * config.attention_width * (2 * length if layout.attention == "eager" else length + 1)
    return Flops(
        first=each * weights(layout.project_in),
        layer=each * weights(f"{layout.layers}.0") + 6 * factors + attention,
        last=each * weights(*layout.final, head),
    )


def optimiser_flops(recipe: Recipe, stage: int) -> int:
    """Of one inner step of a stage: the products of Muon's Newton-Schulz steps or Shampoo's, on average, which are in
    float32 whatever the run's precision. AdamW's few operations for each parameter are left out."""
    steps, _ = divide(stage_shapes(recipe, stage), recipe.inner)
    heads, found = parse_model(recipe.model).heads, 0
    for name, shape in steps.items():
        count, rows, columns = matrix_shape(shape, rule(name).fused, heads)
        one = _muon(rows, columns) if recipe.inner.optimiser == "muon" else _shampoo(recipe, rows, columns)
        found += count * one
    return found


def _muon(rows: int, columns: int) -> int:
    short, long = sorted((rows, columns))
    return _STEPS * (4 * short * short * long + 2 * short**3)


def _shampoo(recipe: Recipe, rows: int, columns: int) -> int:
    """Roots are taken where each of a round's segments begins, too."""
    steps, length = recipe.plan.inner_steps, segment_steps(recipe)
    taken = sum(-(-min(length, steps - first) // EVERY) for first in range(0, steps, length))
    roots = sum(len(root_scales(size)) * 6 * size**3 for size in (rows, columns))
    return 6 * rows * columns * (rows + columns) + roots * taken // steps


def balanced(recipe: Recipe) -> list[tuple[int, int]]:
    """As many stages, with the layers shared so that the stage with the most operations has as few as can be.

    Layer after layer goes to the stage that has the least with it, the first of several: all layers are equal, so no
    other way has a lower maximum.
    """
    one_token, last = flops(recipe), len(recipe.stages) - 1
    layers = [1] * (last + 1)

    def with_one_more(stage: int) -> int:
        return one_token.stage(layers[stage] + 1, first=stage == 0, last=stage == last)

    for _ in range(parse_model(recipe.model).layers - len(layers)):
        layers[min(range(last + 1), key=with_one_more)] += 1
    ends = list(accumulate(layers))
    return list(zip([0, *ends], ends, strict=False))
