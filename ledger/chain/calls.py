"""Calls that change nothing: in processes of their own, which end when one takes too long, so none holds up the miner.

Gas bounds what a call does, not how long that takes here. An endless loop burns a block's gas in 20 seconds, and a
precompiled contract's pairings take minutes within one opcode, in which a thread cannot be interrupted.

    python -m dlx.ledger.chain.calls SECONDS DATABASE CHAIN_ID

is such a process (see `ground.answering`): a question a line, an answer a line.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dlx.ground.answering import Answering, NoAnswer, answer_lines
from dlx.ground.answering import Overtime as TookTooLong
from dlx.ledger.chain.evm import Call, Evm, Outcome, decode_header
from dlx.ledger.chain.store import Reader

SECONDS = 5.0  # of processor time, that a call or an estimate may take
_PROCESSES = 2

log = logging.getLogger(__name__)


class CallFailed(Exception):
    """A call that was not executed to its end; the message says why."""


class Overtime(CallFailed):
    pass


class Busy(CallFailed):
    pass


@dataclass(frozen=True, slots=True)
class Question:
    header: bytes
    """The block to run in, RLP."""
    call: Call
    estimate: bool


class Calls:
    """Runs calls on the chain in the file `database`; thread-safe. Processes start when first needed, and stay; the
    first may be started before."""

    def __init__(self, database: Path, chain_id: int) -> None:
        self._arguments = (str(database), str(chain_id))
        self._closed = False
        self._idle: queue.LifoQueue[Answering | None] = queue.LifoQueue()  # None: not started
        for _ in range(_PROCESSES):
            self._idle.put(None)

    def start(self) -> None:
        """Starts a process, which loads the EVM while nobody waits for it yet."""
        with contextlib.suppress(queue.Empty):  # all are at work
            self._idle.put(self._idle.get_nowait() or self._process())

    def run(self, question: Question) -> Outcome | int:
        """What `Evm.call`, or `Evm.estimate`, returns. Raises Busy, Overtime, CallFailed."""
        try:
            process = self._idle.get(timeout=SECONDS)
        except queue.Empty:
            raise Busy("too many requests: other calls are still running, try again") from None
        try:
            process = process or self._process()
            return msgspec.json.decode(process.ask(msgspec.json.encode(question)), type=Outcome | int)
        except BaseException as error:
            if process is not None:
                process.kill()
                process = None
            if isinstance(error, TookTooLong):
                raise Overtime(f"execution aborted (timeout = {SECONDS:g}s of processor time)") from None
            if isinstance(error, NoAnswer):
                log.error("the process that executes calls: %s", error)
                raise CallFailed(f"the process that executes calls: {error}") from None
            raise
        finally:
            self._idle.put(process)
            if self._closed:
                self.close()

    def _process(self) -> Answering:
        return Answering("dlx.ledger.chain.calls", SECONDS, self._arguments)

    def close(self) -> None:
        """Ends the processes; one that still runs a call ends after it."""
        self._closed = True
        try:
            while True:
                if (process := self._idle.get_nowait()) is not None:
                    process.kill()
        except queue.Empty:
            pass


def _answer_questions(seconds: float, database: Path, chain_id: int) -> None:
    reader = Reader(database)
    evm = Evm(chain_id, reader.node, reader.hashes_before)

    def answer(line: bytes) -> bytes:
        question = msgspec.json.decode(line, type=Question)
        run = evm.estimate if question.estimate else evm.call
        return msgspec.json.encode(run(decode_header(question.header), question.call))

    answer_lines(seconds, answer)


if __name__ == "__main__":
    _answer_questions(float(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
