"""Level 2, the data: is what the manifest names there, whole, and token ids of the model's vocabulary?"""

from __future__ import annotations

from collections.abc import Callable

from dlx.node.audit.report import Report
from dlx.node.audit.sources.blobs import BlobMissing, Blobs
from dlx.node.home.formatting import bar
from dlx.training.data.shards import (
    MAX_MANIFEST_BYTES,
    DataError,
    DataManifest,
    parse_data_manifest,
    problem_of,
)
from dlx.training.recipe.manifest import Manifest

LEVEL = 2


def audit_data(report: Report, manifest: Manifest, blobs: Blobs, progress: Callable[[str], None]) -> None:
    """Add a check of the data manifest and one of each blob that it lists; one working copy at a time."""
    data = _data_manifest(report, manifest, blobs)
    if data is None:
        return
    listed = list(dict.fromkeys(data.blobs()))
    for number, blob in enumerate(listed):
        progress(f"{bar(number, len(listed))} data: blob {number + 1} of {len(listed)}")
        digest = bytes.fromhex(blob.sha256)
        what = "tokenizer" if blob == data.tokenizer else "shard"
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
    report.add(LEVEL, "data manifest", "FAIL" if wrong else "PASS", "; ".join(wrong), hash=digest)
    return data
