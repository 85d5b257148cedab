"""The audit against chain nodes that lie about the chain: proven to a pinned head no lie passes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rlp.codec import length_prefix

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, LedgerUnavailable
from dlx.ledger.events import AddressesChanged, NodeRegistered, RunCreated, event_topic
from dlx.ledger.index.event_index import Contracts
from dlx.ledger.proof.history import Pin, parse_pin, pinned, proven, told
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.node.audit.report import Report
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.run import audit_from
from tests.ledger.conftest import World
from tests.ledger.fault_proxy import FaultProxy
from tests.ledger.ledger_run import Run, config
from tests.patience import PATIENCE

ROUNDS = 2
SETTINGS = config(manifest=bytes(range(32)), rounds=ROUNDS)
Lie = Callable[[str, list[Any], Any], Any]  # (method, params, result) -> what is told


@dataclass
class Chain:
    """A chain with a run that is over by block `head`, and with another that goes on."""

    url: str
    ledger: str
    run: bytes
    other: bytes
    created: int  # the block of the run's creation
    seals: list[int]  # the blocks of its seals
    head: Pin
    foreign: Any  # the chain's proof, at `head`, of an account that is not the ledger's

    def client(self, url: str | None = None) -> LedgerClient:
        return LedgerClient(url or self.url, self.ledger)

    def pin(self, block: int) -> Pin:
        header = RpcClient(self.url).header(block)
        assert header is not None
        return Pin(block, header.hash)


@contextmanager
def _chain(folder: Path) -> Iterator[Chain]:
    world = World("embedded", folder)
    members = world.members(range(4))
    run, other = (Run(members, replace(SETTINGS, manifest=bytes([n]) * 32)) for n in (1, 2))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda member: (member.join_run(run.id), member.join_run(other.id)), members))
    seals = []
    for _ in range(ROUNDS):
        run.poll()
        for stage in range(SETTINGS.stages):
            accounts = run.view.members_in(stage)
            seals.append(run.send(stage, accounts, accounts).block)
    created = next(run.feed._tracker.index.logs(run.id))[0].block
    head = members[0].rpc.head()
    foreign = members[0].rpc.call(
        "eth_getProof", "0x" + "11" * 20, [], hex(head.number)
    )  # states are not kept for long
    yield Chain(world.url, world.ledger, run.id, other.id, created, seals, Pin(head.number, head.hash), foreign)
    world.stop()


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with _chain(tmp_path_factory.mktemp("chain")) as made:
        yield made


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """Another chain, with a run of the same id that the same members sealed otherwise."""
    with _chain(tmp_path_factory.mktemp("parallel")) as made:
        yield made


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Report]:
    """`look(client, run, head=None)`: the audit; nobody has a blob."""

    def go(client: LedgerClient, run: bytes, head: Pin | None = None) -> Report:
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        return audit_from([], work, client, AuditRequest(run, head=head))

    return go


@contextmanager
def lying(chain: Chain, lie: Lie | None = None, url: str | None = None) -> Iterator[LedgerClient]:
    """A client of a chain node that lies."""
    with FaultProxy(url or chain.url) as proxy:
        proxy.lie = lie
        yield chain.client(proxy.url)


def test_an_honest_chain_is_proven_to_the_head(chain: Chain, look: Callable[..., Report]) -> None:
    report = look(chain.client(), chain.run, chain.head)
    assert not _failures(report), report.text()
    first, second, *_ = report.text().splitlines()
    headers = chain.head.number - chain.created + 1
    assert first.startswith(f"proven to block {chain.head.number} 0x{chain.head.hash.hex()}: {headers} headers, ")
    assert second == f"audit of run 0x{chain.run.hex()}"
    assert report.facts["rounds"].startswith(f"{ROUNDS} of {ROUNDS}") and report.facts["state"] == "complete"


def test_nothing_after_the_pinned_block_is_used(chain: Chain, look: Callable[..., Report]) -> None:
    report = look(chain.client(), chain.run, chain.pin(chain.seals[1]))
    assert not _failures(report), report.text()
    assert report.facts["rounds"].startswith(f"1 of {ROUNDS}") and report.facts["state"] == "open"


def test_without_a_pin_the_report_begins_with_whose_word_it_is(chain: Chain, look: Callable[..., Report]) -> None:
    report = look(chain.client(), chain.run)
    trusted, _, advice = report.text().splitlines()[0].partition("; pin with --head ")
    assert trusted == f"trusting {chain.url.removeprefix('http://')} for the chain"
    pin = parse_pin(advice)
    assert pin == chain.pin(pin.number)
    again = look(chain.client(), chain.run, pin)
    assert again.text().startswith(f"proven to block {pin.number} ")


def test_blocks_are_named_by_the_proof_or_as_the_chain_node_says(chain: Chain) -> None:
    client = chain.client()
    places = (chain.created, chain.seals[0], chain.head.number)
    with told(client, lambda line: None) as word:
        assert [word.block_hash(n) for n in places] == [chain.pin(n).hash for n in places]
        assert word.block_hash(word.head.block + 1) is None
    with proven(client, chain.run, pinned(client.rpc, chain.head), lambda line: None) as proof:
        assert [proof.block_hash(n) for n in places] == [chain.pin(n).hash for n in places]
        found = proof.block(chain.seals[1])
        assert found is not None and found.time == chain.client().rpc.header(chain.seals[1]).time  # type: ignore[union-attr]
        assert proof.block_hash(chain.head.number + 1) is None
        with pytest.raises(KeyError):
            proof.block_hash(chain.created - 1)


# Lies about logs.


def _logs(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Lie:
    """About the logs of the run."""
    return lambda method, params, result: change(result) if method == "eth_getLogs" and result else result


def _of_run(chain: Chain, log: dict[str, Any]) -> bool:
    return chain.run.hex() in log["topics"][1]


def _cut(chain: Chain) -> Lie:
    return _logs(lambda logs: [log for log in logs if int(log["blockNumber"], 16) < chain.seals[-1]])


def _cut_in_the_middle(chain: Chain) -> Lie:
    return _logs(lambda logs: [log for log in logs if int(log["blockNumber"], 16) != chain.seals[0]])


def _in_another_block(chain: Chain) -> Lie:
    there = chain.pin(chain.seals[0] - 1)
    place = {"blockNumber": hex(there.number), "blockHash": "0x" + there.hash.hex()}
    return _logs(lambda logs: [log | place if log["blockNumber"] == hex(chain.seals[0]) else log for log in logs])


def _at_another_index(chain: Chain) -> Lie:
    return _logs(lambda logs: [log | {"logIndex": hex(int(log["logIndex"], 16) + 1)} for log in logs])


def _added(chain: Chain) -> Lie:
    def change(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ours = [log for log in logs if _of_run(chain, log)]
        return logs + [log | {"logIndex": hex(int(log["logIndex"], 16) + 7)} for log in ours[-1:]]

    return _logs(change)


def _reordered(chain: Chain) -> Lie:
    """Two joins change places."""

    def change(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ours = [log for log in logs if _of_run(chain, log)]
        if len(ours) < 3:
            return logs
        one, other = ours[1], ours[2]
        swapped = {id(one): one | {k: other[k] for k in ("topics", "data")}}
        swapped[id(other)] = other | {k: one[k] for k in ("topics", "data")}
        return [swapped.get(id(log), log) for log in logs]

    return _logs(change)


def _of_another_time(chain: Chain) -> Lie:
    return _logs(lambda logs: [log | {"blockTimestamp": hex(1)} for log in logs])


def _removed(chain: Chain) -> Lie:
    return _logs(lambda logs: [log | {"removed": True} for log in logs])


# Lies about blocks and receipts.


def _blocks(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Lie:
    def lie(method: str, params: list[Any], result: Any) -> Any:
        return change(result) if method.startswith("eth_getBlockBy") and result else result

    return lie


def _with(*lies: Lie) -> Lie:
    def lie(method: str, params: list[Any], result: Any) -> Any:
        for one in lies:
            result = one(method, params, result)
        return result

    return lie


def _cut_and_without_bloom(chain: Chain) -> Lie:
    return _with(_cut(chain), _blocks(lambda block: block | {"logsBloom": "0x" + "00" * 256}))


def _without_receipts(chain: Chain) -> Lie:
    """Of the last seal's block, whose header is changed so that none fit."""
    empty = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"  # the root of no receipts

    def lie(method: str, params: list[Any], result: Any) -> Any:
        if method == "eth_getBlockReceipts" and params == [hex(chain.seals[-1])]:
            return []
        return result

    def change(block: dict[str, Any]) -> dict[str, Any]:
        return block | {"receiptsRoot": empty} if block["number"] == hex(chain.seals[-1]) else block

    return _with(_cut(chain), lie, _blocks(change))


def _receipts(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Lie:
    def lie(method: str, params: list[Any], result: Any) -> Any:
        return change(result) if method == "eth_getBlockReceipts" and result else result

    return lie


def _cut_receipt(chain: Chain) -> Lie:
    return _with(_cut(chain), _receipts(lambda receipts: receipts[:-1]))


def _cut_log_of_receipt(chain: Chain) -> Lie:
    return _with(_cut(chain), _receipts(lambda receipts: [one | {"logs": one["logs"][:-1]} for one in receipts]))


def _another_time(chain: Chain) -> Lie:
    return _blocks(lambda block: block | {"timestamp": hex(int(block["timestamp"], 16) + 1)})


def _the_hash_at_another_number(chain: Chain) -> Lie:
    """An old block is shown as the pinned one."""

    def lie(method: str, params: list[Any], result: Any) -> Any:
        if method == "eth_getBlockByNumber" and params[0] == hex(chain.head.number):
            old = RpcClient(chain.url).call(method, hex(chain.seals[1]), False)
            return old | {"number": params[0], "hash": "0x" + chain.head.hash.hex()}
        return result

    return lie


def _foreign_code(chain: Chain) -> Lie:
    """The right code, where the chain has another account's."""

    def lie(method: str, params: list[Any], result: Any) -> Any:
        return chain.foreign if method == "eth_getProof" else result

    return lie


def _no_receipts_at_all(chain: Chain) -> Lie:
    return _receipts(lambda receipts: [])


# Logs of a block that is new are asked for again in other words, and such a chain node then tells the truth.
ASKED_AGAIN = (_cut, _cut_receipt, _cut_log_of_receipt)


def _facts(report: Report) -> dict[str, Any]:
    """But for how long ago the head was."""
    return report.facts | {"head": report.facts["head"].rsplit(", ", 1)[0]}


@pytest.mark.parametrize(
    "lie",
    [
        *(
            _cut,
            _in_another_block,
            _at_another_index,
            _added,
            _reordered,
            _of_another_time,
            _removed,
        ),
        *(_cut_and_without_bloom, _without_receipts, _cut_receipt, _cut_log_of_receipt, _another_time),
        *(_the_hash_at_another_number, _foreign_code, _no_receipts_at_all),
    ],
)
def test_no_lie_passes(chain: Chain, look: Callable[..., Report], lie: Callable[[Chain], Lie]) -> None:
    with lying(chain, lie(chain)) as client:
        try:
            report = look(client, chain.run, chain.head)
        except LedgerUnavailable as error:
            assert lie in ASKED_AGAIN and client.rpc.name in str(error), "while the block is one of the newest"
            return
    if lie in ASKED_AGAIN and not _failures(report):
        assert report.text().startswith("proven to block"), report.text()
        assert _facts(report) == _facts(look(chain.client(), chain.run, chain.head))
        return
    (failure,) = _failures(report)
    assert failure.check == "chain node" and client.rpc.name in failure.detail, report.text()
    assert report.text().startswith(f"not proven to --head {chain.head}")


def test_a_block_s_logs_that_are_kept_back_are_found_or_missed(chain: Chain, look: Callable[..., Report]) -> None:
    """A new block's are asked for again in other words; of an older one the receipts' roots tell."""
    with lying(chain, _cut_in_the_middle(chain)) as client:
        report = look(client, chain.run, chain.head)
    if failures := _failures(report):
        assert [one.check for one in failures] == ["chain node"], report.text()
    else:
        assert report.text().startswith("proven to block") and re.search(r"\bseal +4 ", report.text()), report.text()


def test_a_parallel_history_under_the_true_head_s_hash_fails(
    chain: Chain, parallel: Chain, look: Callable[..., Report]
) -> None:
    assert (parallel.ledger, parallel.run) == (chain.ledger, chain.run) and parallel.head != chain.head
    there = parallel.head.hash.hex()

    def lie(method: str, params: list[Any], result: Any) -> Any:
        """The other chain, whose head has the pinned number and hash."""
        if method == "eth_getBlockByNumber" and params[0] in ("latest", hex(chain.head.number)):
            result = RpcClient(parallel.url).call(method, hex(parallel.head.number), False)
        if isinstance(result, dict) and result.get("hash") == "0x" + there:
            return result | {"hash": "0x" + chain.head.hash.hex(), "number": hex(chain.head.number)}
        return result

    assert not _failures(look(parallel.client(), chain.run, parallel.head)), "it is a history like any other"
    with lying(parallel, lie) as client:
        (failure,) = _failures(look(client, chain.run, chain.head))
    assert failure.check == "chain node" and chain.head.hash.hex() in failure.detail


def test_a_proof_takes_nothing_that_another_chain_node_said_before(chain: Chain, look: Callable[..., Report]) -> None:
    client = chain.client()
    client._contracts = Contracts(chain.ledger, client.registry, chain.seals[0])  # as a liar said
    report = look(client, chain.run, chain.head)
    assert not _failures(report) and report.text().startswith("proven to block"), report.text()


def test_an_old_head_is_not_taken_for_the_pinned_one(chain: Chain, look: Callable[..., Report]) -> None:
    def old(method: str, params: list[Any], result: Any) -> Any:
        newer = method == "eth_getBlockByNumber" and params[0] != "latest" and int(params[0], 16) > chain.seals[0]
        return None if newer else result

    with lying(chain, old) as client:
        said = (
            f"the chain node at {client.rpc.name} has no block {chain.head.number}: it is behind the head {chain.head},"
        )
        with pytest.raises(LedgerUnavailable, match=re.escape(said)):
            look(client, chain.run, chain.head)


def test_a_head_from_before_the_run_is_named(chain: Chain, look: Callable[..., Report]) -> None:
    (failure,) = _failures(look(chain.client(), chain.run, chain.pin(chain.created - 1)))
    assert "the pinned block is older than the run" in failure.detail


def test_an_old_head_of_a_run_that_goes_on_is_a_warning(
    chain: Chain, look: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    monkeypatch.setattr("dlx.node.audit.chain_trust.time.time", lambda: clock() + 3 * 3600)
    heads = [(c.verdict, c.detail) for c in look(chain.client(), chain.other).checks if c.check == "head"]
    ((verdict, detail),) = heads
    assert verdict == "WARN" and "hours ago, and the run is not complete" in detail
    assert not [c for c in look(chain.client(), chain.run).checks if c.check == "head"], "that one is over"


def test_removed_logs_fail_without_a_pin_too(chain: Chain, look: Callable[..., Report]) -> None:
    with lying(chain, _removed(chain)) as client:
        (failure,) = _failures(look(client, chain.run))
    assert failure.check == "chain node" and "removed" in failure.detail


def test_receipts_are_had_one_by_one_where_the_chain_node_gives_no_blocks_of_them(
    chain: Chain, look: Callable[..., Report]
) -> None:
    def without(method: str, params: list[Any], result: Any) -> Any:
        return None if method == "eth_getBlockReceipts" else result

    with lying(chain, without) as client:
        report = look(client, chain.run, chain.head)
    assert not _failures(report) and report.text().startswith("proven to block")


def test_code_that_the_chain_node_cannot_prove_is_a_warning(chain: Chain, look: Callable[..., Report]) -> None:
    with lying(chain, lambda method, params, result: None if method == "eth_getProof" else result) as client:
        report = look(client, chain.run, chain.head)
    assert [c.verdict for c in report.checks if c.check == "bytecode" and "no proof" in c.detail] == ["WARN"] * 6


# Several chain nodes.


def test_chain_nodes_are_compared_and_those_that_cannot_be_reached_named(
    chain: Chain, parallel: Chain, look: Callable[..., Report]
) -> None:
    with FaultProxy(chain.url) as same, FaultProxy(chain.url) as silent:
        silent.fault("html")
        urls = [chain.url, same.url, silent.url]
        report = look(LedgerClient(urls, chain.ledger), chain.run)
    (unreachable,) = _of_chain_nodes(report)
    assert unreachable.verdict == "WARN" and silent.url.removeprefix("http://") in unreachable.detail
    (row,) = [row for row in report.json()["table"] if row["check"] == "chain nodes"]
    assert (row["PASS"], row["FAIL"], row["WARN"]) == (1, 0, 1)
    urls = [chain.url, parallel.url]
    (differ,) = _of_chain_nodes(look(LedgerClient(urls, chain.ledger), chain.run))
    assert differ.verdict == "FAIL"
    assert all(url.removeprefix("http://") in differ.detail for url in urls)
    assert not _of_chain_nodes(look(LedgerClient(urls, chain.ledger), chain.run, chain.head)), "proven, whoever answers"


def test_chain_nodes_that_agree_on_blocks_do_not_vouch_for_events(chain: Chain, look: Callable[..., Report]) -> None:
    """The first shows nobody who joined; its blocks are the true ones."""
    creation = {event_topic(kind).hex() for kind in (RunCreated, NodeRegistered, AddressesChanged)}
    lie = _logs(lambda logs: [log for log in logs if log["topics"][0].removeprefix("0x") in creation])
    with FaultProxy(chain.url) as first:
        first.lie = lie
        client = LedgerClient([first.url, chain.url], chain.ledger)
        report = look(client, chain.other)
        assert not _failures(report) and report.facts["state"] == "not started", report.text()
        assert any("only --head proves that" in line for line in report.not_established)
        pinned = look(client, chain.other, chain.head)
        if not _failures(pinned):  # the second was asked
            assert _facts(pinned) == _facts(look(chain.client(), chain.other, chain.head))


# Chain nodes that never come to an end.


def test_a_head_that_no_chain_reaches_is_refused(chain: Chain, look: Callable[..., Report]) -> None:
    def far(method: str, params: list[Any], result: Any) -> Any:
        return result | {"number": hex(1 << 48)} if params[:1] == ["latest"] else result

    with lying(chain, far) as client, pytest.raises(LedgerError, match=f"at block {1 << 48}: no chain is"):
        look(client, chain.run)


def test_blocks_that_go_back_for_ever_are_refused(chain: Chain, look: Callable[..., Report]) -> None:
    def endless(method: str, params: list[Any], result: Any) -> Any:
        by_hash = method == "eth_getBlockByHash" and result
        return result | {"number": hex(1 << 30), "parentHash": result["hash"]} if by_hash else result

    def older(method: str, params: list[Any], result: Any) -> Any:
        by_hash = method == "eth_getBlockByHash" and result
        return RpcClient(chain.url).call("eth_getBlockByNumber", hex(chain.head.number), False) if by_hash else result

    for lie in (endless, older):
        for head in (None, chain.head):
            with lying(chain, lie) as client:
                (failure,) = _failures(look(client, chain.run, head))
            assert failure.check == "chain node" and client.rpc.name in failure.detail


def _proof_node(node: bytes) -> Lie:
    answer = {"accountProof": ["0x" + node.hex()]}
    return lambda method, params, result: answer if method == "eth_getProof" else result


def _deep() -> bytes:
    node = b"\xc0"
    for _ in range(20_000):
        node = length_prefix(len(node), 0xC0) + node
    return node


@pytest.mark.parametrize(
    "lie",
    [
        _logs(lambda logs: [log | {"logIndex": hex(1 << 64)} for log in logs]),
        _logs(lambda logs: [log | {"logIndex": "-0x5"} for log in logs]),
        _logs(lambda logs: [log | {"blockTimestamp": hex(1 << 64)} for log in logs]),
        _blocks(lambda block: block | {"timestamp": hex(1 << 64)}),
        _blocks(lambda block: block | {"timestamp": "-0x1"}),
        lambda method, params, result: hex(1 << 64) if method == "eth_chainId" else result,
        _proof_node(b"\xc3\x01\x02\x03"),
        _proof_node(_deep()),
    ],
)
def test_what_no_chain_node_says_ends_in_one_line(chain: Chain, look: Callable[..., Report], lie: Lie) -> None:
    with lying(chain, lie) as client:
        try:
            report = look(client, chain.run, chain.head)
        except LedgerError:
            return
    (failure,) = _failures(report)
    assert failure.check == "chain node" and client.rpc.name in failure.detail


def test_an_answer_that_drips_ends_in_one_line(chain: Chain, look: Callable[..., Report]) -> None:
    for methods in (["eth_getLogs"], ["eth_getBlockByNumber"]):
        with FaultProxy(chain.url) as proxy:
            client = chain.client(proxy.url)
            client.connect()
            client.contracts()
            client.rpc._patience = 0.6
            proxy.fault("drip", methods=methods)
            began = time.monotonic()
            said = rf"at {re.escape(client.rpc.name)}: (no answer|the answer was not whole) in time"
            with pytest.raises(LedgerUnavailable, match=said):
                look(client, chain.run, chain.head)
            assert time.monotonic() < began + PATIENCE


@pytest.mark.slow
def test_a_million_logs_end_in_one_line(chain: Chain, look: Callable[..., Report]) -> None:
    """More than an answer may hold, however few blocks are asked for."""
    many = _logs(lambda logs: logs[:1] * 100_000)
    with lying(chain, many) as client, pytest.raises(LedgerError, match="over 64 MiB: too many results"):
        look(client, chain.run)


def _failures(report: Report) -> list[Any]:
    return [check for check in report.checks if check.verdict == "FAIL"]


def _of_chain_nodes(report: Report) -> list[Any]:
    return [check for check in report.checks if check.check == "chain nodes"]
