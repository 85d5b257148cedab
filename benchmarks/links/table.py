"""The benchmark's rows as a table, and those that miss their target."""

from collections.abc import Iterator, Sequence
from typing import Any

TIMES_MATCHED, TIMES_100 = 300.0, 2.0  # DDP's tokens a second: ours at best, on the matched link and at 100 Mbit/s
HIDDEN = 0.97  # part of the time that a delayed run trains, on the matched link and at 10 Mbit/s
OURS = ("default", "delay1", "sparse", "sparse1", "dilocox", "sites")
KINDS = ("total", "payload", "pipe", "blobs", "gossip", "chain", "rest")

Rows = Sequence[dict[str, Any]]


def text(result: dict[str, Any]) -> str:
    """Of each number of replicas and link: one line a row."""
    lines = [f"{key:<9} {result[key]}" for key in ("command", "machine")]
    for replicas, link in dict.fromkeys((row["replicas"], row["link"]) for row in result["rows"]):
        own = [row for row in result["rows"] if (row["replicas"], row["link"]) == (replicas, link)]
        lines += ["", *_of_a_link(replicas, link, own)]
    return "\n".join(lines) + "\n"


def ratio(row: dict[str, Any], found: Rows) -> float | None:
    """Times the tokens a second of DDP on the same link with as many replicas; None where either was not measured."""
    base = [
        one["tokens_per_second"]
        for one in found
        if one["row"] == "ddp" and not one["error"] and (one["replicas"], one["link"]) == (row["replicas"], row["link"])
    ]
    return None if row["error"] or not base else row["tokens_per_second"] / base[0]


def missed(found: Rows) -> list[str]:
    """One line of each row that failed and each target that was missed."""
    lines = [f"{_where(row)} {row['row']}: {row['error']}" for row in found if row["error"]]
    for replicas, link in dict.fromkeys((row["replicas"], row["link"]) for row in found):
        ours = [
            row
            for row in found
            if (row["replicas"], row["link"]) == (replicas, link) and row["row"] in OURS and not row["error"]
        ]
        ratios = [times for row in ours if (times := ratio(row, found)) is not None]
        wanted = {"matched": TIMES_MATCHED, "100mbit": TIMES_100}.get(link)
        if wanted and ratios and max(ratios) < wanted:
            lines.append(f"{replicas} replicas, {link}: {max(ratios):.1f} times DDP at best, not {wanted:g}")
        if link in ("matched", "10mbit"):
            lines += [
                f"{_where(row)} {row['row']}: trains {row['trained']:.3f} of the time, not {HIDDEN}"
                for row in ours
                if row["row"] == "delay1" and row["trained"] < HIDDEN
            ]
    return lines


def _of_a_link(replicas: int, link: str, found: Rows) -> Iterator[str]:
    speed, step = found[0]["bits_per_second"], found[0]["step_seconds"]
    shown = "not shaped" if speed is None else f"{speed / 1e3:,.0f} kbit/s each way"
    yield f"{replicas} replicas, {link} ({shown}); a step computes {step:.3f} s alone"
    yield f"{'row':<9} {'H':>4} {'rounds':>6} {'tokens/s':>10} {'x DDP':>7} {'trains':>6}   bytes a token: " + " ".join(
        f"{kind:>9}" for kind in KINDS
    )
    for row in found:
        if row["error"]:
            yield f"{row['row']:<9} {row['error']}"
            continue
        times = ratio(row, found)
        each = [row["bytes"][kind] / row["tokens"] if kind in row["bytes"] else None for kind in KINDS]
        yield (
            f"{row['row']:<9} {row['inner_steps']:>4} {row['rounds']:>6} {row['tokens_per_second']:>10,.1f} "
            f"{'-' if times is None else format(times, ',.1f'):>7} "
            f"{'-' if row['trained'] is None else format(row['trained'], '.3f'):>6}" + " " * 18
            + " ".join(f"{'-' if one is None else format(one, ',.3f'):>9}" for one in each)
        )  # fmt: skip


def _where(row: dict[str, Any]) -> str:
    return f"{row['replicas']} replicas, {row['link']},"
