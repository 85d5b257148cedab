"""Pipeline stages: contiguous slices of a transformers model, with the unsplit model's parameter names."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import rfc8785
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.manifest import Draft, Manifest


class StageModel(nn.Module):
    """Stage `stage` of a run: embedding if it is the first, its layers, final norm and head if it is the last.

    Parameters have the unsplit model's names and no values yet: load or initialise them before use.
    """

    def __init__(self, manifest: Manifest | Draft, stage: int) -> None:
        super().__init__()
        low, high = manifest.stages[stage]
        self.stage, self.stages = stage, len(manifest.stages)
        data, hidden = manifest.data, int(manifest.model.config["hidden_size"])
        self.micro_batches = data.micro_batches
        self.activation_shape = (data.batch_size // data.micro_batches, data.sequence_length, hidden)
        whole = _whole_on_meta(manifest.model.config)
        self.model: Any = nn.Module()  # the name gives the parameters their prefix
        if self.is_first:
            self.model.embed_tokens = whole.model.embed_tokens
        self.model.layers = nn.ModuleDict({str(index): whole.model.layers[index] for index in range(low, high)})
        if self.is_last:
            self.model.norm = whole.model.norm
            self.lm_head = whole.lm_head
        self.to_empty(device="cpu")
        # Built anew: its frequencies are a buffer outside the weights, which to_empty would leave as garbage.
        rotary = type(whole.model.rotary_emb)(whole.config)
        self._cos, self._sin = rotary(torch.empty(0), torch.arange(data.sequence_length)[None])

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def forward(self, x: Tensor) -> Tensor:
        """Token ids int64 [n, length] on the first stage, else hidden states float32 [n, length, hidden], to hidden
        states, or on the last stage to logits float32 [n, length, vocabulary]. Attention is causal; the length is at
        most the run's sequence length."""
        hidden = self.model.embed_tokens(x) if self.is_first else x
        length = hidden.size(1)
        position_embeddings = (self._cos[:, :length], self._sin[:, :length])
        for layer in self.model.layers.values():
            hidden = layer(hidden, attention_mask=None, position_embeddings=position_embeddings)
        return self.lm_head(self.model.norm(hidden)) if self.is_last else hidden

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy in nats, a scalar, of the last stage's logits against labels int64 [n, length]."""
        return functional.cross_entropy(output.view(-1, output.size(-1)), labels.reshape(-1))


def preload() -> None:
    """Import the model classes, which takes seconds; whatever uses them imports them anyway, at its first call."""
    from transformers.models.llama import modeling_llama  # noqa: F401  the one supported family


def build_stage(manifest: Manifest | Draft, stage: int) -> StageModel:
    """The stage's module; only its own parameters take memory, and they hold no values yet."""
    return StageModel(manifest, stage)


def stage_shapes(manifest: Manifest | Draft, stage: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the stage's weights (float32) by the unsplit model's parameter names, in the unsplit model's order."""
    low, high = manifest.stages[stage]
    first, last = stage == 0, stage == len(manifest.stages) - 1
    everything = _whole_shapes(rfc8785.dumps(manifest.model.config))
    return {name: shape for name, shape in everything if _belongs(name, low, high, first=first, last=last)}


def initialise(manifest: Manifest | Draft, stage: int) -> dict[str, Tensor]:
    """Fresh float32 weights of the stage, each tensor from a seed of its own name: norms 1, biases 0, else normal.

    Only the run's creator calls this: random generators differ between machines, so the published genesis is the truth.
    """
    deviation, seed = float(manifest.model.config["initializer_range"]), manifest.data.seed
    return {name: _initial(name, shape, deviation, seed) for name, shape in stage_shapes(manifest, stage).items()}


def model_config(manifest: Manifest | Draft) -> Any:
    """The run's model as a transformers config object."""
    return _transformers_config(manifest.model.config)


def _transformers_config(config: Mapping[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    options = {key: value for key, value in config.items() if key != "model_type"}
    options |= {"dtype": "float32", "attn_implementation": "sdpa"}
    return CONFIG_MAPPING[config["model_type"]](**options)


def _whole_on_meta(config: Mapping[str, Any]) -> Any:
    """The unsplit model without memory for its parameters."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(_transformers_config(config))


@lru_cache(maxsize=16)
def _whole_shapes(config: bytes) -> list[tuple[str, tuple[int, ...]]]:
    parameters = _whole_on_meta(json.loads(config)).named_parameters()
    return [(name, tuple(parameter.shape)) for name, parameter in parameters]


def _belongs(name: str, low: int, high: int, *, first: bool, last: bool) -> bool:
    if name.startswith("model.layers."):
        return low <= int(name.split(".")[2]) < high
    return first if name.startswith("model.embed_tokens.") else last


def _initial(name: str, shape: tuple[int, ...], deviation: float, seed: int) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.empty(shape).normal_(0, deviation, generator=generator)
