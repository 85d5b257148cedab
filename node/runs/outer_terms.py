"""What a run's config commits to, so that a contract can take the outer step of one element (ledger.outer_proofs)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dlx.ledger.outer_proofs import NOT_PROVABLE, Coding, OuterTerms, StageTerms
from dlx.training.codecs import codec
from dlx.training.codecs.base import count
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.weights import Shapes, layout
from dlx.training.outer.arithmetic import rounded
from dlx.training.recipe.manifest import Manifest


def outer_commitment(manifest: Manifest, genesis: Sequence[bytes]) -> bytes:
    """`outer` of the run's config, 32 bytes, from the Merkle root of each stage's genesis file (see ground.merkle).
    Zeros where no contract decodes the run's codec: then no version of the run can be disproved."""
    terms = outer_terms(manifest, genesis)
    return NOT_PROVABLE if terms is None else terms.digest()


def outer_terms(manifest: Manifest, genesis: Sequence[bytes]) -> OuterTerms | None:
    """None where no contract decodes the run's codec. `genesis`: the root of each stage's file."""
    number = codec(manifest.codec.name).info.contract
    if not number:
        return None
    stages = [stage_terms(stage_shapes(manifest, stage), root) for stage, root in enumerate(genesis)]
    return OuterTerms(
        Coding(number, manifest.plan.level, manifest.plan.rank),
        float_bits(manifest.outer.lr),
        float_bits(manifest.outer.momentum),
        manifest.outer.nesterov,
        [one.digest() for one in stages],
    )


def stage_terms(shapes: Shapes, genesis: bytes) -> StageTerms:
    """Of a stage's tensors, and the root of its genesis file."""
    counts = b"".join(struct.pack(">Q", count(shapes[name])) for name in sorted(shapes))
    return StageTerms(len(layout(shapes).header), genesis, counts)


def float_bits(value: float) -> int:
    """Of the nearest float32.

    Examples:
        >>> hex(float_bits(0.9))
        '0x3f666666'
    """
    return struct.unpack("<I", struct.pack("<f", rounded(value)))[0]
