"""A ledger's beginning: its contracts, and the first funds on an embedded chain. Synchronous, like the client."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlx.ledger.abi import checksum
from dlx.ledger.bindings import Interface
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.index.event_index import Contracts
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.fees import Limits
from dlx.ledger.transactions.sender import Sender, Unconfirmed

_GAS_DEPLOY = 6_000_000


def deploy(
    rpc_url: str | Sequence[str],
    key: bytes,
    outbox: Path | None = None,
    timeout: float = 60.0,
    limits: Limits | None = None,
    chain_id: int | None = None,
) -> Contracts:
    """Creates both contracts with the account's funds; `chain_id` as in RpcClient."""
    rpc = RpcClient(rpc_url, chain_id=chain_id)
    sender = Sender(rpc, rpc.chain_id(), key, outbox, limits)

    def create(name: str, *args: Any) -> tuple[str, int]:
        data = Interface(name).creation_data(*args)
        pending = sender.send(None, data, _GAS_DEPLOY, check=lambda block: None)
        receipt = sender.wait(pending, timeout)
        if int(receipt["status"], 16) != 1:
            raise LedgerError(f"creating {name} failed: gas used {int(receipt['gasUsed'], 16)} of {pending.gas}")
        return checksum(bytes.fromhex(receipt["contractAddress"][2:])), int(receipt["blockNumber"], 16)

    registry, block = create("NodeRegistry")
    return Contracts(create("TrainingLedger", registry)[0], registry, block)


def fund(rpc_url: str | Sequence[str], account: str, timeout: float = 30.0, chain_id: int | None = None) -> None:
    """Asks the embedded chain's faucet for the account's first funds and waits for them; `chain_id` as in RpcClient.

    Raises LedgerError where the chain has no faucet.
    """
    rpc = RpcClient(rpc_url, chain_id=chain_id)
    try:
        granted = rpc.call("dlx_faucet", account)
    except RpcError as error:
        raise LedgerError(f"{rpc.name} gives no funds ({error.message}): send some to {account}") from None
    deadline = time.monotonic() + timeout
    while granted is not None and rpc.call("eth_getTransactionReceipt", granted) is None:
        if time.monotonic() > deadline:
            raise Unconfirmed(f"the faucet's transaction {granted} was not mined within {timeout:.0f} s")
        time.sleep(0.1)
