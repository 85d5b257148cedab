"""Creating a run: data and first weights frozen into blobs, the manifest completed, the run registered."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dlx.ground import durable
from dlx.ground.blobs import write_blob
from dlx.ground.durable import file_hash
from dlx.ledger.client import LedgerClient
from dlx.ledger.typed import run_id
from dlx.node.home import formatting
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.runs.find import config_of, genesis_of
from dlx.node.runs.listing import PROVENANCE, check_files, read_provenance, run_manifest
from dlx.training.balance.history import with_retention
from dlx.training.recipe import advice
from dlx.training.recipe.draft import Draft, complete, draft_from_toml
from dlx.training.recipe.manifest import Lineage, Manifest, canonical_bytes, parse
from dlx.training.recipe.recipe import BlobRef
from dlx.training.recipe.strict import ManifestError
from dlx.training.recipe.usage import Usage, read_usage
from dlx.training.recipe.usage import canonical_bytes as usage_bytes

if TYPE_CHECKING:
    from dlx.training.data.prepare import Preparation


class CreatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A created run; hashes in hex."""

    run: str  # 0x hex
    name: str
    creator: str
    manifest: str  # sha256, the name of its blob
    data_manifest: str
    genesis: tuple[str, ...]  # the name of each stage's first weights
    blobs: str  # the folder that has them all
    existed: bool  # the same run had been created before
    taken: dict[str, int]  # of the data's sources: ending -> files; none of prepared data
    left_out: dict[str, int]  # kind -> what lies in their folders and was not taken


def create_run(
    draft_path: Path,
    datadir: DataDir,
    client: LedgerClient,
    agree: Callable[[str], None],
    progress: Callable[[str], None] = lambda line: None,
    show: Callable[[str], None] = lambda line: None,
) -> CreatedRun:
    """Publish data and genesis as blobs in the folder, complete the manifest and register the run on the ledger.
    `agree` hears which data will be public, and raises if it must not be; `progress` hears each step, `show` how
    far the data is.

    A crash at any point, and a second call with the same draft and data, lead to the same run. Raises ManifestError
    naming the key for a bad draft, DataError for bad sources, LedgerError.
    """
    draft = with_retention(draft_from_toml(draft_path))
    for warning in advice.warnings(draft):
        progress(f"warning: {warning}")
    if not client.balance(client.account):  # said before hours go into a corpus
        raise Failure(f"account {client.account} has no funds to register the run with: send it some and try again")
    preparation = None if draft.data.prepared else _preparation(draft)
    usage = _usage(draft, progress)
    agree(_what(draft, preparation))
    manifest = _frozen(draft, preparation, usage, datadir, client, progress, show)
    digest = write_blob(datadir.blobs, [canonical_bytes(manifest)])
    run = run_id(client.chain_id, client.ledger, client.account, digest)
    existed = run in client.runs()
    if not existed:
        progress("registering the run on the ledger")
        client.create_run(config_of(manifest), manifest.name, genesis_of(manifest))
    return CreatedRun(
        run="0x" + run.hex(),
        name=manifest.name,
        creator=client.account,
        manifest=digest.hex(),
        data_manifest=manifest.data.manifest.sha256,
        genesis=tuple(blob.sha256 for blob in manifest.genesis),
        blobs=str(datadir.blobs),
        existed=existed,
        **(preparation.found.counts() if preparation else {"taken": {}, "left_out": {}}),
    )


def _preparation(draft: Draft) -> Preparation:
    from dlx.training.data.prepare import Preparation

    given = draft.data
    tokenizer = Path(given.tokenizer) if given.tokenizer else None
    return Preparation(
        sources=draft.sources,
        heldout=given.heldout,
        tokenizer=tokenizer,
        separator=given.separator,
        field=given.field,
        raw=given.raw,
        workers=os.cpu_count() or 1,
    )


def _usage(draft: Draft, progress: Callable[[str], None]) -> Usage:
    """How the model that the run starts from is used, by its folder. Raises ManifestError."""
    found, left = read_usage(Path(draft.model.source)) if draft.model.source else (Usage(version=1), [])
    for line in left:
        progress(f"warning: {line}; it is left behind")
    return found


def _what(draft: Draft, preparation: Preparation | None) -> str:
    """The run's data, in words."""
    if preparation is None:
        return f"the prepared data in {draft.data.prepared}"
    first, *others = draft.data.source
    return f"{first}{f' and {len(others):,} more' if others else ''}: {preparation.found}"


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
    data_manifest = _data(draft, preparation, datadir.blobs, progress, show)
    # What the data manifest says already is left out: where the data lay does not make it another run.
    data = msgspec.structs.replace(
        draft.data, source=[data_manifest.sha256], prepared="", tokenizer="", separator=None, field="text", raw=False
    )
    terms = msgspec.structs.replace(draft, data=data)
    genesis = usage = None
    if draft.model.source:  # which tells nothing about its bytes
        genesis = _genesis(draft, datadir.blobs, progress)
        usage = _usage_blob(found, Path(draft.model.source), data_manifest, datadir.blobs, progress)
        source = ",".join(blob.sha256 for blob in [*genesis, *([usage] if usage else [])])
        terms = msgspec.structs.replace(terms, model=msgspec.structs.replace(draft.model, source=source))
    creation = [client.chain_id, client.ledger, client.account, msgspec.to_builtins(terms)]
    folder = datadir.state / "created"
    made = folder / f"{hashlib.sha256(msgspec.json.encode(creation)).hexdigest()}.json"
    if made.exists():
        manifest = parse(made.read_bytes())
        if all((datadir.blobs / blob.sha256).exists() for blob in manifest.genesis):
            return manifest
    genesis = genesis or _genesis(draft, datadir.blobs, progress)
    manifest = complete(draft, genesis, data_manifest, lineage=_lineage(draft, progress), usage=usage)
    folder.mkdir(mode=0o700, exist_ok=True)
    durable.write_bytes(made, canonical_bytes(manifest))
    return manifest


def _data(
    draft: Draft,
    preparation: Preparation | None,
    blobs: Path,
    progress: Callable[[str], None],
    show: Callable[[str], None],
) -> BlobRef:
    """The data as blobs. Raises DataError, and ManifestError where it does not fit the model."""
    from dlx.training.data import prepare, shards

    def show_bytes(done: int, total: int) -> None:
        show(f"{formatting.bar(done, total)} {formatting.size(done)} of {formatting.size(total)}")

    if preparation is None:
        folder = Path(draft.data.prepared)
        _check_vocabulary(draft, shards.read_prepared(folder).vocab_size)
        progress("checking the prepared data")
        blob = prepare.adopt_folder(folder, blobs, show_bytes)
    else:
        vocabulary = preparation.vocabulary
        _check_vocabulary(draft, vocabulary.size if vocabulary else shards.BYTE_VALUES)
        progress(f"freezing the data into shards ({preparation.found})")
        blob = prepare.prepare_blobs(preparation, blobs, show_bytes)
    if not shards.Dataset.open(blobs / blob.sha256, blobs).len_samples("train", draft.data.sequence_length):
        length = draft.data.sequence_length
        raise ManifestError(f"data.sequence_length: the training data has no sample of {length} tokens and one more")
    return blob


def _check_vocabulary(draft: Draft, needed: int) -> None:
    given = int(draft.model.config["vocab_size"])
    if given < needed:
        raise ManifestError(f"model.config.vocab_size: expected at least the data's {needed} tokens, got {given}")


def _lineage(draft: Draft, progress: Callable[[str], None]) -> Lineage | None:
    """Of a model that another run made: what the folder that `dlx-node pull` wrote says of itself."""
    folder = Path(draft.model.source)
    if not draft.model.source or not (folder / PROVENANCE).exists():
        return None
    try:
        stated = read_provenance(folder)
        check_files(folder, run_manifest(folder, stated["manifest"]))
        if stated.get("average"):
            raise Failure(f"{folder} has the mean of several versions: a run starts from one, `dlx-node pull --sealed`")
        found = {key: stated[key] for key in Lineage.__struct_fields__}
        lineage = msgspec.convert(found, Lineage)
    except (Failure, KeyError, msgspec.ValidationError) as error:
        progress(f"warning: {error}; the run will not say which version it starts from")
        return None
    progress(f"starting from version {lineage.version} of run {lineage.run[:18]}")
    return lineage


def _usage_blob(
    found: Usage, folder: Path, data_manifest: BlobRef, blobs: Path, progress: Callable[[str], None]
) -> BlobRef | None:
    """How the model in a folder is used, as a blob: None where nothing was found of it, or the run's tokens are others
    than the model's, of which all that speaks."""
    if found == Usage(version=1):
        return None
    from dlx.training.data.shards import parse_data_manifest
    from dlx.training.data.vocabulary import is_bytes

    theirs = folder / "tokenizer.json"
    chosen = parse_data_manifest((blobs / data_manifest.sha256).read_bytes()).tokenizer
    if chosen == "bytes":
        same = is_bytes(theirs)
    else:
        same = theirs.is_file() and file_hash(theirs).hex() == chosen.sha256
    if same:
        content = usage_bytes(found)
        return BlobRef(write_blob(blobs, [content]).hex(), len(content))
    progress(
        f"warning: the run's tokenizer is not {theirs}: special tokens, chat template, token ids and generation "
        f"settings of {folder} are left behind"
    )
    return None


def _genesis(draft: Draft, blobs: Path, progress: Callable[[str], None]) -> list[BlobRef]:
    from dlx.training.models import pretrained, stages, weights  # torch and transformers: seconds to import

    checkpoint = pretrained.Checkpoint(draft) if draft.model.source else None
    if checkpoint and checkpoint.unties:
        progress("the model's head is its embedding: in several stages it gets weights of its own")
    genesis = []
    for stage in range(len(draft.stages)):
        progress(f"{'reading' if checkpoint else 'drawing'} the first weights of stage {stage}")
        # The only place where weights come from a seed; draft and manifest agree on all that it reads.
        tensors = checkpoint.weights(stage) if checkpoint else stages.initialise(draft, stage)
        name = weights.write_blob(tensors, blobs).hex()
        genesis.append(BlobRef(sha256=name, size=(blobs / name).stat().st_size))
    return genesis
