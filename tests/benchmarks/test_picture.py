"""The convergence benchmark's pictures: curves end and points lie where the table says, and can be told apart without
colours; the docs' table and picture are of the rows in the repository."""

import json
import statistics
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.text import Text

from benchmarks import picture, tables
from benchmarks.convergence import ROWS
from benchmarks.trainings import Job, Result, Setting

METHODS = [row.method for row in ROWS]
DOCS = Path(__file__).parents[2] / "docs"
MEASURED: dict[str, Any] = json.loads((tables.RESULTS / "convergence.json").read_text())
DRAWN = [tables.RESULTS / "convergence.json", tables.RESULTS / "convergence-shampoo.json"]
POINTS: list[dict[str, Any]] = [row for path in DRAWN for row in json.loads(path.read_text())["rows"]]


def result(end: float) -> Result:
    curve = [(steps, 100 * steps, end + 1 / steps) for steps in (10, 20)] + [(30, 3000, end)]
    return {"loss": end, "curve": curve}


@pytest.fixture
def trained() -> tuple[list[Job], dict[str, Result]]:
    jobs = [Job(method, Setting("*.py"), 0.01, seed, 30) for method in METHODS for seed in range(method.seeds)]
    return jobs, {job.key: result(1 + index / 10) for index, job in enumerate(jobs)}


def test_a_curve_ends_with_the_loss_in_the_table(trained: tuple[list[Job], dict[str, Result]]) -> None:
    jobs, results = trained
    curves = picture.curves(jobs, results)
    assert [curve.name for curve in curves] == [method.name for method in METHODS]
    for curve in curves:
        losses = [results[job.key]["loss"] for job in jobs if job.method.name == curve.name]
        assert curve.points[-1] == (30 * 4 * 2 * 128, 3000, pytest.approx(statistics.mean(losses)))


def test_every_method_has_a_look_of_its_own_in_few_colours(trained: tuple[list[Job], dict[str, Result]]) -> None:
    looks = picture.styles(picture.curves(*trained))
    assert len(set(looks)) == len(METHODS)
    assert len({colour for colour, _, _ in looks}) == len(picture.LOOKS)


def test_names_are_moved_apart_no_more_than_needed() -> None:
    assert picture.spread([5.0, 1.0, 3.0], 1.0) == [5.0, 1.0, 3.0]
    assert picture.spread([2.0, 2.0], 1.0) == [1.5, 2.5]
    places = [1.12, 1.21, 1.18, 1.2, 1.23, 1.26, 1.3, 1.34, 1.37, 1.88]
    moved = picture.spread(places, 0.06)
    assert all(b - a > 0.0599 for a, b in pairwise(sorted(moved)))
    assert sorted(range(10), key=moved.__getitem__) == sorted(range(10), key=places.__getitem__)
    assert moved[-1] == 1.88


def test_the_picture_is_drawn(trained: tuple[list[Job], dict[str, Result]], tmp_path: Path) -> None:
    picture.draw(picture.curves(*trained), tmp_path / "convergence.png")
    assert (tmp_path / "convergence.png").stat().st_size > 10_000


def test_the_tables_in_the_docs_are_of_the_rows_in_the_repository() -> None:
    page = (DOCS / "convergence.md").read_text()
    assert set(tables.names(page)) == {path.name for path in tables.RESULTS.glob("convergence*.json")}
    assert tables.rewritten(page, tables.RESULTS) == page, "python -m benchmarks.tables docs/convergence.md"


def test_what_the_benchmarks_page_says_of_loss_is_of_the_rows_in_the_repository() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    labels = {
        "default, delay 0": "codec and rounds of the defaults",
        "ternary, H 20": "`ternary`",
        "sparse": "`sparse`",
        "topk 60 of 4,096": "`sparse`, 60 of 4,096 values sent",
        "Shampoo, 216 of 4,096": "`shampoo`",
        "Shampoo, 128 of 4,096": "`shampoo`, 128 of 4,096 values sent",
        "Shampoo, 60 of 4,096": "`shampoo`, 60 of 4,096 values sent",
    }
    for row in POINTS:
        if row["method"] in labels:
            traffic = f"{row['traffic_ratio']:,.0f} | {row['all_bytes_ratio']:.0f}"
            seeds = ", one seed" if row["seeds"] == 1 else ""
            said = f"| {labels[row['method']]} | {traffic} | {row['gap_percent']:.1f}%{seeds} |"
            assert said in page, row["method"]


def test_a_page_whose_results_are_missing_stays_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- none.json -->\n")
    with pytest.raises(typer.BadParameter, match=r"none\.json: expected what"):
        tables.main(page, tmp_path)
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(typer.BadParameter, match=r"none\.json: expected what"):
        tables.main(page, tmp_path)
    assert page.read_text() == "<!-- none.json -->\n"
    page.write_text("no table\n")
    with pytest.raises(typer.BadParameter, match="expected a line"):
        tables.main(page, tmp_path)


def test_a_table_is_made_in_its_place_and_nothing_else_is_touched(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before\n\n<!-- some.json -->\n\n| an | old |\n| one | here |\n\nAfter `code`\n")
    (tmp_path / "some.json").write_text((tables.RESULTS / "convergence.json").read_text())
    tables.main(page, tmp_path)
    made = page.read_text()
    assert made.startswith("Before\n\n<!-- some.json -->\n\n`command: ") and made.endswith("|\n\nAfter `code`\n")
    assert "old" not in made and all(f"| {row['method']} |" in made for row in MEASURED["rows"])
    tables.main(page, tmp_path)
    assert page.read_text() == made


def test_the_points_lie_where_the_rows_say() -> None:
    (axes,) = picture.frontier(POINTS).axes
    lines = {line.get_label(): line for line in axes.lines if not str(line.get_label()).startswith("_")}
    assert lines.keys() == {row["method"] for row in POINTS}
    for row in POINTS:
        (*_, ratio), (*_, gap) = lines[row["method"]].get_data()
        assert gap == row["gap_percent"]
        assert ratio == row["traffic_ratio"] or row["traffic_ratio"] == 1
    hollow = [line.get_xdata()[0] for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert hollow == [row["all_bytes_ratio"] for row in POINTS if row["traffic_ratio"] > 1]
    assert len({line.get_color() for line in axes.lines}) <= len(picture.LOOKS)


def test_no_name_lies_on_another_or_on_a_point() -> None:
    figure = picture.frontier(POINTS)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    names = [Text.get_window_extent(text) for text in axes.texts]  # without the lines to the points
    assert not any(one.overlaps(other) for one, other in combinations(names, 2))
    for line in axes.lines:
        if line.get_marker() != "None":
            x, y = axes.transData.transform((line.get_xdata()[0], line.get_ydata()[0]))
            assert not any(name.contains(x, y) for name in names)
    assert all(axes.bbox.x1 < name.x0 and name.x1 < figure.bbox.x1 for name in names), "beside the points"


def test_the_picture_in_the_docs_is_of_the_rows_in_the_repository() -> None:
    assert picture.described(POINTS).encode() in (DOCS / "convergence.png").read_bytes()


def test_the_command_draws_what_converged_and_refuses_what_is_no_table_or_of_another_size(tmp_path: Path) -> None:
    table, png = tmp_path / "table.json", tmp_path / "points.png"
    diverged = MEASURED["rows"][-1] | {"method": "other", "loss": None, "gap_percent": None, "traffic_ratio": None}
    table.write_text(json.dumps(MEASURED | {"rows": [*MEASURED["rows"], diverged]}))
    picture.main([table, DRAWN[1]], png)
    assert picture.described(POINTS).encode() in png.read_bytes()
    with pytest.raises(typer.BadParameter, match="Shampoo, 216 of 4,096: in two of the tables"):
        picture.main([*DRAWN, tables.RESULTS / "convergence-slots.json"], png)
    with pytest.raises(typer.BadParameter, match=r"convergence-96\.json: of 492,384 parameters"):
        picture.main([*DRAWN, tables.RESULTS / "convergence-96.json"], png)
    kept = table.read_text()
    with pytest.raises(typer.BadParameter, match=r"table\.json: expected a name that ends in \.png"):
        picture.main(DRAWN, table)
    assert table.read_text() == kept
    table.write_text("[]")
    with pytest.raises(typer.BadParameter, match=r"table\.json: expected what"):
        picture.main([*DRAWN, table], png)


def test_what_is_far_above_has_its_name_at_the_edge() -> None:
    far = MEASURED["rows"][-1] | {"method": "far", "gap_percent": 50.0}
    (axes,) = picture.frontier([*MEASURED["rows"], far]).axes
    assert axes.get_ylim()[1] < 20
    assert any(text.get_text() == "far  +50.0%, one seed, above" for text in axes.texts)
