"""A yes to a run's text being public, before anything is made of it."""

from __future__ import annotations

import sys

import typer

from dlx.node.home.errors import Failure, UsageFailure


def agree(given: bool, what: str) -> None:
    """Have somebody say that the data may be public, unless an option did. Raises Failure."""
    askable(given, what)
    if given:
        return
    told = _told(what)
    try:
        agreed = typer.confirm(f"{told[0].upper()}{told[1:]}. Publish it?", err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        sys.stderr.write("\n")
        raise KeyboardInterrupt from None
    if not agreed:
        raise Failure("nothing was published, and no run created")


def askable(given: bool, what: str) -> None:
    """Raises UsageFailure where `agree` will have nobody to ask: said before hours go into reading a corpus."""
    if not given and not sys.stdin.isatty():
        raise UsageFailure(f"{_told(what)}: say by --public-data that it may be public, there is nobody to ask")


def _told(what: str) -> str:
    return f"whoever asks a node of the run gets its text ({what}), and nobody can take that back"
