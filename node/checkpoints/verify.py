"""Is a pulled folder what it says it is? Compared with the ledger, file by file; weights are fetched only where the
folder has a mean of versions, whose hash no seal has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dlx.ground.blobs import BlobError
from dlx.ground.durable import file_hash
from dlx.ground.untrusted import printable
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.outer_replay import Replay, ReplayError
from dlx.node.audit.sources.blobs import Blobs
from dlx.node.checkpoints import held_out, scores
from dlx.node.checkpoints.card import CARD, card
from dlx.node.checkpoints.pull import Beside, have_base, provenance, read_beside
from dlx.node.home.diagnostics import FAIL, PASS, WARN, Diagnosis
from dlx.node.home.errors import Failure
from dlx.node.home.program import line
from dlx.node.runs.listing import (
    HELD_OUT,
    MANIFEST,
    PROVENANCE,
    SCORES,
    SUMS,
    check_files,
    published,
    read_form,
    run_manifest,
)
from dlx.training.models.export import ExportError, described, export, file_hashes
from dlx.training.models.gguf_file import FILE
from dlx.training.models.model_files import INDEX, Files, Folder, Form, index, read_split
from dlx.training.models.weights import WeightsError
from dlx.training.outer.average import members
from dlx.training.recipe.manifest import Manifest


def again(folder: Path, *words: object) -> str:
    """The command that fetches it anew, beside the folder. `words`: of which run and version it is, where that is
    known."""
    whole = folder.resolve()
    return line("pull", *words, "--out", whole.with_name(f"{whole.name}-again"), of_ledger=True)


def verify(folder: Path, stated: dict[str, Any], domain: Domain, view: RunView, blobs: Blobs) -> Iterator[Diagnosis]:
    """What each of the folder's files comes to. `stated`: what its provenance says; `view`: of the run that it names;
    `blobs`: where the run's tokenizer and what the model is used with may be had.

    The ledger's hash comes first: the manifest that has it bounds how much of a strange folder is read.
    """
    version, run = stated.get("version"), f"0x{view.run.hex()}"
    newest = min(view.next_round(stage) for stage in range(view.config.stages))
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= newest:
        yield Diagnosis("ledger", FAIL, f"the ledger has no version {version!r} of run {run}", again(folder, run))
        return
    mend = again(folder, run, "--round", version)
    try:
        manifest = run_manifest(folder, view.config.manifest.hex())
    except Failure as error:
        yield Diagnosis("manifest", FAIL, str(error), mend)
        return
    yield Diagnosis("manifest", PASS, "has the hash on the ledger")
    try:
        form = read_form(stated)
        check_files(folder, manifest, form)
    except Failure as error:
        yield Diagnosis("files", FAIL, str(error), mend)
        return
    sums = file_hash(folder / SUMS).hex()
    yield Diagnosis("files", PASS, f"those that {SUMS} lists; checkpoint {sums}")
    mean = [version] if stated.get("average") is None else members(manifest.average, version)
    recorded = provenance(domain, view, version, mean, manifest, form.merged)
    wrong = [key for key, value in recorded.items() if stated.get(key) != value]
    if wrong:
        detail = f"{PROVENANCE} is not what ledger and manifest say: {', '.join(wrong)}"
        yield Diagnosis("ledger", FAIL, detail, mend)
    else:
        yield Diagnosis("ledger", PASS, f"{PROVENANCE} says what the ledger has of version {version}")
    replay = Replay(manifest, view, blobs)
    missing: list[str] = []
    beside = read_beside(manifest, blobs, missing.append)
    if form == Form():
        yield _weights(folder, manifest, view, mean, replay, stated.get("model"), mend)
    else:
        yield _remade(folder, manifest, replay, mean, form, beside, blobs, mend)
    recorded |= {key: stated[key] for key in ("format", "dtype")}
    yield from _others(folder, manifest, recorded, form, beside, missing)
    if (said := held_out.check(folder, view, version, mend)) is not None:
        yield said
    model = None if manifest.adapter is not None and not form.merged else str(stated.get("model"))
    yield from scores.check_folder(folder, view, version, recorded["average"], model)
    for one in published(view, version):
        if one["checkpoint"] == sums:
            yield Diagnosis("published", PASS, f"{one['account']} names this checkpoint on the ledger")


def _weights(
    folder: Path, manifest: Manifest, view: RunView, mean: Sequence[int], replay: Replay, model: object, again: str
) -> Diagnosis:
    """Cut into stages again, the model has to give every hash that a seal holds, or that of the mean of such versions,
    which is computed anew. `model`: the hash of all in one file, as the folder says; `again`: what mends it."""
    try:
        whole = Folder(manifest, folder)
        found = whole.stage_hashes()
        if whole.model_hash().hex() != model:
            return Diagnosis("weights", FAIL, f"the model has another hash than its {PROVENANCE} says", again)
    except (OSError, WeightsError) as error:
        return Diagnosis("weights", FAIL, f"{folder}: {error}", again)
    version = mean[-1]
    if len(mean) > 1:
        return _mean(found, replay, mean, again)
    differs = [str(stage) for stage, digest in enumerate(found) if digest != view.weights(stage, version)]
    if differs:
        detail = f"the model is not what stage {', '.join(differs)} sealed as version {version}"
        return Diagnosis("weights", FAIL, detail, again)
    return Diagnosis("weights", PASS, f"the model has the sealed weights of all stages, version {version}")


def _remade(
    folder: Path,
    manifest: Manifest,
    replay: Replay,
    mean: Sequence[int],
    form: Form,
    beside: Beside,
    blobs: Blobs,
    again: str,
) -> Diagnosis:
    """No seal has the hash of weights in another form, nor of a base with factors merged into it: they are made anew of
    the sealed ones."""
    what = "the base and the sealed factors" if form.merged else "the sealed weights"
    what += f", in {form.dtype}"
    try:
        base = have_base(manifest, blobs, lambda line: None) if form.merged else None
        make = replay.mean if len(mean) > 1 else replay.rebuild
        made = [make(stage, mean[-1], lambda line: None) for stage in range(len(manifest.stages))]
        if form.gguf:
            export(manifest, made, blobs.work / "again", beside.vocabulary, beside.usage, form, base)
            expected = {FILE: file_hash(blobs.work / "again" / FILE)}
        else:
            expected = file_hashes(manifest, made, read_split(manifest, folder), form.dtype, base)
    except (BlobError, ExportError, Failure, ReplayError, WeightsError) as error:
        mend = "name a folder with the run's blobs by --blobs, or pull without --dtype, --format and --merged"
        return Diagnosis("weights", WARN, f"this form is compared with {what}, but {error}", mend)
    if differs := [name for name, digest in expected.items() if not _same(folder / name, digest)]:
        return Diagnosis("weights", FAIL, f"not {what}: {', '.join(differs)}", again)
    return Diagnosis("weights", PASS, f"the model has {what}, of all stages")


def _same(path: Path, digest: bytes) -> bool:
    return path.is_file() and file_hash(path) == digest


def _mean(found: Sequence[bytes], replay: Replay, mean: Sequence[int], again: str) -> Diagnosis:
    named = f"the mean of the versions {', '.join(map(str, mean))}"
    try:
        for stage, digest in enumerate(found):
            made = replay.mean(stage, mean[-1], lambda line: None)
            if file_hash(made) != digest:
                return Diagnosis("weights", FAIL, f"the model is not {named} that stage {stage} sealed", again)
            made.unlink()
    except (ReplayError, WeightsError) as error:
        mend = "name a folder with these versions by --blobs"
        return Diagnosis("weights", WARN, f"says to be {named}, which cannot be computed here: {error}", mend)
    return Diagnosis("weights", PASS, f"the model has {named} that {len(found)} stages sealed")


def _others(
    folder: Path, manifest: Manifest, provenance: dict[str, Any], form: Form, beside: Beside, missing: Sequence[str]
) -> Iterator[Diagnosis]:
    """Config and tokenizer decide what the weights say; the card only what people read. `missing`: why `beside` is not
    whole."""
    expected, whole = {CARD: card(manifest, provenance).encode()}, beside.whole
    if form.gguf:
        files: Files = {FILE: {}}
        whole = True  # the file holds tokenizer and config
    else:
        files = read_split(manifest, folder)
        expected |= {INDEX: index(files, form.dtype)} if len(files) > 1 else {}
        expected |= described(manifest, beside.vocabulary, beside.usage, form) if whole else {}
    known = {*expected, PROVENANCE, MANIFEST, SUMS, HELD_OUT, SCORES, *files}
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
