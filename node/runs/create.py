"""Creating a run: data and first weights frozen into blobs, the manifest completed, the run registered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dlx.ground import durable
from dlx.ground.blobs import write_blob
from dlx.ground.durable import file_hash
from dlx.ground.limits import cores
from dlx.ground.merkle import file_root
from dlx.ledger.client import LedgerClient
from dlx.ledger.typed import run_id
from dlx.node.home import formatting
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.runs.find import config_of, genesis_of
from dlx.node.runs.listing import PROVENANCE, check_files, read_form, read_provenance, run_manifest
from dlx.training.balance.history import with_retention
from dlx.training.models.model_files import Form
from dlx.training.recipe import advice
from dlx.training.recipe.draft import Draft, DraftData, complete, draft_from_toml
from dlx.training.recipe.evaluation import chosen, samples_before, spread
from dlx.training.recipe.manifest import Before, Data, Lineage, Manifest, canonical_bytes, parse
from dlx.training.recipe.recipe import BlobRef, WeightsRef
from dlx.training.recipe.strict import ManifestError
from dlx.training.recipe.usage import Usage, read_usage
from dlx.training.recipe.usage import canonical_bytes as usage_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from dlx.training.data.prepare import Preparation


class CreatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A created run; hashes in hex."""

    run: str  # 0x hex
    name: str
    creator: str
    founders: tuple[str, ...]  # whose signatures the seals need until work has earned enough weight
    manifest: str  # sha256, the name of its blob
    data_manifest: str
    genesis: tuple[str, ...]  # the name of each stage's first weights
    blobs: str  # the folder that has them all
    existed: bool  # the same run had been created before
    held_out: float | None  # loss of the model that it starts from, in nats per token (bytes: per byte); None: drawn
    taken: dict[str, int]  # of the data's sources: ending -> files; none of prepared data
    left_out: dict[str, int]  # kind -> what lies in their folders and was not taken


def create_run(
    draft_path: Path,
    datadir: DataDir,
    client: LedgerClient,
    agree: Callable[[str], None],
    progress: Callable[[str], None] = lambda line: None,
    show: Callable[[str], None] = lambda line: None,
    founders: Sequence[str] = (),
    invited: bool = False,
    unbounded: bool = False,
) -> CreatedRun:
    """Publish data and genesis as blobs in the folder, complete the manifest and register the run on the ledger.
    `founders`: their accounts; none: the account that creates it. `invited`: only who is invited joins, as where the
    draft says so. `unbounded`: whether anybody may join a run whose policy has no bound. `agree` hears which data will
    be public, and raises if it must not be; `progress` hears each step, `show` how far the data is.

    A crash at any point, and a second call with the same draft and data, lead to the same run. Raises ManifestError
    naming the key for a bad draft, Failure for one that is refused, DataError for bad sources, LedgerError.
    """
    draft = with_retention(draft_from_toml(draft_path))
    draft = msgspec.structs.replace(draft, invited=invited or draft.invited)
    for warning in advice.warnings(draft):
        progress(f"warning: {warning}")
    if advice.is_unbounded(draft) and not unbounded:
        raise Failure(
            'outer.policy "mean" has no bound, and anybody may join: write "clip+cosine" or invited = true, or give '
            "--unbounded"
        )
    if not client.balance(client.account):  # said before hours go into a corpus
        raise Failure(f"account {client.account} has no funds to register the run with: send it some and try again")
    preparation = None if draft.data.prepared else _preparation(draft, show)
    usage = _usage(draft, progress)
    _check_vocabulary(draft, preparation)
    if preparation is not None:
        progress("looking at the data")
        progress(f"{preparation.survey.found}: {preparation.survey}")
        progress(f"about {preparation.survey.tokens(preparation.vocabulary):,} tokens")
    agree(_what(draft, preparation))
    manifest = _frozen(draft, preparation, usage, datadir, client, progress, show)
    digest = write_blob(datadir.blobs, [canonical_bytes(manifest)])
    run = run_id(client.chain_id, client.ledger, client.account, digest)
    founders, existed = tuple(founders) or (client.account,), run in client.runs()
    if not existed:
        progress("registering the run on the ledger")
        client.create_run(config_of(manifest), manifest.name, genesis_of(manifest), founders)
    return CreatedRun(
        run="0x" + run.hex(),
        name=manifest.name,
        creator=client.account,
        founders=founders,
        manifest=digest.hex(),
        data_manifest=manifest.data.manifest.sha256,
        genesis=tuple(blob.sha256 for blob in manifest.genesis),
        blobs=str(datadir.blobs),
        existed=existed,
        held_out=manifest.loss_before,
        **(preparation.survey.found.counts() if preparation else {"taken": {}, "left_out": {}}),
    )


def _preparation(draft: Draft, show: Callable[[str], None]) -> Preparation:
    from dlx.training.data.prepare import Preparation
    from dlx.training.data.survey import Portion

    given = draft.data
    tokenizer = Path(given.tokenizer) if given.tokenizer else None
    sources = [
        Path(one)
        if isinstance(one, str)
        else Portion(list(map(Path, one.path)), one.name, one.field or given.field, one.epochs or 1.0, one.weight or 0)
        for one in given.source
    ]
    return Preparation(
        sources=sources,
        heldout=given.heldout,
        tokenizer=tokenizer,
        separator=given.separator,
        field=given.field,
        raw=given.raw,
        chat=given.chat,
        sequence_length=given.sequence_length,
        template=Path(given.template) if given.template else None,
        workers=cores(),
        held_set=list(map(Path, given.heldout_source)),
        drop_copies=given.drop_duplicates,
        looked=lambda done, total: show(f"{formatting.bar(done, total)} {done:,} of {total:,} files looked at"),
    )


def _usage(draft: Draft, progress: Callable[[str], None]) -> Usage:
    """How the model is used, by the files beside its tokenizer. Raises ManifestError."""
    theirs = _their_tokenizer(draft)
    found, left = read_usage(theirs.parent) if theirs else (Usage(version=1), [])
    for line in left:
        progress(f"warning: {line}; it is left behind")
    return found


def _their_tokenizer(draft: Draft) -> Path | None:
    """Beside it lies how the model is used: that of the conversations, else that of the folder to start from."""
    if draft.data.chat and draft.data.tokenizer:
        return Path(draft.data.tokenizer)
    return Path(draft.model.source) / "tokenizer.json" if draft.model.source else None


def _what(draft: Draft, preparation: Preparation | None) -> str:
    """The run's data, in words."""
    if preparation is None:
        return f"the prepared data in {draft.data.prepared}"
    first, *others = preparation.paths
    return f"{first}{f' and {len(others):,} more' if others else ''}: {preparation.survey.found}"


def _frozen(
    draft: Draft,
    preparation: Preparation | None,
    found: Usage,
    datadir: DataDir,
    client: LedgerClient,
    progress: Callable[[str], None],
    show: Callable[[str], None],
) -> Manifest:
    """The manifest with data and genesis as blobs. Kept, so that its random salt is drawn once for a run."""
    folder = datadir.state / "created"
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = folder / "unfinished"  # how much of the data is frozen
    data_manifest = _data(draft, preparation, datadir.blobs, kept, progress, show)
    # What the data manifest says already is left out: where the data lay does not make it another run.
    told = {key: getattr(draft.data, key) for key in Data.__struct_fields__ if key != "manifest"}
    data = DraftData(source=[data_manifest.sha256], heldout=draft.data.heldout, **told)
    terms = msgspec.structs.replace(draft, data=data)
    usage = _usage_blob(draft, found, data_manifest, datadir.blobs, progress)
    start = _start(draft, datadir.blobs, progress) if draft.model.source else None
    blobs = [*start.genesis, *start.base] if start else []
    names = [blob.sha256 for blob in [*blobs, *([usage] if usage else [])]]
    if names:  # folders tell nothing about their bytes
        terms = msgspec.structs.replace(terms, model=msgspec.structs.replace(draft.model, source=",".join(names)))
    creation = [client.chain_id, client.ledger, client.account, msgspec.to_builtins(terms)]
    made = folder / f"{hashlib.sha256(msgspec.json.encode(creation)).hexdigest()}.json"
    if made.exists():
        manifest = parse(made.read_bytes())
        if all((datadir.blobs / blob.sha256).exists() for blob in [*manifest.genesis, *manifest.base]):
            kept.unlink(missing_ok=True)
            return manifest
    start = start or _start(draft, datadir.blobs, progress)
    draft = _with_evaluation(draft, data_manifest, datadir.blobs)
    lineage = _lineage(draft, progress)
    manifest = complete(draft, start.genesis, data_manifest, lineage=lineage, usage=usage, base=start.base)
    if draft.model.source:
        before = _before(manifest, datadir.blobs, progress, show)
        manifest = parse(canonical_bytes(msgspec.structs.replace(manifest, before=before)))
    durable.write_bytes(made, canonical_bytes(manifest))
    kept.unlink(missing_ok=True)
    return manifest


def _data(
    draft: Draft,
    preparation: Preparation | None,
    blobs: Path,
    kept: Path,
    progress: Callable[[str], None],
    show: Callable[[str], None],
) -> BlobRef:
    """The data as blobs; what is `kept` says how far an interrupted call came. Raises DataError, and ManifestError
    where the data does not fit the model."""
    from dlx.training.data import overlap, prepare, shards

    def show_bytes(done: int, total: int) -> None:
        show(f"{formatting.bar(done, total)} {formatting.size(done)} of {formatting.size(total)}")

    if preparation is None:
        progress("checking the prepared data")
        blob = prepare.adopt_folder(Path(draft.data.prepared), blobs, show_bytes)
    else:
        progress("freezing the data into shards")
        blob = prepare.prepare_blobs(preparation, blobs, show_bytes, kept, progress)
        progress("comparing held-out with training data")
        found = overlap.overlap(shards.parse_data_manifest((blobs / blob.sha256).read_bytes()), blobs)
        progress(f"warning: {found}" if found.part > overlap.WARN else str(found))
    dataset, length = shards.Dataset.open(blobs / blob.sha256, blobs), draft.data.sequence_length
    if draft.data.chat != (dataset.manifest.rows is not None):
        raise ManifestError(f"data.chat: the prepared data has {dataset.manifest.kind}")
    if dataset.manifest.rows is not None:
        progress(str(dataset.manifest.rows))
    if not dataset.len_samples("train", length):
        lacks = f"no sample of {length} tokens and one more"
        raise ManifestError(f"data.sequence_length: the training data ({dataset.manifest.kind}) has {lacks}")
    return blob


def _with_evaluation(draft: Draft, data_manifest: BlobRef, blobs: Path) -> Draft:
    """With the draft's evaluation, or the one that fits its held-out data. Raises ManifestError where there is too
    little of that."""
    from dlx.training.data.shards import Dataset

    there = Dataset.open(blobs / data_manifest.sha256, blobs).len_samples("heldout", draft.data.sequence_length)
    given = draft.evaluation
    if given is None:
        return msgspec.structs.replace(draft, evaluation=chosen(draft, there))
    if given.every and given.samples > there:
        raise ManifestError(
            f"evaluation.samples: expected at most {there}, the held-out samples of {draft.data.sequence_length} "
            f"tokens that the data has, got {given.samples}"
        )
    return draft


def _check_vocabulary(draft: Draft, preparation: Preparation | None) -> None:
    """Raises ManifestError where the data has more tokens than the model."""
    from dlx.training.data import shards

    if preparation is None:
        needed = shards.read_prepared(Path(draft.data.prepared)).vocab_size
    else:
        needed = preparation.vocabulary.size if preparation.vocabulary else shards.BYTE_VALUES
    given, where = int(draft.model.config["vocab_size"]), "model.config."
    if given < needed:
        if draft.model.source:
            where = f"{Path(draft.model.source) / 'config.json'}: "
        raise ManifestError(f"{where}vocab_size: expected at least the data's {needed} tokens, got {given}")


def _lineage(draft: Draft, progress: Callable[[str], None]) -> Lineage | None:
    """Of a model that another run made: what the folder that `dlx-node pull` wrote says of itself."""
    folder = Path(draft.model.source)
    if not draft.model.source or not (folder / PROVENANCE).exists():
        return None
    try:
        stated = read_provenance(folder)
        check_files(folder, run_manifest(folder, stated["manifest"]), read_form(stated))
        if read_form(stated) != Form():
            raise Failure(f"{folder} has rounded weights: a run starts from the sealed ones, pull it without --dtype")
        if stated.get("average"):
            raise Failure(f"{folder} has the mean of several versions: a run starts from one, `pull --sealed`")
        found = {key: stated[key] for key in Lineage.__struct_fields__}
        lineage = msgspec.convert(found, Lineage)
    except (Failure, KeyError, msgspec.ValidationError) as error:
        progress(f"warning: {error}; the run will not say which version it starts from")
        return None
    progress(f"starting from version {lineage.version} of run {lineage.run[:18]}")
    return lineage


def _usage_blob(
    draft: Draft, found: Usage, data_manifest: BlobRef, blobs: Path, progress: Callable[[str], None]
) -> BlobRef | None:
    """How the model is used, as a blob: without what speaks of another tokenizer's tokens than the run's, and with the
    chat template that made text of its conversations. None where that is nothing."""
    from dlx.training.data.shards import parse_data_manifest
    from dlx.training.data.vocabulary import is_bytes

    data, theirs = parse_data_manifest((blobs / data_manifest.sha256).read_bytes()), _their_tokenizer(draft)
    if theirs is not None and found != Usage(version=1):
        if data.tokenizer == "bytes":
            same = is_bytes(theirs)
        else:
            same = theirs.is_file() and file_hash(theirs).hex() == data.tokenizer.sha256
        if not same:
            progress(
                f"warning: the run's tokenizer is not {theirs}: special tokens, chat template, token ids and "
                f"generation settings of {theirs.parent} are left behind"
            )
            found = Usage(version=1)
    if data.rows is not None:
        template = (blobs / data.rows.template.sha256).read_bytes().decode()
        found = msgspec.structs.replace(found, chat_templates=found.chat_templates | {"default": template})
    if found == Usage(version=1):
        return None
    content = usage_bytes(found)
    return BlobRef(write_blob(blobs, [content]).hex(), len(content))


def _before(
    manifest: Manifest, blobs: Path, progress: Callable[[str], None], show: Callable[[str], None]
) -> Before | None:
    """How good the model is that the run starts from; None without held-out samples."""
    from dlx.training.data.shards import Dataset
    from dlx.training.inner.forward import Passed, stage_pass
    from dlx.training.models.placement import Placement, settle, take

    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    there = dataset.len_samples("heldout", manifest.data.sequence_length)
    samples = spread(there, samples_before(manifest, sum(one.size for one in [*manifest.genesis, *manifest.base]) // 4))
    if not samples:
        return None
    progress(f"computing the held-out loss of the model that the run starts from, of {len(samples)} samples")
    placement, version = settle(Placement()), [bytes.fromhex(one.sha256) for one in manifest.genesis]
    take(placement)
    found, made = Passed(), list[Path]()
    try:
        for stage in range(len(version)):
            show(f"{formatting.bar(stage, len(version))} stage {stage} of {len(version)}")
            found = stage_pass(manifest, stage, version, samples, dataset, found.activations, blobs, placement)
            if stage + 1 < len(version):
                made.append(blobs / found.activations.hex())
    finally:
        for path in made:
            path.unlink(missing_ok=True)
    return Before(samples=len(samples), sum=found.sum, count=found.count)


class _Start(NamedTuple):
    """The first weights of each stage, and those of an adapter's base: none without an adapter."""

    genesis: list[WeightsRef]
    base: list[WeightsRef]


def _start(draft: Draft, blobs: Path, progress: Callable[[str], None]) -> _Start:
    from dlx.training.models import pretrained, stages  # torch and transformers: seconds to import

    checkpoint = pretrained.Checkpoint(draft, Path(draft.model.source)) if draft.model.source else None
    if checkpoint and checkpoint.unties:
        progress("the model's head is its embedding: in several stages it gets weights of its own")
    found = _Start([], [])
    for stage in range(len(draft.stages)):
        if checkpoint:
            progress(f"reading the {'base' if draft.adapter else 'first weights'} of stage {stage}")
            (found.base if draft.adapter else found.genesis).append(_written(checkpoint.weights(stage), blobs))
        if draft.adapter or not checkpoint:
            progress(f"drawing the first weights of stage {stage}")
            # The only place where weights come from a seed; draft and manifest agree on all that it reads.
            found.genesis.append(_written(stages.initialise(draft, stage), blobs))
    return found


def _written(tensors: dict[str, Tensor], blobs: Path) -> WeightsRef:
    from dlx.training.models import weights

    name = weights.write_blob(tensors, blobs).hex()
    root = file_root(blobs / name).hex()
    return WeightsRef(sha256=name, size=(blobs / name).stat().st_size, root=root)
