"""What each stage of a run costs (parameters, operations, memory, payload), and how to share the layers better."""

import math
from itertools import accumulate

import torch
from msgspec import Struct
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from dlx.training.codecs import payload_sizes
from dlx.training.inner.states import optimiser_shapes
from dlx.training.models.placement import Placement
from dlx.training.models.shapes import active
from dlx.training.models.stages import StageModel, stage_shapes
from dlx.training.models.weights import Shapes
from dlx.training.recipe.recipe import Outer, Recipe, parse_model, step_bytes

FLOAT = 4  # bytes


class Memory(Struct, frozen=True):
    """Bytes of the tensors that the training process holds; Python and torch come on top."""

    weights: int
    start: int  # the round's first weights, from which its pseudo-gradient is taken
    gradients: int
    optimiser: int
    residual: int
    activations: int  # kept for the backward passes of the micro-batches in flight
    checkpointed: int  # the same with checkpoint_activations
    round_end: int  # when payload and state are written and there are no activations
    outer_step: int  # with a delay of 1 beside the training of the next round
    peak: int
    peak_checkpointed: int


class StageCost(Struct, frozen=True):
    stage: int
    layers: tuple[int, int]  # [from, to)
    parameters: int
    flops: int  # of one token, forward and backward
    memory: Memory
    payload: int  # bytes of one contribution, the largest that the plan can come to
    pipes: int  # bytes sent to the stage neighbours in one inner step


class Flops(Struct, frozen=True):
    """Floating-point operations of one token, forward and backward: 6 for each weight of a matrix (a looked-up
    embedding takes none) and those of attention, in which a token sees half of its sample on average."""

    first: int  # before the layers
    layer: int
    last: int  # after the layers

    def stage(self, layers: int, *, first: bool, last: bool) -> int:
        return layers * self.layer + first * self.first + last * self.last


def costs(recipe: Recipe) -> list[StageCost]:
    """Of every stage. Takes neither the weights' memory nor their time."""
    one_token, stages, found = flops(recipe), len(recipe.stages), []
    pipe = step_bytes(recipe)  # in one direction
    for stage, (low, high) in enumerate(recipe.stages):
        shapes = stage_shapes(recipe, stage)
        size = FLOAT * _count(shapes)
        full, checkpointed = (_activations(recipe, stage, option) for option in (False, True))
        in_flight = min(stages - stage, recipe.data.micro_batches)
        # The layer whose backward pass is under way has all of its own.
        checkpointed = in_flight * checkpointed + (full - checkpointed) // (high - low)
        optimiser = FLOAT * _count(optimiser_shapes(recipe, stage))
        memory = _memory(size, optimiser, in_flight * full, checkpointed, recipe.outer)
        payload = max(payload_sizes(recipe, shapes).values())
        operations = one_token.stage(high - low, first=stage == 0, last=stage == stages - 1)
        pipes = ((stage > 0) + (stage < stages - 1)) * pipe
        found.append(StageCost(stage, (low, high), _count(shapes), operations, memory, payload, pipes))
    return found


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


def flops(recipe: Recipe) -> Flops:
    config = parse_model(recipe.model)
    layout = config.layout
    shapes: dict[str, tuple[int, ...]] = {}
    for stage in range(len(recipe.stages)):
        shapes |= stage_shapes(recipe, stage)

    def weights(*parts: str) -> int:
        inside = tuple(f"{part}." for part in parts if part)
        return sum(active(config, shape) for name, shape in shapes.items() if name.startswith(inside))

    head = layout.tokens if config.tie_word_embeddings else layout.head
    return Flops(
        first=6 * weights(layout.project_in),
        layer=6 * weights(f"{layout.layers}.0") + 6 * config.attention_width * (recipe.data.sequence_length + 1),
        last=6 * weights(*layout.final, head),
    )


def _memory(size: int, optimiser: int, activations: int, checkpointed: int, outer: Outer) -> Memory:
    """Of a stage whose weights have `size` bytes."""
    round_end = 2 * size + max(size, optimiser)  # end, pseudo-gradient; decoded payload, or clones of the state
    outer_step = (4 if outer.momentum else 3) * size  # version, sum, one decoded payload at a time, momentum
    fixed = 4 * size + optimiser

    def peak(kept: int) -> int:
        busy = max(kept, round_end)
        return fixed + (busy + outer_step if outer.delay else max(busy, outer_step))

    return Memory(
        weights=size,
        start=size,
        gradients=size,
        optimiser=optimiser,
        residual=size,
        activations=activations,
        checkpointed=checkpointed,
        round_end=round_end,
        outer_step=outer_step,
        peak=peak(activations),
        peak_checkpointed=peak(checkpointed),
    )


def _activations(recipe: Recipe, stage: int, checkpointed: bool) -> int:
    """Bytes that one micro-batch keeps between its forward and its backward pass: what autograd saves in a forward pass
    on tensors without memory."""
    model = StageModel(recipe, stage, Placement(device="meta", checkpoint="layers" if checkpointed else "none"))
    samples, length, width = model.activation_shape
    with FakeTensorMode():
        tensors = {name: torch.empty(one.shape, requires_grad=True) for name, one in model.named_parameters()}
        for name, buffer in model.named_buffers():
            tensors[name] = torch.empty(buffer.shape, dtype=buffer.dtype, requires_grad=buffer.requires_grad)
        own = {StorageWeakRef(tensor.untyped_storage()) for tensor in tensors.values()}
        saved: dict[StorageWeakRef, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if StorageWeakRef(storage) not in own:
                saved[StorageWeakRef(storage)] = storage.nbytes()
            return tensor

        source = torch.zeros(samples, length, dtype=torch.int64)
        if not model.is_first:
            source = torch.empty(samples, length, width, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            labels = (torch.zeros(samples, length, dtype=torch.int64),) if model.is_last else ()
            torch.func.functional_call(model, tensors, (source, *labels))
    return sum(saved.values())


def _count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
