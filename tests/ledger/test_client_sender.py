"""The sender against a chain node that loses, repeats and refuses."""

import errno
import json
import threading
import time

import pytest

from dlx.ledger.errors import LedgerError, LedgerUnavailable
from dlx.ledger.keys import account_of
from dlx.ledger.rpc import Rpc
from dlx.ledger.sender import Sender, Unconfirmed

KEY = b"\x11" * 32
ACCOUNT = account_of(KEY)
TO = account_of(b"\x22" * 32)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("dlx.ledger.sender._POLL", 0.01)
    monkeypatch.setattr("dlx.ledger.sender._RESEND", 0.03)
    monkeypatch.setattr("dlx.ledger.sender._STUCK", 0.06)


@pytest.fixture
def sender(fake_chain, tmp_path, quick):
    return Sender(Rpc(fake_chain.url, patience=0.5), 31337, KEY, tmp_path)


def reopen(fake_chain, tmp_path) -> Sender:
    return Sender(Rpc(fake_chain.url, patience=0.5), 31337, KEY, tmp_path)


def files(tmp_path):
    return sorted(tmp_path.rglob("*.json"))


def once(method, result):
    """A fault for the next call of a method."""
    return lambda called, params: result if called == method else None


def test_mined_transactions_leave_the_outbox(fake_chain, sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    assert len(files(tmp_path)) == 1
    fake_chain.mine()
    assert sender.wait(pending, 5)["status"] == "0x1"
    assert files(tmp_path) == []


def test_nonces_follow_each_other_without_waiting_for_blocks(fake_chain, sender):
    pendings = [sender.send(TO, bytes([i]), 100_000) for i in range(5)]
    assert [p.nonce for p in pendings] == [0, 1, 2, 3, 4]
    fake_chain.mine()
    assert all(sender.wait(p, 5) for p in pendings)


def test_the_same_waiting_call_is_not_sent_twice(fake_chain, sender):
    first, second = sender.send(TO, b"a", 100_000), sender.send(TO, b"a", 100_000)
    assert first == second and len(fake_chain.pool) == 1
    fake_chain.mine()
    assert sender.send(TO, b"a", 100_000).nonce == 1  # mined meanwhile: a new one


def test_restart_sends_the_same_bytes_again(fake_chain, sender, tmp_path):
    first = sender.send(TO, b"a", 100_000)
    fake_chain.pool.clear()  # the chain node lost it
    again = reopen(fake_chain, tmp_path)
    assert fake_chain.submitted == [first.raw, first.raw]
    assert again.waiting(TO, b"a") and again.send(TO, b"b", 100_000).nonce == 1
    fake_chain.mine()
    assert again.wait(first, 5)["transactionHash"] == first.hashes[0]


def test_mined_while_away_is_forgotten(fake_chain, sender, tmp_path):
    sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    assert not reopen(fake_chain, tmp_path).waiting(TO, b"a") and files(tmp_path) == []


def test_an_answer_lost_on_the_way_is_no_second_transaction(fake_chain, sender):
    def lose(method, params):
        if method == "eth_sendRawTransaction":
            fake_chain.eth_sendRawTransaction(*params)
            return b"<html>bad gateway</html>"

    fake_chain.faults.append(lose)
    assert sender.send(TO, b"a", 100_000).nonce == 0  # the retry is told "already known"
    assert len(fake_chain.pool) == 1


def test_mined_before_the_retry_is_success(fake_chain, sender):
    def lose(method, params):
        if method == "eth_sendRawTransaction":
            fake_chain.eth_sendRawTransaction(*params)
            fake_chain.mine()
            return b""

    fake_chain.faults.append(lose)
    pending = sender.send(TO, b"a", 100_000)  # the retry is told "nonce too low"
    assert pending.nonce == 0 and sender.wait(pending, 5)["status"] == "0x1"


def test_a_nonce_used_elsewhere_is_skipped(fake_chain, sender, tmp_path):
    fake_chain.mine()
    sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    fake_chain.counts[ACCOUNT] = 4  # the user's wallet sent three
    assert sender.send(TO, b"b", 100_000).nonce == 4
    assert len(files(tmp_path)) == 1


def test_a_vanished_transaction_is_sent_again(fake_chain, sender):
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.pool.clear()

    def mine_when_back(method, params):
        if method == "eth_getTransactionReceipt" and fake_chain.pool:
            fake_chain.mine()
            return {"transactionHash": pending.hashes[0], "status": "0x1"}

    fake_chain.faults.append(mine_when_back)
    assert sender.wait(pending, 5)["status"] == "0x1"


def test_a_gap_left_by_a_lost_transaction_is_filled(fake_chain, sender):
    first = sender.send(TO, b"a", 100_000)
    second = sender.send(TO, b"b", 100_000)
    del fake_chain.pool[first.hashes[0]]
    miner = Miner(fake_chain)
    assert sender.wait(second, 5)["status"] == "0x1"
    miner.stop()


def test_a_higher_fee_is_offered_when_the_base_fee_rises(fake_chain, sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.pool.clear()
    fake_chain.base_fee = 1000
    miner = Miner(fake_chain)
    receipt = sender.wait(pending, 5)
    miner.stop()
    assert receipt["transactionHash"] != pending.hashes[0] and files(tmp_path) == []


def test_another_transaction_took_the_nonce(fake_chain, sender):
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.pool.clear()
    fake_chain.counts[ACCOUNT] = 1
    with pytest.raises(LedgerError, match="took nonce 0"):
        sender.wait(pending, 5)


def test_not_mined_in_time_stays_in_the_outbox(sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    with pytest.raises(Unconfirmed):
        sender.wait(pending, 0.05)
    assert len(files(tmp_path)) == 1


def test_a_refusal_is_reported_and_leaves_no_gap(fake_chain, sender, tmp_path):
    no_funds = {"error": {"code": -32000, "message": "insufficient funds for gas * price + value"}}
    fake_chain.faults.append(once("eth_sendRawTransaction", no_funds))
    with pytest.raises(LedgerError, match="insufficient funds"):
        sender.send(TO, b"a", 100_000)
    assert files(tmp_path) == [] and sender.send(TO, b"b", 100_000).nonce == 0


def test_a_silent_node_is_unavailable_and_the_transaction_goes_out_later(fake_chain, sender, tmp_path):
    for _ in range(20):
        fake_chain.faults.append(once("eth_sendRawTransaction", b"garbage"))
    with pytest.raises(LedgerUnavailable):
        sender.send(TO, b"a", 100_000)
    fake_chain.faults.clear()
    assert sender.send(TO, b"b", 100_000).nonce == 1
    waiting = sender.send(TO, b"a", 100_000)  # the caller tries again: the same transaction
    miner = Miner(fake_chain)
    assert waiting.nonce == 0 and sender.wait(waiting, 5)["status"] == "0x1"
    miner.stop()


def test_an_outbox_from_before_the_chain_was_reset_does_not_block(fake_chain, sender, tmp_path):
    fake_chain.counts[ACCOUNT] = 50
    sender.send(TO, b"a", 100_000)
    fake_chain.counts.clear()
    fake_chain.pool.clear()
    fresh = reopen(fake_chain, tmp_path)
    fake_chain.pool.clear()
    pending = fresh.send(TO, b"b", 100_000)
    fake_chain.mine()
    assert pending.nonce == 0 and fresh.wait(pending, 5) and files(tmp_path) == []


def test_a_reorg_that_drops_earlier_transactions_is_reported_once(fake_chain, sender, tmp_path):
    fake_chain.counts[ACCOUNT] = 5
    first = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    sender.wait(first, 5)
    fake_chain.counts[ACCOUNT] = 3  # and nobody has the transactions 3 to 5 any more
    with pytest.raises(LedgerError, match="try again"):
        sender.wait(sender.send(TO, b"b", 100_000), 5)
    fake_chain.pool.clear()
    assert files(tmp_path) == [] and sender.send(TO, b"b", 100_000).nonce == 3


def test_a_damaged_outbox_says_which_file(fake_chain, sender, tmp_path):
    sender.send(TO, b"a", 100_000)
    files(tmp_path)[0].write_text(json.dumps({"nonce": 1}))
    with pytest.raises(LedgerError, match=r"000000000000\.json is damaged"):
        reopen(fake_chain, tmp_path)


def test_an_outbox_of_a_newer_release_says_so_and_is_left_alone(fake_chain, sender, tmp_path):
    sender.send(TO, b"a", 100_000)
    (entry,) = files(tmp_path)
    fields = json.loads(entry.read_text())
    entry.write_text(json.dumps({**fields, "format": 99, "priority": "high"}))
    before = entry.read_bytes()
    for _ in range(2):
        with pytest.raises(LedgerError, match="written by a newer dlx-node"):
            reopen(fake_chain, tmp_path)
    assert entry.read_bytes() == before
    del fields["format"]  # as the first releases wrote it
    entry.write_text(json.dumps(fields))
    assert reopen(fake_chain, tmp_path).waiting(TO, b"a")


def test_two_senders_on_one_outbox_take_turns(fake_chain, sender, tmp_path):
    other = reopen(fake_chain, tmp_path)
    pendings = [one.send(TO, bytes([i]), 100_000) for i, one in enumerate([sender, other, other, sender, other])]
    assert [p.nonce for p in pendings] == [0, 1, 2, 3, 4] and sender.waiting(TO, bytes([4]))
    fake_chain.mine()
    assert all(other.wait(p, 5)["status"] == "0x1" for p in pendings) and files(tmp_path) == []
    assert sender.send(TO, b"x", 100_000).nonce == 5


def test_the_node_may_start_before_its_chain(tmp_path):
    silent = Sender(Rpc("http://127.0.0.1:9", patience=0.2), 31337, KEY, tmp_path)
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1: ConnectionError"):
        silent.send(TO, b"a", 100_000)
    assert time.monotonic() - started < 5


def test_what_is_on_no_disk_is_never_sent(fake_chain, sender, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("dlx.ledger.sender.durable.write_bytes", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                sender.send(TO, b"a", 100_000)
        assert not sender.waiting(TO, b"a")
    fake_chain.mine()
    assert fake_chain.submitted == [] and files(tmp_path) == []
    assert sender.send(TO, b"a", 100_000).nonce == 0 and len(files(tmp_path)) == 1


def test_urls_with_access_keys_stay_out_of_messages():
    with pytest.raises(LedgerUnavailable) as caught:
        Rpc("http://127.0.0.1:9/v2/secret-access-key", patience=0.2).call("eth_chainId")
    assert "secret" not in str(caught.value)


def test_an_endless_answer_is_cut_off(fake_chain, monkeypatch):
    monkeypatch.setattr("dlx.ledger.endpoint._MAX_ANSWER", 1 << 16)
    fake_chain.faults.append(once("eth_chainId", b" " * (1 << 18)))
    with pytest.raises(LedgerError, match="too many results"):
        Rpc(fake_chain.url).call("eth_chainId")


class Miner:
    """Mines as soon as something waits."""

    def __init__(self, chain) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(chain,))
        self._thread.start()

    def _run(self, chain) -> None:
        while not self._stop.wait(0.01):
            if chain.pool:
                chain.mine()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
