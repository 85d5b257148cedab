"""Finds a wrong element of a sealed version in the blobs, and makes the transactions that disprove it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlx.ground.merkle import file_root
from dlx.ledger.bindings import Interface
from dlx.ledger.client import LedgerClient
from dlx.ledger.events import Sealed
from dlx.ledger.outer_proofs import Call, History, Proof, sealed_round
from dlx.ledger.typed import CONTRIBUTION_SIZE
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.element_proof import (
    RoundFiles,
    StageFormat,
    Unprovable,
    element_at,
    header_openings,
    proof_of,
    wrong_byte,
)
from dlx.node.audit.outer_replay import PayloadError, Replay, State
from dlx.node.audit.sources.blobs import BlobMissing, Blobs
from dlx.node.audit.sources.places import Places
from dlx.node.audit.sources.search import open_sources
from dlx.node.home.errors import Failure
from dlx.node.round.rules.plans import manifest_plan
from dlx.node.runs.find import differences
from dlx.node.runs.outer_terms import outer_terms, stage_terms
from dlx.training.codecs import CodecError, codec
from dlx.training.models import weights
from dlx.training.models.shapes import stage_shapes
from dlx.training.outer.step import OuterError, Version
from dlx.training.recipe.manifest import MAX_BYTES, parse
from dlx.training.recipe.strict import ManifestError

MOST_BYTES = 120_000  # of calldata in a transaction: chain nodes pass on 128 KiB
_MOST_SEALS = 200  # of a history in a transaction


@dataclass(frozen=True)
class Disproof:
    """Where a sealed version is wrong, and the transactions that show it to the contract. Of a value `sealed` and
    `right` are float32 bits; of the header, where `tensor` is None, `number` counts bytes and they are bytes."""

    of_momentum: bool
    tensor: str | None
    number: int
    sealed: int
    right: int
    calls: tuple[Call, ...]

    def calldata(self) -> list[bytes]:
        """Of each transaction."""
        abi = Interface("OuterProofs")
        return [abi.call_data(call.function, *call.arguments) for call in self.calls]


def disproof_of(
    client: LedgerClient,
    view: RunView,
    places: Places,
    stage: int,
    round: int,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> Disproof:
    """`disproof` with blobs from these places and the run's peers, in a working folder of its own. `show` is told each
    step, `say` what is worth keeping. Raises Failure where there is no proof, and says why."""
    with (
        open_sources(client, view.run, places, say, show) as sources,
        tempfile.TemporaryDirectory(prefix="dlx-prove-") as work,
    ):
        blobs = Blobs(sources, Path(work))
        try:
            manifest = parse(blobs.get(view.config.manifest, MAX_BYTES).read_bytes())
            if differing := differences(manifest, view):
                raise Unprovable(f"the ledger says otherwise than the manifest: {'; '.join(differing)}")
            return disproof(Replay(manifest, view, blobs), blobs, stage, round, show)
        except (Unprovable, BlobMissing, weights.WeightsError, ManifestError) as error:
            raise Failure(f"round {round}, stage {stage}: no proof: {error}") from error


def disproof(replay: Replay, blobs: Blobs, stage: int, round: int, progress: Callable[[str], None]) -> Disproof:
    """Of the version that the seal of (stage, round) says it made.

    Raises Unprovable where it is right, or no contract can be shown that it is not; BlobMissing for a blob that nobody
    gives; WeightsError for a version before that is none; OSError.
    """
    manifest, view = replay.manifest, replay.view
    sealed = view.sealed.get((stage, round))
    if sealed is None:
        raise Unprovable(f"stage {stage} has no seal of round {round}")
    if not sealed.records:
        raise Unprovable("an empty seal changes nothing")
    progress("fetching the genesis of every stage")
    roots = [file_root(blobs.get(bytes.fromhex(blob.sha256), blob.size)) for blob in manifest.genesis]
    terms = outer_terms(manifest, roots)
    if terms is None:
        raise Unprovable(f"no contract decodes the codec {manifest.codec.name}")
    progress(f"replaying round {round} of stage {stage}")
    state = replay.version(stage, round)
    try:
        made = replay.step(state)
    except (PayloadError, OuterError, CodecError) as error:
        raise Unprovable(f"the round cannot be replayed: {error}") from error
    shapes = stage_shapes(manifest, stage)
    of_momentum, path, right = _wrong_file(blobs, view, sealed, made, weights.file_size(shapes))
    offset = wrong_byte(path, right)
    if offset is None:
        raise Unprovable("what was sealed differs in the bits of a NaN only")
    files = _files(replay, blobs, sealed, state, path, of_momentum)
    base = max((before for before in range(round) if view.sealed[stage, before].records), default=0)
    history, notes = _history(view, stage, base, round)
    element, one = element_at(shapes, offset, of_momentum), stage_terms(shapes, roots[stage])
    if element is None:
        found, other = np.memmap(path, np.uint8, "r"), np.memmap(right, np.uint8, "r")
        offset += int(np.flatnonzero(found[offset : offset + 4] != other[offset : offset + 4])[0])
        opened = header_openings(files, offset, of_momentum)
        arguments = (history, round - base, terms, one, of_momentum, offset, *opened)
        calls = (*notes, Call("proveHeader", arguments))
        return Disproof(of_momentum, None, offset, int(found[offset]), int(other[offset]), calls)
    form = StageFormat(codec(manifest.codec.name), manifest_plan(replay.plan(stage, round)), shapes)
    proof = proof_of(element, form, files, history, round - base, terms, one, sealed.records)
    bits, good = (int(np.memmap(name, np.uint32, "r")[offset // 4]) for name in (path, right))
    calls = (*notes, *split(proof))
    return Disproof(of_momentum, sorted(shapes)[element.tensor], element.number, bits, good, calls)


def _wrong_file(blobs: Blobs, view: RunView, sealed: Sealed, made: Version, size: int) -> tuple[bool, Path, Path]:
    """Whether it is the momentum's, the file that was sealed, and the right one."""
    outcome, version = sealed.outcome, sealed.round + 1
    found = [
        (False, view.weights(sealed.stage, version), outcome.weights_root, made.weights, made.weights_root),
        (True, view.momentum(sealed.stage, version), outcome.momentum_root, made.momentum, made.momentum_root),
    ]
    reason = "the payloads give what was sealed"
    for of_momentum, name, root, right, right_root in found:
        if (name, root) == (right, right_root):
            continue
        what = "momentum" if of_momentum else "weights"
        if root == right_root:
            reason = f"the sealed root of the {what} is right, and their sha256 is no matter of contracts"
            continue
        try:
            path = blobs.get(name, size)
        except BlobMissing as error:
            reason = f"the {what} that were sealed cannot be had, so nothing of them can be shown: {error.reason}"
            continue
        if file_root(path) == root:
            return of_momentum, path, blobs.work / right.hex()
        reason = f"the sealed root of the {what} is of no file that can be had"
    raise Unprovable(reason)


def _files(replay: Replay, blobs: Blobs, sealed: Sealed, state: State, path: Path, of_momentum: bool) -> RoundFiles:
    counted = [record for record in sealed.records if record.multiplier]
    statements = [blobs.get(record.statement, CONTRIBUTION_SIZE).read_bytes() for record in counted]
    payloads = [replay.payload(sealed, record) for record in counted]
    momentum = path if of_momentum else None
    return RoundFiles(path, momentum, state.weights, state.momentum, payloads, statements)


def _history(view: RunView, stage: int, base: int, round: int) -> tuple[History, list[Call]]:
    """The seals from `base` to the newest; where these are many, to an older one that calls before have noted."""
    end, notes = view.next_round(stage), list[Call]()
    while end - base > _MOST_SEALS and end > round + 1:
        start = max(end - _MOST_SEALS, round + 1)
        notes.append(Call("note", (_between(view, stage, start, end),)))
        end = start
    return _between(view, stage, base, end), notes


def _between(view: RunView, stage: int, first: int, end: int) -> History:
    previous = view.sealed[stage, first - 1].digest if first else view.genesis[stage]
    seals = [sealed_round(view.sealed[stage, round]) for round in range(first, end)]
    return History(view.run, stage, first, previous, seals)


def split(proof: Proof) -> list[Call]:
    """As many transactions as the contributions need."""
    abi, each = Interface("OuterProofs"), max(1, len(proof.shown))
    while True:
        calls = [
            Call("prove", (proof._replace(first=first, shown=proof.shown[first : first + each]),))
            for first in range(0, max(1, len(proof.shown)), each)
        ]
        if each == 1 or max(len(abi.call_data(call.function, *call.arguments)) for call in calls) <= MOST_BYTES:
            return calls
        each = -(-each // 2)
