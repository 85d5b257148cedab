"""The parameters that we write down for each family are those of transformers' own model, in every variant."""

from itertools import product
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dlx.training.models.shapes import model_shapes
from dlx.training.recipe.family import Config
from dlx.training.recipe.huggingface import transformers_config
from dlx.training.recipe.recipe import Model, parse_model
from tests.training.recipe.test_families import CASES

FLAGS = {"tie_word_embeddings", "attention_bias", "mlp_bias", "do_layer_norm_before", "enable_bias"}
FLAGS |= {"layer_norm_elementwise_affine"}
OTHERS: dict[str, dict[str, Any]] = {"gpt2": {"n_inner": 40}, "opt": {"word_embed_proj_dim": 8}}


def _variants(config: dict[str, Any]) -> list[Config]:
    flags = sorted(FLAGS & {*type(parse_model(Model(config))).__struct_fields__})
    more: list[dict[str, Any]] = [{}, OTHERS.get(str(config["model_type"]), {})]
    return [
        parse_model(Model(config | dict(zip(flags, values, strict=True)) | other))
        for values in product((False, True), repeat=len(flags))
        for other in more
    ]


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes_are_those_of_transformers(case: str) -> None:
    for config in _variants(CASES[case][0]):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(transformers_config(config))
        expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        assert dict(model_shapes(config)) == expected, config
        assert type(model).__name__ == config.layout.architecture
