"""The network process's handle on its training process, which it starts again whenever it ends by itself."""

import math
import os
import signal
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from typing import TypeVar

import trio

from dlx.ground.backoff import Backoff
from dlx.ground.errors import DlxError
from dlx.node.home import logs
from dlx.node.home.errors import Failure
from dlx.node.trainer import messages as m
from dlx.node.trainer.spawn import Spawned, in_words, spawn
from dlx.p2p.streams import Coming, Outgoing
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.outer.policy import Measured
from dlx.training.outer.step import Version
from dlx.training.recipe.recipe import Plan

OPEN_SECONDS = 120.0  # without work; and more for a large slot, whose state is read from disk
REQUEST_SECONDS = 120.0  # likewise, for each payload of a request
MOST = 10  # times as long in all, however much it works: it may be caught in a loop
WORK = 0.1  # s of its processors since it last said so: it is at work
SLOW_DISK = 8e6  # bytes of weights a second: opening and an outer step read and write up to six files of that size
RESTART = Backoff(first=0.5, cap=60.0)
SILENCES = 2  # questions in a row without even a late answer: it hangs
STEADY_SECONDS = 120.0  # a process that lived for so long was not a failed attempt
_MOST = (1 << 32) - 1  # bytes of a message: the process is our own
_ROOM = 256 * 1024  # bytes that are read at once
log = logs.get(__name__)

T = TypeVar("T")
OnMessage = Callable[[m.FromTrainer], None]


class TrainerError(DlxError):
    """What was asked of the training process was not done."""


class LocalTrouble(TrainerError):
    """Disk, memory, or the process itself is at fault: it says nothing about what was asked. Ask again later."""


class TrainerSilent(LocalTrouble):
    """No answer in time."""


class BlobTrouble(TrainerError):
    """Inputs (`blobs`, 32-byte names) are missing or damaged on our disk: fetch them again, then ask again."""

    def __init__(self, reason: str, blobs: tuple[bytes, ...]) -> None:
        super().__init__(reason)
        self.blobs = blobs


class UnusableInput(TrainerError):
    """The inputs are what their names say, and yet do not decode or cannot be used."""


def error_of(trouble: m.Trouble) -> TrainerError:
    """To be raised."""
    match trouble.kind:
        case m.Kind.LOCAL:
            return LocalTrouble(trouble.reason)
        case m.Kind.BLOBS:
            return BlobTrouble(trouble.reason, trouble.blobs)
        case m.Kind.WRONG:
            return UnusableInput(trouble.reason)


class Trainer:
    """`await nursery.start(trainer.run)` makes the process; `open` gives it a slot, which a later process of this
    trainer gets again. `placement`: what it has to find on this machine before it is `loaded`."""

    def __init__(self, placement: Placement = ONE_THREAD) -> None:
        self._placement = placement
        self.trouble: str | None = None  # why there is no open slot, or no process; None: all is well, as far as known
        self.pid: int | None = None  # None while there is no process
        self.loaded = trio.Event()  # a slot would open quickly now
        self._on_message: OnMessage = lambda message: None
        self._opening: m.Open | None = None
        self._asked = trio.Event()  # for that
        self._first_opened: m.Opened | None = None
        self._was_opened, self._is_open = trio.Event(), trio.Event()  # ever; by the process that runs now
        self._outgoing: Outgoing | None = None
        self._requests = count(1)
        self._answers: dict[int, trio.MemorySendChannel[m.Answer]] = {}
        self._turn = trio.Lock()  # the process works on one request at a time, and no wait for others counts as silence
        self._disk_seconds = 0.0  # that a stage of this size may take on a slow disk
        self._silences = 0  # in a row, of the process that runs now
        self._mapped: dict[bool, tuple[bytes, ...]] = {}  # payloads that it reads for its round, or else for a question
        self._used, self._worked = 0.0, -math.inf  # what it has used; when that was more than before
        self._life = trio.CancelScope()  # of that process
        self._given_up = ""  # why its life was cancelled
        self._random = Random()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled. A process that ends, whatever ended it, is started again with back-off; `on_message`
        hears of it. Raises Failure for what no other process would mend."""
        task_status.started()
        failures = 0
        while True:
            began = trio.current_time()
            trouble = await self._live()
            if trouble.kind is m.Kind.WRONG:
                raise Failure(f"the training process failed: {trouble.reason}")
            failures = 1 if trio.current_time() - began > STEADY_SECONDS else failures + 1
            delay = RESTART.delay(failures, self._random)
            log.warning("the training process ended", error=trouble.reason, again_in_seconds=round(delay, 1))
            self.trouble = trouble.reason + (f" ({failures} times in a row)" if failures > 1 else "")
            self._void(trouble)
            await trio.sleep(delay)

    async def open(self, opening: m.Open, on_message: OnMessage, weights: int = 0) -> m.Opened:
        """Gives the process its slot, whose weights have so many bytes, once; from then on `on_message` hears of
        everything else, in order.

        Waits as long as it takes: a process that cannot open the slot is started again, and `on_message` hears why.
        """
        self._on_message, self._opening, self._disk_seconds = on_message, opening, weights / SLOW_DISK
        self.post(opening)
        self._asked.set()
        await self._was_opened.wait()
        assert self._first_opened is not None
        return self._first_opened

    def post(self, message: m.ToTrainer) -> None:
        """Hand over a message; all arrive in the order of posting. It is lost with the process, as `Gone` says.

        Never waits: what waits here are questions, a few, and what neighbours may send unasked (`slot.pipes`).
        """
        if self._outgoing is not None:
            self._outgoing.put(m.pack_in_two(message))
            if payloads := m.payloads_of(message):
                self._mapped[isinstance(message, m.Train)] = payloads

    async def outer(self, weights: bytes, momentum: bytes, payloads: tuple[m.SealedPayload, ...]) -> Version:
        """V[t+1] from V[t] and the payloads, all blobs by hash.

        Raises LocalTrouble, BlobTrouble or UnusableInput, as do the other questions.
        """
        answer = await self._ask(lambda request: m.Outer(request, weights, momentum, payloads), len(payloads))
        assert answer.version is not None
        return answer.version

    async def measure(self, payloads: tuple[m.SealedPayload, ...]) -> Measured:
        """What the aggregation policy needs to know of the payloads."""
        answer = await self._ask(lambda request: m.Measure(request, payloads), len(payloads) ** 2)
        assert answer.measured is not None
        return answer.measured

    async def check(self, payload: bytes, plan: Plan) -> None:
        """Raises UnusableInput unless the payload decodes to finite tensors."""
        await self._ask(lambda request: m.Check(request, payload, plan), 1)

    async def start(self, base: bytes, payload: bytes, plan: Plan) -> bytes:
        """The hash of a round's start: of version `base` less alpha times the payload, both blobs by hash."""
        answer = await self._ask(lambda request: m.Start(request, base, payload, plan), 1)
        assert answer.start is not None
        return answer.start

    async def _ask(self, make: Callable[[int], m.ToTrainer], payloads: int) -> m.Answer:
        """`payloads`: how many it has to decode, about."""
        if not self._is_open.is_set():
            raise LocalTrouble("the training process is being started")
        request, seconds = next(self._requests), REQUEST_SECONDS * max(1, payloads) + self._disk_seconds
        send, receive = trio.open_memory_channel[m.Answer](1)
        self._answers[request] = send
        try:
            async with self._turn:
                if request in self._answers:  # else the process ended meanwhile
                    self.post(make(request))
                answer = await self._while_working(receive.receive, seconds)
        except trio.TooSlowError:
            self._silences += 1
            if self._silences >= SILENCES:
                self._give_up(f"it left {self._silences} questions in a row without an answer")
            raise TrainerSilent(f"no answer from the training process, nor any work, within {seconds:.0f} s") from None
        finally:
            self._answers.pop(request, None)
        if answer.trouble is not None:
            raise error_of(answer.trouble)
        return answer

    # ---- one process ----

    async def _live(self) -> m.Trouble:
        """One process from its start to its end; why it ended."""
        try:
            spawned = await trio.to_thread.run_sync(spawn, abandon_on_cancel=True)
        except OSError as error:
            return m.Trouble(m.Kind.LOCAL, f"it could not be started: {error}")
        log.info("training process started", pid=spawned.pid)
        self.pid, self._is_open, self._silences = spawned.pid, trio.Event(), 0
        self._used, self._worked = 0.0, -math.inf
        try:
            failed = await self._talk(spawned)
        finally:
            self.pid, self._outgoing, self._is_open = None, None, trio.Event()
            with trio.CancelScope(shield=True):
                ended = await trio.to_thread.run_sync(spawned.end)
        return failed or self._trouble_of(ended)

    def _trouble_of(self, status: int | None) -> m.Trouble:
        """Payloads are mapped: one that is cut short, or lies on a bad sector, kills its reader with SIGBUS."""
        if status != -signal.SIGBUS:
            return m.Trouble(m.Kind.LOCAL, in_words(status))
        payloads = dict.fromkeys(name for names in self._mapped.values() for name in names)
        return m.Trouble(m.Kind.BLOBS, in_words(status), tuple(payloads))

    async def _talk(self, spawned: Spawned) -> m.Trouble | None:
        """Until the process hangs up, or says why it cannot go on."""
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(spawned.channel))
        self._outgoing = outgoing = Outgoing(stream.socket)
        self.post(m.Load(self._placement))
        if self._opening is not None:
            self.post(self._opening)
        async with stream, trio.open_nursery() as nursery:
            self._life = nursery.cancel_scope
            nursery.start_soon(outgoing.run)
            nursery.start_soon(self._await_opening)
            coming = Coming(_MOST)
            while data := await _read(stream):
                for message in map(m.from_trainer.decode, coming.frames(data)):
                    if isinstance(message, m.Failed):
                        nursery.cancel_scope.cancel()
                        return message.trouble
                    self._dispatch(message)
            nursery.cancel_scope.cancel()
            return None
        return m.Trouble(m.Kind.LOCAL, self._given_up)

    async def _await_opening(self) -> None:
        """A process that does not open its slot in time is given up."""
        await self._asked.wait()
        seconds = OPEN_SECONDS + self._disk_seconds
        try:
            await self._while_working(self._is_open.wait, seconds)
        except trio.TooSlowError:
            self._give_up(f"it did not open its slot within {seconds:.0f} s, and did nothing")

    async def _while_working(self, wait: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Raises TooSlowError where the process does nothing for so long, or works for MOST times as long."""
        began = trio.current_time()
        while True:
            until = min(began + MOST * seconds, max(began, self._worked) + seconds)
            if until <= trio.current_time():
                raise trio.TooSlowError
            with trio.move_on_at(until):
                return await wait()

    def _give_up(self, reason: str) -> None:
        """End the process that runs now; `run` starts another."""
        self._given_up = reason
        self._life.cancel()

    def _dispatch(self, message: m.FromTrainer) -> None:
        match message:
            case m.Loaded():
                self.loaded.set()
                if self._opening is None:
                    self.trouble = None
            case m.Opened():
                self.trouble = None
                self._is_open.set()
                if self._first_opened is None:
                    self._first_opened = message
                    self._was_opened.set()
                else:
                    self._on_message(message)
            case m.Working(used=used):
                if used >= self._used + WORK:
                    self._worked = trio.current_time()
                self._used = used
            case m.Answer(request=request):
                self._silences = 0
                if request in self._answers:
                    self._answers.pop(request).send_nowait(message)
            case _:
                self._on_message(message)

    def _void(self, trouble: m.Trouble) -> None:
        """Nobody waits for what a process that has ended was asked."""
        gone = m.Trouble(trouble.kind, f"the training process ended: {trouble.reason}", trouble.blobs)
        while self._answers:
            request, send = self._answers.popitem()
            send.send_nowait(m.Answer(request, gone))
        self._on_message(m.Gone(trouble.reason, trouble.blobs))


async def _read(stream: trio.SocketStream) -> bytes:
    """What came, empty at the end of the stream."""
    while True:
        try:
            await trio.lowlevel.wait_readable(stream.socket)
            return os.read(stream.socket.fileno(), _ROOM)
        except BlockingIOError:  # the kernel may wake us up for nothing
            continue
        except (OSError, trio.ClosedResourceError):
            return b""
