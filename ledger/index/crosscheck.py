"""What the contracts say themselves of a run, against what its events give: so it shows where a chain node left some
out."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from dlx.ledger.bindings import Interface
from dlx.ledger.errors import LedgerError, RpcError
from dlx.ledger.index.event_index import Contracts
from dlx.ledger.rpc.endpoint import CHANCE
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_view import RunView

_MEMBERS = 64  # of whom is asked at once; of more so many by chance


@dataclass(frozen=True)
class _Claim:
    """What the events give: that a view of a contract answers with these outputs."""

    about: str
    contract: str
    function: str
    args: tuple[Any, ...]
    outputs: dict[str, Any]  # by name; of a struct the first fields


def left_out(rpc: RpcClient, contracts: Contracts, view: RunView, nodes: NodeTable, block: int) -> str | None:
    """What the contracts have otherwise at a block than the events up to it give; None where they agree, or the chain
    node does not say.

    Compared are the heads, which seals make, which slots are held, and of members their slots, what they were asked,
    and their peer ids. Raises LedgerUnavailable.
    """
    places = {"TrainingLedger": contracts.ledger, "NodeRegistry": contracts.registry}
    claims = list(_claims(view, nodes))
    data = [_interface(claim.contract).call_data(claim.function, *claim.args).hex() for claim in claims]
    calls = [{"to": places[claim.contract], "data": "0x" + text} for claim, text in zip(claims, data, strict=True)]
    try:
        answers = list(rpc.batch("eth_call", [(call, hex(block)) for call in calls]))
    except RpcError:  # it has not got that far; or the ledger has no such run
        return None
    for claim, answer in zip(claims, answers, strict=True):
        try:
            said = _interface(claim.contract).named_answer(claim.function, answer)
        except LedgerError:
            return None
        if any(_beginning(said[name], value) != value for name, value in claim.outputs.items()):
            return f"the ledger says otherwise of {claim.about}"
    return None


def incomplete(chain_node: str, run: bytes, why: str) -> str:
    """What is said of a chain node that left events out, or made some up."""
    return (
        f"the chain node at {chain_node} left events of run 0x{run.hex()} out: {why}; all are read again, and if this "
        "lasts, name another with --rpc-url"
    )


def _claims(view: RunView, nodes: NodeTable) -> Iterator[_Claim]:
    run, ledger = view.run, "TrainingLedger"
    if not view.created:
        yield _Claim("the run", ledger, "head", (run, 0), {"head": None})  # which is refused
        return
    for stage in range(view.config.stages):
        yield _Claim(f"the head of stage {stage}", ledger, "head", (run, stage), {"head": view.head(stage)})
        seated = {"activity": (view.stage(stage).seated,)}
        yield _Claim(f"the slots of stage {stage}", ledger, "stageOf", (run, stage), seated)
    members = list(view.members())
    for account in members if len(members) <= _MEMBERS else CHANCE.sample(members, _MEMBERS):
        member, node = view.member(account), nodes.nodes.get(account)
        asked = {"holds": True, "replica": member.replica, "stage": member.stage, "asked": member.asked.value}
        yield _Claim(f"member {account}", ledger, "memberOf", (run, account), asked)
        peer_id = {"peerIdOf": b"" if node is None else node.peer_id}
        yield _Claim(f"the node of {account}", "NodeRegistry", "peerIdOf", (account,), peer_id)


def _beginning(said: Any, wanted: Any) -> Any:
    return said[: len(wanted)] if isinstance(wanted, tuple) else said


@cache
def _interface(contract: str) -> Interface:
    return Interface(contract)
