import math
import struct
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from dlx.training.data.shards import Dataset
from dlx.training.inner.pipeline import (
    Bytes,
    Link,
    Norms,
    PipeBroken,
    Stopped,
    add_norms,
    barrier,
    queue_links,
    run_step,
    squares_and_loss,
)
from dlx.training.recipe.draft import DraftData
from dlx.training.recipe.manifest import Manifest
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

SPLITS = [[(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]]


def _batch(dataset: Dataset, manifest: Manifest) -> Sequence[Tensor]:
    data = manifest.data
    batch = dataset.batch("train", range(data.batch_size), data.sequence_length)
    return batch.split(data.batch_size // data.micro_batches)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("split", SPLITS)
def test_gradients_are_those_of_the_unsplit_model_bit_for_bit(
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    split: list[tuple[int, int]],
    micro_batches: int,
    build_stages: Callable[..., Any],
    together: Callable[..., Any],
) -> None:
    manifest = tiny_run(split, data=_data(micro_batches))
    models, batches = build_stages(manifest), _batch(dataset, manifest)

    options = {key: value for key, value in manifest.model.config.items() if key != "model_type"}
    unsplit = LlamaForCausalLM(LlamaConfig(**options))
    unsplit.load_state_dict({name: tensor for model in models for name, tensor in model.state_dict().items()})
    expected_loss = 0.0
    for batch in batches:
        logits = unsplit(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / micro_batches
        loss.backward()
        expected_loss += loss.item()
    expected = {name: parameter.grad for name, parameter in unsplit.named_parameters()}

    def work(stage: int, previous: Link | None, following: Link | None) -> tuple[float | None, tuple[Norms, float]]:
        data = batches if previous is None or following is None else None
        loss = run_step(models[stage], 3, data, previous, following)
        gradients = [parameter.grad for parameter in models[stage].parameters()]
        return loss, add_norms(*squares_and_loss(gradients, loss), 3, previous, following)

    results = together(len(split), work)
    found = {name: parameter.grad for model in models for name, parameter in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name
    assert [loss for loss, _ in results] == [None] * (len(split) - 1) + [expected_loss]
    squares = sum(float(gradient.double().square().sum()) for gradient in expected.values())
    assert {(norms.replica, loss) for _, (norms, loss) in results} == {(results[0][1][0].replica, expected_loss)}
    assert results[0][1][0].replica == pytest.approx(squares**0.5, rel=1e-12)
    along = [norms for _, (norms, _) in results]
    assert [norms.received for norms in along] == [0.0, *(norms.passed_on for norms in along[:-1])]


def _data(micro_batches: int) -> DraftData:
    return DraftData(source=["x"], sequence_length=16, batch_size=4, micro_batches=micro_batches, seed=7)


@settings(max_examples=20)
@given(
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=12, max_size=12),
    first=st.integers(1, 11),
    second=st.integers(1, 11),
)
def test_the_norm_does_not_depend_on_where_the_model_is_split(
    values: list[float], first: int, second: int, together: Callable[..., Any]
) -> None:
    tensors = [torch.tensor([value, value / 3]) for value in values]
    cuts = [0, *sorted((first, second)), 12]
    whole = add_norms(*squares_and_loss(tensors, torch.tensor(2.5)), 0, None, None)
    parts = [tensors[low:high] for low, high in pairwise(cuts)]

    def work(stage: int, previous: Link | None, following: Link | None) -> tuple[float, float]:
        norms, loss = add_norms(
            *squares_and_loss(parts[stage], torch.tensor(2.5) if stage == 2 else None), 0, previous, following
        )
        return norms.replica, loss

    assert together(3, work) == [(whole[0].replica, whole[1])] * 3


class _Recording:
    """A link that notes what passes, and may tamper with it."""

    def __init__(self, link: Link, log: list[tuple[str, int]], tamper: Callable[[str, bytes], bytes | None]) -> None:
        self._link, self._log, self._tamper = link, log, tamper

    def send(self, kind: str, step: int, micro: int, data: bytes) -> None:
        self._log.append((kind, micro))
        changed = self._tamper(kind, bytes(data))
        if changed is not None:
            self._link.send(kind, step, micro, changed)

    def recv(self, kind: str, step: int, micro: int) -> bytes:
        return self._link.recv(kind, step, micro)


def test_at_most_as_many_micro_batches_are_in_flight_as_stages_follow(
    tiny_run: Callable[..., Manifest], dataset: Dataset, build_stages: Callable[..., Any], together: Callable[..., Any]
) -> None:
    manifest = tiny_run(SPLITS[2], data=_data(4))
    models, batches = build_stages(manifest), _batch(dataset, manifest)
    log: list[tuple[str, int]] = []

    def work(stage: int, previous: Link | None, following: Link | None) -> float | None:
        if stage == 1:
            assert previous is not None and following is not None
            previous = _Recording(previous, log, lambda kind, data: data)
            following = _Recording(following, log, lambda kind, data: data)
        return run_step(models[stage], 0, None if stage == 1 else batches, previous, following)

    together(3, work)
    assert log == [
        ("activation", 0),
        ("activation", 1),
        ("gradient", 0),
        ("activation", 2),
        ("gradient", 1),
        ("activation", 3),
        ("gradient", 2),
        ("gradient", 3),
    ]


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda kind, data: data[:-4], "expected 2048 bytes, got 2044"),
        (lambda kind, data: data + bytes(4), "expected 2048 bytes, got 2052"),
        (lambda kind, data: b"", "expected 2048 bytes, got 0"),
        (lambda kind, data: None, r"no activation of step 0, micro-batch 0 within 4 s"),
    ],
)
def test_a_neighbour_that_sends_something_else_breaks_the_pipe(
    tiny_run: Callable[..., Manifest],
    dataset: Dataset,
    tamper: Callable[[str, bytes], bytes | None],
    message: str,
    build_stages: Callable[..., Any],
    together: Callable[..., Any],
) -> None:
    manifest = tiny_run(SPLITS[1])
    models, batches = build_stages(manifest), _batch(dataset, manifest)

    def work(stage: int, previous: Link | None, following: Link | None) -> float | None:
        if following is not None:
            following = _Recording(following, [], tamper)
        return run_step(models[stage], 0, batches, previous, following)

    first, second = together(2, work, timeout=4.0)
    assert isinstance(first, PipeBroken)
    with pytest.raises(PipeBroken, match=message):
        raise second


@pytest.mark.parametrize(
    ("data", "message"),
    [(struct.pack("<d", -1.0), "expected norms and losses"), (bytes(7), "expected 8 bytes of float64, got 7")],
)
def test_a_norm_that_cannot_be_one_breaks_the_pipe(data: bytes, message: str) -> None:
    here, there = queue_links(0.5)
    here.send("norm", 0, 0, data)
    with pytest.raises(PipeBroken, match=message):
        add_norms(*squares_and_loss([torch.ones(2)], torch.tensor(1.0)), 0, there, None)


def test_a_norm_below_this_stages_own_breaks_the_pipe() -> None:
    """Or a neighbour could have a stage take its gradients without clipping."""
    here, there = queue_links(0.5)
    there.send("total", 0, 0, struct.pack("<2d", 1.4, 2.0))
    with pytest.raises(PipeBroken, match=r"cannot be 1\.4: up to this stage it is 1\.41421"):
        add_norms(*squares_and_loss([torch.ones(2)], None), 0, None, here)


def test_a_message_of_another_step_breaks_the_pipe() -> None:
    here, there = queue_links(0.5)
    here.send("activation", 4, 0, b"")
    with pytest.raises(PipeBroken, match="expected activation of step 5, micro-batch 0, got"):
        there.recv("activation", 5, 0)


def test_a_step_stops_when_asked(
    tiny_run: Callable[..., Manifest], dataset: Dataset, build_stages: Callable[..., Any]
) -> None:
    manifest = tiny_run(SPLITS[0], data=_data(4))
    (model,) = build_stages(manifest)
    asked = iter([False, False, False, True])
    with pytest.raises(Stopped):
        run_step(model, 0, _batch(dataset, manifest), None, None, lambda: next(asked))
    assert next(asked, None) is None


def test_nobody_passes_the_barrier_before_all_have_come(together: Callable[..., Any]) -> None:
    arrived: list[int] = []
    everyone = threading.Barrier(3, timeout=PATIENCE)

    def work(stage: int, previous: Link | None, following: Link | None) -> int:
        everyone.wait()
        arrived.append(stage)
        barrier(9, previous, following)
        return len(arrived)

    assert together(3, work) == [3, 3, 3]


def test_the_barrier_fails_when_a_stage_does_not_come(together: Callable[..., Any]) -> None:
    def work(stage: int, previous: Link | None, following: Link | None) -> None:
        if stage != 1:
            barrier(9, previous, following)

    first, _, last = together(3, work, timeout=0.2)
    assert isinstance(first, PipeBroken)
    assert isinstance(last, PipeBroken)


@pytest.mark.parametrize("who", [0, 1])
def test_neighbours_who_recorded_different_things_both_abandon_the_round(
    who: int, together: Callable[..., Any]
) -> None:
    """So no honest stage publishes what its neighbour's trace contradicts."""

    def work(stage: int, previous: Link | None, following: Link | None) -> None:
        mine = b"other" if stage == who else b"same"
        barrier(9, previous, following, behind=mine, ahead=mine)

    first, second, third = together(3, work, timeout=4.0)
    assert isinstance(first, PipeBroken) and isinstance(second, PipeBroken) and isinstance(third, PipeBroken)
    assert "recorded other tensors" in f"{first} {second} {third}"


def test_neighbours_who_recorded_the_same_have_each_others_signatures(together: Callable[..., Any]) -> None:
    def work(stage: int, previous: Link | None, following: Link | None) -> tuple[bytes, bytes]:
        links = [None if link is None else _Signing(link, b"of %d" % stage) for link in (previous, following)]
        return barrier(9, *links, behind=b"%d" % (stage - 1), ahead=b"%d" % stage)

    assert together(3, work) == [(b"", b"of 1"), (b"of 0", b"of 2"), (b"of 1", b"")]


class _Signing:
    """A link whose node signs what goes over it."""

    def __init__(self, link: Link, signature: bytes) -> None:
        self._link, self._signature, self.recv = link, signature, link.recv

    def send(self, kind: str, step: int, micro: int, data: Bytes) -> None:
        self._link.send(kind, step, micro, bytes(data) + self._signature)


def test_a_norm_is_the_root_that_every_machine_computes() -> None:
    """A power rounds this one down, and a trace with it would be false."""
    squares = 74066.95943331503
    norms, _ = add_norms([squares], 1.0, 0, None, None)
    assert norms.replica == math.sqrt(squares)
