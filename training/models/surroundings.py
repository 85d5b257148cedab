"""What a stage's layers get beside the hidden states: rotary tables, and masks where they do not see all before."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dlx.training.recipe.family import Config


class Documents:
    """Of rows: `begins` bool [n, length] says where each document begins. A row does with one, whatever it says.

    `positions` int64 [n, length]: of each token in its document.
    """

    def __init__(self, begins: Tensor) -> None:
        places = torch.arange(begins.size(1), device=begins.device)
        self._first = torch.where(begins, places, 0).cummax(-1).values  # of each token's document
        self._places = places
        self.positions = places - self._first

    def mask(self, window: int) -> Tensor:
        """Bool [n, 1, length, length]: which tokens see which, of a sliding window unless that is 0."""
        places, first = self._places, self._first
        sees = (places[:, None] >= places) & (first[:, :, None] == first[:, None, :])
        if window:
            sees = sees & (places[:, None] - places < window)
        return sees[:, None]


class Surroundings(nn.Module):
    """Of layers of both kinds, with a sliding window and without; of samples of at most `length` tokens.

    `rotary` is the unsplit model's part, of which only the class and the config are used: on "meta" it has no values.
    """

    def __init__(self, config: Config, rotary: Any, layers: Iterable[int], length: int, device: str) -> None:
        super().__init__()
        self._kinds = {layer: "sliding_attention" if config.is_sliding(layer) else "full_attention" for layer in layers}
        self._windows = {kind: config.window if kind == "sliding_attention" else 0 for kind in self._kinds.values()}
        self._rotary, self._adds = rotary is not None, config.layout.attention == "eager"
        for kind in self._windows if self._rotary else ():
            by_type = (kind,) if config.layout.rotary_by_type else ()
            tables = type(rotary)(rotary.config)(torch.empty(0), torch.arange(length)[None], *by_type)
            for name, table in zip(("cos", "sin"), tables, strict=True):
                self.register_buffer(f"{name}_{kind}", table.to(device), persistent=False)
        alone = Documents(torch.zeros(1, length, dtype=torch.bool, device=device))
        for kind, window in self._windows.items():
            if self._hides(kind, length):
                self.register_buffer(f"mask_{kind}", self._told(alone.mask(window)), persistent=False)

    def of(self, length: int, documents: Documents | None) -> Callable[[int], dict[str, Any]]:
        """Arguments of the call of a layer for samples of `length` tokens, which may be rows of documents."""
        found = {}
        for kind, window in self._windows.items():
            if documents is None:
                found[kind] = self._arguments(kind, slice(length), self._mask(kind, length))
            else:
                found[kind] = self._arguments(kind, documents.positions, self._told(documents.mask(window)))
        return lambda layer: found[self._kinds[layer]]

    def _arguments(self, kind: str, positions: Tensor | slice, mask: Tensor | None) -> dict[str, Any]:
        found: dict[str, Any] = {"attention_mask": mask}
        if self._rotary:
            tables = (self.get_buffer(f"{name}_{kind}") for name in ("cos", "sin"))
            if isinstance(positions, slice):
                found["position_embeddings"] = tuple(table[:, positions] for table in tables)
            else:
                found["position_embeddings"] = tuple(table[0][positions] for table in tables)
        return found

    def _mask(self, kind: str, length: int) -> Tensor | None:
        return self.get_buffer(f"mask_{kind}")[:, :, :length, :length] if self._hides(kind, length) else None

    def _hides(self, kind: str, length: int) -> bool:
        """Whether a mask is needed: without one attention is causal, but for the eager one, which sees everything."""
        return self._adds or 0 < self._windows[kind] <= length

    def _told(self, sees: Tensor) -> Tensor:
        """The mask as attention takes it."""
        if not self._adds:
            return sees
        return torch.zeros(sees.shape, device=sees.device).masked_fill(~sees, torch.finfo(torch.float32).min)
