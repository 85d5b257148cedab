"""Blobs from mailboxes: where members publish for those who cannot connect to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from dlx.ledger.view.node_registry import RegisteredNode
from dlx.node.audit.sources.blobs import Attempt, WrongCopy
from dlx.node.home import remote
from dlx.node.home.errors import Failure
from dlx.node.home.mailboxes import MOST, WrongBytes, have_blob, mailbox_of

_FAILURES = 3  # in a row, after which a mailbox is asked no more


class Mailboxes:
    """A blob source. `named`: addresses by the user. `nodes` gives those of the ledger by account, whose addresses are
    strangers'. `show(line)` is told what is asked."""

    own = False

    def __init__(
        self,
        named: Sequence[str],
        nodes: Callable[[], Mapping[str, RegisteredNode]],
        show: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._named, self._nodes, self._show = tuple(named), nodes, show
        self._failures: dict[str, int] = {}
        self._gave: dict[str, int] = {}

    def fetch(self, digest: bytes, limit: int, into: Path) -> Attempt:
        """See `Source`."""
        wrong, draft = list[WrongCopy](), into / f"{digest.hex()}.partial"
        asked = [one for one in self._all if self._failures.get(one, 0) < _FAILURES]
        for one in sorted(asked, key=lambda one: -self._gave.get(one, 0)):
            self._show(f"asking the mailbox {one} for {digest.hex()[:16]}")
            try:
                have_blob(one, one not in self._named, digest, range(limit + 1), draft)
            except remote.Absent:
                continue
            except Failure as error:
                self._failures[one] = self._failures.get(one, 0) + 1
                if isinstance(error, WrongBytes):
                    wrong.append(WrongCopy(f"the mailbox {one}", "gave other bytes"))
                continue
            self._failures[one], self._gave[one] = 0, self._gave.get(one, 0) + 1
            os.replace(draft, into / digest.hex())
            return Attempt(into / digest.hex(), tuple(wrong))
        return Attempt(None, tuple(wrong))

    @cached_property
    def _all(self) -> list[str]:
        """Each once, those that the user named first."""
        found = (mailbox_of(node.multiaddrs) for node in self._nodes().values())
        return list(dict.fromkeys([*self._named, *filter(None, found)]))[:MOST]
