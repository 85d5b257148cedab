from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from dlx.training import balance
from dlx.training.codecs import codec
from dlx.training.inner.loop import InnerLoop
from dlx.training.models.placement import Placement
from dlx.training.models.stages import StageModel
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.families import FAMILIES
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Model
from tests.training.conftest import tiny_draft

SPLIT = [(0, 1), (1, 3)]


def test_operations_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    draft = tiny_draft([(0, 3)])
    model = StageModel(draft, 0)
    ids = torch.zeros(2, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    found = balance.flops(draft)
    (cost,) = balance.costs(draft)
    assert cost.flops == 3 * found.layer + found.last and found.first == 0
    attention = 3 * 6 * 16 * (16 + 1)  # which torch does not count on a CPU
    assert cost.flops - attention == counter.get_total_flops() / ids.numel()


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("stage", [0, 1])
def test_activations_are_those_that_autograd_keeps(
    stage: int, checkpointed: bool, tiny_run: Callable[..., Manifest]
) -> None:
    manifest = tiny_run(SPLIT)
    model = StageModel(manifest, stage, Placement(device="cpu", checkpoint="layers" if checkpointed else "none"))
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.zeros(2, 16, dtype=torch.int64)
    source = ids if stage == 0 else torch.zeros(model.activation_shape, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _ = model(source) if stage == 0 else model(source, ids)
    one = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    memory = balance.costs(manifest)[stage].memory
    in_flight = 2 - stage
    if checkpointed:
        assert in_flight * one < memory.checkpointed < memory.activations
    else:
        assert memory.activations == in_flight * one


def test_costs_are_what_a_slot_has(tiny_run: Callable[..., Manifest], dataset: Any) -> None:
    manifest = tiny_run(SPLIT)
    for stage, cost in enumerate(balance.costs(manifest)):
        loop = InnerLoop(manifest, stage, 0, dataset)
        assert cost.layers == manifest.stages[stage]
        assert cost.parameters == sum(tensor.numel() for tensor in loop.weights().values())
        assert cost.memory.weights == cost.memory.residual == 4 * cost.parameters
        assert cost.memory.optimiser == 4 * sum(tensor.numel() for tensor in loop.optimiser_state().values())
        payload = codec("int4").encode(loop.weights(), manifest.plan)
        assert cost.payload == len(payload)


@pytest.mark.parametrize("vocabulary", [256, 4096, 65536])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_no_other_split_has_a_lower_maximum(stages: int, vocabulary: int) -> None:
    config = {"num_hidden_layers": 8, "vocab_size": vocabulary}
    start = [*((index, index + 1) for index in range(stages - 1)), (stages - 1, 8)]
    draft = tiny_draft(start, config=config)
    one_token = balance.flops(draft)

    def most(split: list[tuple[int, int]]) -> int:
        sizes = [high - low for low, high in split]
        return max(
            one_token.stage(size, first=index == 0, last=index == stages - 1) for index, size in enumerate(sizes)
        )

    every = [list(pairwise((0, *cuts, 8))) for cuts in combinations(range(1, 8), stages - 1)]
    found = balance.balanced(draft)
    assert found in every
    assert most(found) == min(map(most, every))
    assert found == balance.balanced(tiny_draft(found, config=config))


def test_every_family_has_costs() -> None:
    from tests.training.recipe.test_families import CASES, full

    for case in CASES.values():
        draft = tiny_draft(
            SPLIT,
            model=Model(full(case[0])),
            data=DraftData(source=["x"], sequence_length=16, batch_size=4, micro_batches=2),
        )
        first, last = balance.costs(draft)
        assert first.memory.activations > first.memory.checkpointed > 0
        assert last.flops > first.flops > 0
    assert len(CASES) >= len(FAMILIES)
