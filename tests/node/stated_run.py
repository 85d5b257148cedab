"""A ledger's index whose events the test states, and a client whose chain node is silent."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import msgspec

from dlx.ledger.abi import checksum
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.events import EventPosition, Joined, RunCreated, RunEvent, RunOpened, Sealed
from dlx.ledger.index import snapshot
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.rebuild import RunReplay
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.typed import Outcome, Plan, Record, RunConfig
from tests.ledger.ledger_logs import LEDGER, REGISTRY, encoded

RUN = b"\x01" * 32
TOKENS, STEPS = 1000, 10
START = 1_700_000_000
NOWHERE = "http://127.0.0.1:9"


def account(replica: int, stage: int) -> str:
    return checksum(bytes([0xA0 + stage, replica]) * 10)


class StatedRun:
    """A run of some stages; blocks are 10 s apart."""

    def __init__(self, stages: int = 2, replicas: int = 3, rounds: int = 100, **terms: Any) -> None:
        self.index = EventIndex(None, 31337, Contracts(LEDGER, REGISTRY))
        self.stages, self.block = stages, 0
        values = dict(
            manifest=b"\3" * 32, rounds=rounds, stages=stages, min_replicas=2, max_replicas=replicas,
            quorum_numerator=2, quorum_denominator=3, min_round_time=1, round_timeout=2, eviction_time=2,
            max_inner_steps=STEPS, start_time=0, tokens_per_step=TOKENS // STEPS, horizon=8,
            invited=False, bond=0, outer=bytes(32),
        )  # fmt: skip
        self._genesis = tuple(bytes([stage + 1]) * 32 for stage in range(stages))
        self._config = RunConfig(**{**values, **terms})
        self.create(RUN)

    def create(self, run: bytes, **terms: Any) -> None:
        """A run like this one but for its terms."""
        config = replace(self._config, **terms)
        self.tell(lambda at: RunCreated(run, account(0, 0), config, "a-run", self._genesis, (account(0, 0),), at))

    def tell(self, event: Callable[[EventPosition], RunEvent]) -> EventPosition:
        """An event in a block of its own."""
        self.block += 1
        name = self.block.to_bytes(32, "big")
        at = EventPosition(self.block, name, 0, name[::-1], self._time())
        self._write(event(at))
        return at

    def join(self, replica: int, stages: range | None = None) -> None:
        for stage in range(self.stages) if stages is None else stages:
            self.tell(partial(Joined, RUN, account(replica, stage), replica, stage))

    def open(self) -> None:
        """What the last join brought about, by which the run has its `min_replicas`."""
        self.tell(partial(RunOpened, RUN, self._time()))

    def seal(self, round: int, counted: dict[int, int], stages: range | None = None, loss: int = 5_000_000) -> None:
        """By all stages; `counted`: replica -> its inner steps."""
        for stage in range(self.stages) if stages is None else stages:
            self.block += 500  # late enough for any count
            records = tuple(
                Record(replica, _name(stage, round, replica, 2), loss, steps, 0, 32768)
                for replica, steps in counted.items()
            )
            name, plan = _name(stage, round, 0, 3), Plan(4, 0, STEPS)
            outcome = Outcome(name, bytes(32), name, bytes(32), STEPS, plan)
            if not counted:
                outcome = Outcome.empty(STEPS, plan)
            self.tell(partial(Sealed, RUN, stage, round, _name(stage, round, 0, 4), outcome, records, b""))

    def take_back(self, block: int) -> None:
        """What a reorg does to all after this block."""
        self.index._drop_after(block)
        self.block = block

    def fill(self, rounds: int) -> None:
        """Rows for that many sealed rounds of a run that has sealed one, as if it had gone on in the same way."""
        replay = RunReplay(self.index, RUN)
        replay.advance()
        state = snapshot._VIEWS.decode(snapshot.dump_view(replay.view))
        state.round, state.rounds = rounds, [rounds] * self.stages
        first = self.index.rows("SELECT * FROM seals WHERE round = 0")
        blocks = [
            (self.block + n, (self.block + n).to_bytes(32, "big"), self._time() + 10 * n, 0) for n in range(1, rounds)
        ]
        seals = []
        for n, block in enumerate(blocks, 1):
            for row in first:
                loss = 3_000_000 + 2_000_000 // (1 + n // 100) + n % 7 * 1000
                seals.append((row[0], n, row[2], block[0], row[2], block[2], *row[6:13], loss, *row[14:]))
        query = "SELECT run, topics, data, logs.tx FROM logs JOIN seals USING (block, log_index, run) ORDER BY stage"
        last = [(self.block + rounds - 1, stage, *log) for stage, log in enumerate(self.index.rows(query))]

        def write(db: sqlite3.Connection) -> None:
            db.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?)", blocks)
            db.executemany(f"INSERT INTO seals VALUES ({', '.join('?' * 22)})", seals)
            db.executemany("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?)", last)
            place = (blocks[-1][0], self.stages)
            db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?)", (RUN, *place, msgspec.msgpack.encode(state)))

        self.index.keep(self.index.mark(), (0, 0), write)
        self.block += rounds

    def _time(self) -> int:
        return START + 10 * self.block

    def _write(self, event: RunEvent) -> None:
        log, at = encoded(event), event.at
        topics = b"".join(bytes.fromhex(topic[2:]) for topic in log["topics"])

        def write(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO blocks VALUES (?, ?, ?, ?)", (at.block, at.block_hash, at.time, 0))
            row = (at.block, at.log_index, event.run, topics, bytes.fromhex(log["data"][2:]), at.tx)
            db.execute("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?)", row)
            if isinstance(event, RunCreated):
                db.execute("INSERT INTO runs VALUES (?, ?, ?)", (event.run, at.block, at.log_index))

        self.index.keep(self.index.mark(), (at.block, 0), write)


def _name(*of: int) -> bytes:
    return bytes(one % 256 for one in of) * 8


class SilentRpc(RpcClient):
    """Of a chain node that says nothing."""

    def with_patience(self, patience: float) -> Self:
        return self

    def head(self) -> NoReturn:
        raise LedgerUnavailable("nobody answers")


class SilentClient(LedgerClient):
    """Of a stated run's index."""

    def __init__(self, stated: StatedRun) -> None:
        super().__init__(NOWHERE, LEDGER, chain_id=stated.index.domain.chain_id)
        self.rpc, self._stated = SilentRpc(NOWHERE), stated

    def open_index(self, folder: Path | None = None) -> EventIndex:
        return self._stated.index
