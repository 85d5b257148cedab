"""What each stage of a run costs: parameters, operations, bytes sent, and memory on the device and beside it."""

import math

from msgspec import Struct
from msgspec.structs import replace

from dlx.training.balance.flops import flops, optimiser_flops
from dlx.training.balance.simulated import Simulated, Simulation
from dlx.training.codecs import payload_sizes
from dlx.training.inner.ranks.owners import most_covariances
from dlx.training.inner.states import covariance_shapes, divide, optimiser_shapes, parameter_of
from dlx.training.models.parallel import part_shape
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.models.shapes import factor_shapes, frozen_shapes, stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.recipe.recipe import Recipe, parse_model, step_bytes

FLOAT = 4  # bytes
BASE = 270_000_000  # private bytes of a training process with Python, torch and transformers alone
HEAP = 64 << 20  # what the C library keeps at most of memory that was given back


class Memory(Struct, frozen=True):
    """Bytes of a training process, of each where the stage has several ranks."""

    weights: int  # those of an adapter's base too
    gradients: int
    optimiser: int
    activations: int  # of the micro-batches in flight, and what a layer needs for a moment
    round_end: int  # of the payload and what becomes it, when there are neither gradients nor activations
    device: int  # the most on the device; 0 where that is the CPU
    host: int  # the most in main memory, with Python and torch


class StageCost(Struct, frozen=True):
    stage: int
    layers: tuple[int, int]  # [from, to)
    parameters: int
    optimiser: int  # values of the inner optimiser's state
    flops: int  # of one token, forward and backward
    optimiser_flops: int  # of one inner step
    memory: Memory
    payload: int  # bytes of one contribution, the largest that the plan can come to
    pipes: int  # bytes sent to the stage neighbours in one inner step


def costs(recipe: Recipe, placement: Placement = ONE_THREAD, ranks: int = 1) -> list[StageCost]:
    """Of every stage, trained where `placement` says by so many ranks. Takes neither the weights' memory nor their
    time."""
    one_token, stages, found = flops(recipe), len(recipe.stages), []
    parallel, accelerator = placement.tensor_parallel, placement.device != "cpu"
    here, kind = _of_a_rank(recipe, ranks // parallel), "cuda" if accelerator else "cpu"
    training = Simulation(here, placement.checkpoint, kind, parallel)
    stepping = training if parallel == 1 else Simulation(here, placement.checkpoint, kind)
    pipe = step_bytes(recipe)  # in one direction
    for stage, (low, high) in enumerate(recipe.stages):
        shapes = stage_shapes(recipe, stage)
        busy = training.of(stage)._replace(stepping=stepping.of(stage).stepping)
        payload = max(payload_sizes(recipe, shapes).values())
        found.append(
            StageCost(
                stage,
                (low, high),
                parameters=_count(shapes),
                optimiser=_count(optimiser_shapes(recipe, stage)),
                flops=one_token.stage(high - low, first=stage == 0, last=stage == stages - 1),
                optimiser_flops=optimiser_flops(recipe, stage),
                memory=_memory(recipe, stage, accelerator, _Sharing(recipe, ranks, parallel), busy, payload),
                payload=payload,
                pipes=((stage > 0) + (stage < stages - 1)) * pipe,
            )
        )
    return found


def samples_of_a_rank(recipe: Recipe, groups: int) -> int:
    """Of each micro-batch: so many groups of ranks take them all, so the last ones may only fill up."""
    return -(-recipe.data.batch_size // (recipe.data.micro_batches * groups))


def _of_a_rank(recipe: Recipe, groups: int) -> Recipe:
    samples = samples_of_a_rank(recipe, groups) * recipe.data.micro_batches
    return replace(recipe, data=replace(recipe.data, batch_size=samples))


class _Sharing:
    """Which part of a stage's parameters a rank has of so many, `parallel` of which share every matrix product."""

    def __init__(self, recipe: Recipe, ranks: int, parallel: int) -> None:
        self.layout, self.ranks, self.parallel = parse_model(recipe.model).layout, ranks, parallel

    def cut(self, shapes: Shapes) -> Shapes:
        """As the layers' work meets them."""
        return {
            name: shape if (one := parameter_of(name)) is None else part_shape(self.layout, one, shape, self.parallel)
            for name, shape in shapes.items()
        }

    def held(self, shapes: Shapes) -> int:
        """Values between two layers' work."""
        return -(-_count(self.cut(shapes)) * self.parallel // self.ranks)


def _memory(
    recipe: Recipe, stage: int, accelerator: bool, sharing: _Sharing, simulated: Simulated, payload: int
) -> Memory:
    shapes = stage_shapes(recipe, stage)
    trained = FLOAT * sharing.held(shapes)
    weights = trained + FLOAT * _count(_frozen(recipe, stage))
    covariances = covariance_shapes(recipe, divide(shapes, recipe.inner)[0])
    moments = {name: shape for name, shape in optimiser_shapes(recipe, stage).items() if name not in covariances}
    # Shampoo's covariances and as many values of their roots, whole at whom they belong to.
    optimiser = FLOAT * (sharing.held(moments) + 2 * most_covariances(recipe, shapes, sharing.ranks))
    largest = FLOAT * max(math.prod(shape) for shape in shapes.values())
    in_flight = min(len(recipe.stages) - stage, recipe.data.micro_batches)
    activations = max(
        simulated.busy + (in_flight - 1) * simulated.retained - FLOAT * _count(sharing.cut(shapes)),
        simulated.stepping - FLOAT * (_count(shapes) + _count(covariances)),
    )
    if sharing.ranks > 1:
        activations += _gathered(recipe, stage, sharing.cut(shapes))
    training = trained + activations
    # Two tensors in passing, and the payload before, from which the encoder starts; from a device copies too.
    round_end = (5 if accelerator else 2) * largest + payload
    outer = 2 * largest if recipe.outer.delay else 0  # beside the training
    return Memory(
        weights=weights,
        gradients=trained,
        optimiser=optimiser,
        activations=activations,
        round_end=round_end,
        device=weights + optimiser + training if accelerator else 0,
        host=BASE
        + outer
        + (round_end if accelerator else weights + optimiser + max(training + min(HEAP, activations), round_end)),
    )


def _frozen(recipe: Recipe, stage: int) -> Shapes:
    """What an adapter leaves as it is."""
    if recipe.adapter is None:
        return {}
    trained, factors = stage_shapes(recipe, stage), factor_shapes(recipe, stage)
    return frozen_shapes(recipe, stage) | {name: shape for name, shape in factors.items() if name not in trained}


def _gathered(recipe: Recipe, stage: int, shapes: Shapes) -> int:
    """Bytes of whole parameters on a rank: of the layer at work and the next one, and of what lies outside of the
    layers, which the last stage keeps with its gradients."""
    inside, (low, high) = parse_model(recipe.model).layout.layers, recipe.stages[stage]
    last = stage == len(recipe.stages) - 1
    layers = _count({name: shape for name, shape in shapes.items() if name.startswith(f"{inside}.")})
    return FLOAT * (2 * layers // (high - low) + (1 + last) * (_count(shapes) - layers))


def _count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
