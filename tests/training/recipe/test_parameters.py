"""Every parameter of every family has a rule, and it is the one that its shape and place call for."""

import pytest

from dlx.training.models.shapes import model_shapes
from dlx.training.recipe.parameters import rule
from dlx.training.recipe.recipe import Model, parse_model
from dlx.training.recipe.strict import ManifestError
from tests.training.recipe.test_families import CASES


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_has_a_rule(case: str) -> None:
    config = parse_model(Model(CASES[case][0]))
    for name, shape in model_shapes(config):
        found = rule(name)
        in_a_layer = name.startswith(f"{config.layout.layers}.")
        router = name.endswith(".gate.weight")
        assert found.matrix == (in_a_layer and len(shape) > 1 and not router), name
        embedding = name.startswith((f"{config.layout.tokens}.", f"{config.layout.positions or config.layout.tokens}."))
        assert found.decays == (len(shape) > 1 and not embedding), name
        assert not found.factored or found.decays, name
        assert len(shape) > 1 or (not found.factored and not found.fused), name
        if found.sharding == "colwise" and len(shape) == 1:
            assert rule(name.replace(".bias", ".weight")).sharding == "colwise", name


@pytest.mark.parametrize("case", CASES)
def test_sharding_is_transformers_own_where_the_family_has_a_plan(case: str) -> None:
    config = parse_model(Model(CASES[case][0]))
    plan = CASES[case][2].base_model_tp_plan or {}
    ours = {"colwise": "colwise", "rowwise": "rowwise", "replicated_with_grad_allreduce": "per head"}
    for name, _ in model_shapes(config):
        module = name.removeprefix(f"{config.layout.layers}.").partition(".")[2].rpartition(".")[0]
        theirs = plan.get(f"layers.*.{module}", "replicated")
        if plan and name.endswith(".weight") and name.startswith(f"{config.layout.layers}."):
            assert config.layout.sharding(name) == ours.get(theirs, "replicated"), name


@pytest.mark.parametrize("name", ["model.layers.0.mixer.weight", "model.layers.0.mlp.experts.w1", "weight", "a"])
def test_a_parameter_without_a_rule_is_named(name: str) -> None:
    with pytest.raises(ManifestError, match=f"^{name}: no rule"):
        rule(name)
