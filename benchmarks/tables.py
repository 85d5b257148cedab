"""The tables of a page of the documents, from the results that `benchmarks/results/` has as JSON.

`python -m benchmarks.tables docs/convergence.md` makes the table behind every line `<!-- NAME.json -->` anew, so that
a number there can be traced: the file says which command wrote it.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

# A line that names the results, and what stands behind it up to the next text: nothing, or what this module wrote.
_MARKED = re.compile(r"^<!-- (?P<name>[\w-]+\.json) -->\n(?:\n?(?:[|`].*\n)+)*", re.MULTILINE)
RESULTS = Path(__file__).parent / "results"
_FACTS = ("command", "machine", "setting", "size", "engine")
_COLUMNS = (
    "method",
    "seeds",
    "batch; lr; lr of the rest; decay",
    "loss",
    "of each seed",
    "above all-reduce",
    "the published average",
    "loss of a search's length",
    "tokens for its loss",
    "bytes a round",
    "times less, payloads",
    "times less, all bytes",
)


def main(
    page: Annotated[Path, typer.Argument(metavar="PAGE", exists=True, dir_okay=False, help="A Markdown file.")],
    results: Annotated[Path, typer.Argument(metavar="FOLDER", help="The results that it names.")] = RESULTS,
) -> None:
    """Write the tables of the page anew."""
    try:
        text = page.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{page}: expected a text that can be read") from error
    if not names(text):
        raise typer.BadParameter(f"{page}: expected a line <!-- NAME.json --> for each table")
    try:
        made = rewritten(text, results)
    except ValueError as error:
        raise typer.BadParameter(f"{page}: {error}") from error
    try:
        page.write_text(made)
    except OSError as error:
        raise typer.BadParameter(f"{page}: {error.strerror}") from error


def rewritten(text: str, folder: Path) -> str:
    """The page with all tables made of the files in the folder. Raises ValueError where one is missing or holds
    something else."""
    return _MARKED.sub(lambda found: f"{found[0].splitlines()[0]}\n\n{_made(folder / found['name'])}", text)


def names(text: str) -> list[str]:
    """The files of results that a page has tables of."""
    return [found["name"] for found in _MARKED.finditer(text)]


def _made(path: Path) -> str:
    try:
        measured = json.loads(path.read_text())
        facts = [f"`{key}: {measured[key]}`  \n" for key in _FACTS]
        rows = [_COLUMNS, ["---", *["---:"] * (len(_COLUMNS) - 1)], *(_cells(row) for row in measured["rows"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: expected what benchmarks.convergence --json writes") from error
    return "".join(facts) + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(row: dict[str, Any]) -> list[str]:
    rates = "; ".join(f"{row[key]:g}" for key in ("batch", "lr", "lr_rest", "decay") if row[key] is not None)
    every_step = row["traffic_ratio"] == 1
    return [
        row["method"],
        str(row["seeds"]),
        rates,
        _number(row["loss"], ".4f"),
        ", ".join(f"{loss:.4f}" for loss in row["losses"]) if row["seeds"] > 1 else "",
        _number(row["gap_percent"], "+.2f", "%"),
        _number(row["mean_gap_percent"], "+.2f", "%"),
        _number(row["search_loss"], ".4f"),
        _number(row["tokens_percent"], ".0f", "%"),
        f"{row['bytes_per_round']:,}",
        "1" if every_step else _number(row["traffic_ratio"], ",.0f"),
        "1" if every_step else _number(row["all_bytes_ratio"], ",.0f"),
    ]


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


if __name__ == "__main__":
    typer.run(main)
