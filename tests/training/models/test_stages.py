from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from dlx.training.models.placement import Placement
from dlx.training.models.stages import StageModel, initialise, stage_shapes
from dlx.training.recipe.manifest import Manifest
from tests.training.devices import DEVICES

SPLITS = [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]]
CONFIGS: list[dict[str, Any]] = [
    {},
    {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "rope_theta": 500.0, "hidden_act": "gelu"},
]
IDS = torch.randint(0, 256, (3, 16), generator=torch.Generator().manual_seed(0))


def _unsplit(manifest: Manifest) -> LlamaForCausalLM:
    """transformers' own model, built without any of our code."""
    options = {key: value for key, value in manifest.model.config.items() if key != "model_type"}
    model = LlamaForCausalLM(LlamaConfig(**options))
    weights = {}
    for stage in range(len(manifest.stages)):
        weights.update(initialise(manifest, stage))
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("split", SPLITS)
def test_stages_compute_what_the_unsplit_model_computes(
    tiny_run: Callable[..., Manifest],
    split: list[tuple[int, int]],
    config: dict[str, Any],
    build_stages: Callable[..., Any],
) -> None:
    manifest = tiny_run(split, config=config)
    hidden = IDS
    for model in build_stages(manifest):
        hidden = model(hidden)
    assert torch.equal(hidden, _unsplit(manifest)(IDS).logits)


def test_a_token_sees_nothing_after_it(tiny_run: Callable[..., Manifest], build_stages: Callable[..., Any]) -> None:
    (model,) = build_stages(tiny_run([(0, 3)]))
    changed = IDS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = model(IDS), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("split", SPLITS)
def test_a_stage_holds_its_own_parameters_under_the_unsplit_names_and_no_others(
    tiny_run: Callable[..., Manifest], split: list[tuple[int, int]]
) -> None:
    manifest = tiny_run(split)
    expected = {name: tuple(parameter.shape) for name, parameter in _unsplit(manifest).named_parameters()}
    together: dict[str, tuple[int, ...]] = {}
    for stage in range(len(split)):
        parameters = dict(StageModel(manifest, stage).named_parameters())
        shapes = stage_shapes(manifest, stage)
        assert {name: tuple(parameter.shape) for name, parameter in parameters.items()} == shapes
        assert list(parameters) == list(shapes)
        assert all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parameters.values())
        assert not together.keys() & shapes.keys()
        together |= shapes
    assert together == expected
    assert list(together) == list(expected)


def test_the_genesis_does_not_depend_on_the_split_but_on_the_seed(tiny_run: Callable[..., Manifest]) -> None:
    whole = initialise(tiny_run([(0, 3)]), 0)
    for split in SPLITS[1:]:
        manifest = tiny_run(split)
        for stage in range(len(split)):
            for name, tensor in initialise(manifest, stage).items():
                assert torch.equal(tensor, whole[name])
    assert torch.equal(whole["model.norm.weight"], torch.ones(16))
    assert abs(float(whole["lm_head.weight"].std()) - 0.02) < 0.002
    assert not torch.equal(whole["model.layers.0.mlp.up_proj.weight"], whole["model.layers.1.mlp.up_proj.weight"])
    data = tiny_run([(0, 3)]).data
    assert data.seed == 7


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", ["none", "layers", "selective"])
@pytest.mark.parametrize("device", DEVICES)
def test_compiled_layers_give_the_same_gradients_but_for_rounding(
    device: str, recomputed: Any, tiny_run: Callable[..., Manifest]
) -> None:
    """All layers are one compiled graph."""
    manifest = tiny_run([(0, 3)])
    ids = torch.arange(32, device=device).view(2, 16)
    found = []
    for compile in (False, True):
        model = StageModel(manifest, 0, Placement(device=device, threads=1, compile=compile, checkpoint=recomputed))
        model.load_state_dict(initialise(manifest, 0))
        torch._dynamo.reset()
        counters.clear()
        model(ids, ids).backward()
        found.append({name: one.grad for name, one in model.named_parameters()})
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], rtol=1e-4, atol=1e-6), name


class _Products(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", DEVICES)
def test_selective_checkpoints_compute_no_product_again(device: str, tiny_run: Callable[..., Manifest]) -> None:
    manifest, ids, counts = tiny_run([(0, 3)]), torch.arange(32, device=device).view(2, 16), []
    for recomputed in ("none", "selective", "layers"):
        model = StageModel(manifest, 0, Placement(device=device, threads=1, checkpoint=recomputed))
        model.load_state_dict(initialise(manifest, 0))
        with _Products() as products:
            model(ids, ids).backward()
        counts.append(products.count)
    assert counts[0] == counts[1] < counts[2]


def test_the_loss_is_the_mean_in_nats(tiny_run: Callable[..., Manifest], build_stages: Callable[..., Any]) -> None:
    (model,) = build_stages(tiny_run([(0, 3)]))
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert model(IDS[:2], IDS[:2]).item() == pytest.approx(5.545177)
