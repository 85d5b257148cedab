"""The loss curve: its points, thinned so that no run is too long to draw, and the same as the path of an SVG."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
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
    """Losses in nats per token. `data` is JSON: x, loss and held-out loss, one entry per point, null where there is
    none."""

    axis: Axis
    path: str
    marks: tuple[tuple[float, float], ...]  # held-out losses
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    newest: tuple[float, float]
    data: str


def chart(totals: Totals, evaluations: Sequence[Evaluation], axis: Axis) -> Chart | None:
    """None where no sealed round has a loss, or the axis is not known."""
    place = _places(totals, axis)
    points = [(round, loss) for round, loss in enumerate(totals.losses) if not math.isnan(loss)]
    if place is None or not points:
        return None
    points = _thinned(points)
    known = [evaluation for evaluation in evaluations if 0 <= evaluation.version <= totals.rounds]
    held_out = {max(0.0, place(measured.version - 1)): measured.loss for measured in known}  # where its round lies
    trained = {place(number): loss for number, loss in points}
    shared = sorted({*trained, *held_out})
    left, right, xs = _ticks(0.0, shared[-1] or 1.0, _X_LABELS[axis], least=1)
    losses = [*trained.values(), *held_out.values()]
    low, high, ys = _ticks(min(losses), max(losses), lambda value: f"{value:.6g}", least=0)

    def at(x: float, loss: float) -> tuple[float, float]:
        return round(WIDTH * (x - left) / (right - left), 1), round(HEIGHT * (high - loss) / (high - low), 1)

    line = [at(x, loss) for x, loss in trained.items()]
    columns = [shared, [trained.get(x) for x in shared], [held_out.get(x) for x in shared]]
    return Chart(
        axis=axis,
        path="M" + "L".join(f"{x:g} {y:g}" for x, y in line),
        marks=tuple(at(x, loss) for x, loss in held_out.items()),
        xs=tuple(xs),
        ys=tuple(Tick(100 - tick.at, tick.label) for tick in ys),
        newest=line[-1],
        data=json.dumps(columns, separators=(",", ":")),
    )


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
    """Where a round's end lies on the axis; before the first one is 0."""
    if axis == "rounds":
        return float
    sums = totals.tokens if axis == "tokens" else totals.bytes
    return (lambda round: float(sums[round]) if round >= 0 else 0.0) if sums else None


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
