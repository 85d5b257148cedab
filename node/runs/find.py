"""Which runs a ledger has, what its events say about each, and whether that is what the manifest says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

import msgspec

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import BlobError, read_blob
from dlx.ground.untrusted import printable
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerError, LedgerUnavailable
from dlx.ledger.index.crosscheck import Claim, disagreement, left_out, make_whole, stage_claims
from dlx.ledger.index.event_index import EventIndex
from dlx.ledger.index.rebuild import NodesReplay, RunReplay
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.ledger.transactions.fees import GWEI
from dlx.ledger.typed import RunConfig
from dlx.ledger.view.run_state import ViewError
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.runs import MAX_HORIZON, MAX_LANE_SEALS, MIN_HORIZON
from dlx.node.home.citation import id_digits
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.program import line
from dlx.node.round.rules.plans import Terms, finished
from dlx.node.round.rules.round_rules import weight_share
from dlx.training.models.shapes import frozen_shapes, stage_shapes
from dlx.training.models.weights import file_size
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, manifest_hash, parse
from dlx.training.recipe.recipe import max_inner_steps
from dlx.training.recipe.strict import ManifestError

_READ_ON_SECONDS = 0.2  # while the chain node does not give everything yet

Row = TypeVar("Row")


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    run: str  # 0x hex
    name: str  # what its creator calls it; others may call theirs the same
    creator: str
    manifest: str
    rounds: int
    sealed_rounds: int  # by every stage
    stages: int
    members: int
    state: Literal["waiting for members", "training", "finished"]  # without the manifest by the number of rounds alone


class UnreadableRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that could not be shown among others."""

    run: str  # 0x hex
    why: str


class Member(msgspec.Struct, frozen=True, kw_only=True):
    account: str
    replica: int
    stage: int
    last_round_counted: int | None
    weight: float  # its part of its stage's weight, 0 to 1
    accused: bool
    forfeit: bool  # whether anybody may ask for its slot
    site: str | None  # address of the site whose machines hold all slots of its replica


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a member or the creator says of a version; see `node.runs.listing`."""

    version: int
    checkpoint: str  # sha256 of the list of its files
    account: str
    uri: str  # anybody's text


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    summary: RunSummary
    founders: tuple[str, ...]  # accounts
    founders_hold: tuple[float, ...]  # of each stage's weight the part that work has not earned yet, 0 to 1
    horizon: int  # non-empty seals over which work weighs
    min_replicas: int
    max_replicas: int
    complete_replicas: int
    quorum: str  # "2/3"
    start_time: int  # Unix seconds before which round 0 does not open; 0: none
    min_round_time: int  # seconds
    round_timeout: int  # seconds
    eviction_time: int  # seconds
    max_inner_steps: int  # of a round
    tokens_per_step: int
    genesis: tuple[str, ...]
    members: tuple[Member, ...]
    checkpoints: tuple[Checkpoint, ...]  # oldest first


def founders_part(details: RunDetails) -> str:
    """How much of the run's weight its founders still hold, in words."""
    held = [f"{part:.0%} of stage {stage}'s" for stage, part in enumerate(details.founders_hold) if part]
    return f"founders hold {', '.join(held)} until work has earned it" if held else "work has earned all of it"


def resolve(index: EventIndex, given: str | None) -> bytes:
    """The 32-byte run id for what a user typed: hex with or without 0x, an unambiguous prefix, or nothing at all
    where the ledger has one run. Raises UsageFailure, or Failure where the ledger has no such run."""
    text = None if given is None else id_digits(given)
    runs = index.runs()
    found = [run for run in runs if run.hex().startswith(text or "")]
    if len(found) == 1:
        return found[0]
    if not runs:
        make = line("run", "create", "--manifest", "FILE", of_ledger=True)
        raise Failure(f"the ledger has no run yet: make one with `{make}`")
    shown = line("run", "list", of_ledger=True)
    if text is None:
        raise UsageFailure(f"the ledger has {len(runs)} runs: name one that `{shown}` shows")
    if not found:
        raise Failure(f"the ledger knows no run {given}: `{shown}` shows those it has")
    raise UsageFailure(f"{given!r} could be any of {len(found)} runs: give more digits")


class RunReader:
    """A run as the chain shows it. For one thread."""

    def __init__(self, client: LedgerClient, run: bytes) -> None:
        self._client, self._feed = client, client.follow(run)

    @property
    def index(self) -> EventIndex:
        """Of what `view` has read, which must have been called."""
        return self._feed.index

    def view(self) -> RunView:
        """The run's view now: only what happened since the last call is read. Raises LedgerError."""
        while True:
            update = self._client.poll(self._feed)
            if update.complete:
                return update.view
            time.sleep(_READ_ON_SECONDS)


def resolve_offline(file: Path, given: str | None) -> bytes | None:
    """`resolve` without a ledger: a whole id, or the one in `file` where nothing given speaks against it."""
    text = "" if given is None else given.lower().removeprefix("0x")
    try:
        if len(text) == 64:
            return bytes.fromhex(text)
        found = file.read_text().strip()
        return bytes.fromhex(found) if len(found) == 64 and found.startswith(text) else None
    except (OSError, ValueError):
        return None


def resolve_patiently(client: LedgerClient, given: str | None, say: Callable[[str], None]) -> bytes:
    """`resolve`, as soon as the chain answers."""
    backoff, random, failures = Backoff(1.0, 15.0), Random(), 0
    while True:
        try:
            with client.events() as index:
                return resolve(index, given)
        except LedgerUnavailable as error:
            failures += 1
            if failures == 1:
                say(f"waiting for the chain, to find the run: {error}")
            time.sleep(backoff.delay(failures, random))


def view_of(client: LedgerClient, index: EventIndex, run: bytes) -> RunView:
    """A run of the ledger as its events say, where the contracts say the same; use it while the index is open.

    Raises EventsLeftOut where the chain nodes left events out or made some up, LedgerUnavailable.
    """
    views: list[RunView] = []

    def check(node: RpcClient) -> str | None:
        views.clear()
        nodes, tip = NodesReplay(index), index.tip
        try:
            views.append(replayed(index, run))
            nodes.advance()
        except LedgerUnavailable:
            raise
        except (ViewError, LedgerError) as error:
            return str(error)
        return None if tip is None else left_out(node, index.contracts, views[0], nodes.nodes, tip.block)

    make_whole(index, client.rpc, check, f"events of run 0x{run.hex()}")
    return views[0]


def replayed(index: EventIndex, run: bytes) -> RunView:
    """A run of the ledger as its events say; use it while the index is open. Raises ViewError for events that the
    contract cannot have emitted."""
    replay = RunReplay(index, run)
    replay.advance()
    return replay.view


def list_runs(
    client: LedgerClient, index: EventIndex, folders: Sequence[Path]
) -> tuple[list[RunSummary], list[UnreadableRun]]:
    """Every run of the ledger, oldest first, and those that could not be shown; a manifest in a blob folder says when a
    run ends that adapts.

    Raises EventsLeftOut where the heads or slots of those shown are not the contracts', LedgerUnavailable.
    """
    lists: list[tuple[list[RunSummary], list[UnreadableRun]]] = []

    def check(node: RpcClient) -> str | None:
        claims: list[Claim] = []
        tip = index.tip

        def read(run: bytes) -> RunSummary:
            view = replayed(index, run)
            claims.extend(replace(one, about=f"{one.about} of run 0x{run.hex()}") for one in stage_claims(view))
            return summary(view, folders)

        lists[:] = [readable(index, index.runs(), read)]
        return None if tip is None else disagreement(node, index.contracts, claims, tip.block)

    make_whole(index, client.rpc, check, "events of a run")
    return lists[0]


def readable(
    index: EventIndex, runs: Iterable[bytes], read: Callable[[bytes], Row]
) -> tuple[list[Row], list[UnreadableRun]]:
    """What `read` makes of each run, and the runs of which it makes nothing: whatever is wrong with one's events, the
    others are shown. Raises LedgerUnavailable, which says nothing about a run."""
    found, unreadable = [], []
    with index.forgetting_at_end():
        for run in runs:
            try:
                found.append(read(run))
            except LedgerUnavailable:
                raise
            except Exception as error:
                why = printable(f"{type(error).__name__}: {error}")
                unreadable.append(UnreadableRun(run="0x" + run.hex(), why=why))
    return found, unreadable


def show_run(view: RunView, folders: Sequence[Path], now: int | None = None) -> RunDetails:
    """A run's terms and members, at a time of the chain (Unix seconds; None: this machine's, which may be wrong)."""
    config = view.config
    now = int(time.time()) if now is None else now
    members = sorted((slot, account) for account, slot in view.members().items())
    return RunDetails(
        summary=summary(view, folders),
        founders=view.founders,
        founders_hold=tuple(view.vacuum(stage, now) / view.total(stage, now) for stage in range(config.stages)),
        horizon=config.horizon,
        min_replicas=config.min_replicas,
        max_replicas=config.max_replicas,
        complete_replicas=len(view.complete_replicas()),
        quorum=f"{config.quorum_numerator}/{config.quorum_denominator}",
        start_time=config.start_time,
        min_round_time=config.min_round_time,
        round_timeout=config.round_timeout,
        eviction_time=config.eviction_time,
        max_inner_steps=config.max_inner_steps,
        tokens_per_step=config.tokens_per_step,
        genesis=tuple(digest.hex() for digest in view.genesis),
        members=tuple(
            Member(
                account=account,
                replica=replica,
                stage=stage,
                last_round_counted=view.last_round_counted(account),
                weight=weight_share(view, account, stage, now),
                accused=account in view.accusations,
                forfeit=not view.finished and view.is_forfeit(account),
                site=view.site_at(replica),
            )
            for (replica, stage), account in members
        ),
        checkpoints=tuple(
            Checkpoint(version=one.round, checkpoint=one.folder.hex(), account=one.account, uri=one.uri)
            for one in view.checkpoints
        ),
    )


def read_manifest(view: RunView, folders: Sequence[Path]) -> Manifest | None:
    """The run's manifest where a folder has its blob, intact; it has the hash that the ledger holds."""
    for folder in folders:
        try:
            return parse(read_blob(folder / view.config.manifest.hex(), MAX_BYTES))
        except (BlobError, ManifestError):
            continue
    return None


def summary(view: RunView, folders: Sequence[Path]) -> RunSummary:
    """What a run is and how far it is; a manifest in a blob folder says when a run ends that adapts."""
    config = view.config
    manifest = read_manifest(view, folders)
    sealed = min(view.next_round(stage) for stage in range(config.stages))
    over = finished(Terms.of(manifest), view) if manifest else view.finished
    return RunSummary(
        run="0x" + view.run.hex(),
        name=view.name,
        creator=view.creator,
        manifest=config.manifest.hex(),
        rounds=config.rounds,
        sealed_rounds=sealed,
        stages=config.stages,
        members=len(view.members()),
        state="finished" if over else "waiting for members" if view.open_round is None else "training",
    )


def differences(manifest: Manifest, view: RunView) -> list[str]:
    """Where what the ledger has of the run differs from the manifest that it names: such a run is not to be
    trusted."""
    stated = {"name": manifest.name} | asdict(config_of(manifest))
    registered = {"name": view.name} | asdict(view.config)
    found = [f"{key} is {stated[key]}, there {registered[key]}" for key in stated if stated[key] != registered[key]]
    for what, blobs, shapes in (("genesis", manifest.genesis, stage_shapes), ("base", manifest.base, frozen_shapes)):
        for stage, blob in enumerate(blobs):  # before anybody fetches it
            if blob.size != (size := file_size(shapes(manifest, stage))):
                found.append(f"the {what} of stage {stage} has {blob.size:,} bytes, its tensors {size:,}")
    return found if genesis_of(manifest) == list(view.genesis) else [*found, "another genesis"]


def genesis_of(manifest: Manifest) -> list[bytes]:
    """The hash of each stage's first weights."""
    return [bytes.fromhex(blob.sha256) for blob in manifest.genesis]


def config_of(manifest: Manifest) -> RunConfig:
    """The numbers of a manifest that the ledger enforces."""
    from dlx.node.runs.outer_terms import outer_commitment  # the shapes of tensors: numpy, which many commands need not

    return RunConfig(
        manifest=manifest_hash(manifest),
        rounds=manifest.rounds,
        stages=len(manifest.stages),
        min_replicas=manifest.min_replicas,
        max_replicas=manifest.max_replicas,
        quorum_numerator=manifest.quorum.numerator,
        quorum_denominator=manifest.quorum.denominator,
        horizon=horizon_of(manifest.audit.share, manifest.max_replicas),
        min_round_time=manifest.timing.min_round_time,
        round_timeout=manifest.timing.round_timeout,
        eviction_time=manifest.timing.eviction_time,
        max_inner_steps=max_inner_steps(manifest),
        start_time=manifest.timing.start_time,
        tokens_per_step=manifest.tokens_per_step,
        invited=manifest.invited,
        bond=manifest.bond * GWEI,
        outer=outer_commitment(manifest, [bytes.fromhex(stage.root) for stage in manifest.genesis]),
    )


def horizon_of(share: float, max_replicas: int) -> int:
    """Over how many non-empty seals work weighs in a run whose draws replay this share of it: who makes its work up is
    drawn about eight times in as many. A power of two within the ledger's bounds."""
    most = min(MAX_HORIZON, MAX_LANE_SEALS // max_replicas)
    seals = 8 / share if share else most
    return max(MIN_HORIZON, min(1 << round(math.log2(seals)), 1 << most.bit_length() - 1))
