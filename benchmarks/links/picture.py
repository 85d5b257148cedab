"""The table as a picture: tokens per second of each row over the speed of the link, one panel for each number of
replicas.

`python -m benchmarks.links.picture TABLE PNG` draws the rows that `benchmarks.links --json` wrote. Readable in print
and without colours: ours are whole lines, others are broken ones, and each has a marker of its own.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.links import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {  # marker, colour
    "ddp": ("s", "#000000"), "diloco": ("v", "#7f7f7f"), "torchft": ("x", "#7f7f7f"), "hivemind": ("+", "#009e73"),
    "default": ("o", "#d55e00"), "delay1": ("D", "#0072b2"), "sparse": ("^", "#d55e00"), "sparse1": ("P", "#0072b2"),
    "dilocox": ("*", "#cc79a7"), "sites": ("h", "#56b4e9"),
}  # fmt: skip


def main(
    measured: Annotated[
        Path, typer.Argument(metavar="TABLE", exists=True, dir_okay=False, help="What `--json` wrote.")
    ],
    png: Annotated[Path, typer.Argument(metavar="PNG", help="The picture to write.")],
) -> None:
    """Draw tokens per second over the speed of the link, and print the table."""
    try:
        found = json.loads(measured.read_text())
        rows = [row for row in found["rows"] if not row["error"]]
        description, figure = described(rows), drawn(rows)
    except (ValueError, KeyError, TypeError) as error:
        raise typer.BadParameter(f"{measured}: expected what `benchmarks.links --json` writes") from error
    figure.savefig(png, dpi=120, metadata={"Description": description})
    sys.stdout.write(table.text(found))


def described(rows: Sequence[dict[str, Any]]) -> str:
    """What a picture of these rows carries, so that one of other rows is found out."""
    return json.dumps([[row["replicas"], row["link"], row["row"], row["tokens_per_second"]] for row in rows])


def drawn(rows: Sequence[dict[str, Any]]) -> "Figure":
    """Both axes logarithmic but for the link that is not shaped, which lies at the right."""
    from matplotlib.figure import Figure

    counts = sorted({row["replicas"] for row in rows})
    figure = Figure(figsize=(6.5 * len(counts), 5.5))
    for place, axes in enumerate(figure.subplots(1, len(counts), squeeze=False, sharey=True)[0]):
        own = [row for row in rows if row["replicas"] == counts[place]]
        links = sorted({(_speed(row), row["link"]) for row in own})
        for name, (marker, colour) in LOOKS.items():
            line = sorted((_speed(row), row["link"], row["tokens_per_second"]) for row in own if row["row"] == name)
            if line:
                where = [links.index((speed, link)) for speed, link, _ in line]
                style = "-" if name in table.OURS else "--"
                axes.plot(where, [each[2] for each in line], style, label=name, marker=marker, color=colour)
        axes.set_xticks(range(len(links)), [_named(speed, link) for speed, link in links])
        axes.set(title=f"{counts[place]} replicas", yscale="log", xlabel="each replica's link, both ways")
        axes.grid(visible=True, axis="y", linewidth=0.3)
        if not place:
            axes.set_ylabel("tokens per second, of all replicas")
            axes.legend(fontsize=8, handlelength=4)
    figure.tight_layout()
    return figure


def _speed(row: dict[str, Any]) -> float:
    return float("inf") if row["bits_per_second"] is None else row["bits_per_second"]


def _named(speed: float, link: str) -> str:
    if link == "none":
        return "not shaped"
    return f"{speed / 1e6:g} Mbit/s" if speed >= 1e6 else f"{speed / 1e3:.0f} kbit/s"


if __name__ == "__main__":
    typer.run(main)
