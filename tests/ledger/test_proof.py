"""Headers, receipts and tries as others make them: py-evm's classes, and the blocks of each chain node."""

import random
from types import SimpleNamespace

import pytest
import rlp
from eth.rlp.headers import BlockHeader  # noqa: F401  py-evm's modules import each other in one order only
from eth.rlp.receipts import Receipt
from eth.vm.forks.cancun.headers import CancunBlockHeader
from eth.vm.forks.london.blocks import LondonBlockHeader
from eth.vm.forks.prague.headers import PragueBlockHeader
from eth.vm.forks.shanghai.headers import ShanghaiBlockHeader
from ledger_run import Run, config

from dlx.ledger.errors import Contradiction
from dlx.ledger.proof.history import Pin, parse_pin, pinned, proven, proves_code
from dlx.ledger.proof.receipts import UnknownReceipt, logs_of
from dlx.ledger.proof.tries import list_root
from dlx.ledger.rpc.headers import UnknownFork, proven_header
from dlx.ledger.rpc.rpc_client import RpcClient
from tests.ledger.fault_proxy import FaultProxy

FORKS = (LondonBlockHeader, ShanghaiBlockHeader, CancunBlockHeader, PragueBlockHeader)
NAMES = {  # py-evm's: JSON-RPC's
    "parent_hash": "parentHash", "uncles_hash": "sha3Uncles", "coinbase": "miner", "state_root": "stateRoot",
    "transaction_root": "transactionsRoot", "receipt_root": "receiptsRoot", "bloom": "logsBloom",
    "difficulty": "difficulty", "block_number": "number", "gas_limit": "gasLimit", "gas_used": "gasUsed",
    "timestamp": "timestamp", "extra_data": "extraData", "mix_hash": "mixHash", "nonce": "nonce",
    "base_fee_per_gas": "baseFeePerGas", "withdrawals_root": "withdrawalsRoot", "blob_gas_used": "blobGasUsed",
    "excess_blob_gas": "excessBlobGas", "parent_beacon_block_root": "parentBeaconBlockRoot",
    "requests_hash": "requestsHash",
}  # fmt: skip


def block(fork, **changes):
    """A block of a fork as a chain node gives it, and its hash by py-evm."""
    values = {
        "parent_hash": random.randbytes(32), "uncles_hash": random.randbytes(32), "coinbase": random.randbytes(20),
        "state_root": random.randbytes(32), "transaction_root": random.randbytes(32),
        "receipt_root": random.randbytes(32), "bloom": random.getrandbits(2048) >> 9, "difficulty": 0,
        "block_number": 20_000_000, "gas_limit": 30_000_000, "gas_used": 0, "timestamp": 1_700_000_000,
        "extra_data": b"builder", "mix_hash": random.randbytes(32), "nonce": bytes(8), "base_fee_per_gas": 7,
        "withdrawals_root": random.randbytes(32), "blob_gas_used": 131_072, "excess_blob_gas": 0,
        "parent_beacon_block_root": random.randbytes(32), "requests_hash": random.randbytes(32),
    }  # fmt: skip
    header = fork(**{name: values[name] for name, _ in fork._meta.fields})
    answer = {NAMES[name]: _json(name, getattr(header, name)) for name, _ in fork._meta.fields}
    return answer | {"hash": "0x" + header.hash.hex(), "size": "0x1", "uncles": [], "transactions": []}, header.hash


def _json(name, value):
    if name == "bloom":
        value = value.to_bytes(256, "big")
    return "0x" + value.hex() if isinstance(value, bytes) else hex(value)


@pytest.mark.parametrize("fork", FORKS)
def test_a_header_of_each_fork_is_hashed_as_py_evm_does(fork):
    answer, expected = block(fork)
    header = proven_header(answer, expected, "a")
    assert (header.hash, header.number, header.time) == (expected, 20_000_000, 1_700_000_000)
    assert header.parent.hex() in answer["parentHash"] and header.receipts_root.hex() in answer["receiptsRoot"]
    for name in set(NAMES.values()) & set(answer):  # each field is in the hash
        other = answer[name][:-1] + ("0" if answer[name][-1] != "0" else "1")
        with pytest.raises(Contradiction):
            proven_header(answer | {name: other}, expected, "a")


def test_fields_of_a_later_fork_are_refused_by_name_and_fields_beside_the_header_ignored():
    answer, expected = block(PragueBlockHeader)
    assert proven_header(answer | {"l1BlockNumber": "0x1"}, expected, "a").hash == expected
    with pytest.raises(UnknownFork, match="does not know its fields blockAccessListHash"):
        proven_header(answer | {"blockAccessListHash": "0x" + "11" * 32}, bytes(32), "a")


@pytest.mark.parametrize("answer", [{}, [], None, 5, "0x", {"number": None}, {"parentHash": 5}])
def test_what_is_no_block_contradicts(answer):
    with pytest.raises(Contradiction, match="something else than a block"):
        proven_header(answer, bytes(32), "a")


def test_negative_numbers_and_short_hashes_are_none():
    answer, expected = block(PragueBlockHeader)
    for change in ({"number": "-0x5"}, {"gasUsed": "five"}, {"mixHash": "0x00"}, {"miner": "0xzz"}, {"nonce": None}):
        with pytest.raises(Contradiction, match="something else than a block"):
            proven_header(answer | change, expected, "a")


def receipts(kinds):
    """Receipts of these types as a chain node gives them, and their encodings by py-evm."""
    answers, encoded = [], []
    for index, kind in enumerate(kinds):
        logs = [
            (random.randbytes(20), [random.randbytes(32) for _ in range(n)], random.randbytes(40 * n)) for n in range(3)
        ]
        entries = [(a, [int.from_bytes(t, "big") for t in topics], data) for a, topics, data in logs]
        made = Receipt(b"\x01" if index % 2 else b"", 21_000 * (index + 1), [log_of(entry) for entry in entries])
        encoded.append(made.encode() if not kind else bytes([kind]) + made.encode())
        answers.append({
            "type": hex(kind), "status": hex(index % 2), "cumulativeGasUsed": hex(21_000 * (index + 1)),
            "logs": [
                {"address": "0x" + a.hex(), "topics": ["0x" + t.hex() for t in topics], "data": "0x" + data.hex()}
                for a, topics, data in logs
            ],
        })  # fmt: skip
    return answers, encoded


def log_of(entry):
    from eth.rlp.logs import Log

    return Log(*entry)


class Node:
    """A chain node that has the receipts of one block."""

    name = "a"

    def __init__(self, answer):
        self.answer = answer

    def batch(self, method, calls, at_once):
        return iter([self.answer])


def test_receipts_of_every_type_have_the_root_that_py_evm_gives():
    answers, encoded = receipts([0, 1, 2, 3, 4] * 30)
    header = SimpleNamespace(number=7, receipts_root=list_root(encoded), transactions=())
    ((found, logs),) = logs_of(Node(answers), [header])
    assert found is header and [log.index for log in logs] == list(range(3 * len(answers)))
    assert [log.data.hex() for log in logs[:3]] == [log["data"][2:] for log in answers[0]["logs"]]
    for wrong in (answers[:-1], answers[1:] + answers[:1], [*answers, answers[0]], []):
        with pytest.raises(Contradiction, match="receipts of block 7 with root"):
            list(logs_of(Node(wrong), [header]))
    for junk in (5, [5], [{}], [answers[0] | {"logs": None}], [answers[0] | {"status": None}], {"a": 1}):
        with pytest.raises(Contradiction, match="something else than receipts"):
            list(logs_of(Node(junk), [header]))


def test_a_receipt_of_an_unknown_type_is_refused():
    answers, _ = receipts([0])
    header = SimpleNamespace(number=7, receipts_root=bytes(32), transactions=())
    with pytest.raises(UnknownReceipt, match="a receipt of type 106 cannot be proven"):
        list(logs_of(Node([answers[0] | {"type": "0x6a"}]), [header]))


def test_a_deposit_of_an_op_stack_chain_has_two_more_fields_since_canyon():
    answers, (four,) = receipts([0x7E])
    six = b"\x7e" + rlp.encode([*rlp.decode(four[1:]), b"\x07", b"\x01"])
    since = {"depositNonce": "0x7", "depositReceiptVersion": "0x1"}
    for encoded, more in ((four, {"depositNonce": "0x7"}), (six, since)):
        header = SimpleNamespace(number=7, receipts_root=list_root([encoded]), transactions=())
        assert list(logs_of(Node([answers[0] | more]), [header]))


def test_a_pin_is_a_number_and_a_hash():
    pin = Pin(123, bytes(range(32)))
    assert parse_pin(str(pin)) == pin
    for wrong in (
        "",
        "123",
        "123:",
        "0x5:0x" + "11" * 32,
        "-1:0x" + "11" * 32,
        "1:" + "11" * 32,
        "1:0x11",
        "1:0x" + "1" * 63,
    ):
        with pytest.raises(ValueError, match="is no BLOCK:HASH"):
            parse_pin(wrong)


def test_each_chain_node_s_blocks_can_be_proven(any_chain):
    members = any_chain.members(range(80, 82))
    run = Run(members, config(stages=1, min_replicas=2, max_replicas=2))
    for member in members:
        member.join_run(run.id)
    rpc = members[0].rpc
    head = rpc.head()
    top = pinned(rpc, Pin(head.number, head.hash))
    with proven(members[0], run.id, top, lambda line: None) as history:
        told = [rpc.header(number).hash for number in range(top.number - history.headers + 1, top.number + 1)]
        assert [
            history.block_hash(number) for number in range(top.number - history.headers + 1, top.number + 1)
        ] == told
        assert 3 <= history.roots <= history.headers
    code = members[0].code(any_chain.ledger)
    if any_chain.kind != "hardhat":  # which has no eth_getProof
        assert proves_code(rpc, top, any_chain.ledger, code)
        with pytest.raises(Contradiction, match="gave other code"):
            proves_code(rpc, top, any_chain.ledger, code + b"\0")
        with pytest.raises(Contradiction, match="gave other code"):
            proves_code(rpc, top, any_chain.registry, code)


def test_a_batch_is_asked_for_in_smaller_ones_where_it_is_refused(embedded):
    with FaultProxy(embedded.url) as proxy:
        rpc = RpcClient(proxy.url)
        proxy.most = 3
        numbers = range(min(20, rpc.head().number))
        found = list(rpc.batch("eth_getBlockByNumber", [(hex(number), False) for number in numbers]))
        assert [int(one["number"], 16) for one in found] == list(numbers)
        proxy.most = 0  # none at all: one by one
        again = list(rpc.batch("eth_getBlockByNumber", [(hex(number), False) for number in numbers]))
        assert again == found
