"""A run's view and the table of nodes as bytes, so that nobody replays a history twice.

The hashes that seals gave are not part of a view's snapshot: they come from the seals' rows when it is loaded.
"""

from collections.abc import Callable, Iterable

import msgspec

from dlx.ledger.events import CheckpointPublished, Convicted, Evaluated, RunCreated, Sealed
from dlx.ledger.index.seal_rows import Outline
from dlx.ledger.view.node_registry import NodeTable, RegisteredNode
from dlx.ledger.view.run_state import Enlisted, Member, Return, Stage, Standing, Stay
from dlx.ledger.view.run_view import RunView


class SnapshotMismatch(Exception):
    """The snapshot and the seals' rows do not belong together."""


class _View(msgspec.Struct, array_like=True):
    created: RunCreated | None
    started_at: int
    round: int
    opened_at: int
    draw: int
    stages: list[Stage]
    checkpoints: tuple[CheckpointPublished, ...]
    evaluations: dict[str, dict[int, Evaluated]]
    convictions: tuple[Convicted, ...]
    members: dict[str, Member]
    standings: dict[str, Standing]
    returns: list[tuple[int, int, Return]]
    vacated: list[tuple[int, int, int]]
    broke: dict[int, int]
    dealt: dict[int, int]
    enlisted: dict[str, Enlisted]
    counted: dict[str, int]
    gave_back: dict[str, int]
    stays: dict[str, tuple[Stay, ...]]
    rounds: list[int]  # sealed by each stage


_VIEWS = msgspec.msgpack.Decoder(_View)
_NODES = msgspec.msgpack.Decoder(dict[str, RegisteredNode])


def dump_view(view: RunView) -> bytes:
    """The state of a run after the events applied so far, which must be whole transactions."""
    if not view.is_whole:
        raise ValueError("the last transaction has more events")
    return msgspec.msgpack.encode(
        _View(
            view.creation, view.started_at, view.round, view.round_opened_at, view.draw, view.stages,
            view.checkpoints, view.evaluations, view.convictions, view.accounts, view.standings,
            [(*slot, reserved) for slot, reserved in view.returns.items()],
            [(*slot, at) for slot, at in view.vacated.items()], view.broke, view.dealt, view.enlistments,
            view.counted_in, view.gave_back, view.stays, [view.next_round(stage) for stage in range(len(view.stages))],
        )
    )  # fmt: skip


def load_view(empty: RunView, state: bytes, seals: Iterable[Outline], newest: Callable[[int, int], Sealed]) -> None:
    """Fills a new view from what `dump_view` gave, the outlines of all its seals in the order of their rounds, and the
    seals that it keeps, which `newest` gives by stage and round. Raises msgspec.DecodeError, KeyError,
    SnapshotMismatch."""
    found = _VIEWS.decode(state)
    empty.creation, empty.started_at = found.created, found.started_at
    empty.round, empty.round_opened_at = found.round, found.opened_at
    empty.draw, empty.stays, empty.gave_back = found.draw, found.stays, found.gave_back
    empty.evaluations = found.evaluations
    empty.stages, empty.checkpoints, empty.convictions = found.stages, found.checkpoints, found.convictions
    empty.accounts, empty.counted_in, empty.standings = found.members, found.counted, found.standings
    empty.broke, empty.dealt, empty.enlistments = found.broke, found.dealt, found.enlisted
    empty.vacated = {(replica, stage): at for replica, stage, at in found.vacated}
    empty.returns = {(replica, stage): reserved for replica, stage, reserved in found.returns}
    empty.by_slot = {(m.replica, m.stage): account for account, m in found.members.items() if m.holds}
    empty.sealed.restore(seals, newest)
    if found.rounds != [empty.next_round(stage) for stage in range(len(found.rounds))]:
        raise SnapshotMismatch(f"{found.rounds} rounds are sealed, but not all of them have rows")


def dump_nodes(nodes: NodeTable) -> bytes:
    """The registered nodes."""
    return msgspec.msgpack.encode(nodes.nodes)


def load_nodes(state: bytes) -> NodeTable:
    """What `dump_nodes` gave. Raises msgspec.DecodeError."""
    table = NodeTable()
    table.nodes = _NODES.decode(state)
    return table
