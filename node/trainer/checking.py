"""The checking process: replays one contribution's drawn segment and says what it found, then ends."""

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import msgspec
import torch

from dlx.ground.blobs import BlobError, read_blob
from dlx.ledger.typed import PRIVATE_DATA, Contribution, TypedError
from dlx.node.trainer.checks import LENGTH, Outcome, Work, pack
from dlx.training.data.shards import DataError, Dataset
from dlx.training.models.placement import Placement, PlacementError, hardware, settle, take
from dlx.training.models.weights import WeightsError
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, parse
from dlx.training.slot import replay, trace

NICE = 10  # below the training process, which others wait for


def main(descriptor: int) -> None:
    """Answers one Work of the network process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches us too; the network process decides
    os.nice(NICE)
    with socket.socket(fileno=descriptor) as channel, contextlib.suppress(ConnectionError):
        reader = channel.makefile("rb")
        (size,) = LENGTH.unpack(reader.read(LENGTH.size))
        channel.sendall(pack(carry_out(msgspec.msgpack.decode(reader.read(size), type=Work))))
    os._exit(0)


def carry_out(work: Work) -> Outcome:
    """Check a contribution, on the CPU where the device has no room for it beside what is trained."""
    began = time.monotonic()
    try:
        placement = settle(work.placement)
        take(placement)
        try:
            outcome = _checked(work, placement)
        except torch.OutOfMemoryError:
            outcome = _checked(work, msgspec.structs.replace(placement, device="cpu"))
    except replay.Missing as error:
        outcome = Outcome(missing=error.blobs)
    except trace.TraceError as error:
        outcome = Outcome(done=True, reasons=(str(error),))
    except replay.NotCheckable as error:
        outcome = Outcome(refusal=str(error))
    except (BlobError, DataError, PlacementError, WeightsError, TypedError, OSError, MemoryError) as error:
        outcome = Outcome(refusal=f"this machine: {error or type(error).__name__}")
    return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)


def _checked(work: Work, placement: Placement) -> Outcome:
    blobs, statement = Path(work.blobs), Contribution.decode(work.statement)
    manifest = parse(read_blob(blobs / work.manifest.hex(), MAX_BYTES))
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
        next_trace=_next_trace(work, statement),
    )
    found = replay.check_contribution(manifest, drawn, _dataset(manifest, statement, blobs), [blobs], placement)
    return Outcome(
        done=True,
        reasons=found.reasons,
        weights=found.weights,
        optimiser=found.optimiser,
        activations=None if "activations" in found.uncompared else found.activations,
        gradients=None if "gradients" in found.uncompared else found.gradients,
        loss_stated=found.loss_stated,
        loss_replayed=found.loss_replayed,
        disputed=found.disputed,
        hardware=hardware(placement.device),
    )


def _next_trace(work: Work, statement: Contribution) -> trace.Trace | None:
    """The stage after's, as far as it is one of this round."""
    if work.next_trace is None:
        return None
    try:
        return trace.decode(work.next_trace, statement.segments, statement.inner_steps)
    except trace.TraceError:
        return None


def _dataset(manifest: Manifest, statement: Contribution, blobs: Path) -> Dataset | None:
    if statement.stage not in (0, len(manifest.stages) - 1) or statement.flags & PRIVATE_DATA:
        return None
    return Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
