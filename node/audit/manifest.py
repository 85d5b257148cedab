"""Level 2, the manifest and what it names: is its data whole, did the run begin with the version that it names?"""

from __future__ import annotations

from collections.abc import Callable

from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.report import Report
from dlx.node.audit.sources.blobs import BlobMissing, Blobs
from dlx.node.home.citation import Citation
from dlx.node.home.formatting import bar
from dlx.node.runs.find import differences
from dlx.training.data.shards import (
    MAX_MANIFEST_BYTES,
    DataError,
    DataManifest,
    parse_data_manifest,
    problem_of,
)
from dlx.training.recipe.manifest import MAX_BYTES, Lineage, Manifest, parse
from dlx.training.recipe.strict import ManifestError

LEVEL = 2


def audit_manifest(report: Report, view: RunView, blobs: Blobs) -> Manifest | None:
    """Add a check of the manifest itself, and give it where all that follows can rest on it."""
    digest = view.config.manifest
    try:
        manifest = parse(blobs.get(digest, MAX_BYTES).read_bytes())
    except BlobMissing as error:
        report.add(LEVEL, "manifest", "WARN", f"it is gone: {error.reason}", hash=digest)
        report.add(LEVEL, "replay", "SKIP", "nothing can be replayed without the manifest")
        report.cannot_establish("everything that rests on blobs: the manifest is gone")
        return None
    except ManifestError as error:
        report.add(LEVEL, "manifest", "FAIL", str(error), hash=digest)
        report.add(LEVEL, "replay", "SKIP", "nothing can be replayed without the manifest")
        return None
    differing = differences(manifest, view)
    if differing:
        report.add(LEVEL, "manifest", "FAIL", f"the ledger says otherwise: {'; '.join(differing)}", hash=digest)
        return None
    report.add(LEVEL, "manifest", "PASS", manifest.name, hash=digest)
    report.facts["confirmations"] = manifest.confirmations
    return manifest


def manifest_of(parent: RunView, blobs: Blobs) -> Manifest | None:
    """Another run's manifest, if it can be had."""
    if not parent.created:
        return None
    try:
        return parse(blobs.get(parent.config.manifest, MAX_BYTES).read_bytes())
    except (BlobMissing, ManifestError):
        return None
    finally:
        blobs.drop(parent.config.manifest)


def audit_lineage(report: Report, manifest: Manifest, parent: RunView | None, other: Manifest | None) -> None:
    """`parent`: the run that the manifest names, None where it is on another ledger; `other`: its manifest, if that can
    be had. Cut in the same stages, the same weights have the same hashes; where they are cut otherwise, only who has
    both can compare them."""
    lineage = manifest.lineage
    if lineage is None:
        return
    named = str(Citation(lineage.chain_id, lineage.ledger, lineage.run, lineage.version))
    if parent is None:
        report.add(LEVEL, "lineage", "SKIP", f"{named} is on another ledger")
        report.cannot_establish(f"that the run starts from {named}: audit that run, and compare the weights")
        return
    sealed = min(map(parent.next_round, range(parent.config.stages))) if parent.created else -1
    if lineage.version > sealed:
        report.add(LEVEL, "lineage", "FAIL", f"the ledger has no such version: {named}")
        return
    stages = range(parent.config.stages)
    before = [parent.weights(stage, lineage.version).hex() for stage in stages]
    if [blob.sha256 for blob in manifest.base or manifest.genesis] == before:
        report.add(LEVEL, "lineage", "PASS")
    elif other is not None and (other.stages, other.model) == (manifest.stages, manifest.model):
        report.add(LEVEL, "lineage", "FAIL", f"the first weights are not those of {named}")
    else:
        report.add(LEVEL, "lineage", "WARN", f"{named} is cut in other stages than this run, and was not compared")
        report.cannot_establish(f"that the run starts from {named}: pull both, and compare the weights")


def is_here(lineage: Lineage, domain: Domain) -> bool:
    """Whether the run that is named is on this ledger."""
    return (lineage.chain_id, lineage.ledger.lower()) == (domain.chain_id, domain.ledger.lower())


def audit_data(report: Report, manifest: Manifest, blobs: Blobs, progress: Callable[[str], None]) -> None:
    """Add a check of the data manifest and one of each blob that it lists; one working copy at a time."""
    data = _data_manifest(report, manifest, blobs)
    if data is None:
        return
    listed = list(dict.fromkeys(data.blobs()))
    for number, blob in enumerate(listed):
        progress(f"{bar(number, len(listed))} data: blob {number + 1} of {len(listed)}")
        digest = bytes.fromhex(blob.sha256)
        what = {data.tokenizer: "tokenizer"}.get(blob, "chat template") if blob in data.files() else "shard"
        try:
            problem = problem_of(data, blob, blobs.get(digest, blob.size))
        except BlobMissing as error:
            report.add(LEVEL, "data", "WARN", f"a {what} is gone: {error.reason}", hash=digest)
            report.cannot_establish("that all data is what its manifest says: parts of it are gone")
        else:
            detail = f"a {what} {problem.reason}" if problem else ""
            report.add(LEVEL, "data", "FAIL" if problem else "PASS", detail, hash=digest)
        blobs.drop(digest)


def _data_manifest(report: Report, manifest: Manifest, blobs: Blobs) -> DataManifest | None:
    named = manifest.data.manifest
    digest = bytes.fromhex(named.sha256)
    try:
        content = blobs.get(digest, min(named.size, MAX_MANIFEST_BYTES)).read_bytes()
        data = parse_data_manifest(content)
    except BlobMissing as error:
        report.add(LEVEL, "data manifest", "WARN", f"it is gone: {error.reason}", hash=digest)
        report.add(LEVEL, "data", "SKIP", "no shard is known without the data manifest")
        report.cannot_establish("anything about the data: its manifest is gone")
        return None
    except DataError as error:
        report.add(LEVEL, "data manifest", "FAIL", str(error), hash=digest)
        report.add(LEVEL, "data", "SKIP", "no shard is known without the data manifest")
        return None
    finally:
        blobs.drop(digest)
    wrong, vocabulary = [], int(manifest.model.config["vocab_size"])
    if len(content) != named.size:
        wrong.append(f"it has {len(content)} bytes, the run's manifest says {named.size}")
    if data.vocab_size > vocabulary:
        wrong.append(f"its tokens are below {data.vocab_size}, the model knows {vocabulary}")
    if manifest.data.chat != (data.rows is not None):
        wrong.append(f"it has {data.kind}, the run says data.chat = {str(manifest.data.chat).lower()}")
    report.add(LEVEL, "data manifest", "FAIL" if wrong else "PASS", "; ".join(wrong), hash=digest)
    return data
