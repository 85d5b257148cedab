"""What may come over a pipe: all that honest neighbours send, however far ahead they run, and nothing else."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlx.node.daemon.slot.pipes import Flow
from dlx.p2p.frames import TENSOR_PIECE, PipeTensor
from dlx.p2p.wire import WireError
from dlx.training.inner.pipeline import Bytes, Link, add_norms, barrier, run_step, squares_and_loss
from dlx.training.inner.traffic import AGREE, Incoming, incoming
from dlx.training.models.stages import StageModel
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.manifest import Manifest
from tests.node.trainer.conftest import blobs, corpus, data_manifest, dataset, one_thread, tiny_run
from tests.patience import PATIENCE
from tests.training.conftest import build_stages, together

__all__ = ["blobs", "build_stages", "corpus", "data_manifest", "dataset", "one_thread", "tiny_run", "together"]

SIZE = TENSOR_PIECE + 10  # two pieces
AHEAD = 3
RULES = {"activation": Incoming((SIZE,), "gradient", AHEAD), "norm": Incoming((8,), "total", 1)}


def pieces(kind: str, micro: int, size: int = SIZE, round: int = 0, step: int = 0) -> Iterator[PipeTensor]:
    whole = memoryview(bytes(size))
    for offset in range(0, max(1, size), TENSOR_PIECE):
        data = whole[offset : offset + TENSOR_PIECE]
        yield PipeTensor(round, kind, step, micro, size, offset, data)


def send(flow: Flow, kind: str, micro: int, size: int = SIZE) -> None:
    for piece in pieces(kind, micro, size):
        flow.check_received(piece)


def answer(flow: Flow, kind: str, micro: int, size: int = SIZE) -> None:
    for piece in pieces(kind, micro, size):
        flow.note_sent(piece)


def test_a_neighbour_runs_as_far_ahead_as_one_forward_one_backward_and_no_further() -> None:
    flow = Flow(RULES)
    for micro in range(AHEAD):
        send(flow, "activation", micro)
    with pytest.raises(WireError, match="more of activation than was asked for"):
        send(flow, "activation", AHEAD)
    answer(flow, "gradient", 0)
    send(flow, "activation", AHEAD)


def test_an_answer_that_is_not_whole_pays_for_nothing() -> None:
    flow = Flow(RULES)
    for micro in range(AHEAD):
        send(flow, "activation", micro)
    flow.note_sent(next(pieces("gradient", 0)))
    with pytest.raises(WireError):
        send(flow, "activation", AHEAD)


@pytest.mark.parametrize("stages", [2, 8])
@pytest.mark.parametrize("micro_batches", [1, 4, 64])
def test_the_first_stage_may_run_ahead_of_a_slow_second_one(stages: int, micro_batches: int) -> None:
    """The second is still hashing its start: it answers nothing yet."""
    manifest: Any = SimpleNamespace(
        stages=[(0, 1)] * stages,
        data=SimpleNamespace(batch_size=micro_batches, micro_batches=micro_batches, sequence_length=8, private=False),
        model=SimpleNamespace(config={"model_type": "llama"}),
    )
    rules = _rules(manifest, 1, "previous")
    assert rules["activation"].ahead == min(stages, micro_batches)


def _rules(manifest: Any, stage: int, link: str) -> dict[str, Incoming]:
    """Without a model: every tensor has 8 bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlx.training.inner.traffic.activation_bytes", lambda manifest: 8)
        patch.setattr("dlx.training.inner.traffic.embedding_bytes", lambda manifest: 0)
        return incoming(manifest, stage, link)


@pytest.mark.parametrize(
    ("wrong", "pieces"),
    [
        ("another kind", [PipeTensor(0, "gradient", 0, 0, 8, 0, memoryview(bytes(8)))]),
        ("another size", [PipeTensor(0, "norm", 0, 0, 9, 0, memoryview(bytes(9)))]),
        ("less than it says", [PipeTensor(0, "norm", 0, 0, 8, 0, memoryview(bytes(7)))]),
        ("more than it says", [PipeTensor(0, "norm", 0, 0, 8, 0, memoryview(bytes(9)))]),
        ("the end first", list(pieces("activation", 0))[1:]),
        ("the beginning twice", [next(pieces("activation", 0))] * 2),
        ("the end twice", [*pieces("activation", 0), list(pieces("activation", 0))[1]]),
        ("two at once", [next(pieces("activation", 0)), next(pieces("activation", 1))]),
        ("the end of another", [next(pieces("activation", 0)), list(pieces("activation", 1))[1]]),
        ("another kind within", [next(pieces("activation", 0)), *pieces("norm", 0, 8)]),
        ("of another round", [next(pieces("activation", 0)), list(pieces("activation", 0, round=1))[1]]),
        ("crumbs", [PipeTensor(0, "activation", 0, 0, SIZE, 0, memoryview(bytes(10)))]),
        ("norms that nobody answered", [*pieces("norm", 0, 8), *pieces("norm", 0, 8)]),
    ],
)
def test_what_no_honest_neighbour_sends_is_refused(wrong: str, pieces: Sequence[PipeTensor]) -> None:
    flow = Flow(RULES)
    for piece in pieces[:-1]:
        flow.check_received(piece)
    with pytest.raises(WireError) as refused:
        flow.check_received(pieces[-1])
    assert refused.value.reason == "flow", wrong


_piece = st.builds(
    lambda kind, step, micro, total, offset, length: PipeTensor(
        0, kind, step, micro, total, offset, memoryview(bytes(length))
    ),
    st.sampled_from(["activation", "norm", "gradient", "total"]),
    st.integers(0, 1),
    st.integers(0, 4),
    st.sampled_from([8, SIZE]),
    st.sampled_from([0, 8, TENSOR_PIECE]),
    st.sampled_from([0, 8, 10, TENSOR_PIECE]),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), _piece), max_size=30))
def test_whatever_comes_what_is_held_is_bounded_by_what_was_asked_for(frames: list[tuple[bool, PipeTensor]]) -> None:
    flow, held, answered = Flow(RULES), 0, 0
    for ours, piece in frames:
        if ours:
            flow.note_sent(piece)
            answered += piece.is_last * SIZE
            continue
        try:
            flow.check_received(piece)
        except WireError:
            return  # the pipe is closed
        held += len(piece.data)
        assert held <= AHEAD * SIZE + 8 + answered


class _Checked:
    """A link whose neighbour's `Flow` sees what is sent at once: nobody is ever further ahead than here."""

    def __init__(self, link: Link, flow: Flow, lock: threading.Lock) -> None:
        self._link, self._lock = link, lock
        self.flow = flow
        self.neighbour: _Checked

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        if kind in AGREE:
            data = bytes(data) + bytes(65)  # as a node signs it
        with self._lock:
            piece = PipeTensor(0, kind, step, micro, len(data), 0, memoryview(data).cast("B"))
            self.flow.note_sent(piece)
            self.neighbour.flow.check_received(piece)
        self._link.send(kind, step, micro, data)

    def recv(self, kind: str, step: int, micro: int) -> Bytes:
        return self._link.recv(kind, step, micro)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3), (0, 1, 2, 3)])
def test_honest_stages_are_never_refused(
    tiny_run: Callable[..., Manifest],
    build_stages: Callable[[Manifest], list[StageModel]],
    together: Callable[..., list[Any]],
    dataset: Any,
    cuts: tuple[int, ...],
    micro_batches: int,
    tied: bool,
) -> None:
    data = DraftData(source=["x"], sequence_length=16, batch_size=4, micro_batches=micro_batches, seed=7)
    manifest = tiny_run(list(pairwise(cuts)), data=data, config={"tie_word_embeddings": tied})
    models, lock, ends = build_stages(manifest), threading.Lock(), dict[tuple[int, str], _Checked]()
    batch = dataset.batch("train", [0, 1, 2, 3], 16).split(4 // micro_batches)
    met = threading.Barrier(len(manifest.stages))

    def checked(stage: int, name: str, link: Link | None) -> _Checked | None:
        if link is None:
            return None
        return ends.setdefault((stage, name), _Checked(link, Flow(incoming(manifest, stage, name)), lock))

    def work(stage: int, previous: Link | None, following: Link | None) -> None:
        behind, ahead = checked(stage, "previous", previous), checked(stage, "next", following)
        met.wait(PATIENCE)
        if behind is not None:
            behind.neighbour = ends[stage - 1, "next"]
        if ahead is not None:
            ahead.neighbour = ends[stage + 1, "previous"]
        met.wait(PATIENCE)
        for step in range(3):
            own = batch if behind is None or ahead is None else None
            loss = run_step(models[stage], step, own, behind, ahead)
            gradients = [one.grad for one in models[stage].parameters() if one.grad is not None]
            add_norms(*squares_and_loss(gradients, loss), step, behind, ahead)
        barrier(3, behind, ahead, bytes(32), bytes(32))

    assert together(len(manifest.stages), work) == [None] * len(manifest.stages)
