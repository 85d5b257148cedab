"""A wrong element of a sealed version, and the proof of it for the contract OuterProofs, from files on a disk.

docs/protocol/element-proof.md says what is shown. Nothing here is trusted by the contract: a proof that leads to other
roots than the sealed ones is refused there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dlx.ground.merkle import GRAIN_BYTES, Opening, file_leaves, opening
from dlx.ledger.outer_proofs import History, OuterTerms, Proof, Shown, StageTerms
from dlx.ledger.typed import Record, encode_records
from dlx.training.codecs import Codec
from dlx.training.models.weights import Shapes, layout
from dlx.training.recipe.recipe import Plan

_PIECE = 1 << 20  # values compared at a time


class Unprovable(Exception):
    """Why no contract can be shown that a seal is wrong."""


class Element(NamedTuple):
    """A value of a stage's weights or momentum: of the tensor of that number in the order of names, flattened."""

    of_momentum: bool
    tensor: int
    number: int


@dataclass(frozen=True)
class RoundFiles:
    """Of one sealed round: what was sealed, what it was made of. `payloads` and `statements` are those of the records
    whose multiplier is not 0, in their order. `momentum` is None for a run without; `momentum_before` also in the
    beginning."""

    weights: Path
    momentum: Path | None
    weights_before: Path
    momentum_before: Path | None
    payloads: Sequence[Path]
    statements: Sequence[bytes]


@dataclass(frozen=True)
class StageFormat:
    """How a stage's files are to be read."""

    codec: Codec
    plan: Plan
    shapes: Shapes


def wrong_byte(sealed: Path, right: Path) -> int | None:
    """The first byte of a value, or of four of the header, in which two files of one stage differ; None: they do
    not. All NaN are one value. Raises Unprovable for files of different size; OSError."""
    if sealed.stat().st_size != right.stat().st_size:
        raise Unprovable("what was sealed has another size than the stage's files: no contract can open it")
    one, other = (np.memmap(path, np.uint32, "r") for path in (sealed, right))
    for start in range(0, len(one), _PIECE):
        a, b = one[start : start + _PIECE], other[start : start + _PIECE]
        both_nan = np.isnan(a.view(np.float32)) & np.isnan(b.view(np.float32))
        if len(found := np.flatnonzero((a != b) & ~both_nan)):
            return 4 * (start + int(found[0]))
    return None


def element_at(shapes: Shapes, offset: int, of_momentum: bool) -> Element | None:
    """The element that has its first byte there; None in the header."""
    names, starts = sorted(shapes), layout(shapes).starts
    before = [number for number, name in enumerate(names) if starts[name] <= offset]
    if not before:
        return None
    return Element(of_momentum, before[-1], (offset - starts[names[before[-1]]]) // 4)


def proof_of(
    element: Element,
    form: StageFormat,
    files: RoundFiles,
    history: History,
    number: int,
    terms: OuterTerms,
    stage: StageTerms,
    records: Sequence[Record],
) -> Proof:
    """The proof with all contributions in it. Raises OSError."""
    name = sorted(form.shapes)[element.tensor]
    offset = layout(form.shapes).starts[name] + 4 * element.number
    state = [files.momentum if element.of_momentum else files.weights, files.momentum_before]
    state.append(None if element.of_momentum else files.weights_before)
    part = form.codec.parts(form.shapes, form.plan)[name]
    shown = []
    for path, statement in zip(files.payloads, files.statements, strict=True):
        data = np.memmap(path, np.uint8, "r")[part]
        found = form.codec.evidence(form.shapes[name], form.plan, data, element.number)
        spans = [slice(part.start + one.start, part.start + one.stop) for one in found]
        shown.append(Shown(statement, _openings(path, spans)))
    opened = [one for path in state if path is not None for one in _openings(path, [slice(offset, offset + 4)])]
    return Proof(history, number, terms, stage, encode_records(records), *element, opened, 0, shown)


def header_openings(files: RoundFiles, offset: int, of_momentum: bool) -> tuple[list[Opening], list[Opening]]:
    """Of a byte of the header: as it was sealed, and as the version before has it."""
    sealed = files.momentum if of_momentum else files.weights
    assert sealed is not None
    span = [slice(offset, offset + 1)]
    return _openings(sealed, span), _openings(files.weights_before, span)


def _openings(path: Path, spans: Sequence[slice]) -> list[Opening]:
    """Of all grains in which each span lies."""
    leaves = file_leaves(path)
    return [
        opening(path, leaves, grain)
        for span in spans
        for grain in range(span.start // GRAIN_BYTES, (span.stop - 1) // GRAIN_BYTES + 1)
    ]
