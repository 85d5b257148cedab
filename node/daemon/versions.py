"""The versions of one stage on disk: adopting the next one against its seal, and dropping old ones."""

from dataclasses import dataclass
from pathlib import Path

import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ledger.events import Sealed
from dlx.ledger.view import RunView
from dlx.node.home import logs
from dlx.node.round.plans import manifest_plan, plan_of
from dlx.node.round.rules import Rules
from dlx.node.trainer.client import Trainer, TrainerError, TrainerSilent
from dlx.node.trainer.messages import SealedPayload
from dlx.p2p.exchange import BlobError, BlobExchange
from dlx.training.recipe.manifest import Manifest

FETCH_SECONDS = 60.0  # for one blob; a node that is offered it slowly asks again
log = logs.get(__name__)


class Differs(Exception):
    """Computed twice from the sealed payloads, a version is not what its seal says."""


class Unavailable(Exception):
    """Neither the payloads nor the weights could be had in time."""


@dataclass
class Versions:
    """V[s,.] of `stage`. Weights and momentum are blobs, named by the hashes that the ledger gives."""

    rules: Rules
    manifest: Manifest
    stage: int
    store: BlobStore
    exchange: BlobExchange
    trainer: Trainer
    _dropped: int = 0  # versions below are those that stay, and no other

    def newest(self, view: RunView) -> tuple[int | None, int | None]:
        """(newest, oldest) of the unbroken line of versions on disk that ends highest; (None, None): none."""
        sealed = view.next_round(self.stage)
        newest = next((v for v in range(sealed, max(-1, sealed - 10), -1) if self._here(view, v)), None)
        if newest is None:
            return None, None
        oldest = newest
        while oldest > 0 and self._here(view, oldest - 1):
            oldest -= 1
        return newest, oldest

    async def adopt(self, view: RunView, version: int) -> None:
        """Have V[version], or raise Differs or Unavailable."""
        if await trio.to_thread.run_sync(self._here, view, version):
            return
        if version > 0 and self._here(view, version - 1):
            try:
                await self._recompute(view, version)
                return
            except (BlobError, TrainerError) as error:
                log.info("the payloads of a seal are not all here", round=version - 1, error=str(error))
        try:
            for name in self._hashes(view, version):
                await self.exchange.fetch(name, self._size_limit, None, FETCH_SECONDS)
        except BlobError as error:
            raise Unavailable(str(error)) from None

    def drop_old(self, view: RunView, adopted: int, made: dict[int, set[bytes]]) -> None:
        """Keep genesis, the newest few versions and every tenth (as the manifest says); delete the others' blobs.

        `made`: round -> what outer steps over its proposals wrote. Once it is sealed, only what was sealed stays.
        """
        retention = self.manifest.retention
        oldest = max(0, adopted - retention.versions + 1)
        kept_versions = {*range(oldest, view.next_round(self.stage) + 1), *range(0, adopted + 1, retention.every)}
        kept = {name for version in kept_versions for name in self._hashes(view, version)}
        for version in range(self._dropped, oldest):
            for name in self._hashes(view, version):
                if name not in kept:
                    self.store.path(name).unlink(missing_ok=True)
        self._dropped = max(self._dropped, oldest)
        for round in [round for round in list(made) if round < adopted]:
            for name in made.pop(round) - kept:
                self.store.path(name).unlink(missing_ok=True)

    async def _recompute(self, view: RunView, version: int) -> None:
        sealed = view.sealed[self.stage, version - 1]
        expected = sealed.seal.next_weights, sealed.seal.next_momentum
        for last_try in (False, True):
            paths = [
                await self.exchange.fetch(
                    signed.contribution.payload,
                    signed.contribution.payload_size,
                    None,
                    FETCH_SECONDS,
                    Kind.PAYLOAD,
                )
                for signed in sealed.contributions
            ]
            try:
                answer = await self.trainer.outer(
                    sealed.seal.previous_weights, sealed.seal.previous_momentum, self._payloads(view, sealed)
                )
                found = f"{answer.weights.hex()[:16]} instead of {expected[0].hex()[:16]}"
                if (answer.weights, answer.momentum) == expected:
                    return
            except TrainerSilent:
                raise
            except TrainerError as error:
                found = str(error)
            if last_try:
                raise Differs(f"the outer step over round {version - 1} gives {found}")
            await trio.to_thread.run_sync(_discard, paths)  # perhaps our disk is at fault: fetch them once more

    def _payloads(self, view: RunView, sealed: Sealed) -> tuple[SealedPayload, ...]:
        bound = plan_of(self.rules, view, self.stage, sealed.round)
        assert bound is not None, "a sealed round has a plan"
        plan = manifest_plan(bound)
        return tuple(
            SealedPayload(signed.contribution.payload, signed.contribution.tokens, multiplier, plan)
            for signed, multiplier in zip(sealed.contributions, sealed.seal.multipliers, strict=True)
        )

    def _here(self, view: RunView, version: int) -> bool:
        return all(self.store.has(name) for name in self._hashes(view, version))

    def _hashes(self, view: RunView, version: int) -> list[bytes]:
        momentum = view.momentum(self.stage, version)
        return [view.weights(self.stage, version)] + ([momentum] if any(momentum) else [])

    @property
    def _size_limit(self) -> int:
        return self.manifest.genesis[self.stage].size  # all versions of a stage have the genesis' layout


def _discard(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
