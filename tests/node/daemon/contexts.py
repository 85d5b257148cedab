"""A `RunContext` of what a test gives; whatever else is asked of it fails the test."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dlx.ledger.sealer import Sealer
from dlx.node.daemon.context import Chain, Network, Observers, Operator, Run, RunContext, Storage
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.training.models.placement import Placement
from tests.node.round.simulation import RUN

TRAFFIC = ("payload", "pipe", "blobs", "relayed", "gossip", "signalling", "chain")


class NotGiven:
    """Stands for a part that the test does not give."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the test gives nothing that has {name}")


NOT_GIVEN: Any = NotGiven()


def make_context(
    *,
    run: bytes = RUN,
    manifest: Any = NOT_GIVEN,
    data: Any = NOT_GIVEN,
    deals: Any = NOT_GIVEN,
    account: str = "0x2",
    signer: SlashingProtection | None = None,  # whose account goes before `account`
    exchange: Any = NOT_GIVEN,
    gossip: Any = NOT_GIVEN,
    peer_of: Callable[[str], str | None] = lambda account: None,
    reject: Callable[[str, str], None] = lambda reason, source: None,
    said_before: Sequence[bytes] = (),
    client: Any = NOT_GIVEN,
    now: Callable[[], float] = lambda: 0.0,
    blobs: Any = NOT_GIVEN,
    directory: Path = Path("/nowhere"),
    private_data: Path | None = None,
    data_cache: int = 0,
    seals_empty: bool = False,
    metrics: Any = NOT_GIVEN,
    on_sealed: Callable[[Any, bool], None] = lambda sealed, counted: None,
) -> RunContext:
    nobody: Any = SimpleNamespace(account=account)
    return RunContext(
        Run(run, manifest, bytes(32), data, deals),
        signer or nobody,
        Network(exchange, gossip, NOT_GIVEN, NOT_GIVEN, peer_of, reject, said_before),
        Chain(client, Sealer(client, ""), now),
        Storage(blobs, directory),
        Operator(Placement(), private_data, data_cache, lambda: False, lambda: seals_empty),
        Observers(metrics, lambda: dict.fromkeys(TRAFFIC, (0, 0)), lambda trained: None, on_sealed),
    )
