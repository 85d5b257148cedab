"""The network process's handle on its training process."""

import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import count

import trio

from dlx.ground.errors import DlxError
from dlx.node.home.errors import Failure
from dlx.node.trainer import messages as m
from dlx.training.outer.policy import Measured
from dlx.training.recipe.recipe import Plan

OPEN_SECONDS = 120.0  # torch and transformers load slowly on a busy machine
REQUEST_SECONDS = 120.0  # for each payload of a request
STOP_SECONDS = 5.0
MAX_WAITING_FRAMES = 256


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


class Wrong(TrainerError):
    """The inputs are what their names say, and yet do not decode or cannot be used."""


def error_of(trouble: m.Trouble) -> TrainerError:
    """To be raised."""
    match trouble.kind:
        case m.Kind.LOCAL:
            return LocalTrouble(trouble.reason)
        case m.Kind.BLOBS:
            return BlobTrouble(trouble.reason, trouble.blobs)
        case m.Kind.WRONG:
            return Wrong(trouble.reason)


class Trainer:
    """`await nursery.start(trainer.run)` spawns the process, which loads torch at once; `open` gives it a slot."""

    def __init__(self) -> None:
        self._on_message: Callable[[m.FromTrainer], None] = lambda message: None
        self._requests = count(1)
        self._answers: dict[int, trio.MemorySendChannel[m.Answer]] = {}
        self._turn = trio.Lock()  # the process works on one request at a time, and no wait for others counts as silence
        self._outgoing, self._to_send = trio.open_memory_channel[m.ToTrainer](math.inf)
        self._opened, self._on_opened = trio.open_memory_channel[m.Opened](1)
        self._scope = trio.CancelScope()
        self.loaded = trio.Event()  # a slot would open quickly now

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until `close`; raises Failure if the process ends by itself."""
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dlx.node.trainer.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    task_status.started()
                    while (message := await self._read()) is not None:
                        self._dispatch(message)
                    raise Failure("the training process ended unexpectedly; see the lines above")
        finally:
            ours.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._reap)

    async def open(self, opening: m.Open, on_message: Callable[[m.FromTrainer], None]) -> m.Opened:
        """Gives the process its slot, once; from then on `on_message` hears of everything else, in order."""
        self._on_message = on_message
        self.post(opening)
        try:
            with trio.fail_after(OPEN_SECONDS):
                return await self._on_opened.receive()
        except trio.TooSlowError:
            raise Failure(f"the training process did not start within {OPEN_SECONDS:.0f} s") from None

    def close(self) -> None:
        """Ends the process."""
        self._scope.cancel()

    @property
    def pid(self) -> int:
        return self._process.pid

    def post(self, message: m.ToTrainer) -> None:
        """Hand over a message; all arrive in the order of posting. A dead process shows in `run`, not here."""
        self._outgoing.send_nowait(message)

    async def post_frame(self, message: m.Tensor) -> None:
        """`post` that waits while the process is far behind, so that a fast neighbour cannot fill our memory."""
        self.post(message)
        while self._outgoing.statistics().current_buffer_used > MAX_WAITING_FRAMES:
            await trio.sleep(0.01)

    async def outer(
        self, weights: bytes, momentum: bytes, payloads: tuple[m.SealedPayload, ...], ranks: tuple[int, ...] = ()
    ) -> m.Answer:
        """V[t+1] from V[t] and the payloads, all blobs by hash, and what the ranks keep of the payloads' mean.

        Raises LocalTrouble, BlobTrouble or Wrong, as do the other questions.
        """
        return await self._ask(lambda request: m.Outer(request, weights, momentum, payloads, ranks), len(payloads))

    async def measure(self, payloads: tuple[m.SealedPayload, ...]) -> Measured:
        """What the aggregation policy needs to know of the payloads."""
        answer = await self._ask(lambda request: m.Measure(request, payloads), len(payloads) ** 2)
        assert answer.measured is not None
        return answer.measured

    async def check(self, payload: bytes, plan: Plan) -> None:
        """Raises Wrong unless the payload decodes to finite tensors."""
        await self._ask(lambda request: m.Check(request, payload, plan), 1)

    async def _ask(self, make: Callable[[int], m.ToTrainer], payloads: int) -> m.Answer:
        """`payloads`: how many it has to decode, about."""
        request, seconds = next(self._requests), REQUEST_SECONDS * max(1, payloads)
        send, receive = trio.open_memory_channel[m.Answer](1)
        self._answers[request] = send
        try:
            async with self._turn:
                self.post(make(request))
                with trio.fail_after(seconds):
                    answer = await receive.receive()
        except trio.TooSlowError:
            raise TrainerSilent(f"no answer from the training process within {seconds:.0f} s") from None
        finally:
            del self._answers[request]
        if answer.trouble is not None:
            raise error_of(answer.trouble)
        return answer

    def _dispatch(self, message: m.FromTrainer) -> None:
        match message:
            case m.Loaded():
                self.loaded.set()
            case m.Opened():
                self._opened.send_nowait(message)
            case m.Answer(request=request):
                if request in self._answers:
                    self._answers[request].send_nowait(message)
            case m.Failed(trouble=trouble):
                raise Failure(f"the training process failed: {trouble.reason}")
            case _:
                self._on_message(message)

    async def _write(self) -> None:
        async for message in self._to_send:
            try:
                await self._stream.send_all(m.pack(message))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _read(self) -> m.FromTrainer | None:
        header = await self._exactly(m.LENGTH.size)
        if header is None:
            return None
        body = await self._exactly(m.LENGTH.unpack(header)[0])
        return None if body is None else m.from_trainer.decode(body)

    async def _exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = await self._stream.receive_some(min(size - len(parts), 1 << 20))
            except trio.BrokenResourceError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _reap(self) -> None:
        """The closed socket ends the process; whatever hangs is killed."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
