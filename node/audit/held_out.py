"""Level 3: is the held-out loss that was stated that of the version? What the window's evaluators said is recomputed
from the public versions and the held-out data alone.

A loss that is false is traced back, stage by stage, to whoever's output does not follow from the input that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlx.ground.constants import MICRO, NO_HASH
from dlx.ledger.events import Evaluated
from dlx.ledger.typed import EVALUATION_SIZE, SignatureError, SignedEvaluation, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.replay_choice import ReplayChoice
from dlx.node.audit.report import Report
from dlx.node.audit.sources.blobs import BlobMissing, Blobs, Source
from dlx.node.round.challenges.draw import drawable, seals_of
from dlx.node.round.challenges.evaluation import (
    EvaluationDraw,
    Part,
    due,
    evaluation_block,
    evaluation_of,
    parts,
)
from dlx.node.trainer.evaluations import Pass, PassOutcome
from dlx.training.data import shards
from dlx.training.models.placement import Placement
from dlx.training.recipe.evaluation import TOLERANCE, Tolerance, activations_size, spread
from dlx.training.recipe.manifest import MAX_BYTES, Before, Manifest, parse
from dlx.training.recipe.recipe import embedding_shape, reads_data
from dlx.training.recipe.strict import ManifestError

LEVEL = 3
CHECK = "held-out loss"


class NotComputed(Exception):
    """The loss cannot be computed here; the message says why."""


@dataclass(frozen=True)
class Recomputer:
    """Of one run; working copies lie in `blobs.work`."""

    manifest: Manifest
    data: shards.DataManifest
    view: RunView
    blobs: Blobs
    placement: Placement

    def loss(self, version: int, samples: Sequence[int]) -> PassOutcome:
        """What the last stage of a version comes to on these held-out samples. Raises NotComputed."""
        incoming, outcome = NO_HASH, PassOutcome()
        for stage in range(self.view.config.stages):
            outcome = self.passed(version, samples, stage, incoming)
            incoming = outcome.activations
        return outcome

    def passed(self, version: int, samples: Sequence[int], stage: int, incoming: bytes) -> PassOutcome:
        """What a stage comes to, from activations that are in the folder. Raises NotComputed."""
        from dlx.node.trainer.evaluating import carry_out  # torch

        view, length = self.view, self.manifest.data.sequence_length
        weights = tuple(view.weights(one, version) for one in range(view.config.stages))
        last = stage == view.config.stages - 1
        try:
            for one in {stage, 0} if last and embedding_shape(self.manifest) else {stage}:
                self.blobs.get(weights[one], self.manifest.genesis[one].size)
            for base in self.manifest.base[stage : stage + 1]:
                self.blobs.get(bytes.fromhex(base.sha256), base.size)
            reads = reads_data(self.manifest, stage)
            for shard in shards.held_out_shards(self.data, samples, length) if reads else ():
                self.blobs.get(bytes.fromhex(shard.sha256), shard.size)
        except BlobMissing as error:
            raise NotComputed(f"nobody gives what it takes: {error}") from None
        outcome = carry_out(
            Pass(
                manifest=view.config.manifest,
                blobs=str(self.blobs.work),
                stage=stage,
                weights=weights,
                samples=tuple(samples),
                incoming=incoming,
                placement=self.placement,
            )
        )
        if not outcome.done:
            raise NotComputed(outcome.refusal or "what it takes is damaged on this disk")
        return outcome

    @property
    def held_out(self) -> int:
        """How many samples there are."""
        return shards.held_out_samples(self.data, self.manifest.data.sequence_length)

    def samples(self, draw: EvaluationDraw) -> list[int]:
        return draw.places(self.manifest.evaluation.samples, self.held_out)

    def blame(self, said: Evaluated, part: Part) -> str:
        """Whose output does not follow from the input that it names, in words."""
        from dlx.training.inner.forward import deviation  # torch

        samples, most = self.samples(part.draw), TOLERANCE[self.manifest.precision]
        size = activations_size(self.manifest, len(samples))
        name, at = said.statement, part
        try:
            while True:
                stated = self._statement(name, at)
                if (before := at.before) is not None:
                    earlier = self._statement(stated.evaluation.previous, before)
                    self.blobs.get(earlier.evaluation.activations, size)
                    found = self.passed(at.draw.version, samples, at.stage, earlier.evaluation.activations)
                else:
                    found = self.passed(at.draw.version, samples, 0, NO_HASH)
                if at.is_last:
                    same = is_near(stated.evaluation.sum, stated.evaluation.count, found, most)
                else:
                    own = self.blobs.work / found.activations.hex()
                    theirs = self.blobs.get(stated.evaluation.activations, size)
                    same = deviation(own, theirs, self.manifest.precision) <= most.activations
                if not same:
                    return f"{at.account} (stage {at.stage}) states what its input does not give"
                if before is None:
                    return "no stage's part is false by itself"
                name, at = stated.evaluation.previous, before
        except (BlobMissing, NotComputed) as error:
            return f"who of its replica misstates it cannot be said: {error}"
        except (TypedError, SignatureError) as error:
            return f"what {at.account} (stage {at.stage}) signed is no evaluation of it: {error}"

    def _statement(self, name: bytes, part: Part) -> SignedEvaluation:
        """What a part's account signed. Raises BlobMissing, TypedError, SignatureError."""
        signed = SignedEvaluation.decode(self.blobs.get(name, EVALUATION_SIZE).read_bytes())
        if signed.signer(self.view.domain) != part.account or not part.is_of(signed.evaluation):
            raise TypedError("it is another's, or about something else")
        return signed


def is_near(sum: int, count: int, own: PassOutcome, most: Tolerance) -> bool:
    """Whether a loss that is stated is that which was computed."""
    return count == own.count and abs(sum - own.sum) <= most.loss * own.sum


def audit_held_out(
    report: Report,
    view: RunView,
    block_hash: Callable[[int], bytes | None],
    sources: Sequence[Source],
    work: Path,
    choice: ReplayChoice,
    progress: Callable[[str], None],
) -> None:
    """Add the checks of the held-out losses that were stated of the versions which the chosen rounds led to."""
    blobs = Blobs(sources, work)
    try:
        manifest = parse(blobs.get(view.config.manifest, MAX_BYTES).read_bytes())
        named = manifest.data.manifest
        listed = blobs.get(bytes.fromhex(named.sha256), min(named.size, shards.MAX_MANIFEST_BYTES)).read_bytes()
        recomputer = Recomputer(manifest, shards.parse_data_manifest(listed), view, blobs, choice.placement)
    except (BlobMissing, ManifestError, shards.DataError) as error:
        report.add(LEVEL, CHECK, "SKIP", f"nothing can be computed without manifest and list of the data: {error}")
        return
    permanent = {entry.name for entry in work.iterdir()}
    if manifest.before is not None and choice.rounds is None:
        progress("held-out loss of version 0")
        _check_before(report, recomputer, manifest.before)
        _leave(work, permanent)
    rounds = drawable(view, manifest.audit.window) if choice.rounds is None else choice.rounds
    for version in (one for one in due(view, manifest) if one - 1 in rounds):
        block, seals = evaluation_block(view, manifest, version), seals_of(view, version - 1)
        hash_ = None if block is None else block_hash(block)
        if seals is None or hash_ is None:
            report.note(f"not drawn yet: who evaluates version {version}")
            continue
        progress(f"held-out loss of version {version}")
        _check(report, recomputer, evaluation_of(seals, hash_, manifest.evaluation.replicas))
        _leave(work, permanent)


def _leave(work: Path, permanent: Collection[str]) -> None:
    """Nothing but these files in the folder."""
    for entry in work.iterdir():
        if entry.name not in permanent:
            entry.unlink()


def _check_before(report: Report, recomputer: Recomputer, before: Before) -> None:
    """What the run's creator says of the genesis."""
    try:
        found = recomputer.loss(0, spread(recomputer.held_out, before.samples))
    except NotComputed as error:
        report.add(LEVEL, CHECK, "SKIP", f"version 0: {error}")
        return
    if is_near(before.sum, before.count, found, TOLERANCE[recomputer.manifest.precision]):
        report.add(LEVEL, CHECK, "PASS")
        return
    stated, own = (one.sum / one.count / MICRO for one in (before, found))
    why = f"the manifest states {stated:.6f} of {before.count} tokens for version 0, it is {own:.6f} of {found.count}"
    report.add(LEVEL, CHECK, "FAIL", why)


def _check(report: Report, recomputer: Recomputer, draw: EvaluationDraw) -> None:
    """What was said of one version."""
    said, missing = dict[Part, Evaluated](), list[str]()
    for part in (part for part in parts(draw) if part.is_last):
        one = recomputer.view.evaluation(part.account, draw.version)
        if one is None:
            missing.append(part.account)
        else:
            said[part] = one
    if missing:
        report.note(f"held-out loss of version {draw.version}: {', '.join(missing)} was drawn and said nothing")
    if not said:
        return
    round, last = draw.version - 1, recomputer.view.config.stages - 1
    try:
        found = recomputer.loss(draw.version, recomputer.samples(draw))
    except NotComputed as error:
        report.add(LEVEL, CHECK, "SKIP", f"version {draw.version}: {error}", round=round, stage=last)
        return
    most = TOLERANCE[recomputer.manifest.precision]
    for part, one in said.items():
        if is_near(one.sum, one.count, found, most):
            report.add(LEVEL, CHECK, "PASS", round=round, stage=last, hash=one.statement)
            continue
        stated, own = one.sum / one.count / MICRO, found.sum / found.count / MICRO
        report.add(
            LEVEL, CHECK, "FAIL",
            f"{one.account} states {stated:.6f} of {one.count} tokens for version {draw.version}, it is {own:.6f} of "
            f"{found.count}: {recomputer.blame(one, part)}", round=round, stage=last, hash=one.statement,
        )  # fmt: skip
