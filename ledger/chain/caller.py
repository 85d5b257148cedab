"""The process of `calls.py`: a question a line on its input, an answer a line on its output, until the input ends.

    python -m dlx.ledger.chain.caller SECONDS DATABASE CHAIN_ID

The alarm ends it in the midst of a call that takes longer than `SECONDS`, whatever the interpreter is busy with.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec

from dlx.ledger.chain.calls import Question
from dlx.ledger.chain.evm import Evm, decode_header
from dlx.ledger.chain.store import Reader


def main(seconds: float, database: Path, chain_id: int) -> None:
    reader = Reader(database)
    evm = Evm(chain_id, reader.node, reader.hashes_before)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        question = msgspec.json.decode(line, type=Question)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        run = evm.estimate if question.estimate else evm.call
        answer = run(decode_header(question.header), question.call)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
