import errno
import hashlib
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from dlx.ground import durable, merkle
from dlx.ground.blobs import Damaged
from dlx.ground.constants import NO_HASH
from dlx.training.codecs import CodecError, codec
from dlx.training.data.shards import Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.inner.pipeline import Link, PipeBroken, Stopped, queue_links
from dlx.training.inner.states import unused
from dlx.training.models import weights
from dlx.training.outer.step import SealedPayload, apply_round
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Inner, Outer, Plan
from dlx.training.slot.rounds import RoundInputs, Trained
from dlx.training.slot.segments import SEGMENT_STEPS as LENGTHS
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.slot import Slot, SlotError
from dlx.training.slot.trace import Boundary, Step, Trace, decode
from dlx.training.slot.undecided import Undecided, most_undecided
from tests.patience import PATIENCE

DELAYS = {0: Outer(lr=1.0), 1: Outer(lr=0.8, delay=1, alpha=0.8)}
AHEAD = {delay: msgspec.structs.replace(outer, ahead=0.3) for delay, outer in DELAYS.items()}

RunMaker = Callable[..., Manifest]
SEGMENT_STEPS = LENGTHS["float32"]
ALONE = Boundary(NO_HASH, NO_HASH, NO_HASH, NO_HASH)  # of a replica of one stage


class _History:
    """A run of one replica without a ledger: trains, seals, makes the next version; goes on where it was killed."""

    def __init__(
        self,
        manifest: Manifest,
        dataset: Dataset,
        blobs: Path,
        folder: Path,
        left_out: Sequence[int] = (),
        stage: int = 0,
    ) -> None:
        self.manifest, self.blobs, self.folder = manifest, blobs, folder
        self.stage, self.left_out = stage, left_out
        self.slot = Slot.open(manifest, stage, folder / f"slot-{stage}", blobs, dataset)
        self.versions = [bytes.fromhex(manifest.genesis[stage].sha256)]
        self.trained: list[Trained] = []
        journal = folder / f"journal-{stage}"
        self._journal = journal
        for one in msgspec.json.decode(journal.read_bytes(), type=list[Trained]) if journal.exists() else []:
            self._seal(one)

    def inputs(self, **changes: Any) -> RoundInputs:
        t, delay = len(self.trained), self.manifest.outer.delay
        base, need = max(0, t - delay), self.manifest.plan.inner_steps * self.manifest.data.batch_size
        values = {
            "round": t,
            "plan": self.manifest.plan,
            "steps_before": t * self.manifest.plan.inner_steps,
            "total_steps": self.manifest.rounds * self.manifest.plan.inner_steps,
            "base_version": base,
            "base_weights": self.versions[base],
            "samples": ((t * need, (t + 1) * need),),
            "left_out": tuple(self.trained[one].payload for one in self.left_out if one <= t - 1 - delay),
        }
        return RoundInputs(**(values | changes))

    def round(self, *links: Link | None, **options: Any) -> Trained:
        previous, next = links or (None, None)
        trained = self.slot.train(self.inputs(), previous, next, **options)
        durable.write_bytes(self._journal, msgspec.json.encode([*self.trained, trained]))
        self._seal(trained)
        return trained

    def _seal(self, trained: Trained) -> None:
        sealed = [SealedPayload(self.blobs / trained.payload.hex(), trained.inner_steps, 32768, self.manifest.plan)]
        if len(self.trained) in self.left_out:
            sealed = []
        self.trained.append(trained)
        newest = self.blobs / self.versions[-1].hex()
        self.versions.append(apply_round(self.manifest, self.stage, newest, None, sealed, self.blobs).weights)


def _bits(history: Sequence[Trained]) -> list[Trained]:
    """Without the timings."""
    return [msgspec.structs.replace(one, training_ms=0) for one in history]


@pytest.fixture
def history(tiny_run: RunMaker, dataset: Dataset, blobs: Path, tmp_path: Path) -> Callable[..., _History]:
    def make(delay: int, name: str = "a", left_out: Sequence[int] = (), **changes: Any) -> _History:
        manifest = tiny_run([(0, 3)], rounds=8, **({"outer": DELAYS[delay]} | changes))
        (tmp_path / name).mkdir(exist_ok=True)
        return _History(manifest, dataset, blobs, tmp_path / name, left_out)

    return make


# ---- the rule


@pytest.mark.parametrize("outers", [DELAYS, AHEAD], ids=["from the version", "ahead"])
@pytest.mark.parametrize("delay", DELAYS)
def test_a_history_follows_the_training_rule(
    delay: int, outers: dict[int, Outer], history: Callable[..., _History], dataset: Dataset
) -> None:
    """Against the rule written out once more, with seals that leave out rounds 1, 2 and 3."""
    run = history(delay, left_out=(1, 2, 3), outer=outers[delay])
    manifest, shapes = run.manifest, InnerLoop(run.manifest, 0, dataset).shapes
    chosen, outer = codec("int4"), manifest.outer
    alpha, ahead = (torch.tensor(one, dtype=torch.float32) for one in (outer.alpha, outer.ahead))
    loop, residual = InnerLoop(manifest, 0, dataset), {name: torch.zeros(shape) for name, shape in shapes.items()}
    own: list[dict[str, Tensor]] = []
    fold_at = {0: {2: [1], 3: [2], 4: [3]}, 1: {3: [1], 4: [2], 5: [3]}}[delay]
    for t in range(7):
        start = weights.read(run.blobs / run.versions[max(0, t - delay)].hex(), shapes)
        if delay and t:
            start = {name: start[name] - own[t - 1][name] * alpha for name in start}
        if ahead:
            start = {name: start[name] - residual[name] * ahead for name in start}
        optimiser_before = weights.weights_hash(loop.optimiser_state())
        loop.load_weights(start)
        steps = []
        for index in range(4):
            loss = loop.step(4 * t + index, 32, loop.positions(4 * t + index), None, None)
            steps.append(Step(0.0, loop.norms.passed_on, loop.norms.replica, loss))
        end = loop.weights()
        update = {name: (start[name] - end[name]) + residual[name] for name in start}
        for one in fold_at.get(t, []):
            update = {name: update[name] + own[one][name] for name in update}
        payload = chosen.encode(update, manifest.plan)
        own.append(chosen.decode(payload, shapes, manifest.plan))
        residual = {name: update[name] - own[t][name] for name in update}

        inputs, trained = run.inputs(), run.round()
        optimiser_after = weights.weights_hash(loop.optimiser_state())
        change = weights.weights_hash(update)
        ends = (weights.weights_hash(start), optimiser_before), (change, optimiser_after)
        trace = Trace(tuple(SegmentState(*one) for one in ends), (ALONE,), tuple(steps)).encode()
        assert _bits([trained])[0] == Trained(
            inputs=inputs,
            round=t,
            payload=hashlib.sha256(payload).digest(),
            payload_size=len(payload),
            payload_root=merkle.tree_root([payload]),
            base_weights=run.versions[max(0, t - delay)],
            start_payload=run.trained[t - 1].payload if delay and t else NO_HASH,
            folded=tuple(run.trained[one].payload for one in fold_at.get(t, [])),
            weights_before=weights.weights_hash(start),
            optimiser_before=optimiser_before,
            optimiser_after=optimiser_after,
            change_before=run.trained[t - 1].change if t else NO_HASH,
            payload_before=run.trained[t - 1].payload if t else NO_HASH,
            change=change,
            trace=hashlib.sha256(trace).digest(),
            segments=1,
            inner_steps=4,
            tokens=4 * 64,
            loss=round(sum(one.loss for one in steps) / 4 * 1e6),
            training_ms=0,
            reset=t == 0,
        )
        assert (run.blobs / trained.payload.hex()).read_bytes() == payload
        assert (run.blobs / trained.trace.hex()).read_bytes() == trace
        assert (trained.weights_before == trained.base_weights) == (t == 0 or (not delay and not ahead))


def test_without_alpha_the_start_is_the_base_version(
    tiny_run: RunMaker, dataset: Dataset, blobs: Path, tmp_path: Path
) -> None:
    manifest = tiny_run([(0, 3)], outer=Outer(lr=0.7, delay=1))
    run = _History(manifest, dataset, blobs, tmp_path)
    for _ in range(3):
        trained = run.round()
        assert trained.weights_before == trained.base_weights
        assert trained.start_payload == NO_HASH


def test_after_an_absence_what_was_left_out_is_folded_back_once(history: Callable[..., _History]) -> None:
    run = history(1)
    for _ in range(3):
        run.round()
    left_out = tuple(one.payload for one in run.trained)
    # Round 0 was decided when round 2 was trained, and was counted then.
    trained = run.slot.train(run.inputs(round=6, base_version=5, left_out=left_out), None, None)
    assert (trained.start_payload, trained.folded) == (NO_HASH, left_out[1:])
    trained = run.slot.train(run.inputs(round=8, base_version=7, left_out=left_out), None, None)
    assert trained.folded == ()


def test_a_state_that_the_account_has_gone_on_from_elsewhere_is_not_gone_on_with(
    history: Callable[..., _History],
) -> None:
    """It would begin with other states than those after the newest contribution, and be refused by everybody."""
    run = history(1)
    first = run.round()
    assert first.reset and not run.slot.train(run.inputs(previous=first.payload), None, None).reset
    anew = run.slot.train(run.inputs(round=2, base_version=1, previous=b"P" * 32), None, None)
    assert anew.reset and (anew.start_payload, anew.folded) == (NO_HASH, ())
    assert _before(anew) == (unused(run.manifest, 0), NO_HASH, NO_HASH)
    assert run.slot.last == anew


def test_learning_lowers_the_loss(history: Callable[..., _History]) -> None:
    for delay in DELAYS:
        run = history(delay, str(delay))
        losses = [run.round().loss for _ in range(8)]
        assert losses[-1] < losses[0] * 0.85


def test_a_round_of_several_segments_keeps_the_states_that_it_commits_to(
    history: Callable[..., _History], dataset: Dataset
) -> None:
    steps = 2 * SEGMENT_STEPS + 1
    run = history(0, plan=Plan(inner_steps=steps))
    loop = InnerLoop(run.manifest, 0, dataset)
    start = weights.read(run.blobs / run.versions[0].hex(), loop.shapes)
    loop.load_weights(start)
    states, files = [], set()
    for index in range(steps + 1):
        if index % SEGMENT_STEPS == 0 or index == steps:
            now = loop.weights()
            if index == steps:
                now = {name: (start[name] - now[name]) + 0.0 for name in start}  # the change
            kept = [weights.serialise(now), weights.serialise(loop.optimiser_state())]
            states.append(SegmentState(*(hashlib.sha256(one).digest() for one in kept)))
            files |= {hashlib.sha256(one).hexdigest() for one in kept if index}
        if index < steps:
            loop.step(index, 8 * steps, loop.positions(index), None, None)
    trained = run.round()
    assert _trace(run, trained).states == tuple(states)
    assert trained.segments == 3
    # All but the first: its weights are the version that the round started from, its optimiser state is fresh.
    assert files == _kept(run, 0)
    assert _names(run) == {"slot.json", "rounds", *_after(trained)}


# ---- what is finished stays, what is not leaves nothing


def test_a_finished_round_is_returned_and_never_trained_again(history: Callable[..., _History]) -> None:
    run = history(0)
    trained = run.round()
    calls: list[int] = []
    again = history(0).slot
    assert again.last == trained
    inputs = msgspec.structs.replace(trained.inputs, previous=trained.payload)
    assert again.train(inputs, None, None, on_step=lambda done, loss: calls.append(done)) == trained
    assert not calls
    assert msgspec.json.decode(msgspec.json.encode(trained), type=Trained) == trained


@pytest.mark.parametrize("changed", ["base", "plan", "samples", "schedule", "replica", "seals"])
def test_a_finished_round_of_which_the_chain_takes_anything_back_is_trained_anew_from_zero(
    changed: str, history: Callable[..., _History]
) -> None:
    """Its state went on from a version, a plan or samples that are none any more: a replay would convict it."""
    run = history(0)
    run.round()
    before = run.round()
    other = {
        "base": {"base_weights": run.versions[0]},
        "plan": {"plan": Plan(inner_steps=2)},
        "samples": {"samples": ((0, before.inner_steps * run.manifest.data.batch_size),)},
        "schedule": {"steps_before": 3},
        "replica": {"replica": 1},
        "seals": {"seals": (bytes(32),)},
    }[changed]
    inputs = msgspec.structs.replace(before.inputs, previous=before.payload)
    assert run.slot.train(inputs, None, None) == before
    inputs = msgspec.structs.replace(inputs, **other)
    anew = run.slot.train(inputs, None, None)
    assert (anew.round, anew.base_weights, anew.inner_steps) == (1, inputs.base_weights, inputs.plan.inner_steps)
    assert anew.reset and _before(anew) == (unused(run.manifest, 0), NO_HASH, NO_HASH)
    assert run.slot.train(inputs, None, None) == anew == history(0).slot.last


def test_progress_is_reported(history: Callable[..., _History]) -> None:
    seen: list[tuple[int, float]] = []
    trained = history(0).round(on_step=lambda done, loss: seen.append((done, loss)))
    assert [done for done, _ in seen] == [1, 2, 3, 4]
    assert trained.loss == round(sum(loss for _, loss in seen) / 4 * 1e6)


@pytest.mark.slow
@pytest.mark.parametrize("delay", DELAYS)
def test_a_stopped_round_leaves_no_trace(delay: int, history: Callable[..., _History]) -> None:
    undisturbed = history(delay, "a", left_out=(0,))
    expected = [undisturbed.round() for _ in range(5)]
    run = history(delay, "b", left_out=(0,))
    for t in range(5):
        files, last, seen = _files(run.folder), run.slot.last, []
        with pytest.raises(Stopped):
            run.round(stop=lambda seen=seen: len(seen) >= 2, on_step=lambda done, loss, seen=seen: seen.append(done))
        assert _files(run.folder) == files and run.slot.last == last
        with pytest.raises(OSError, match="disk full"):
            run.round(on_step=_disk_full)
        assert _bits([run.round()]) == _bits([expected[t]])


def test_a_disk_that_is_full_at_any_write_leaves_the_state_as_it_was(
    history: Callable[..., _History], monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, run = history(1, "a"), history(1, "b")
    expected = [undisturbed.round() for _ in range(2)]
    assert _bits([run.round()]) == _bits(expected[:1])
    files, failures = _files(run.folder), 0
    fsync = os.fsync

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    while True:
        left = failures
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            try:
                run.slot.train(run.inputs(), None, None)
                break
            except OSError:
                failures += 1
        here = _files(run.folder)
        # Only the last fsync, of the folder after slot.json's rename, comes too late to take the round back.
        assert failures == _FSYNCS or {path: here.get(path) for path in files} == files
    assert failures == _FSYNCS
    assert _bits([run.slot.last]) == _bits(expected[1:])
    assert _names(run) == _names(undisturbed)


# File and folder: change and optimiser state, payload, trace; two folders of links; the round's file, its folder, that
# of all rounds; slot.json.
_FSYNCS = 2 * 4 + 2 + 3 + 2


def _disk_full(done: int, loss: float | None) -> None:
    if done == 4:
        raise OSError("disk full")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("delay", DELAYS)
def test_rounds_are_kept_until_they_are_decided_and_never_more_than_a_few(
    delay: int, history: Callable[..., _History]
) -> None:
    run = history(delay)
    most = most_undecided(run.manifest)
    (run.folder / "slot-0" / "contribution").write_text("somebody else's")
    undecided = Undecided(run.folder / "slot-0")
    for _ in range(most + 2):
        run.round()
    assert undecided.rounds() == [*range(2, most + 2)]
    litter = run.folder / "slot-0" / f".{'0' * 16}.tmp"
    litter.write_bytes(b"half")
    history(delay)
    last = run.trained[-1]
    assert _names(run) == _after(last) | {"slot.json", "rounds", "contribution"}
    for one in run.trained[2:]:
        ends = {one.change.hex(), one.optimiser_after.hex()}
        assert _kept(run, one.round) == ends | {digest.hex() for digest in _before(one)}


def _before(one: Trained) -> tuple[bytes, bytes, bytes]:
    """What the round went on from."""
    return one.optimiser_before, one.change_before, one.payload_before


def _after(one: Trained) -> set[str]:
    """The files that the next round goes on from."""
    return {one.optimiser_after.hex(), one.change.hex(), one.payload.hex()}


def _kept(run: _History, round: int) -> set[str]:
    """What is there of a round that is not decided."""
    return {path.name for path in (run.folder / "slot-0" / "rounds" / str(round)).iterdir()} - {"round"}


def _trace(run: _History, trained: Trained) -> Trace:
    return decode((run.blobs / trained.trace.hex()).read_bytes(), trained.segments, trained.inner_steps)


def _names(run: _History) -> set[str]:
    return {path.name for path in (run.folder / "slot-0").iterdir()}


def test_a_segments_state_is_written_while_the_next_step_computes_its_gradients(
    history: Callable[..., _History], dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun, batches = history(0, plan=Plan(inner_steps=SEGMENT_STEPS + 1)), threading.Event(), []
    batch, write_blobs = Dataset.batch, weights.write_blobs

    def beginning(self: Dataset, *known: Any) -> Any:
        batches.append(known)
        if len(batches) > SEGMENT_STEPS:
            begun.set()
        return batch(self, *known)

    def writing(*known: Any, **named: Any) -> Any:
        assert begun.wait(PATIENCE), "the next step waits for the state to be written"
        return write_blobs(*known, **named)

    undisturbed = history(0, "undisturbed", plan=Plan(inner_steps=SEGMENT_STEPS + 1)).round()
    monkeypatch.setattr(Dataset, "batch", beginning)
    monkeypatch.setattr(weights, "write_blobs", writing)
    assert _bits([run.round()]) == _bits([undisturbed])
    assert begun.is_set()


def test_an_attempt_that_broke_off_leaves_its_files_until_the_next_one_only(history: Callable[..., _History]) -> None:
    run = history(0, plan=Plan(inner_steps=SEGMENT_STEPS + 1))
    run.round()
    before, seen = _names(run), []
    with pytest.raises(Stopped):
        run.round(stop=lambda: len(seen) > SEGMENT_STEPS - 1, on_step=lambda done, loss: seen.append(done))
    assert len(_kept(run, 1)) == 2
    assert Undecided(run.folder / "slot-0").rounds() == [0]
    with pytest.raises(Stopped):
        run.round(stop=lambda: True)
    assert _names(run) == before
    assert not _kept(run, 1)


def test_the_codec_starts_from_the_slots_last_payload_also_after_a_restart_and_where_the_blob_is_gone(
    history: Callable[..., _History], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[bytes, Plan] | None] = []
    encoder = type(codec("int4")).encoder

    def spy(self: Any, name: str, shape: Any, plan: Plan, out: Any, previous: Any = None) -> Any:
        if name == "lm_head.weight":  # the first
            given.append(previous and (previous[0].tobytes(), previous[1]))
        return encoder(self, name, shape, plan, out, previous)

    monkeypatch.setattr(type(codec("int4")), "encoder", spy)
    run = history(0)
    run.round()
    run.round()
    run = history(0)
    lost = run.blobs / run.trained[1].payload.hex()
    content = lost.read_bytes()
    lost.unlink()
    run.round()
    lost.write_bytes(content)  # the history of the test wants it
    run = history(0)
    run.round()
    part = codec("int4").parts(run.slot._loop.shapes, run.manifest.plan)["lm_head.weight"]
    parts = [(run.blobs / one.payload.hex()).read_bytes()[part] for one in run.trained]
    assert given == [None, *((one, Plan(inner_steps=4)) for one in parts[:3])]


def test_state_of_another_stage_or_run_is_refused(tiny_run: RunMaker, history: Callable[..., _History]) -> None:
    run = history(0)
    run.round()
    with pytest.raises(SlotError, match="state of another run or stage"):
        history(0, inner=msgspec.structs.replace(run.manifest.inner, lr=0.5))
    moved = Slot.open(run.manifest, 0, run.folder / "slot-0", run.blobs, run.slot._loop._dataset)
    assert moved.last == run.trained[0]  # another replica, same stage: goes on


@pytest.mark.parametrize("damage", ["slot.json", "optimiser", "change", "payload", "missing"])
def test_damaged_state_is_reported(damage: str, history: Callable[..., _History]) -> None:
    run = history(0)
    trained = run.round()
    folder = run.folder / "slot-0"
    if damage == "slot.json":
        (folder / "slot.json").write_text("{")
    elif damage == "missing":
        (folder / trained.change.hex()).unlink()
    else:
        named = {"optimiser": trained.optimiser_after, "change": trained.change, "payload": trained.payload}
        path = folder / named[damage].hex()
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(SlotError, match=r"remove .*slot-0 to start it from zero"):
        history(0)


def test_a_state_that_a_busy_machine_cannot_read_is_not_called_damaged(
    history: Callable[..., _History], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = (run := history(0)).round()

    def fails(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fails)
        with pytest.raises(OSError, match="Too many open files"):
            history(0)
    assert history(0).slot.last == run.slot.last == trained


def test_a_state_of_a_newer_format_is_refused_and_left_as_it_is(history: Callable[..., _History]) -> None:
    run = history(0)
    run.round()
    folder = run.folder / "slot-0"
    state = folder / "slot.json"
    numbered = msgspec.json.decode(state.read_bytes())
    assert numbered["format"] == 6
    state.write_bytes(msgspec.json.encode(numbered | {"format": 7, "something": "new"}))
    before = _files(folder)
    with pytest.raises(SlotError, match=r"slot\.json was written by a newer dlx-node \(format 7, this one knows 6\)"):
        history(0)
    assert _files(folder) == before


def test_a_state_of_an_older_format_is_refused_and_left_as_it_is(history: Callable[..., _History]) -> None:
    run = history(0)
    run.round()
    state = run.folder / "slot-0" / "slot.json"
    numbered = msgspec.json.decode(state.read_bytes())
    del numbered["format"]  # as the first files had none
    state.write_bytes(old := msgspec.json.encode(numbered))
    with pytest.raises(SlotError, match=r"an older dlx-node \(format 1, this one knows 6\): remove .*slot-0"):
        history(0)
    assert state.read_bytes() == old


def test_rounds_that_cannot_be_trained_are_refused(history: Callable[..., _History]) -> None:
    run = history(1)
    for _ in range(3):
        run.round()
    with pytest.raises(SlotError, match="round 1: this slot has already trained round 2"):
        run.slot.train(run.inputs(round=1, base_version=0), None, None)
    with pytest.raises(SlotError, match="round 3 starts from version 2, not 3"):
        run.slot.train(run.inputs(base_version=3), None, None)
    with pytest.raises(Damaged, match="No such file"):
        run.slot.train(run.inputs(base_weights=bytes(32)), None, None)
    own = run.blobs / run.trained[2].payload.hex()
    content = own.read_bytes()
    own.unlink()
    with pytest.raises(Damaged, match="No such file") as caught:
        run.round()
    assert caught.value.blob == run.trained[2].payload, "so that it can be fetched again"
    own.write_bytes(content)
    run.round()


def test_a_result_without_a_payload_is_refused(
    history: Callable[..., _History], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = history(0)
    first = run.round()
    end = InnerLoop.weights
    with monkeypatch.context() as patch:
        patch.setattr(InnerLoop, "weights", lambda loop: {name: one * float("inf") for name, one in end(loop).items()})
        with pytest.raises(CodecError, match="not finite"):
            run.round()
    assert run.slot.last == first
    run.round()


# ---- the whole replica


class _Faulty:
    """A link that breaks at the n-th message it receives."""

    def __init__(self, link: Link, at: int) -> None:
        self._link, self._left = link, at

    def send(self, kind: str, step: int, micro: int, data: bytes) -> None:
        self._link.send(kind, step, micro, data)

    def recv(self, kind: str, step: int, micro: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise PipeBroken("the neighbour is gone")
        return self._link.recv(kind, step, micro)


def _replica_round(stages: Sequence[_History], break_at: int | None = None) -> list[Trained | BaseException]:
    """One round of two stages, each in its thread; the link breaks for the last one at its n-th message."""
    ahead, behind = queue_links(timeout=1 if break_at is not None else 60)
    links = [(None, ahead), (behind if break_at is None else _Faulty(behind, break_at), None)]
    results: list[Any] = [None, None]

    def work(index: int) -> None:
        try:
            results[index] = stages[index].round(*links[index])
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results


def test_a_broken_pipe_abandons_the_round_of_the_whole_replica(
    tiny_run: RunMaker, dataset: Dataset, blobs: Path, tmp_path: Path
) -> None:
    manifest = tiny_run([(0, 1), (1, 3)], outer=DELAYS[1], plan=Plan(inner_steps=2))

    def open_stages(name: str) -> list[_History]:
        (tmp_path / name).mkdir()
        return [_History(manifest, dataset, blobs, tmp_path / name, stage=stage) for stage in range(2)]

    undisturbed, disturbed = open_stages("a"), open_stages("b")
    messages = 2 * (2 + 1) + 1  # two steps of two activations and a norm; the barrier
    for break_at in (2, messages - 1):
        expected = _replica_round(undisturbed)
        assert all(isinstance(one, Trained) for one in expected), expected
        before = [_files(stage.folder) for stage in disturbed]
        assert all(isinstance(one, PipeBroken) for one in _replica_round(disturbed, break_at))
        kept = [{path: data for path, data in _files(stage.folder).items() if path in before[0]} for stage in disturbed]
        assert kept == before  # private files of the attempt may lie there until the next one
        assert _bits(_replica_round(disturbed)) == _bits(expected)
    assert expected[0].loss == expected[1].loss
    assert expected[0].training_ms > 0


# ---- killed at any point


_ROUNDS_BEFORE = 2


def _until_killed(manifest: Manifest, blobs: Path, folder: Path, kill_at: int) -> None:
    """In a process of its own: a round that is killed after the n-th inner step, fsync or rename."""
    torch.set_num_threads(1)
    run = _History(manifest, _dataset(manifest, blobs), blobs, folder, left_out=(0, 1))
    left = kill_at

    def killed(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def then_killed(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (function(*arguments), killed())

    os.fsync, os.replace = then_killed(os.fsync), then_killed(os.replace)
    run.round(on_step=killed)


def _dataset(manifest: Manifest, blobs: Path) -> Dataset:
    return Dataset.open(blobs / manifest.data.manifest.sha256, blobs)


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    libraries = ["torch", "hypothesis", "pytest", "transformers.models.llama.modeling_llama"]
    context.set_forkserver_preload([*libraries, "dlx.training.slot.slot"])
    return context


# The inner steps; fsync, rename and fsync of the folder for each of 4 files; two folders of links; 3 for the round's
# file, the folder of the rounds; 3 for slot.json.
_END = 4 + 4 * 3 + 2 + 3 + 1 + 3
KILL_POINTS = {0: [3, 9, _END - 3, _END - 2], 1: [2, *range(4, _END)]}


@pytest.mark.slow
@pytest.mark.parametrize("delay", DELAYS)
def test_killed_anywhere_the_history_goes_on_bit_for_bit(
    delay: int, history: Callable[..., _History], processes: multiprocessing.context.ForkServerContext, tmp_path: Path
) -> None:
    run = history(delay, left_out=(0, 1))
    _kill_and_go_on(run, KILL_POINTS[delay], _END - 2, processes, tmp_path)


@pytest.mark.slow
def test_killed_between_segments_and_in_the_middle_of_an_epoch_a_muon_history_goes_on_bit_for_bit(
    history: Callable[..., _History],
    dataset: Dataset,
    processes: multiprocessing.context.ForkServerContext,
    tmp_path: Path,
) -> None:
    steps, samples = SEGMENT_STEPS + 1, 4 * 16  # of the run's epoch in one step: replicas x batch
    run = history(
        1,
        left_out=(0, 1),
        inner=Inner(optimiser="muon", lr=1e-2, matrix_lr=1e-2, schedule="wsd"),
        plan=Plan(inner_steps=steps),
        data=DraftData(source=["corpus"], sequence_length=16, batch_size=16, micro_batches=2, seed=7),
        tokens_per_step=16 * 16,
    )
    epoch = dataset.len_samples("train", 16) / samples
    assert _ROUNDS_BEFORE * steps < epoch < (_ROUNDS_BEFORE + 1) * steps  # ends in the round that is killed
    # After 20 steps come two files of 3 events each, then one step and what ends a round.
    end = steps + 2 * 3 + _END - 4
    _kill_and_go_on(run, [15, SEGMENT_STEPS + 4, end - 3], end - 2, processes, tmp_path, rounds=2)


def _kill_and_go_on(
    run: _History,
    kill_points: Iterable[int],
    committed_from: int,
    processes: multiprocessing.context.ForkServerContext,
    tmp_path: Path,
    rounds: int = 3,
) -> None:
    for _ in range(_ROUNDS_BEFORE):
        run.round()
    for kill_at in kill_points:
        shutil.copytree(run.folder, tmp_path / f"killed-{kill_at}")
    expected = [run.round() for _ in range(rounds)]
    for kill_at in kill_points:
        folder = tmp_path / f"killed-{kill_at}"
        process = processes.Process(target=_until_killed, args=(run.manifest, run.blobs, folder, kill_at))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL
        again = _History(run.manifest, _dataset(run.manifest, run.blobs), run.blobs, folder, left_out=(0, 1))
        assert (again.slot.last.round == _ROUNDS_BEFORE) == (kill_at >= committed_from)  # slot.json's rename
        assert _bits([again.round() for _ in expected]) == _bits(expected), f"killed at {kill_at}"
        assert _names(again) == _names(run)
