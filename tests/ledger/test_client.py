"""The client against real chains: every write, every refusal by name, and the view beside the contract's own."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from eth_account.typed_transactions import TypedTransaction
from fault_proxy import FaultProxy
from hexbytes import HexBytes
from ledger_run import NAME, PLAN, STEPS, Run, config, seal_of, signatures_of, verdicts_of, work

from dlx.ledger.bindings import Interface
from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import fund
from dlx.ledger.errors import LedgerError, LedgerUnavailable, Reverted, WrongLedger
from dlx.ledger.events import RunCreated
from dlx.ledger.index.log_reader import fetch_logs
from dlx.ledger.keys import account_of, peer_id, public_point, sign
from dlx.ledger.rpc.failover import LAG
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.typed import Outcome, registration_digest
from tests.ledger.conftest import NEVER_AGAIN
from tests.patience import PATIENCE, until


def until_block(client: LedgerClient, condition) -> None:
    """Waits for a block in which `condition(head)` holds for the next one."""
    deadline = time.monotonic() + PATIENCE
    while not condition(client.head()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def until_time(client: LedgerClient, time: int) -> None:
    """Waits until the next block's time is `time` or later."""
    until_block(client, lambda head: head.time >= time)


def key_of(index: int) -> bytes:
    from tests.ledger.conftest import key

    return key(index)


def all_mined(outbox) -> bool:
    return all(json.loads(path.read_text())["mined"] for path in outbox.rglob("0*.json"))


def test_registration_binds_the_node_key(world):
    (client,) = world.members([50])  # whose addresses no other test sets
    x, y = public_point(key_of(10_050))
    raw = peer_id(b"\x04" + x + y)
    assert client.read_registry("peerIdOf", client.account) == (raw,)
    table = client.nodes()
    assert table.nodes[client.account].peer_id == raw and table.account_of(raw) == client.account
    assert table.nodes[client.account].multiaddrs == ("/ip4/127.0.0.1/tcp/4050",)

    thief = world.client(51)
    with pytest.raises(Reverted) as caught:
        thief.register(key_of(10_050), [])
    assert caught.value.name == "PeerIdTaken" and caught.value.arguments == (client.account,)
    borrowed = sign(registration_digest(client.chain_id, client.registry, client.account, 1), key_of(10_050))
    with pytest.raises(Reverted, match="NotSignedByNodeKey"):
        thief._registry_write("register", x, y, borrowed, [])


def test_addresses_and_deregistration(embedded):
    (client,) = embedded.members([3])
    client.set_addresses(["/dns4/a/tcp/1", "/dns4/b/tcp/2"])
    assert client.nodes().nodes[client.account].multiaddrs == ("/dns4/a/tcp/1", "/dns4/b/tcp/2")
    with pytest.raises(Reverted, match=r"AddressTooLong\(0, 257, 256\)"):
        client.set_addresses(["x" * 257])
    with pytest.raises(Reverted, match="TooManyAddresses"):
        client.set_addresses([""] * 17)
    client.deregister()
    assert client.account not in client.nodes().nodes
    client.register(key_of(10_003), [])  # the nonce went on
    assert client.account in client.nodes().nodes


def test_a_run_from_creation_to_its_last_round(world):
    clients = world.members(range(10, 14))
    run = Run(clients, config(rounds=2))
    assert run.view.creator == clients[0].account and not run.view.complete_replicas()
    with ThreadPoolExecutor(4) as pool:
        slots = list(pool.map(lambda client: client.join_run(run.id), clients))
    assert sorted(slots) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    run.check()
    assert run.view.open_round == 0 and run.view.complete_replicas() == (0, 1)
    for round in range(2):
        for stage in (0, 1):
            members = run.view.members_in(stage)
            until_time(clients[0], run.opens_at(stage, members))
            receipt = run.send(stage, members, members, by=clients[stage])
            assert receipt.gas_used < 250_000
            run.check()
            assert run.view.next_round(stage) == round + 1
    assert run.view.finished and run.view.open_round is None
    assert run.view.last_round_counted(clients[0].account) == 1
    with pytest.raises(Reverted, match="RunFinished"):
        run.send(0, run.view.members_in(0), run.view.members_in(0))
    clients[0].publish_checkpoint(run.id, 2, b"\7" * 32, "https://example.org/v2")
    run.poll()
    (published,) = run.view.checkpoints
    assert (published.round, published.folder, published.uri) == (2, b"\7" * 32, "https://example.org/v2")
    assert run.id in clients[0].runs()


def test_a_founder_and_another_convict_a_third(world):
    clients = world.members(range(10, 13))
    run = Run(clients, config(stages=1, min_replicas=3))
    for client in clients:
        client.join_run(run.id)
    run.poll()
    first, second, third = (client.account for client in clients)
    until_time(clients[0], run.opens_at(0, [first]))
    run.send(0, [first, second, third], [first, second, third])
    run.poll()
    alone = verdicts_of(run.view, 0, 0, third, [second], run.keys)
    with pytest.raises(Reverted, match=r"QuorumMissing\(2731, 20025\)"):
        clients[0].convict(alone)
    clients[0].convict(verdicts_of(run.view, 0, 0, third, [first, second], run.keys))
    run.check()
    assert run.view.is_convicted(third) and run.view.slot_of(third) is None
    with pytest.raises(Reverted, match="IsConvicted"):
        clients[2].join_run(run.id)


def test_a_silent_member_is_asked_and_evicted(world):
    clients = world.members(range(10, 13))
    run, early = (Run(clients, config(stages=1, min_replicas=3, eviction_time=time)) for time in (2, 10**6))
    for client in clients:
        client.join_run(run.id)
        client.join_run(early.id)
    run.check()
    early.poll()
    first, second, third = clients
    for each in run, early:
        until_block(first, lambda head, view=each.view: view.may_accuse(first.account, third.account, head.time))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda client: first.accuse(run.id, client.account), (second, third)))
    first.accuse(early.id, third.account)
    run.check()
    assert set(run.view.accusations) == {second.account, third.account}
    with pytest.raises(Reverted, match="AccusationPending"):
        first.accuse(run.id, third.account)
    with pytest.raises(Reverted, match="TooEarlyToEvict"):
        first.evict(early.id, third.account)
    second.answer(run.id)
    run.check()
    assert set(run.view.accusations) == {third.account}
    until_block(first, lambda head: run.view.may_evict(third.account, head.time))
    second.evict(run.id, third.account)
    run.check()
    assert run.view.slot_of(third.account) is None and not run.view.accusations
    until_time(first, first.head().time + 1)  # a slot is free from the second after it was given up
    third.join_run(run.id)
    run.poll()
    until_time(first, run.opens_at(0, []))
    run.send(0, [], run.view.members_in(0))  # nothing was contributed in time
    run.check()
    assert run.view.weights(0, 1) == run.view.genesis[0]


@pytest.fixture(scope="module")
def running(embedded):
    """A run of one stage and three replicas in its first round, which may be sealed."""
    clients = embedded.members(range(20, 24))
    run = Run(clients, config(stages=1, min_replicas=3, round_timeout=10**6))
    for client in clients[:3]:
        client.join_run(run.id)
    run.poll()
    until_time(clients[0], run.opens_at(0, [clients[0].account]))
    return run


def outcome(steps: int) -> Outcome:
    return Outcome(*[b"\xee" * 32] * 4, steps, PLAN)


WRONG_SEALS = {
    "WrongRound": {"round": 7},
    "UnknownStage": {"stage": 1},
    "UnknownRun": {"run": b"\xee" * 32},
    "RecordUnsigned": {"previous": b"\xee" * 32},  # so the signatures are of another digest than the ledger's
    "WrongPlan": {"outcome": outcome(2 * STEPS + 1)},
    "WrongInnerSteps": {"outcome": outcome(STEPS - 1)},
    "EmptySealChangesState": {"records": ()},
}


@pytest.mark.parametrize("error", WRONG_SEALS)
def test_wrong_seals_are_refused_by_name(running, error):
    members = running.view.members_in(0)
    counted = work(running.view, 0, running.makers(0, members), running.keys)
    seal = seal_of(running.view, 0, counted)
    seal = replace(seal, **WRONG_SEALS[error])
    with pytest.raises(Reverted) as caught:
        running.creator.seal(seal, signatures_of(running.view, seal, counted, members, running.keys))
    assert caught.value.name == error


def test_seals_need_weight_and_time(running):
    members = running.view.members_in(0)
    with pytest.raises(Reverted) as caught:
        running.send(0, members, members, founder=False)
    assert (caught.value.name, caught.value.arguments) == ("QuorumMissing", (0, 21846))
    with pytest.raises(Reverted, match="TooEarlyToSeal"):
        running.send(0, [], members)
    with pytest.raises(Reverted, match="TooEarlyToAccuse"):
        running.creator.accuse(running.id, members[1])
    with pytest.raises(Reverted, match="TooEarlyToDeal"):
        running.creator.deal(running.id, 0)
    with pytest.raises(Reverted, match="NotFounder"):
        running.clients[members[-1]].dismiss(running.id, members[0], members[1])


def test_many_sends_at_once_all_arrive(embedded):
    client = embedded.client(30)
    with ThreadPoolExecutor(20) as pool:
        runs = list(pool.map(lambda i: client.create_run(config(), NAME, [bytes([i + 1]) * 32] * 2), range(20)))
    assert len(set(runs)) == 20
    assert set(runs) <= {*client.runs()}


def test_a_killed_chain_comes_back_and_every_send_arrives_once(tmp_path):
    from tests.ledger.conftest import World

    world = World("embedded", tmp_path)
    try:
        client = world.client(0)
        feed = client.feed()
        assert len(client.poll(feed).events) == 0
        with ThreadPoolExecutor(8) as pool:
            sent = [pool.submit(client.create_run, config(), NAME, [bytes([i + 1]) * 32] * 2) for i in range(8)]
            sent[0].result()
            world.stop(kill=True)
            world.start()
            runs = {future.result() for future in sent}
        update = client.poll(feed)
        assert not update.reorg and sorted(e.run for e in update.events) == sorted(runs)
        assert all_mined(tmp_path / "outbox")
    finally:
        world.stop()


def test_a_reorg_takes_a_run_back(world):
    if world.kind != "anvil":
        pytest.skip("the embedded chain never takes a block back")
    client = world.client(40)
    until_block(client, lambda head: head.block > 6)  # the contracts must stay
    run = client.create_run(config(), NAME, [b"\1" * 32] * 2)
    feed = client.feed()
    created = next(event for event in client.poll(feed).events if isinstance(event, RunCreated) and event.run == run).at

    def is_back() -> bool:
        there = client.rpc.header(created.block)
        if there is not None and there.hash == created.block_hash:  # again where more was mined since
            client.rpc.call("anvil_reorg", client.head().block - created.block + 1, [])
            return False
        return True

    until("the run's block is taken back", is_back)
    height = client.head().block
    until_block(client, lambda head: head.block > height)
    update = client.poll(feed)
    assert update.reorg
    assert run not in {event.run for event in update.events if isinstance(event, RunCreated)}


def test_a_follower_waits_for_news_for_less_than_a_kilobyte(tmp_path):
    from tests.ledger.conftest import World

    world = World("embedded", tmp_path)
    try:
        client, other = world.client(0), world.client(1)
        feed = client.feed()
        until_block(client, lambda head: client.poll(feed, 0.01) is not None and client.tells)
        head, before = client.poll(feed).head, client.rpc.traffic
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.poll, feed, 60.0)
            run = other.create_run(config(), NAME, [b"\1" * 32] * 2)
            seen = [*waiting.result(timeout=PATIENCE).events]
        while run not in {event.run for event in seen}:
            seen += client.poll(feed, 60.0).events
        blocks = client.poll(feed).head.block - head.block
        spent = sum(client.rpc.traffic) - sum(before)
        compared = 1_500 * (blocks // LAG)  # where many come at once, as on a busy machine
        assert 0 < spent < 800 * (blocks + 1) + 4_500 + compared, "the logs of one block, and little for each block"
    finally:
        world.stop()


def test_a_header_that_proves_that_its_block_has_no_logs_of_ours_is_enough(world):
    (member,) = world.members([1])
    ours = member.set_addresses(["/ip4/127.0.0.1/tcp/4001"]).block
    until_block(member, lambda head: head.block > ours + 1)
    contracts = world.ledger, world.registry

    def logs(proxy: FaultProxy, number: int) -> list[bytes]:
        rpc = RpcClient(proxy.url)
        end = rpc.header(number)
        return [log.tx for page in fetch_logs(rpc, contracts, number, end, end.parent) for log, _ in page.logs]

    with FaultProxy(world.url) as proxy:
        blooms = {n: proxy.ask("eth_getBlockByNumber", hex(n), False)["logsBloom"] for n in (ours - 1, ours + 1)}
        empty = next(n for n, bloom in blooms.items() if not int(bloom, 16))
        assert logs(proxy, empty) == [] and "eth_getLogs" not in proxy.seen
        assert logs(proxy, ours) and "eth_getLogs" in proxy.seen
        no_bloom = {"logsBloom": "0x" + "00" * 256}
        proxy.lie = lambda method, params, result: result | no_bloom if method == "eth_getBlockByNumber" else result
        assert logs(proxy, ours), "a bloom that the hash does not prove says nothing"


def test_a_chain_node_that_cannot_tell_is_looked_at(embedded, fake_chain):
    known = embedded.client(1)
    fake_chain.answer = lambda method, params: known.rpc.call(method, *params)
    client = LedgerClient(fake_chain.url, embedded.ledger, chain_id=31337)
    feed, asked = client.feed(bytes(32)), []

    def answer(method, params):
        asked.append(method)
        return "Geth/v1" if method == "web3_clientVersion" else known.rpc.call(method, *params)

    fake_chain.answer = answer
    for _ in range(4):
        client.poll(feed, 30.0)
    assert not client.tells and "dlx_waitForBlock" not in asked and asked.count("web3_clientVersion") == 1


def test_clients_refuse_another_chain_and_other_contracts(embedded):
    with pytest.raises(WrongLedger, match="is on chain 31337, not 1"):
        LedgerClient(embedded.url, embedded.ledger, chain_id=1).connect()
    with pytest.raises(WrongLedger, match="is not this version's TrainingLedger"):
        LedgerClient(embedded.url, embedded.registry).connect()
    reader = LedgerClient(embedded.url, embedded.ledger)
    with pytest.raises(LedgerError, match="no account key"):
        reader.leave_run(bytes(32))
    with pytest.raises(Reverted, match="UnknownRun"):
        reader.read("nextRound", bytes(32), 0)


def test_a_client_is_made_before_its_chain_answers(embedded, fake_chain, monkeypatch):
    known = embedded.client(1)
    fake_chain.answer = lambda method, params: b"nobody is at home"
    client = LedgerClient(fake_chain.url, embedded.ledger, key_of(1), chain_id=31337)
    assert (client.domain, client.account) == (known.domain, known.account)
    feed = client.feed(bytes(32))
    monkeypatch.setattr("dlx.ledger.rpc.failover._RETRY", NEVER_AGAIN)
    for _ in range(2):
        with pytest.raises(LedgerUnavailable):
            client.poll(feed)
    fake_chain.answer = lambda method, params: known.rpc.call(method, *params)
    assert client.poll(feed).head.block > 0 and client.registry == embedded.registry


@pytest.mark.parametrize("lacking", ["ledger", "registry"])
def test_a_chain_node_that_has_not_got_to_the_contracts_is_waited_for(embedded, fake_chain, lacking):
    known, missing = embedded.client(1), getattr(embedded, lacking)

    def syncing(method, params):
        return "0x" if method == "eth_getCode" and params[0] == missing else known.rpc.call(method, *params)

    fake_chain.answer = syncing
    client = LedgerClient(fake_chain.url, embedded.ledger)
    feed = client.feed(bytes(32))
    with pytest.raises(LedgerUnavailable, match=f"no code at {missing} on chain 31337 yet"):
        client.poll(feed)
    fake_chain.answer = lambda method, params: known.rpc.call(method, *params)
    assert client.poll(feed).head.block > 0


@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_getLogs"])
def test_an_error_answer_to_a_poll_is_waited_out(embedded, fake_chain, monkeypatch, method):
    monkeypatch.setattr("dlx.ledger.index.log_reader._PAUSE", 0.001)
    known = embedded.client(1)
    client = LedgerClient(fake_chain.url, embedded.ledger)
    feed = client.feed(bytes(32))

    def failing(called, params):
        if called == method:
            return {"error": {"code": -32603, "message": "internal error"}}
        return known.rpc.call(called, *params)

    fake_chain.answer = failing
    with pytest.raises(LedgerUnavailable, match=r"internal error \(code -32603\)"):
        client.poll(feed)
    fake_chain.answer = lambda called, params: known.rpc.call(called, *params)
    update = client.poll(feed)
    assert update.complete and not update.reorg


def test_nothing_is_asked_of_the_pending_block(embedded, fake_chain):
    """Base answers for "pending" with a state of some blocks ago, where what we rest on has not happened yet."""
    known = embedded.client(42).rpc

    def answer(method, params):
        assert "pending" not in params
        return known.call(method, *params)

    fake_chain.answer = answer
    run = LedgerClient(fake_chain.url, embedded.ledger, key_of(42)).create_run(config(), "old", [b"\1" * 32] * 2)
    assert embedded.client(42).read("nextRound", run, 0) == (0,)


@pytest.mark.parametrize(
    ("estimate", "given"),
    [
        (hex(40_000), 40_000 * 5 // 4 + 20_000),
        (hex(10**9), 500_000),
        ({"error": {"code": -32601, "message": "the method does not exist"}}, 500_000),
    ],
)
def test_gas_is_estimated_within_a_cap(embedded, fake_chain, estimate, given):
    (client,) = embedded.members([44])
    known, sent = client.rpc, []

    def answer(method, params):
        if method == "eth_sendRawTransaction":
            sent.append(TypedTransaction.from_bytes(HexBytes(params[0])).as_dict()["gas"])
        return estimate if method == "eth_estimateGas" else known.call(method, *params)

    fake_chain.answer = answer
    other = LedgerClient(fake_chain.url, embedded.ledger, key_of(44))
    try:
        other.set_addresses(["/dns4/a/tcp/1"])
    except Reverted as error:
        assert str(error) == "the contract refused: out of gas()"
    assert set(sent) == {given}


def test_a_chain_node_that_names_10000_gwei_gets_no_signature(embedded, fake_chain, tmp_path):
    """It once got one over 0.457 ETH for a registration."""
    client = embedded.client(45)
    known, asked = client.rpc, []

    def answer(method, params):
        asked.append(method)
        return hex(10_000 * 10**9) if method == "eth_maxPriorityFeePerGas" else known.call(method, *params)

    fake_chain.answer = answer
    with pytest.raises(LedgerError, match=r"names a tip of 10,000 gwei, above max_fee \(100\): nothing is signed"):
        LedgerClient(fake_chain.url, embedded.ledger, key_of(45), tmp_path).register(key_of(10_045), [])
    assert "eth_sendRawTransaction" not in asked and list(tmp_path.rglob("0*.json")) == []


_SEND_MANY = """
import sys
from pathlib import Path
from dlx.ledger.client import LedgerClient
url, ledger, key, outbox, name = sys.argv[1:]
client = LedgerClient(url, ledger, bytes.fromhex(key), Path(outbox))
sys.stdin.readline()
for number in range(12):
    client.set_addresses([f"/dns4/{name}-{number}/tcp/1"])
"""


def test_two_processes_send_with_one_key(embedded, tmp_path):
    """As `run create` in the folder of a running node does."""
    (client,) = embedded.members([43])
    sent = client.rpc.number("eth_getTransactionCount", client.account, "latest")
    command = [sys.executable, "-c", _SEND_MANY, embedded.url, embedded.ledger, key_of(43).hex(), str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, name], **pipes) for name in ("a", "b")]
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
    assert client.rpc.number("eth_getTransactionCount", client.account, "latest") == sent + 24
    assert all_mined(tmp_path)


def test_code_is_compared_apart_from_immutables(embedded):
    client = embedded.client(30)
    code, interface = client.code(embedded.ledger), Interface("TrainingLedger")
    assert interface.same_code(code)
    place = interface.artifact["immutableReferences"][0]["start"]
    assert interface.same_code(code[:place] + b"\xff" + code[place + 1 :])
    assert not interface.same_code(code[:10] + bytes([code[10] ^ 1]) + code[11:])
    assert not interface.same_code(b"") and not interface.same_code(code + b"\0")


def test_a_run_has_a_name_that_strangers_read(embedded):
    client = embedded.client(30)
    run = client.create_run(config(), "Fairy-tales_1.0", [b"\1" * 32] * 2)
    with LedgerClient(embedded.url, embedded.ledger).events() as index:
        assert next(index.events(run)).name == "Fairy-tales_1.0"
    with pytest.raises(Reverted, match=r"InvalidConfig.*name"):
        client.create_run(config(), "two words", [b"\1" * 32] * 2)


def test_without_funds_the_message_says_so(embedded, tmp_path):
    poor = LedgerClient(embedded.url, embedded.ledger, key_of(31), tmp_path)
    with pytest.raises(LedgerError, match=r"has 0 ETH, needs [0-9.]+ ETH: send it funds"):
        poor.create_run(config(), NAME, [b"\1" * 32] * 2)
    fund(embedded.url, account_of(key_of(31)))
    fund(embedded.url, account_of(key_of(31)))  # a second time gives nothing, and is no error
    assert poor.create_run(config(), NAME, [b"\1" * 32] * 2)
