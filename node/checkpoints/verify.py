"""Is a pulled folder what it says it is? Compared with the ledger, file by file; weights are fetched only where the
folder has a mean of versions, whose hash no seal has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dlx.ground.durable import file_hash
from dlx.ground.untrusted import printable
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.outer_replay import Replay, ReplayError
from dlx.node.audit.sources.blobs import Blobs
from dlx.node.checkpoints.card import CARD, card
from dlx.node.checkpoints.pull import provenance, read_beside
from dlx.node.home.diagnostics import FAIL, PASS, WARN, Diagnosis
from dlx.node.home.errors import Failure
from dlx.node.runs.listing import MANIFEST, PROVENANCE, SUMS, check_files, published, run_manifest
from dlx.training.models.export import ExportError, described, stage_hashes
from dlx.training.models.weights import WeightsError
from dlx.training.outer.average import members
from dlx.training.recipe.manifest import Manifest

AGAIN = "dlx-node pull --out DIR"
_WEIGHTS = "model.safetensors"


def verify(folder: Path, stated: dict[str, Any], domain: Domain, view: RunView, blobs: Blobs) -> Iterator[Diagnosis]:
    """What each of the folder's files comes to. `stated`: what its provenance says; `view`: of the run that it names;
    `blobs`: where the run's tokenizer and what the model is used with may be had.

    The ledger's hash comes first: the manifest that has it bounds how much of a strange folder is read.
    """
    version = stated.get("version")
    newest = min(view.next_round(stage) for stage in range(view.config.stages))
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= newest:
        yield Diagnosis("ledger", FAIL, f"the ledger has no version {version!r} of run 0x{view.run.hex()}", AGAIN)
        return
    try:
        manifest = run_manifest(folder, view.config.manifest.hex())
    except Failure as error:
        yield Diagnosis("manifest", FAIL, str(error), AGAIN)
        return
    yield Diagnosis("manifest", PASS, "has the hash on the ledger")
    try:
        check_files(folder, manifest)
    except Failure as error:
        yield Diagnosis("files", FAIL, str(error), AGAIN)
        return
    sums = file_hash(folder / SUMS).hex()
    yield Diagnosis("files", PASS, f"those that {SUMS} lists; checkpoint {sums}")
    mean = [version] if stated.get("average") is None else members(manifest.average, version)
    recorded = provenance(domain, view, version, mean)
    wrong = [key for key, value in recorded.items() if stated.get(key) != value]
    if wrong:
        detail = f"{PROVENANCE} is not what ledger and manifest say: {', '.join(wrong)}"
        yield Diagnosis("ledger", FAIL, detail, AGAIN)
    else:
        yield Diagnosis("ledger", PASS, f"{PROVENANCE} says what the ledger has of version {version}")
    yield _weights(folder, manifest, view, mean, blobs)
    yield from _others(folder, manifest, recorded, blobs)
    for one in published(view, version):
        if one["checkpoint"] == sums:
            yield Diagnosis("published", PASS, f"{one['account']} names this checkpoint on the ledger")


def _weights(folder: Path, manifest: Manifest, view: RunView, mean: Sequence[int], blobs: Blobs) -> Diagnosis:
    """Cut into stages again, the model has to give every hash that a seal holds, or that of the mean of such versions,
    which is computed anew."""
    try:
        found = stage_hashes(manifest, folder / _WEIGHTS)
    except ExportError as error:
        return Diagnosis("weights", FAIL, str(error), AGAIN)
    version = mean[-1]
    if len(mean) > 1:
        return _mean(found, Replay(manifest, view, blobs), mean)
    differs = [str(stage) for stage, digest in enumerate(found) if digest != view.weights(stage, version)]
    if differs:
        detail = f"{_WEIGHTS} is not what stage {', '.join(differs)} sealed as version {version}"
        return Diagnosis("weights", FAIL, detail, AGAIN)
    return Diagnosis("weights", PASS, f"{_WEIGHTS} has the sealed weights of all stages, version {version}")


def _mean(found: Sequence[bytes], replay: Replay, mean: Sequence[int]) -> Diagnosis:
    named = f"the mean of the versions {', '.join(map(str, mean))}"
    try:
        for stage, digest in enumerate(found):
            made = replay.mean(stage, mean[-1], lambda line: None)
            if file_hash(made) != digest:
                return Diagnosis("weights", FAIL, f"{_WEIGHTS} is not {named} that stage {stage} sealed", AGAIN)
            made.unlink()
    except (ReplayError, WeightsError) as error:
        mend = "name a folder with these versions by --blobs"
        return Diagnosis("weights", WARN, f"says to be {named}, which cannot be computed here: {error}", mend)
    return Diagnosis("weights", PASS, f"{_WEIGHTS} has {named} that {len(found)} stages sealed")


def _others(folder: Path, manifest: Manifest, provenance: dict[str, Any], blobs: Blobs) -> Iterator[Diagnosis]:
    """Config and tokenizer decide what the weights say; the card only what people read."""
    missing: list[str] = []
    vocabulary, usage, whole = read_beside(manifest, blobs, missing.append)
    expected = {CARD: card(manifest, provenance).encode()} | (described(manifest, vocabulary, usage) if whole else {})
    known = {*expected, PROVENANCE, MANIFEST, SUMS, _WEIGHTS}
    names = {path.name for path in folder.iterdir()}
    differs = sorted(name for name, content in expected.items() if not _has(folder / name, content))
    if differs:
        mend = "another release of transformers writes another config.json: compare, or pull again"
        yield Diagnosis("config", FAIL, f"not what the run's manifest and data give: {', '.join(differs)}", mend)
    elif names - known:
        more = ", ".join(map(printable, sorted(names - known)[:8]))
        if whole:
            yield Diagnosis("config", FAIL, f"files that no version has: {more}", "remove them")
        else:
            why = f"not compared, for want of the run's tokenizer or chat template: {more} ({'; '.join(missing)})"
            yield Diagnosis("config", WARN, why, "name a folder with the run's blobs by --blobs")
    else:
        yield Diagnosis("config", PASS, "config, tokenizer and card are what the run's manifest and data give")


def _has(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
