"""One slot's training state: optimiser moments, last change, own payloads; the rule that turns a round into a payload.

Beside the inner loop's weights, gradients and state nothing of the stage's size is in memory. The start is made of the
base version's file whenever a tensor of it is needed, the residual of the last change and its payload. The gradients
are gone before the round's end needs a few tensors' room. Its work is done by threads: change, payload and optimiser
state are hashed and written while the change is encoded.

A trained round becomes the slot's state in one rename, of `slot.json`, after everything it names is on disk. Whatever
happens before that (a broken pipe, a kill, a full disk) leaves the state of the round before, from which the next
attempt gives the same bits as if nothing had happened.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dlx.ground.blobs import write_blob
from dlx.ground.constants import NO_HASH
from dlx.ground.streamed import Stream
from dlx.training.codecs import codec
from dlx.training.data.dealing import positions
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link, barrier
from dlx.training.inner.private import agree
from dlx.training.inner.states import unused
from dlx.training.models import weights
from dlx.training.models.placement import ONE_THREAD, Placement, arithmetic_threads
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.ladders import ladders
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan
from dlx.training.slot.capture import Capture
from dlx.training.slot.change import Change, Difference, Start, filled
from dlx.training.slot.energy import kept_energy
from dlx.training.slot.files import Own, SlotError, SlotFiles, State
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.segments import SegmentState, segment_steps
from dlx.training.slot.trace import NO_SIGNATURE, Trace, stated_loss


class Slot:
    """Use `Slot.open`; one thread at a time. The caller has told torch how many threads to compute with."""

    def __init__(
        self,
        manifest: Manifest,
        loop: InnerLoop,
        stage: int,
        directory: Path,
        blobs: Path,
        arithmetic_device: str | None = None,
        threads: int = 1,
    ) -> None:
        """`arithmetic_device`: where the codec computes (`selftest.arithmetic_device`); None: in main memory, with so
        many `threads` beside those that hash and write."""
        self._manifest, self._stage, self._blobs = manifest, stage, blobs
        self._files = SlotFiles(manifest, stage, directory, blobs)
        self._loop, self._codec = loop, codec(manifest.codec.name, arithmetic_device)
        self._threads = threads
        self._ladders = ladders(manifest.codec.name, manifest.plan, manifest.adaptive)
        self._state: State | None = None
        self._is_as_on_disk = False  # nor while a round is under way, and after it broke off
        self._restore()

    @classmethod
    def open(
        cls,
        manifest: Manifest,
        stage: int,
        directory: Path,
        blobs: Path,
        dataset: Dataset | None,
        placement: Placement = ONE_THREAD,
    ) -> "Slot":
        """The slot whose state is in `directory` (made when missing: everything starts from zero).

        `blobs` holds the versions and gets the payloads. `dataset` is needed on the first and on the last stage.
        `placement` is settled. The same stage's state may go on in another replica. Raises SlotError, TrainingError.
        """
        loop = InnerLoop(manifest, stage, dataset, placement, blobs)
        return cls(manifest, loop, stage, directory, blobs, threads=arithmetic_threads(placement))

    @property
    def last(self) -> Trained | None:
        """The newest finished round."""
        return self._state.last if self._state else None

    def train(
        self,
        inputs: RoundInputs,
        previous: Link | None,
        next: Link | None,
        stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[int, float | None], None] = lambda done, loss: None,
    ) -> Trained:
        """Train one round and make it the slot's state. A round that is finished already is returned as it was, unless
        the chain has taken back what it began with: then it is trained anew, from zero.

        `previous` and `next` lead to the stage neighbours. `on_step(steps done in this round, loss in nats)` is called
        after each inner step. Raises PipeBroken (Stopped after `stop()`), TrainingError, CodecError for a result that
        has no payload. Raises Damaged for the base version or an own payload that it needs, WeightsError for a base
        version that is no such stage's. Raises SlotError for a round older than `last` or a stored state that was
        damaged meanwhile, OSError for a full disk. Each leaves the slot's state as it was.
        """
        if not self._is_as_on_disk:
            self._restore()
        if self.last and self.last.round == inputs.round and self._is_same(inputs):
            return self.last
        self._check(inputs)
        self._is_as_on_disk = False
        if self.last and (inputs.previous not in (None, self.last.payload) or self.last.round == inputs.round):
            self._begin_anew()  # what was stated since was trained elsewhere: this state is not its continuation
        folder = self._files.undecided.begin(inputs.round)
        with contextlib.closing(Capture(folder, previous, next)) as capture:
            trained, trace = self._train(inputs, folder, capture, stop, on_step)
        self._state = self._files.commit(self._state, trained, trace, self._still_open(inputs), inputs.plan)
        self._is_as_on_disk = True
        self._files.clean(self._state)
        return trained

    def _train(
        self,
        inputs: RoundInputs,
        folder: Path,
        capture: Capture,
        stop: Callable[[], bool],
        on_step: Callable[[int, float | None], None],
    ) -> tuple[Trained, Trace]:
        """The round and its trace; writes every file but `slot.json`, the private ones to `folder`."""
        began, (previous, next) = time.monotonic(), (capture.previous, capture.next)
        private_data = agree(self._manifest, self._loop.data, inputs.steps_before, previous, next)
        own, folded = self._own_in_start(inputs), self._left_out(inputs)
        start = self._start(inputs, own)
        last = self.last
        moments = last.optimiser_after if last else unused(self._manifest, self._stage)
        known = None if own or start.ahead else inputs.base_weights
        before = SegmentState(self._load(start, known), moments)
        # Private files may be written before the neighbours are done: nothing names them until the commit.
        after = self._steps(inputs, folder, capture, stop, on_step)
        self._loop.free_gradients()
        size = self._codec.size(self._loop.shapes, inputs.plan)
        with Stream(self._blobs, size, tree=True) as payload:
            ended = self._end(inputs, start, folded, folder, payload)
            after.append(ended)
            ends = capture.agreement(behind=True), capture.agreement(behind=False)
            before_it, after_it = barrier(inputs.steps_before + inputs.plan.inner_steps, previous, next, *ends)
            encoded = payload.finish()  # public: not before the neighbours are done
        agreed = before_it or NO_SIGNATURE, after_it or NO_SIGNATURE
        trace = Trace((before, *after), tuple(capture.boundaries), capture.steps, agreed)
        trained = Trained(
            inputs=inputs,
            round=inputs.round,
            payload=encoded.sha256,
            payload_size=size,
            payload_root=encoded.root,
            base_weights=inputs.base_weights,
            start_payload=own.payload if own else NO_HASH,
            folded=tuple(one.payload for one in folded),
            weights_before=before.weights,
            optimiser_before=before.optimiser,
            optimiser_after=ended.optimiser,
            change_before=last.change if last else NO_HASH,
            payload_before=last.payload if last else NO_HASH,
            change=ended.weights,
            trace=write_blob(self._blobs, [trace.encode()]),
            segments=len(after),
            inner_steps=inputs.plan.inner_steps,
            tokens=inputs.plan.inner_steps * self._manifest.tokens_per_step,
            loss=stated_loss([one.loss for one in trace.steps]),
            kept=self._kept(folder, ended, encoded.sha256, inputs.plan) if self._ladders.rank_adapts else 0,
            training_ms=round((time.monotonic() - began) * 1000),
            reset=self._state is None,
            private_data=private_data,
        )
        return trained, trace

    def _steps(
        self,
        inputs: RoundInputs,
        folder: Path,
        capture: Capture,
        stop: Callable[[], bool],
        on_step: Callable[[int, float | None], None],
    ) -> list[SegmentState]:
        """The round's inner steps: the states at the end of each segment but the last, written while the next step
        computes its gradients."""
        links, states, length = (capture.previous, capture.next), list[SegmentState](), segment_steps(self._manifest)
        writing: list[Future[SegmentState]] = []

        def written() -> None:
            if writing:
                states.append(writing.pop().result())

        with ThreadPoolExecutor(1, "states") as threads:
            for done in range(1, inputs.plan.inner_steps + 1):
                index, samples = inputs.steps_before + done - 1, self._samples(inputs, done - 1)
                if (done - 1) % length == 0:
                    self._loop.begin_segment()
                loss = self._loop.step(index, inputs.total_steps, samples, *links, stop, written)
                capture.end_step(self._loop.norms, loss)
                if done % length == 0 or done == inputs.plan.inner_steps:
                    capture.end_segment()
                if done % length == 0 and done < inputs.plan.inner_steps:
                    writing.append(threads.submit(self._write_state, folder))
                on_step(done, loss)
        return states

    def _load(self, start: Start, base_hash: bytes | None) -> bytes:
        """Take up the start; its hash, unless it is known."""
        shapes = self._loop.shapes
        values = filled(start, shapes)
        if base_hash is not None and self._loop.in_place:
            version = start.base.whole
            assert isinstance(version, weights.Stored) and start.base.payload is None and not start.ahead
            version.read_all({name: weights.array(one) for name, one in self._loop.weights().items()}, self._threads)
            return base_hash
        if base_hash is not None:
            self._loop.load_weights(weights.tensors(values))
            return base_hash
        with weights.Writer(shapes) as writer:

            def hashed(name: str) -> np.ndarray:
                writer.add(name, found := values[name])
                return found

            self._loop.load_weights(weights.tensors(weights.Lazy(shapes, hashed)))
            return writer.finish().sha256

    def _samples(self, inputs: RoundInputs, step: int) -> Sequence[int]:
        """The positions of the round's step; a stage without data has no use for them."""
        if self._loop.is_private:
            return self._loop.positions(inputs.steps_before + step)
        size = self._manifest.data.batch_size
        return positions(inputs.samples, step * size, size)

    def _end(
        self,
        inputs: RoundInputs,
        start: Start,
        folded: Sequence[Own],
        folder: Path,
        payload: Stream,
    ) -> SegmentState:
        """The change and the state after the last step, written; the payload is fed to its stream."""
        shapes, plan, ends = self._loop.shapes, inputs.plan, self._loop.weights()
        payloads = [self._payload(own) for own in folded]
        change = Change(self._codec, shapes, plan, start, payloads, start.residual.payload, self._threads)
        with ThreadPoolExecutor(1, "states") as threads, weights.Writer(shapes, folder, cached=False) as file:
            state = threads.submit(weights.write_blob, self._loop.optimiser_state(), folder, cached=False)
            for name, where in self._codec.parts(shapes, plan).items():
                part = np.empty(where.stop - where.start, np.uint8)
                for _, values in change.pieces(name, weights.array(ends[name]), part):
                    file.extend(name, values)
                payload.feed(part)
            return SegmentState(file.finish().sha256, state.result())

    def _kept(self, folder: Path, ended: SegmentState, payload: bytes, plan: Plan) -> int:
        shapes = self._loop.shapes
        change = weights.Stored(folder / ended.weights.hex(), shapes)
        return kept_energy(
            shapes, change, Payload(self._codec, shapes, self._blobs / payload.hex(), plan), self._threads
        )

    def _is_same(self, inputs: RoundInputs) -> bool:
        """Whether the newest round began as this one, but for what was said of it since."""
        assert self.last is not None
        return replace(self.last.inputs, previous=None) == replace(inputs, previous=None)

    def _check(self, inputs: RoundInputs) -> None:
        if self.last and inputs.round < self.last.round:
            raise SlotError(f"round {inputs.round}: this slot has already trained round {self.last.round}")
        base = max(0, inputs.round - self._manifest.outer.delay)
        if inputs.base_version != base:
            raise SlotError(f"round {inputs.round} starts from version {base}, not {inputs.base_version}")

    def _start(self, inputs: RoundInputs, own: Own | None) -> Start:
        path = self._blobs / inputs.base_weights.hex()
        version = weights.Stored(path, self._loop.shapes, sha256=inputs.base_weights, finite=True)
        base = Difference(version, self._payload(own) if own else None, self._manifest.outer.alpha)
        return Start(base, self._residual(), self._manifest.outer.ahead if self._state else 0.0)

    def _residual(self) -> Difference:
        """What the last payload has left of its change; their bytes are sound."""
        if self._state is None:
            return Difference(weights.Zeros(self._loop.shapes), None)
        change = self._files.open(self._state.last.change, self._loop.shapes)
        return Difference(change, self._files.open_payload(self._codec, self._loop.shapes, self._state.own[-1]))

    def _own_in_start(self, inputs: RoundInputs) -> Own | None:
        """The own payload that the base version cannot contain yet: with a delay of one round at most the last one."""
        outer = self._manifest.outer
        if not self._state or outer.delay == 0 or outer.alpha == 0:
            return None
        return next((one for one in self._state.own if one.round == inputs.round - 1), None)

    def _left_out(self, inputs: RoundInputs) -> list[Own]:
        """Own payloads that their seals left out, each only once: the next state does not have them any more."""
        own = self._state.own if self._state else ()
        return [one for one in own if self._is_decided(one, inputs) and one.payload in inputs.left_out]

    def _is_decided(self, own: Own, inputs: RoundInputs) -> bool:
        return own.round <= inputs.round - 1 - self._manifest.outer.delay

    def _still_open(self, inputs: RoundInputs) -> tuple[Own, ...]:
        """The own payloads that the next round may still have to fold back."""
        return tuple(one for one in (self._state.own if self._state else ()) if not self._is_decided(one, inputs))

    def _payload(self, own: Own) -> Payload:
        return Payload(self._codec, self._loop.shapes, self._blobs / own.payload.hex(), own.plan)

    def _write_state(self, folder: Path) -> SegmentState:
        return SegmentState(
            *weights.write_blobs(folder, self._loop.weights(), self._loop.optimiser_state(), cached=False)
        )

    def _restore(self) -> None:
        """Take up the committed state, and forget what a round that broke off has left."""
        self._state = self._files.load()
        if self.last is None:
            self._begin_anew()
        else:
            self._residual()
            state = self._files.open(self.last.optimiser_after, self._loop.optimiser_shapes)
            self._loop.load_optimiser_state(weights.tensors(state))
        self._files.clean(self._state)
        self._is_as_on_disk = True

    def _begin_anew(self) -> None:
        """From zero, in memory: the next commit replaces the state on disk."""
        self._state = None
        self._loop.load_optimiser_state({})
