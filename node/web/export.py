"""A run's page as one static file: the same page, with all its rounds and what each seal made, and nothing to load."""

from __future__ import annotations

from pathlib import Path

from dlx.ground import durable
from dlx.node.home.errors import Failure
from dlx.node.runs.history import History
from dlx.node.web.reading.reader import RunPage
from dlx.node.web.render import inline_style, render


def write(page: RunPage, history: History, path: Path) -> None:
    """Raises Failure where the file cannot be written."""
    text = render(
        "export.html", page=page, history=history, source=page.source, live=False, inline_style=inline_style()
    )
    try:
        durable.write_bytes(path, text.encode())
    except OSError as error:
        raise Failure(f"cannot write the page to {path}: {error.strerror}") from error
