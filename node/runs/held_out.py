"""The ledger's record of how good each evaluated version is: what its drawn evaluators said of held-out samples.

Who was drawn follows from the hash of one block, so the record is a pure function of the run's events, its manifest and
these hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dlx.ground.constants import MICRO
from dlx.ledger.client import LedgerClient
from dlx.ledger.view.run_view import MAX_EVALUATIONS, RunView
from dlx.node.round.challenges.draw import seals_of
from dlx.node.round.challenges.evaluation import due, evaluation_block, evaluation_of
from dlx.training.recipe.manifest import Manifest

BYTE_VALUES = 256  # of a model that reads bytes


@dataclass(frozen=True)
class HeldOut:
    """Of one version. Losses are in nats."""

    version: int
    loss: float | None  # the lower median of what was said; None: nobody said anything
    per: Literal["token", "byte"]
    said: tuple[tuple[str, float], ...]  # drawn accounts of the last stage, as drawn, and what each said first
    missing: tuple[str, ...]  # those that said nothing, perhaps yet


def held_out(
    view: RunView, manifest: Manifest, block_hash: Callable[[int], bytes | None], first: int = 0
) -> dict[int, HeldOut]:
    """By version, from version `first` on: those that were to be evaluated and whose evaluators are drawn.
    `block_hash`: of a block's number; None: not there yet."""
    found = {}
    for version in _shown(view, manifest, first):
        block = evaluation_block(view, manifest, version)
        hash_ = None if block is None else block_hash(block)
        seals = seals_of(view, version - 1)
        if hash_ is None or seals is None:
            continue
        draw = evaluation_of(seals, hash_, manifest.evaluation.replicas)
        accounts = [evaluator.accounts[-1] for evaluator in draw.evaluators]
        said = {account: one for account in accounts if (one := view.evaluation(account, version)) is not None}
        losses = {account: Fraction(one.sum, one.count) / MICRO for account, one in said.items()}
        found[version] = HeldOut(
            version,
            float(sorted(losses.values())[(len(losses) - 1) // 2]) if losses else None,
            "byte" if manifest.model.config["vocab_size"] == BYTE_VALUES else "token",
            tuple((account, float(loss)) for account, loss in losses.items()),
            tuple(account for account in accounts if account not in losses),
        )
    return found


def losses_of(record: Mapping[int, HeldOut]) -> dict[int, float]:
    """By version, ascending, of those of which anybody said it."""
    return {version: one.loss for version, one in sorted(record.items()) if one.loss is not None}


def read_held_out(client: LedgerClient, view: RunView, manifest: Manifest, first: int = 0) -> dict[int, HeldOut]:
    """`held_out` with the blocks of the chain, asked for all at once. Raises LedgerError."""
    blocks = [evaluation_block(view, manifest, version) for version in _shown(view, manifest, first)]
    hashes = client.block_hashes([block for block in blocks if block is not None])
    return held_out(view, manifest, hashes.get, first)


def _shown(view: RunView, manifest: Manifest, first: int) -> list[int]:
    """The newest of those that were to be evaluated, as many as a view keeps of an account."""
    return due(view, manifest, first)[-MAX_EVALUATIONS:]
