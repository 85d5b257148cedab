"""Whose word an audit takes for the chain: its user's, for the hash of one block, or that of the chain nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import Contradiction, LedgerError
from dlx.ledger.proof.history import History, Pin, Proven
from dlx.ledger.rpc.failover import LAG
from dlx.ledger.rpc.headers import Header
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.node.audit.report import Report

LEVEL = 1

_OLD = 3600.0  # seconds


def name_source(report: Report, client: LedgerClient, history: History) -> None:
    """The report's first line, and the head in its facts."""
    head = history.head
    digest = f"0x{head.hash.hex()}"
    report.facts["head"] = f"block {head.block}, {digest}, {_date(head.time)}, {_age(head.time)}"
    if isinstance(history, Proven):
        proof = f"{history.headers} headers, {history.roots} receipt roots"
        report.source = f"proven to block {head.block} {digest}: {proof}"
        report.add(LEVEL, "chain node", "PASS", f"block {head.block} proves what it says: {proof}", hash=head.hash)
    else:
        report.source = f"trusting {_names(client)} for the chain; pin with --head {Pin(head.block, head.hash)}"


def check_chain_nodes(report: Report, client: LedgerClient, history: History, confirmations: int | None) -> None:
    """Do all chain nodes show the same chain, and one that goes on? Nothing to ask where it is proven."""
    if isinstance(history, Proven):
        report.cannot_establish(
            f"that block {history.head.block} is on the chain: that is the word of who gave its hash"
        )
        return
    if report.facts.get("state") != "complete" and time.time() - history.head.time > _OLD:
        what = f"block {history.head.block} is from {_age(history.head.time)}, and the run is not complete"
        detail = f"{what}: the chain node may show an old head; --head names one that you trust"
        report.add(LEVEL, "head", "WARN", detail, hash=history.head.hash)
    report.cannot_establish(
        "that the blocks have just these events, and which work was drawn: only --head proves that, one chain node was "
        "believed"
    )
    each = client.rpc.each()
    if len(each) == 1:
        report.cannot_establish("that other chain nodes show the same chain: name them with --rpc-url, or pin --head")
    else:
        _compare(report, each, LAG if confirmations is None else confirmations)


def drawing_hashes(report: Report, client: LedgerClient, history: History) -> Callable[[int], bytes | None]:
    """The hash of a block that draws, by its number; None for one that is still to come. Where several chain nodes are
    named, it is what all of them say: which work is drawn follows from it, and the first of them could choose it.

    Asked for a block, it raises Contradiction where they disagree, and warns of those that do not say.
    """
    each = client.rpc.each()
    if isinstance(history, Proven) or len(each) == 1:
        return history.block_hash
    silent = set[str]()

    def agreed(number: int) -> bytes | None:
        if (told := history.block_hash(number)) is None:
            return None
        for rpc in each:
            if rpc.name in silent:
                continue
            if (header := _header(report, rpc, number)) is None:
                silent.add(rpc.name)
            elif header.hash != told:
                raise Contradiction(_disagreement(number, {"the chain node asked first": told, rpc.name: header.hash}))
        return told

    return agreed


def agreed_hash(each: Sequence[RpcClient], number: int) -> bytes | None:
    """The hash that all of these chain nodes give of a block; None while one of them has no such block.

    Raises Contradiction where they disagree, LedgerUnavailable where one is silent.
    """
    found = {rpc.name: header.hash for rpc in each if (header := rpc.impatient().header(number)) is not None}
    if len(set(found.values())) > 1:
        raise Contradiction(_disagreement(number, found))
    return next(iter(found.values())) if len(found) == len(each) else None


def _disagreement(number: int, found: Mapping[str, bytes]) -> str:
    said = ", ".join(f"0x{digest.hex()} by {name}" for name, digest in found.items())
    return f"block {number}, which draws work, is {said}: nothing that follows from it is believed"


def _compare(report: Report, each: tuple[RpcClient, ...], confirmations: int) -> None:
    """At the newest block that all have and no reorg should take back."""
    heads = {rpc: _header(report, rpc, "latest") for rpc in each}
    reached = {rpc: head.number for rpc, head in heads.items() if head is not None}
    if not reached:
        return
    common = max(0, min(reached.values()) - confirmations)
    found = [(rpc.name, header) for rpc in reached if (header := _header(report, rpc, common)) is not None]
    for name, header in found[1:]:
        first, expected = found[0]
        if header.hash == expected.hash:
            detail = f"{first} and {name} have the same block {common}"
            report.add(LEVEL, "chain nodes", "PASS", detail, hash=header.hash)
        else:
            detail = f"block {common} is 0x{expected.hash.hex()} at {first} and 0x{header.hash.hex()} at {name}"
            report.add(LEVEL, "chain nodes", "FAIL", detail)


def _header(report: Report, rpc: RpcClient, block: int | str) -> Header | None:
    """None, and a warning, where the chain node gives none."""
    try:
        header = rpc.impatient().header(block)
        if header is not None:
            return header
        reason = f"the chain node at {rpc.name} has no block {block}"
    except LedgerError as error:
        reason = str(error)
    report.add(LEVEL, "chain nodes", "WARN", f"not compared: {reason}")
    return None


def _names(client: LedgerClient) -> str:
    return " and ".join(rpc.name for rpc in client.rpc.each())


def _date(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return f"second {seconds}"


def _age(seconds: int) -> str:
    age = int(time.time()) - seconds
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if age >= 2 * size:
            return f"{age // size} {unit} ago"
    return f"{max(0, age)} seconds ago"
