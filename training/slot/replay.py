"""Level 3 of the audit: was a drawn contribution trained? One stage's work is checked alone, from files by hash.

Its payload must be the encoding of the change that it committed to. Its drawn segment, trained again from its own
committed start and the tensors that it recorded, must end where it says (the last one: give that change) and give the
tensors that its neighbours recorded. In exact arithmetic that means the same bits, else no farther off than rounding
takes it. So blame is exact: whoever was fed junk replays as honest.
"""

import contextlib
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from dlx.ground.blobs import BlobError, Damaged, file_hash
from dlx.ground.constants import NO_HASH, UNIT
from dlx.ground.streamed import Buffers
from dlx.training.codecs import CodecError, codec
from dlx.training.data.dealing import Intervals, positions
from dlx.training.data.shards import Dataset
from dlx.training.exact.mode import NotExact
from dlx.training.inner.loop import InnerLoop, TrainingError
from dlx.training.inner.pipeline import Norms, PipeBroken
from dlx.training.inner.states import optimiser_shapes
from dlx.training.models import weights
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.models.stages import stage_shapes
from dlx.training.outer.payloads import Payload
from dlx.training.recipe.ladders import ladders
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Plan, embedding_shape, packing, parse_model, reads_data, step_bytes
from dlx.training.slot.captured import Captured, Piece
from dlx.training.slot.change import Difference, Start, change_into, filled
from dlx.training.slot.directions import Projection
from dlx.training.slot.distances import (
    CLASSES,
    WEIGHTS,
    Arrays,
    Class,
    Deviation,
    Limits,
    Part,
    Thresholds,
    deviations,
    relative,
    thresholds,
)
from dlx.training.slot.energy import TOLERANCE, kept_energy
from dlx.training.slot.equality import states_apart, steps_apart
from dlx.training.slot.segments import segment, segment_steps
from dlx.training.slot.trace import Boundary, Statement, Step, Trace, handed_over, trace_faults


class Missing(Exception):
    """Files without which nothing can be said: `blobs` are their names. Ask its maker and the members for them."""

    def __init__(self, blobs: Sequence[bytes]) -> None:
        super().__init__(f"missing: {', '.join(one.hex() for one in blobs)}")
        self.blobs = tuple(blobs)


class NotCheckable(Exception):
    """This machine cannot say anything about the contribution, whatever is in it; the message says why."""


@dataclass(frozen=True)
class Drawn:
    """A drawn contribution. `statement` and `trace` are as its maker signed them, with the plan's numbers."""

    stage: int
    segment: int
    statement: Statement
    trace: Trace
    plan: Plan  # of its round
    steps_before: int  # inner steps of the run before its round
    total_steps: int  # of the run
    samples: Intervals  # the positions that the replica trained on in the round
    own_plans: Mapping[bytes, Plan] = field(default_factory=dict)  # of the own payloads that the statement names


class Checked(Struct, frozen=True, kw_only=True):
    """What was found. Distances are 0.0 where there was nothing to compare, or it was wrong before, and in exact
    arithmetic, which knows none."""

    reasons: tuple[str, ...]  # why it is false; empty: honest
    deviations: Mapping[Part, Deviation] = {}  # of weights and optimiser state, each class of tensors by itself
    activations: float = 0.0  # sent to the stage after
    gradients: float = 0.0  # sent to the stage before
    loss_stated: float = 0.0  # nats, mean over the segment's steps
    loss_replayed: float = 0.0  # the same as stated but on the last stage, which computes it
    uncompared: tuple[str, ...] = ()  # of "activations", "gradients": the stage that received them gave no file

    @property
    def honest(self) -> bool:
        return not self.reasons

    @property
    def weights(self) -> float:
        """The largest distance over the classes of tensors."""
        return max((one.distance for part, one in self.deviations.items() if part.kind == WEIGHTS), default=0.0)

    @property
    def optimiser(self) -> float:
        """The same over its kinds too: false moments at a segment's end would steer the next one."""
        return max((one.distance for part, one in self.deviations.items() if part.kind != WEIGHTS), default=0.0)


def needed(manifest: Manifest, drawn: Drawn) -> list[bytes]:
    """Names of the files without which `check_contribution` says Missing. Of a state of zeros there is none."""
    said = drawn.statement
    shared = (said.base_weights, said.start_payload, said.folded_payload, said.folded_payload2, said.payload)
    found = (*handed_over(drawn.trace, drawn.segment, said, manifest.outer.ahead).values(), *shared)
    return [name for name in dict.fromkeys(found) if name != NO_HASH]


def sent(drawn: Drawn) -> list[bytes]:
    """Names of the files that the neighbours hand over for it: what it sent them. Without one, that is not compared."""
    between = drawn.trace.boundaries[drawn.segment]
    return [name for name in (between.activations_out, between.gradients_out) if name != NO_HASH]


def check_contribution(
    manifest: Manifest,
    drawn: Drawn,
    dataset: Dataset | None,
    folders: Sequence[Path],
    placement: Placement = ONE_THREAD,
    projection: Projection | None = None,
) -> Checked:
    """Everything that level 3 asks of one contribution: its trace, its payload, its drawn segment.

    Files are named by their sha256 and lie in one of `folders`; every byte is hashed. `dataset` is the run's, needed on
    stages that read data. `placement` (settled): how the segment is trained again, without being compiled.
    `projection`: of its deviations; None: they have none.
    Raises Missing, NotCheckable (private data, or tensors that the device cannot take), OSError.
    """
    files = _Files(manifest, drawn, folders)
    faults = trace_faults(drawn.statement, drawn.stage, len(manifest.stages), drawn.trace)
    if faults:
        return Checked(reasons=tuple(faults))
    files.require(needed(manifest, drawn))
    try:
        start = files.round_start()
        faults = _payload_faults(manifest, drawn, files, start)
        return _replay(manifest, drawn, dataset, files, start, faults, placement, projection)
    except _Fault as fault:
        return Checked(reasons=(*faults, str(fault)))
    except NotCheckable:
        if not faults:
            raise
        return Checked(reasons=tuple(faults))  # false whatever the data was


class _Fault(Exception):
    """What the contribution committed to cannot have come of honest work."""


class _Files:
    """Files of one contribution's stage, by hash, from folders that anybody may have filled."""

    def __init__(self, manifest: Manifest, drawn: Drawn, folders: Sequence[Path]) -> None:
        self._manifest, self._drawn, self._folders = manifest, drawn, folders
        self.shapes, self.moments = stage_shapes(manifest, drawn.stage), optimiser_shapes(manifest, drawn.stage)

    def require(self, names: Sequence[bytes]) -> None:
        """Raises Missing for those that are in no folder, unless they are states of zeros."""
        absent = [name for name in names if not any(self._paths(name))]
        zeros = (
            {weights.weights_hash(weights.Zeros(shapes)) for shapes in (self.shapes, self.moments)} if absent else set()
        )
        if missing := [name for name in absent if name not in zeros]:
            raise Missing(missing)

    def state(self, name: bytes, shapes: weights.Shapes, what: str) -> weights.Stored | weights.Zeros:
        """Weights or a state, float32 and finite, all of it looked at. Raises Missing, _Fault."""
        for path in self._paths(name):
            with contextlib.suppress(Damaged), _blaming(what):  # another folder may have a good copy
                found = weights.Stored(path, shapes, sha256=name, finite=True)
                found.verify()
                return found
        zeros = weights.Zeros(shapes)
        if weights.weights_hash(zeros) == name:
            return zeros
        raise Missing([name])

    def payload(self, name: bytes, plan: Plan, what: str) -> Payload:
        """A payload that decodes. Raises Missing, _Fault."""
        for path in self._paths(name):
            with contextlib.suppress(Damaged), _blaming(what):
                found = Payload(codec(self._manifest.codec.name), self.shapes, path, plan)
                found.check()
                return found
        raise Missing([name])

    def own_payload(self, name: bytes) -> Payload:
        """A payload of the slot's own that the statement names. Raises Missing, NotCheckable, _Fault."""
        plan = self._drawn.own_plans.get(name)
        if plan is None:
            raise NotCheckable(f"the plan of the slot's earlier payload {name.hex()[:12]} is not known")
        return self.payload(name, plan, "an earlier payload")

    def round_start(self) -> Start:
        """start[t], as the version, the slot's own payload and its residual give it."""
        said = self._drawn.statement
        version = self.state(said.base_weights, self.shapes, "the version before")
        own = None if said.start_payload == NO_HASH else self.own_payload(said.start_payload)
        base, outer = Difference(version, own, self._manifest.outer.alpha), self._manifest.outer
        return Start(base, self._residual(), outer.ahead)

    def _residual(self) -> Difference:
        """What the payload before has left of its change; nothing where neither start nor end needs it."""
        said = self._drawn.statement
        if said.change_before == NO_HASH or said.payload_before == NO_HASH:
            if said.change_before != said.payload_before:
                raise _Fault("of the change before and its payload it names only one")
            return Difference(weights.Zeros(self.shapes), None)
        if not self._manifest.outer.ahead and self._drawn.segment < len(self._drawn.trace.boundaries) - 1:
            return Difference(weights.Zeros(self.shapes), None)
        before = self.state(said.change_before, self.shapes, "the change before")
        return Difference(before, self.own_payload(said.payload_before))

    def change(self) -> weights.Stored | weights.Zeros:
        """What the payload has to encode."""
        return self.state(self._drawn.statement.change, self.shapes, "the change")

    def folded(self) -> list[Payload]:
        """The slot's own payloads that come back into the change."""
        said = self._drawn.statement
        return [self.own_payload(one) for one in (said.folded_payload, said.folded_payload2) if one != NO_HASH]

    def base(self) -> Path | None:
        """The folder that has the weights which the stage's adapter leaves as they are; None without an adapter. Raises
        Damaged: they are the run's, not its maker's."""
        if self._manifest.adapter is None:
            return None
        name = bytes.fromhex(self._manifest.base[self._drawn.stage].sha256)
        found = next(self._paths(name), None)
        if found is None:
            raise Damaged(name, "missing")
        return found.parent

    def recorded(self, name: bytes) -> Path | None:
        """A file of recorded tensors, its bytes hashed; None where no folder has it."""
        return next((path for path in self._paths(name) if file_hash(path) == name), None)

    def _paths(self, name: bytes) -> Iterator[Path]:
        return (path for folder in self._folders if (path := folder / name.hex()).is_file())


@contextlib.contextmanager
def _blaming(what: str) -> Iterator[None]:
    """Bytes that are what their name says and still no such thing are their maker's fault."""
    try:
        yield
    except Damaged:
        raise
    except (BlobError, CodecError, weights.WeightsError) as error:
        raise _Fault(f"{what}: {error}") from error


def _payload_faults(manifest: Manifest, drawn: Drawn, files: _Files, start: Start) -> list[str]:
    """Whether the payload is the encoding of the change that was committed to, and keeps as much of it as stated."""
    said, chosen = drawn.statement, codec(manifest.codec.name)
    if weights.weights_hash(filled(start, files.shapes)) != said.weights_before:
        return ["the weights before are not what the version, its own payload and its residual give"]
    payload = files.payload(said.payload, drawn.plan, "the payload")
    change, examiner = files.change(), chosen.examiner(drawn.plan)
    for name in sorted(files.shapes):
        examiner.see(name, change[name], payload.part(name))
    faults = [f"the payload is not what the round's change gives: {fault}"] if (fault := examiner.fault()) else []
    if ladders(manifest.codec.name, manifest.plan, manifest.adaptive).rank_adapts:
        part = kept_energy(files.shapes, change, payload)
        if abs(said.kept - part) > TOLERANCE:
            faults.append(f"the payload keeps {part} of {UNIT} parts of the change's energy, {said.kept} are stated")
    return faults


class _Claimed:
    """The weights at a round's end that its change claims, beside those of a replay."""

    def __init__(self, manifest: Manifest, files: _Files, start: Start) -> None:
        self._start, self._folded = start, files.folded()
        self._change, self._buffers = files.change(), Buffers()

    @property
    def change(self) -> Arrays:
        return self._change

    def given(self, replayed: Mapping[str, Tensor]) -> Arrays:
        """The change that the replayed weights give."""

        def make(name: str) -> np.ndarray:
            end = weights.array(replayed[name]).reshape(-1)
            made = self._buffers.of(len(end))
            change_into(made, name, 0, self._start, end, self._folded)
            return made.reshape(replayed[name].shape)

        return weights.Lazy(self._change.shapes, make)

    def beside(self, replayed: Mapping[str, Tensor]) -> Arrays:
        """As far from the replayed ones as the change that those give is from the one claimed: so exactly they where
        both changes are the same bits."""
        given = self.given(replayed)

        def make(name: str) -> np.ndarray:
            made = given[name]
            made -= self._change[name]
            made += weights.array(replayed[name])
            return made

        return weights.Lazy(self._change.shapes, make)


@dataclass(frozen=True)
class _Again:
    """A segment as it was trained again, and what was claimed of it."""

    start: Arrays
    moments: Arrays
    end: "Arrays | _Claimed"  # claimed, of the weights
    end_moments: Arrays  # claimed
    said: Sequence[Step]
    between: Boundary
    loop: InnerLoop
    norms: Sequence[Norms]
    losses: Sequence[float]
    behind: Captured | None
    ahead: Captured | None

    def differences(self, first: int) -> list[str]:
        """In exact arithmetic: what has not the same bits. `first`: the run's inner step that the segment begins
        with."""
        sent = {kind: step for one in (self.behind, self.ahead) if one for kind, step in one.first_apart.items()}
        found = steps_apart(first, self.norms, self.losses, self.said, sent)
        for what, link, name in (
            ("activations", self.ahead, self.between.activations_out),
            ("gradients", self.behind, self.between.gradients_out),
        ):
            if link is not None and not link.is_compared and link.hash != name:  # who received them shows nothing
                found.append(f"the {what} sent are not those that it named")
        replayed, end = self.loop.weights(), self.end
        if isinstance(end, _Claimed):
            found += states_apart("the round's change", end.change, end.given(replayed))
        else:
            found += states_apart("the weights at the segment's end", end, replayed)
        return found + states_apart("the optimiser state", self.end_moments, self.loop.optimiser_state())

    def distances(self, projection: Projection | None) -> dict[str, Any]:
        """In floating point, as it is rounded here: how far the ends are apart."""
        replayed = self.loop.weights()
        end = self.end.beside(replayed) if isinstance(self.end, _Claimed) else self.end
        apart = deviations(self.start, end, replayed, projection)
        apart |= deviations(self.moments, self.end_moments, self.loop.optimiser_state(), projection)
        return {
            "deviations": apart,
            "activations": 0.0 if self.ahead is None else self.ahead.distance,
            "gradients": 0.0 if self.behind is None else self.behind.distance,
        }

    def excesses(self, found: Checked, limits: Thresholds) -> list[str]:
        """Which of the distances are farther than rounding takes honest work."""
        # What it says that it passed on, the stage after has signed; the last stage computes the whole norm.
        norms_apart = max(
            max(relative(math.sqrt(one.passed_on), math.sqrt(it.norm_out)), relative(one.replica, it.norm))
            for one, it in zip(self.norms, self.said, strict=True)
        )
        measured = (
            *_measured(found.deviations, limits.limits),
            ("the activations sent", found.activations, limits.sent, ""),
            ("the gradients sent", found.gradients, limits.sent, ""),
            ("a gradient norm", norms_apart, limits.numbers, ""),
            ("a loss", max(map(relative, self.losses, (one.loss for one in self.said))), limits.numbers, ""),
        )
        return [
            f"{what} is {value:.2g} off{where}, at most {most:g} is honest"
            for what, value, most, where in measured
            if not value <= most
        ]


def _replay(
    manifest: Manifest,
    drawn: Drawn,
    dataset: Dataset | None,
    files: _Files,
    round_start: Start,
    faults: Sequence[str],
    placement: Placement,
    projection: Projection | None,
) -> Checked:
    """The drawn segment trained again, beside what was found before."""
    index, trace = drawn.segment, drawn.trace
    first, steps = segment(index, 0, drawn.statement.inner_steps, segment_steps(manifest))
    said = trace.steps[first : first + steps]
    before, after, between = trace.states[index], trace.states[index + 1], trace.boundaries[index]
    claimed = _Claimed(manifest, files, round_start) if index == len(trace.boundaries) - 1 else None
    start: Arrays = filled(round_start, files.shapes)
    if index:
        start = files.state(before.weights, files.shapes, "the weights at the segment's start")
    moments = files.state(before.optimiser, files.moments, "the optimiser state at the segment's start")
    loop = _loop(manifest, drawn, dataset, start, moments, placement, files.base())
    norms, losses = list[Norms](), list[float]()
    with contextlib.ExitStack() as opened:
        link = _Opener(manifest, files, first + drawn.steps_before, steps, opened)
        behind, ahead = (
            link.open(between.activations_in, between.gradients_out, {"norm": [(one.norm_in,) for one in said]}),
            link.open(between.gradients_in, between.activations_out, {"total": [(one.norm, one.loss) for one in said]}),
        )
        try:
            size = manifest.data.batch_size
            for step in range(first, first + steps):
                samples = positions(drawn.samples, step * size, size)
                losses.append(loop.step(drawn.steps_before + step, drawn.total_steps, samples, behind, ahead))
                norms.append(loop.norms)
        except (PipeBroken, TrainingError) as error:
            return Checked(reasons=(*faults, f"the replay breaks off: {error}"))
        except NotExact as error:
            raise NotCheckable(f"on this machine {error}") from error
    end_moments = files.state(after.optimiser, files.moments, "the optimiser state at the segment's end")
    end = claimed or files.state(after.weights, files.shapes, "the weights at the segment's end")
    again = _Again(start, moments, end, end_moments, said, between, loop, norms, losses, behind, ahead)
    found = Checked(
        reasons=(),
        loss_stated=math.fsum(one.loss for one in said) / steps,
        loss_replayed=math.fsum(losses) / steps,
        uncompared=tuple(
            what
            for what, one in (("activations", ahead), ("gradients", behind))
            if one is not None and not one.is_compared and not manifest.is_exact
        ),
    )
    if manifest.is_exact:
        reasons = again.differences(first + drawn.steps_before)
    else:
        found = replace(found, **again.distances(projection))
        reasons = again.excesses(found, thresholds(manifest))
    return replace(found, reasons=(*faults, *reasons))


def _measured(
    deviations: Mapping[Part, Deviation], limits: Mapping[Class, Limits]
) -> Iterator[tuple[str, float, float, str]]:
    """What is off, how far, the most that is honest, and where: in the class of tensors that is worst by its limit."""
    found = defaultdict[str, list[tuple[float, float, str]]](list)
    for (kind, tensors), one in deviations.items():
        most, where = limits[tensors], f" in {CLASSES[tensors]}"
        if kind == WEIGHTS:
            found["the weights' change"].append((one.distance, most.weights, where))
            found["the learning rate"].append((abs(one.rate), most.rate, where))
        else:
            found["the optimiser state's change"].append((one.distance, most.optimiser, where))
    for what, each in found.items():
        yield what, *max(each, key=lambda one: one[0] / one[1])


def _loop(
    manifest: Manifest,
    drawn: Drawn,
    dataset: Dataset | None,
    start: Arrays,
    moments: Arrays,
    placement: Placement,
    blobs: Path | None,
) -> InnerLoop:
    needs_data = reads_data(manifest, drawn.stage)
    if needs_data and dataset is None:
        raise NotCheckable("this stage of the replica trains on data of its own")
    try:
        eager = replace(placement, compile=False)
        loop = InnerLoop(manifest, drawn.stage, dataset if needs_data else None, eager, blobs)
        loop.load_weights(weights.tensors(start))
        loop.load_optimiser_state(weights.tensors(moments))
    except (NotExact, TrainingError) as error:
        raise NotCheckable(str(error)) from error
    return loop


class _Opener:
    """Makes the links of a replay."""

    def __init__(self, manifest: Manifest, files: _Files, first: int, steps: int, opened: contextlib.ExitStack) -> None:
        self._files, self._first, self._opened = files, first, opened
        tokens = manifest.data.batch_size // manifest.data.micro_batches * manifest.data.sequence_length
        hidden = Piece((tokens, parse_model(manifest.model).width), packing(manifest))
        self._pieces = dict.fromkeys(("activation", "gradient"), hidden)
        if (shape := embedding_shape(manifest)) is not None:
            self._pieces |= dict.fromkeys(("embedding", "tied gradient"), Piece(shape, "float32"))
        self._size = steps * step_bytes(manifest)
        self._slack = 0.0 if manifest.is_exact else thresholds(manifest).numbers

    def open(
        self, incoming: bytes, outgoing: bytes, numbers: Mapping[str, Sequence[tuple[float, ...]]]
    ) -> "Captured | None":
        """None where there is no such neighbour. Raises Missing, _Fault."""
        if incoming == NO_HASH:
            return None
        received, sent_there = self._file(incoming), self._file(outgoing)
        if received is None:
            raise Missing([incoming])
        return Captured(received, sent_there, self._pieces, numbers, self._first, self._slack)

    def _file(self, name: bytes) -> BinaryIO | None:
        path = self._files.recorded(name)
        if path is None:
            return None
        file = self._opened.enter_context(path.open("rb"))
        if (found := os.fstat(file.fileno()).st_size) != self._size:
            raise _Fault(f"the recorded tensors {name.hex()[:12]} have {found} bytes, not {self._size}")
        return file
