"""The sender against chain nodes that mislead: refusals that are none, counts that are late, receipts of something
else, a first node that keeps to itself what it is given."""

import json
import threading
import time
from dataclasses import replace

import pytest
from eth_account.typed_transactions import TypedTransaction
from hexbytes import HexBytes

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.fees import GWEI, Limits
from dlx.ledger.transactions.sender import CONFIRMED, Sender, Unconfirmed
from dlx.ledger.typed import Domain
from tests.ledger.sender_support import ACCOUNT, KEY, TO, Miner, entries, files, once, refusing, reopen
from tests.patience import PATIENCE

FULL = {"error": {"code": -32000, "message": "txpool is full"}}


@pytest.fixture
def miner(fake_chain):
    one = Miner(fake_chain)
    yield one
    one.stop()


# What is refused in words.


def taken_and_refused(chain):
    """A fault: the next transaction arrives, and the answer is that there is no room."""

    def fault(method, params):
        return (chain.eth_sendRawTransaction(*params), FULL)[1] if method == "eth_sendRawTransaction" else None

    chain.faults.append(fault)


def test_what_is_refused_in_words_and_taken_is_paid_once(fake_chain, sender):
    """As by one of several chain nodes. Where a nonce is replaced for a tenth more only, other bytes do not help."""
    takes = fake_chain.eth_sendRawTransaction

    def for_a_tenth_more(raw):
        new = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        for _, nonce, other in fake_chain.pool.values():
            old = TypedTransaction.from_bytes(HexBytes(other)).as_dict()
            if nonce == new["nonce"] and raw != other and 10 * new["maxFeePerGas"] < 11 * old["maxFeePerGas"]:
                return {"error": {"code": -32000, "message": "replacement transaction underpriced"}}
        return takes(raw)

    fake_chain.eth_sendRawTransaction = for_a_tenth_more
    taken_and_refused(fake_chain)
    with pytest.raises(LedgerError, match="txpool is full"):
        sender.send(TO, b"a", 100_000)
    fake_chain.base_fee -= 1  # so the same call has other bytes
    again = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    assert sender.wait(again, PATIENCE)["status"] == "0x1" and fake_chain.counts == {ACCOUNT: 1}


def test_what_was_refused_and_mined_is_told_to_who_asks_again_and_leaves_its_nonce_else(fake_chain, sender, tmp_path):
    taken_and_refused(fake_chain)
    with pytest.raises(LedgerError, match="txpool is full"):
        sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    again = sender.send(TO, b"a", 100_000)
    assert sender.wait(again, PATIENCE)["status"] == "0x1" and fake_chain.counts == {ACCOUNT: 1}
    fake_chain.faults.append(once("eth_sendRawTransaction", FULL))
    with pytest.raises(LedgerError, match="txpool is full"):
        sender.send(TO, b"b", 100_000)
    assert sender.send(TO, b"c", 100_000).nonce == 1 and len(files(tmp_path)) == 1


@pytest.mark.parametrize("words", ["nonce too low", "OldNonce, Current nonce: 1, nonce of rejected tx: 0"])
def test_a_used_nonce_is_known_in_every_node_s_words(fake_chain, sender, words):
    takes = fake_chain.eth_sendRawTransaction

    def lose(method, params):  # it is mined before the answer is lost
        if method != "eth_sendRawTransaction":
            return None
        takes(*params)
        fake_chain.mine()
        fake_chain.eth_sendRawTransaction = lambda raw: {"error": {"code": -32010, "message": words}}
        return b""

    fake_chain.faults.append(lose)
    assert sender.send(TO, b"a", 100_000).nonce == 0 and fake_chain.counts == {ACCOUNT: 1}


def test_the_refusal_of_one_call_is_not_the_next_one_s(fake_chain, sender, tmp_path):
    """Two processes saw that the contract would refuse an entry; one gives its nonce to a call that is wanted."""
    stale = sender.send(TO, b"seal 1", 100_000)
    refusing(fake_chain, b"seal 1")
    one, other = reopen(fake_chain, tmp_path), reopen(fake_chain, tmp_path)
    live = other.send(TO, b"create run", 100_000)
    assert live.nonce == stale.nonce and one.send(TO, b"seal 2", 100_000).nonce == live.nonce + 1
    assert other.send(TO, b"join", 100_000).nonce == live.nonce + 2


# What ends a wait, and what does not.


def test_a_node_without_receipts_for_a_while_is_waited_for(fake_chain, sender, miner):
    pending = sender.send(TO, b"a", 100_000)
    message = "transaction indexing is in progress"  # geth, after a start
    fake_chain.faults.append(once("eth_getTransactionReceipt", {"error": {"code": -32000, "message": message}}))
    assert sender.wait(pending, PATIENCE)["status"] == "0x1"


@pytest.mark.parametrize("limits", [Limits(), Limits(budget=100_000 * 15 * 10 // 9 + 10)], ids=["fee", "budget"])
def test_what_is_sent_and_cannot_be_outbid_still_waits(fake_chain, tmp_path, quick, limits):
    sender = Sender(RpcClient(fake_chain.url, patience=PATIENCE), 31337, KEY, tmp_path, limits)
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.base_fee = 10_000 * GWEI
    with pytest.raises(Unconfirmed):
        sender.wait(pending, 0.5)


def without_receipts(chain, blocks=30):
    """Nobody gives any from now on, for so many blocks at least; gives them back."""
    receipts, chain.receipts = chain.receipts, {}
    for _ in range(blocks):
        chain.mine()
    return receipts


def test_a_receipt_that_is_long_missing_is_waited_for(fake_chain, sender, tmp_path):
    """8 blocks are two seconds on some chains, and a late chain node has no receipts."""
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    receipts = without_receipts(fake_chain)
    with pytest.raises(Unconfirmed, match="has no receipt, though its nonce is used"):
        sender.wait(pending, 3)
    again = reopen(fake_chain, tmp_path)
    assert again.send(TO, b"a", 100_000).hashes == pending.hashes, "it is not paid for twice"
    assert again.send(TO, b"b", 100_000).nonce == 1
    refusing(fake_chain, b"a")  # as it is done
    with pytest.raises(Unconfirmed):
        again.wait(pending, 0.3)
    fake_chain.receipts = receipts
    assert again.wait(pending, PATIENCE)["transactionHash"] == pending.hashes[0]
    assert len({raw for raw in fake_chain.submitted if raw != pending.raw}) == 1, "nothing was sent in its place"


def test_what_was_refused_in_words_and_has_no_receipt_yet_is_paid_once(fake_chain, sender):
    taken_and_refused(fake_chain)
    with pytest.raises(LedgerError, match="txpool is full"):
        sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    receipts = without_receipts(fake_chain)
    again = sender.send(TO, b"a", 100_000)
    fake_chain.receipts = receipts
    assert (
        sender.wait(again, PATIENCE)["status"] == "0x1" and fake_chain.counts == {ACCOUNT: 1} and fake_chain.pool == {}
    )


@pytest.mark.parametrize("kept", [128, 2])
def test_a_nonce_that_another_took_is_known_by_the_block_that_has_it(fake_chain, sender, tmp_path, kept):
    """Where the chain node has that block's state; else nobody knows yet."""
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine_another(ACCOUNT)
    for _ in range(100):
        fake_chain.mine()
    count = fake_chain.eth_getTransactionCount
    pruned = {"error": {"code": -32000, "message": "missing trie node"}}
    fake_chain.eth_getTransactionCount = lambda account, tag: (
        pruned if tag != "latest" and int(tag, 16) < fake_chain.length - 8 - kept else count(account, tag)
    )
    with pytest.raises(LedgerError, match="took nonce 0" if kept == 128 else "has no receipt"):
        sender.wait(pending, 3 if kept == 2 else PATIENCE)
    assert len(entries(tmp_path)) == (kept == 2) and sender.send(TO, b"a", 100_000).nonce == (kept == 128)


@pytest.mark.parametrize("batches", [True, False])
def test_a_slow_chain_node_is_asked_for_many_receipts_for_a_bounded_time(fake_chain, tmp_path, quick, batches):
    sender = Sender(RpcClient(fake_chain.url, timeout=8.0, patience=PATIENCE), 31337, KEY, tmp_path)
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    sender.tend()
    asked = []
    fake_chain.eth_getTransactionReceipt = lambda name: asked.append(name) or time.sleep(0.0 if batches else 1.0)
    if not batches:
        sender._rpc._chain_nodes.next().batches["eth_getTransactionReceipt"].refused(2)
    versions = tuple(f"0x{n:064x}" for n in range(40))
    began = time.monotonic()
    assert sender._receipt(replace(pending, hashes=versions)) is None
    assert time.monotonic() - began < 20 and asked[0] == versions[-1]
    assert not batches or (set(asked) == set(versions) and len(fake_chain.exchanges[-1]) == 40)


def test_a_nonce_of_which_nobody_gives_a_receipt_is_given_up_at_last_and_counts_as_paid(
    fake_chain, sender, tmp_path, monkeypatch, caplog
):
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    without_receipts(fake_chain)
    sender.tend()
    assert len(entries(tmp_path)) == 1
    monkeypatch.setattr("dlx.ledger.transactions.sender._GIVEN_UP", 0.0)
    sender.tend()
    assert entries(tmp_path) == [] and "no chain node gives a receipt for nonce 0" in caplog.text
    assert sum(sender._budget._hours.values()) == pending.cap


def test_what_was_done_is_not_pointless_because_it_was_done(fake_chain, sender):
    """The contract refuses a second time what a block has, whose receipt is late."""
    for _ in range(20):
        fake_chain.mine()
    pending = sender.send(TO, b"a", 100_000)
    block, count = fake_chain.mine(), fake_chain.eth_getTransactionCount
    fake_chain.eth_getTransactionCount = lambda account, tag: (
        count(account, tag) if tag == "latest" or int(tag, 16) >= block else "0x0"
    )
    receipts, fake_chain.receipts = fake_chain.receipts, {}
    refusing(fake_chain, b"a")
    asked = []

    def late(name):
        asked.append(name)
        return receipts[name] if len(asked) > 20 else None

    fake_chain.eth_getTransactionReceipt = late
    assert sender.wait(pending, PATIENCE)["status"] == "0x1"


def test_nobody_waits_longer_than_it_said_for_who_holds_the_outbox(fake_chain, sender, tmp_path):
    pending, member = sender.send(TO, b"a", 100_000), reopen(fake_chain, tmp_path)
    holds, done = threading.Event(), threading.Event()

    def hold():
        with member._turn():
            holds.set()
            done.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holds.wait(PATIENCE)
        with pytest.raises(Unconfirmed):
            sender.wait(pending, 0.2)
        assert not done.is_set()
    finally:
        done.set()
        thread.join()


# Late nodes and gaps.


def test_a_node_a_little_behind_takes_nothing_back_however_long(fake_chain, sender, tmp_path):
    for _ in range(12):
        fake_chain.mine()
    fake_chain.counts[ACCOUNT] = 9  # used from elsewhere a moment ago
    first = sender.send(TO, b"a", 100_000)
    length, pool = fake_chain.length, dict(fake_chain.pool)
    fake_chain.length, fake_chain.counts, fake_chain.pool = length - 2, {ACCOUNT: 7}, {}
    with pytest.raises(Unconfirmed):
        sender.wait(first, 1)
    assert len(entries(tmp_path)) == 1
    fake_chain.length, fake_chain.counts, fake_chain.pool = length, {ACCOUNT: 9}, pool
    fake_chain.mine()
    assert sender.send(TO, b"a", 100_000).nonce == 9


def test_what_waits_behind_a_gap_is_kept_when_the_gap_is_filled(fake_chain, sender, tmp_path):
    first, *_ = (sender.send(TO, bytes([number]), 100_000) for number in range(3))
    damaged = entries(tmp_path)[0]
    damaged.write_text("[]")
    (damaged.parent / "lock").write_bytes(b"\x7f" * 8)  # others read the folder again
    del fake_chain.pool[first.hashes[0]]
    again = reopen(fake_chain, tmp_path)
    deadline = time.monotonic() + 30
    with again._turn():
        while again._settle()[0]:  # until it is believed that no nonce is used
            assert time.monotonic() < deadline
    assert again.send(TO, b"z", 100_000).nonce == 0
    fake_chain.mine()
    assert fake_chain.counts == {ACCOUNT: 3} and again.send(TO, bytes([2]), 100_000).nonce == 2


# Receipts.


@pytest.mark.parametrize(
    "change",
    [
        {"blockHash": None},
        {"logs": None},
        {"logs": [{}]},
        {"gasUsed": "-0xff"},
        {"transactionHash": "0x" + "11" * 32},
    ],
    ids=["block", "logs", "log", "gas", "another"],
)
def test_a_receipt_of_something_else_is_none(fake_chain, quick, miner, change):
    client, run = LedgerClient(fake_chain.url, TO, KEY), b"\x07" * 32
    client._connected = Domain(31337, TO), TO, Sender(client.rpc, 31337, KEY, None)
    fake_chain.eth_estimateGas = lambda call, tag: hex(40_000)
    whole, lies = fake_chain.eth_getTransactionReceipt, []

    def lying(name):
        if (receipt := whole(name)) is None or len(lies) == 3:
            return receipt
        lies.append(name)
        return receipt | change

    fake_chain.eth_getTransactionReceipt = lying
    assert client.answer(run).block and len(lies) == 3
    assert len(fake_chain.submitted) == len(set(fake_chain.submitted)) and fake_chain.counts == {client.account: 1}


def test_a_cost_below_nothing_gives_no_budget(fake_chain, tmp_path, quick):
    sender = Sender(RpcClient(fake_chain.url, patience=PATIENCE), 31337, KEY, tmp_path, Limits(budget=100_000 * 15 * 2))
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    fake_chain.receipts[pending.hashes[0]]["effectiveGasPrice"] = "-0xffffffffffffff"
    sender.wait(pending, PATIENCE)
    spent = json.loads(next(tmp_path.rglob("spent.json")).read_text())
    assert "-" not in json.dumps(spent)


def test_a_tip_below_nothing_is_one_line(fake_chain, sender):
    fake_chain.eth_maxPriorityFeePerGas = lambda: {"error": {"code": -32601, "message": "no"}}
    fake_chain.eth_feeHistory = lambda *_: {"reward": [["-0x64"]]}
    with pytest.raises(LedgerError, match="history of fees"):
        sender.send(TO, b"a", 100_000)


def test_what_took_the_nonce_of_another_is_counted_once(fake_chain, sender, monkeypatch):
    first = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    sender.wait(first, PATIENCE)
    old = sender.send(TO, b"b", 100_000)
    monkeypatch.setattr("dlx.ledger.transactions.sender.time.time", lambda later=time.time() + 1000: later)
    assert sender.send(TO, b"c", 100_000).nonce == old.nonce
    fake_chain.pool = {name: one for name, one in fake_chain.pool.items() if name == old.hashes[0]}
    fake_chain.mine()
    sender.tend()
    for _ in range(CONFIRMED):
        fake_chain.mine()
    sender.tend()
    assert sum(sender._budget._hours.values()) == 2 * 50_000 * 8


def test_who_was_told_is_not_told_the_same_of_the_next(fake_chain, sender, tmp_path):
    """Though another process raised the price between the receipt and the telling."""
    pending, other = sender.send(TO, b"a", 100_000), reopen(fake_chain, tmp_path)
    fake_chain.mine()
    read, raised = sender._receipt, []

    def receipt(one):
        found = read(one)
        if found and not raised:
            raised.append(one)
            with other._turn():
                entry = other._outbox.entries[0]
                other._outbox.keep(other._sign(replace(entry, max_fee=entry.max_fee * 2)))
        return found

    sender._receipt = receipt
    sender.wait(pending, PATIENCE)
    assert raised and sender.send(TO, b"a", 100_000).nonce == 1


# Several nodes.


def test_a_first_node_that_keeps_it_to_itself_is_passed_by(fake_chain, second_chain, tmp_path, quick):
    for name in ("eth_getBlockByNumber", "eth_getTransactionCount", "eth_getTransactionReceipt"):
        setattr(second_chain, name, getattr(fake_chain, name))
    second_chain.eth_sendRawTransaction = lambda raw: "0x00"
    sender = Sender(
        RpcClient([second_chain.url, fake_chain.url], chain_id=31337, patience=PATIENCE), 31337, KEY, tmp_path
    )
    pending, stop = sender.send(TO, b"a", 100_000), threading.Event()

    def blocks():
        while not stop.wait(0.05):
            fake_chain.mine()

    thread = threading.Thread(target=blocks)
    thread.start()
    try:
        assert sender.wait(pending, PATIENCE)["status"] == "0x1"
    finally:
        stop.set()
        thread.join()


def test_a_receipt_that_the_first_node_never_has_comes_from_another(fake_chain, second_chain, tmp_path, quick):
    sender = Sender(
        RpcClient([second_chain.url, fake_chain.url], chain_id=31337, patience=PATIENCE), 31337, KEY, tmp_path
    )
    for name in ("eth_getBlockByNumber", "eth_getTransactionCount", "eth_sendRawTransaction"):
        setattr(second_chain, name, getattr(fake_chain, name))
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    assert sender.wait(pending, PATIENCE)["status"] == "0x1" and fake_chain.counts == {ACCOUNT: 1}


def test_a_node_with_a_made_up_head_does_not_make_the_first_seem_stuck(fake_chain, second_chain, monkeypatch):
    monkeypatch.setattr("dlx.ledger.rpc.failover._STALE", 0.05)
    second_chain.length = 10**9
    rpc = RpcClient([fake_chain.url, second_chain.url], chain_id=31337)
    rpc.head()
    fake_chain.faults.append(lambda *_: b"garbage")  # so the second is asked, once
    assert rpc.head().number > 10**6
    rpc._chain_nodes._endpoints[0].rests_until = 0.0
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        fake_chain.mine()
        assert rpc.head().number < 10**6
