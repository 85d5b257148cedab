"""Where tensor parallelism cuts a model's parameters, and which numbers of ranks can share its matrix products."""

from dlx.training.models.placement import PlacementError
from dlx.training.models.shapes import Shape, model_shapes
from dlx.training.recipe.family import Config, Layout
from dlx.training.recipe.recipe import Recipe, parse_model

_DIMENSIONS = {"colwise": 0, "rowwise": 1, "rows": 0}


def dimension(layout: Layout, name: str, shape: Shape, parallel: int) -> int | None:
    """Along which so many ranks cut a parameter of this shape; None: each has all of it."""
    if parallel == 1 or ((how := layout.sharding(name)) == "rows" and shape[0] % parallel):
        return None
    return _DIMENSIONS.get(how)


def part_shape(layout: Layout, name: str, shape: Shape, parallel: int) -> Shape:
    """What so many ranks leave of it to each."""
    cut = dimension(layout, name, shape, parallel)
    return tuple(size // parallel if here == cut else size for here, size in enumerate(shape))


def check_parallel(recipe: Recipe, parallel: int) -> None:
    """Raises PlacementError where so many ranks cannot compute the model's matrix products together."""
    if parallel == 1:
        return
    config = parse_model(recipe.model)
    cut = [(name, shape[_DIMENSIONS[how]]) for name, shape in model_shapes(config)
           if (how := config.layout.sharding(name)) in ("colwise", "rowwise")]  # fmt: skip
    if not cut:
        raise PlacementError(f"tensor_parallel {parallel}: there is no plan for {config.family}; use 1")
    for what, size in (*_heads(config), *cut):
        check_divides(parallel, what, size)


def check_ranks(recipe: Recipe) -> None:
    """Raises PlacementError where several ranks cannot share a stage of the run."""
    if recipe.adapter is not None:
        raise PlacementError("several ranks: a stage with an adapter is trained by one; use 1")


def check_divides(parallel: int, what: str, size: int) -> None:
    """Raises PlacementError."""
    if size % parallel:
        raise PlacementError(f"tensor_parallel {parallel}: it has to divide {what} ({size})")


def _heads(config: Config) -> list[tuple[str, int]]:
    found = [("the number of heads", config.heads)]
    if (shared := getattr(config, "num_key_value_heads", None)) is not None:
        found.append(("num_key_value_heads", shared))
    return found
