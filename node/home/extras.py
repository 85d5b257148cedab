"""The extras of the distribution: which one brings a package that is not installed.

Nobody else asks whether a package is there: whatever needs one imports it, and `explained` says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from dlx.node.home.errors import NotReady

# Packages that our modules import, by the extra that brings them; pyproject.toml names the distributions.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch", "safetensors", "pyarrow", "zstandard"),
    "web": ("hypercorn", "jinja2", "starlette"),  # "train" brings them too
    "top": ("textual",),  # likewise
    "chain": ("eth",),
    "plot": ("matplotlib", "plotext"),
    "evaluate": ("lm_eval", "accelerate", "peft"),
}


class MissingExtra(NotReady):
    """A package of an extra that is not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(f'this needs the extra "{extra}": pip install "dlx-node[{extra}]"')


def require(*extras: str) -> None:
    """For work that starts in another process, or late: raises MissingExtra at once."""
    for extra in extras:
        if not all(find_spec(package) for package in EXTRAS[extra]):
            raise MissingExtra(extra)


@contextmanager
def explained() -> Iterator[None]:
    """Turns the failed import of an extra's package, and of no other, into MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        for extra, packages in EXTRAS.items():
            if package in packages:
                raise MissingExtra(extra) from error
        raise
