"""Rounds of members at home: real nodes, each in a network of its own, behind routers with NAT.

`python -m benchmarks.reach [--scenarios public,symmetric] [--relay 4MB] [--seconds 45]`, as root. Two replicas of two
stages train the demo's model. The first replica is public. The second is public too, or both its members are at home,
with all defaults but the port to listen on. The chain is on a public machine. Links are as fast as this machine. In the
scenario `ip6` all is public, and nobody has IPv4.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import homes
from dlx.node.daemon.api.status import NodeStatus
from dlx.node.devnet import demo
from dlx.node.devnet.devnet import Devnet, DevnetShape, draft
from dlx.node.home.errors import Failure

CHAIN = "chain"
FIRST_ROUND = 2  # the first that is timed
JOIN_SECONDS = 240.0  # for a replica to have its members
STALL_SECONDS = 300.0
PUBLIC = {CHAIN: "52.20.9.1"} | {f"node-{number}": f"52.20.{number + 1}.1" for number in range(4)}
IP6 = {name: f"2a0f:0:{number}::1" for number, name in enumerate(PUBLIC, 1)}
AT_HOME = ("node-2", "node-3")


@dataclass
class _Homes(Devnet):
    forks_nodes = False

    public: Mapping[str, str] = field(default_factory=dict)
    at_home: Sequence[str] = field(default_factory=tuple)
    relay: str = "4MB"

    def address(self, name: str) -> str:
        return f"{homes.HOME}.2" if name in self.at_home else self.public[name]

    def command(self, name: str, module: Sequence[str]) -> list[str]:
        return homes.command(name, *super().command(name, module))

    def more_arguments(self, name: str) -> list[str]:
        return ["--stage", str(self.names.index(name) % self.shape.stages), "--relay", self.relay]

    def status(self, name: str) -> NodeStatus | None:
        with homes.inside(name):
            return super().status(name)


def main(
    scenarios: Annotated[str, typer.Option(help=f"Of public, ip6, {', '.join(homes.KINDS)}.")] = "public,symmetric",
    relay: Annotated[str, typer.Option(help="Bytes a second that each public node carries.")] = "4MB",
    seconds: Annotated[float, typer.Option(min=5, help="Timed of each, and a whole round beyond.")] = 45.0,
) -> None:
    """Print seconds a round, what was counted, and what the members of the second replica say of themselves."""
    if lacking := homes.lacking():
        raise typer.Exit(_said(lacking))
    for scenario in scenarios.split(","):
        at_home = () if scenario in ("public", "ip6") else AT_HOME
        every = IP6 if scenario == "ip6" else PUBLIC
        public = {name: address for name, address in every.items() if name not in at_home}
        with _folder() as root, homes.made(public, {name: (PUBLIC[name], scenario) for name in at_home}):
            print(f"{scenario:12}", _trained(root, public, at_home, relay, seconds), flush=True)


def _trained(root: Path, public: Mapping[str, str], at_home: Sequence[str], relay: str, seconds: float) -> str:
    with homes.inside(CHAIN):
        shape = DevnetShape("", 100_000, 2, 2)
        devnet = _Homes(root / "net", shape, public=public, at_home=at_home, relay=relay)
        devnet.root.mkdir(mode=0o700)
        (devnet.root / "text").mkdir()
        for path in Path(shutil.__file__).parent.glob("s*.py"):
            shutil.copy(path, devnet.root / "text")
        with demo.stopping(devnet):
            devnet.make(draft(100_000, 2, 2), lambda line: None)
            for names in (devnet.names[:2], devnet.names[2:]):  # so that the second replica is theirs
                for name in names:
                    devnet.start_node(name)
                _until_placed(devnet, names)
            times: list[tuple[int, float]] = []

            def on_round(seen: demo.Observed, round: int) -> None:
                if round >= FIRST_ROUND and seen.view.sealed[0, round].count == 2:
                    times.append((round, time.monotonic()))

            def enough() -> bool:
                return len(times) > 1 and times[-1][1] - times[0][1] >= seconds

            try:
                seen = demo.follow(devnet, on_round, lambda _: None, enough, STALL_SECONDS)
            except Failure as error:
                return f"failed: {error}; {_statuses(devnet)}"
            (first, began), (last, ended) = times[0], times[-1]
            sealed = range(first + 1, last + 1)
            counted = sum(seen.view.sealed[stage, round].count for round in sealed for stage in (0, 1))
            each = (ended - began) / len(sealed)
            steps = sum(seen.view.sealed[0, round].steps for round in sealed) / len(sealed)
            rounds = f"{each:5.1f} s a round, {len(sealed)} rounds, {counted} of {4 * len(sealed)} counted, "
            rounds += f"{steps:.1f} steps a round, {steps * seen.view.config.tokens_per_step / each:,.0f} tokens/s"
            return f"{rounds}; {_statuses(devnet)}"


def _until_placed(devnet: _Homes, names: Sequence[str]) -> None:
    end = time.monotonic() + JOIN_SECONDS
    while any((status := devnet.status(name)) is None or status.stage is None for name in names):
        devnet.check()
        if time.monotonic() > end:
            raise Failure(f"no slot within {JOIN_SECONDS:.0f} s: {_statuses(devnet)}")
        time.sleep(1)


def _statuses(devnet: _Homes) -> str:
    found: dict[str, Any] = {name: devnet.status(name) for name in devnet.names}
    return "; ".join(
        f"{name}: {one.reachable.partition(';')[0][:60]}, relayed {one.traffic.relayed.sent:,}, waits {one.waiting_for}"
        for name, one in found.items()
        if one is not None
    )


@contextmanager
def _folder() -> Any:
    with tempfile.TemporaryDirectory(prefix="dlx-reach-") as folder:
        yield Path(folder)


def _said(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


if __name__ == "__main__":
    typer.run(main)
