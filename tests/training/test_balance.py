import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from dlx.training.balance.costs import costs
from dlx.training.balance.flops import balanced, flops, optimiser_flops
from dlx.training.balance.seconds import Conditions, seconds
from dlx.training.balance.simulated import Simulation
from dlx.training.codecs import codec
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.optimisers import Optimisers
from dlx.training.models.placement import Placement
from dlx.training.models.stages import StageModel, initialise
from dlx.training.recipe.draft import DraftData, draft_from_toml
from dlx.training.recipe.families import FAMILIES
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, Model, Outer, Plan
from tests.patience import patient
from tests.training.conftest import tiny_draft

ROOT = Path(__file__).parents[2]
SPLIT = [(0, 1), (1, 3)]


def test_operations_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    draft = tiny_draft([(0, 3)])
    model = StageModel(draft, 0)
    ids = torch.zeros(2, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    found = flops(draft)
    (cost,) = costs(draft)
    assert cost.flops == 3 * found.layer + found.last and found.first == 0
    attention = 3 * 6 * 16 * (16 + 1)  # which torch does not count on a CPU
    assert cost.flops - attention == counter.get_total_flops() / ids.numel()


def test_operations_of_muon_and_shampoo_are_those_that_torch_counts_in_every_family() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from tests.training.recipe.test_families import CASES, full

    data = DraftData(source=["x"], sequence_length=16, batch_size=4, micro_batches=2)
    for case in CASES.values():
        draft = tiny_draft(SPLIT, model=Model(full(case[0])), inner=Inner(optimiser="muon"), data=data)
        parameters = dict(StageModel(draft, 0).named_parameters())
        for parameter in parameters.values():
            parameter.grad = torch.ones_like(parameter)
        with FlopCounterMode(display=False) as counter:
            Optimisers(parameters, draft).step(1.0)
        assert optimiser_flops(draft, 0) == counter.get_total_flops() > 0
        for precision, segments in (("float32", [7]), ("bfloat16", [4, 3])):
            shampoo = tiny_draft(
                SPLIT,
                model=Model(full(case[0])),
                inner=Inner(optimiser="shampoo"),
                data=data,
                plan=Plan(inner_steps=7),
                precision=precision,
            )
            with FlopCounterMode(display=False) as counter:
                optimisers = Optimisers(parameters, shampoo)
                for steps in segments:
                    optimisers.begin_segment()
                    for _ in range(steps):
                        optimisers.step(1.0)
            assert optimiser_flops(shampoo, 0) == pytest.approx(counter.get_total_flops() / 7, rel=1e-4)
    assert optimiser_flops(tiny_draft([(0, 3)], inner=Inner(optimiser="adamw")), 0) == 0


def test_a_token_meets_the_experts_that_it_is_sent_to_and_no_others() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from tests.training.recipe.test_families import CASES, full

    draft = tiny_draft([(0, 3)], model=Model(full(CASES["qwen3_moe"][0])))
    model = StageModel(draft, 0)
    model.load_state_dict(initialise(draft, 0))
    ids = torch.arange(32).view(2, 16)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    attention = 3 * 6 * 24 * (16 + 1)  # of two heads of 12
    assert counter.get_total_flops() == 32 * (costs(draft)[0].flops - attention)
    weights = {"mlp.experts": 2 * 3 * 24 * 16, "mlp.gate": 4 * 16, "self_attn": (24 + 12 + 12 + 24) * 16}
    assert flops(draft).layer == 6 * sum(weights.values()) + 6 * 24 * (16 + 1)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_micro_batch_keeps_what_autograd_keeps_and_its_ends(stage: int) -> None:
    draft = tiny_draft(SPLIT)
    model = StageModel(draft, stage)
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    retained: dict[StorageWeakRef, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            retained[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.zeros(2, 16, dtype=torch.int64)
    source = ids if stage == 0 else torch.zeros(model.activation_shape, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(source) if stage == 0 else model(source, ids)
    note(source), note(output)
    one = sum(size for storage, size in retained.items() if not storage.expired())
    if stage == 1:  # the loss takes its gradients at once: of the head, and of what the head takes
        one += 4 * (256 * 16 + 2 * 16 * 16)
    assert Simulation(draft, "none").of(stage).retained == one
    assert Simulation(draft, "layers").of(stage).retained < one


@pytest.mark.parametrize("optimiser", ["adamw", "muon", "shampoo"])
@pytest.mark.parametrize("checkpoint", ["none", "layers", "selective"])
def test_two_and_three_layers_tell_about_any_number(checkpoint: str, optimiser: str) -> None:
    """What follows from them is what a simulation of all layers says."""
    from dlx.training.balance import simulated

    draft = tiny_draft([(0, 1), (1, 8), (8, 9)], config={"num_hidden_layers": 9}, inner=Inner(optimiser=optimiser))
    assert Simulation(draft, checkpoint).of(1) == simulated._simulate(draft, 1, checkpoint, 7)


def test_costs_are_what_a_slot_has(tiny_run: Callable[..., Manifest], dataset: Any) -> None:
    manifest = tiny_run(SPLIT)
    for stage, cost in enumerate(costs(manifest)):
        loop = InnerLoop(manifest, stage, dataset)
        assert cost.layers == manifest.stages[stage]
        assert cost.parameters == sum(tensor.numel() for tensor in loop.weights().values())
        assert cost.optimiser == sum(tensor.numel() for tensor in loop.optimiser_state().values())
        assert cost.memory.weights == 4 * cost.parameters
        payload = codec("int4").encode(loop.weights(), manifest.plan)
        assert cost.payload == len(payload)


@pytest.mark.parametrize("vocabulary", [256, 4096, 65536])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_no_other_split_has_a_lower_maximum(stages: int, vocabulary: int) -> None:
    config = {"num_hidden_layers": 8, "vocab_size": vocabulary}
    start = [*((index, index + 1) for index in range(stages - 1)), (stages - 1, 8)]
    draft = tiny_draft(start, config=config)
    one_token = flops(draft)

    def most(split: list[tuple[int, int]]) -> int:
        sizes = [high - low for low, high in split]
        return max(
            one_token.stage(size, first=index == 0, last=index == stages - 1) for index, size in enumerate(sizes)
        )

    every = [list(pairwise((0, *cuts, 8))) for cuts in combinations(range(1, 8), stages - 1)]
    found = balanced(draft)
    assert found in every
    assert most(found) == min(map(most, every))
    assert found == balanced(tiny_draft(found, config=config))


def test_every_family_has_costs() -> None:
    from tests.training.recipe.test_families import CASES, full

    for case in CASES.values():
        draft = tiny_draft(
            SPLIT,
            model=Model(full(case[0])),
            data=DraftData(source=["x"], sequence_length=16, batch_size=4, micro_batches=2),
        )
        first, last = costs(draft)
        assert (
            first.memory.activations
            > costs(draft, Placement(device="cpu", checkpoint="layers"))[0].memory.activations
            > 0
        )
        assert last.flops > first.flops > 0
    assert len(CASES) >= len(FAMILIES)


LINK = Conditions(flops=1e9, float32=1e9, ranks=1, recomputed=1.0, link=1e6, lan=None, replicas=3, seal=0.0)
SLOW = {"outer": Outer(delay=1, lr=0.5), "plan": Plan(inner_steps=2)}


def test_the_seconds_of_a_round_add_up() -> None:
    draft = tiny_draft(SPLIT, **SLOW)
    found = costs(draft)
    times = seconds(draft, found, LINK)
    first, last = (4 * 16 // 2 * cost.flops / 1e9 for cost in found)  # of a micro-batch of two
    message = 8 * 2 * 16 * 16 * 4 / 1e6
    assert times.compute == pytest.approx(first + last + max(first, last))
    assert times.step == pytest.approx(first + last + 2 * message + max(first, last, message))
    assert times.transfer == pytest.approx(8 * 2 * max(cost.payload for cost in found) / 1e6)
    assert times.round == max(times.training, times.exchange, 1)
    # A site has one link for all its stages, and its pipes stay on its own network.
    site = seconds(draft, found, replace(LINK, lan=1e9))
    assert site.transfer == pytest.approx(8 * 2 * sum(cost.payload for cost in found) / 1e6)
    assert site.message == pytest.approx(message / 1000)
    assert seconds(draft, found, replace(LINK, ranks=2)).compute == pytest.approx(times.compute / 2)


def test_ranks_that_share_matrix_products_have_their_part_of_weights_activations_and_time() -> None:
    draft = tiny_draft(SPLIT, **SLOW)
    shared = Placement(device="cuda", tensor_parallel=2)
    two, four = costs(draft, Placement(device="cuda"), 2), costs(draft, shared, 4)
    for wide, cut in zip(two, four, strict=True):
        assert wide.memory.weights / 2 <= cut.memory.weights < 0.52 * wide.memory.weights  # all have the norms
        assert wide.memory.optimiser / 2 <= cut.memory.optimiser < 0.52 * wide.memory.optimiser
        assert 0.4 < cut.memory.activations / wide.memory.activations < 0.8
    halved = seconds(draft, four, replace(LINK, ranks=4, parallel=2)).compute
    assert halved == pytest.approx(seconds(draft, two, replace(LINK, ranks=2)).compute / 2)


def test_a_first_round_is_short() -> None:
    draft = tiny_draft(SPLIT, **SLOW | {"plan": Plan(inner_steps=8)})
    found, measuring = costs(draft), replace(LINK, flops=1e6, trial_steps=2)
    times = seconds(draft, found, measuring)
    assert times.first_round == seconds(tiny_draft(SPLIT, **SLOW), found, measuring).round < times.round / 2


def test_as_many_inner_steps_as_it_says_hide_the_exchange() -> None:
    draft = tiny_draft(SPLIT, **SLOW)
    found, slow = costs(draft), replace(LINK, link=1e4, lan=1e9)
    fewest = seconds(draft, found, slow).hiding_steps
    assert fewest > 2
    for steps, hides in ((fewest, True), (fewest - 1, False)):
        longer = tiny_draft(SPLIT, **SLOW | {"plan": Plan(inner_steps=steps)})
        times = seconds(longer, found, slow)
        assert times.hides is hides and times.round == max(times.training, times.exchange)
    waiting = seconds(tiny_draft(SPLIT, plan=Plan(inner_steps=fewest)), found, slow)
    assert not waiting.hides and waiting.round == waiting.training + waiting.exchange


def test_what_checkers_fetch_has_to_fit_on_the_link_too() -> None:
    draft = tiny_draft(SPLIT, **SLOW)
    found, slow = costs(draft), replace(LINK, link=1e4, lan=1e9)
    alone, beside = seconds(draft, found, slow), seconds(draft, found, replace(slow, served=100_000))
    assert beside.checks == 80 and beside.exchange == alone.exchange
    assert beside.round == beside.transfer + 80 > alone.round
    assert beside.hiding_steps > alone.hiding_steps
    longer = tiny_draft(SPLIT, **SLOW | {"plan": Plan(inner_steps=beside.hiding_steps)})
    assert seconds(longer, found, replace(slow, served=100_000)).hides


def test_the_seal_takes_its_time_too() -> None:
    draft = tiny_draft(SPLIT, **SLOW)
    found, slow = costs(draft), replace(LINK, link=1e4, lan=1e9)
    quick, chain = seconds(draft, found, slow), seconds(draft, found, replace(slow, seal=24.0))
    assert chain.exchange == quick.exchange + 24 and chain.round == chain.exchange
    assert chain.hiding_steps - quick.hiding_steps == pytest.approx(24 / chain.step, abs=1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's counts of private memory")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_process_takes_as_much_memory_as_planned(precision: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"""
name = "peak"
precision = "{precision}"
stages = [[0, 6]]
rounds = 1
[model.config]
model_type = "qwen3"
vocab_size = 4096
hidden_size = 256
intermediate_size = 688
num_hidden_layers = 6
num_attention_heads = 8
num_key_value_heads = 4
max_position_embeddings = 256
[data]
source = ["run.toml"]
sequence_length = 256
batch_size = 8
micro_batches = 2
""")
    (cost,) = costs(draft_from_toml(path))
    command = [sys.executable, "-m", "tests.training.peak", str(path)]
    measured = int(subprocess.run(command, capture_output=True, check=True, timeout=patient(300), cwd=ROOT).stdout)
    assert cost.memory.host == pytest.approx(measured, rel=0.15)
    assert cost.memory.activations > 100_000_000, "most of what it trains with"
