"""A chain that never was: as many events as wanted, encoded as the contracts do, block by block when asked for."""

import json
from typing import Any

import eth_abi
from eth_hash.auto import keccak

from dlx.ledger.abi import ZERO32, ascending, checksum
from dlx.ledger.events import _SPECS, Joined, RunCreated, RunOpened, Sealed, event_topic
from dlx.ledger.index.event_index import Contracts
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import UNIT, Outcome, Plan, Record, RunConfig, encode_records, entries

STAGES, REPLICAS = 4, 8
RUN, STRANGER = b"\x10" * 32, b"\x20" * 32
EVENTS_PER_BLOCK = 1  # so that every seal has a time of its own
_SETUP = 2 + STAGES * REPLICAS  # events of a run before its first seal
_RANGE = 1000  # blocks in one answer
_GENESIS_TIME = 1_700_000_000
_PLAN = Plan(4, 0, 20)


class Chain:
    """Blocks 0 to `head`, with the events of a run and of a stranger's, mixed once both are open."""

    ID = 31337
    CONTRACTS = Contracts(checksum(b"\x01" * 20), checksum(b"\x02" * 20))

    def __init__(self, events: int, strangers: int) -> None:
        self._runs = [_Run(RUN, events, _GENESIS_TIME), _Run(STRANGER, strangers, _GENESIS_TIME + _SETUP)]
        self._events, self._strangers = events, strangers
        self.head = (events + strangers - 1) // EVENTS_PER_BLOCK

    def answer(self, method: str, params: list[Any]) -> bytes:
        """The JSON of the answer: its result, or an error."""
        if method == "eth_getLogs" and "blockHash" not in params[0]:
            first, last = int(params[0]["fromBlock"], 16), min(self.head, int(params[0]["toBlock"], 16))
            if last - first >= _RANGE:
                return b'"error":{"code":-32602,"message":"range too large"}'
            return b'"result":[%s]' % b",".join(self._log(n) for n in self._numbers(first, last))
        return b'"result":' + self._result(method, params)

    def _result(self, method: str, params: list[Any]) -> bytes:
        match method:
            case "eth_chainId":
                return b'"0x7a69"'
            case "eth_getBlockByNumber":
                return _block(self.head if params[0] == "latest" else int(params[0], 16))
            case "eth_getBlockByHash":
                return _block(int(params[0][-16:], 16))
            case "eth_getLogs":
                block = int(params[0]["blockHash"][-16:], 16)
                return b"[%s]" % b",".join(self._log(n) for n in self._numbers(block, block))
        raise ValueError(method)

    def _numbers(self, first: int, last: int) -> range:
        return range(EVENTS_PER_BLOCK * first, min(EVENTS_PER_BLOCK * (last + 1), self._events + self._strangers))

    def _log(self, number: int) -> bytes:
        own, strange = self._split(number)
        is_strange = self._split(number + 1)[0] == own
        topics, data = self._runs[1].event(strange) if is_strange else self._runs[0].event(own)
        block, index = divmod(number, EVENTS_PER_BLOCK)
        return (
            b'{"address":"%s","topics":[%s],"data":"0x%s","blockNumber":"%s","blockHash":"%s","logIndex":"%s",'
            b'"transactionHash":"%s","blockTimestamp":"%s","removed":false}'
            % (
                self.CONTRACTS.ledger.encode(),
                b",".join(b'"0x%s"' % topic.hex().encode() for topic in topics),
                data.hex().encode(),
                hex(block).encode(),
                _hash(block),
                hex(index).encode(),
                b"0x" + keccak(b"%d" % number).hex().encode(),
                hex(_GENESIS_TIME + block).encode(),
            )
        )

    def _split(self, number: int) -> tuple[int, int]:
        """How many of the first events are of the run, and of the stranger's."""
        if not self._strangers or number <= _SETUP:
            return number, 0
        mixed = max(0, number - 2 * _SETUP)
        strange = min(number - _SETUP, _SETUP + mixed * self._strangers // (self._events + self._strangers))
        return number - strange, strange


class _Run:
    """Created, joined by all, opened with the last of them, then sealed round after round."""

    def __init__(self, run: bytes, events: int, created_at: int) -> None:
        self._run = run
        keys = {account_of(key): key for key in (keccak(run + bytes([n])) for n in range(STAGES * REPLICAS))}
        self._accounts = ascending(list(keys))
        rounds = events // STAGES + 1
        terms = (rounds, STAGES, REPLICAS, REPLICAS, 2, 3, 128, 1, 600, 600, 20, 0, 64)
        config = RunConfig(b"\x03" * 32, *terms, invited=False, bond=0, outer=ZERO32)
        plain = [_fields(config), b"made-up", [b"\x04" * 32] * STAGES, self._accounts[:1]]
        created = _raw(RunCreated, [run, self._accounts[0]], plain)
        self._first = [created] + [
            _raw(Joined, [run, account], [*divmod(place, STAGES)]) for place, account in enumerate(self._accounts)
        ]
        self._first.append(_raw(RunOpened, [run], [created_at + _SETUP - 2]))
        self._seals = [self._seal(stage, keys) for stage in range(STAGES)]

    def event(self, number: int) -> tuple[list[bytes], bytes]:
        """Topics and data."""
        if number < len(self._first):
            return self._first[number]
        round, stage = divmod(number - len(self._first), STAGES)
        head, tail = self._seals[stage]
        topics = [event_topic(Sealed), self._run, stage.to_bytes(32, "big"), round.to_bytes(32, "big")]
        return topics, head + keccak(b"%d" % number) + tail

    def _seal(self, stage: int, keys: dict[str, bytes]) -> tuple[bytes, bytes]:
        """What comes before and after the weights in a seal's data: all else, even its digest, is always the same."""
        members = self._accounts[stage::STAGES]
        digest, marker = keccak(self._run + bytes([stage])), b"\xee" * 32
        outcome = Outcome(marker, ZERO32, ZERO32, ZERO32, _PLAN.inner_steps, _PLAN)
        records = [_record(stage, replica) for replica in range(REPLICAS)]
        signed = {account: (replica, sign(digest, keys[account])) for replica, account in enumerate(members)}
        founder = sign(digest, keys[self._accounts[0]])
        fields = (*outcome.hashes, outcome.plans)
        _, data = _raw(
            Sealed, [self._run, stage, 0], [digest, fields, encode_records(records), entries(signed, {}, founder)]
        )
        place = data.index(marker)
        return data[:place], data[place + 32 :]


def _record(stage: int, replica: int) -> Record:
    return Record(replica, keccak(b"%d %d" % (stage, replica)), 4_000_000, _PLAN.inner_steps, 40, UNIT)


def _raw(cls: Any, indexed: list[Any], plain: list[Any]) -> tuple[list[bytes], bytes]:
    _, indexed_kinds, plain_kinds, _ = _SPECS[event_topic(cls)]
    topics = [eth_abi.encode([kind], [value]) for kind, value in zip(indexed_kinds, indexed, strict=True)]
    return [event_topic(cls), *topics], eth_abi.encode(plain_kinds, plain)


def _fields(struct: Any) -> tuple[Any, ...]:
    return tuple(getattr(struct, name) for name in struct.__dataclass_fields__)


def _hash(block: int) -> bytes:
    return b"0x" + b"ab" * 24 + b"%016x" % block


def _block(number: int) -> bytes:
    parent = _hash(number - 1) if number else b"0x" + b"00" * 32
    found = {"number": hex(number), "timestamp": hex(_GENESIS_TIME + number), "baseFeePerGas": "0x7"}
    return json.dumps(found | {"hash": _hash(number).decode(), "parentHash": parent.decode()}).encode()
