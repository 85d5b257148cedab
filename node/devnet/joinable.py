"""A devnet that others join: a chain, a run and one node on it, at an address that they reach, and the line that they
paste."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from dlx.ground.forks import LOAD_SECONDS
from dlx.ground.limits import cores
from dlx.node.devnet.demo import Observed
from dlx.node.devnet.devnet import Devnet, DevnetShape, Kind
from dlx.node.home.errors import Failure
from dlx.node.home.join_line import JoinLine, command
from dlx.node.home.keys import identity

ROUNDS = 2_000  # more than anybody waits for
NODE = "node-0"


@dataclass
class JoinableDevnet(Devnet):
    kind: ClassVar[Kind] = "devnet"

    host: str = "127.0.0.1"  # IPv4 address of this machine, which others dial
    page_port: int = 0
    counted: set[str] = field(default_factory=set)  # accounts, of which somebody was told

    @classmethod
    def begin(cls, root: Path, host: str, progress: Callable[[str], None]) -> Self:
        """One in a new folder, with a running chain. Raises Failure."""
        made = cls(root, DevnetShape("", ROUNDS, 1, 1, kind=cls.kind), host=host)
        made.make(None, progress)
        return made

    def start(self) -> None:
        """The chain, where it answered before, so that lines that somebody has stay true; then the node."""
        if not self._processes:
            self.start_chain(self.last_port())
        super().start()

    def address(self, name: str) -> str:
        return self.host

    def threads(self) -> int:
        return max(1, cores() // 2)  # the newcomer's node may be on this machine, too

    def more_arguments(self, name: str) -> list[str]:
        return ["--http-port", str(self.page_port)]

    def await_page(self) -> str:
        """The address of the run's page, once the node answers. Raises Failure."""
        deadline = time.monotonic() + LOAD_SECONDS
        while self.status(NODE) is None:
            self.check()
            if time.monotonic() > deadline:
                raise Failure(f"the node does not answer after {LOAD_SECONDS:.0f} s: see {self.log(NODE)}")
            time.sleep(0.2)
        url = json.loads(self.folder(NODE).http_address.read_text())["url"]
        return f"{url}/runs/{self.shape.run}"

    def join_command(self) -> str:
        """What to paste elsewhere; the page shows the same."""
        settings, run = self.settings, bytes.fromhex(self.shape.run[2:])
        return command(JoinLine(settings.chain_id, settings.ledger, run, settings.rpc_url, ()))

    def newly_counted(self, observed: Observed, round: int) -> list[str]:
        """In words, whom a sealed round is the first to count."""
        own = identity.account_address(self.folder(NODE))
        found = {
            account: record.replica
            for sealed in observed.seals(round)
            for record, account in zip(sealed.records, sealed.accounts, strict=True)
            if account not in self.counted
        }
        self.counted |= found.keys()
        return [
            f"{'this node' if account == own else 'a newcomer'} is counted: {account}, replica {replica}, round {round}"
            for account, replica in found.items()
        ]
