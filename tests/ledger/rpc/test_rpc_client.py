"""web3 as the client sets it up: it asks for what we ask and no more, and a hostile chain node gains nothing by it."""

import json
import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import eth_abi
import pytest
import requests
from fault_proxy import LAG, FaultProxy
from ledger_logs import LEDGER

from dlx.ground.backoff import Backoff
from dlx.ledger.bindings import Interface
from dlx.ledger.errors import AnswerTooLarge, LedgerError, LedgerUnavailable, Reverted, RpcError, WrongLedger
from dlx.ledger.index.log_reader import _by_ranges
from dlx.ledger.rpc.rpc_client import RpcClient
from tests.ledger.conftest import NEVER_AGAIN, ROOT
from tests.patience import PATIENCE, until

RUN = bytes(32)


def word(number: int) -> str:
    return number.to_bytes(32).hex()


@pytest.fixture
def asked(fake_chain):
    """Asks a view of the ledger; the chain node gives the answer of the test's choice."""
    interface = Interface("TrainingLedger", RpcClient(fake_chain.url, patience=PATIENCE))

    def ask(answer, function="nextRound", args=(RUN, 0), **by):
        fake_chain.eth_call = lambda *params: fake_chain.calls.append(params) or answer
        fake_chain.calls = []
        return interface.call(LEDGER, function, *args, **by)

    return ask


def test_a_call_is_one_request_with_what_was_given(fake_chain, asked):
    assert asked("0x" + word(7)) == (7,)
    assert asked("0x" + "".join(map(word, range(1, 5))), "weightsOf") == (1, 2, 3, 4)
    assert asked("0x", "leaveRun", (RUN,), **{"from": LEDGER, "gas": 100_000, "block": 5}) == ()
    (call, block) = fake_chain.calls[0]
    data = "0x" + Interface("TrainingLedger").call_data("leaveRun", RUN).hex()
    assert (call, block) == ({"from": LEDGER, "to": LEDGER, "gas": hex(100_000), "data": data}, "0x5")
    assert fake_chain.requests == ["eth_call"] * 3


@pytest.mark.parametrize("answer", [None, "zz", "0x" + "ff" * 32, "0x01", [], {}, 1.5, -5])
def test_an_answer_that_is_none_is_an_error_of_the_ledger(asked, answer):
    with pytest.raises(LedgerError, match="gave another answer than expected"):
        asked(answer)


def test_offsets_beyond_memory_and_text_that_is_none_are_errors_of_the_ledger(asked):
    for answer in ("0x" + word(2**63) * 7, "0x" + word(0) + word(224) * 2 + word(0) * 4 + word(1) + "ff" + "00" * 31):
        with pytest.raises(LedgerError, match="gave another answer than expected"):
            asked(answer, "eip712Domain", ())


OFFCHAIN = eth_abi.encode(
    ["address", "string[]", "bytes", "bytes4", "bytes"], [LEDGER, ["http://127.0.0.1:9/{data}"], b"", b"1234", b""]
)


@pytest.mark.parametrize(
    ("data", "name", "arguments"),
    [
        ("0x4e487b71" + word(0x11), "Panic", (0x11,)),
        ("0x4e487b71" + word(0xEE), "Panic", (0xEE,)),  # web3 knows no such code
        ("0x08c379a0" + word(32) + word(2) + "6e6f" + "00" * 30, "Error", ("no",)),
        ("0x08c379a0" + word(32) + word(1) + "ff" + "00" * 31, "unknown error", None),  # not UTF-8
        ("0x08c379a0" + word(2**63), "unknown error", None),
        ("0x12345678", "unknown error", (bytes.fromhex("12345678"),)),
        ("0x556f1830" + OFFCHAIN.hex(), "unknown error", None),  # EIP-3668 would make web3 ask another server
        ("0x", "no reason given", ()),
        ("Reverted 0x08c379a0", "no reason given", ()),
        (None, "no reason given", ()),
        ({"data": "0x4e487b71" + word(1)}, "Panic", (1,)),
    ],
)
def test_reverts_are_named_wherever_their_data_is(fake_chain, asked, data, name, arguments):
    with pytest.raises(Reverted) as caught:
        asked({"error": {"code": 3, "message": "execution reverted", "data": data}})
    assert caught.value.name == name and arguments in (None, caught.value.arguments)
    assert fake_chain.requests == ["eth_call"]


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"id": 1}', b'{"error": null}', b"\xff", b"[" * 100_000])
def test_an_answer_that_is_no_json_rpc_is_asked_for_again(fake_chain, monkeypatch, body):
    fake_chain.faults.append(lambda *asked: body)
    assert RpcClient(fake_chain.url).number("eth_chainId") == 31337
    fake_chain.faults.append(lambda *asked: body)
    monkeypatch.setattr("dlx.ledger.rpc.failover._RETRY", NEVER_AGAIN)
    with pytest.raises(LedgerUnavailable, match=r"no answer from the chain node at 127\.0\.0\.1"):
        RpcClient(fake_chain.url).number("eth_chainId")


def test_a_redirect_is_said_without_its_key(embedded, monkeypatch):
    monkeypatch.setattr("dlx.ledger.rpc.failover._RETRY", NEVER_AGAIN)
    with FaultProxy(embedded.url) as proxy:
        proxy.fault("moved")
        with pytest.raises(
            LedgerUnavailable, match=r"it redirects to https://rpc\.example\.org, .* --rpc-url"
        ) as caught:
            RpcClient(proxy.url).number("eth_chainId")
        assert "key" not in str(caught.value)
        assert RpcClient([proxy.url, embedded.url], chain_id=31337).number("eth_chainId") == 31337


def test_what_a_gateway_finds_too_large_is_asked_for_in_parts(embedded):
    """HTTP 413 has no JSON, and another try does not help."""
    (member,) = embedded.members([1])
    head = member.head().block
    with FaultProxy(embedded.url) as proxy:
        rpc, refused = RpcClient(proxy.url, patience=PATIENCE), []

        def meet(body):
            """Pages of over 5 blocks and batches are too much."""
            asked = json.loads(body)
            one = asked if isinstance(asked, dict) else None
            query = (
                one["params"][0] if one and one["method"] == "eth_getLogs" else {"fromBlock": "0x0", "toBlock": "0x0"}
            )
            wide = int(query["toBlock"], 16) - int(query["fromBlock"], 16) >= 5
            refused.append(wide or one is None)
            return refused[-1]

        proxy.too_large = meet
        started = time.monotonic()
        whole = list(_by_ranges(member.rpc, [embedded.ledger, embedded.registry], 0, member.rpc.header(head)))
        parts = list(_by_ranges(rpc, [embedded.ledger, embedded.registry], 0, rpc.header(head)))
        assert [log for page in parts for log in page.logs] == [log for page in whole for log in page.logs]
        assert parts[-1][0] == whole[-1][0] and any(refused) and time.monotonic() - started < PATIENCE


@pytest.mark.parametrize("code", [-32600, -32603])
@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_batch_that_is_refused_is_asked_for_in_parts_whatever_the_status(embedded, status, code):
    with FaultProxy(embedded.url) as proxy:
        proxy.most, proxy.refusal, proxy.refusal_status = 3, (code, "at most 3 requests a batch"), status
        blocks = list(RpcClient(proxy.url).batch("eth_getBlockByNumber", [(hex(block), False) for block in range(7)]))
        assert [int(block["number"], 16) for block in blocks] == [*range(7)]
        assert proxy.seen.count("eth_getBlockByNumber") < 8


def page(proxy, batch):
    return b"<html>something went wrong</html>"


def gateway(proxy, batch):
    return b'{"message": "something went wrong"}'


def first_three(proxy, batch):
    return json.dumps(json.loads(proxy.forward(json.dumps(batch).encode()))[:3]).encode()


@pytest.mark.parametrize(
    ("status", "refuse"),
    [*((status, refuse) for status in (400, 403, 500) for refuse in (page, gateway)), (200, first_three), (504, page)],
)
def test_a_batch_that_is_twice_answered_with_nothing_of_use_is_asked_for_in_parts(embedded, status, refuse):
    with FaultProxy(embedded.url) as proxy:
        proxy.most, proxy.refusal_status, proxy.refuse = 3, status, lambda batch: refuse(proxy, batch)
        rpc = RpcClient(proxy.url, patience=PATIENCE)
        blocks = list(rpc.batch("eth_getBlockByNumber", [(hex(block), False) for block in range(7)]))
        assert [int(block["number"], 16) for block in blocks] == [*range(7)]
        assert proxy.seen.count("eth_getBlockByNumber") == 2 + 2 + 4, "7, 5, and then two at a time"


@pytest.mark.parametrize("status", [429, 503])
def test_a_limited_rate_that_is_a_batch_too_large_is_not_waited_out(embedded, status):
    with FaultProxy(embedded.url) as proxy:
        proxy.most, proxy.refusal, proxy.refusal_status = 3, (429, "a batch has at most 3 requests"), status
        proxy.retry_after = 99
        blocks = list(RpcClient(proxy.url).batch("eth_getBlockByNumber", [(hex(block), False) for block in range(7)]))
        assert [int(block["number"], 16) for block in blocks] == [*range(7)]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"id": 0, "error": {"code": -32603, "message": "block range too large"}}'),
        (504, b"<html>timeout</html>"),
    ],
)
def test_a_range_of_logs_that_is_too_large_is_made_smaller_whatever_says_so(fake_chain, status, body):
    for _ in range(300):
        fake_chain.mine()
    with FaultProxy(fake_chain.url) as proxy:
        rpc = RpcClient(proxy.url, patience=PATIENCE)
        end = rpc.header(290)

        def wide(asked):
            request = json.loads(asked)
            query = request["params"][0] if b"eth_getLogs" in asked and isinstance(request, dict) else {}
            return int(query.get("toBlock", "0x0"), 16) - int(query.get("fromBlock", "0x0"), 16) >= 100

        proxy.too_large, proxy.too_large_answer = wide, (body, status)
        assert list(_by_ranges(rpc, [LEDGER], 1, end))[-1][0] == end
        assert proxy.seen.count("eth_getLogs") < 20


def test_a_chain_node_that_has_nothing_of_use_for_the_smallest_range_is_asked_for_as_long_as_any(fake_chain):
    fake_chain.mine()
    with FaultProxy(fake_chain.url) as proxy:
        rpc = RpcClient(proxy.url, patience=2.0)
        end = rpc.header(1)
        proxy.too_large, proxy.too_large_answer = lambda asked: True, (b"<html>timeout</html>", 504)
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="HTTP status 504"):
            list(_by_ranges(rpc, [LEDGER], 0, end))
        assert 1.0 < time.monotonic() - began < PATIENCE and rpc.log_range.limit == 1


@pytest.mark.parametrize(("code", "kind"), [(-32602, RpcError), (-32603, LedgerUnavailable)])
def test_a_refusal_with_status_500_is_final_unless_the_chain_node_says_that_it_failed(
    embedded, monkeypatch, code, kind
):
    monkeypatch.setattr("dlx.ledger.rpc.failover._RETRY", NEVER_AGAIN)
    with FaultProxy(embedded.url) as proxy:
        proxy.refusal, proxy.refusal_status = (code, "in its own words"), 500
        proxy.fault("refused")
        with pytest.raises(kind, match="in its own words"):
            RpcClient(proxy.url).number("eth_chainId")


@pytest.mark.parametrize(
    "refusal",
    [
        {"code": -32000, "message": "\x1b[31mall is\nwell\x1b]0;title\x07\u202e"},
        {
            "code": 3,
            "message": "execution reverted",
            "data": "0x08c379a0" + word(32) + word(9) + "1b5b33316d0a" + "61" * 3 + "00" * 23,
        },
        "\x1b[31mred",
    ],
)
def test_what_a_chain_node_says_cannot_steer_a_terminal(fake_chain, asked, refusal):
    with pytest.raises(LedgerError) as caught:
        asked({"error": refusal})
    assert str(caught.value).isprintable() and len(str(caught.value)) > 10


def test_urls_with_access_keys_stay_out_of_logs(fake_chain, caplog):
    caplog.set_level(logging.DEBUG)
    assert RpcClient(fake_chain.url + "/v2/secret-access-key").number("eth_chainId") == 31337
    assert "secret" not in caplog.text


def test_threads_share_a_client(fake_chain, asked):
    """web3's own get_block would now and then send one thread's parameters with the other's method."""
    for _ in range(20):
        fake_chain.mine()
    rpc = RpcClient(fake_chain.url)
    blocks = {number: bytes.fromhex(fake_chain.block_hash(number)[2:]) for number in range(20)}

    def look(number: int) -> bool:
        return rpc.header(number) == rpc.header(blocks[number]) and rpc.header(number).hash == blocks[number]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(look, list(blocks) * 10))


@pytest.mark.parametrize(
    "refusal",
    [
        {"code": -32005, "message": "project ID request rate exceeded", "data": {"see": "https://a-provider"}},
        {"code": -32005, "message": "daily request count exceeded, request rate limited"},
        {"code": 429, "message": "Your app has exceeded its compute units per second capacity."},
        {"code": -32007, "message": "50/second request limit reached - reduce calls per second"},
        {"code": -32029, "message": "Too Many Requests"},
    ],
)
def test_a_rate_limit_is_waited_out(fake_chain, monkeypatch, refusal):
    monkeypatch.setattr("dlx.ledger.rpc.endpoint._RATE_LIMITED", Backoff(0.01, 0.01))
    fake_chain.faults += [lambda *asked: {"error": refusal}] * 3
    assert RpcClient(fake_chain.url).number("eth_chainId") == 31337
    monkeypatch.setattr("dlx.ledger.rpc.endpoint._RATE_LIMITED", NEVER_AGAIN)
    fake_chain.faults.append(lambda *asked: {"error": refusal})
    with pytest.raises(LedgerUnavailable, match="limits the rate of requests: "):
        RpcClient(fake_chain.url).number("eth_chainId")


@pytest.mark.parametrize(
    "refusal",
    [
        {"code": -32005, "message": "query returned more than 10000 results"},
        {"code": -32600, "message": "You can make eth_getLogs requests with up to a 10 block range."},
        {"code": 3, "message": "execution reverted: rate limited"},
    ],
)
def test_a_refusal_that_is_no_rate_limit_comes_at_once(fake_chain, refusal):
    fake_chain.faults.append(lambda *asked: {"error": refusal})
    with pytest.raises(RpcError):
        RpcClient(fake_chain.url).call("eth_getLogs", {})
    assert len(fake_chain.requests) == 1


@pytest.mark.parametrize("code", [-32005, -32007, 429])
def test_a_code_that_means_wait_is_waited_out_whatever_it_says(fake_chain, monkeypatch, code):
    monkeypatch.setattr("dlx.ledger.rpc.endpoint._RATE_LIMITED", Backoff(0.01, 0.01))
    fake_chain.faults += [lambda *asked: {"error": {"code": code, "message": "no"}}] * 3
    assert RpcClient(fake_chain.url).number("eth_chainId") == 31337


@pytest.mark.parametrize(
    "data", [{"backoff_seconds": 0.2, "see": "https://a-provider"}, {"rate": {"backoff_seconds": 0.2}}]
)
def test_the_time_that_a_chain_node_names_is_waited_for_by_all_threads(fake_chain, data):
    fake_chain.faults.append(lambda *asked: {"error": {"code": -32005, "message": "rate", "data": data}})
    rpc, begin = RpcClient(fake_chain.url), time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(rpc.number, "eth_chainId")
        while not fake_chain.requests:
            time.sleep(0.001)
        while fake_chain.faults:
            time.sleep(0.001)
        assert first.result() == 31337 and time.monotonic() - begin >= 0.2
    assert len(fake_chain.requests) == 2


def test_retry_after_is_honoured_and_a_later_call_does_not_ask_before(embedded):
    with FaultProxy(embedded.url) as proxy:
        rpc = RpcClient(proxy.url)
        proxy.fault("429")
        proxy.retry_after = 99
        for _ in range(3):
            with pytest.raises(LedgerUnavailable, match=r"limits the rate of requests, and wants a pause of \d\d s"):
                rpc.number("eth_chainId")
        assert len(proxy.seen) == 1  # it said: in 99 seconds
        proxy.fault("none")
        (chain_node,) = rpc._chain_nodes._endpoints
        chain_node.closed_until = soon = time.monotonic() + 1
        assert rpc.number("eth_chainId") == 31337 and time.monotonic() >= soon


@pytest.mark.parametrize("kind", ["hang", "drip", "bomb"])
def test_an_answer_has_a_deadline_however_slowly_it_comes(embedded, kind):
    with FaultProxy(embedded.url) as proxy:
        proxy.fault(kind)
        begin = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="no answer from the chain node"):
            RpcClient(proxy.url, timeout=0.6, patience=0.6).head()
        assert time.monotonic() - begin < 20


def test_an_answer_that_was_too_slow_is_asked_for_in_parts(embedded):
    """Of many blocks at once a slow line never gives the logs whole."""
    with FaultProxy(embedded.url) as proxy:
        proxy.fault("drip", methods=["eth_getLogs"])
        with pytest.raises(AnswerTooLarge):
            RpcClient(proxy.url, timeout=4.0, patience=4.0).call(
                "eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest"}
            )


@pytest.mark.parametrize("kind", ["hang", "drip", "429", "limited", "html", "lost", "wrong_chain"])
def test_another_url_answers_where_the_first_does_not(embedded, monkeypatch, kind):
    for rest in ("REST", "_RATE_LIMITED"):
        monkeypatch.setattr(f"dlx.ledger.rpc.endpoint.{rest}", NEVER_AGAIN)
    with FaultProxy(embedded.url) as first, FaultProxy(embedded.url) as second:
        first.fault(kind)
        rpc = RpcClient([first.url, second.url], timeout=4.0, patience=PATIENCE, chain_id=31337)
        assert rpc.head().number > 0 and rpc.head().number > 0
        assert len(first.seen) == 1  # then it rests
        assert second.seen == ["eth_chainId", "eth_getBlockByNumber", "eth_getBlockByNumber"]


def test_the_first_url_is_used_again_once_it_is_well(embedded, monkeypatch):
    monkeypatch.setattr("dlx.ledger.rpc.endpoint.REST", Backoff(0.05, 0.05))
    with FaultProxy(embedded.url) as first, FaultProxy(embedded.url) as second:
        rpc = RpcClient([first.url, second.url], chain_id=31337)
        first.fault("html")
        rpc.head()
        first.fault("none")
        until("the first is asked again", lambda: rpc.head() and "eth_getBlockByNumber" in first.seen)


def test_a_url_on_another_chain_is_never_used_and_named_once(embedded, caplog):
    with FaultProxy(embedded.url) as wrong, FaultProxy(embedded.url) as right:
        wrong.fault("wrong_chain")
        rpc = RpcClient([wrong.url, right.url], chain_id=31337)
        for _ in range(5):
            assert rpc.head().number > 0
        assert wrong.seen == ["eth_chainId"]
        assert [record.getMessage() for record in caplog.records] == [
            f"the chain node at {wrong.url.removeprefix('http://')} is on chain 1, not 31337: it is never asked again"
        ]
        with pytest.raises(WrongLedger, match="is on chain 1, not 31337"):
            RpcClient([wrong.url], chain_id=31337).head()


def test_a_chain_that_takes_the_place_of_ours_is_noticed(embedded):
    with FaultProxy(embedded.url) as proxy:
        rpc = RpcClient(proxy.url, chain_id=31337)
        rpc.head()
        proxy.fault("html")
        with pytest.raises(LedgerUnavailable):
            rpc.with_patience(0.2).head()
        proxy.fault("wrong_chain")
        with pytest.raises(WrongLedger):
            rpc.head()


def test_a_chain_node_that_is_stuck_gives_way_to_one_that_is_not(embedded, monkeypatch):
    monkeypatch.setattr("dlx.ledger.rpc.failover._STALE", 0.0)
    with FaultProxy(embedded.url) as stuck, FaultProxy(embedded.url) as well:
        rpc = RpcClient([stuck.url, well.url], chain_id=31337)
        height = rpc.head().number
        monkeypatch.setattr("dlx.ledger.rpc.failover.LAG", LAG - 1)
        stuck.fault("late")
        assert until("the other is asked", lambda: (found := rpc.head()).number >= height and found)


def test_the_range_of_logs_that_a_url_accepts_is_remembered(fake_chain):
    """Each refusal costs a request; a second reader does not pay for it again."""
    for _ in range(300):
        fake_chain.mine()
    whole = fake_chain.eth_getLogs

    def capped(query):
        wide = int(query["toBlock"], 16) - int(query["fromBlock"], 16) >= 100
        return {"error": {"code": -32600, "message": "range too large"}} if wide else whole(query)

    fake_chain.eth_getLogs = capped
    rpc = RpcClient(fake_chain.url)
    end = rpc.header(290)
    asked = []
    for _ in range(2):
        fake_chain.requests.clear()
        assert list(_by_ranges(rpc, [LEDGER], 1, end))[-1][0] == end
        asked.append(fake_chain.requests.count("eth_getLogs"))
    assert asked == [2 + 3, 3]


def test_the_proxy_of_faults_is_a_process_too(embedded):
    """As the nodes of a devnet need it."""
    command = [sys.executable, "-m", "tests.ledger.fault_proxy", embedded.url, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            url = process.stdout.readline().strip()
            assert RpcClient(url, chain_id=31337).head().number > 0
            requests.post(url + "/fault", json={"kind": "wrong_chain"}, timeout=PATIENCE)
            with pytest.raises(WrongLedger):
                RpcClient(url, chain_id=31337).head()
        finally:
            process.terminate()


def test_how_late_answers_come_is_known_also_while_one_is_waited_for(fake_chain):
    rpc, asked, answered = RpcClient(fake_chain.url), threading.Event(), threading.Event()
    rpc.chain_id()
    assert rpc.late < PATIENCE

    def hangs(*params):
        asked.set()
        answered.wait(PATIENCE)
        return "0x1"

    fake_chain.eth_chainId = hangs
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(rpc.chain_id)
        assert asked.wait(PATIENCE)
        before = rpc.late
        until("it is later", lambda: rpc.late > before + 0.2)
        answered.set()
        assert answer.result() == 1
    assert rpc.late >= before + 0.2, "as the last answer was"


def test_what_a_chain_node_is_asked_to_wait_is_not_late(fake_chain):
    nodes = RpcClient(fake_chain.url)._chain_nodes
    with nodes.timed(PATIENCE):
        assert nodes.late == 0.0
    with nodes.timed():
        time.sleep(0.1)
        assert nodes.late >= 0.1
    assert nodes.late >= 0.1
