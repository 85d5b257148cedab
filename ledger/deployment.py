"""A ledger's beginning: its contracts, and the first funds on an embedded chain. Synchronous, like the client."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rlp
from eth_hash.auto import keccak

from dlx.ledger.abi import ZERO_ACCOUNT, account_bytes, checksum
from dlx.ledger.bindings import Interface
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.index.event_index import Contracts
from dlx.ledger.parts import PARTS
from dlx.ledger.rpc.rpc_client import TIMEOUT, RpcClient
from dlx.ledger.transactions.fees import Limits
from dlx.ledger.transactions.sender import Sender, Unconfirmed

_GAS_DEPLOY = 6_000_000
_MINED = 60.0  # s for a transaction
# The first one takes and links nothing.
_ORDER = ("NodeRegistry", "Invitations", "OuterProofs", "Bonds", "TrainingLedger", "Campaigns")


@dataclass(frozen=True)
class Deployment(Contracts):
    """And what pays for work on this ledger, which the ledger does not name."""

    campaigns: str = ""


def deploy(
    rpc_url: str | Sequence[str],
    key: bytes,
    outbox: Path | None = None,
    limits: Limits | None = None,
    chain_id: int | None = None,
    rpc_timeout: float = TIMEOUT,
) -> Deployment:
    """Creates all contracts of a ledger with the account's funds; `rpc_timeout` and `chain_id` as in RpcClient. Each
    contract has a minute to be mined, or as long as an answer has.

    Where each will be follows from the account's nonce, so that contracts can name one another. Raises LedgerError
    where another transaction of the account came between them.
    """
    rpc = RpcClient(rpc_url, rpc_timeout, chain_id=chain_id)
    sender = Sender(rpc, rpc.chain_id(), key, outbox, limits)
    names = list(dict.fromkeys(each for name in _ORDER for each in _with_libraries(name)))
    places: dict[str, str] = {}
    since: int | None = None
    for index, name in enumerate(names):
        contract = Interface(name)
        data = contract.creation_data(*(_place(places, part) for part in contract.takes), libraries=places)
        pending = sender.send(None, data, _GAS_DEPLOY, check=lambda block: None)
        if not places:
            places = {one: _created(sender.account, pending.nonce + i) for i, one in enumerate(names)}
        receipt = sender.wait(pending, max(_MINED, rpc_timeout))
        if int(receipt["status"], 16) != 1:
            raise LedgerError(f"creating {name} failed: gas used {int(receipt['gasUsed'], 16)} of {pending.gas}")
        if checksum(bytes.fromhex(receipt["contractAddress"][2:])) != places[name]:
            raise LedgerError(
                f"another transaction of {sender.account} came before the {name} (contract {index + 1} of "
                f"{len(names)}): deploy again, with nothing else sending from this account"
            )
        since = int(receipt["blockNumber"], 16) if since is None else since
    assert since is not None
    return Deployment(places["TrainingLedger"], places["NodeRegistry"], since, places["Campaigns"])


def _with_libraries(name: str) -> list[str]:
    """The contract, after the libraries that it links."""
    return [*(each for library in Interface(name).libraries for each in _with_libraries(library)), name]


def _place(places: dict[str, str], part: str) -> str:
    """Where the contract is that a constructor takes; zero for one that this version does not have."""
    return places.get(PARTS.get(part, "TrainingLedger"), ZERO_ACCOUNT)


def _created(account: str, nonce: int) -> str:
    """Where a creation by the account's transaction of this nonce puts its contract."""
    return checksum(keccak(rlp.encode([account_bytes(account), nonce]))[12:])


def fund(rpc_url: str | Sequence[str], account: str, chain_id: int | None = None, rpc_timeout: float = TIMEOUT) -> None:
    """Asks the embedded chain's faucet for the account's first funds and waits for them, a minute or as long as for an
    answer; `rpc_timeout` and `chain_id` as in RpcClient.

    Raises LedgerError where the chain has no faucet.
    """
    rpc, timeout = RpcClient(rpc_url, rpc_timeout, chain_id=chain_id), max(_MINED, rpc_timeout)
    try:
        granted = rpc.call("dlx_faucet", account)
    except RpcError as error:
        raise LedgerError(f"{rpc.name} gives no funds ({error.message}): send some to {account}") from None
    deadline = time.monotonic() + timeout
    while granted is not None and rpc.call("eth_getTransactionReceipt", granted) is None:
        if time.monotonic() > deadline:
            raise Unconfirmed(f"the faucet's transaction {granted} was not mined within {timeout:.0f} s")
        time.sleep(0.1)
