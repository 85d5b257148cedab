"""This node's parts of the evaluations that it is drawn for: computed beside the training, said to the others.

A part waits for the activations of the stage before, for as long as its draw is in the window; nothing waits for it.
What was said stays on the disk, so that a node that starts again says the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import trio

from dlx.ground import durable
from dlx.ground.backoff import Backoff
from dlx.ground.blobs import Kind
from dlx.ground.constants import MICRO, NO_HASH
from dlx.ground.errors import DlxError
from dlx.ledger.errors import LedgerError
from dlx.ledger.typed import EVALUATION_SIZE, Evaluation, SignatureError, SignedEvaluation, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.challenges.draws import Draws
from dlx.node.daemon.context import RunContext
from dlx.node.daemon.data.public_data import PublicData
from dlx.node.daemon.data.versions import fetch_file, roots
from dlx.node.daemon.failures import fetch
from dlx.node.daemon.messages import Heard, evaluations_topic
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home import logs
from dlx.node.round.challenges.draw import seals_of
from dlx.node.round.challenges.evaluation import EvaluationDraw, Part, evaluation_of, is_due, parts
from dlx.node.runs.held_out import held_out, losses_of
from dlx.node.trainer.evaluations import Pass, PassOutcome, evaluate
from dlx.node.trainer.job import JobFailed
from dlx.p2p import wire
from dlx.training.data.shards import held_out_samples, held_out_shards
from dlx.training.recipe.evaluation import activations_size
from dlx.training.recipe.recipe import embedding_shape, reads_data

LOOK_SECONDS = 1.0
REPEAT_SECONDS = 130.0  # until those who missed it are told again: gossip passes on nothing twice within two minutes
FETCH_SECONDS = 20.0  # without progress of a blob
PASS_SECONDS, PASS_TIMEOUTS = 600.0, 8.0  # for one pass: seconds, and round timeouts
MAX_EARLY = 256  # messages of which the draw is not known here yet
MAX_FAILURES = 8  # of one part
MAX_LOSSES = 64  # that are remembered
RETRY = Backoff(first=3.0, cap=60.0)
log = logs.get(__name__)


class NotYet(Exception):
    """A part cannot be computed now; the message says why."""


@dataclass
class _Try:
    """What was tried in vain, and when it is tried again."""

    failures: int = 0
    until: float = 0.0
    random: Random = field(default_factory=Random)

    def again(self) -> None:
        self.failures += 1
        self.until = trio.current_time() + RETRY.delay(self.failures, self.random)

    @property
    def is_due(self) -> bool:
        return self.failures < MAX_FAILURES and trio.current_time() >= self.until


class Evaluating:
    """Of one account in one run. `view()`: the ledger's newest."""

    def __init__(self, context: RunContext, draws: Draws, view: Callable[[], RunView | None]) -> None:
        self._context, self._draws, self._view = context, draws, view
        self.losses: dict[int, float] = {}  # the ledger's record by version, of those that were in the window
        self._run, self._network, self._store = context.run, context.network, context.storage.blobs
        self._said: dict[Part, SignedEvaluation] = {}  # ours and others'
        self._tries: dict[Part, _Try] = {}
        self._sends: dict[Part, _Try] = {}
        self._repeat_at: dict[Part, float] = {}
        self._early: dict[bytes, SignedEvaluation] = {}  # whose draw is not known here yet
        self._draw_of: dict[int, tuple[object, EvaluationDraw]] = {}  # by round, with what it follows from
        self._held_out = held_out_samples(self._run.data, self._run.manifest.data.sequence_length)
        self._folder = context.storage.directory / "evaluations"
        self._prefix = f"evaluation/{self._run.id.hex()[:16]}/"

    def take(self, message: wire.EvaluationMessage, source: str) -> Heard:
        """What somebody says."""
        if message.run != self._run.id:
            return Heard.JUNK
        try:
            signed = SignedEvaluation.decode(message.evaluation)
            signer = signed.signer(self._context.chain.client.domain)
        except (TypedError, SignatureError) as error:
            log.debug("no evaluation", source=source, error=str(error))
            self._network.reject("evaluation", source)
            return Heard.JUNK
        if len(self._early) < MAX_EARLY and self._may_be_early(signer, signed.evaluation.version):
            self._early[signed.name] = signed
        drawn = [part for draw in self._drawn() for part in parts(draw)]
        is_undrawn = all(signed.evaluation.version > part.draw.version for part in drawn)
        return Heard.NO_NEWS if is_undrawn or self._hear(signed, drawn) else Heard.REFUSED

    def said(self, account: str | None) -> list[wire.EvaluationMessage]:
        """All that was said of drawn parts, or by one account."""
        return [
            wire.EvaluationMessage(self._run.id, signed.encode())
            for part, signed in self._said.items()
            if account in (None, part.account)
        ]

    async def run(self, report_healthy: ReportHealthy) -> None:
        """Raises OSError; what was said stays said."""
        self._folder.mkdir(exist_ok=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            while True:
                await self._settle()
                self._note_losses()
                part = None if self._context.operator.rests() else self._next()
                if part is None:
                    await trio.sleep(LOOK_SECONDS)
                else:
                    await self._evaluate(part)
                report_healthy()

    # ---- what was drawn ----

    def _drawn(self) -> Iterator[EvaluationDraw]:
        """The evaluations of the window, the newest first."""
        view, known, manifest = self._view(), self._draws.rounds.value, self._run.manifest
        for round in sorted(known, reverse=True):
            seals = None if view is None or not is_due(manifest, round + 1) else seals_of(view, round)
            if seals is None:
                continue
            follows_from = known[round].block_hash, *(seal.digest for seal in seals)
            if round not in self._draw_of or self._draw_of[round][0] != follows_from:
                draw = evaluation_of(seals, known[round].block_hash, manifest.evaluation.replicas)
                self._draw_of[round] = follows_from, draw
            yield self._draw_of[round][1]

    def _note_losses(self) -> None:
        """Others may speak of a version for as long as it is in the window."""
        view, known = self._view(), self._draws.rounds.value
        if view is not None and known:
            hashes = {draw.block: draw.block_hash for draw in known.values()}
            self.losses |= losses_of(held_out(view, self._run.manifest, hashes.get, min(known) + 1))
            for version in sorted(self.losses)[:-MAX_LOSSES]:
                del self.losses[version]

    def _next(self) -> Part | None:
        """Our part that can be computed."""
        for draw in self._drawn():
            for part in parts(draw):
                ours = part.account == self._context.account and part not in self._said
                ready = part.before is None or part.before in self._said
                if ours and ready and self._tries.setdefault(part, _Try()).is_due:
                    return part
        return None

    async def _settle(self) -> None:
        """Take up what we said before we were started, and what came before its draw; forget what has left the
        window."""
        drawn = [part for draw in self._drawn() for part in parts(draw)]
        for part in drawn:
            if part.account == self._context.account and part not in self._said:
                saved = await trio.to_thread.run_sync(_read, self._path(part))
                if saved is not None:
                    self._said[part] = saved
        for signed in list(self._early.values()):
            self._hear(signed, drawn)
        for kept in (self._said, self._tries, self._sends, self._repeat_at):
            for part in kept.keys() - set(drawn):
                del kept[part]  # type: ignore[attr-defined]
        known = self._draws.rounds.value
        for round in self._draw_of.keys() - known.keys():
            del self._draw_of[round]
        if known:
            await trio.to_thread.run_sync(self._release, min(known) + 1)

    def _release(self, oldest: int) -> None:
        """What was kept for evaluations of versions before that one."""
        for owner in self._store.owners(self._prefix):
            if int(owner.rpartition("/")[2]) < oldest:
                self._store.release(owner)
        for path in self._folder.glob("[0-9]*"):
            if int(path.name.partition("-")[0]) < oldest:
                path.unlink()

    # ---- computing ----

    async def _evaluate(self, part: Part) -> None:
        try:
            outcome = await self._passed(part)
        except (NotYet, DlxError, OSError, JobFailed) as error:
            self._tries[part].again()
            log.info("not evaluated yet", version=part.draw.version, replica=part.evaluator.replica, reason=str(error))
            return
        before = part.before
        said = Evaluation(
            run=self._run.id,
            version=part.draw.version,
            replica=part.evaluator.replica,
            stage=part.stage,
            previous=NO_HASH if before is None else self._said[before].name,
            activations=outcome.activations,
            sum=outcome.sum,
            count=outcome.count,
        )
        signed = self._context.signer.sign_evaluation(said)
        await trio.to_thread.run_sync(self._keep, part, signed)
        self._said[part] = signed
        loss = round(said.sum / said.count / MICRO, 4) if part.is_last else None
        log.info(
            "evaluated", version=said.version, replica=said.replica, stage=said.stage, held_out_loss=loss,
            seconds=round(outcome.seconds, 1),
        )  # fmt: skip

    async def _passed(self, part: Part) -> PassOutcome:
        """Raises NotYet, JobFailed, DlxError, OSError for what may go better later."""
        context, view, manifest, version = self._context, self._view(), self._run.manifest, part.draw.version
        assert view is not None
        samples = part.draw.places(manifest.evaluation.samples, self._held_out)
        weights = tuple(view.weights(stage, version) for stage in range(view.config.stages))
        before = part.before
        incoming = NO_HASH if before is None else self._said[before].evaluation.activations
        stages = {part.stage, 0} if part.is_last and embedding_shape(manifest) else {part.stage}
        needed = {weights[stage] for stage in stages} | ({incoming} - {NO_HASH})
        await trio.to_thread.run_sync(self._pin, part, needed)
        with trio.move_on_after(max(2 * FETCH_SECONDS, manifest.timing.round_timeout)) as limit:
            for stage in stages:
                await self._have_weights(view, stage, version)
            public = PublicData(self._store, self._network.exchange)
            await public.base(manifest, part.stage)
            if before is not None:
                await self._have_activations(before, incoming, activations_size(manifest, len(samples)))
            if reads_data(manifest, part.stage):
                shards = held_out_shards(self._run.data, samples, manifest.data.sequence_length)
                await trio.to_thread.run_sync(self._pin, part, needed | {bytes.fromhex(one.sha256) for one in shards})
                await public.shards(self._run.data, shards, Kind.SHARD, "an evaluation")
        if limit.cancelled_caught:
            raise NotYet("what it takes comes slowly")
        work = Pass(
            manifest=self._run.manifest_hash,
            blobs=str(self._store.folder),
            stage=part.stage,
            weights=weights,
            samples=tuple(samples),
            incoming=incoming,
            placement=context.operator.placement,
        )
        outcome = await evaluate(work, PASS_SECONDS + PASS_TIMEOUTS * manifest.timing.round_timeout)
        for name in outcome.missing:
            await trio.to_thread.run_sync(self._store.sound, name)  # a damaged one is gone now
        if not outcome.done:
            raise NotYet(outcome.refusal or f"missing or damaged: {', '.join(one.hex() for one in outcome.missing)}")
        return outcome

    async def _have_weights(self, view: RunView, stage: int, version: int) -> None:
        name, size = view.weights(stage, version), self._run.manifest.genesis[stage].size
        members = [peer for account in view.members_in(stage) if (peer := self._network.peer_of(account))]
        root = roots(view, stage, version).get(name)
        await fetch_file(self._network.exchange, self._store, name, root, size, members, FETCH_SECONDS)

    async def _have_activations(self, before: Part, name: bytes, size: int) -> None:
        maker = self._network.peer_of(before.account)
        peers = None if maker is None else [maker]
        await fetch(self._network.exchange, self._store, name, size, peers, FETCH_SECONDS, Kind.PAYLOAD)

    def _pin(self, part: Part, names: set[bytes]) -> None:
        """What the part takes."""
        self._store.pin(f"{self._prefix}{part.stage}/{part.draw.version}", names)

    def _keep(self, part: Part, signed: SignedEvaluation) -> None:
        """Public for the window: what was said, and the activations."""
        name = self._store.put(signed.encode(), Kind.PAYLOAD)
        names = {name, signed.evaluation.activations} - {NO_HASH}
        for one in names:
            self._store.note(one, Kind.PAYLOAD)
        self._store.pin(f"{self._prefix}said-{part.stage}/{part.draw.version}", names)
        durable.write_bytes(self._path(part), signed.encode())

    def _path(self, part: Part) -> Path:
        draw = part.draw
        return self._folder / f"{draw.version}-{part.evaluator.replica}-{part.stage}-{draw.key.hex()[:16]}"

    # ---- saying and hearing ----

    def _may_be_early(self, signer: str, version: int) -> bool:
        """Whether a draw that is not known here yet may name the signer. Strangers, and far versions, take no room."""
        view = self._view()
        return view is not None and signer in view.accounts and version <= (view.open_round or 0) + 1

    def _hear(self, signed: SignedEvaluation, drawn: list[Part]) -> bool:
        """The first word of whoever was drawn for the part stays; False where nobody was who says it."""
        said = signed.evaluation
        part = next((one for one in drawn if one.is_of(said)), None)
        newest = max((one.draw.version for one in drawn), default=0)
        if part is not None or said.version <= newest:
            self._early.pop(signed.name, None)
        signer = signed.signer(self._context.chain.client.domain)
        if part is None or said.run != self._run.id or signer != part.account:
            return False
        self._said.setdefault(part, signed)
        return True

    async def _tell(self) -> None:
        """Others of our parts, and the ledger of the losses."""
        while True:
            for part, signed in list(self._said.items()):
                if part.account != self._context.account:
                    continue
                if trio.current_time() >= self._repeat_at.get(part, 0.0) and not part.is_last:
                    self._repeat_at[part] = trio.current_time() + REPEAT_SECONDS
                    message = wire.encode(wire.EvaluationMessage(self._run.id, signed.encode()))
                    await self._network.gossip.publish(evaluations_topic(self._run.id), message)
                if part.is_last and self._sends.setdefault(part, _Try()).is_due:
                    await self._send(part, signed)
            await trio.sleep(LOOK_SECONDS)

    async def _send(self, part: Part, signed: SignedEvaluation) -> None:
        said, view, account = signed.evaluation, self._view(), self._context.account
        last = len(part.evaluator.accounts) - 1
        if view is None or view.evaluation(account, said.version) is not None:
            return
        slot = view.slot_of(account)
        if slot is None or slot[1] != last:
            return  # the ledger hears members of the last stage alone
        self._sends[part].again()
        send = partial(
            self._context.chain.client.evaluate, self._run.id, said.version, said.sum, said.count, signed.name
        )
        try:
            await trio.to_thread.run_sync(send, abandon_on_cancel=True)
        except (LedgerError, DlxError, OSError) as error:
            log.info("the ledger has no held-out loss of ours yet", version=said.version, reason=str(error))


def _read(path: Path) -> SignedEvaluation | None:
    """What was said before; None where nothing was."""
    try:
        data = path.read_bytes()
        return SignedEvaluation.decode(data) if len(data) == EVALUATION_SIZE else None
    except (OSError, TypedError):
        return None
