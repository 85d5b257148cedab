"""What a stage's layers get beside the hidden states: rotary tables, and masks where they see a sliding window."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dlx.training.recipe.family import Config


class Surroundings(nn.Module):
    """Of layers of both kinds, with a sliding window and without; of samples of at most `length` tokens.

    `rotary` is the unsplit model's part, of which only the class and the config are used: on "meta" it has no values.
    """

    def __init__(self, config: Config, rotary: Any, layers: Iterable[int], length: int, device: str) -> None:
        super().__init__()
        self._kinds = {layer: "sliding_attention" if config.is_sliding(layer) else "full_attention" for layer in layers}
        self._window, self._rotary = config.window, rotary is not None
        for kind in {*self._kinds.values()} if self._rotary else ():
            by_type = (kind,) if config.layout.rotary_by_type else ()
            tables = type(rotary)(rotary.config)(torch.empty(0), torch.arange(length)[None], *by_type)
            for name, table in zip(("cos", "sin"), tables, strict=True):
                self.register_buffer(f"{name}_{kind}", table.to(device), persistent=False)
        if "sliding_attention" in self._kinds.values() and length >= self._window:
            sees = torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - self._window)
            self.register_buffer("mask", sees[None, None], persistent=False)

    def of(self, layer: int, length: int) -> dict[str, Any]:
        """Arguments of the layer's call for samples of `length` tokens."""
        kind = self._kinds[layer]
        found: dict[str, Any] = {"attention_mask": self._mask(kind, length)}
        if self._rotary:
            cos, sin = (self.get_buffer(f"{name}_{kind}") for name in ("cos", "sin"))
            found["position_embeddings"] = (cos[:, :length], sin[:, :length])
        return found

    def _mask(self, kind: str, length: int) -> Tensor | None:
        # None stands for a causal one in transformers' attention, as long as the window hides nothing.
        if kind == "full_attention" or length < self._window:
            return None
        return self.get_buffer("mask")[:, :, :length, :length]
