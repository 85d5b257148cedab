"""What a manifest may say, the ledger takes."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785

from dlx.ledger.view import runs
from dlx.node.runs.find import config_of
from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.manifest import Manifest, parse
from dlx.training.recipe.recipe import MAX_TOKENS, BlobRef, WeightsRef
from dlx.training.recipe.strict import ManifestError

MONTH = 30 * 86400
DRAFT = Path(__file__).parents[3] / "docs" / "107b.toml"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    draft, blob = draft_from_toml(DRAFT), WeightsRef("ab" * 32, 1000, "cd" * 32)
    return complete(draft, [blob] * len(draft.stages), BlobRef(blob.sha256, blob.size))


def changed(manifest: Manifest, **changes: Any) -> Manifest:
    """`a__b` stands for a.b. Raises ManifestError."""
    raw = msgspec.to_builtins(manifest)
    for path, value in changes.items():
        *tables, key = path.split("__")
        place = raw
        for table in tables:
            place = place[table]
        place[key] = value
    return parse(rfc8785.dumps(raw))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_replicas": 64, "min_replicas": 64},
        {"quorum": {"numerator": 32768, "denominator": 65535}},
        {"quorum": {"numerator": 65535, "denominator": 65535}},
        {"timing__min_round_time": MONTH, "timing__round_timeout": MONTH, "timing__eviction_time": MONTH},
        {"timing__start_time": (1 << 36) - 1},
        {"rounds": 1_000_000},
        {"adaptive": None, "plan__inner_steps": 100_000, "rounds": 1000},
    ],
)
def test_a_manifest_at_its_limits_is_one_that_the_ledger_takes(manifest: Manifest, changes: dict[str, Any]) -> None:
    assert runs.config_problem(config_of(changed(manifest, **changes))) is None


def test_a_run_of_too_many_tokens_is_refused_by_both(manifest: Manifest) -> None:
    batch, tokens = 8 * manifest.data.batch_size, 8 * manifest.tokens_per_step
    whole = {"adaptive": None, "max_replicas": 64, "plan__inner_steps": 100_000, "data__batch_size": batch}
    whole["tokens_per_step"] = tokens
    most = MAX_TOKENS // (64 * 100_000 * tokens)
    assert runs.config_problem(config_of(changed(manifest, **whole, rounds=most))) is None
    with pytest.raises(
        ManifestError, match=f"^rounds: expected at most {most}, as a run counts less than 2\\^63 tokens"
    ):
        changed(manifest, **whole, rounds=most + 1)
    config = config_of(changed(manifest, **whole, rounds=most))
    assert "tokens" in str(runs.config_problem(dataclasses.replace(config, rounds=most + 1)))
