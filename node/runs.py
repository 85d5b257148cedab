"""Training runs: created from a draft, found on the ledger, and what is known about each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ledger.client import LedgerClient
from ledger.index import EventIndex
from ledger.typed import RunConfig, run_id
from ledger.view import RunView
from node.datadir import DataDir
from node.errors import Failure, UsageFailure
from node.round.plans import Terms, finished
from p2p.frames import FRAME_LIMIT
from training import advice, atomic
from training.draft import Draft, complete, draft_from_toml
from training.manifest import MAX_BYTES, BlobRef, Manifest, activation_bytes, canonical_bytes, manifest_hash, parse
from training.strict import ManifestError

_SHORTEST_PREFIX = 6  # hex digits
_FRAME_OVERHEAD = 64  # bytes around the tensor of a pipe frame


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A created run; hashes in hex."""

    run: str  # 0x hex
    name: str
    creator: str
    manifest: str  # sha256, the name of its blob
    data_manifest: str
    genesis: tuple[str, ...]  # the name of each stage's first weights
    blobs: str  # the folder that has them all
    existed: bool  # the same run had been created before


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    run: str  # 0x hex
    name: str | None  # None where no blob folder has the manifest
    creator: str
    manifest: str
    rounds: int
    sealed_rounds: int  # by every stage
    stages: int
    members: int
    state: Literal["waiting for members", "training", "finished"]  # without the manifest by the number of rounds alone


class Member(msgspec.Struct, frozen=True, kw_only=True):
    account: str
    replica: int
    stage: int
    last_round_counted: int | None
    accused: bool


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    summary: RunSummary
    min_replicas: int
    max_replicas: int
    complete_replicas: int
    quorum: str  # "2/3"
    round_timeout: int  # seconds
    eviction_time: int  # seconds
    tokens_per_step: int
    genesis: tuple[str, ...]
    members: tuple[Member, ...]


def create_run(
    draft_path: Path, datadir: DataDir, client: LedgerClient, progress: Callable[[str], None] = lambda line: None
) -> RunRecord:
    """Publish data and genesis as blobs in the folder, complete the manifest and register the run on the ledger.

    A crash at any point, and a second call with the same draft and data, lead to the same run. Raises ManifestError
    naming the key for a bad draft, DataError for bad sources, LedgerError.
    """
    draft = draft_from_toml(draft_path)
    check_pipes(draft)
    for warning in advice.warnings(draft):
        progress(f"warning: {warning}")
    manifest = _frozen(draft, datadir, client, progress)
    digest = atomic.write_blob(datadir.blobs, [canonical_bytes(manifest)])
    run = run_id(client.chain_id, client.ledger, client.account, digest)
    existed = any(created.run == run for created in client.runs())
    if not existed:
        progress("registering the run on the ledger")
        client.create_run(config_of(manifest), [bytes.fromhex(blob.sha256) for blob in manifest.genesis])
    return RunRecord(
        run="0x" + run.hex(),
        name=manifest.name,
        creator=client.account,
        manifest=digest.hex(),
        data_manifest=manifest.data.manifest.sha256,
        genesis=tuple(blob.sha256 for blob in manifest.genesis),
        blobs=str(datadir.blobs),
        existed=existed,
    )


def check_pipes(manifest: Manifest | Draft) -> None:
    """Raises Failure for a run whose activations no pipe carries."""
    size = activation_bytes(manifest)
    if size + _FRAME_OVERHEAD > FRAME_LIMIT:
        raise Failure(
            f"data.micro_batches: one micro-batch's activations take {size} bytes, but a pipe carries frames of "
            f"{FRAME_LIMIT}: use more micro-batches"
        )


def config_of(manifest: Manifest) -> RunConfig:
    """What the ledger holds of a manifest: a run whose RunConfig differs from its manifest's is not to be trusted."""
    return RunConfig(
        manifest=manifest_hash(manifest),
        rounds=manifest.rounds,
        stages=len(manifest.stages),
        min_replicas=manifest.min_replicas,
        max_replicas=manifest.max_replicas,
        quorum_numerator=manifest.quorum.numerator,
        quorum_denominator=manifest.quorum.denominator,
        round_timeout=manifest.timing.round_timeout,
        eviction_time=manifest.timing.eviction_time,
        tokens_per_step=manifest.tokens_per_step,
    )


def resolve(ledger: LedgerClient | EventIndex, given: str | None) -> bytes:
    """The 32-byte run id for what a user typed: hex with or without 0x, an unambiguous prefix, or nothing at all
    where the ledger has one run. Raises UsageFailure, or Failure where the ledger has no such run."""
    text = None if given is None else given.lower().removeprefix("0x")
    if text is not None and (not set(text) <= set("0123456789abcdef") or not _SHORTEST_PREFIX <= len(text) <= 64):
        raise UsageFailure(f"{given!r} is no run id: expected 64 hex digits, or the first {_SHORTEST_PREFIX} or more")
    runs = [created.run for created in ledger.runs()]
    found = [run for run in runs if run.hex().startswith(text or "")]
    if len(found) == 1:
        return found[0]
    if not runs:
        raise Failure("the ledger has no run yet: make one with `dlx-node run create`")
    if text is None:
        raise UsageFailure(f"the ledger has {len(runs)} runs: name one of those that `dlx-node run list` shows")
    if not found:
        raise Failure(f"the ledger knows no run {given}: `dlx-node run list` shows those it has")
    raise UsageFailure(f"{given!r} could be any of {len(found)} runs: give more digits")


def view_of(index: EventIndex, run: bytes) -> RunView:
    """A run of the ledger as its events say. Raises ViewError for events that the contract cannot have emitted."""
    view = RunView(run)
    for event in index.events(run):
        view.apply(event)
    return view


def list_runs(index: EventIndex, folders: Sequence[Path]) -> list[RunSummary]:
    """Every run of the ledger, oldest first; names from the manifests that the blob folders have."""
    return [_summary(view_of(index, created.run), folders) for created in index.runs()]


def show_run(index: EventIndex, run: bytes, folders: Sequence[Path]) -> RunDetails:
    """A run's terms and members."""
    view = view_of(index, run)
    config = view.config
    members = sorted((slot, account) for account, slot in view.members().items())
    return RunDetails(
        summary=_summary(view, folders),
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        complete_replicas=len(view.complete_replicas()),
        quorum=f"{config.quorum_numerator}/{config.quorum_denominator}",
        round_timeout=config.round_timeout,
        eviction_time=config.eviction_time,
        tokens_per_step=config.tokens_per_step,
        genesis=tuple(digest.hex() for digest in view.genesis),
        members=tuple(
            Member(
                account=account,
                replica=replica,
                stage=stage,
                last_round_counted=view.last_round_counted(account),
                accused=account in view.accusations,
            )
            for (replica, stage), account in members
        ),
    )


def read_manifest(view: RunView, folders: Sequence[Path]) -> Manifest | None:
    """The run's manifest where a folder has its blob, intact; it has the hash that the ledger holds."""
    for folder in folders:
        try:
            return parse(atomic.read_blob(folder / view.config.manifest.hex(), MAX_BYTES))
        except (atomic.BlobError, ManifestError):
            continue
    return None


def _frozen(draft: Draft, datadir: DataDir, client: LedgerClient, progress: Callable[[str], None]) -> Manifest:
    """The manifest with data and genesis as blobs. Kept, so that its random salt is drawn once for a run."""
    data_manifest = _data(draft, datadir.blobs, progress)
    # What the data manifest says already is left out: where the data lay does not make it another run.
    data = msgspec.structs.replace(
        draft.data, source=[data_manifest.sha256], prepared="", tokenizer="", separator=None, field="text"
    )
    terms = msgspec.structs.replace(draft, data=data)
    genesis = None
    if draft.model.source:  # which tells nothing about its bytes
        genesis = _genesis(draft, datadir.blobs, progress)
        source = ",".join(blob.sha256 for blob in genesis)
        terms = msgspec.structs.replace(terms, model=msgspec.structs.replace(draft.model, source=source))
    creation = [client.chain_id, client.ledger, client.account, msgspec.to_builtins(terms)]
    folder = datadir.state / "created"
    kept = folder / f"{hashlib.sha256(msgspec.json.encode(creation)).hexdigest()}.json"
    if kept.exists():
        manifest = parse(kept.read_bytes())
        if all((datadir.blobs / blob.sha256).exists() for blob in manifest.genesis):
            return manifest
    manifest = complete(draft, genesis or _genesis(draft, datadir.blobs, progress), data_manifest)
    folder.mkdir(mode=0o700, exist_ok=True)
    atomic.write_bytes(kept, canonical_bytes(manifest))
    return manifest


def _data(draft: Draft, blobs: Path, progress: Callable[[str], None]) -> BlobRef:
    """The data as blobs. Raises DataError, and ManifestError where it does not fit the model."""
    from training import data, prepare

    if draft.data.prepared:
        folder = Path(draft.data.prepared)
        _check_vocabulary(draft, data.read_prepared(folder).vocab_size)
        progress("checking the prepared data")
        blob = prepare.adopt_folder(folder, blobs)
    else:
        given = draft.data
        tokenizer = Path(given.tokenizer) if given.tokenizer else None
        recipe = prepare.Recipe(draft.sources, given.heldout, tokenizer, given.separator, given.field)
        _check_vocabulary(draft, recipe.vocabulary.size if recipe.vocabulary else data.BYTE_VALUES)
        progress("freezing the data into shards")
        blob = prepare.prepare_blobs(recipe, blobs)
    if not data.Dataset.open(blobs / blob.sha256, blobs).len_samples("train", draft.data.sequence_length):
        length = draft.data.sequence_length
        raise ManifestError(f"data.sequence_length: the training data has no sample of {length} tokens and one more")
    return blob


def _check_vocabulary(draft: Draft, needed: int) -> None:
    given = int(draft.model.config["vocab_size"])
    if given < needed:
        raise ManifestError(f"model.config.vocab_size: expected at least the data's {needed} tokens, got {given}")


def _genesis(draft: Draft, blobs: Path, progress: Callable[[str], None]) -> list[BlobRef]:
    from training import pretrained, stages, weights  # torch and transformers: seconds to import

    checkpoint = pretrained.Checkpoint(draft) if draft.model.source else None
    genesis = []
    for stage in range(len(draft.stages)):
        progress(f"{'reading' if checkpoint else 'drawing'} the first weights of stage {stage}")
        # The only place where weights come from a seed; draft and manifest agree on all that it reads.
        tensors = checkpoint.weights(stage) if checkpoint else stages.initialise(draft, stage)
        name = weights.write_blob(tensors, blobs).hex()
        genesis.append(BlobRef(sha256=name, size=(blobs / name).stat().st_size))
    return genesis


def _summary(view: RunView, folders: Sequence[Path]) -> RunSummary:
    config = view.config
    manifest = read_manifest(view, folders)
    sealed = min(view.next_round(stage) for stage in range(config.stages))
    over = finished(Terms.of(manifest), view) if manifest else view.finished
    return RunSummary(
        run="0x" + view.run.hex(),
        name=manifest.name if manifest else None,
        creator=view.creator,
        manifest=config.manifest.hex(),
        rounds=config.rounds,
        sealed_rounds=sealed,
        stages=config.stages,
        members=len(view.members()),
        state="finished" if over else "waiting for members" if view.open_round is None else "training",
    )
