"""Pipes to the holders of the neighbouring stages of our replica: kept open, checked against the ledger, pumped."""

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import trio
from eth_utils import to_canonical_address

from dlx.ground.backoff import Backoff
from dlx.p2p import wire
from dlx.p2p.frames import PipeFrame, PipeWant, decode_frame, encode_frame
from dlx.p2p.pipe import Pipe, PipeClosed, PipeService

REDIAL = Backoff(0.5, 5.0)
log = logging.getLogger(__name__)


class Pipes:
    """Stage s dials stage s+1 and is dialled by stage s-1.

    `holder(stage)` is (account, peer id) of our replica's holder of a stage, or None. `on_open(link)`,
    `on_frame(link, frame)` and `on_gone(link)` hear of links "previous" and "next".
    """

    def __init__(
        self,
        service: PipeService,
        hello: wire.PipeHello,
        stages: int,
        holder: Callable[[int], tuple[str, str] | None],
        on_open: Callable[[str], None],
        on_frame: Callable[[str, PipeFrame], Awaitable[None]],
        on_gone: Callable[[str], None],
        reject: Callable[[str, str], None],
    ) -> None:
        self._service, self._hello, self._stages, self._holder = service, hello, stages, holder
        self._on_open, self._on_frame, self._on_gone, self._reject = on_open, on_frame, on_gone, reject
        self._open: dict[str, _Link] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def dial(self) -> None:
        """From now on keep a pipe to the next stage open, if there is one."""
        if self._hello.stage < self._stages - 1:
            self._nursery.start_soon(self._keep_dialling)

    def refusal(self, peer_id: str, hello: wire.PipeHello) -> str | None:
        """Why a neighbour's pipe is refused, or None: it must come from the previous stage's holder, as registered."""
        if (hello.run, hello.replica) != (self._hello.run, self._hello.replica):
            return "another run or replica"
        holder = self._holder(self._hello.stage - 1) if hello.stage == self._hello.stage - 1 else None
        if holder is None or to_canonical_address(holder[0]) != hello.account or holder[1] != peer_id:
            return "not the holder of the previous stage"
        return None

    def take(self, pipe: Pipe) -> None:
        """An accepted pipe from the previous stage; it replaces an older one."""
        self._nursery.start_soon(self._pump, "previous", pipe)

    def send_want(self, round: int, ready: bool) -> None:
        """Tell both neighbours."""
        for link in self._open:
            self.post(link, PipeWant(round, ready))

    def post(self, link: str, frame: PipeFrame) -> None:
        """To a neighbour if its pipe is open, in order; a failure shows as `on_gone`."""
        if link in self._open:
            self._open[link].outgoing.send_nowait(frame)

    def close(self) -> None:
        """Break every pipe now; they are made anew."""
        for link in list(self._open.values()):
            link.scope.cancel()

    def check(self) -> None:
        """Close the pipes to accounts that no longer hold the neighbouring slot."""
        for name, link in list(self._open.items()):
            holder = self._holder(self._hello.stage + (1 if name == "next" else -1))
            if holder is None or holder[1] != link.pipe.peer_id:
                link.scope.cancel()

    async def _keep_dialling(self) -> None:
        failures, random = 0, Random()
        while True:
            holder = self._holder(self._hello.stage + 1)
            failures += 1
            if holder is not None:
                try:
                    pipe = await self._service.open(holder[1], self._hello)
                    failures = 1
                    await self._pump("next", pipe)
                except PipeClosed as error:
                    log.debug("no pipe to the next stage: %s", error)
            await trio.sleep(REDIAL.delay(failures, random))

    async def _pump(self, name: str, pipe: Pipe) -> None:
        outgoing, to_send = trio.open_memory_channel[PipeFrame](math.inf)
        async with trio.open_nursery() as nursery:
            link = _Link(pipe, nursery.cancel_scope, outgoing)
            if name in self._open:
                self._open[name].scope.cancel()
                self._on_gone(name)
            self._open[name] = link
            nursery.start_soon(self._write, link, to_send)
            self._on_open(name)
            try:
                while True:
                    await self._on_frame(name, decode_frame(await pipe.receive()))
            except PipeClosed as error:
                log.debug("%s", error)
            except wire.WireError as error:
                self._reject(f"pipe_{error.reason}", pipe.peer_id)
            nursery.cancel_scope.cancel()
        if self._open.get(name) is link:
            del self._open[name]
            self._on_gone(name)
        await pipe.aclose()

    @staticmethod
    async def _write(link: "_Link", to_send: trio.MemoryReceiveChannel[PipeFrame]) -> None:
        try:
            async for frame in to_send:
                await link.pipe.send(encode_frame(frame))
        except PipeClosed as error:
            log.debug("%s", error)
            link.scope.cancel()


@dataclass(frozen=True, eq=False)
class _Link:
    pipe: Pipe
    scope: trio.CancelScope
    outgoing: trio.MemorySendChannel[PipeFrame]
