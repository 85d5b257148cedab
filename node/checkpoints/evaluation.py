"""How good a version of a run is: its loss on held-out text, or tasks of lm-evaluation-harness."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dlx.ledger.client import LedgerClient
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.sources.blobs import BlobMissing, Blobs, Source
from dlx.node.audit.sources.places import Places
from dlx.node.audit.sources.search import open_sources
from dlx.node.checkpoints import harness
from dlx.node.checkpoints.pull import open_blobs, pull, read_manifest
from dlx.node.home.errors import Failure
from dlx.node.home.formatting import bar
from dlx.training.data.shards import (
    BYTE_VALUES,
    MAX_MANIFEST_BYTES,
    SHARD_BYTES,
    DataDamaged,
    DataError,
    Dataset,
    parse_data_manifest,
)
from dlx.training.models.batches import counted
from dlx.training.models.evaluate import EvaluateError, heldout_loss, heldout_samples
from dlx.training.models.model_files import MERGED


class Tasks(msgspec.Struct, frozen=True):
    names: Sequence[str]
    folders: Sequence[Path]  # of tasks that are described in YAML files
    limit: int | None  # samples of each task; None: all
    batch: int  # samples at a time


def evaluate_run(
    client: LedgerClient,
    view: RunView,
    version: int | None,
    places: Places,
    tasks: Tasks | None,
    samples: int,
    device: str,
    show: Callable[[str], None],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """`evaluate` with blobs from `places` and the run's peers, in a temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="dlx-evaluate-") as work,
        open_sources(client, view.run, places, say, show) as sources,
    ):
        return evaluate(client.domain, view, version, Path(work), sources, tasks, samples, device, say, show)


def evaluate(
    domain: Domain,
    view: RunView,
    version: int | None,
    work: Path,
    sources: Sequence[Source],
    tasks: Tasks | None,
    samples: int,
    device: str,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> dict[str, Any]:
    """Pull a version (None: the newest) to `work` and say what it is worth.

    The result has `run`, `version`, `stages` with the hash of the weights of each, and the sha256 of
    `model.safetensors`. It has either `tasks` (see harness.run) or `heldout`: the mean loss in nats of at most so many
    samples, its perplexity, and per what (token or byte). Where the run publishes means, `average` has the `versions`,
    `model` and `heldout` of what `pull` gives, and the tasks run on that.

    Raises Failure, DataError.
    """
    found = pull(domain, view, version, work / "model", sources, say, show, form=MERGED)
    mean = found["average"] and {"versions": found["average"], "model": found["model"]}
    if mean and tasks is None:
        found = pull(domain, view, found["version"], work / "sealed", sources, say, show, False, MERGED)
    result = {key: found[key] for key in ("run", "version", "manifest", "model")} | {"average": mean}
    result["stages"] = [{key: stage[key] for key in ("stage", "weights")} for stage in found["stages"]]
    if tasks is not None:
        show("running the tasks")
        return result | harness.run(work / "model", tasks.names, tasks.folders, tasks.limit, tasks.batch, device)
    (work / "blobs").mkdir()
    blobs = open_blobs(sources, work / "blobs", say)
    try:
        manifest = read_manifest(view, blobs)
        named = manifest.data.manifest
        data = blobs.get(bytes.fromhex(named.sha256), min(named.size, MAX_MANIFEST_BYTES))
        dataset = Dataset(parse_data_manifest(data.read_bytes()), work / "blobs")
        length = manifest.data.sequence_length
        chosen = heldout_samples(dataset, length, samples)
        for done, sample in enumerate(chosen):
            show(f"{bar(done, len(chosen))} held-out sample {done} of {len(chosen)}")
            _fetch(dataset, sample, length, blobs)
        show("computing the loss")
        tokens = int(counted(dataset.batch("heldout", chosen, length)))
        models = [work / "sealed", work / "model"] if mean else [work / "model"]
        losses = [heldout_loss(model, dataset, length, samples, device) for model in models]
    except BlobMissing as error:
        raise Failure(f"the run's held-out data cannot be had: {error}") from error
    except EvaluateError as error:
        raise Failure(str(error)) from error
    unit = "byte" if dataset.manifest.tokenizer == "bytes" and dataset.vocab_size == BYTE_VALUES else "token"
    heldout = [
        {"loss": loss, "perplexity": math.exp(min(loss, 700)), "per": unit, "samples": len(chosen)} | {"tokens": tokens}
        for loss in losses
    ]
    return result | {"heldout": heldout[0], "average": mean and mean | {"heldout": heldout[1]}}


def _fetch(dataset: Dataset, sample: int, length: int, blobs: Blobs) -> None:
    """Have the shards of a held-out sample."""
    for _ in range(2):
        try:
            dataset.batch("heldout", [sample], length)
            return
        except DataDamaged as missing:
            blobs.get(missing.blob, SHARD_BYTES)
    raise DataError("a shard of the held-out data is not what the data manifest says")
