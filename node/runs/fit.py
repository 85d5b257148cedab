"""What a run's recipe has to fit: the ledger's own record of it."""

from __future__ import annotations

from dataclasses import asdict

from dlx.ledger.typed import RunConfig
from dlx.ledger.view.run_view import RunView
from dlx.training.recipe.manifest import Manifest, manifest_hash
from dlx.training.recipe.recipe import max_inner_steps


def differences(manifest: Manifest, view: RunView) -> list[str]:
    """Where the ledger's own record of the run differs from the manifest that it names: such a run is not to be
    trusted."""
    stated = {"name": manifest.name} | asdict(config_of(manifest))
    registered = {"name": view.name} | asdict(view.config)
    found = [f"{key} is {stated[key]}, there {registered[key]}" for key in stated if stated[key] != registered[key]]
    return found if genesis_of(manifest) == list(view.genesis) else [*found, "another genesis"]


def genesis_of(manifest: Manifest) -> list[bytes]:
    """The hash of each stage's first weights."""
    return [bytes.fromhex(blob.sha256) for blob in manifest.genesis]


def config_of(manifest: Manifest) -> RunConfig:
    """The numbers of a manifest that the ledger enforces."""
    return RunConfig(
        manifest=manifest_hash(manifest),
        rounds=manifest.rounds,
        stages=len(manifest.stages),
        min_replicas=manifest.min_replicas,
        max_replicas=manifest.max_replicas,
        quorum_numerator=manifest.quorum.numerator,
        quorum_denominator=manifest.quorum.denominator,
        min_round_time=manifest.timing.min_round_time,
        round_timeout=manifest.timing.round_timeout,
        eviction_time=manifest.timing.eviction_time,
        max_inner_steps=max_inner_steps(manifest),
        start_time=manifest.timing.start_time,
        tokens_per_step=manifest.tokens_per_step,
    )
