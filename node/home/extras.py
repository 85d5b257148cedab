"""The extras of the distribution: which one brings a package that is not installed.

Nobody else asks whether a package is there: whatever needs one imports it, and `explained` says what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from urllib.parse import urlsplit

import msgspec

from dlx.node.home.errors import NotReady

# Packages that our modules import, by the extra that brings them; pyproject.toml names the distributions.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch", "safetensors", "pyarrow", "rensa", "zstandard"),
    "web": ("hypercorn", "jinja2", "starlette"),  # "train" brings them too
    "top": ("textual",),  # likewise
    "chain": ("eth",),
    "plot": ("matplotlib", "plotext"),
    "gguf": ("gguf",),
    "s3": ("s3fs",),
    "evaluate": ("lm_eval", "accelerate", "peft"),
}


class MissingExtra(NotReady):
    """A package of an extra that is not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(f'this needs the extra "{extra}": {install(extra)}')


def install(extra: str) -> str:
    """The command that adds an extra, from where this distribution came: a clone, a wheel's file or an address. Never
    from a package index, where the name may be somebody else's."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import, as the next
    from urllib.request import url2pathname

    try:
        found = msgspec.json.decode(distribution("dlx-node").read_text("direct_url.json") or "{}", type=_Origin)
    except (PackageNotFoundError, msgspec.DecodeError):
        found = _Origin()
    if not found.url:
        return f'pip install ".[{extra}]" in a clone of the source, or "FILE.whl[{extra}]" of its wheel'
    if found.url.startswith("file://"):
        place = url2pathname(urlsplit(found.url).path)
        return f'pip install {"--editable " if found.dir_info.get("editable") else ""}"{place}[{extra}]"'
    scheme = f"{found.vcs_info['vcs']}+" if "vcs" in found.vcs_info else ""
    return f'pip install "dlx-node[{extra}] @ {scheme}{found.url}"'


class _Origin(msgspec.Struct):
    """Of an installed distribution, as PEP 610 has it; without a URL it is not known where it came from."""

    url: str = ""
    dir_info: dict[str, bool] = {}
    vcs_info: dict[str, str] = {}


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
