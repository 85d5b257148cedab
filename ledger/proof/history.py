"""A run's logs and blocks up to a head: as a chain node tells them, or proven to the hash of that head."""

from __future__ import annotations

import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from eth_hash.auto import keccak

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import Contradiction, LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.events import RawLog, RunCreated, event_topic
from dlx.ledger.index.event_index import LAST, EventIndex, Head
from dlx.ledger.index.log_reader import Timed
from dlx.ledger.proof.receipts import Log, logs_of
from dlx.ledger.proof.tries import BadProof, code_hash
from dlx.ledger.rpc.headers import Header, ProvenHeader, bloom_of, proven_header
from dlx.ledger.rpc.json_rpc import octets
from dlx.ledger.rpc.rpc_client import RpcClient

Progress = Callable[[str], None]

_HEADERS_AT_ONCE = 500
_CREATED = event_topic(RunCreated)
_ENTRY = 40  # bytes: a block's hash and time


@dataclass(frozen=True)
class Pin:
    """The block whose hash the user trusts."""

    number: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.number}:0x{self.hash.hex()}"


class History(ABC):
    """The chain up to block `head`, of which nothing later is used; its index has the run's logs."""

    def __init__(self, index: EventIndex, head: Head) -> None:
        self.index, self.head = index, head

    @abstractmethod
    def block(self, number: int) -> Head | None:
        """The block with this number; None after the head. Raises KeyError for one that is not proven: those before the
        run's creation."""

    def block_hash(self, number: int) -> bytes | None:
        """Its hash; as `block` else."""
        found = self.block(number)
        return None if found is None else found.hash


class Told(History):
    """As the chain node says."""

    def __init__(self, rpc: RpcClient, index: EventIndex, head: Head) -> None:
        super().__init__(index, head)
        self._rpc = rpc

    def block(self, number: int) -> Head | None:
        return None if number > self.head.block else _told_block(self._rpc, number)


class Proven(History):
    """As the head's hash proves it: by so many `headers`, from the head down to the run's creation, and the `roots` of
    the receipts of those blocks that may have logs of the run."""

    def __init__(self, index: EventIndex, head: Head, blocks: _Blocks, headers: int, roots: int) -> None:
        super().__init__(index, head)
        self._blocks, self.headers, self.roots = blocks, headers, roots

    def block(self, number: int) -> Head | None:
        return None if number > self.head.block else self._blocks.read(number)


def parse_pin(text: str) -> Pin:
    """BLOCK:HASH, as `str` of a Pin writes it. Raises ValueError.

    Examples:
        >>> pin = parse_pin("46:0x" + 32 * "5c")
        >>> pin.number, len(pin.hash)
        (46, 32)
        >>> parse_pin("46")
        Traceback (most recent call last):
        ...
        ValueError: '46' is no BLOCK:HASH, a number and 0x with 64 hex digits
    """
    if not re.fullmatch(r"[0-9]{1,18}:0x[0-9a-fA-F]{64}", text):
        raise ValueError(f"{text[:100]!r} is no BLOCK:HASH, a number and 0x with 64 hex digits")
    number, _, digest = text.partition(":0x")
    return Pin(int(number), bytes.fromhex(digest))


@contextmanager
def told(client: LedgerClient, progress: Progress) -> Iterator[Told]:
    """All up to the chain node's head. Raises as `LedgerClient.events` does."""
    with client.events(_shown(progress)) as index:
        tip = index.tip
        assert tip is not None
        yield Told(client.rpc, index, tip)


def pinned(rpc: RpcClient, pin: Pin) -> ProvenHeader:
    """The header of the pinned block. Raises Contradiction where the chain node has another block there."""
    answer = rpc.call("eth_getBlockByNumber", hex(pin.number), False)
    if answer is None:
        raise LedgerUnavailable(
            f"the chain node at {rpc.name} has no block {pin.number}: it is behind the head {pin}, or on another chain"
        )
    header = proven_header(answer, pin.hash, rpc.name)
    if header.number != pin.number:
        raise Contradiction(f"0x{pin.hash.hex()} is the hash of block {header.number}, not of block {pin.number}")
    return header


def proves_code(rpc: RpcClient, top: ProvenHeader, address: str, code: bytes) -> bool:
    """Whether the state of the pinned block proves that the account has this code; False where the chain node has that
    state no more. Raises Contradiction where it has other code."""
    account = octets(address, 20)
    try:
        answer = rpc.call("eth_getProof", address, [], hex(top.number))
        nodes = [octets(node) for node in answer["accountProof"]]
    except (RpcError, KeyError, TypeError, ValueError, AttributeError):
        return False
    who = f"the chain node at {rpc.name}"
    try:
        proven = code_hash(top.state_root, account, nodes)
    except BadProof as error:
        raise Contradiction(f"{who} gave a false proof of the code at {address}: {error}") from None
    if proven != keccak(code):
        raise Contradiction(
            f"{who} gave other code of {address} than block {top.number} proves: its hash is 0x{proven.hex()}"
        )
    return True


@contextmanager
def proven(client: LedgerClient, run: bytes, top: ProvenHeader, progress: Progress) -> Iterator[Proven]:
    """All up to the pinned block, read anew and proven by it. The files that this takes are gone at the end.

    Raises Contradiction where what the chain node says is not what is proven, LedgerUnavailable where it does not say
    all that is needed.
    """
    end = Header(top.number, top.hash, top.parent, top.time, top.base_fee)
    with tempfile.TemporaryDirectory(prefix="dlx-proof-") as folder, tempfile.TemporaryFile() as file:
        with closing(client.open_index(Path(folder))) as index:
            if top.number < index.contracts.since:
                since = index.contracts.since
                raise LedgerError(f"the pinned block {top.number} is older than the contracts, of block {since}")
            index.sync(client.rpc, _shown(progress), end)
            first = next(index.logs(run), None)
            if first is None or first[0].topics[0] != _CREATED:
                raise Contradiction(
                    f"the chain node at {client.rpc.name} shows no creation of the run up to block {top.number}: it is "
                    "left out, or the pinned block is older than the run"
                )
            blocks = _Blocks(file, first[0].block)
            roots = _Proof(client, run, index, blocks, progress).run(top)
            yield Proven(index, _head(top), blocks, top.number - first[0].block + 1, roots)


class _Proof:
    """Walks from the head down to the run's creation, and compares the logs that were told with those proven."""

    def __init__(self, client: LedgerClient, run: bytes, index: EventIndex, blocks: _Blocks, show: Progress) -> None:
        self._rpc, self._ledger, self._run = client.rpc, client.ledger, run
        self._index, self._blocks, self._show = index, blocks, show
        self._wanted = bloom_of([octets(client.ledger, 20), run])
        self._roots = 0

    def run(self, top: ProvenHeader) -> int:
        """The number of blocks whose receipts it took. Raises Contradiction."""
        expected, high, first = top.hash, top.number, self._blocks.first
        while high >= first:
            low = max(first, high - _HEADERS_AT_ONCE + 1)
            headers = self._headers(low, high, expected)
            self._show(f"proof: block {low} of {top.number} down to {first}")
            self._check(low, high, headers)
            expected, high = headers[-1].parent, low - 1
        return self._roots

    def _headers(self, low: int, high: int, expected: bytes) -> list[ProvenHeader]:
        """Those from block `high`, which has the expected hash, down to `low`."""
        found = []
        numbers = range(high, low - 1, -1)
        answers = self._rpc.batch("eth_getBlockByNumber", [(hex(number), False) for number in numbers])
        for number, answer in zip(numbers, answers, strict=True):
            if answer is None:
                raise LedgerUnavailable(
                    f"the chain node at {self._rpc.name} has no block {number}: name one with --rpc-url that has all"
                )
            found.append(proven_header(answer, expected, self._rpc.name))
            expected = found[-1].parent
        return found

    def _check(self, low: int, high: int, headers: list[ProvenHeader]) -> None:
        told: dict[int, list[Timed]] = {}
        for log, time in self._index.logs(self._run, (low - 1, LAST), high):
            told.setdefault(log.block, []).append((log, time))
        suspects = [header for header in headers if header.bloom & self._wanted == self._wanted]
        for header, logs in logs_of(self._rpc, suspects):
            self._roots += 1
            ours = [log for log in logs if log.address == self._ledger and self._run in log.topics[1:2]]
            self._compare(header, told.pop(header.number, []), ours)
        for header in headers:
            self._blocks.write(_head(header))
            self._compare(header, told.get(header.number, []), [])

    def _compare(self, header: ProvenHeader, told: list[Timed], ours: list[Log]) -> None:
        who = f"the chain node at {self._rpc.name}"
        place = f"block {header.number}"
        if len(told) != len(ours):
            raise Contradiction(f"{who} told of {len(told)} logs of the run in {place}, which has {len(ours)}")
        for (log, time), true in zip(told, ours, strict=True):
            if _as_proven(log) != true:
                raise Contradiction(f"{who} told of another log {log.log_index} in {place} than its log {true.index}")
            if (log.block_hash, time) != (header.hash, header.time):
                raise Contradiction(f"{who} told of another hash or time of {place} than it has")


class _Blocks:
    """The proven blocks from number `first` on, in a file, so that memory does not grow with them."""

    def __init__(self, file: IO[bytes], first: int) -> None:
        self._file, self.first = file.fileno(), first

    def write(self, block: Head) -> None:
        os.pwrite(self._file, block.hash + block.time.to_bytes(8, "big"), (block.block - self.first) * _ENTRY)

    def read(self, number: int) -> Head:
        """Raises KeyError for one before the first."""
        if number < self.first:
            raise KeyError(number)
        entry = os.pread(self._file, _ENTRY, (number - self.first) * _ENTRY)
        return Head(number, entry[:32], int.from_bytes(entry[32:], "big"))


def _head(header: ProvenHeader) -> Head:
    return Head(header.number, header.hash, header.time)


def _as_proven(log: RawLog) -> Log:
    return Log(log.address, log.topics, log.data, log.log_index)


def _told_block(rpc: RpcClient, number: int) -> Head | None:
    found = rpc.header(number)
    return None if found is None else Head(found.number, found.hash, found.time)


def _shown(progress: Progress) -> Callable[[int, int], None]:
    return lambda block, last: progress(f"events: block {block} of {last}")
