"""Audit and pull from peers over libp2p, and as a user types them."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
import typer
from typer.testing import CliRunner

from dlx.ledger.abi import account_bytes
from dlx.ledger.keys import peer_id_from_base58
from dlx.ledger.typed import Domain
from dlx.ledger.view.node_registry import RegisteredNode
from dlx.node import version
from dlx.node.audit.report import Report
from dlx.node.audit.request import AuditRequest
from dlx.node.audit.run import audit_from
from dlx.node.audit.sources.peers import Peers
from dlx.node.cli.app import main
from dlx.node.cli.auditing import audit as audit_command
from dlx.node.cli.runs import pull as pull_command
from dlx.node.home.errors import Failure, UsageFailure
from dlx.p2p import wire
from dlx.p2p.exchange import BlobExchange
from dlx.p2p.host import Host
from tests.blob_folders import copied, flip
from tests.history_builder import History
from tests.liars import Unchecked
from tests.patience import PATIENCE

pytest_plugins = ["tests.history_builder"]

Serve = Callable[[Path], Host]
_PASSED = "ledger PASS, outer steps PASS, training: not checked"


@pytest.fixture
def serve(honest_history: History) -> Iterator[Serve]:
    """`serve(folder)` starts a peer of the run that serves the folder, right or wrong."""
    with ExitStack() as stack:
        yield lambda folder: stack.enter_context(_peer(honest_history, folder, secrets.token_bytes(32)))


def test_libp2p_has_as_long_to_start_as_whatever_else_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlx.node.audit.sources.peers.LOAD_SECONDS", 0.0)
    monkeypatch.setattr(Peers, "_run", lambda self: None)
    domain = Domain(31337, "0x" + "11" * 20)
    with pytest.raises(Failure, match="did not start within 0 s"), Peers(domain, bytes(32), dict, ()) as peers:
        peers.verdicts(0)


def test_everything_can_come_from_peers_and_a_bad_one_is_only_dropped(
    honest_history: History, serve: Serve, tmp_path: Path
) -> None:
    bad_folder = copied(honest_history, tmp_path / "bad")
    for digest in honest_history.payloads[0, 1]:
        flip(bad_folder, digest)
    good, bad = serve(honest_history.blobs), serve(bad_folder)
    report = _audit(honest_history, [good, bad], tmp_path)
    assert str(report.verdict) == _PASSED, report.text()
    # Which of the two is asked first is chance; whoever was caught is named, and nobody else.
    assert all(bad.peer_id in note for note in report.notes)


def test_a_payload_that_every_peer_gives_wrong_is_gone(honest_history: History, serve: Serve, tmp_path: Path) -> None:
    bad_folder = copied(honest_history, tmp_path / "bad")
    digest = honest_history.payloads[1, 2][1]
    flip(bad_folder, digest)
    bad = serve(bad_folder)
    report = _audit(honest_history, [bad], tmp_path)
    gone = [c for c in report.checks if c.verdict == "WARN" and c.check != "trace"]  # that peer is asked no more
    assert not report.failed
    assert [(c.check, c.round, c.stage, c.hash) for c in gone] == [("payload", 2, 1, digest.hex())]
    assert bad.peer_id in gone[0].detail


def test_without_any_peer_what_rests_on_blobs_is_not_established(honest_history: History, tmp_path: Path) -> None:
    report = _audit(honest_history, [], tmp_path)
    assert (report.verdict.ledger, report.verdict.outer_steps) == ("PASS", "WARN")


def test_the_commands_find_the_peers_by_the_ledger(honest_history: History, tmp_path: Path) -> None:
    account, node_key = next(iter(honest_history.node_keys.items()))
    app = typer.Typer()
    app.command("audit")(audit_command.command)
    app.command("pull")(pull_command.command)
    common = [
        *(honest_history.run.hex()[:12], "--rpc-url", honest_history.rpc_url),
        *("--ledger", honest_history.ledger, "--datadir", str(tmp_path), "--json"),
    ]
    with _peer(honest_history, honest_history.blobs, node_key) as host:
        from dlx.ledger.client import LedgerClient

        client = LedgerClient(honest_history.rpc_url, honest_history.ledger, honest_history.keys[account])
        client.set_addresses(host.addresses)
        audited = CliRunner().invoke(app, ["audit", *common])
        pulled = CliRunner().invoke(app, ["pull", *common, "--out", str(tmp_path / "model"), "--round", "2"])
    assert audited.exit_code == 0, audited.output
    report = json.loads(audited.stdout)
    assert report["run"] == "0x" + honest_history.run.hex()
    assert report["verdict"] == {"ledger": "PASS", "outer_steps": "PASS", "training": "not checked"}
    assert report["counts"]["PASS"] == sum(row["PASS"] for row in report["table"]) > 0
    assert not report["failed"] and not report["checks"] and report["not_established"]
    assert pulled.exit_code == 0, pulled.output
    assert json.loads(pulled.stdout)["version"] == 2
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_exit_code_0_only_where_all_is_established(honest_history: History, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(audit_command.command)
    folder = copied(honest_history, tmp_path / "blobs")
    arguments = [
        *(honest_history.run.hex(), "--rpc-url", honest_history.rpc_url, "--blobs", str(folder)),
        *("--ledger", honest_history.ledger, "--datadir", str(tmp_path)),
    ]
    (folder / honest_history.payloads[0, 0][0].hex()).unlink()
    warned = CliRunner().invoke(app, arguments)
    assert warned.exit_code == 4 and "outer steps WARN" in warned.stdout
    flip(folder, honest_history.payloads[0, 0][1])
    failed = CliRunner().invoke(app, arguments)
    assert failed.exit_code == 1 and "outer steps FAIL" in failed.stdout
    foreign = CliRunner().invoke(app, [*arguments, "--ledger", honest_history.registry])
    assert foreign.exit_code == 1 and "FAIL level 1 bytecode" in foreign.stdout


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["22" * 32], "knows no run"),
        (["--rpc-url", "http://127.0.0.1:9"], "no answer"),
        (["--blobs", "closed"], "may not look into"),
    ],
)
def test_what_could_not_be_looked_at_is_no_finding(
    honest_history: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: list[str],
    why: str,
) -> None:
    if "closed" in changes:
        (tmp_path / "closed").mkdir()
        changes = ["--blobs", str(tmp_path / "closed")]
        may = os.access  # the tests may run as root
        monkeypatch.setattr("os.access", lambda path, mode: "closed" not in str(path) and may(path, mode))
    arguments = ["audit", "--ledger", honest_history.ledger, "--datadir", str(tmp_path / "none"), *changes]
    arguments += [] if changes == ["22" * 32] else [honest_history.run.hex()]
    arguments += [] if "--rpc-url" in changes else ["--rpc-url", honest_history.rpc_url]
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 3 and why in capsys.readouterr().err


def test_a_fault_of_ours_is_no_finding(
    honest_history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dlx.node.audit.run.audit", lambda *_: {}["a fault"])
    arguments = [honest_history.run.hex(), "--rpc-url", honest_history.rpc_url]
    with pytest.raises(SystemExit) as ended:
        main(["audit", "--ledger", honest_history.ledger, "--datadir", str(tmp_path), *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 3 and "Traceback" in said and "KeyError('a fault') is a fault of dlx-node" in said


def test_a_head_is_pinned_on_the_command_line(honest_history: History, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(audit_command.command)
    arguments = [
        *(honest_history.run.hex(), "--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger),
        *("--datadir", str(tmp_path), "--blobs", str(honest_history.blobs)),
    ]
    trusting = CliRunner().invoke(app, arguments)
    _, _, pin = trusting.stdout.splitlines()[0].partition("pin with ")
    proven = CliRunner().invoke(app, [*arguments, *pin.split()])
    assert proven.exit_code == 0 and proven.stdout.startswith("proven to block "), proven.output
    assert "ledger PASS, outer steps PASS" in proven.stdout
    number, _, digest = pin.removeprefix("--head ").partition(":")
    lied = CliRunner().invoke(app, [*arguments, "--head", f"{int(number) - 1}:{digest}"])
    assert lied.exit_code == 1 and "FAIL level 1 chain node" in lied.stdout
    assert isinstance(CliRunner().invoke(app, [*arguments, "--head", number]).exception, UsageFailure)


def _audit(history: History, hosts: list[Host], tmp_path: Path) -> Report:
    client = history.client()
    nodes = {
        f"account {n}": RegisteredNode(peer_id_from_base58(host.peer_id), host.addresses)
        for n, host in enumerate(hosts)
    }
    work = tmp_path / "work"
    work.mkdir()
    with Peers(client.domain, history.run, lambda: nodes, []) as peers:
        return audit_from([peers], work, client, AuditRequest(history.run))


@contextmanager
def _peer(history: History, folder: Path, secret: bytes) -> Iterator[Host]:
    """A node's blob service and nothing else, in a thread of its own."""
    chain_id = history.client().chain_id
    hello = wire.Hello(
        wire.VERSIONS, wire.FEATURES, chain_id, account_bytes(history.ledger), history.run, version(), bytes(8)
    )
    host = Host(secret, ["/ip4/127.0.0.1/tcp/0"], [], hello)
    BlobExchange(host, Unchecked(folder))
    ready = threading.Event()
    scope = trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        with scope:
            async with host.run():
                tokens.append(trio.lowlevel.current_trio_token())
                ready.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield host
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=tokens[0])
        thread.join(PATIENCE)
