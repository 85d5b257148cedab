"""What the contracts say themselves, against what was read of their events: so it shows where a chain node left some
out, as one that answers with nothing for old blocks.

A run has to be as its heads, slots and members are there, and runs and the registry's events as many as are counted
there. Both are the word of one chain node: one that lies in its state as in its logs is found out by another alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from dlx.ledger.bindings import Interface
from dlx.ledger.errors import EventsLeftOut, LedgerError, LedgerUnavailable, RpcError
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.index.log_reader import Unsettled, insist
from dlx.ledger.rpc.endpoint import CHANCE
from dlx.ledger.rpc.failover import LAG
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.view.node_registry import NodeTable
from dlx.ledger.view.run_view import RunView

_MEMBERS = 64  # of whom is asked at once; of more so many by chance

Check = Callable[[RpcClient], str | None]  # what is wrong with what was read, by a chain node's contracts
Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Claim:
    """What the events give: that a view of a contract answers with these outputs."""

    about: str
    contract: str
    function: str
    args: tuple[Any, ...]
    outputs: dict[str, Any]  # by name; of a struct the first fields


class Comparison:
    """When what a follower has read has to be as the contracts say themselves, and what follows where it is not."""

    def __init__(self) -> None:
        self._block: int | None = None  # up to which all agrees with the contracts, or was shown by proven blooms
        self._failed = False  # the last time

    def is_due(self, index: EventIndex, block: int) -> bool:
        """Whether to compare at a block. Few blocks that came one by one since the last time show by themselves what
        they have; where they do not, so many are let pass."""
        if self._block is None or block > self._block + LAG:
            return True
        if index.unproven <= self._block:
            self._block = block
        return False

    def void(self) -> None:
        """The next one is due."""
        self._block = None

    def passed(self, block: int) -> None:
        self._block, self._failed = block, False

    def failed(self, index: EventIndex, rpc: RpcClient) -> None:
        """The first time a reorg may have done it. From the second on all are read again, from another chain node where
        there is one."""
        if self._failed:
            index.forget()
            rpc.rest()
        self._block, self._failed = None, True


def read_all(index: EventIndex, rpc: RpcClient, progress: Progress = None) -> None:
    """`EventIndex.sync`, after which the index has as many runs and events of the registry as the contracts count.

    Where it was compared before, few blocks are not worth another request. Raises as `sync`, and EventsLeftOut.
    """
    before, tip = index.tip, index.sync(rpc, progress)
    if tip.block <= index.counted + LAG:
        return
    is_old = before is None or tip.block > before.block + LAG

    def check(node: RpcClient) -> str | None:
        return _miscounted_now(node, index) or (_counted_elsewhere(rpc, index) if is_old else None)

    make_whole(index, rpc, check, "events", progress)
    index.counted = tip.block if index.tip is None else index.tip.block


def make_whole(index: EventIndex, rpc: RpcClient, check: Check, what: str, progress: Progress = None) -> None:
    """Leaves an index in which `check` finds nothing wrong. Where something stays wrong all is read anew, from each URL
    until what one tells fits its contracts: that one is asked first then. `what` says which events are told of.

    Raises LedgerUnavailable, and EventsLeftOut where none is left. Then nothing is kept, so the next one reads all.
    """
    for left in (True, False):  # a reorg just then looks the same, once
        try:
            if check(rpc) is None:
                return
        except Unsettled:
            if not left:
                raise
        if left:
            index.sync(rpc, progress)
    first, faults = rpc.name, []
    for node in sorted(rpc.each(), key=lambda node: node.name == first):
        index.drop()
        try:
            index.sync(node, progress)
            about = check(node)
        except LedgerUnavailable as error:
            about = str(error)
        if about is None:
            for _ in rpc.each():
                if rpc.name != node.name:
                    rpc.rest()
            return
        faults.append(f"the chain node at {node.name} left {what} out: {about}")
    index.drop()
    raise EventsLeftOut(f"{'; '.join(faults)}; name another with --rpc-url")


def miscounted(rpc: RpcClient, index: EventIndex, block: int) -> str | None:
    """What the index has more or less of than the contracts count at a block; None where it has as many.

    Raises LedgerError where the chain node does not say.
    """
    contracts = index.contracts
    counters = (
        ("runs", "TrainingLedger", contracts.ledger, "runs"),
        ("events of the registry", "NodeRegistry", contracts.registry, "changes"),
    )
    data = [_interface(contract).call_data(function).hex() for _, contract, _, function in counters]
    calls = [{"to": place, "data": "0x" + text} for (_, _, place, _), text in zip(counters, data, strict=True)]
    answers = list(rpc.batch("eth_call", [(call, hex(block)) for call in calls]))
    for (what, contract, _, function), answer, found in zip(counters, answers, index.counts(block), strict=True):
        (counted,) = _interface(contract).answer(function, answer)
        if found != counted:
            return f"{found} of {counted} {what} up to block {block}, as the contracts at {rpc.name} count them"
    return None


def _miscounted_now(rpc: RpcClient, index: EventIndex) -> str | None:
    """At the index's last block. Raises LedgerUnavailable."""
    tip = index.tip
    if tip is None:
        raise Unsettled("another process reads all events anew")
    try:
        return insist(lambda: (miscounted(rpc, index, tip.block),), f"its counts of block {tip.block}")[0]
    except LedgerUnavailable:
        raise
    except LedgerError as error:  # no counts at all
        return str(error)


def _counted_elsewhere(rpc: RpcClient, index: EventIndex) -> str | None:
    """What a chain node at another URL counts otherwise, a few blocks before the last, as it may be late: two that
    disagree cannot both be right. Who is silent is passed over."""
    several, tip = rpc.each(), index.tip
    if len(several) < 2 or tip is None:
        return None
    block = max(index.contracts.since, tip.block - LAG)
    for node in several:
        with suppress(LedgerError):
            if about := miscounted(node.impatient(), index, block):
                return about
    return None


def left_out(rpc: RpcClient, contracts: Contracts, view: RunView, nodes: NodeTable, block: int) -> str | None:
    """What the contracts have otherwise at a block than the events up to it give; None where they agree, or the chain
    node does not say.

    Compared are the heads, which seals make, which slots are held, and of members their slots, what they were asked,
    and their peer ids. Raises LedgerUnavailable.
    """
    return disagreement(rpc, contracts, [*stage_claims(view), *_member_claims(view, nodes)], block)


def disagreement(rpc: RpcClient, contracts: Contracts, claims: Sequence[Claim], block: int) -> str | None:
    """The first of the claims that does not hold at a block; None where all do, or the chain node does not say.

    Raises LedgerUnavailable.
    """
    places = {"TrainingLedger": contracts.ledger, "NodeRegistry": contracts.registry}
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


def incomplete(chain_node: str, events: str, why: str) -> str:
    """What is said of a chain node that left events out, or made some up, to who reads on."""
    return (
        f"the chain node at {chain_node} left {events} out: {why}; all are read again, and if this lasts, name another "
        "with --rpc-url"
    )


def stage_claims(view: RunView) -> Iterator[Claim]:
    """That the contracts have a run's heads and the slots that are held."""
    run, ledger = view.run, "TrainingLedger"
    if not view.created:
        yield Claim("the run", ledger, "head", (run, 0), {"head": None})  # which is refused
        return
    for stage in range(view.config.stages):
        yield Claim(f"the head of stage {stage}", ledger, "head", (run, stage), {"head": view.head(stage)})
        slots = {"activity": (view.stage(stage).slots,)}
        yield Claim(f"the slots of stage {stage}", ledger, "stageOf", (run, stage), slots)


def _member_claims(view: RunView, nodes: NodeTable) -> Iterator[Claim]:
    members = list(view.members())
    for account in members if len(members) <= _MEMBERS else CHANCE.sample(members, _MEMBERS):
        member, node = view.member(account), nodes.nodes.get(account)
        asked = {"holds": True, "replica": member.replica, "stage": member.stage, "asked": member.asked.value}
        yield Claim(f"member {account}", "TrainingLedger", "memberOf", (view.run, account), asked)
        peer_id = {"peerIdOf": b"" if node is None else node.peer_id}
        yield Claim(f"the node of {account}", "NodeRegistry", "peerIdOf", (account,), peer_id)


def _beginning(said: Any, wanted: Any) -> Any:
    return said[: len(wanted)] if isinstance(wanted, tuple) else said


@cache
def _interface(contract: str) -> Interface:
    return Interface(contract)
