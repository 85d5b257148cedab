"""What a slot's node keeps on disk: said to the blob store as pins, which outlive the process; the rest goes."""

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from dlx.ground.blobs import BlobStore, Kind
from dlx.ledger.typed import Contribution, Record, TypedError
from dlx.ledger.view.run_view import RunView
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Retention as Terms

LOOKED_AT_SECONDS = 600.0  # blobs younger than that may belong to a round under way


@dataclass(frozen=True)
class Retention:
    """Of one stage of a run."""

    store: BlobStore
    manifest: Manifest
    run: bytes
    stage: int

    def keep(self, view: RunView, adopted: int, own: Collection[bytes]) -> None:
        """Keep what the manifest's retention says after V[adopted], and our `own` payloads, statements and traces that
        may still be needed; what nobody pinned, of refused, superseded and abandoned rounds too, is removed. Blocks on
        the disk."""
        terms, prefix = self.manifest.retention, f"{self.run.hex()[:16]}/{self.stage}/"
        sealed = view.next_round(self.stage)
        versions = {f"{prefix}version/{one}": one for one in kept_versions(terms, adopted, sealed)}
        rounds = {f"{prefix}payloads/{one}": one for one in kept_rounds(terms, adopted, sealed)}
        pinned = self.store.owners(prefix) - {f"{prefix}own"}
        for owner in pinned - versions.keys() - rounds.keys():
            if int(owner.rpartition("/")[2]) < sealed:  # else a reorg took its seal back: it may come again as it was
                self.store.release(owner)
        for owner, version in versions.items():
            if owner not in pinned or version >= adopted:  # a reorg may have put another in its place
                self._keep_version(owner, view, version)
        for owner, round in rounds.items():
            seal = view.sealed.get((self.stage, round))
            if seal is not None and (owner not in pinned or round >= adopted - 1):
                self._pin(owner, [name for one in seal.records for name in self._names(one)], Kind.PAYLOAD)
        self._pin(f"{prefix}own", own, Kind.PAYLOAD)
        for kind in (Kind.PAYLOAD, Kind.VERSION):
            self.store.evict(kind, LOOKED_AT_SECONDS)

    def release_other_stages(self) -> None:
        """The node has left the stages that it held before, for good."""
        run = f"{self.run.hex()[:16]}/"
        for owner in self.store.owners(run) - self.store.owners(f"{run}{self.stage}/"):
            self.store.release(owner)

    def _keep_version(self, owner: str, view: RunView, version: int) -> None:
        """The genesis is whatever it was: a creator and a mirror keep it also once they have left the stage."""
        names, first = version_hashes(view, self.stage, version), view.weights(self.stage, 0)
        self.store.pin(owner, names)
        for name in names:  # empty seals repeat a version
            if name != first:
                self.store.note(name, Kind.VERSION)

    def _names(self, record: Record) -> list[bytes]:
        """Of a counted contribution's public blobs: the statement, which may not be here, says which is its trace."""
        try:
            statement = Contribution.decode(self.store.path(record.statement).read_bytes())
        except (OSError, TypedError):
            return [record.payload, record.statement]
        return [record.payload, record.statement, statement.trace]

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
