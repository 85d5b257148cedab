"""Versions in places that are no peers: a pulled folder is pushed there, and a version's weights are taken from there.

Nothing there is believed. How long a file may be follows from the manifest, before a byte of it is read, and weights
are kept only with the hash that a stage sealed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dlx.node.home import remote
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.runs.listing import names
from dlx.training.models import weights
from dlx.training.models.model_files import Folder, Form, split
from dlx.training.models.weights import WeightsError
from dlx.training.recipe.manifest import Manifest

PUBLISHED = "published"  # what the ledger names
_STRANGERS = ("https", "hf")  # what a stranger's address on the ledger may make this machine ask
_PATIENCE, _SLOWEST = 60.0, 1 << 20  # seconds, and bytes a second besides, that a stranger's file may take


def push(folder: Path, to: str, show: Callable[[str], None]) -> dict[str, Any]:
    """Copy a pulled folder's files, which were checked, to a `destination`: SHA256SUMS last, so that who finds it finds
    all. Raises UsageFailure, Failure."""
    uri, files = destination(to), [folder / name for name in names(folder)]
    with remote.explained(uri):
        if uri.startswith("hf://"):
            _push_to_hub(folder, files, uri, show)
        else:
            for number, path in enumerate(files, 1):
                show(f"file {number} of {len(files)}: {path.name}")
                remote.put(path, uri)
    return {"to": uri, "files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def destination(to: str) -> str:
    """The `remote.writable` address that a folder may be pushed to. Raises UsageFailure for a folder that is used."""
    uri = remote.writable(to, "TO")
    if uri.startswith("file:"):
        target = remote.local(uri)
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise UsageFailure(f"{target} already exists: name a new or an empty folder")
    return uri


def take(
    uri: str,
    stranger: bool,
    manifest: Manifest,
    sealed: Sequence[bytes],
    work: Path,
    blobs: Path,
    show: Callable[[str], None],
) -> None:
    """Put the stages' weights with the hashes `sealed` into the folder `blobs`, from a folder that `pull` wrote in its
    default form. `stranger`: whether one named the address. `work` is a new folder for what is fetched. Raises Failure
    where the place has other weights."""
    work.mkdir()
    try:
        files = split(manifest, Form())
        for name, shapes in files.items():
            show(f"fetching {uri}/{name}")
            size = weights.layout(shapes, "float32").size
            seconds = _PATIENCE + size / _SLOWEST if stranger and uri.startswith("https:") else None
            remote.fetch(f"{uri}/{name}", work / name, range(size, size + 1), seconds)
        there = Folder(manifest, work, files).write_stages(blobs)
    except WeightsError as error:
        raise Failure(f"{uri}: {error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for wrong in set(there) - set(sealed):
        (blobs / wrong.hex()).unlink()
    differ = [str(stage) for stage, digest in enumerate(there) if digest != sealed[stage]]
    if differ:
        raise Failure(f"{uri}: other weights than stage {', '.join(differ)} sealed")


def offered(wanted: str, published: Sequence[dict[str, str]]) -> list[str]:
    """The addresses to try: the one that the user names, or those on the ledger that a stranger may name."""
    if wanted != PUBLISHED:
        return [remote.address(wanted, "--from")]
    return [one["uri"].rstrip("/") for one in published if remote.scheme(one["uri"]) in _STRANGERS]


def _push_to_hub(folder: Path, files: Sequence[Path], uri: str, show: Callable[[str], None]) -> None:
    """In one commit, to a repository that is there: nothing becomes public that its owner did not make so."""
    from huggingface_hub import HfApi

    parts = urlsplit(uri)
    name, _, inside = parts.path.strip("/").partition("/")
    show(f"uploading to {parts.netloc}/{name}")
    HfApi().upload_folder(
        repo_id=f"{parts.netloc}/{name}",
        folder_path=folder,
        path_in_repo=inside or None,
        allow_patterns=[escape(path.name) for path in files],
        commit_message="dlx-node push",
    )
