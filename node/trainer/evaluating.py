"""The evaluating process: one stage's forward pass of a version on held-out samples, then it ends."""

import time
from pathlib import Path

import msgspec
import torch

from dlx.ground.blobs import BlobError, Damaged, read_blob
from dlx.node.trainer.evaluations import Pass, PassOutcome
from dlx.node.trainer.job import serve
from dlx.training.data.shards import DataError, Dataset
from dlx.training.inner.forward import ActivationsError, Passed, stage_pass
from dlx.training.models.placement import Placement, PlacementError, settle, take
from dlx.training.models.weights import WeightsError
from dlx.training.recipe.manifest import MAX_BYTES, parse
from dlx.training.recipe.recipe import reads_data


def main(descriptor: int) -> None:
    """Answers one Pass of the network process."""
    serve(descriptor, Pass, carry_out)


def carry_out(work: Pass) -> PassOutcome:
    """The pass, on the CPU where the device has no room for it beside what is trained."""
    began = time.monotonic()
    try:
        placement = settle(work.placement)
        take(placement)
        try:
            passed = _passed(work, placement)
        except torch.OutOfMemoryError:
            passed = _passed(work, msgspec.structs.replace(placement, device="cpu"))
        outcome = PassOutcome(done=True, activations=passed.activations, sum=passed.sum, count=passed.count)
    except Damaged as error:
        outcome = PassOutcome(missing=(error.blob,))
    except (BlobError, DataError, ActivationsError, PlacementError, WeightsError, OSError, MemoryError) as error:
        outcome = PassOutcome(refusal=str(error) or type(error).__name__)
    return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)


def _passed(work: Pass, placement: Placement) -> Passed:
    blobs = Path(work.blobs)
    manifest = parse(read_blob(blobs / work.manifest.hex(), MAX_BYTES))
    dataset = None
    if reads_data(manifest, work.stage):
        dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    eager = msgspec.structs.replace(placement, compile=False)  # compiling takes longer than a pass
    return stage_pass(manifest, work.stage, work.weights, work.samples, dataset, work.incoming, blobs, eager)
