"""A model that a command is given: a folder that `pull` wrote, or a run's version, which is pulled first."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dlx.ground.untrusted import printable
from dlx.node.cli import options
from dlx.node.cli.progress import Progress
from dlx.node.home.errors import Failure, UsageFailure

if TYPE_CHECKING:
    from dlx.node.home.datadir import DataDir
    from dlx.node.home.settings import Settings
    from dlx.training.models.generate import Writer


class Named(NamedTuple):
    """What a command line names: a folder, or a run (None: the ledger's only one) and its version (None: the newest).
    `average`: whether a version's mean is meant; None: what the manifest says."""

    folder: Path | None = None
    run: str | None = None
    version: int | None = None
    average: bool | None = None


def named(text: str | None, round: int | None = None) -> Named:
    """What FOLDER, RUN, RUN@VERSION or a citation names, `round` being what --round says; None: the ledger's only run.
    Raises UsageFailure."""
    if text is None:
        return Named(version=round)
    if Path(text).is_dir():
        if round is not None:
            raise UsageFailure(f"--round {round}: {text} is a folder, which has one version")
        return Named(Path(text))
    if text.startswith(options.SCHEME):
        run = options.named_run(text)
        return Named(None, run, options.cited_version(round), options.cited_average(sealed=False))
    run, at, version = text.partition("@")
    try:
        run = options.named_run(run)
    except UsageFailure as error:
        raise UsageFailure(f"{text}: there is no such folder, and {error}") from None
    if not at:
        return Named(None, run, round)
    if not (version.isascii() and version.isdigit() and len(version) <= 9):
        raise UsageFailure(f"{text!r}: expected a folder that is there, RUN or RUN@VERSION")
    if round not in (None, int(version)):
        raise UsageFailure(f"{text} is version {version}, --round says {round}")
    return Named(None, run, int(version))


def have(
    stack: ExitStack,
    models: Sequence[Named],
    folder: DataDir,
    settings: Settings,
    blobs: Sequence[Path] | None,
    progress: Progress,
    merged: bool = True,
    base: Path | None = None,
) -> list[Path]:
    """Their folders, those of runs pulled to a temporary one that `stack` removes. `blobs`: what --blobs says;
    `merged`: whether a run's adapter comes with its base, which answers by itself; `base`: what --base says, to which
    adapters' folders are added. Raises Failure, LedgerError."""
    if base is not None:
        models = _whole(stack, models, options.existing_folder(base, "--base"), progress)
    if all(one.folder for one in models):
        return [one.folder for one in models if one.folder]
    from dlx.node.audit.sources.places import Places
    from dlx.node.checkpoints.pull import pull_run
    from dlx.node.home.ledgers import open_index, open_ledger
    from dlx.node.runs import find
    from dlx.training.models.model_files import Form

    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlx-models-")))
    kept = tuple(options.existing_folder(path, "--blobs") for path in blobs or ())
    places = Places(kept, tuple(folder.blob_folders), settings.bootstrap, settings.mailboxes)
    found = []
    with open_ledger(settings, folder) as client, open_index(client) as index:
        for number, one in enumerate(models):
            out = one.folder or work / str(number)
            if one.folder is None:
                view = find.view_of(client, index, find.resolve(index, one.run))
                show, say, form = progress.show, progress.say, Form(merged=merged)
                pull_run(client, view, one.version, out, places, show, say, one.average, form=form)
            found.append(out)
    return found


def _whole(stack: ExitStack, models: Sequence[Named], base: Path, progress: Progress) -> list[Named]:
    """Those that are an adapter's folder in one with the base."""
    from dlx.node.runs.listing import PROVENANCE, read_provenance, run_manifest
    from dlx.training.models.adapters import CONFIG
    from dlx.training.models.merging import merge

    found, work = list(models), Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlx-models-")))
    alone = [number for number, one in enumerate(models) if one.folder and (one.folder / CONFIG).exists()]
    if not alone:
        raise UsageFailure("--base is for the folder of an adapter: all else comes with its base")
    for number in alone:
        folder, out = models[number].folder or Path(), work / str(number)
        progress.step(f"adding {folder} to {base}")
        try:
            merge(run_manifest(folder, str(read_provenance(folder).get("manifest"))), folder, base, out)
            shutil.copy(folder / PROVENANCE, out)  # by which it is cited
        except (ValueError, OSError) as error:
            raise Failure(f"{folder} and --base {base}: {error}") from error
        found[number] = Named(out)
    return found


def load(folder: Path, device: str) -> Writer:
    """Raises Failure."""
    from dlx.training.models.evaluate import EvaluateError
    from dlx.training.models.generate import Writer

    try:
        return Writer(folder, device)
    except EvaluateError as error:
        raise Failure(f"{error}: no model that could answer") from None


def versions_of(folders: Sequence[Path]) -> tuple[bytes, tuple[int, int]]:
    """The run that two pulled folders are of, and their versions. Raises UsageFailure."""
    from dlx.node.runs.listing import PROVENANCE, read_provenance

    found = []
    for folder in folders:
        try:
            said = read_provenance(folder)
            found.append((bytes.fromhex(said["run"][2:]), msgspec.convert(said["version"], int)))
        except (Failure, KeyError, msgspec.ValidationError):
            raise UsageFailure(f"--page: {folder} does not say of which run it is ({PROVENANCE})") from None
    (run, a), (other, b) = found
    if run != other or a == b:
        raise UsageFailure("--page: expected two versions of one run")
    return run, (a, b)


def name_of(folder: Path) -> str:
    """How the version is cited, where the folder says what it is."""
    from dlx.node.checkpoints.card import citation
    from dlx.node.runs.listing import read_provenance

    try:
        return printable(str(citation(read_provenance(folder))))
    except (Failure, ValueError, KeyError, TypeError):
        return folder.absolute().name
