import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dlx.node.cli.operate.status import read
from dlx.node.daemon.api.http import serve_http
from dlx.node.daemon.api.status import (
    CheckStatus,
    LedgerStatus,
    Mailboxes,
    NodeStatus,
    Peers,
    PeerView,
    Relaying,
    Rounds,
    RoundView,
    SealStatus,
    Traffic,
)
from dlx.node.daemon.metrics import Metrics
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, NotReady, UsageFailure
from tests.node.command import dlx
from tests.patience import PATIENCE

STATUS = NodeStatus(
    version="0.1.0",
    account="0x" + "11" * 20,
    peer_id="16Uiu2HAm",
    addresses=("/ip4/127.0.0.1/tcp/4001",),
    listens=("/ip4/127.0.0.1/tcp/4001",),
    reachable="no: no connection to 198.51.100.7:4001; forward port 4001 to this machine",
    relays=Relaying(members=2, connections=1),
    mailboxes=Mailboxes(to="https://bucket.example/mine", published=12, read=1),
    unreached=("the neighbour at stage 0 (account 0x1) is not connected: no answer at /ip4/192.168.1.2/tcp/4650",),
    run="0x" + "22" * 32,
    stage=1,
    replica=0,
    site=None,
    round=3,
    step=4,
    steps=10,
    phase="training",
    waiting_for=None,
    failing=(),
    trained_on="cpu, 2 threads",
    peers=2,
    ledger=LedgerStatus(
        rpc_url="http://127.0.0.1:8545", reachable=True, block=7, age_seconds=0.5, clock_skew_seconds=0.0
    ),
    last_counted_round=2,
    counted_in_last_round=True,
    weight="50% of stage 0's",
    lacks_founder=None,
    vouches={},
    notices=(),
    loss=2.5,
    held_out=2.75,
    held_out_version=2,
    held_out_before=3.5,
    tokens_per_second=1000.0,
    traffic=Traffic.of(
        {"payload": (900_000, 1), "pipe": (21_000_000, 2), "blobs": (0, 5_000), "relayed": (0, 0), "gossip": (9, 10)}
        | {"signalling": (7, 8), "chain": (5, 6)}
    ),
    last_seal=None,
    checks=CheckStatus(
        drawn=8,
        checked=5,
        honest=4,
        false=1,
        withheld=0,
        served=2,
        undecided_bytes=3_000_000,
        seconds=7.0,
        allowed_seconds=12.0,
    ),
    not_ready=(),
    rejected={},
    started_at=1.0,
)
PEER = PeerView(peer_id="16Uiu2HAn", addresses=(), connected_seconds=2.0, rtt_ms=None, agreed=True)
ROUND = RoundView(round=2, loss=2.6, counted=2, ours=True, steps=10, time=1_700_000_000)


class Served:
    """An endpoint that serves `status`, which the test may change."""

    def __init__(self, folder: DataDir) -> None:
        self.folder = folder
        self.status = STATUS
        self.url = ""
        self.pages = 0

    def page(self) -> Starlette:
        self.pages += 1
        return Starlette(routes=[Route("/", lambda _: PlainTextResponse("the page"))])

    async def get(self, path: str, host: str | None = None) -> httpx.Response:
        headers = {} if host is None else {"Host": host}
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
            return await client.get(self.url + path, headers=headers)


def serve(folder: Path, test: Callable[[Served], Awaitable[None]], host: str = "127.0.0.1") -> None:
    served = Served(DataDir(folder))
    served.folder.create()
    metrics = Metrics(STATUS.run)
    metrics.rejected("too_large")

    async def main() -> None:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                told = (
                    lambda: served.status,
                    lambda: Peers([PEER], STATUS.reachable, STATUS.unreached),
                    lambda: [ROUND],
                )
                run = partial(serve_http, host, 0, *told, metrics.registry)
                served.url = await nursery.start(run, served.folder.http_address, served.page)
                await test(served)
                nursery.cancel_scope.cancel()

    with served.folder.lock():
        trio.run(main)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_status_and_peers_read_back_as_they_were_given(tmp_path: Path, host: str) -> None:
    async def test(served: Served) -> None:
        status = await trio.to_thread.run_sync(read, served.folder, "/v1/status", NodeStatus)
        assert status == STATUS
        assert (await served.get("/v1/peers")).json()["peers"][0]["peer_id"] == PEER.peer_id
        assert (await trio.to_thread.run_sync(read, served.folder, "/v1/rounds", Rounds)).rounds == [ROUND]
        assert json.loads(served.folder.http_address.read_text())["url"] == served.url

    serve(tmp_path, test, host)


def test_the_commands_answer_what_a_contributor_asks(tmp_path: Path) -> None:
    async def ask(served: Served, verb: str, *options: str) -> str:
        return (await trio.to_thread.run_sync(dlx, verb, "--datadir", served.folder.root, *options)).stdout

    async def test(served: Served) -> None:
        shown = await ask(served, "status")
        for line in (
            "ready        yes",
            "connected    2 peers, ledger http://127.0.0.1:8545 at block 7",
            "slot         stage 1 of replica 0",
            "counted      yes in the last sealed round (last in round 2)",
            "now          training, round 3, inner step 4 of 10",
            "waiting for  nothing",
        ):
            assert line in shown
        served.status = replace(
            STATUS,
            stage=None,
            replica=None,
            counted_in_last_round=False,
            weight="50% of stage 0's",
            lacks_founder=None,
            vouches={},
            notices=(),
            waiting_for="a seal of round 2",
            not_ready=("no slot held",),
            ledger=replace(STATUS.ledger, reachable=False),
            last_seal=SealStatus(
                round=2,
                counted=1,
                replicas=3,
                inner_steps=40,
                steps={1: 10},
                transaction="0x" + "33" * 32,
                weights="44" * 32,
            ),
            rejected={"too_large": 3},
        )
        shown = await ask(served, "status")
        for line in (
            "ready        no: no slot held",
            "http://127.0.0.1:8545 does not answer",
            "slot         none held",
            "counted      NO in the last sealed round",
            "waiting for  a seal of round 2",
            "sent         payload 900.0 kB, pipe 21.0 MB, blobs 0 B, relayed 0 B, gossip 9 B, signalling 7 B, "
            "chain 5 B",
            "received     payload 1 B, pipe 2 B, blobs 5.0 kB, relayed 0 B, gossip 10 B, signalling 8 B, chain 6 B",
            "last seal    round 2, counted 1 of 3 replicas, steps 40 (replica 1: 10), weights 4444444444444444",
            "refused      too_large 3",
        ):
            assert line in shown
        assert json.loads(await ask(served, "status", "--json"))["waiting_for"] == "a seal of round 2"
        assert PEER.peer_id in await ask(served, "peers")
        assert json.loads(await ask(served, "peers", "--json"))["peers"][0]["agreed"] is True

    serve(tmp_path, test)


def test_readiness_gives_its_reasons(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        assert (await served.get("/healthz")).status_code == 200
        assert (await served.get("/readyz")).json() == {"ready": True, "reasons": [], "reachable": STATUS.reachable}
        served.status = replace(STATUS, not_ready=("no slot held", "no peers"))
        answer = await served.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["no slot held", "no peers"])

    serve(tmp_path, test)


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        answer = await served.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert 'dlx_rejected_total{reason="too_large"} 1.0' in answer.text

    serve(tmp_path, test)


def test_a_web_pages_own_name_for_this_machine_is_refused(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        port = served.url.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost@evil.example", ""):
            assert (await served.get("/v1/status", host)).status_code == 400
        for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}"):
            assert (await served.get("/v1/status", host)).status_code == 200

    serve(tmp_path, test)


@pytest.mark.parametrize(
    "rubbish", [b"\x16\x03\x01\x00\xff", b"GET / HTTP/9.9\r\n\r\n", b"GET /v1/status HTTP/1.1\r\n"]
)
def test_rubbish_leaves_the_endpoint_alive(tmp_path: Path, rubbish: bytes) -> None:
    async def test(served: Served) -> None:
        port = int(served.url.rpartition(":")[2])
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(rubbish)
        assert (await served.get("/healthz")).status_code == 200

    serve(tmp_path, test)


def test_only_loopback_addresses_are_served(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.com"):
        with pytest.raises(UsageFailure, match="loopback"):
            registry = Metrics(STATUS.run).registry
            trio.run(serve_http, host, 0, lambda: STATUS, list, list, registry, tmp_path / "http.json", Starlette)


def test_a_taken_port_is_one_clear_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match="choose another --http-port"):
            trio.run(
                serve_http,
                "127.0.0.1",
                port,
                lambda: STATUS,
                list,
                list,
                Metrics(STATUS.run).registry,
                tmp_path / "http.json",
                Starlette,
            )


def test_the_page_is_made_for_the_first_who_asks(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        assert (await served.get("/healthz")).status_code == 200 and served.pages == 0
        for _ in range(2):
            assert (await served.get("/")).text == "the page"
        assert (await served.get("/", host="evil.example")).status_code == 400 and served.pages == 1

    serve(tmp_path, test)


def test_after_the_node_has_ended_reading_says_that_none_runs(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        stale = served.folder.http_address.read_text()
        served.folder.state.joinpath("stale").write_text(stale)

    serve(tmp_path, test)
    folder = DataDir(tmp_path)
    assert not folder.http_address.exists()
    folder.state.joinpath("stale").rename(folder.http_address)  # as SIGKILL leaves it
    with pytest.raises(NotReady, match="no node runs in"):
        read(folder, "/v1/status", NodeStatus)
