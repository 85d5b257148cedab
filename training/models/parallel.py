"""Where tensor parallelism cuts a model's parameters, and which numbers of ranks can share its matrix products."""

from dlx.training.models.placement import PlacementError
from dlx.training.models.shapes import model_shapes
from dlx.training.recipe.family import Config, Layout
from dlx.training.recipe.recipe import Recipe, parse_model


def dimension(layout: Layout, name: str) -> int | None:
    """Along which tensor parallelism cuts a parameter."""
    return {"colwise": 0, "rowwise": 1}.get(layout.sharding(name))


def check_parallel(recipe: Recipe, parallel: int) -> None:
    """Raises PlacementError where so many ranks cannot compute the model's matrix products together."""
    if parallel == 1:
        return
    config = parse_model(recipe.model)
    cut = [(name, shape[where]) for name, shape in model_shapes(config)
           if (where := dimension(config.layout, name)) is not None]  # fmt: skip
    if not cut:
        raise PlacementError(f"tensor_parallel {parallel}: there is no plan for {config.family}; use 1")
    for what, size in (*_heads(config), *cut):
        check_divides(parallel, what, size)


def check_divides(parallel: int, what: str, size: int) -> None:
    """Raises PlacementError."""
    if size % parallel:
        raise PlacementError(f"tensor_parallel {parallel}: it has to divide {what} ({size})")


def _heads(config: Config) -> list[tuple[str, int]]:
    found = [("the number of heads", config.heads)]
    if (shared := getattr(config, "num_key_value_heads", None)) is not None:
        found.append(("num_key_value_heads", shared))
    return found
