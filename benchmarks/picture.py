"""The convergence benchmark's pictures: held-out loss against tokens and against bytes, one curve per method; and how
far each method ends above all-reduce beside its traffic, one point per method.

Readable in print and without colours: a family of methods has a colour, and each of its members a line and a marker of
its own; a curve is named at its end. A point has its family's marker, and its name beside it.

`python -m benchmarks.picture TABLE... PNG` draws the points from the rows that `benchmarks.convergence --json` wrote.
"""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.trainings import Job, Method, Result, tokens_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of each family: the colour of its lines and points, and its points' marker.
LOOKS = {
    "all-reduce": ("#000000", ""),
    "DiLoCo": ("#0072b2", "s"),
    "default": ("#d55e00", "o"),
    "sparse": ("#7f7f7f", "^"),
    "Shampoo": ("#cc79a7", "v"),
    "ternary": ("#009e73", "D"),
}
LINES = {"all-reduce Muon": "-", "all-reduce AdamW": "--"}
# Line and marker, one after the other within a family.
STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "v"), ("-", "D"))


@dataclass(frozen=True)
class Curve:
    """The mean over a method's seeds; its last point is the loss in the table."""

    name: str
    family: str
    points: tuple[tuple[int, float, float], ...]  # tokens of all replicas, bytes that one sent, nats per token


def curves(jobs: Sequence[Job], results: dict[str, Result]) -> list[Curve]:
    """One of each method, in the order of the jobs."""
    found = []
    for name in dict.fromkeys(job.method.name for job in jobs):
        own = [job for job in jobs if job.method.name == name]
        tokens_per_step = tokens_of(own[0].setting)
        points = tuple(
            (seeds[0][0] * tokens_per_step, *map(statistics.fmean, zip(*(seed[1:] for seed in seeds), strict=True)))
            for seeds in zip(*(results[job.key]["curve"] for job in own), strict=False)  # one may have diverged early
        )
        found.append(Curve(name, _family(own[0].method), points))
    return found


def styles(found: Sequence[Curve]) -> list[tuple[str, str, str]]:
    """Colour, line and marker of each curve."""
    seen = dict.fromkeys(LOOKS, 0)
    chosen = []
    for curve in found:
        chosen.append((LOOKS[curve.family][0], *STYLES[seen[curve.family] % len(STYLES)]))
        seen[curve.family] += 1
    return chosen


def spread(places: Sequence[float], gap: float) -> list[float]:
    """The places moved apart so that none is closer than `gap` to the next, in their order and no more than needed."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    groups: list[list[float]] = []  # [middle, how many]
    for index in order:
        groups.append([places[index], 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (middle, count), (before, many) = groups.pop(), groups.pop()
            groups.append([(middle * count + before * many) / (count + many), count + many])
    moved = [middle + gap * (place - (count - 1) / 2) for middle, count in groups for place in range(int(count))]
    return [moved[order.index(index)] for index in range(len(places))]


def draw(found: Sequence[Curve], path: Path) -> None:
    """Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 6), sharey=True)
    for curve, (colour, line, marker) in zip(found, styles(found), strict=True):
        tokens, sent, losses = zip(*curve.points, strict=True)
        look = {"color": colour, "linestyle": line, "marker": marker, "markersize": 4, "markevery": 2, "linewidth": 1.2}
        left.plot(tokens, losses, label=curve.name, **look)
        right.plot(sent, losses, **look)
    left.set(xlabel="tokens", ylabel="held-out loss (nats per token)")
    right.set(xlabel="bytes sent by one replica", xscale="log")
    low, high = left.get_ylim()
    ends = [curve.points[-1] for curve in found]
    last = max(end[0] for end in ends)
    gap = (high - low) / 28
    names = spread([end[2] for end in ends], gap)
    for curve, end, place, (colour, *_) in zip(found, ends, names, styles(found), strict=True):
        left.annotate(
            f"{curve.name}  {end[2]:.3f}",
            (end[0], end[2]),
            (last * 1.06, place),
            fontsize=8,
            color=colour,
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1},
        )
    left.set_xlim(right=last * 1.4)  # room for the names
    left.set_ylim(bottom=min(low, min(names) - gap))
    left.legend(fontsize=8, handlelength=4)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(
    tables: Annotated[
        list[Path], typer.Argument(metavar="TABLE...", exists=True, dir_okay=False, help="The benchmark's JSON.")
    ],
    png: Annotated[Path, typer.Argument(metavar="PNG", help="The picture to write.")],
) -> None:
    """Draw how far each method ends above all-reduce beside its traffic."""
    if png.suffix != ".png":  # a table, where the picture's name was forgotten
        raise typer.BadParameter(f"{png}: expected a name that ends in .png", param_hint="PNG")
    read = [_read(table) for table in tables]
    for (size, _), table in zip(read, tables, strict=True):
        if size != read[0][0]:
            raise typer.BadParameter(f"{table}: of {size}, the first table is of {read[0][0]}")
    rows = [row for _, rows in read for row in rows]
    points = Counter(row["method"] for row in rows if row["traffic_ratio"] > 1)
    if twice := [name for name, count in points.items() if count > 1]:
        raise typer.BadParameter(f"{twice[0]}: in two of the tables, expected each method in one")
    figure = frontier(rows)
    try:
        figure.savefig(png, format="png", dpi=120, metadata={"Description": described(rows)})
    except OSError as error:
        raise typer.BadParameter(f"{png}: {error.strerror}") from error


def described(rows: Sequence[dict[str, Any]]) -> str:
    """What a picture of these rows carries, so that one of other rows is found out."""
    return json.dumps([[row["method"], row["traffic_ratio"], row["gap_percent"]] for row in _points(rows)])


def frontier(rows: Sequence[dict[str, Any]]) -> "Figure":
    """All-reduce as lines across, every other method as a point: filled beside payloads, hollow beside all bytes.

    Rows of several tables can be drawn together, because each is beside the all-reduce of its own table."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6))
    axes = figure.add_subplot(
        xscale="log",
        xlabel="traffic: times less than all-reduce (filled: payloads, hollow: all bytes)",
        ylabel="held-out loss after all tokens, above the same seeds of all-reduce (%)",
    )
    drawn = _points(rows)
    widest, names = max(row["traffic_ratio"] for row in drawn), []
    for row in drawn:
        name, ratio, gap = row["method"], row["traffic_ratio"], row["gap_percent"]
        if ratio == 1:  # exchanged in every step
            colour, line = "#000000", LINES.get(name, ":")
            axes.plot((1, 1.5 * widest), (gap, gap), label=name, color=colour, linestyle=line, linewidth=1)
        else:
            colour, marker = LOOKS[_family_named(name)]
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 7, "linestyle": "none"}
            if row["all_bytes_ratio"] is not None:
                axes.plot(row["all_bytes_ratio"], gap, markerfacecolor="none", **look)
            axes.plot(ratio, gap, label=name, **look)
        seeds = "one seed" if row["seeds"] == 1 else f"{row['seeds']} seeds"
        names.append((f"{name}  {gap:+.1f}%, {seeds}", 1.5 * widest if ratio == 1 else ratio, gap, colour))
    top = 12.0  # percent; what is far above has its name at the edge
    seen = [min(row["gap_percent"], top) for row in drawn]
    apart = (max(seen) - min(seen)) / 18 or 1
    places = spread(seen, apart)
    # In a column of their own on the right, each with a line to its point.
    for (text, ratio, gap, colour), place in zip(names, places, strict=True):
        axes.annotate(
            text if gap <= top else f"{text}, above",
            (ratio, min(gap, top)),
            (2 * widest, place),
            fontsize=9,
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "relpos": (0, 0.5), "shrinkB": 5},
        )
    axes.set_xlim(1, 1.5 * widest)
    axes.set_ylim(min(*seen, *places) - apart, max(*seen, *places) + apart)
    axes.xaxis.set_major_formatter("{x:g}")
    figure.tight_layout()  # the names have room, too
    return figure


def _read(table: Path) -> tuple[str, list[dict[str, Any]]]:
    """What was trained, and the rows of what converged."""
    try:
        found = json.loads(table.read_text())
        rows = [row for row in found["rows"] if row["gap_percent"] is not None]
        frontier(rows)
        return found["size"], rows
    except (ValueError, KeyError, TypeError) as error:
        raise typer.BadParameter(f"{table}: expected what `benchmarks.convergence --json` writes") from error


def _points(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each method once: every table has all-reduce."""
    named: dict[str, dict[str, Any]] = {}
    for row in rows:
        named.setdefault(row["method"], row)
    return list(named.values())


def _family_named(name: str) -> str:
    if name.lower().startswith("diloco"):
        return "DiLoCo"
    families = {"Shampoo": "Shampoo", "sparse": "sparse", "topk": "sparse", "ternary": "ternary"}
    return next((family for start, family in families.items() if name.startswith(start)), "default")


def _family(method: Method) -> str:
    return "all-reduce" if method.every_step else _family_named(method.name)


if __name__ == "__main__":
    typer.run(main)
