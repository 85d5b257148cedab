"""The run's manifest: the full, immutable description of one training job, of which the ledger has the hash."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
import rfc8785
from msgspec import Meta, Struct

from dlx.ground.constants import MICRO
from dlx.ground.untrusted import decode_json
from dlx.training.recipe.evaluation import MOST_BEFORE
from dlx.training.recipe.recipe import (
    BlobRef,
    Evaluation,
    Recipe,
    Retention,
    Samples,
    Sha256,
    Tokens,
    WeightsRef,
    parse_model,
)
from dlx.training.recipe.soundness import check
from dlx.training.recipe.strict import ManifestError, convert, fail, refuse_absent
from dlx.training.recipe.usage import MAX_BYTES as MAX_USAGE_BYTES

MAX_BYTES = 256 * 1024  # of a manifest, and of a draft


class Data(Samples, frozen=True, forbid_unknown_fields=True, kw_only=True):
    manifest: BlobRef


class Lineage(Struct, frozen=True, forbid_unknown_fields=True):
    """The version of another run that this one starts from."""

    chain_id: Annotated[int, Meta(ge=1, lt=1 << 53)]  # what RFC 8785 can write
    ledger: Annotated[str, Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z")]
    run: Annotated[str, Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
    version: Annotated[int, Meta(ge=0, le=1_000_000)]


class Before(Struct, frozen=True, forbid_unknown_fields=True):
    """The held-out loss of the genesis, by the run's creator: micronats (`sum`) over `count` targets of so many
    samples, spread over the held-out data (training.recipe.evaluation.spread)."""

    samples: Annotated[int, Meta(ge=1, le=MOST_BEFORE)]  # whoever audits computes them again
    sum: Annotated[int, Meta(ge=1, lt=1 << 53)]
    count: Annotated[int, Meta(ge=1, lt=1 << 32)]


class Manifest(Recipe, frozen=True, forbid_unknown_fields=True, kw_only=True):
    lineage: Lineage | None = None  # a manifest states it all the same
    usage: BlobRef | None = None  # likewise; see training.recipe.usage
    before: Before | None = None  # likewise; of a run that starts from a model
    salt: Sha256
    genesis: Annotated[list[WeightsRef], Meta(min_length=1, max_length=64)]
    base: Annotated[list[WeightsRef], Meta(max_length=64)]  # of an adapter: the weights that stay, of each stage
    data: Data
    tokens_per_step: Tokens
    retention: Retention
    evaluation: Evaluation

    @property
    def loss_before(self) -> float | None:
        """What `before` says, in nats a token, or byte; None where it says nothing."""
        return None if self.before is None else self.before.sum / self.before.count / MICRO


def parse(data: bytes) -> Manifest:
    """The manifest in `data`, which may come from anyone. Raises ManifestError unless it is canonical and sound."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"manifest: expected at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        raw = decode_json(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"manifest: not readable as JSON ({error})") from None
    manifest = convert(raw, Manifest)
    check(manifest, parse_model(manifest.model))
    if len(manifest.genesis) != len(manifest.stages):
        fail("genesis", f"expected one blob per stage ({len(manifest.stages)})", len(manifest.genesis))
    if len(manifest.base) != (frozen := len(manifest.stages) if manifest.adapter else 0):
        expected = f"one blob per stage ({frozen})" if frozen else "none without an adapter"
        fail("base", f"expected {expected}", len(manifest.base))
    if manifest.usage is not None and manifest.usage.size > MAX_USAGE_BYTES:
        fail("usage.size", f"expected at most {MAX_USAGE_BYTES}", manifest.usage.size)
    if canonical_bytes(manifest) != data:
        refuse_absent(raw, msgspec.to_builtins(manifest), "")
        raise ManifestError("manifest: expected canonical JSON (RFC 8785)")
    return manifest


def canonical_bytes(manifest: Manifest) -> bytes:
    """The manifest as RFC 8785 JSON."""
    return rfc8785.dumps(msgspec.to_builtins(manifest))


def manifest_hash(manifest: Manifest) -> bytes:
    """The 32-byte sha256 of the canonical bytes: what the ledger records."""
    return hashlib.sha256(canonical_bytes(manifest)).digest()
