"""One stage's part of a version's held-out loss: a forward pass, from a file of activations to the next one.

Activations are the stage's hidden states, sample after sample, in the run's precision: `width` little-endian values for
each token. They are not quantised as in pipes: what is evaluated is the model, not its links.
"""

import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from dlx.ground.blobs import Damaged, file_hash
from dlx.ground.constants import MICRO, NO_HASH
from dlx.ground.streamed import Stream
from dlx.training.data.shards import Dataset
from dlx.training.inner.packing import pack, packed_bytes, unpack
from dlx.training.models import weights
from dlx.training.models.batches import counted, parted
from dlx.training.models.placement import ONE_THREAD, Placement
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.stages import StageModel
from dlx.training.models.transfers import to_device
from dlx.training.recipe.evaluation import activations_size
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Precision, parse_model

_PIECE = 1 << 24  # bytes
MOST = 1000.0  # nats per token that are stated: a model that is broken has no number


class ActivationsError(ValueError):
    """What the stage before gave is no activations of these samples."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What a stage's pass came to: `activations` (a blob's name), or on the last stage the sum of the losses in
    micronats over `count` tokens."""

    activations: bytes = NO_HASH
    sum: int = 0
    count: int = 0


def stage_pass(
    manifest: Manifest,
    stage: int,
    version: Sequence[bytes],
    samples: Sequence[int],
    dataset: Dataset | None,
    incoming: bytes,
    blobs: Path,
    placement: Placement = ONE_THREAD,
) -> Passed:
    """The pass of `stage` on these held-out samples.

    `version` has the names of all stages' weights. In the folder `blobs` are the stage's, those of its adapter's base,
    the first one's where its embedding is the head, and `incoming`, the activations of the stage before; there go its
    own. `dataset` is needed on stages that read data. A loss that is no number, or above MOST, counts as that.
    `placement`: settled.
    Raises Damaged and DataDamaged for a file to be had again, ActivationsError, WeightsError, DataError, OSError.
    """
    model = StageModel(manifest, stage, placement)
    model.load_base(manifest, blobs)
    model.load(weights.read(blobs / version[stage].hex(), stage_shapes(manifest, stage), sha256=version[stage]))
    if model.tied_head is not None:
        lent = weights.Stored(blobs / version[0].hex(), stage_shapes(manifest, 0), sha256=version[0])
        model.tied_head.data.copy_(torch.from_numpy(lent[f"{model.layout.tokens}.weight"]))
    size = activations_size(manifest, len(samples))
    with ExitStack() as opened, torch.inference_mode():
        source = None if model.is_first else opened.enter_context(_open(blobs / incoming.hex(), incoming, size))
        result = None if model.is_last else opened.enter_context(Stream(blobs, size))
        total, count = 0.0, 0
        at_once = manifest.data.batch_size // manifest.data.micro_batches
        for first in range(0, len(samples), at_once):
            chosen = samples[first : first + at_once]
            words = None
            if dataset is not None:
                batch = dataset.batch("heldout", chosen, manifest.data.sequence_length)
                words = to_device(batch, placement.device)
            hidden, labels, begins = _inputs(manifest, chosen, words, source, placement.device)
            if result is not None:
                result.feed(pack(model(hidden, begins=begins), manifest.precision))
            else:
                assert words is not None
                there = counted(words)
                loss = model(hidden, labels, begins, there).item()
                total += int(there) * (loss if loss <= MOST else MOST)  # nor NaN
                count += int(there)
        if result is not None:
            return Passed(activations=result.finish().sha256)
        return Passed(sum=round(total * MICRO), count=count)


def deviation(own: Path, theirs: Path, precision: Precision) -> float:
    """How far two files of activations of one size are apart: the norm of their difference, as a part of the first's.
    A value that is no number is as far as can be."""
    difference = size = 0.0
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    with open(own, "rb") as first, open(theirs, "rb") as second:
        while data := first.read(_PIECE):
            mine = torch.frombuffer(bytearray(data), dtype=kind).double()
            other = torch.frombuffer(bytearray(second.read(len(data))), dtype=kind).double()
            difference += float((mine - other).square().sum())
            size += float(mine.square().sum())
    found = math.sqrt(difference / size) if size else math.inf
    return found if math.isfinite(found) else math.inf


def _inputs(
    manifest: Manifest, samples: Sequence[int], words: Tensor | None, source: BinaryIO | None, device: str
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Token ids, or the next activations of `source`; and labels and documents' beginnings, where there are data."""
    batch = None if words is None else parted(words, manifest.data.chat)
    labels, begins = (None, None) if batch is None else (batch.labels, batch.begins)
    if source is None:
        assert batch is not None
        return batch.ids, labels, begins
    shape = (len(samples), manifest.data.sequence_length, parse_model(manifest.model).width)
    data = bytearray(source.read(packed_bytes(shape, manifest.precision)))
    return unpack(data, shape, manifest.precision, device), labels, begins


def _open(path: Path, name: bytes, size: int) -> BinaryIO:
    """Raises Damaged, and ActivationsError for a file of another size."""
    try:
        file = open(path, "rb")  # noqa: SIM115  as long as the pass
    except FileNotFoundError:
        raise Damaged(name, "missing") from None
    with ExitStack() as opened:
        opened.enter_context(file)
        found = os.fstat(file.fileno()).st_size
        if file_hash(path) != name:
            raise Damaged(name, "its bytes do not match its name")
        if found != size:
            raise ActivationsError(f"the activations before have {found} bytes instead of {size}")
        opened.pop_all()
    return file
