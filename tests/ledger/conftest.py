"""Chains to test the ledger's client against: scripted, embedded, and anvil where it is installed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_account.typed_transactions import TypedTransaction
from eth_hash.auto import keccak
from hexbytes import HexBytes
from web3.contract import Contract

from dlx.ground.backoff import Backoff
from dlx.ledger.client import LedgerClient
from dlx.ledger.deployment import deploy, fund
from dlx.ledger.events import RunCreated, event_topic
from dlx.ledger.keys import account_of
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.sender import Sender
from tests.ledger.chain_support import Chain, serving
from tests.ledger.sender_support import reopen
from tests.patience import PATIENCE
from tests.ports import lasting_port

ROOT = Path(__file__).parents[2]


_RUNS, _CHANGES = ("0x" + keccak(name)[:4].hex() for name in (b"runs()", b"changes()"))
NEVER_AGAIN = Backoff(10 * PATIENCE, 10 * PATIENCE)  # in place of a back-off: who failed is not asked again


class FakeChain:
    """A chain node whose every answer the test decides. `faults` are raised or returned before the real answer."""

    url: str  # where it answers JSON-RPC

    def __init__(self) -> None:
        self.branch = "a"
        self.length = 1
        self.logs: dict[int, list[dict[str, Any]]] = {}
        self.pool: dict[str, tuple[str, int, str]] = {}  # hash -> (sender, nonce, raw)
        self.receipts: dict[str, dict[str, Any]] = {}
        self.counts: dict[str, int] = {}
        self.taken: dict[int, list[dict[str, str]]] = {}  # block -> its transactions
        self.base_fee = 7
        self.submitted: list[str] = []
        self.requests: list[str] = []
        self.exchanges: list[list[str]] = []  # the methods of each: more than one of a batch
        self.page_limit: int | None = None
        self.faults: list[Callable[[str, list[Any]], Any]] = []
        self._forks: dict[int, str] = {}
        self._counts_before: dict[int, dict[str, int]] = {}  # block -> the counts of the one before

    def block_hash(self, number: int) -> str:
        branch = self._forks.get(number, self.branch)
        return "0x" + keccak(f"{branch}{number}".encode()).hex()

    def mine(self, *logs: dict[str, Any]) -> int:
        """A block with these logs and every waiting transaction; its number."""
        number, self.length = self.length, self.length + 1
        self._forks[number] = self.branch
        self.logs[number] = list(logs)
        self.taken[number], self._counts_before[number] = [], dict(self.counts)
        for name, (sender, nonce, _) in sorted(self.pool.items(), key=lambda item: item[1][1]):
            if nonce == self.counts.get(sender, 0):
                self.counts[sender] = nonce + 1
                self.taken[number].append({"hash": name, "from": sender, "nonce": hex(nonce)})
                self.receipts[name] = {
                    "transactionHash": name, "status": "0x1", "blockNumber": hex(number),
                    "blockHash": self.block_hash(number), "logs": [],
                    "gasUsed": hex(50_000), "effectiveGasPrice": hex(self.base_fee + 1),
                }  # fmt: skip
        self.pool = {name: p for name, p in self.pool.items() if p[1] >= self.counts.get(p[0], 0)}
        return number

    def mine_another(self, sender: str) -> None:
        """A block with a transaction of this account that is none of the waiting ones."""
        nonce = self.counts.get(sender, 0)
        self.pool = {name: one for name, one in self.pool.items() if one[:2] != (sender, nonce)}
        self.pool["0x" + keccak(f"another {sender} {nonce}".encode()).hex()] = (sender, nonce, "")
        self.mine()

    def reorg(self, number: int, branch: str) -> None:
        """Drops block `number` and later; what is mined next belongs to another branch."""
        self.branch, self.length = branch, number
        for gone in [n for n in self._forks if n >= number]:
            del self._forks[gone]
            self.logs.pop(gone, None)
            self.taken.pop(gone, None)
            self._counts_before.pop(gone + 1, None)

    def answer(self, method: str, params: list[Any]) -> Any:
        self.requests.append(method)
        for fault in list(self.faults):
            found = fault(method, params)
            if found is not None:
                self.faults.remove(fault)
                return found
        return getattr(self, method)(*params)

    def eth_chainId(self) -> str:
        return hex(31337)

    def eth_call(self, call: dict[str, Any], tag: str) -> Any:
        """What the contracts count, and nothing else."""
        last = self.length - 1 if tag == "latest" else int(tag, 16)
        logs = [log for number, found in self.logs.items() if number <= last for log in found]
        ours = [log["topics"][0] for log in logs if log["address"] == call.get("to")]
        if call.get("data") == _RUNS:
            return "0x" + ours.count("0x" + event_topic(RunCreated).hex()).to_bytes(32, "big").hex()
        return "0x" + len(ours).to_bytes(32, "big").hex() if call.get("data") == _CHANGES else "0x"

    def eth_getBalance(self, account: str, tag: str) -> str:
        return hex(10**15)

    def eth_maxPriorityFeePerGas(self) -> str:
        return "0x1"

    def eth_getBlockByNumber(self, tag: str, full: bool) -> dict[str, Any] | None:
        number = self.length - 1 if tag == "latest" else int(tag, 16)
        if not 0 <= number < self.length:
            return None
        return {
            "number": hex(number),
            "hash": self.block_hash(number),
            "parentHash": self.block_hash(number - 1),
            "timestamp": hex(1000 + number),
            "baseFeePerGas": hex(self.base_fee),
            "transactions": self.taken.get(number, []) if full else [one["hash"] for one in self.taken.get(number, [])],
        }

    def eth_getBlockByHash(self, name: str, full: bool) -> dict[str, Any] | None:
        number = next((n for n in range(self.length) if self.block_hash(n) == name), None)
        return None if number is None else self.eth_getBlockByNumber(hex(number), full)

    def eth_getLogs(self, query: dict[str, Any]) -> Any:
        if "blockHash" in query:
            block = self.eth_getBlockByHash(query["blockHash"], False)
            if block is None:
                return {"error": {"code": -32000, "message": "unknown block"}}
            first = last = int(block["number"], 16)
        else:
            first, last = int(query["fromBlock"], 16), min(int(query["toBlock"], 16), self.length - 1)
        addresses = query["address"] if isinstance(query["address"], list) else [query["address"]]
        found = []
        for number in range(first, last + 1):
            for index, log in enumerate(self.logs.get(number, [])):
                wanted = query.get("topics", [])
                matches = all(w is None or w == t for w, t in zip(wanted, log["topics"], strict=False))
                if log["address"] in addresses and matches:
                    place = {"blockNumber": hex(number), "blockHash": self.block_hash(number), "logIndex": hex(index)}
                    found.append({**log, **place, "transactionHash": "0x" + "77" * 32})
        if self.page_limit is not None and len(found) > self.page_limit:
            return {"error": {"code": -32005, "message": "too many results"}}
        return found

    def eth_getTransactionCount(self, account: str, tag: str) -> str:
        counts = self.counts if tag in ("latest", "pending") else self._counts_before.get(int(tag, 16) + 1, self.counts)
        mined = counts.get(account, 0)
        while tag == "pending" and any(p[:2] == (account, mined) for p in self.pool.values()):
            mined += 1
        return hex(mined)

    def eth_getTransactionReceipt(self, name: str) -> dict[str, Any] | None:
        return self.receipts.get(name)

    def eth_sendRawTransaction(self, raw: str) -> Any:
        self.submitted.append(raw)
        name = "0x" + keccak(bytes.fromhex(raw[2:])).hex()
        sender = Account.recover_transaction(raw)
        fields = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
        nonce = fields["nonce"]
        if name in self.pool:
            return {"error": {"code": -32000, "message": "already known"}}
        if nonce < self.counts.get(sender, 0):
            return {"error": {"code": -32000, "message": "nonce too low"}}
        if fields["maxFeePerGas"] >= self.base_fee:
            self.pool[name] = (sender, nonce, raw)
        return name


@pytest.fixture
def fake_chain() -> Iterator[FakeChain]:
    """A FakeChain; its `url` answers JSON-RPC."""
    with _served() as chain:
        yield chain


@pytest.fixture
def rpc(fake_chain: FakeChain) -> RpcClient:
    """A client of the FakeChain."""
    return RpcClient(fake_chain.url, patience=PATIENCE)


@pytest.fixture
def second_chain() -> Iterator[FakeChain]:
    """Another, as behind the second URL of a client."""
    with _served() as chain:
        yield chain


@contextlib.contextmanager
def _served() -> Iterator[FakeChain]:
    chain = FakeChain()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one segment

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            batch = request if isinstance(request, list) else [request]
            with lock:
                chain.exchanges.append([one["method"] for one in batch])
                results = [chain.answer(one["method"], one["params"]) for one in batch]
            answers = [_answer(one, result) for one, result in zip(batch, results, strict=True)]
            body = b"[" + b",".join(answers) + b"]" if isinstance(request, list) else answers[0]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # clients that hang up are part of the test
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    chain.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield chain
    server.shutdown()
    server.server_close()
    thread.join()


def _answer(request: dict[str, Any], result: Any) -> bytes:
    if isinstance(result, bytes):
        return result
    answer = result if isinstance(result, dict) and "error" in result else {"result": result}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}).encode()


ANVIL = ROOT / "contracts/node_modules/.bin/anvil"
HARDHAT = ROOT / "contracts/node_modules/.bin/hardhat"
_SERVE = """
import sys
from pathlib import Path
from dlx.ledger.chain import serve
pace = {"block_time": 0.03, "empty_block_time": 0.06, "heartbeat": 0.06}
serve(Path(sys.argv[1]), port=int(sys.argv[2]), time_lapse=True, **pace)
"""


class World:
    """A chain process with both contracts, and accounts on it: client(0), client(1), ..."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.port = lasting_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._clients: dict[int, LedgerClient] = {}
        self.start()
        deployer = self.fund(key(1000))
        contracts = deploy(self.url, deployer)
        self.registry, self.ledger, self.campaigns = contracts.registry, contracts.ledger, contracts.campaigns

    def start(self) -> None:
        cwd, environment = ROOT, dict(os.environ)
        if self.kind == "anvil":
            options = ["--block-time", "0.2", "--hardfork", "cancun", "--port", str(self.port), "--silent"]
            options += ["--cache-path", str(self.folder / "anvil")]  # else its states stay in the home folder
            command = [str(ANVIL), *options]
        elif self.kind == "hardhat":
            options = ["--config", str(ROOT / "tests/ledger/hardhat.config.cjs"), "node", "--hostname", "127.0.0.1"]
            command = [str(HARDHAT), *options, "--port", str(self.port)]
            cwd = HARDHAT.parents[2]  # it must be installed where it runs
            environment |= {"HOME": str(self.folder), "HARDHAT_DISABLE_TELEMETRY_PROMPT": "true"}
        else:
            command = [sys.executable, "-c", _SERVE, str(self.folder / "chain"), str(self.port)]
        # A session of its own: anvil's command is a wrapper, and a signal must reach the binary as well.
        self.process = subprocess.Popen(
            command, cwd=cwd, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
        )
        RpcClient(self.url, patience=PATIENCE).call("eth_chainId")

    def stop(self, kill: bool = False) -> None:
        os.killpg(self.process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        self.process.wait(PATIENCE)

    def fund(self, secret: bytes) -> bytes:
        self.endow(account_of(secret))
        return secret

    def endow(self, account: str) -> None:
        if self.kind in ("anvil", "hardhat"):
            RpcClient(self.url).call(f"{self.kind}_setBalance", account, hex(10**20))
        else:
            fund(self.url, account)

    def client(self, index: int) -> LedgerClient:
        """A funded account's client."""
        if index not in self._clients:
            secret = self.fund(key(index))
            self._clients[index] = LedgerClient(self.url, self.ledger, secret, self.folder / "outbox")
        return self._clients[index]

    def members(self, indices: Iterable[int]) -> list[LedgerClient]:
        """Registered accounts' clients; their node keys are key(10_000 + index)."""

        def member(index: int) -> LedgerClient:
            client = self.client(index)
            if not client.read_registry("isRegistered", client.account)[0]:
                client.register(key(10_000 + index), [f"/ip4/127.0.0.1/tcp/{4000 + index}"])
            return client

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(member, indices))


def key(index: int) -> bytes:
    return keccak(b"test key %d" % index)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A served embedded chain, of the file that asks for it."""
    with serving(tmp_path_factory.mktemp("chain") / "data") as served:
        yield served


@pytest.fixture(scope="module")
def owner(chain: Chain) -> LocalAccount:
    """A funded account on `chain`."""
    return chain.account()


@pytest.fixture(scope="module")
def probe(chain: Chain, owner: LocalAccount) -> Contract:
    """A contract of the owner's on `chain`, for every kind of call."""
    return chain.deploy(owner)


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The embedded chain, mining fast: its clock runs ahead by a second per block."""
    world = World("embedded", tmp_path_factory.mktemp("embedded"))
    yield world
    world.stop()


@pytest.fixture(scope="session", params=["embedded", "anvil"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Each chain node there is."""
    if request.param == "embedded":
        yield request.getfixturevalue("embedded")
        return
    if not ANVIL.exists():
        pytest.skip("missing: anvil: npm ci in contracts/")
    world = World("anvil", tmp_path_factory.mktemp("anvil"))
    yield world
    world.stop(kill=True)


@pytest.fixture(scope="session", params=["embedded", "anvil", "hardhat"])
def any_chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Each chain node there is, hardhat's too; of its own, as it may be taken back."""
    for kind, program in (("anvil", ANVIL), ("hardhat", HARDHAT)):
        if request.param == kind and not program.exists():
            pytest.skip(f"missing: {kind}: npm ci in contracts/")
    world = World(request.param, tmp_path_factory.mktemp(request.param))
    yield world
    world.stop(kill=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that waits for nothing long."""
    monkeypatch.setattr("dlx.ledger.transactions.sender._POLL", 0.01)
    monkeypatch.setattr("dlx.ledger.transactions.sender._RESEND", 0.03)
    monkeypatch.setattr("dlx.ledger.transactions.sender._STUCK", 0.06)


@pytest.fixture
def sender(fake_chain: FakeChain, tmp_path: Path, quick: None) -> Sender:
    return reopen(fake_chain, tmp_path)
