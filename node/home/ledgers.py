"""Opens the ledger a folder's settings name; where that is the folder's own embedded chain, starts it if need be."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from coincurve import PrivateKey

from dlx.ground import durable, machine
from dlx.ground.forking import redirect
from dlx.ground.forks import LOAD_SECONDS
from dlx.ledger.abi import checksum
from dlx.node.home import extras
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure, NotReady, UsageFailure
from dlx.node.home.program import line
from dlx.node.home.settings import Settings

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.index.event_index import EventIndex
    from dlx.ledger.transactions.fees import Limits

_OWN_SECONDS = 120.0  # for an answer of the folder's own chain: there is no other to ask, and we made it wait
_WORTH_SAYING = 1000  # blocks still to be read
_CHAIN_STOP_SECONDS = 15.0


@contextmanager
def open_ledger(settings: Settings, datadir: DataDir, key: bytes | None = None) -> Iterator[LedgerClient]:
    """A connected client; with `key` (32 bytes) it can also send transactions.

    Raises NotReady for a chain node that is silent or has no code at the ledger's address, UsageFailure for a wrong
    chain id, WrongLedger for other contracts.
    """
    from dlx.ledger.errors import LedgerUnavailable

    with reachable_chain(settings, datadir) as here:
        if settings.ledger and _is_own_chain(settings, datadir):
            here = _patient(here)
        client = ledger_client(here, datadir, key, asks_again=False)
        _check_chain(here)
        try:
            client.connect()
        except LedgerUnavailable as error:
            raise NotReady(f"{error}; check --ledger, or try again later") from None
        if key is not None:
            ask_first_funds(here, client.account)
        yield client


@contextmanager
def reachable_chain(settings: Settings, datadir: DataDir) -> Iterator[Settings]:
    """The settings with the URL where their chain answers: a folder's own embedded chain that does not run is started
    for as long as this lasts, and its answers are waited for. Raises UsageFailure for one with another chain id, and
    where another chain answers."""
    is_own = bool(settings.ledger) and _is_own_chain(settings, datadir)
    if is_own and not _serves(settings.rpc_url[0], settings):
        with _own_chain(datadir, settings) as rpc_url:
            yield _patient(replace(settings, rpc_url=(rpc_url,)))
        return
    if is_own:
        _check_is_the_folders(datadir.chain, _patient(settings))
    yield settings


def _patient(settings: Settings) -> Settings:
    return replace(settings, rpc_timeout=max(settings.rpc_timeout, _OWN_SECONDS))


def ledger_client(
    settings: Settings, datadir: DataDir, key: bytes | None = None, asks_again: bool = True
) -> LedgerClient:
    """A client that has asked the chain nothing yet, for a node that starts before its chain answers. Its first call
    checks the chain, and raises LedgerUnavailable, or WrongLedger for another chain id or other contracts.
    `asks_again` as in LedgerClient."""
    from dlx.ledger.client import LedgerClient

    if not settings.ledger:
        raise UsageFailure(
            "no ledger is set: give --ledger ADDRESS (`chain` and `deploy` print it), "
            f"or run `{line('config', 'set', 'ledger', 'ADDRESS', folder=datadir.root)}`"
        )
    address = checksum(bytes.fromhex(settings.ledger[2:]))
    outbox = datadir.outbox if key else None
    folder = index_folder(datadir)
    chain_id, limits = settings.chain_id, limits_of(settings)
    return LedgerClient(
        settings.rpc_url, address, key, outbox, chain_id=chain_id, folder=folder, limits=limits,
        rpc_timeout=settings.rpc_timeout, asks_again=asks_again,
    )  # fmt: skip


def limits_of(settings: Settings) -> Limits:
    """What transactions may cost. Signed for the id of embedded chains they are worth nothing on any other."""
    from dlx.ledger.transactions.fees import ETH, GWEI, Limits

    free = settings.daily_budget == 0 or settings.chain_id == Settings().chain_id
    return Limits(
        max_fee=int(Decimal(str(settings.max_fee)) * GWEI),
        max_tip=int(Decimal(str(settings.max_tip)) * GWEI),
        budget=None if free else int(Decimal(str(settings.daily_budget)) * ETH),
    )


def index_folder(datadir: DataDir | None) -> Path | None:
    """Where the index of events is kept: in the folder's state, else in the user's cache folder;
    None where neither can be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dlx-node"
    for place in (datadir.state, cache) if datadir is not None and datadir.root.is_dir() else (cache,):
        try:
            folder = machine.expand(place)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, machine.Homeless):
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def ask_first_funds(settings: Settings, account: str) -> None:
    """Has the faucet of an embedded chain pay an account that has nothing; other chains are not asked."""
    from dlx.ledger.deployment import fund
    from dlx.ledger.rpc.rpc_client import RpcClient

    rpc = RpcClient(settings.rpc_url, settings.rpc_timeout, chain_id=settings.chain_id)
    is_embedded = str(rpc.call("web3_clientVersion")).startswith("dlx-chain/")
    if is_embedded and rpc.number("eth_getBalance", account, "latest") == 0:
        fund(settings.rpc_url, account, settings.chain_id, _patient(settings).rpc_timeout)


@contextmanager
def open_index(client: LedgerClient) -> Iterator[EventIndex]:
    """All events of the client's ledger up to now; only blocks that nobody has read before are asked for."""
    with client.events(_show_progress) as index:
        if index.trouble is not None:
            sys.stderr.write(f"dlx-node: {index.trouble}; the ledger was read from its first block\n")
        yield index


def deploy_contracts(settings: Settings, key: bytes, outbox: Path | None = None) -> dict[str, Any]:
    """Deploy the contracts from the account of `key`: {"rpc_url", "chain_id", "registry", "ledger", "campaigns",
    "block"}, the last being that of the first of them."""
    from dlx.ledger.deployment import deploy
    from dlx.ledger.keys import account_of

    _check_chain(settings)
    ask_first_funds(settings, account_of(key))
    found = deploy(
        settings.rpc_url, key, outbox, limits=limits_of(settings), chain_id=settings.chain_id,
        rpc_timeout=settings.rpc_timeout,
    )  # fmt: skip
    return {
        "rpc_url": " ".join(settings.rpc_url),
        "chain_id": settings.chain_id,
        "registry": found.registry,
        "ledger": found.ledger,
        "campaigns": found.campaigns,
        "block": found.since,
    }


def deploy_embedded(datadir: DataDir, rpc_url: str, chain_id: int) -> dict[str, Any]:
    """Deploy on the folder's embedded chain, which must be running, unless done before; record it in contracts.json."""
    settings = _patient(Settings(rpc_url=(rpc_url,), chain_id=chain_id, daily_budget=0))
    known = read_contracts(datadir)
    if known and _serves(rpc_url, replace(settings, ledger=known["ledger"])):
        found = {**known, "rpc_url": rpc_url}
    else:
        key = PrivateKey().secret  # for this once: the contracts know no owner
        found = deploy_contracts(settings, key)
    durable.write_bytes(datadir.contracts, json.dumps(found, indent=2).encode() + b"\n")
    return found


def read_contracts(datadir: DataDir) -> dict[str, Any] | None:
    """What `dlx-node chain` wrote about the folder's embedded chain: rpc_url, chain_id, registry, ledger, campaigns,
    block."""
    try:
        return json.loads(datadir.contracts.read_text())
    except FileNotFoundError:
        return None


def _show_progress(block: int, last: int) -> None:
    if last - block >= _WORTH_SAYING:
        sys.stderr.write(f"dlx-node: reading the ledger, block {block:,} of {last:,}\n")


def _check_chain(settings: Settings) -> None:
    """Raise NotReady unless an endpoint answers, soon, with the chain id, UsageFailure where all have others."""
    from dlx.ledger.errors import LedgerUnavailable, WrongLedger
    from dlx.ledger.rpc.rpc_client import RpcClient

    try:
        RpcClient(settings.rpc_url, settings.rpc_timeout, chain_id=settings.chain_id).impatient().chain_id()
    except LedgerUnavailable as error:
        raise NotReady(f"{error}; start `chain` there, or check --rpc-url") from None
    except WrongLedger as error:
        raise UsageFailure(f"{error}: check --rpc-url or --chain-id") from None


def _is_own_chain(settings: Settings, datadir: DataDir) -> bool:
    """Raises UsageFailure for its own with another chain id."""
    own = read_contracts(datadir)
    if own is None or ((own["rpc_url"],), own["ledger"]) != (settings.rpc_url, settings.ledger):
        return False
    check_chain_id(datadir, settings.chain_id)
    return True


def check_chain_id(datadir: DataDir, chain_id: int) -> None:
    """Raises UsageFailure where the folder has an embedded chain with another id."""
    own = read_contracts(datadir)
    if own is not None and own["chain_id"] != chain_id:
        raise UsageFailure(f"{datadir.chain} is on chain {own['chain_id']}, not {chain_id}: check --chain-id")


def _check_is_the_folders(chain: Path, settings: Settings) -> None:
    """Raises UsageFailure where what answers is not the chain in the folder, as where a copy of it listens on its port:
    it has to have the newest block that is there."""
    from dlx.ledger.chain import ChainError
    from dlx.ledger.chain.on_disk import newest_block
    from dlx.ledger.rpc.rpc_client import RpcClient

    rpc_url = settings.rpc_url[0]
    rpc = RpcClient(rpc_url, settings.rpc_timeout)
    try:
        number, digest = newest_block(chain)
    except ChainError as error:
        raise UsageFailure(f"whether {rpc_url} serves the chain in {chain} cannot be told: {error}") from None
    found = rpc.header(number)
    if found is None or found.hash != digest:
        there = "no such block" if found is None else f"0x{found.hash.hex()}"
        raise UsageFailure(
            f"{rpc_url} does not serve the chain in {chain}: its block {number} is 0x{digest.hex()}, {there} there; "
            "end what listens there, or name another --rpc-url"
        )


def _serves(rpc_url: str, settings: Settings) -> bool:
    """Whether our ledger is there: another chain may by now listen on the port that this one had. Where nobody listens
    that is said at once, and who listens has as long as the folder's own chain: a second one would not help."""
    from dlx.ledger.errors import LedgerError
    from dlx.ledger.rpc.rpc_client import RpcClient

    rpc = RpcClient(rpc_url, _patient(settings).rpc_timeout, patience=0)
    try:
        found = rpc.several(("eth_chainId", ()), ("eth_getCode", (settings.ledger, "latest")))
    except LedgerError:
        return False
    chain_id, code = found
    return chain_id == hex(settings.chain_id) and isinstance(code, str) and code != "0x"


@contextmanager
def _own_chain(datadir: DataDir, settings: Settings) -> Iterator[str]:
    """The URL of the folder's chain, served by a child process until this ends: where it answered before, so that other
    commands find it, else on a free loopback port. What it says goes into a log."""
    extras.require("chain")
    directory, log = datadir.chain, datadir.logs / "chain.log"
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    port, chain_id = urlsplit(settings.rpc_url[0]).port or 0, settings.chain_id
    child = spawn.Process(target=_serve, args=(directory, chain_id, port, log, theirs), name="dlx-chain", daemon=True)
    child.start()
    theirs.close()
    try:
        try:
            if not ours.poll(LOAD_SECONDS):
                late = f"did not start within {LOAD_SECONDS:.0f} s: see {log}"
                raise NotReady(f"the embedded chain in {directory} {late}")
            kind, text = ours.recv()
        except EOFError:
            raise Failure(f"the embedded chain in {directory} ended while starting: see {log}") from None
        if kind != "url":
            raise Failure(f"the embedded chain in {directory} does not start: {text}")
        yield text
    finally:
        ours.close()
        child.join(_CHAIN_STOP_SECONDS)
        if child.is_alive():
            child.kill()
            child.join()


def _serve(directory: Path, chain_id: int, wanted: int, log: Path, parent: Connection) -> None:
    """The child: serves until the parent closes its end of the pipe, or dies."""
    from dlx.ledger.chain import ChainError, serve

    os.setpgid(0, 0)  # Ctrl-C is the parent's: it still needs us while it ends
    log.parent.mkdir(exist_ok=True, mode=0o700)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    redirect(said, said)
    stop = threading.Event()

    def watch() -> None:
        try:
            parent.recv()
        except (EOFError, OSError):
            stop.set()

    def ready(url: str) -> None:
        parent.send(("url", url))
        threading.Thread(target=watch, daemon=True).start()

    for port in (wanted, 0):
        try:
            return serve(directory, port=port, chain_id=chain_id, on_ready=ready, stop=stop)
        except ChainError as error:
            refused = str(error)
    parent.send(("error", refused))
