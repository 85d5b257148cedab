"""The training process's side of the pipes, and the socket between the two processes of a node."""

import threading

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from node.errors import Failure
from node.trainer import messages as m
from node.trainer import process
from node.trainer.client import Trainer
from p2p.frames import PipeTensor, PipeWant, decode_frame, encode_frame
from p2p.wire import WireError
from training.pipeline import PipeBroken


def link() -> process.SocketLink:
    made = process.SocketLink("next", lambda message: None)
    made.begin(3)
    return made


def test_frames_are_matched_by_what_they_are_and_not_by_when_they_come() -> None:
    one = link()
    one.push(PipeTensor(3, "gradient", 1, 1, b"later"))
    one.push(PipeTensor(4, "activation", 0, 0, b"of the next round"))
    threading.Timer(0.01, one.push, [PipeTensor(3, "gradient", 1, 0, b"sooner")]).start()
    assert one.recv("gradient", 1, 0) == b"sooner"
    assert one.recv("gradient", 1, 1) == b"later"
    one.begin(4)
    assert one.recv("activation", 0, 0) == b"of the next round"


def test_a_closed_link_breaks_whoever_waits_and_forgets_what_it_held() -> None:
    one = link()
    one.push(PipeTensor(3, "barrier", 0, 0, b"stale"))
    one.close("the neighbour is gone")
    with pytest.raises(PipeBroken, match="the neighbour is gone"):
        one.recv("barrier", 0, 0)
    with pytest.raises(PipeBroken):
        one.send("barrier", 0, 0, b"")


def test_a_new_pipe_voids_the_frames_of_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "RECV_SECONDS", 0.05)
    one = link()
    one.push(PipeTensor(3, "release", 0, 0, b"of an aborted attempt"))
    one.forget()
    with pytest.raises(PipeBroken, match="sent no release"):
        one.recv("release", 0, 0)


def test_a_neighbour_that_floods_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_WAITING", 100)
    one = link()
    for step in range(20):
        one.push(PipeTensor(3, "activation", step, 0, bytes(10)))
    with pytest.raises(PipeBroken, match="more than was asked for"):
        one.recv("gradient", 0, 0)


@given(st.binary(max_size=200))
def test_pipe_frames_from_anybody_decode_or_are_refused(data: bytes) -> None:
    try:
        assert isinstance(decode_frame(data), PipeTensor | PipeWant)
    except WireError:
        pass


def test_pipe_frames_survive_the_wire_and_bad_fields_do_not() -> None:
    for frame in (PipeTensor(7, "activation", 2, 1, b"\0" * 9), PipeWant(7, True)):
        assert decode_frame(encode_frame(frame)) == frame
    for wrong in (["t", -1, "a", 0, 0, b""], ["t", 1, "a" * 17, 0, 0, b""], ["w", 1, 1], ["x", 1], ["t"]):
        with pytest.raises(WireError):
            decode_frame(msgspec.msgpack.encode(wrong))


def test_a_training_process_that_cannot_open_its_slot_says_why(tmp_path) -> None:  # type: ignore[no-untyped-def]
    async def attempt() -> None:
        async with trio.open_nursery() as nursery:
            trainer = Trainer()
            await nursery.start(trainer.run)
            await trainer.open(m.Open(bytes(32), 0, 0, str(tmp_path), str(tmp_path)), lambda message: None)

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(attempt)
    failures = caught.value.subgroup(Failure)
    assert failures is not None and "No such file" in str(failures.exceptions[0].exceptions[0])  # type: ignore[attr-defined]
