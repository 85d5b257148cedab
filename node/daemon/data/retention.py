"""What a node keeps of a stage on disk: said to the blob store as pins, which outlive the process; the rest goes."""

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from dlx.ground.blobs import BlobError, BlobStore, Kind, read_blob
from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import CONTRIBUTION_SIZE, Contribution, Record, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.node.round.rules import plans
from dlx.node.round.rules.continuity import is_start_public, next_needed, start_of
from dlx.training.recipe.recipe import Retention as Terms

LOOKED_AT_SECONDS = 600.0  # blobs younger than that may belong to a round under way


@dataclass(frozen=True)
class Retention:
    """Of one stage of a run, whose rounds go by `rules`. `purpose`: what it is kept for beside a slot."""

    store: BlobStore
    terms: Terms
    rules: plans.Terms
    run: bytes
    stage: int
    purpose: str = ""

    def keep(self, view: RunView, adopted: int, own: Collection[bytes]) -> None:
        """Keep what the terms say after V[adopted], the statements that members look through for resets, and our `own`
        payloads, statements and traces that may still be needed. What nobody pinned, of refused, superseded and
        abandoned rounds too, is removed. Blocks on the disk."""
        terms, prefix = self.terms, self._prefix
        sealed = view.next_round(self.stage)
        versions = {f"{prefix}version/{one}": one for one in kept_versions(terms, adopted, sealed)}
        rounds = {f"{prefix}payloads/{one}": one for one in kept_rounds(terms, adopted, sealed)}
        lately = {f"{prefix}statements/{one}": one for one in range(max(0, sealed - plans.RESET_WINDOW), sealed)}
        pinned = self.store.owners(prefix) - {f"{prefix}own"}
        for owner in pinned - versions.keys() - rounds.keys() - lately.keys():
            if int(owner.rpartition("/")[2]) < sealed:  # else a reorg took its seal back: it may come again as it was
                self.store.release(owner)
        for owner, version in versions.items():
            if owner not in pinned or version >= adopted:  # a reorg may have put another in its place
                self._keep_version(owner, view, version)
        for owner, round in rounds.items():
            seal = view.sealed.get((self.stage, round))
            if seal is not None and (owner not in pinned or round >= adopted - 1):
                self._pin(owner, [name for one in seal.records for name in self._names(one)], Kind.PAYLOAD)
        for owner, round in lately.items():
            seal = view.sealed.get((self.stage, round))
            if seal is not None and (owner not in pinned or round >= adopted - 1):
                self._pin(owner, [one.statement for one in seal.records], Kind.PAYLOAD)
        self._pin(f"{prefix}own", own, Kind.PAYLOAD)
        for kind in (Kind.PAYLOAD, Kind.VERSION):
            self.store.evict(kind, LOOKED_AT_SECONDS)

    def release_other_stages(self) -> None:
        """The node has left the stages that it held before, for good."""
        run = f"{self.purpose}{self.run.hex()[:16]}/"
        for owner in self.store.owners(run) - self.store.owners(self._prefix):
            self.store.release(owner)

    def release(self) -> None:
        """Nothing of the stage is kept any more."""
        for owner in self.store.owners(self._prefix):
            self.store.release(owner)

    @property
    def _prefix(self) -> str:
        return f"{self.purpose}{self.run.hex()[:16]}/{self.stage}/"

    def _keep_version(self, owner: str, view: RunView, version: int) -> None:
        """The genesis is whatever it was: a creator and a mirror keep it also once they have left the stage."""
        names, first = version_hashes(view, self.stage, version), view.weights(self.stage, 0)
        self.store.pin(owner, names)
        for name in names:  # empty seals repeat a version
            if name != first:
                self.store.note(name, Kind.VERSION)

    def _names(self, record: Record) -> list[bytes]:
        """Of a counted contribution's public blobs: the statement, which may not be here, names the others. Among them
        is what audits judge it by, which no seal may count: its account's earlier statements, as far as they are here
        and such, and the payload in its start."""
        statement = self._statement(record.statement)
        if statement is None:
            return [record.statement]
        earlier: list[Contribution] = []
        while (name := next_needed(self.rules, statement, earlier)) is not None:
            if (before := self._statement(name)) is None:
                break
            earlier.append(before)
        names = [record.statement, statement.payload, statement.trace, *(one.hash() for one in earlier)]
        start = start_of(self.rules, statement, earlier)
        return [*names, start] if start != NO_HASH and is_start_public(self.rules, statement) else names

    def _statement(self, name: bytes) -> Contribution | None:
        try:
            return Contribution.decode(read_blob(self.store.path(name), CONTRIBUTION_SIZE))
        except (BlobError, OSError, TypedError):
            return None

    def _pin(self, owner: str, hashes: Collection[bytes], kind: Kind) -> None:
        self.store.pin(owner, hashes)
        for hash_ in hashes:  # whoever wrote them, and even where the index was lost
            self.store.note(hash_, kind)


def kept_versions(terms: Terms, adopted: int, sealed: int) -> set[int]:
    """Genesis and every so many-th, of all the run or of the last rounds and one before them, the newest few, and those
    that may come next."""
    newest = range(max(0, adopted - terms.versions + 1), sealed + 1)
    oldest = 0 if terms.checkpoints == "run" else _at_or_before(adopted - terms.checkpoints, terms)
    return {0, *newest, *range(oldest, adopted + 1, terms.every)}


def kept_rounds(terms: Terms, adopted: int, sealed: int) -> Iterable[int]:
    """The rounds whose payloads stay: all, or the last so many and those before them back to a version that is kept,
    so that whoever has the payloads has a version to begin with."""
    if terms.payloads == "run":
        return range(sealed)
    return range(_at_or_before(adopted - terms.payloads, terms), sealed)


def _at_or_before(version: int, terms: Terms) -> int:
    """The newest of every so many-th versions that is no newer."""
    return max(0, version) // terms.every * terms.every


def version_hashes(view: RunView, stage: int, version: int) -> list[bytes]:
    """The blobs of V[stage, version]: weights, and outer momentum where there is one."""
    momentum = view.momentum(stage, version)
    return [view.weights(stage, version)] + ([momentum] if any(momentum) else [])


def kept_stage(directory: Path) -> int | None:
    """The stage of the newest finished round, which a node that lost its slot asks for; None where there is none."""
    states = _states(directory)
    return max(states, key=lambda stage: states[stage].stat().st_mtime_ns, default=None)


def drop_other_stages(directory: Path, stage: int) -> None:
    """Changing stage clears residual and moments of the old one, once the new stage has finished a round of its own.

    Until then the old state is all there is: a node that is given its old stage back goes on with it.
    """
    if stage not in _states(directory):
        return
    for slot in directory.glob("stage-*/slot"):
        if slot.parent.name != f"stage-{stage}":
            (slot / "slot.json").unlink(missing_ok=True)  # first: a kill must leave no state that names lost files
            shutil.rmtree(slot, ignore_errors=True)


def _states(directory: Path) -> dict[int, Path]:
    """By stage, the file of each training state in a run's folder: it names the last finished round."""
    files = directory.glob("stage-*/slot/slot.json")
    return {int(path.parent.parent.name.removeprefix("stage-")): path for path in files}
