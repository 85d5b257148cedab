"""One slot's training state: residual, optimiser moments, own payloads, and the rule that turns a round into a payload.

A trained round becomes the slot's state in one rename, of `slot.json`, after everything it names is on disk. Whatever
happens before that (a broken pipe, a kill, a full disk) leaves the state of the round before, from which the next
attempt gives the same bits as if nothing had happened.
"""

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from training import atomic, weights
from training.codecs import codec
from training.data import Dataset
from training.inner import InnerLoop
from training.manifest import Manifest, Plan, manifest_hash
from training.outer import pseudo_gradient, read_payload, start_weights
from training.pipeline import Link, barrier
from training.records import NO_PAYLOAD, RoundInputs, Trained

SEGMENT_STEPS = 20  # inner steps between two committed states: longer replays drift apart

_KEPT_ROUNDS = 3  # whose state files stay for auditors
_STATE_FILE = re.compile(r"[0-9a-f]{64}|\..*\.tmp")  # also what a kill left half written


class SlotError(RuntimeError):
    """The slot's stored state is damaged or another slot's, or a round was asked for that it cannot train."""


class Slot:
    """Use `Slot.open`; one thread at a time. The caller has set torch to one thread, or replays will differ."""

    def __init__(self, manifest: Manifest, loop: InnerLoop, stage: int, directory: Path, blobs: Path) -> None:
        self._manifest, self._manifest_hash, self._stage = manifest, manifest_hash(manifest), stage
        self._directory, self._blobs = directory, blobs
        self._loop, self._codec = loop, codec(manifest.codec.name)
        self._state: _State | None = None
        self._moments_are_committed = True  # False while a round is under way, and after it broke off
        self._residual = {name: torch.zeros(shape) for name, shape in loop.shapes.items()}

    @classmethod
    def open(
        cls, manifest: Manifest, stage: int, replica: int, directory: Path, blobs: Path, dataset: Dataset | None
    ) -> "Slot":
        """The slot whose state is in `directory` (made when missing: everything starts from zero).

        `blobs` holds the versions and gets the payloads. `dataset` is needed on the first and on the last stage. The
        same stage's state may go on in another replica. Raises SlotError, TrainingError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        slot = cls(manifest, InnerLoop(manifest, stage, replica, dataset), stage, directory, blobs)
        slot._load()
        slot._remove_old_files()
        return slot

    @property
    def last(self) -> Trained | None:
        """The newest finished round."""
        return self._state.recent[-1] if self._state else None

    def train(
        self,
        inputs: RoundInputs,
        previous: Link | None,
        next: Link | None,
        stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[int, float | None], None] = lambda done, loss: None,
    ) -> Trained:
        """Train one round and make it the slot's state; a round that is finished already is returned as it was.

        `previous` and `next` lead to the stage neighbours. `on_step(steps done in this round, loss in nats)` is called
        after each inner step. Raises PipeBroken (Stopped after `stop()`), TrainingError, CodecError for a result that
        has no payload, WeightsError or BlobError for a missing or damaged blob, SlotError for a round older than
        `last`, or when the stored state was damaged meanwhile; each leaves the slot's state as it was.
        """
        if self.last and self.last.round == inputs.round:
            return self.last
        self._check(inputs)
        if not self._moments_are_committed:
            self._load_moments()
        self._moments_are_committed = False
        state, residual = self._train(inputs, _TimedLink.around(previous), _TimedLink.around(next), stop, on_step)
        atomic.write_bytes(self._file, msgspec.json.encode(state))  # the commit
        self._state, self._residual, self._moments_are_committed = state, residual, True
        self._remove_old_files()
        return state.recent[-1]

    def _train(
        self,
        inputs: RoundInputs,
        previous: "_TimedLink | None",
        next: "_TimedLink | None",
        stop: Callable[[], bool],
        on_step: Callable[[int, float | None], None],
    ) -> "tuple[_State, dict[str, Tensor]]":
        """The state after the round and its residual; writes every file but `slot.json`."""
        began = time.monotonic()
        own, folded = self._own_in_start(inputs), self._left_out(inputs)
        start = self._start(inputs, own)
        self._loop.load_weights(start)
        before = _Hashes(weights.weights_hash(start), self._optimiser_hash(), weights.weights_hash(self._residual))
        leaves, loss = self._steps(inputs, previous, next, stop, on_step)
        end = self._loop.weights()
        payload, residual = self._encode(inputs.plan, start, end, folded)
        # Private files may be written before the neighbours are done: nothing names them until the commit.
        after = _Hashes(
            weights.weights_hash(end),
            weights.write_blob(self._loop.optimiser_state(), self._directory),
            weights.write_blob(residual, self._directory),
        )
        leaves = [before.leaf(), *leaves, after.leaf()]
        barrier(inputs.steps_before + inputs.plan.inner_steps, previous, next)
        waited = sum(link.seconds for link in (previous, next) if link)
        trained = Trained(
            round=inputs.round,
            payload=atomic.write_blob(self._blobs, [payload]),
            payload_size=len(payload),
            base_weights=inputs.base_weights,
            start_payload=own.payload if own else NO_PAYLOAD,
            folded=tuple(one.payload for one in folded),
            weights_before=before.weights,
            weights_after=after.weights,
            optimiser_before=before.optimiser,
            optimiser_after=after.optimiser,
            residual_before=before.residual,
            residual_after=after.residual,
            segments_root=segments_root(leaves),
            segments=len(leaves) - 1,
            inner_steps=inputs.plan.inner_steps,
            tokens=inputs.plan.inner_steps * self._manifest.tokens_per_step,
            loss=round(loss * 1_000_000),
            compute_ms=round((time.monotonic() - began - waited) * 1000),
            exchange_ms=round(waited * 1000),
            reset=self._state is None,
        )
        return self._next_state(trained, inputs), residual

    def _steps(
        self,
        inputs: RoundInputs,
        previous: "_TimedLink | None",
        next: "_TimedLink | None",
        stop: Callable[[], bool],
        on_step: Callable[[int, float | None], None],
    ) -> tuple[list[bytes], float]:
        """The round's inner steps: the leaves of the states between segments, and the mean loss in nats."""
        leaves, losses = [], []
        for done in range(1, inputs.plan.inner_steps + 1):
            losses.append(self._loop.step(inputs.steps_before + done - 1, inputs.total_steps, previous, next, stop))
            if done % SEGMENT_STEPS == 0 and done < inputs.plan.inner_steps:
                leaves.append(_leaf(weights.weights_hash(self._loop.weights()), self._optimiser_hash()))
            on_step(done, losses[-1])
        return leaves, sum(losses) / len(losses)

    def _encode(
        self, plan: Plan, start: dict[str, Tensor], end: dict[str, Tensor], folded: "Sequence[_Own]"
    ) -> tuple[bytes, dict[str, Tensor]]:
        """The payload, and the residual: what its decoding does not give back."""
        payloads = [self._decode(own) for own in folded]
        update = pseudo_gradient(start, end, self._residual, self._codec.info.decay, payloads)
        payload = self._codec.encode(update, plan)
        decoded = self._codec.decode(payload, self._loop.shapes, plan)
        return payload, {name: tensor.sub_(decoded[name]) for name, tensor in update.items()}

    def _check(self, inputs: RoundInputs) -> None:
        if self.last and inputs.round < self.last.round:
            raise SlotError(f"round {inputs.round}: this slot has already trained round {self.last.round}")
        base = max(0, inputs.round - self._manifest.outer.delay)
        if inputs.base_version != base:
            raise SlotError(f"round {inputs.round} starts from version {base}, not {inputs.base_version}")

    def _start(self, inputs: RoundInputs, own: "_Own | None") -> dict[str, Tensor]:
        path = self._blobs / inputs.base_weights.hex()
        version = weights.read(path, self._loop.shapes, sha256=inputs.base_weights, finite=True)
        return start_weights(version, self._decode(own) if own else None, self._manifest.outer.alpha)

    def _own_in_start(self, inputs: RoundInputs) -> "_Own | None":
        """The own payload that the base version cannot contain yet: with a delay of one round at most the last one."""
        outer = self._manifest.outer
        if not self._state or outer.delay == 0 or outer.alpha == 0:
            return None
        return next((one for one in self._state.own if one.round == inputs.round - 1), None)

    def _left_out(self, inputs: RoundInputs) -> "list[_Own]":
        """Own payloads that their seals left out, each only once: the next state does not have them any more."""
        own = self._state.own if self._state else ()
        return [one for one in own if self._is_decided(one, inputs) and one.payload in inputs.left_out]

    def _is_decided(self, own: "_Own", inputs: RoundInputs) -> bool:
        return own.round <= inputs.round - 1 - self._manifest.outer.delay

    def _next_state(self, trained: Trained, inputs: RoundInputs) -> "_State":
        recent, own = (self._state.recent, self._state.own) if self._state else ((), ())
        still_open = tuple(one for one in own if not self._is_decided(one, inputs))
        own = (*still_open, _Own(trained.round, trained.payload, inputs.plan))
        return _State(self._manifest_hash, self._stage, (*recent, trained)[-_KEPT_ROUNDS:], own)

    def _decode(self, own: "_Own") -> dict[str, Tensor]:
        return read_payload(self._manifest, self._loop.shapes, self._blobs / own.payload.hex(), own.plan)

    def _optimiser_hash(self) -> bytes:
        return weights.weights_hash(self._loop.optimiser_state())

    @property
    def _file(self) -> Path:
        return self._directory / "slot.json"

    def _load(self) -> None:
        if not self._file.exists():
            return
        try:
            state = msgspec.json.decode(self._file.read_bytes(), type=_State)
        except (OSError, msgspec.MsgspecError) as error:
            raise self._damaged(f"slot.json: {error}") from error
        if (state.manifest, state.stage) != (self._manifest_hash, self._stage) or not state.recent:
            raise SlotError(f"{self._directory} holds the state of another run or stage (stage {state.stage})")
        self._state = state
        self._residual = self._read(state.recent[-1].residual_after, self._loop.shapes)
        self._load_moments()

    def _load_moments(self) -> None:
        last = self.last
        state = self._read(last.optimiser_after, self._loop.optimiser_shapes) if last else {}
        self._loop.load_optimiser_state(state)

    def _read(self, digest: bytes, shapes: weights.Shapes) -> dict[str, Tensor]:
        try:
            return weights.read(self._directory / digest.hex(), shapes, sha256=digest)
        except weights.WeightsError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> SlotError:
        return SlotError(f"the slot's state is damaged ({reason}); remove {self._directory} to start it from zero")

    def _remove_old_files(self) -> None:
        recent = self._state.recent if self._state else ()
        kept = {
            digest.hex()
            for one in recent
            for digest in (one.optimiser_before, one.optimiser_after, one.residual_before, one.residual_after)
        }
        for path in self._directory.iterdir():
            if _STATE_FILE.fullmatch(path.name) and path.name not in kept:
                with contextlib.suppress(OSError):  # tried again after the next round
                    path.unlink()


def segments_root(leaves: Sequence[bytes]) -> bytes:
    """Merkle root (sha256) of the states at the start, every SEGMENT_STEPS and at the end of a round, oldest first.

    A leaf is sha256(weights hash ‖ optimiser hash), a node sha256(left ‖ right); the odd one out moves up as it is.
    """
    row = list(leaves)
    while len(row) > 1:
        pairs = [row[index : index + 2] for index in range(0, len(row), 2)]
        row = [_sha256(pair[0] + pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return row[0]


class _Own(Struct, frozen=True, forbid_unknown_fields=True):
    """An own payload whose seal no trained round has looked at yet; of these there are at most delay + 1."""

    round: int
    payload: bytes
    plan: Plan


class _State(Struct, frozen=True, forbid_unknown_fields=True):
    manifest: bytes
    stage: int
    recent: tuple[Trained, ...]  # newest last; its state files are the slot's state
    own: tuple[_Own, ...]  # oldest first


class _TimedLink:
    """A link that adds up the seconds its receives took."""

    def __init__(self, link: Link) -> None:
        self.seconds = 0.0
        self._link = link

    @classmethod
    def around(cls, link: Link | None) -> "_TimedLink | None":
        return None if link is None else cls(link)

    def send(self, kind: str, step: int, micro: int, data: bytes) -> None:
        self._link.send(kind, step, micro, data)

    def recv(self, kind: str, step: int, micro: int) -> bytes:
        began = time.monotonic()
        try:
            return self._link.recv(kind, step, micro)
        finally:
            self.seconds += time.monotonic() - began


class _Hashes(NamedTuple):
    """Of one state of the slot."""

    weights: bytes
    optimiser: bytes
    residual: bytes

    def leaf(self) -> bytes:
        return _leaf(self.weights, self.optimiser)


def _leaf(weights_hash: bytes, optimiser_hash: bytes) -> bytes:
    return _sha256(weights_hash + optimiser_hash)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
