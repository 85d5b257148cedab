"""The training process's side of the pipes, and the socket between the two processes of a node."""

import errno
import queue
import random
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from dlx.ground.blobs import Damaged
from dlx.node.devnet.devnet import draft
from dlx.node.trainer import links, process
from dlx.node.trainer import messages as m
from dlx.node.trainer.client import BlobTrouble, LocalTrouble, Trainer, UnusableInput, error_of
from dlx.p2p.frames import TENSOR_PIECE, PipeFrame, PipeTensor, PipeWant, decode_frame, encode_frame
from dlx.p2p.wire import WireError
from dlx.training.codecs import CodecError
from dlx.training.data.shards import DataDamaged
from dlx.training.inner.loop import TrainingError
from dlx.training.inner.pipeline import PipeBroken
from dlx.training.models.placement import Placement
from dlx.training.outer.step import Version
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import canonical_bytes, manifest_hash
from dlx.training.recipe.recipe import BlobRef, Plan, WeightsRef
from dlx.training.slot.rounds import RoundInputs
from tests.patience import PATIENCE

GENESIS = [WeightsRef("ab" * 32, 1000, "cd" * 32)] * 2  # of two stages


def link() -> links.SocketLink:
    made = links.SocketLink("next", lambda message: None)
    made.begin(3, 1)
    return made


def manifest_of(stages: int) -> Any:
    return SimpleNamespace(stages=[(0, 1)] * stages, timing=SimpleNamespace(round_timeout=1))


def whole(round: int, kind: str, step: int, micro: int, data: bytes) -> PipeTensor:
    return PipeTensor(round, kind, step, micro, len(data), 0, memoryview(data))


def test_frames_are_matched_by_what_they_are_and_not_by_when_they_come() -> None:
    one = link()
    one.push(1, whole(3, "gradient", 1, 1, b"later"))
    one.push(1, whole(4, "activation", 0, 0, b"of the next round"))
    threading.Timer(0.01, one.push, [1, whole(3, "gradient", 1, 0, b"sooner")]).start()
    assert one.recv("gradient", 1, 0) == b"sooner"
    assert one.recv("gradient", 1, 1) == b"later"
    one.begin(4, 1)
    assert one.recv("activation", 0, 0) == b"of the next round"


def test_a_closed_link_breaks_whoever_waits_and_forgets_what_it_held() -> None:
    one = link()
    one.push(1, whole(3, "barrier", 0, 0, b"stale"))
    one.close("the neighbour is gone")
    with pytest.raises(PipeBroken, match="the neighbour is gone"):
        one.recv("barrier", 0, 0)
    with pytest.raises(PipeBroken):
        one.send("barrier", 0, 0, b"")


def test_a_new_pipe_voids_the_frames_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RECV_SECONDS", 0.05)
    one = link()
    one.push(1, whole(3, "release", 0, 0, b"of an aborted attempt"))
    one.push(2, whole(3, "norm", 0, 0, b"by the new pipe"))
    one.begin(3, 2)
    assert one.recv("norm", 0, 0) == b"by the new pipe"
    with pytest.raises(PipeBroken, match="sent no release"):
        one.recv("release", 0, 0)


@pytest.mark.parametrize("size", [0, 1, TENSOR_PIECE, TENSOR_PIECE + 1, 3 * TENSOR_PIECE - 1])
def test_a_message_of_any_size_goes_in_pieces(size: int) -> None:
    sent: list[m.Tensor] = []
    here, there, data = links.SocketLink("next", sent.append), link(), random.Random(0).randbytes(size)
    here.begin(3, 7)
    here.send("activation", 2, 1, data)
    assert [one.pipe for one in sent] == [7] * max(1, -(-size // TENSOR_PIECE))
    for one in sent:
        there.push(1, msgspec.msgpack.decode(msgspec.msgpack.encode(one.piece), type=PipeTensor))
    assert there.recv("activation", 2, 1) == data


def test_a_neighbour_whose_pieces_come_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow link one tensor may take longer than the patience with silence."""
    sent: list[m.Tensor] = []
    here, there = links.SocketLink("next", sent.append), link()
    here.begin(3, 1)
    here.send("activation", 0, 0, data := bytes(4 * TENSOR_PIECE))
    waited: list[float | None] = []
    now = clock(monkeypatch)

    def wait(seconds: float | None) -> bool:
        waited.append(seconds)
        now[0] += links.RECV_SECONDS - 1
        there.push(1, sent[len(waited) - 1].piece)
        return True

    monkeypatch.setattr(there._changed, "wait", wait)
    assert there.recv("activation", 0, 0) == data
    assert waited == [links.RECV_SECONDS] * 4, "the whole patience anew after each piece"


@pytest.mark.parametrize(
    ("sign", "seconds"),
    [
        (None, links.RECV_SECONDS),  # silent
        (False, 300.0),  # it only says that it is there: it is believed for a round timeout
        (True, 5 * 300.0),  # it sends, slowly: for as long as it does
    ],
)
def test_slow_and_silent_neighbours_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, sign: bool | None, seconds: float
) -> None:
    now, one = clock(monkeypatch), link()
    one.begin(3, 1, round_timeout=300.0)

    def wait(seconds: float) -> bool:
        now[0] += min(seconds, 5.0)
        if sign is not None and now[0] < 4 * 300.0:
            one.alive(1, sign, "computing step 2 of 20")
        one.alive(2, True, "by another pipe")
        return True

    monkeypatch.setattr(one._changed, "wait", wait)
    said = r" \(it said: computing step 2 of 20\)" if sign is not None else ""
    with pytest.raises(PipeBroken, match=f"sent no gradient of step 0 for .* s{said}"):
        one.recv("gradient", 0, 0)
    assert 0.7 * seconds < now[0] <= seconds + 5


def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the training process goes by."""
    now = [0.0]
    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@given(st.binary(max_size=200))
def test_pipe_frames_from_anybody_decode_or_are_refused(data: bytes) -> None:
    try:
        assert isinstance(decode_frame(data), PipeFrame)
    except WireError:
        pass


def test_pipe_frames_survive_the_wire_and_bad_fields_do_not() -> None:
    for frame in (whole(7, "activation", 2, 1, b"\0" * 9), PipeWant(7, True, 5)):
        assert decode_frame(encode_frame(frame)) == frame
    for wrong in (
        ["t", -1, "a", 0, 0, 0, 0, b""],
        ["t", 1, "a" * 17, 0, 0, 0, 0, b""],
        ["t", 1, "a", 0, 0, -1, 0, b""],
        ["t", 1, "a", 0, 0, 1 << 63, 0, b""],
        ["t", 1, "a", 0, 0, 1 << 40, 0, bytes(TENSOR_PIECE + 1)],
        ["w", 1, 1],
        ["x", 1],
        ["t"],
    ):
        with pytest.raises(WireError):
            decode_frame(msgspec.msgpack.encode(wrong))


@pytest.mark.parametrize("stages", [1, 2])
def test_a_round_that_diverges_is_abandoned_and_says_why(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object) -> None:
        raise TrainingError("the loss is nan")

    said: list[Any] = []
    with socket.socket() as channel:
        server: Any = process.Server(channel)
        monkeypatch.setattr(server, "send", said.append)
        server._stage, server._manifest = (
            0,
            manifest_of(stages),
        )
        server._rounds = queue.SimpleQueue()
        server._rounds.put(m.Train(RoundInputs(3, Plan(), 0, 10, 3, bytes(32))))
        server._rounds.put(None)  # the next order: no round
        with pytest.raises(AttributeError):
            server._train_rounds(SimpleNamespace(train=train), lambda: None)
    assert said == [m.Abandoned(3, "the loss is nan", m.Trouble(m.Kind.WRONG, "the loss is nan"))]


def test_a_gpu_that_torch_cannot_use_is_noted_as_the_slot_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.mps.is_available", lambda: False)
    monkeypatch.setattr(process, "unused_gpu", lambda: "torch cannot use the GPU")
    (tmp_path / "run.toml").write_text(draft(1, 1, 2).replace("text/*.py", "run.toml"))
    manifest = complete(draft_from_toml(tmp_path / "run.toml"), GENESIS, BlobRef("ab" * 32, 1000))
    (tmp_path / manifest_hash(manifest).hex()).write_bytes(canonical_bytes(manifest))

    def notes(device: str) -> tuple[str, ...]:
        here, there = socket.socketpair()
        with here, there:
            asked = m.Open(manifest_hash(manifest), 0, None, str(tmp_path), placement=Placement(device=device))
            threading.Thread(target=process.Server(there)._open, args=(asked,), daemon=True).start()
            here.settimeout(PATIENCE)
            reader = here.makefile("rb")
            (size,) = m.LENGTH.unpack(reader.read(m.LENGTH.size))
            opened = m.from_trainer.decode(reader.read(size))
        assert isinstance(opened, m.Opened)
        return opened.notes

    assert "trains on the CPU: torch cannot use the GPU" in notes("auto")
    assert not [note for note in notes("cpu") if "trains on the CPU" in note]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_full_disk_in_a_round_abandons_it_and_says_nothing_about_its_inputs(
    stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[Any] = []
    with socket.socket() as channel:
        server: Any = process.Server(channel)
        monkeypatch.setattr(server, "send", said.append)
        server._stage, server._manifest = (
            0,
            manifest_of(stages),
        )
        server._rounds.put(m.Train(RoundInputs(3, Plan(), 0, 10, 3, bytes(32))))
        server._rounds.put(None)  # the next order: no round
        with pytest.raises(AttributeError):
            server._train_rounds(SimpleNamespace(train=train), lambda: None)
    (abandoned,) = said
    assert abandoned.trouble.kind is m.Kind.LOCAL and "No space left" in abandoned.reason


@pytest.mark.parametrize(
    ("error", "kind", "blobs"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), m.Kind.LOCAL, ()),
        (MemoryError(), m.Kind.LOCAL, ()),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), m.Kind.LOCAL, ()),
        (Damaged(b"b" * 32, "its bytes do not match its name"), m.Kind.BLOBS, (b"b" * 32,)),
        (DataDamaged(b"d" * 32, "expected 3 bytes"), m.Kind.BLOBS, (b"d" * 32,)),
        (CodecError("a scale is not finite"), m.Kind.WRONG, ()),
        (TrainingError("the loss is nan"), m.Kind.WRONG, ()),
    ],
)
def test_only_content_that_is_what_its_name_says_is_ever_called_wrong(
    error: Exception, kind: m.Kind, blobs: tuple[bytes, ...]
) -> None:
    trouble = process.trouble_of(error)
    raised = error_of(trouble)
    assert (trouble.kind, trouble.blobs) == (kind, blobs)
    expected = {m.Kind.LOCAL: LocalTrouble, m.Kind.BLOBS: BlobTrouble, m.Kind.WRONG: UnusableInput}[kind]
    assert type(raised) is expected and getattr(raised, "blobs", ()) == blobs and str(error) in str(raised)


def test_requests_have_their_time_from_when_it_is_their_turn_and_more_of_it_for_many_payloads() -> None:
    trainer, done = Trainer(), list[str]()
    trainer._is_open.set()
    sent, to_send = trio.open_memory_channel[m.ToTrainer](10)
    outgoing: Any = SimpleNamespace(put=lambda parts: sent.send_nowait(m.to_trainer.decode(b"".join(parts)[4:])))
    trainer._outgoing = outgoing

    async def ask(what: str) -> None:
        await (trainer.check(bytes(32), Plan()) if what == "check" else trainer.outer(bytes(32), bytes(32), three))
        done.append(what)

    async def work() -> None:
        async for message in to_send:
            assert isinstance(message, m.Outer | m.Check)
            await trio.sleep(100 * (len(message.payloads) if isinstance(message, m.Outer) else 1))
            trainer._dispatch(m.Answer(message.request, version=Version(*(bytes(32),) * 4)))

    async def all_at_once() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            async with trio.open_nursery() as asking:
                for what in ("check", "check", "check", "outer"):
                    asking.start_soon(ask, what)
            nursery.cancel_scope.cancel()

    three = (m.SealedPayload(bytes(32), 1, 32768, Plan()),) * 3
    trio.run(all_at_once, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sorted(done) == ["check", "check", "check", "outer"]


@pytest.mark.parametrize("size", [0, 8, 1 << 17])
def test_a_tensor_for_the_other_process_is_not_copied(size: int) -> None:
    tensor = m.Tensor("next", 7, whole(3, "activation", 2, 1, bytes(size)))
    head, data = m.pack_in_two(tensor)
    assert head + data == m.pack(tensor) and data is tensor.piece.data
