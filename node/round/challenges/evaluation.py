"""Who computes the held-out loss of a version, and on which samples: chance that nobody could know before.

Version t is what the seals of round t - 1 made. The same block that draws that round's work for a replay draws its
evaluators, and the samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eth_utils import keccak

from dlx.ledger.abi import ZERO32
from dlx.ledger.events import Sealed
from dlx.ledger.typed import Evaluation
from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges.draw import draw_block, seals_of, seed_of
from dlx.training.data.order import permuted
from dlx.training.recipe.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Evaluator:
    """A drawn replica, and who made its contributions to the round, stage 0 first: they evaluate what it led to."""

    replica: int
    accounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationDraw:
    """Of one version. `key`: 32 bytes, which draw its samples."""

    version: int
    evaluators: tuple[Evaluator, ...]
    key: bytes

    def places(self, samples: int, held_out: int) -> list[int]:
        """Which of so many held-out samples are evaluated: `samples` different ones, in the order in which they are
        computed; all where there are fewer."""
        return [permuted(self.key, place, held_out) for place in range(min(samples, held_out))]


def is_due(manifest: Manifest, version: int) -> bool:
    """Whether the version is to be evaluated."""
    every = manifest.evaluation.every
    return version > 0 and every > 0 and version % every == 0


def due(view: RunView, manifest: Manifest, first: int = 0) -> list[int]:
    """The versions from `first` on that are to be evaluated and that all stages have sealed, ascending."""
    every = manifest.evaluation.every
    sealed = min(map(view.next_round, range(view.config.stages)))
    return list(range(max(every, -(-first // every) * every), sealed + 1, every)) if every else []


def evaluation_block(view: RunView, manifest: Manifest, version: int) -> int | None:
    """The number of the block that draws a version's evaluation; None where its seals are not at hand."""
    seals = seals_of(view, version - 1)
    return None if seals is None else draw_block(seals, manifest.audit.draw_after)


def evaluation_of(seals: Sequence[Sealed], block_hash: bytes, replicas: int) -> EvaluationDraw:
    """The evaluation of the version that a round's `seals` (stage 0 first) made, by the hash of its block."""
    run, round = seals[0].run, seals[0].round
    seed = seed_of(block_hash, run, round, [seal.digest for seal in seals])
    makers = [dict(zip((one.replica for one in seal.records), seal.accounts, strict=True)) for seal in seals]
    counted = [replica for replica in makers[0] if all(replica in made for made in makers)]
    lots = sorted(counted, key=lambda replica: keccak(seed + b"evaluation" + replica.to_bytes(2, "big")))
    evaluators = tuple(Evaluator(replica, tuple(made[replica] for made in makers)) for replica in lots[:replicas])
    return EvaluationDraw(round + 1, evaluators, keccak(seed + b"held out"))


@dataclass(frozen=True, slots=True)
class Part:
    """One stage's part of a drawn replica's evaluation. Equal parts are of the same draw."""

    draw: EvaluationDraw
    evaluator: Evaluator
    stage: int

    @property
    def account(self) -> str:
        return self.evaluator.accounts[self.stage]

    @property
    def is_last(self) -> bool:
        return self.stage == len(self.evaluator.accounts) - 1

    @property
    def before(self) -> "Part | None":
        """The part whose activations this one goes on with."""
        return Part(self.draw, self.evaluator, self.stage - 1) if self.stage else None

    def is_of(self, said: Evaluation) -> bool:
        """Whether the evaluation is about this part, and such as it has to be."""
        place = said.version, said.replica, said.stage
        result = said.activations != ZERO32, said.sum > 0, said.count > 0
        return (
            place == (self.draw.version, self.evaluator.replica, self.stage)
            and (said.previous == ZERO32) == (self.stage == 0)
            and (result == (False, True, True) if self.is_last else result == (True, False, False))
        )


def parts(draw: EvaluationDraw) -> list[Part]:
    """All of a version's."""
    return [Part(draw, one, stage) for one in draw.evaluators for stage in range(len(one.accounts))]
