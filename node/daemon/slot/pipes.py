"""Pipes to the members of the neighbouring stages of our replica: kept open, checked against the ledger, pumped."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Protocol

import trio
from eth_utils import to_canonical_address

from dlx.ground.backoff import Backoff
from dlx.p2p import wire
from dlx.p2p.frames import TENSOR_PIECE, PipeAlive, PipeFrame, PipeTensor, PipeWant, decode_frame, in_two
from dlx.p2p.pipe import Pipe, PipeClosed, PipeService
from dlx.p2p.wire import WireError
from dlx.training.inner.traffic import Incoming

REDIAL = Backoff(0.5, 5.0)
WANT_SECONDS = 0.05  # between two wants of a neighbour that the session hears: each makes it think
PULSE_SECONDS = 5.0  # between two words that we are there, and two looks whether anything came
LEAST_RATE = 1024.0  # bytes a second: a neighbour that sends less does not get on
MOST_WANTS = 1000  # that may come meanwhile: no honest neighbour changes its mind so often
log = logging.getLogger(__name__)


class PipeHandler(Protocol):
    """What pipes ask, and whom they tell. Links are "previous" and "next"; pipes with numbers of their own lead over
    each, one after the other."""

    def member_at(self, stage: int) -> tuple[str, str] | None:
        """(account, peer id) of our replica's member of a stage."""

    def incoming(self, link: str) -> Mapping[str, Incoming]:
        """What may come there."""

    def on_pipe_open(self, link: str) -> None: ...

    def on_pipe_gone(self, link: str) -> None: ...

    def on_want(self, link: str, want: PipeWant) -> None:
        """Of wants that come close together the newest."""

    def on_tensor(self, link: str, pipe: int, piece: PipeTensor) -> None: ...

    def alive(self) -> PipeAlive | None:
        """What neighbours are told while they wait for us, if anything."""

    def on_alive(self, link: str, pipe: int, moving: bool, doing: str) -> None:
        """A neighbour sends (moving), or says that it is there: every PULSE_SECONDS at most."""


class Pipes:
    """Stage s dials stage s+1 and is dialled by stage s-1. `reject(reason, peer)` counts what was refused.

    All that a pipe brings is taken at once, or the library would end a neighbour's stream; what it may bring bounds how
    much memory that takes, here and in whatever `on_tensor` hands it to.
    """

    def __init__(
        self,
        service: PipeService,
        hello: wire.PipeHello,
        stages: int,
        handler: PipeHandler,
        reject: Callable[[str, str], None],
    ) -> None:
        self._service, self._hello, self._stages = service, hello, stages
        self._handler, self._reject = handler, reject
        self._open: dict[str, _Link] = {}
        self._numbers = count(1)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def dial(self) -> None:
        """From now on keep a pipe to the next stage open, if there is one."""
        if self._hello.stage < self._stages - 1:
            self._nursery.start_soon(self._keep_dialling)

    def refusal(self, peer_id: str, hello: wire.PipeHello) -> str | None:
        """Why a neighbour's pipe is refused, or None: it must come from the previous stage's member, as registered."""
        if (hello.run, hello.replica) != (self._hello.run, self._hello.replica):
            return "another run or replica"
        member = self._handler.member_at(self._hello.stage - 1) if hello.stage == self._hello.stage - 1 else None
        if member is None or to_canonical_address(member[0]) != hello.account or member[1] != peer_id:
            return "not the member of the previous stage"
        return None

    def take(self, pipe: Pipe) -> None:
        """An accepted pipe from the previous stage; it replaces an older one."""
        self._nursery.start_soon(self._pump, "previous", pipe)

    def send_want(self, link: str, want: PipeWant) -> None:
        """Tell the neighbour at a link, if its pipe is open."""
        if link in self._open:
            self._open[link].outgoing.send_nowait(want)

    def post(self, link: str, pipe: int, piece: PipeTensor) -> None:
        """To a neighbour if this pipe is still the one to it, in order; a failure shows as `on_gone`."""
        if link in self._open and self._open[link].number == pipe:
            self._open[link].flow.note_sent(piece)
            self._open[link].outgoing.send_nowait(piece)

    def number(self, link: str) -> int:
        """Of the pipe that leads there now; 0: none."""
        return self._open[link].number if link in self._open else 0

    def close(self) -> None:
        """Break every pipe now; they are made anew."""
        for link in list(self._open.values()):
            link.scope.cancel()

    def check(self) -> None:
        """Close the pipes to accounts that no longer hold the neighbouring slot."""
        for name, link in list(self._open.items()):
            member = self._handler.member_at(self._hello.stage + (1 if name == "next" else -1))
            if member is None or member[1] != link.pipe.peer_id:
                link.scope.cancel()

    async def _keep_dialling(self) -> None:
        failures, random = 0, Random()
        while True:
            member = self._handler.member_at(self._hello.stage + 1)
            failures += 1
            if member is not None:
                try:
                    pipe = await self._service.open(member[1], self._hello)
                    failures = 1
                    await self._pump("next", pipe)
                except PipeClosed as error:
                    log.debug("no pipe to the next stage: %s", error)
            await trio.sleep(REDIAL.delay(failures, random))

    async def _pump(self, name: str, pipe: Pipe) -> None:
        # holds what training sends ahead of the neighbour's answers: one forward one backward bounds it
        outgoing, to_send = trio.open_memory_channel[PipeFrame](math.inf)
        wants, to_tell = trio.open_memory_channel[PipeWant](MOST_WANTS)
        async with trio.open_nursery() as nursery:
            flow = Flow(self._handler.incoming(name))
            link = _Link(next(self._numbers), pipe, nursery.cancel_scope, outgoing, wants, flow)
            if name in self._open:
                self._open[name].scope.cancel()
                self._handler.on_pipe_gone(name)
            self._open[name] = link
            nursery.start_soon(self._write, link, to_send)
            nursery.start_soon(self._tell, name, link, to_tell)
            nursery.start_soon(self._pulse, name, link)
            self._handler.on_pipe_open(name)
            try:
                await pipe.each(partial(self._hear, name, link))
            except PipeClosed as error:
                log.debug("%s", error)
            except wire.WireError as error:
                log.info("pipe to the %s stage closed: %s", name, error)
                self._reject(f"pipe_{error.reason}", pipe.peer_id)
            nursery.cancel_scope.cancel()
        if self._open.get(name) is link:
            del self._open[name]
            self._handler.on_pipe_gone(name)
        await pipe.aclose()

    def _hear(self, name: str, link: "_Link", data: bytearray) -> None:
        match frame := decode_frame(data):
            case PipeWant():
                try:
                    link.wants.send_nowait(frame)
                except trio.WouldBlock:
                    raise wire.WireError("flow", f"{MOST_WANTS} wants at once") from None
            case PipeTensor():
                link.flow.check_received(frame)
                self._handler.on_tensor(name, link.number, frame)
            case PipeAlive():
                link.doing = f"{frame.doing} step {frame.done} of {frame.all}"

    async def _tell(self, name: str, link: "_Link", to_tell: trio.MemoryReceiveChannel[PipeWant]) -> None:
        async for want in to_tell:
            with suppress(trio.WouldBlock):
                while True:
                    want = to_tell.receive_nowait()
            if self._open.get(name) is link:
                self._handler.on_want(name, want)
            await trio.sleep(WANT_SECONDS)

    async def _pulse(self, name: str, link: "_Link") -> None:
        """Say that we are there, as long as nothing else says it; and pass on what shows that the neighbour is."""
        while True:
            before = link.pipe.came
            await trio.sleep(PULSE_SECONDS)
            if (alive := self._handler.alive()) is not None and not link.outgoing.statistics().current_buffer_used:
                link.outgoing.send_nowait(alive)
            moving = link.pipe.came - before >= LEAST_RATE * PULSE_SECONDS
            doing, link.doing = link.doing, ""
            if moving or doing:
                self._handler.on_alive(name, link.number, moving, "sending" if moving else doing)

    @staticmethod
    async def _write(link: "_Link", to_send: trio.MemoryReceiveChannel[PipeFrame]) -> None:
        try:
            async for frame in to_send:
                await link.pipe.send(*in_two(frame))
        except PipeClosed as error:
            log.debug("%s", error)
            link.scope.cancel()


class Flow:
    """Judges what comes over one pipe: whole messages, piece by piece, and none that nobody waits for.

    A neighbour can have us hold no more than we asked it for, however fast it is."""

    def __init__(self, incoming: Mapping[str, Incoming]) -> None:
        self._incoming = incoming
        self._received, self._sent = Counter[str](), Counter[str]()  # whole messages by kind
        self._begun: tuple[int, str, int, int] | None = None  # a message whose end is to come
        self._offset = 0  # of its next piece

    def note_sent(self, piece: PipeTensor) -> None:
        if piece.is_last:
            self._sent[piece.kind] += 1

    def check_received(self, piece: PipeTensor) -> None:
        """Raises WireError("flow") for what no honest neighbour sends."""
        kind, message = piece.kind, (piece.round, piece.kind, piece.step, piece.micro)
        rule = self._incoming.get(kind)
        if rule is None:
            raise WireError("flow", f"no {kind!r} is sent this way")
        if piece.total not in rule.sizes:
            raise WireError("flow", f"{kind} of {piece.total} bytes, not {' or '.join(map(str, rule.sizes))}")
        if self._begun not in (None, message):
            raise WireError("flow", f"{kind} in the middle of another message")
        if self._begun is None and self._received[kind] >= self._sent[rule.after] + rule.ahead:
            raise WireError("flow", f"more of {kind} than was asked for")
        if piece.offset != self._offset or len(piece.data) != min(TENSOR_PIECE, piece.total - self._offset):
            raise WireError("flow", f"{kind}: {len(piece.data)} bytes at {piece.offset}, not those at {self._offset}")
        if piece.is_last:
            self._begun, self._offset = None, 0
            self._received[kind] += 1
        else:
            self._begun, self._offset = message, self._offset + TENSOR_PIECE


@dataclass(eq=False)
class _Link:
    number: int
    pipe: Pipe
    scope: trio.CancelScope
    outgoing: trio.MemorySendChannel[PipeFrame]
    wants: trio.MemorySendChannel[PipeWant]
    flow: Flow
    doing: str = ""  # what the neighbour does, since the last look
