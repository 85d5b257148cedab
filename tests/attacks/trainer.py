"""A liar's training process: the fork server of a node, after the engine was changed to do what the lie says.

`python -m tests.attacks.trainer FD`, with the lie's name in the environment; `tests.attacks.liar` has a node start it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from dlx.node.trainer import server
from dlx.training.codecs import Codec
from dlx.training.codecs.base import Whole
from dlx.training.inner import loop
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.optimisers import Optimisers
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.slot import Slot
from tests.attacks import acts
from tests.attacks.lies import LIES, Lie, lying_passes

LIE = "DLX_TEST_LIE"
REPLICAS = 4


def lie_about_training(lie: Lie) -> None:
    """Change the classes of this process, for good."""
    _lie_in_steps(lie)
    _lie_about_the_end(lie)
    _lie_about_data(lie)
    _lie_about_the_loss(lie)
    _lie_in_payloads(lie)
    _lose_the_state(lie)


def _lie_in_steps(lie: Lie) -> None:
    """Steps that are left out still run their pipes, for an honest mate's sake; only nothing comes of them."""
    honest_init, honest_step = InnerLoop.__init__, InnerLoop.step
    skipping = False

    def init(self: Any, *known: Any, **named: Any) -> None:
        honest_init(self, *known, **named)
        if lie.bfloat16:
            self._model._bfloat16 = True

    def step(self: Any, index: int, total_steps: int, *links: Any, **named: Any) -> float:
        nonlocal skipping
        inner_steps, weights = self._manifest.plan.inner_steps, self.weights()
        skipping = lie.skips(index % inner_steps)
        frozen = {name: tensor.clone() for name, tensor in weights.items() if lie.frozen(name)}
        loss = honest_step(self, index, total_steps, *links, **named)
        for name, tensor in frozen.items():
            weights[name].copy_(tensor)
        if skipping or frozen or lie.rate != 1.0 or lie.bfloat16 or lie.seen is not None:
            acts.note()
        return loss

    honest_optimiser = Optimisers.step

    def changed(self: Any, factor: float) -> None:
        if not skipping:
            honest_optimiser(self, factor * lie.rate)

    honest_advance = InnerLoop._advance

    def advance(self: Any, *known: Any) -> float:
        *_, ready = known
        if lie.seen is not None:
            ready()  # what is still being written are the true weights
        return honest_advance(self, *known)

    InnerLoop.__init__, InnerLoop.step = init, step  # type: ignore[method-assign]
    InnerLoop._advance = advance  # type: ignore[assignment,method-assign]
    Optimisers.step = changed  # type: ignore[method-assign]


def _lie_about_the_end(lie: Lie) -> None:
    """Of a round, or of its last segment: where its honest work has ended, it says another end."""
    honest_load, honest_begin, honest_steps = Slot._load, InnerLoop.begin_segment, Slot._steps
    start: dict[str, Tensor] = {}

    def load(self: Any, *known: Any) -> bytes:
        found = honest_load(self, *known)
        start.update((name, tensor.clone()) for name, tensor in self._loop.weights().items())
        return found

    def begin_segment(self: Any) -> None:
        honest_begin(self)
        if lie.last_segment:
            start.update((name, tensor.clone()) for name, tensor in self.weights().items())

    def steps(self: Any, inputs: RoundInputs, *known: Any) -> Any:
        found = honest_steps(self, inputs, *known)
        if lie.end is not None:
            honest = {name: tensor.clone() for name, tensor in self._loop.weights().items()}
            end = lie.end(start, honest, inputs.round)
            self._loop.load_weights(end)
            acts.note(acts.distance(end, honest, start))
        return found

    Slot._load, Slot._steps = load, steps  # type: ignore[assignment,method-assign]
    InnerLoop.begin_segment = begin_segment  # type: ignore[method-assign]


def _lie_about_data(lie: Lie) -> None:
    honest = Slot.train

    def train(self: Any, inputs: RoundInputs, *rest: Any, **named: Any) -> Trained:
        lots = lie.lots(inputs.round, self._manifest.min_replicas)
        if lots:
            acts.note()
        by = lots * inputs.plan.inner_steps * self._manifest.data.batch_size
        moved = tuple((max(0, low + by), max(0, low + by) + high - low) for low, high in inputs.samples)
        return honest(self, replace(inputs, samples=moved), *rest, **named)

    Slot.train = train  # type: ignore[method-assign]


def _lie_about_the_loss(lie: Lie) -> None:
    honest = lying_passes(lie, loop.run_step)

    def run_step(*known: Any, **named: Any) -> Tensor | None:
        loss = honest(*known, **named)
        if loss is None or lie.loss == 1.0:
            return loss
        acts.note()
        return loss * lie.loss

    loop.run_step = run_step


def _lie_in_payloads(lie: Lie) -> None:
    honest = Slot.__init__

    def init(self: Any, *known: Any, **named: Any) -> None:
        honest(self, *known, **named)
        self._codec = _LyingCodec(lie, self._codec, self._loop.shapes, self._blobs)

    Slot.__init__ = init  # type: ignore[method-assign]


def _lose_the_state(lie: Lie) -> None:
    honest, begun = Slot._check, list[int]()

    def check(self: Any, inputs: RoundInputs) -> None:
        honest(self, inputs)
        if inputs.round not in begun:
            begun.append(inputs.round)
        if lie.resets(begun.index(inputs.round)):
            self._begin_anew()
            acts.note()

    Slot._check = check  # type: ignore[method-assign]


class _LyingCodec:
    """The codec, which encodes something else; others' payloads are those that lie in the node's blob folder."""

    def __init__(self, lie: Lie, honest: Codec, shapes: Mapping[str, tuple[int, ...]], blobs: Path) -> None:
        self._lie, self._honest, self._shapes, self._blobs = lie, honest, shapes, blobs
        self._own: list[bytearray] = []
        self._mates: Sequence[bytes] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def encoder(self, *known: Any) -> Any:
        return Whole(self, *known)  # type: ignore[arg-type]  # block by block it would be the honest codec's

    def encode_part(self, name: str, tensor: Any, plan: Plan, out: np.ndarray, previous: Any) -> None:
        lie, parts = self._lie, self._honest.parts(self._shapes, plan)
        if name == next(iter(parts)):
            self._mates = self._others(plan) if lie.update or lie.copies == "mate" else []
            self._own.append(bytearray(self._honest.size(self._shapes, plan)))
        if lie.update is not None:
            others = [self._decoded(name, one[parts[name]], plan) for one in self._mates]
            given = {name: torch.from_numpy(np.array(tensor))}
            update = lie.update(given, others, None)
            if update is not given:
                acts.note(acts.distance(update, given))
            tensor = update[name].numpy()
        self._honest.encode_part(name, tensor, plan, out, previous)
        self._own[-1][parts[name]] = out.tobytes()
        copied = self._mates[-1:] if lie.copies == "mate" else self._own[-2:-1] if lie.copies == "own" else []
        if copied:
            honest = self._decoded(name, out.tobytes(), plan)
            out[:] = np.frombuffer(copied[0], np.uint8)[parts[name]]
            acts.note(acts.distance(self._decoded(name, out.tobytes(), plan), honest))

    def _decoded(self, name: str, data: bytes, plan: Plan) -> dict[str, Tensor]:
        found = self._honest.decode_part(name, np.frombuffer(data, np.uint8), self._shapes[name], plan)
        return {name: torch.from_numpy(found)}

    def _others(self, plan: Plan) -> Sequence[bytes]:
        """Of the newest round that anybody else was heard of; payloads of int4 are known by their size."""
        size = self._honest.size(self._shapes, plan)
        found = [path for path in self._blobs.iterdir() if len(path.name) == 64 and path.stat().st_size == size]
        found.sort(key=lambda path: path.stat().st_mtime)
        newest = [path.read_bytes() for path in found[-REPLICAS:]]
        return [one for one in newest if one not in self._own]


if __name__ == "__main__":
    lie_about_training(LIES[os.environ[LIE]])
    server.main(int(sys.argv[1]))
