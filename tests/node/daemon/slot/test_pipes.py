"""Pipes to the neighbours: who may open one, and what happens when one breaks."""

from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dlx.ledger.abi import checksum
from dlx.node.daemon.slot.pipes import MOST_WANTS, PULSE_SECONDS, WANT_SECONDS, Pipes
from dlx.p2p import wire
from dlx.p2p.frames import NO_DATA, PipeAlive, PipeFrame, PipeTensor, PipeWant, decode_frame, encode_frame
from dlx.p2p.pipe import PipeClosed
from dlx.training.inner.traffic import Incoming

RUN = b"R" * 32
ACCOUNTS = {stage: checksum(bytes([0xA0 + stage]) * 20) for stage in range(3)}
PEERS = {stage: f"peer-{stage}" for stage in range(3)}


class FakePipe:
    """One end of a pipe; `arrive` is what the neighbour sends."""

    def __init__(self, peer_id: str) -> None:
        self.peer_id, self.sent, self.closed, self.came = peer_id, list[PipeFrame](), False, 0
        self._arrive, self._arrived = trio.open_memory_channel[bytes](10_000)

    def arrive(self, data: bytes) -> None:
        self._arrive.send_nowait(data)

    def hang_up(self) -> None:
        self._arrive.close()

    async def send(self, data: bytes, rest: memoryview = NO_DATA) -> None:
        self.sent.append(decode_frame(data + rest))

    async def each(self, hear: Callable[[bytearray], None]) -> None:
        async for data in self._arrived:
            hear(bytearray(data))
        raise PipeClosed("the neighbour hung up")

    async def aclose(self) -> None:
        self.closed = True


class Neighbourhood:
    """The pipes of the member of `stage` of 3 in replica 1, and what they tell their session."""

    def __init__(self, stage: int) -> None:
        self.members = {other: (ACCOUNTS[other], PEERS[other]) for other in ACCOUNTS}
        self.told: list[tuple[object, ...]] = []
        self.dialled: list[str] = []
        self.doing: PipeAlive | None = None
        self.answers: deque[FakePipe] = deque()  # to dialling; PipeClosed when there is none
        self.pipes = Pipes(
            self,  # type: ignore[arg-type]
            wire.PipeHello(RUN, 1, stage, bytes.fromhex(ACCOUNTS[stage][2:])),
            3,
            self,
            lambda reason, peer: self.told.append(("rejected", reason, peer)),
        )

    def member_at(self, stage: int) -> tuple[str, str] | None:
        return self.members.get(stage)

    def incoming(self, link: str) -> dict[str, Incoming]:
        return {"activation": Incoming((5,), "gradient", 1)}

    def on_pipe_open(self, link: str) -> None:
        self.told.append(("open", link))

    def on_pipe_gone(self, link: str) -> None:
        self.told.append(("gone", link))

    def on_want(self, link: str, want: PipeWant) -> None:
        self.told.append(("want", link, want))

    def on_tensor(self, link: str, pipe: int, piece: PipeTensor) -> None:
        self.told.append(("tensor", link, pipe, piece))

    def alive(self) -> PipeAlive | None:
        return self.doing

    def on_alive(self, link: str, pipe: int, moving: bool, doing: str) -> None:
        self.told.append(("alive", link, pipe, moving, doing))

    async def open(self, peer_id: str, hello: wire.PipeHello) -> FakePipe:
        self.dialled.append(peer_id)
        if not self.answers:
            raise PipeClosed("nobody answers")
        return self.answers.popleft()

    def run(self, program: Callable[[], Awaitable[None]], clock: MockClock | None = None) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.pipes.run)
                await program()
                nursery.cancel_scope.cancel()

        trio.run(main, clock=clock)


@pytest.mark.parametrize(
    ("reason", "peer", "hello"),
    [
        (None, PEERS[0], (RUN, 1, 0, ACCOUNTS[0])),
        ("another run or replica", PEERS[0], (b"S" * 32, 1, 0, ACCOUNTS[0])),
        ("another run or replica", PEERS[0], (RUN, 0, 0, ACCOUNTS[0])),
        ("not the member of the previous stage", PEERS[2], (RUN, 1, 2, ACCOUNTS[2])),  # that one is dialled
        ("not the member of the previous stage", PEERS[1], (RUN, 1, 1, ACCOUNTS[1])),
        ("not the member of the previous stage", PEERS[0], (RUN, 1, 0, ACCOUNTS[2])),
        ("not the member of the previous stage", PEERS[2], (RUN, 1, 0, ACCOUNTS[0])),  # the account, not its peer id
        ("not the member of the previous stage", PEERS[0], (RUN, 1, 65535, ACCOUNTS[0])),
    ],
)
def test_only_the_member_of_the_previous_stage_may_open_a_pipe(reason: str | None, peer: str, hello: tuple) -> None:
    run, replica, stage, account = hello
    asked = wire.PipeHello(run, replica, stage, bytes.fromhex(account[2:]))
    assert Neighbourhood(1).pipes.refusal(peer, asked) == reason


def test_a_free_slot_has_no_pipe() -> None:
    here = Neighbourhood(1)
    del here.members[0]
    assert here.pipes.refusal(PEERS[0], wire.PipeHello(RUN, 1, 0, bytes.fromhex(ACCOUNTS[0][2:])))


def test_frames_go_both_ways_until_the_neighbour_hangs_up() -> None:
    here, pipe = Neighbourhood(2), FakePipe(PEERS[1])
    tensor = PipeTensor(3, "gradient", 0, 1, 5, 0, memoryview(b"bytes"))
    came = msgspec.structs.replace(tensor, kind="activation")

    async def program() -> None:
        here.pipes.dial()  # nobody: the last stage is only dialled
        here.pipes.take(pipe)  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        here.pipes.send_want("previous", PipeWant(3, True, 5))
        here.pipes.post("previous", number := here.pipes.number("previous"), tensor)
        here.pipes.post("previous", number + 1, tensor)  # of an attempt over another pipe
        here.pipes.post("next", here.pipes.number("next"), tensor)  # there is none
        pipe.arrive(encode_frame(PipeWant(4, False, 0)))
        await wait_all_tasks_blocked()
        pipe.arrive(encode_frame(came))
        await wait_all_tasks_blocked()
        assert pipe.sent == [PipeWant(3, True, 5), tensor]
        pipe.hang_up()
        await wait_all_tasks_blocked()

    here.run(program)
    assert here.told == [
        ("open", "previous"),
        ("want", "previous", PipeWant(4, False, 0)),
        ("tensor", "previous", 1, came),
        ("gone", "previous"),
    ]
    assert pipe.closed and not here.dialled


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("pipe_malformed", b"\xc1"),
        ("pipe_schema", b"\x91\xa1x"),
        ("pipe_schema", b"\x93\xa1w\x01\x01"),
        ("pipe_flow", encode_frame(PipeTensor(0, "activation", 0, 0, 1 << 40, 0, memoryview(b"")))),
        ("pipe_flow", encode_frame(PipeTensor(0, "gradient", 0, 0, 5, 0, memoryview(b"bytes")))),
    ],
)
def test_a_neighbour_that_sends_nonsense_is_counted_and_cut_off(reason: str, data: bytes) -> None:
    here, pipe = Neighbourhood(1), FakePipe(PEERS[0])

    async def program() -> None:
        here.pipes.take(pipe)  # type: ignore[arg-type]
        pipe.arrive(data)
        await wait_all_tasks_blocked()

    here.run(program, MockClock())
    assert here.told == [("open", "previous"), ("rejected", reason, PEERS[0]), ("gone", "previous")]
    assert pipe.closed


def test_of_many_wants_the_session_hears_a_few_and_the_last_one() -> None:
    """Each costs the round machine a good part of a millisecond, and a neighbour nine bytes."""
    here, pipe = Neighbourhood(1), FakePipe(PEERS[0])

    async def program() -> None:
        here.pipes.take(pipe)  # type: ignore[arg-type]
        for number in range(500):
            pipe.arrive(encode_frame(PipeWant(number, True, 5)))
        await wait_all_tasks_blocked()
        await trio.sleep(2 * WANT_SECONDS)

    here.run(program, MockClock(autojump_threshold=0))
    wants = [told[2] for told in here.told if told[0] == "want"]
    assert wants[-1] == PipeWant(499, True, 5) and len(wants) <= 5


def test_a_neighbour_that_floods_us_with_wants_is_cut_off() -> None:
    here, pipe = Neighbourhood(1), FakePipe(PEERS[0])

    async def program() -> None:
        here.pipes.take(pipe)  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        for number in range(2 * MOST_WANTS + 2):
            pipe.arrive(encode_frame(PipeWant(number, True, 5)))
        await wait_all_tasks_blocked()

    here.run(program, MockClock())
    assert here.told[-2:] == [("rejected", "pipe_flow", PEERS[0]), ("gone", "previous")]


def test_neighbours_say_that_they_are_there_and_hear_it_of_each_other() -> None:
    """Bytes that come show it too, if there are enough of them; a byte now and then does not."""
    here, pipe = Neighbourhood(1), FakePipe(PEERS[0])

    async def program() -> None:
        here.pipes.take(pipe)  # type: ignore[arg-type]
        await trio.sleep(PULSE_SECONDS / 2)
        for alive, frame, bytes_ in (
            (PipeAlive("computing", 1, 20), None, 0),
            (None, PipeAlive("computing", 2, 20), 50),
            (None, None, 100_000),
            (None, None, 10),
        ):
            here.doing, pipe.came = alive, pipe.came + bytes_
            for _ in range(1000 if frame else 0):
                pipe.arrive(encode_frame(frame))
            await trio.sleep(PULSE_SECONDS)

    here.run(program, MockClock(autojump_threshold=0))
    assert pipe.sent == [PipeAlive("computing", 1, 20)]
    assert [told for told in here.told if told[0] == "alive"] == [
        ("alive", "previous", 1, False, "computing step 2 of 20"),
        ("alive", "previous", 1, True, "sending"),
    ]


def test_a_newer_pipe_replaces_the_older_one() -> None:
    here, old, new = Neighbourhood(2), FakePipe(PEERS[1]), FakePipe(PEERS[1])

    async def program() -> None:
        for pipe in (old, new):
            here.pipes.take(pipe)  # type: ignore[arg-type]
            await wait_all_tasks_blocked()
        assert old.closed and not new.closed
        here.pipes.send_want("previous", PipeWant(1, True, 5))
        await wait_all_tasks_blocked()
        assert not old.sent and new.sent == [PipeWant(1, True, 5)]

    here.run(program)
    assert here.told[:3] == [("open", "previous"), ("gone", "previous"), ("open", "previous")]


def test_the_next_stage_is_dialled_until_it_answers_and_left_when_its_slot_changes_hands() -> None:
    here, pipe = Neighbourhood(0), FakePipe(PEERS[1])

    async def program() -> None:
        here.pipes.dial()
        await trio.sleep(2)
        assert set(here.dialled) == {PEERS[1]} and len(here.dialled) > 1 and not here.told
        here.answers.append(pipe)
        await trio.sleep(2)
        assert here.told == [("open", "next")]
        here.pipes.check()
        await wait_all_tasks_blocked()
        assert not pipe.closed
        here.members[1] = (ACCOUNTS[2], PEERS[2])
        here.pipes.check()
        await wait_all_tasks_blocked()
        assert pipe.closed and here.told[-1] == ("gone", "next")
        await trio.sleep(2)
        assert here.dialled[-1] == PEERS[2]

    here.run(program, MockClock(autojump_threshold=0))
