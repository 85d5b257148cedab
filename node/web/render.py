"""Page data as HTML: the templates, and how they write numbers. Whatever comes from the chain is text to them."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dlx.ground import durable
from dlx.ground.untrusted import printable
from dlx.ledger.events import Convicted
from dlx.ledger.typed import split_conviction
from dlx.node.home import formatting
from dlx.node.home.errors import Failure
from dlx.node.home.program import program
from dlx.node.runs.find import Member, founders_part
from dlx.node.runs.history import History, utc
from dlx.node.runs.leaderboard import change, sources
from dlx.node.web.reading import page as pages
from dlx.node.web.reading.chart import compact
from dlx.node.web.reading.reader import RunPage, VersionPage
from dlx.node.web.words import WORDS

_HERE = Path(__file__).parent
STATIC = _HERE / "static"


class InlineStyle(NamedTuple):
    """The style sheet inside a page that is one file, with its hash for the page's policy."""

    text: str
    hash: str


def render(template: str, **values: Any) -> str:
    """The page of a template."""
    return _environment().get_template(template).render(**values)


def write_file(page: RunPage, history: History, path: Path) -> None:
    """A run's page as one static file: the same page, with all its rounds and what each seal made, and nothing to load.

    Raises Failure where the file cannot be written.
    """
    text = render(
        "export.html", page=page, history=history, source=page.source, live=False, inline_style=inline_style()
    )
    try:
        durable.write_bytes(path, text.encode())
    except OSError as error:
        raise Failure(f"cannot write the page to {path}: {error.strerror}") from error


@cache
def inline_style() -> InlineStyle:
    text = (STATIC / "style.css").read_text()
    return InlineStyle(text, base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "number": lambda value: "" if value is None else f"{value:,}",
        "loss": lambda value: "" if value is None else f"{value:.4f}",
        "share": pages.percent,
        "known": lambda value: "?" if value is None else f"{value:,}",
        "part": lambda value: "nothing" if value is None else f"{100 * value:.1f}%",
        "size": formatting.size,
        "lasting": formatting.lasting,
        "ether": lambda wei: f"{wei / 10**18:g}",
        "compact": compact,
        "utc": utc,
        "clock": lambda seconds: utc(seconds).replace("T", " ").removesuffix("Z"),
        "plain": lambda text, most=300: printable(str(text), most),
        "cell_count": lambda row: sum(len(stage.cells) for stage in row.stages if stage is not None),
        "standing": _standing,
        "founders_part": founders_part,
        "change": change,
        "sources": sources,
        "reports": _reports,
        "curve_summary": _curve_summary,
        "pull_command": _pull_command,
        "plan_command": _plan_command,
    }
    found.globals |= {"WORDS": WORDS, "program": program}
    return found


def _standing(member: Member) -> str:
    found = [f"{member.weight:.0%} of the stage's weight"]
    found += ["asked whether it is there"] if member.accused else []
    found += ["slot forfeit"] if member.forfeit else []
    return ", ".join(found)


def _reports(event: Convicted) -> list[str]:
    return [entry.report.hex() for entry in split_conviction(event.entries)]


def _curve_summary(page: RunPage) -> str:
    if page.loss is None:
        return "Held-out losses that were measured here, before the first round."
    rounds = page.details.summary.sealed_rounds
    trained = f"the training loss over {rounds:,} rounds; the newest is {page.loss:.4f} nats per token."
    if (held_out := page.held_out) is None:
        return f"Curve of {trained}"
    return f"Curves of the held-out loss, {held_out.loss:.4f} at version {held_out.version:,}, and of {trained}"


def _plan_command(page: RunPage) -> str:
    return f"{program()} run plan --run {page.details.summary.run} {page.source.reach}"


def _pull_command(page: RunPage | VersionPage) -> str:
    number = page.version.number if isinstance(page, VersionPage) else page.versions[0].number
    run = page.summary.run if isinstance(page, VersionPage) else page.details.summary.run
    return f"{program()} pull {run} --round {number} {page.source.reach} --out model"
