"""Which work is drawn follows from a block's hash: several chain nodes have to agree about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ledger.errors import Contradiction, LedgerUnavailable
from dlx.node.audit.chain_trust import agreed_hash, drawing_hashes
from dlx.node.audit.report import Report

A, B = b"a" * 32, b"b" * 32


class Node:
    """A chain node with these blocks; with None it is silent."""

    def __init__(self, name: str, blocks: dict[int, bytes] | None) -> None:
        self.name, self._blocks = name, blocks

    def impatient(self) -> Node:
        return self

    def header(self, number: int) -> Any:
        if self._blocks is None:
            raise LedgerUnavailable(f"{self.name} is silent")
        return None if number not in self._blocks else SimpleNamespace(hash=self._blocks[number])


def _told(*nodes: Node) -> tuple[Report, Any]:
    report = Report(bytes(32))
    client: Any = SimpleNamespace(rpc=SimpleNamespace(each=lambda: nodes))
    history: Any = SimpleNamespace(block_hash={7: A}.get)
    return report, drawing_hashes(report, client, history)


def test_who_watches_takes_a_hash_that_all_give() -> None:
    nodes: list[Any] = [Node("one", {7: A}), Node("two", {7: A})]
    assert agreed_hash(nodes, 7) == A
    assert agreed_hash([*nodes, Node("late", {})], 7) is None
    with pytest.raises(Contradiction, match=r"block 7.* by one.* by other: nothing that follows"):
        agreed_hash([*nodes, Node("other", {7: B})], 7)
    with pytest.raises(LedgerUnavailable):
        agreed_hash([*nodes, Node("silent", None)], 7)


def test_an_audit_believes_no_draw_that_chain_nodes_disagree_about() -> None:
    report, hashes = _told(Node("one", {7: A}), Node("two", {7: B}))
    assert hashes(8) is None, "it is still to come"
    with pytest.raises(Contradiction, match="block 7, which draws work"):
        hashes(7)
    assert not report.checks


def test_an_audit_warns_once_of_a_chain_node_that_does_not_say() -> None:
    report, hashes = _told(Node("one", {7: A}), Node("silent", None), Node("late", {}))
    assert hashes(7) == hashes(7) == A
    assert [(check.check, check.verdict) for check in report.checks] == [("chain nodes", "WARN")] * 2
