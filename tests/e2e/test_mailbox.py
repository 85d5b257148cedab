"""A member whose network lets only HTTPS out: nobody can connect to it, it can connect to nobody, and it counts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from benchmarks import homes
from benchmarks.namespaces import run
from dlx.ledger.events import Sealed
from dlx.ledger.typed import SignedContribution
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.daemon.mailbox.messages_file import MESSAGES, unpack
from dlx.node.devnet.devnet import DevnetShape
from dlx.node.home.keys.slashing_protection import Entries, SignedStatements
from dlx.p2p import wire
from tests.e2e.devnets import Timing, ToughDevnet, Watched, draft
from tests.node.command import dlx
from tests.node.https_server import serving
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(homes.lacking() is not None, reason=homes.lacking() or ""),
]

TIMING = Timing(grace=20, proposal=15, timeout=90, eviction=300)
ALONE = "node-2"  # whose network lets only HTTPS out
PUBLIC = {"chain": "52.20.9.1", "store": "52.20.9.2"} | {f"node-{at}": f"52.20.{at + 1}.1" for at in range(3)}


@dataclass
class _Net(ToughDevnet):
    forks_nodes = False

    store: str = ""  # URL of the server that has everybody's mailbox
    folder_of_store: Path = field(default_factory=Path)

    def address(self, name: str) -> str:
        return PUBLIC[name]

    def command(self, name: str, module: Any) -> list[str]:
        return homes.command(name, *super().command(name, module))

    def more_arguments(self, name: str) -> list[str]:
        if name == ALONE:
            return ["--mailbox", f"{self.store}/{name}"]
        if name == "node-0":  # it creates the run
            folder = str(self.folder_of_store / name)
            return ["--mailbox", folder, "--mailbox-url", f"{self.store}/{name}", "--mailbox-mirror"]
        return []

    def status(self, name: str) -> NodeStatus | None:
        with homes.inside(name):
            return super().status(name)


def _handler(folder: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Keeps what is PUT."""

        def do_PUT(self) -> None:
            path = folder / self.path.lstrip("/")
            path.parent.mkdir(exist_ok=True)
            content = self.rfile.read(int(self.headers["Content-Length"]))
            path.with_suffix(".new").write_bytes(content)
            path.with_suffix(".new").replace(path)
            self.answer(201)

        def do_GET(self) -> None:
            path = folder / self.path.lstrip("/")
            if path.is_file():
                self.answer(200, path.read_bytes())
            else:
                self.answer(404)

        def do_DELETE(self) -> None:
            (folder / self.path.lstrip("/")).unlink(missing_ok=True)
            self.answer(204)

        def answer(self, status: int, content: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def _served(folder: Path, certificate: Path) -> Iterator[str]:
    """A server on the machine "store"; its URL."""
    url, begun, over = list[str](), threading.Event(), threading.Event()

    def serve() -> None:
        with homes.inside("store"), serving(_handler(folder), certificate, PUBLIC["store"]) as there:
            url.append(there)
            begun.set()
            over.wait()

    thread = threading.Thread(target=serve)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield url[0]
    finally:
        over.set()
        thread.join()


def _only_https(name: str, store_port: str, chain_port: str) -> None:
    """What a machine may send goes to the store and the chain; nobody can connect to it."""
    store, chain = PUBLIC["store"], PUBLIC["chain"]
    run(homes.command(name, "nft", "-f", "-"), told=f"""
        table ip office {{
            chain out {{
                type filter hook output priority 0; policy drop;
                oifname lo accept
                ip daddr {store} tcp dport {store_port} accept
                ip daddr {chain} tcp dport {chain_port} accept
            }}
            chain in {{
                type filter hook input priority 0; policy drop;
                iifname lo accept
                ct state established,related accept
            }}
        }}
    """)  # fmt: skip


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    certificate, store = tmp_path / "certificate.pem", tmp_path / "store"
    store.mkdir()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setattr(homes, "PREFIX", "dlx-mailbox-")  # another test of homes may run meanwhile
    with homes.made(PUBLIC, {}), _served(store, certificate) as url, homes.inside("chain"):
        shape = DevnetShape("", 100_000, 3, 1, 0.2)
        devnet = _Net(tmp_path / "devnet", shape, store=url, folder_of_store=store)
        try:
            devnet.make(draft(100_000, 5, TIMING, 3, stages=1), lambda line: None)
            _only_https(ALONE, url.rpartition(":")[2], devnet.rpc_url.rpartition(":")[2])
            for name in devnet.names:
                devnet.start_node(name)
            yield Watched(devnet)
        finally:
            devnet.stop()


def test_a_member_that_only_https_reaches_is_counted_checked_and_pulled(watched: Watched, tmp_path: Path) -> None:
    devnet = watched.devnet
    assert isinstance(devnet, _Net)
    first = watched.until_all_count()
    watched.until_all_count(after=first + 3)
    alone, other = watched.status(ALONE), watched.status("node-1")
    assert alone.peers == 0 and alone.mailboxes.read >= 1 and not alone.not_ready
    assert other.peers >= 1 and other.mailboxes.read >= 1
    assert alone.reachable.endswith(f"/{ALONE}")
    assert [seal.count for seal in watched.of(Sealed)].count(3) >= 3
    watched.until("an honest verdict on its work", lambda: _is_found_honest(devnet, alone.account))
    watched.until("a verdict of its own", lambda: "verdict finding=honest" in devnet.log(ALONE).read_text())
    (tmp_path / "elsewhere").mkdir()
    with homes.inside(ALONE):  # where no peer can be reached
        settings = devnet.settings
        ledger = ["--rpc-url", settings.rpc_url[0], "--ledger", settings.ledger]
        ledger += ["--datadir", tmp_path / "elsewhere", "--json"]
        pulled = json.loads(dlx("pull", devnet.shape.run, *ledger, "--out", tmp_path / "model").stdout)
    assert pulled["version"] > first and (tmp_path / "model" / "model.safetensors").is_file()
    _ends_where_its_mailbox_knows_more(watched, devnet, tmp_path / "backup")


def _ends_where_its_mailbox_knows_more(watched: Watched, devnet: _Net, backup: Path) -> None:
    """A folder from a backup, of a node that no peer could tell what it has signed since."""
    account, folder, messages = (
        watched.status(ALONE).account,
        devnet.folder(ALONE),
        devnet.folder_of_store / ALONE / MESSAGES,
    )
    _copy(folder.signed, backup)
    before = _signed(backup, account)
    newest = max(one.contribution.round for one in before.contributions)
    watched.until_all_count(after=newest + 1)
    for name in ("node-0", "node-1"):  # nobody seals any more
        watched.kill(name)
    watched.until("a statement that no seal has", lambda: max(_stated(messages), default=0) >= watched.sealed_rounds())
    watched.kill(ALONE)
    _copy(backup, folder.signed)
    devnet.may_end = {ALONE}
    for _ in range(2):  # a service starts again what ended
        devnet.log(ALONE).unlink()
        devnet.start_node(ALONE)
        watched.until("its end", lambda: devnet.has_ended(ALONE))
        assert "works elsewhere too" in devnet.log(ALONE).read_text()
    assert _signed(folder.signed, account) == before


def _copy(database: Path, to: Path) -> None:
    """What it has now, and nothing else."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def _stated(messages: Path) -> list[int]:
    """The rounds of the contributions in a mailbox."""
    found = [wire.decode(data) for data in unpack(messages.read_bytes())]
    contributions = [one for one in found if isinstance(one, wire.ContributionMessage)]
    return [SignedContribution.decode(one.statement).contribution.round for one in contributions]


def _signed(database: Path, account: str) -> Entries:
    with closing(SignedStatements(database, account)) as found:
        return found.entries()


def _is_found_honest(devnet: _Net, account: str) -> bool:
    """By others, who train its drawn work again from what its mailbox has."""
    said = [line for name in ("node-0", "node-1") for line in devnet.log(name).read_text().splitlines()]
    return any("verdict finding=honest" in line and f"account={account}" in line for line in said)
