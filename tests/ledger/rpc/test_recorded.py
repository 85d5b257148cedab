"""A file of a chain node's answers, and what it answers itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.rpc.json_rpc import Request
from dlx.ledger.rpc.recorded import Kept, Recorded, Recording

LOGS = [{"blockNumber": hex(block), "logIndex": hex(index)} for block, index in ((3, 0), (3, 1), (7, 0), (9, 4))]


class Node:
    """It gives logs of at most 5 blocks."""

    def ask(self, requests: Sequence[Request], timeout: float) -> list[Any]:
        found = [self._answer(method, params) for method, params in requests]
        if len(found) == 1 and isinstance(found[0], RpcError):
            raise found[0]
        return found

    def tells(self, timeout: float) -> bool:
        return False

    def next_head(self, seen: bytes, seconds: float, timeout: float, contracts: Sequence[str]) -> Any:
        return None

    def _answer(self, method: str, params: Any) -> Any:
        match method:
            case "eth_getLogs":
                first, last = (int(params[0][name], 16) for name in ("fromBlock", "toBlock"))
                if last - first >= 5:
                    return RpcError(-32005, "too many blocks")
                return [log for log in LOGS if first <= int(log["blockNumber"], 16) <= last]
            case "eth_getProof":
                return RpcError(-32000, "no such state")
        return {"of": list(params)}


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    kept = Kept()
    node = Recording(Node(), kept)
    node.ask([("eth_getBlockByNumber", ("0x1", False)), ("eth_getProof", ("0xa", [], "0x1"))], 1)
    with pytest.raises(RpcError):
        node.ask([_logs(0, 9)], 1)
    node.ask([_logs(0, 4)], 1)
    node.ask([_logs(5, 9), ("eth_chainId", ())], 1)
    kept.write(tmp_path / "chain.jsonl")
    return Recorded(tmp_path / "chain.jsonl")


def _logs(first: int, last: int, address: str = "0xa") -> Request:
    return "eth_getLogs", [{"address": [address], "fromBlock": hex(first), "toBlock": hex(last)}]


def test_it_answers_what_was_asked_and_refuses_what_was_refused_and_what_was_never_asked(recorded: Recorded) -> None:
    found = recorded.ask(
        [("eth_getBlockByNumber", ["0x1", False]), ("eth_getProof", ["0xa", [], "0x1"]), ("eth_getCode", ["0xb"])], 1
    )
    assert found[0] == {"of": ["0x1", False]}
    assert (found[1].code, "no such state" in str(found[1])) == (-32000, False)
    assert "chain.jsonl has no answer to this eth_getCode" in str(found[2])
    assert not recorded.tells(1)


def test_it_gives_the_logs_of_other_ranges_than_were_asked_for(recorded: Recorded) -> None:
    """How many blocks a chain node gave at once depends on its moods."""
    assert recorded.ask([_logs(0, 9)], 1) == [LOGS]
    assert recorded.ask([_logs(3, 7)], 1) == [LOGS[:3]]
    assert recorded.ask([_logs(8, 20)], 1) == [LOGS[3:]]
    with pytest.raises(RpcError, match="no answer to this eth_getLogs"):
        recorded.ask([_logs(0, 9, "0xb")], 1)


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b"[]",
        b'{"params": []}',
        b'{"method": "a", "params": []}',
        b'{"method": "eth_getLogs", "params": [], "result": []}',
        b'{"method": "eth_getLogs", "params": [{}], "result": [{"blockNumber": 3}]}',
        b'{"method": "a", "params": [], "error": {"code": "x", "message": ""}}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_answer_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "chain.jsonl"
    path.write_bytes(b'{"method": "a", "params": [], "result": null}\n' + line + b"\n")
    with pytest.raises(LedgerError, match="line 2 is no answer of a chain node"):
        Recorded(path)
