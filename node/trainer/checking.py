"""The checking process: replays one contribution's drawn segment and says what it found, then ends."""

import time
from pathlib import Path

import msgspec
import torch

from dlx.ground.blobs import BlobError, read_blob
from dlx.ledger.typed import PRIVATE_DATA, Contribution, TypedError
from dlx.node.trainer.checks import Outcome, Work
from dlx.node.trainer.job import serve
from dlx.training.data.shards import DataError, Dataset
from dlx.training.models.placement import Placement, PlacementError, hardware, of_run, settle, take
from dlx.training.models.weights import WeightsError
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.recipe.recipe import reads_data
from dlx.training.slot import replay, trace
from dlx.training.slot.directions import Projection

_DISTANCES = ("weights", "optimiser", "activations", "gradients")


def main(descriptor: int) -> None:
    """Answers one Work of the network process."""
    serve(descriptor, Work, carry_out)


def carry_out(work: Work) -> Outcome:
    """Check a contribution, on the CPU where the device has no room for it beside what is trained."""
    began = time.monotonic()
    try:
        manifest = parse(read_blob(Path(work.blobs) / work.manifest.hex(), MAX_BYTES))
        wanted = Placement(threads=work.placement.threads) if manifest.is_exact else work.placement
        placement = settle(of_run(manifest, wanted))
        take(placement)
        try:
            outcome = _checked(work, manifest, placement)
        except torch.OutOfMemoryError:
            outcome = _checked(work, manifest, msgspec.structs.replace(placement, device="cpu"))
    except replay.Missing as error:
        outcome = Outcome(missing=error.blobs)
    except trace.TraceError as error:
        outcome = Outcome(done=True, reasons=(str(error),))
    except replay.NotCheckable as error:
        outcome = Outcome(refusal=str(error))
    except (BlobError, DataError, PlacementError, WeightsError, TypedError, OSError, MemoryError) as error:
        outcome = Outcome(refusal=f"this machine: {error or type(error).__name__}")
    return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)


def _checked(work: Work, manifest: Manifest, placement: Placement) -> Outcome:
    blobs, statement = Path(work.blobs), Contribution.decode(work.statement)
    drawn = replay.Drawn(
        stage=work.stage,
        segment=work.segment,
        statement=statement,
        trace=trace.decode(work.trace, statement.segments, statement.inner_steps),
        plan=work.plan,
        steps_before=work.steps_before,
        total_steps=work.total_steps,
        samples=work.samples,
        own_plans=work.own_plans,
    )
    dataset, projection = _dataset(manifest, statement, blobs), Projection(work.key) if work.key else None
    found = replay.check_contribution(manifest, drawn, dataset, [blobs], placement, projection)
    unmeasured = _DISTANCES if manifest.is_exact else found.uncompared
    return Outcome(
        done=True,
        reasons=found.reasons,
        weights=None if "weights" in unmeasured else found.weights,
        optimiser=None if "optimiser" in unmeasured else found.optimiser,
        activations=None if "activations" in unmeasured else found.activations,
        gradients=None if "gradients" in unmeasured else found.gradients,
        loss_stated=found.loss_stated,
        loss_replayed=found.loss_replayed,
        sketches={str(part): one.sketch for part, one in found.deviations.items() if one.sketch},
        hardware=hardware(placement.device),
    )


def _dataset(manifest: Manifest, statement: Contribution, blobs: Path) -> Dataset | None:
    if not reads_data(manifest, statement.stage) or statement.flags & PRIVATE_DATA:
        return None
    return Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
