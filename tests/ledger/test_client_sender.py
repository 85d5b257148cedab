"""The sender against a chain node that loses, repeats and refuses."""

import errno
import itertools
import json
import time
from dataclasses import replace

import pytest
from eth_account.typed_transactions import TypedTransaction
from hexbytes import HexBytes

from dlx.ledger.bindings import Interface
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, LedgerUnavailable, Reverted
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.budget import Budget, BudgetSpent
from dlx.ledger.transactions.fees import GWEI, FeeTooHigh, Limits
from dlx.ledger.transactions.sender import CONFIRMED, Sender, Unconfirmed, WouldRevert
from dlx.ledger.typed import Domain
from tests.ledger.conftest import NEVER_AGAIN
from tests.ledger.sender_support import ACCOUNT, KEY, REFUSED, TO, Miner, entries, files, once, refusing, reopen
from tests.patience import PATIENCE


def test_mined_transactions_leave_the_outbox(fake_chain, sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    assert len(files(tmp_path)) == 1
    fake_chain.mine()
    assert sender.wait(pending, PATIENCE)["status"] == "0x1"
    assert files(tmp_path) == []


def test_nonces_follow_each_other_without_waiting_for_blocks(fake_chain, sender):
    pendings = [sender.send(TO, bytes([i]), 100_000) for i in range(5)]
    assert [p.nonce for p in pendings] == [0, 1, 2, 3, 4]
    fake_chain.mine()
    assert all(sender.wait(p, PATIENCE) for p in pendings)


def test_a_transaction_takes_two_exchanges_however_many_wait(fake_chain, sender):
    """On a slow link each is a way there and back, behind payloads."""
    asked = ["eth_getBlockByNumber", "eth_getTransactionCount", "eth_maxPriorityFeePerGas", "eth_estimateGas"]
    fake_chain.eth_estimateGas = lambda call, tag: hex(40_000)
    for number in range(3):
        fake_chain.exchanges.clear()
        pending = sender.send(TO, bytes([number]), 100_000, check=lambda block: pytest.fail("it was estimated"))
        assert fake_chain.exchanges == [asked, ["eth_sendRawTransaction"]]
        assert pending.gas == 40_000 * 5 // 4 + 20_000


def test_a_chain_node_that_takes_no_batches_is_asked_one_by_one(fake_chain, sender):
    answer, refusals = fake_chain.answer, []

    def alone(method, params):
        if fake_chain.exchanges[-1][1:]:
            refusals.append(method)
            return b'{"jsonrpc": "2.0", "error": {"code": -32600, "message": "no batches"}}'
        return answer(method, params)

    fake_chain.answer = alone
    assert [sender.send(TO, bytes([i]), 100_000).nonce for i in range(5)] == list(range(5))
    assert len(refusals) == 3, "one batch of three, then no more for a while"


def test_what_would_fail_is_refused_before_it_is_signed(fake_chain, sender, tmp_path):
    def refuse(block):
        raise LedgerError("the contract refused")

    fake_chain.eth_estimateGas = lambda call, tag: REFUSED
    with pytest.raises(LedgerError, match="the contract refused"):
        sender.send(TO, b"a", 100_000, check=refuse)
    assert entries(tmp_path) == [] and fake_chain.submitted == []
    assert sender.send(TO, b"a", 100_000, check=lambda block: None).gas == 100_000, (
        "it cannot estimate, and would not fail"
    )


def test_the_same_waiting_call_is_not_sent_twice(fake_chain, sender):
    first, second = sender.send(TO, b"a", 100_000), sender.send(TO, b"a", 100_000)
    assert first == second and len(fake_chain.pool) == 1
    fake_chain.mine()
    assert sender.send(TO, b"a", 100_000).nonce == 0  # mined meanwhile, and nobody was told
    sender.wait(first, PATIENCE)
    assert sender.send(TO, b"a", 100_000).nonce == 1  # a new one


def test_what_a_block_had_just_now_is_not_paid_for_again_because_a_chain_node_is_late(fake_chain, sender):
    """By turns: a late one does not have it, one that is not late has it; it was refused in its block, say, and whoever
    sent it tries again."""
    fake_chain.eth_estimateGas = lambda call, tag: hex(40_000)
    asked = []

    def check(block):
        asked.append(block)
        raise LedgerError("the contract refused")

    pending = sender.send(TO, b"a", 100_000, check=check)
    fake_chain.mine()
    sender.wait(pending, PATIENCE)
    for _ in range(3):
        fake_chain.faults.append(once("eth_getTransactionCount", "0x0"))
        assert sender.send(TO, b"a", 100_000, check=check).nonce == 0 and asked == []
        with pytest.raises(LedgerError, match="the contract refused"):
            sender.send(TO, b"a", 100_000, check=check)
        assert asked.pop() == 1, "who says whether it has a purpose must have that block"
    assert len(set(fake_chain.submitted)) == 1


def test_restart_sends_the_same_bytes_again(fake_chain, sender, tmp_path):
    first = sender.send(TO, b"a", 100_000)
    fake_chain.pool.clear()  # the chain node lost it
    again = reopen(fake_chain, tmp_path)
    assert fake_chain.submitted == [first.raw, first.raw]
    assert again.send(TO, b"a", 100_000).nonce == 0 and again.send(TO, b"b", 100_000).nonce == 1
    fake_chain.mine()
    assert again.wait(first, PATIENCE)["transactionHash"] == first.hashes[0]


def test_mined_while_away_is_told_to_whoever_asks_again(fake_chain, sender, tmp_path):
    sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    again = reopen(fake_chain, tmp_path)
    assert files(tmp_path) == []
    assert again.wait(again.send(TO, b"a", 100_000), PATIENCE)["blockNumber"] == "0x1"  # whoever asks again is told
    assert len(fake_chain.submitted) == 1


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
    assert pending.nonce == 0 and sender.wait(pending, PATIENCE)["status"] == "0x1"


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
    assert sender.wait(pending, PATIENCE)["status"] == "0x1"


def test_a_gap_left_by_a_lost_transaction_is_filled(fake_chain, sender):
    first = sender.send(TO, b"a", 100_000)
    second = sender.send(TO, b"b", 100_000)
    del fake_chain.pool[first.hashes[0]]
    miner = Miner(fake_chain)
    assert sender.wait(second, PATIENCE)["status"] == "0x1"
    miner.stop()


def test_a_higher_fee_is_offered_when_the_base_fee_rises(fake_chain, sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.pool.clear()
    fake_chain.base_fee = 1000
    miner = Miner(fake_chain)
    receipt = sender.wait(pending, PATIENCE)
    miner.stop()
    assert receipt["transactionHash"] != pending.hashes[0] and files(tmp_path) == []


def test_who_waits_for_what_was_given_up_is_told_so(fake_chain, sender):
    """Its nonce is another call's by now, but unused."""
    pending = sender.send(TO, b"a", 100_000)
    sender._outbox.keep(replace(pending, expires=0.0))  # nobody asked again
    assert sender.send(TO, b"b", 100_000).nonce == pending.nonce
    with pytest.raises(LedgerError, match=rf"^transaction {pending.hashes[-1]} is not sent again: .* left to another$"):
        sender.wait(pending, PATIENCE)


def test_another_transaction_took_the_nonce(fake_chain, sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine_another(ACCOUNT)
    for _ in range(20):
        fake_chain.mine()
    with pytest.raises(LedgerError, match="took nonce 0"):
        sender.wait(pending, PATIENCE)
    assert files(tmp_path) == []


def test_not_mined_in_time_stays_in_the_outbox(sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    with pytest.raises(Unconfirmed):
        sender.wait(pending, 0.05)
    assert len(files(tmp_path)) == 1


def test_a_refusal_is_reported_and_leaves_no_gap(fake_chain, sender, tmp_path):
    no_funds = {"error": {"code": -32000, "message": "insufficient funds for gas * price + value"}}
    fake_chain.faults.append(once("eth_sendRawTransaction", no_funds))
    with pytest.raises(LedgerError, match=f"account {ACCOUNT} has 0.001 ETH, needs 0.0000000000015 ETH: send it funds"):
        sender.send(TO, b"a", 100_000)
    assert files(tmp_path) == [] and sender.send(TO, b"b", 100_000).nonce == 0


def test_a_silent_node_is_unavailable_and_the_transaction_goes_out_later(fake_chain, sender, tmp_path):
    fake_chain.faults.append(once("eth_sendRawTransaction", b"garbage"))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(LedgerUnavailable):
        patch.setattr("dlx.ledger.rpc.failover._RETRY", NEVER_AGAIN)
        sender.send(TO, b"a", 100_000)
    assert sender.send(TO, b"b", 100_000).nonce == 1
    waiting = sender.send(TO, b"a", 100_000)  # the caller tries again: the same transaction
    miner = Miner(fake_chain)
    assert waiting.nonce == 0 and sender.wait(waiting, PATIENCE)["status"] == "0x1"
    miner.stop()


def test_an_outbox_from_before_the_chain_was_reset_does_not_block(fake_chain, sender, tmp_path):
    fake_chain.counts[ACCOUNT] = 50
    sender.send(TO, b"a", 100_000)
    fake_chain.counts.clear()
    fake_chain.pool.clear()
    fresh = reopen(fake_chain, tmp_path)
    with pytest.raises(LedgerError, match="try again"):
        fresh.wait(fresh.send(TO, b"b", 100_000), PATIENCE)
    fake_chain.pool.clear()
    pending = fresh.send(TO, b"b", 100_000)
    fake_chain.mine()
    assert pending.nonce == 0 and fresh.wait(pending, PATIENCE) and files(tmp_path) == []


def test_a_reorg_that_drops_earlier_transactions_is_reported_once(fake_chain, sender, tmp_path):
    fake_chain.counts[ACCOUNT] = 5
    first = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    sender.wait(first, PATIENCE)
    fake_chain.counts[ACCOUNT] = 3  # and nobody has the transactions 3 to 5 any more
    with pytest.raises(LedgerError, match="try again"):
        sender.wait(sender.send(TO, b"b", 100_000), PATIENCE)
    fake_chain.pool.clear()
    assert entries(tmp_path) == [] and sender.send(TO, b"b", 100_000).nonce == 3


def test_a_damaged_entry_is_set_aside_and_the_others_go_out(fake_chain, sender, tmp_path, caplog):
    sender.send(TO, b"a", 100_000)
    second = sender.send(TO, b"b", 100_000)
    broken = entries(tmp_path)[0]
    for text in (json.dumps({"nonce": 1}), '{"nonce": 0, "hashes": []}', "[]", "\0\0"):
        broken.write_text(text)
        (broken.parent / "lock").write_bytes(b"\xff" * 8)
        fake_chain.submitted.clear()
        again = reopen(fake_chain, tmp_path)
        assert fake_chain.submitted == [second.raw] and again.send(TO, b"b", 100_000) == second
        assert broken.with_suffix(".damaged").read_text() == text and not broken.exists()
    assert [record.getMessage().count("that transaction may be lost") for record in caplog.records] == [1] * 4


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
    assert reopen(fake_chain, tmp_path).send(TO, b"a", 100_000).nonce == 0


def test_two_senders_on_one_outbox_take_turns(fake_chain, sender, tmp_path):
    other = reopen(fake_chain, tmp_path)
    pendings = [one.send(TO, bytes([i]), 100_000) for i, one in enumerate([sender, other, other, sender, other])]
    assert [p.nonce for p in pendings] == [0, 1, 2, 3, 4] and sender.send(TO, bytes([4]), 100_000) == pendings[4]
    fake_chain.mine()
    assert all(other.wait(p, PATIENCE)["status"] == "0x1" for p in pendings) and files(tmp_path) == []
    assert sender.send(TO, b"x", 100_000).nonce == 5


def test_the_node_may_start_before_its_chain(tmp_path):
    silent = Sender(RpcClient("http://127.0.0.1:9", patience=0.2), 31337, KEY, tmp_path)
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1:9: no connection"):
        silent.send(TO, b"a", 100_000)
    assert time.monotonic() - started < 5


def test_what_is_on_no_disk_is_never_sent(fake_chain, sender, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("dlx.ledger.transactions.outbox.durable.write_bytes", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    assert fake_chain.submitted == [] and files(tmp_path) == []
    assert sender.send(TO, b"a", 100_000).nonce == 0 and len(files(tmp_path)) == 1


def test_urls_with_access_keys_stay_out_of_messages():
    with pytest.raises(LedgerUnavailable) as caught:
        RpcClient("http://127.0.0.1:9/v2/secret-access-key", patience=0.2).call("eth_chainId")
    assert "secret" not in str(caught.value)


def test_an_endless_answer_is_cut_off(fake_chain, monkeypatch):
    monkeypatch.setattr("dlx.ledger.rpc.http_transport.MAX_ANSWER", 1 << 16)
    fake_chain.faults.append(once("eth_chainId", b" " * (1 << 18)))
    with pytest.raises(LedgerError, match="too many results"):
        RpcClient(fake_chain.url).call("eth_chainId")


# What an entry is for, and until when.


def test_what_the_contract_would_refuse_by_now_is_never_sent_again(fake_chain, sender, tmp_path):
    """As the seal of a round that others sealed while this node was down."""
    stale = sender.send(TO, b"seal 1", 100_000)
    fake_chain.pool.clear()
    fake_chain.submitted.clear()
    refusing(fake_chain, b"seal 1")
    again = reopen(fake_chain, tmp_path)
    assert fake_chain.submitted == []
    fresh = again.send(TO, b"seal 2", 100_000)
    fake_chain.mine()
    assert fresh.nonce == stale.nonce and again.wait(fresh, PATIENCE)["transactionHash"] == fresh.hashes[-1]
    assert stale.raw not in fake_chain.submitted


def test_what_takes_the_nonce_of_a_stale_one_outbids_it(fake_chain, sender, tmp_path):
    """Some chain node may still have the old one."""
    stale = sender.send(TO, b"seal 1", 100_000)
    refusing(fake_chain, b"seal 1")
    fresh = reopen(fake_chain, tmp_path).send(TO, b"seal 2", 100_000)
    assert fresh.max_fee * 10 >= stale.max_fee * 11 and fresh.tip * 10 >= stale.tip * 11


def test_what_nobody_asks_for_any_more_is_not_sent_again(fake_chain, sender, tmp_path, monkeypatch):
    sender.send(TO, b"accuse", 100_000)
    fake_chain.pool.clear()
    fake_chain.submitted.clear()
    monkeypatch.setattr("dlx.ledger.transactions.sender.time.time", lambda later=time.time() + 1000: later)
    again = reopen(fake_chain, tmp_path)
    assert fake_chain.submitted == []
    wanted = again.send(TO, b"accuse", 100_000)
    assert fake_chain.submitted == [wanted.raw]
    reopen(fake_chain, tmp_path)
    assert len(fake_chain.submitted) == 2  # asked for a moment ago


def test_later_nonces_are_not_stuck_behind_a_stale_one(fake_chain, sender, tmp_path, monkeypatch):
    stale, later = sender.send(TO, b"seal", 100_000), sender.send(TO, b"join", 100_000)
    fake_chain.pool.clear()
    refusing(fake_chain, b"seal")
    again = reopen(fake_chain, tmp_path)
    monkeypatch.setattr("dlx.ledger.transactions.sender._STUCK", 0.01)
    miner = Miner(fake_chain)
    assert again.wait(later, PATIENCE)["status"] == "0x1"
    miner.stop()
    (taken,) = {entry["to"] for entry in map(read, entries(tmp_path)) if entry["nonce"] == stale.nonce}
    assert taken == ACCOUNT and stale.raw not in fake_chain.submitted[2:]


def test_whoever_waits_for_what_became_pointless_is_told(fake_chain, sender, monkeypatch):
    pending = sender.send(TO, b"seal", 100_000)
    fake_chain.pool.clear()
    refusing(fake_chain, b"seal")
    with pytest.raises(WouldRevert) as caught:
        sender.wait(pending, PATIENCE)
    assert caught.value.error.revert == bytes.fromhex("12345678")


@pytest.mark.parametrize("depth", [1, 3, 20])
def test_a_reorged_transaction_is_sent_again(fake_chain, sender, tmp_path, depth):
    pending = sender.send(TO, b"a", 100_000)
    block = fake_chain.mine()
    sender.wait(pending, PATIENCE)
    for _ in range(depth - 1):
        fake_chain.mine()
    reopen(fake_chain, tmp_path)  # a restart in between changes nothing
    fake_chain.reorg(block, "b")
    fake_chain.counts.clear()
    fake_chain.receipts.clear()
    for _ in range(depth):
        fake_chain.mine()
    sender.tend()
    assert list(fake_chain.pool) == [pending.hashes[0]]
    fake_chain.mine()
    sender.tend()
    assert fake_chain.counts[ACCOUNT] == 1 and set(fake_chain.submitted) == {pending.raw}


def test_a_confirmed_transaction_is_forgotten(fake_chain, sender, tmp_path):
    pending = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    sender.wait(pending, PATIENCE)
    for _ in range(CONFIRMED - 1):
        fake_chain.mine()
    sender.tend()
    assert len(entries(tmp_path)) == 1
    fake_chain.mine()
    sender.tend()
    assert entries(tmp_path) == []


def test_the_same_call_may_be_sent_once_the_first_is_mined(fake_chain, sender):
    """As the answer to a second question."""
    first = sender.send(TO, b"answer", 100_000)
    fake_chain.mine()
    sender.wait(first, PATIENCE)
    fake_chain.eth_estimateGas, asked = lambda call, tag: hex(40_000), []
    assert sender.send(TO, b"answer", 100_000, check=asked.append).nonce == 1 and asked == [1]


def test_a_call_that_is_sent_again_costs_no_more_because_another_process_used_the_outbox(fake_chain, sender, tmp_path):
    """The sender has to learn anew what is mined."""
    fake_chain.eth_estimateGas = lambda call, tag: hex(40_000)
    pending = sender.send(TO, b"deal", 5_000_000, check=lambda block: None)
    fake_chain.mine()
    sender.wait(pending, PATIENCE)
    other = reopen(fake_chain, tmp_path)
    between = other.send(TO, b"z", 100_000)
    fake_chain.mine()
    other.wait(between, PATIENCE)
    again = sender.send(TO, b"deal", 5_000_000, check=lambda block: None)
    assert again.nonce == 2 and again.gas == pending.gas == 70_000


def test_a_client_tries_a_call_again_at_no_block_before_the_one_that_had_it(fake_chain, quick):
    client, run, tags = LedgerClient(fake_chain.url, TO, KEY), b"\x07" * 32, []
    sender = Sender(client.rpc, 31337, KEY, None)
    client._connected = Domain(31337, TO), TO, sender
    pending = sender.send(TO, Interface("TrainingLedger").call_data("answer", run), 100_000)
    number = fake_chain.mine()
    sender.wait(pending, PATIENCE)
    fake_chain.eth_estimateGas = lambda call, tag: hex(40_000)
    fake_chain.eth_call = lambda call, tag: tags.append(tag) or REFUSED
    with pytest.raises(Reverted):
        client.answer(run)
    assert tags == [hex(number)] and len(set(fake_chain.submitted)) == 1


def test_a_receipt_from_a_block_that_is_none_blocks_no_call_for_long(fake_chain, sender):
    fake_chain.eth_estimateGas, asked = lambda call, tag: hex(40_000), []
    pending = sender.send(TO, b"answer", 100_000)
    fake_chain.mine()
    honest = fake_chain.receipts[pending.hashes[0]]
    fake_chain.faults.append(once("eth_getTransactionReceipt", honest | {"blockNumber": hex(10**12)}))
    sender.wait(pending, PATIENCE)
    assert sender.send(TO, b"answer", 100_000, check=asked.append).nonce == 1 and asked == [1]


def test_what_took_the_place_of_a_mined_call_that_a_late_chain_node_did_not_see_gets_another(
    fake_chain, sender, monkeypatch
):
    with monkeypatch.context() as forgetful:
        forgetful.setattr("dlx.ledger.transactions.sender._WANTED", -1.0)
        sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    for _ in range(2):  # the look before it is signed, and whether its nonce was used by then
        fake_chain.faults.append(once("eth_getTransactionCount", "0x0"))
    assert sender.send(TO, b"b", 100_000).nonce == 1
    assert sender.send(TO, b"a", 100_000).nonce == 0, "it is known to be mined"


def test_a_late_chain_node_does_not_make_us_pay_twice(fake_chain, sender, tmp_path):
    """It has neither the receipt nor the nonce; the call is asked for again."""
    first = sender.send(TO, b"a", 100_000)
    fake_chain.mine()
    receipts, counts = fake_chain.receipts, fake_chain.counts
    fake_chain.receipts, fake_chain.counts = {}, {}
    again = sender.send(TO, b"a", 100_000)
    fake_chain.receipts, fake_chain.counts = receipts, counts
    assert again.nonce == first.nonce and sender.wait(again, PATIENCE)["transactionHash"] == first.hashes[0]
    assert set(fake_chain.submitted) == {first.raw}


def test_a_call_of_which_the_chain_node_says_nothing_keeps_no_other_from_going_out(fake_chain, sender, tmp_path):
    odd, other = sender.send(TO, b"odd", 100_000), sender.send(TO, b"other", 100_000)
    fake_chain.submitted.clear()
    strange = {"error": {"code": -32000, "message": "out of gas"}}
    fake_chain.eth_call = lambda call, tag: strange if call["data"] == "0x" + b"odd".hex() else "0x"
    reopen(fake_chain, tmp_path)
    assert fake_chain.submitted == [other.raw]
    fake_chain.eth_call = lambda call, tag: "0x"
    reopen(fake_chain, tmp_path)
    assert fake_chain.submitted == [other.raw, odd.raw, other.raw]


# Fees and the budget.


def test_a_price_beyond_the_limit_is_refused_before_anything_is_signed(fake_chain, sender, tmp_path):
    fake_chain.eth_maxPriorityFeePerGas = lambda: hex(10_000 * GWEI)
    line = r"127\.0\.0\.1:\d+ names a tip of 10,000 gwei, above max_fee \(100\): nothing is signed"
    with pytest.raises(FeeTooHigh, match=line):
        sender.send(TO, b"a", 100_000)
    fake_chain.eth_maxPriorityFeePerGas = lambda: "0x1"
    fake_chain.base_fee = 10_000 * GWEI
    with pytest.raises(FeeTooHigh, match="names a base fee of 10,000 gwei"):
        sender.send(TO, b"a", 100_000)
    assert entries(tmp_path) == [] and fake_chain.submitted == []


def test_a_chain_node_without_the_tip_is_asked_otherwise(fake_chain, sender):
    missing = {"error": {"code": -32601, "message": "the method does not exist"}}
    fake_chain.eth_maxPriorityFeePerGas = lambda: missing
    fake_chain.eth_feeHistory = lambda blocks, newest, percentiles: {"reward": [["0x5"], ["0x64"], ["0x6"]]}
    fake_chain.eth_gasPrice = lambda: hex(fake_chain.base_fee + 9)
    assert sender.send(TO, b"a", 100_000).tip == 6
    fake_chain.eth_feeHistory = lambda blocks, newest, percentiles: missing
    assert sender.send(TO, b"b", 100_000).tip == 9


@pytest.mark.parametrize("history", [None, {"reward": None}, {}, {"reward": []}, {"reward": [[], None]}])
def test_a_chain_node_that_knows_of_no_tips_is_asked_for_the_price(fake_chain, sender, history):
    fake_chain.eth_maxPriorityFeePerGas = lambda: None
    fake_chain.eth_feeHistory = lambda blocks, newest, percentiles: history
    fake_chain.eth_gasPrice = lambda: hex(fake_chain.base_fee + 9)
    assert sender.send(TO, b"a", 100_000).tip == 9


def test_a_chain_without_base_fees_is_named_before_anything_is_signed(fake_chain, sender, tmp_path):
    block = fake_chain.eth_getBlockByNumber
    fake_chain.eth_getBlockByNumber = lambda tag, full: {
        k: v for k, v in block(tag, full).items() if k != "baseFeePerGas"
    }
    with pytest.raises(LedgerError, match=r"127\.0\.0\.1:\d+ gives blocks without a base fee: .* EIP-1559"):
        sender.send(TO, b"a", 100_000)
    assert entries(tmp_path) == []


def test_a_price_of_nothing_is_raised(fake_chain, sender, tmp_path):
    fake_chain.base_fee, fake_chain.eth_maxPriorityFeePerGas = 0, lambda: "0x0"
    fake_chain.eth_sendRawTransaction = lambda raw: "0x00"  # the miners want more
    pending = sender.send(TO, b"a", 100_000)
    assert (pending.max_fee, pending.tip) == (0, 0)
    for _ in range(2):
        fake_chain.mine()
        fake_chain.mine()
        with pytest.raises(Unconfirmed):
            sender.wait(pending, 0.2)
    (entry,) = map(read, entries(tmp_path))
    assert entry["max_fee"] >= entry["tip"] >= 1


def test_a_stuck_transaction_offers_more_of_both_up_to_the_limits(fake_chain, tmp_path, quick):
    limits = Limits(max_fee=100, max_tip=10)
    sender = Sender(RpcClient(fake_chain.url, patience=PATIENCE), 31337, KEY, tmp_path, limits)
    fake_chain.eth_maxPriorityFeePerGas = lambda: "0x4"
    fake_chain.eth_sendRawTransaction = lambda raw: "0x00"  # the miners want more
    pending = sender.send(TO, b"a", 100_000)
    offers = [(pending.max_fee, pending.tip)]
    for _ in range(12):
        fake_chain.mine()
        fake_chain.mine()
        with pytest.raises(Unconfirmed):
            sender.wait(pending, 0.1)
        (entry,) = map(read, entries(tmp_path))
        if (entry["max_fee"], entry["tip"]) != offers[-1]:
            offers.append((entry["max_fee"], entry["tip"]))
    assert offers[0] == (18, 4) and len(offers) > 4
    assert all(10 * new >= 11 * old for two in itertools.pairwise(offers) for old, new in zip(*two, strict=True))
    assert offers[-1][0] <= 100 and 8 <= offers[-1][1] <= 10


def test_the_budget_counts_what_was_paid_and_what_is_on_its_way_and_survives_restarts(fake_chain, tmp_path, quick):
    cap = 100_000 * (2 * 7 + 1)  # wei that one may cost; it costs 50,000 x 8
    limits = Limits(budget=2 * cap)

    def reopened():
        return Sender(RpcClient(fake_chain.url, patience=PATIENCE), 31337, KEY, tmp_path, limits)

    sender = reopened()
    sender.wait(mined(fake_chain, sender.send(TO, b"a", 100_000)), PATIENCE)
    sender = reopened()
    sender.send(TO, b"b", 100_000)
    line = r"the daily budget of 0\.000000000003 ETH is used up: 0\.0000000000004 paid, 0\.0000000000015 on its way"
    for again in (sender, reopened()):
        with pytest.raises(BudgetSpent, match=line):
            again.send(TO, b"c", 100_000)
    fake_chain.mine()
    assert reopened().send(TO, b"c", 100_000).nonce == 2  # what it did not cost is free again


def test_a_tenth_of_the_budget_is_for_what_keeps_the_slot(fake_chain, tmp_path, quick):
    sender = Sender(
        RpcClient(fake_chain.url, patience=PATIENCE), 31337, KEY, tmp_path, Limits(budget=100_000 * 15 + 10)
    )
    with pytest.raises(BudgetSpent, match="a tenth kept back"):
        sender.send(TO, b"accuse", 100_000)
    assert sender.send(TO, b"answer", 100_000, keeps_slot=True).nonce == 0


def test_a_transaction_mined_again_after_a_reorg_is_counted_once(tmp_path):
    clock = [3600.0 * 1000]
    budget = Budget(tmp_path / "spent.json", 100, lambda: clock[0])
    budget.pay("0xa", 60, {"0xa"})
    budget = Budget(tmp_path / "spent.json", 100, lambda: clock[0])
    budget.pay("0xa", 70, {"0xa"})
    budget.pay("0xa", 60, {"0xa"})
    budget.check(0, 30, keeps_slot=False)
    with pytest.raises(BudgetSpent, match="it goes on at 1970-02-12 17:00 UTC"):
        budget.check(0, 31, keeps_slot=False)
    with pytest.raises(BudgetSpent, match="no day's budget covers this: raise daily_budget"):
        budget.check(0, 101, keeps_slot=True)
    clock[0] += 24 * 3600
    with pytest.raises(BudgetSpent):
        budget.check(0, 60, keeps_slot=False)
    clock[0] += 3600
    budget.check(0, 90, keeps_slot=False)


def test_a_damaged_record_of_what_was_paid_is_set_aside(tmp_path):
    (tmp_path / "spent.json").write_text("[]")
    Budget(tmp_path / "spent.json", 100).check(0, 90, keeps_slot=False)
    assert (tmp_path / "spent.damaged").read_text() == "[]"


def mined(chain, pending):
    chain.mine()
    return pending


def read(path):
    return json.loads(path.read_text())


def test_a_late_chain_node_takes_no_nonce_back(fake_chain, sender, tmp_path):
    """The account was used from another folder a moment ago, so that nothing here knows of its nonces."""
    fake_chain.counts[ACCOUNT] = 9
    first = sender.send(TO, b"a", 100_000)
    counts, fake_chain.counts = fake_chain.counts, {ACCOUNT: 4}
    second = sender.send(TO, b"b", 100_000)
    fake_chain.counts = counts
    assert (first.nonce, second.nonce) == (9, 10) and len(entries(tmp_path)) == 2


def test_what_a_call_pays_is_signed_estimated_and_part_of_what_it_asks_for(fake_chain, sender, tmp_path):
    estimated = []
    fake_chain.eth_estimateGas = lambda call, tag: estimated.append(call["value"]) or hex(50_000)
    first = sender.send(TO, b"a", 100_000, check=lambda block: None, value=7)
    assert sender.send(TO, b"a", 100_000, value=7) == first, "the same call"
    other = sender.send(TO, b"a", 100_000, value=8)
    assert (first.value, other.value, other.nonce) == (7, 8, first.nonce + 1)
    assert estimated == [hex(7)]
    raws = [
        TypedTransaction.from_bytes(HexBytes(raw)).as_dict()["value"] for raw in dict.fromkeys(fake_chain.submitted)
    ]
    assert raws == [7, 8]
    assert [one.value for one in reopen(fake_chain, tmp_path)._outbox.entries.values()] == [7, 8]


def test_an_account_that_lacks_what_a_call_pays_is_told_the_sum(fake_chain, sender):
    fake_chain.eth_sendRawTransaction = lambda raw: {"error": {"code": -32000, "message": "insufficient funds"}}
    with pytest.raises(LedgerError, match=r"has 0\.001 ETH, needs 5\.\d+ ETH"):
        sender.send(TO, b"a", 100_000, value=5 * 10**18)
