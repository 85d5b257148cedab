"""The loss curves: held-out loss, and training loss, thinned so that no run is too long to draw; also as paths of an
SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from dlx.node.checkpoints.evaluation_store import Evaluation
from dlx.node.home import formatting
from dlx.node.web.reading.totals import Totals

Axis = Literal["rounds", "tokens", "bytes"]
AXES: tuple[Axis, ...] = ("rounds", "tokens", "bytes")
WIDTH, HEIGHT = 1000, 300  # of the SVG's own coordinates
_BUCKETS = 600  # each shows its lowest and its highest loss
_TICKS = 5


class Tick(NamedTuple):
    at: float  # 0 to 100, from the left or the top
    label: str


class Chart(NamedTuple):
    """Losses in nats. `data` is JSON: x, training loss, held-out loss by the ledger and as measured here, one entry per
    point, null where there is none."""

    axis: Axis
    path: str  # of the training loss
    held_out: str  # of the held-out loss by the ledger; empty where it has none
    marks: tuple[tuple[float, float], ...]  # held-out losses that were measured here
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    newest: tuple[float, float] | None  # of the held-out loss by the ledger, else of the training loss
    ends: tuple[float, float, float]  # of the axes: right, low, high; the left end is 0
    data: str


def chart(totals: Totals, held_out: Mapping[int, float], evaluations: Sequence[Evaluation], axis: Axis) -> Chart | None:
    """`held_out`: by the ledger, of each evaluated version. A round's loss lies where the version that it made does: at
    so many sealed rounds. None where nothing has a loss, or the axis is not known."""
    place = _places(totals, axis)
    if place is None:
        return None
    points = _thinned([(round, loss) for round, loss in enumerate(totals.losses) if not math.isnan(loss)])
    said = {place(version): loss for version, loss in sorted(held_out.items()) if version <= totals.rounds}
    known = [evaluation for evaluation in evaluations if 0 <= evaluation.version <= totals.rounds]
    measured = {place(evaluation.version): evaluation.loss for evaluation in known}
    trained = {place(number + 1): loss for number, loss in points}
    shared = sorted({*trained, *said, *measured})
    if not shared:
        return None
    left, right, xs = _ticks(0.0, shared[-1] or 1.0, _X_LABELS[axis], least=1)
    losses = [*trained.values(), *said.values(), *measured.values()]
    low, high, ys = _ticks(min(losses), max(losses), lambda value: f"{value:.6g}", least=0)

    def at(x: float, loss: float) -> tuple[float, float]:
        return round(WIDTH * (x - left) / (right - left), 1), round(HEIGHT * (high - loss) / (high - low), 1)

    line, curve = ([at(x, loss) for x, loss in each.items()] for each in (trained, said))
    columns = [shared, *([each.get(x) for x in shared] for each in (trained, said, measured))]
    return Chart(
        axis=axis,
        path=_path(line),
        held_out=_path(curve),
        marks=tuple(at(x, loss) for x, loss in measured.items()),
        xs=tuple(xs),
        ys=tuple(Tick(100 - tick.at, tick.label) for tick in ys),
        newest=next((each[-1] for each in (curve, line) if each), None),
        ends=(right, low, high),
        data=json.dumps(columns, separators=(",", ":")),
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""


def compact(count: float) -> str:
    """950, 1.2k, 81.9k, 3.4M: for axes."""
    for unit in ("", "k", "M", "G", "T"):
        if abs(count) < 999.95 or unit == "T":
            return f"{count:.4g}{unit}"
        count /= 1000
    raise AssertionError(count)


_X_LABELS: dict[Axis, Callable[[float], str]] = {
    "rounds": lambda value: f"{value:,.0f}" if value == int(value) else f"{value:,.1f}",
    "tokens": compact,
    "bytes": formatting.size,
}


def _places(totals: Totals, axis: Axis) -> Callable[[int], float] | None:
    """Where a version lies on the axis; the genesis at 0."""
    if axis == "rounds":
        return float
    sums = totals.tokens if axis == "tokens" else totals.bytes
    return (lambda version: float(sums[version - 1]) if version else 0.0) if sums else None


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    if len(points) <= 2 * _BUCKETS:
        return points
    found = []
    for bucket in range(_BUCKETS):
        some = points[bucket * len(points) // _BUCKETS : (bucket + 1) * len(points) // _BUCKETS]
        ends = {min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])}
        found += sorted(ends)
    return found if found[-1] == points[-1] else [*found, points[-1]]


def _ticks(low: float, high: float, label: Callable[[float], str], least: float) -> tuple[float, float, list[Tick]]:
    """The ends of an axis with round numbers at even distances of `least` or more, and those with their places in
    percent."""
    if high - low <= 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    step = max(step, least)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    places = range(first, last + 1)
    found = [Tick(round(100 * (place - first) / (last - first), 2), label(place * step)) for place in places]
    return first * step, last * step, found
