"""The versions of one stage on disk: adopting the next one against its seal, and mending what our disk has lost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from dlx.ground.blobs import BlobStore, Kind
from dlx.ground.constants import NO_HASH
from dlx.ground.merkle import file_root
from dlx.ledger.events import Sealed
from dlx.ledger.typed import CONTRIBUTION_SIZE, Contribution, Plan, SignedContribution, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.daemon.data.retention import version_hashes
from dlx.node.daemon.failures import action_failures, fetch
from dlx.node.home import logs
from dlx.node.round.actions import ActionFailed, Differs
from dlx.node.round.rules.plans import manifest_plan, plan_of
from dlx.node.round.rules.round_rules import Rules
from dlx.node.trainer.client import BlobTrouble, Trainer, UnusableInput
from dlx.node.trainer.messages import SealedPayload
from dlx.p2p.exchange import BlobContradiction, BlobError, BlobExchange, BlobNotFound, BlobTimeout, Tree
from dlx.training.outer.step import Version
from dlx.training.recipe.manifest import Manifest

MENDINGS = 3  # of inputs that our disk has lost, before the version is fetched instead
FETCH_SECONDS = 60.0  # for one blob; a node that is offered it slowly asks again
log = logs.get(__name__)


def roots(view: RunView, stage: int, version: int) -> dict[bytes, bytes]:
    """The Merkle roots of a version's files, by their names: none of the first version's, nor where its seal is not at
    hand. An empty seal repeats the version before."""
    round = version - 1
    while (sealed := view.sealed.get((stage, round))) is not None and not sealed.records:
        round -= 1
    if sealed is None:
        return {}
    weights, momentum, weights_root, momentum_root = sealed.outcome.hashes
    return {weights: weights_root, momentum: momentum_root}


async def fetch_file(
    exchange: BlobExchange,
    store: BlobStore,
    name: bytes,
    root: bytes | None,
    size: int,
    members: list[str],
    seconds: float,
) -> None:
    """Have a version's file of so many bytes. With its root it comes in parts of the stage's `members` (peer ids; none:
    of whoever is connected), and each is checked as it comes; else from whoever has it. `seconds`: without progress.
    Raises BlobError, OSError."""
    if root is not None:
        try:
            await fetch(exchange, store, name, size, members or None, seconds, Kind.VERSION, Tree(size, root))
            return
        except (BlobNotFound, BlobTimeout):
            pass
    await fetch(exchange, store, name, size, None, seconds, Kind.VERSION)


@dataclass
class Versions:
    """V[s,.] of `stage`. Weights and momentum are blobs, named by the hashes that the ledger gives."""

    rules: Rules
    manifest: Manifest
    stage: int
    store: BlobStore
    exchange: BlobExchange
    trainer: Trainer
    peer_of: Callable[[str], str | None]

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
        """Have V[version]. Raises Differs; ActionFailed where it cannot be had now (LocalFault: by our own fault)."""
        if version > view.next_round(self.stage):
            raise ActionFailed(f"the seal of round {version - 1} was taken back")
        if not await trio.to_thread.run_sync(self._here, view, version):
            await self._have(view, version)
        if version == 0:
            await self.check_genesis()

    async def _have(self, view: RunView, version: int) -> None:
        with action_failures():
            if (self.stage, version - 1) in view.sealed and self._here(view, version - 1):
                try:
                    await self._recompute(view, version)
                    return
                except (BlobError, BlobTrouble) as error:
                    log.info("the payloads of a seal are not all here", round=version - 1, error=str(error))
            members = [peer for account in view.members_in(self.stage) if (peer := self.peer_of(account))]
            first = self.manifest.genesis[self.stage]
            known = {bytes.fromhex(first.sha256): bytes.fromhex(first.root)} | roots(view, self.stage, version)
            for name in self._hashes(view, version):
                is_first = name.hex() == first.sha256  # all may begin with it at once, and its creator is no member
                asked = [] if is_first else members
                try:
                    await fetch_file(
                        self.exchange, self.store, name, known.get(name), self._size_limit, asked, FETCH_SECONDS
                    )
                except BlobContradiction as error:
                    raise (ActionFailed if is_first else Differs)(str(error)) from error

    async def check_genesis(self) -> None:
        """Of the stage's first weights, which are here: raises ActionFailed where they do not have the Merkle root that
        the manifest says. Proofs of a wrong outer step begin with it. So a false one would speak against right seals.
        """
        genesis = self.manifest.genesis[self.stage]
        root = await trio.to_thread.run_sync(file_root, self.store.path(bytes.fromhex(genesis.sha256)))
        if root.hex() != genesis.root:
            raise ActionFailed(
                f"the manifest says the Merkle root {genesis.root} of the first weights of stage {self.stage}, it is "
                f"{root.hex()}: honest seals of this run could be called wrong; do not take part in it"
            )

    def plan(self, view: RunView, round: int) -> Plan:
        """The plan that binds a round. Raises ActionFailed where its seals were taken back."""
        plan = plan_of(self.rules, view, self.stage, round)
        if plan is None:
            raise ActionFailed(f"the seals that plan round {round} were taken back")
        return plan

    def inputs(
        self, view: RunView, round: int, listed: Sequence[SignedContribution], multipliers: Sequence[int]
    ) -> tuple[SealedPayload, ...]:
        """What an outer step over these contributions takes. Raises ActionFailed as `plan`."""
        return self._inputs(view, round, [signed.contribution for signed in listed], multipliers)

    async def step(self, weights: bytes, momentum: bytes, payloads: tuple[SealedPayload, ...]) -> Version:
        """The training process's outer step, see `Trainer.outer`. What it writes has room, and is known for what it is.

        Raises NoRoom too.
        """
        await trio.to_thread.run_sync(self.store.make_room, 2 * self._size_limit)  # weights and outer momentum
        made = await self.trainer.outer(weights, momentum, payloads)
        await trio.to_thread.run_sync(self._note_made, made)
        return made

    async def mend(self, view: RunView, round: int, blobs: Sequence[bytes]) -> None:
        """Have again what of a round's inputs (its base version, payloads) is missing or damaged on our disk."""
        base = self._hashes(view, round) if round <= view.next_round(self.stage) else []
        plan = plan_of(self.rules, view, self.stage, round)
        limit = self._size_limit if plan is None else self.rules.max_payload_size(self.stage, plan)
        lost = [name for name in blobs if not await trio.to_thread.run_sync(self.store.sound, name)]  # and now gone
        for name in lost:
            log.warning("a blob was missing or damaged on this disk: having it again", blob=name.hex()[:12])
            if name not in base:
                await fetch(self.exchange, self.store, name, limit, None, FETCH_SECONDS, Kind.PAYLOAD)
        if not set(lost).isdisjoint(base):
            try:
                await self.adopt(view, round)
            except Differs as error:
                raise ActionFailed(str(error)) from None

    async def _recompute(self, view: RunView, version: int) -> None:
        """Only inputs that are what their names say can speak against a seal: a lost or damaged one is had again."""
        sealed = view.sealed[self.stage, version - 1]
        limit = self.rules.max_payload_size(self.stage, self.plan(view, sealed.round))
        expected, found = sealed.outcome.hashes, list[str]()
        before = view.weights(self.stage, version - 1), view.momentum(self.stage, version - 1)
        counted, multipliers = await self._counted(sealed), [record.multiplier for record in sealed.records]
        inputs = [*self._hashes(view, version - 1), *(one.payload for one in counted)]
        for _ in range(MENDINGS):
            for one in counted:
                await fetch(self.exchange, self.store, one.payload, limit, None, FETCH_SECONDS, Kind.PAYLOAD)
            try:
                made = await self.step(*before, self._inputs(view, sealed.round, counted, multipliers))
            except BlobTrouble as error:
                await self.mend(view, version - 1, error.blobs)
                continue
            except UnusableInput as error:
                verdict = str(error)
            else:
                if (made.weights, made.momentum, made.weights_root, made.momentum_root) == expected:
                    return
                verdict = f"{made.weights.hex()[:16]} instead of {expected[0].hex()[:16]}"
                if made.weights == expected[0]:
                    verdict = f"the weights {verdict[:16]}, but another momentum or Merkle root"
            damaged = [name for name in inputs if not await trio.to_thread.run_sync(self.store.sound, name)]
            await self.mend(view, version - 1, damaged)
            found += [] if damaged else [verdict]
            if len(found) == 2:
                raise Differs(f"the outer step over round {version - 1} gives {found[1]}")
        raise BlobTrouble("this disk damages what is written to it", tuple(inputs))

    async def _counted(self, sealed: Sealed) -> list[Contribution]:
        """What the seal's records name, in their order. Raises Differs for what is no statement of such a record."""
        found = []
        for record in sealed.records:
            name = record.statement
            path = await fetch(self.exchange, self.store, name, CONTRIBUTION_SIZE, None, FETCH_SECONDS, Kind.PAYLOAD)
            try:
                one = Contribution.decode(await trio.to_thread.run_sync(path.read_bytes))
            except TypedError as error:
                raise Differs(f"what a record names as its statement is none: {error}") from error
            if one.record(record.multiplier) != record:
                raise Differs(f"the statement of replica {record.replica} says something else than its record")
            found.append(one)
        return found

    def _inputs(
        self, view: RunView, round: int, counted: Sequence[Contribution], multipliers: Sequence[int]
    ) -> tuple[SealedPayload, ...]:
        plan = manifest_plan(self.plan(view, round))
        return tuple(
            SealedPayload(one.payload, one.inner_steps, multiplier, plan)
            for one, multiplier in zip(counted, multipliers, strict=True)
        )

    def _here(self, view: RunView, version: int) -> bool:
        return all(self.store.has(name) for name in self._hashes(view, version))

    def _hashes(self, view: RunView, version: int) -> list[bytes]:
        return version_hashes(view, self.stage, version)

    @property
    def _size_limit(self) -> int:
        return self.manifest.genesis[self.stage].size  # all versions of a stage have the genesis' layout

    def _note_made(self, made: Version) -> None:
        for name in (made.weights, made.momentum):
            if name != NO_HASH:
                self.store.note(name, Kind.VERSION)
