"""A run's view and the table of nodes as bytes, so that nobody replays a history twice.

The hashes that seals gave are not part of a view's snapshot: they come from the seals' rows when it is loaded.
"""

from collections.abc import Callable, Iterable

import msgspec

from dlx.ledger.events import CheckpointPublished, RunCreated, Sealed
from dlx.ledger.nodes import NodeRecord, NodeTable
from dlx.ledger.rows import Outline
from dlx.ledger.view import Accusation, Member, RunView


class Unusable(Exception):
    """The snapshot and the seals' rows do not belong together."""


class _View(msgspec.Struct, array_like=True):
    created: RunCreated | None
    open_round: int | None
    opened_at: int | None
    accusations: dict[str, Accusation]
    checkpoints: tuple[CheckpointPublished, ...]
    members: dict[str, Member]
    counted: dict[str, int]
    rounds: list[int]  # sealed by each stage


_VIEWS = msgspec.msgpack.Decoder(_View)
_NODES = msgspec.msgpack.Decoder(dict[str, NodeRecord])


def dump_view(view: RunView) -> bytes:
    """The state of a run after the events applied so far."""
    stages = view.config.stages if view.created else 0
    return msgspec.msgpack.encode(
        _View(
            view._created, view.open_round, view.opened_at, view.accusations, view.checkpoints, view._members,
            view._counted, [view.next_round(stage) for stage in range(stages)],
        )
    )  # fmt: skip


def load_view(empty: RunView, state: bytes, seals: Iterable[Outline], newest: Callable[[int, int], Sealed]) -> None:
    """Fills a new view from what `dump_view` gave, the outlines of all its seals in the order of their rounds, and the
    seals that it keeps, which `newest` gives by stage and round. Raises msgspec.DecodeError, KeyError, Unusable."""
    found = _VIEWS.decode(state)
    empty._created, empty.open_round, empty.opened_at = found.created, found.open_round, found.opened_at
    empty.accusations, empty.checkpoints = found.accusations, found.checkpoints
    empty._members, empty._counted = found.members, found.counted
    empty._holders = {(m.replica, m.stage): account for account, m in found.members.items() if m.holds}
    empty.sealed.restore(((o.stage, o.weights, o.momentum, o.next_inner_steps) for o in seals), newest)
    if found.rounds != [empty.next_round(stage) for stage in range(len(found.rounds))]:
        raise Unusable(f"{found.rounds} rounds are sealed, but not all of them have rows")


def dump_nodes(nodes: NodeTable) -> bytes:
    """The registered nodes."""
    return msgspec.msgpack.encode(nodes.nodes)


def load_nodes(state: bytes) -> NodeTable:
    """What `dump_nodes` gave. Raises msgspec.DecodeError."""
    table = NodeTable()
    table.nodes = _NODES.decode(state)
    return table
