"""A published version of a run as a Hugging Face folder, with where it comes from written beside it."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dlx.ground import durable
from dlx.ground.constants import MICRO
from dlx.ledger.client import LedgerClient
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.outer_replay import Replay, ReplayError
from dlx.node.audit.sources.blobs import BlobMissing, Blobs, Source, WrongCopy
from dlx.node.audit.sources.places import Places
from dlx.node.audit.sources.search import open_sources
from dlx.node.checkpoints import elsewhere, held_out, scores
from dlx.node.checkpoints.card import CARD, card
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.formatting import bar
from dlx.node.home.program import line
from dlx.node.runs.find import RunReader, summary
from dlx.node.runs.listing import GGUF, MANIFEST, PROVENANCE, SAFETENSORS, published, run_manifest, write_sums
from dlx.training.data.shards import MAX_MANIFEST_BYTES, MAX_TOKENIZER_BYTES, DataError, parse_data_manifest
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.export import ExportError, export
from dlx.training.models.gguf_file import GgufError
from dlx.training.models.gguf_file import check as check_gguf
from dlx.training.models.model_files import Form
from dlx.training.models.weights import WeightsError
from dlx.training.outer.average import members
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, canonical_bytes, parse
from dlx.training.recipe.recipe import parse_model
from dlx.training.recipe.strict import ManifestError
from dlx.training.recipe.usage import Usage
from dlx.training.recipe.usage import parse as parse_usage

_POLL_SECONDS = 2.0  # between two reads of a run that is followed


def pull_run(
    client: LedgerClient,
    view: RunView,
    version: int | None,
    out: Path,
    places: Places,
    show: Callable[[str], None],
    say: Callable[[str], None],
    averaged: bool | None = None,
    named: Sequence[bytes] = (),
    form: Form = Form(),
    wanted: str | None = None,
) -> dict[str, Any]:
    """`pull` with blobs from `places` and the run's peers. Also writes and returns as `held_out` what members have said
    of the version's held-out loss; None where it is not evaluated. Likewise `scores`: what accounts say of tasks, as
    far as folders have it, or it is `named` by the sha256 of its blob."""
    with open_sources(client, view.run, places, say, show) as sources:
        found = pull(client.domain, view, version, out, sources, say, show, averaged, form, wanted)
        with tempfile.TemporaryDirectory(prefix="dlx-scores-") as work:
            statements, problems = scores.gather(view, found, sources, named, Path(work))
    for problem in problems:
        say(f"error: {problem}")
    scores.write(out, statements)
    manifest = run_manifest(out, found["manifest"])
    said = held_out.read_version(client, view, manifest, found["version"])
    return found | {
        "held_out": None if said is None else msgspec.to_builtins(held_out.write(out, said)),
        "scores": [scores.described(one, view) for one in statements],
    }


def follow(
    reader: RunReader,
    folders: Sequence[Path],
    every: int,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[RunView, int]]:
    """The newest version that every stage has sealed, each `every`-th, as soon as it is there; to the run's end. A
    chain node that does not answer is waited for, and told once."""
    last, silent = -1, False
    while True:
        try:
            view, silent = reader.view(), False
        except LedgerUnavailable as error:
            if not silent:
                say(f"{error}; it is waited for")
            silent = True
            pause(_POLL_SECONDS)
            continue
        over = summary(view, folders).state == "finished"
        newest = min(view.next_round(stage) for stage in range(view.config.stages))
        version = newest if over else newest - newest % every
        if version > last:
            yield view, version
            last = version
        elif over:
            return
        else:
            pause(_POLL_SECONDS)


def pull(
    domain: Domain,
    view: RunView,
    version: int | None,
    out: Path,
    sources: Sequence[Source],
    say: Callable[[str], None],
    show: Callable[[str], None],
    averaged: bool | None = None,
    form: Form = Form(),
    wanted: str | None = None,
) -> dict[str, Any]:
    """Write V[s, version] of all stages to the new folder `out`, in one file. Where the run trains an adapter that is
    what PEFT loads, unless `form` is merged.

    Returns what provenance.json says, and also `checkpoint`, the sha256 (hex) of the list of files in SHA256SUMS, and
    `published`: who says where the version can be had, and whether with the same list (see runs.listing). Both say None
    where the run's tokenizer or what the model is used with cannot be had, so that a file is missing or another.

    Where the manifest has an average, the mean of that version and some before it is written, and compared with what
    others published. `averaged`: None, as the manifest says; False, the version itself; True, only the mean.
    `form`: in which the weights are written; the list of any other form than the default is compared with nothing.
    `wanted`: the address of a pushed copy whose weights are tried before all sources, or "published" for those that the
    ledger names; what it has of them is used only with the sealed hashes too.

    `version` counts sealed rounds; None is the newest that every stage has sealed. Each stage's weights come from a
    source that has them, else from replaying payloads, and are used only with the sealed hash. The folder appears
    complete or not at all. `show` is told each step, `say` what is worth keeping: who has wrong bytes. Raises Failure.
    """
    if not view.created:
        shown = line("run", "list", of_ledger=True)
        raise Failure(f"the ledger {domain.ledger} knows no run {view.run.hex()}: `{shown}` shows those it knows")
    newest = min(view.next_round(stage) for stage in range(view.config.stages))
    chosen = newest if version is None else version
    if not 0 <= chosen <= newest:
        raise Failure(
            f"there is no version {chosen} yet: all stages have sealed {newest} rounds, so choose 0 to {newest}"
        )
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageFailure(f"{out} already exists: name a new or an empty folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside `out`, so that the last step is a rename on one file system.
    work = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
    work.mkdir()
    try:
        (work / "blobs").mkdir()
        blobs = open_blobs(sources, work / "blobs", say)
        replay = Replay(read_manifest(view, blobs), view, blobs)
        manifest, files = replay.manifest, []
        if averaged and manifest.average is None:
            raise Failure("the run's manifest has no average: name the version without /average")
        if wanted and manifest.average is not None and averaged is not False:
            raise UsageFailure("--from: the run publishes means, which no stage has sealed: name --sealed too")
        merged = form.merged and manifest.adapter is not None
        vocabulary, usage, complete = read_beside(manifest, blobs, show)
        if form.gguf:
            if manifest.adapter is not None and not merged:
                raise Failure("the run trains an adapter: a GGUF file takes the whole model, --merged")
            check_gguf(parse_model(manifest.model), vocabulary)
        mean = members(None if averaged is False else manifest.average, chosen)
        for uri in elsewhere.offered(wanted, published(view, chosen)) if wanted else ():
            sealed = [view.weights(stage, chosen) for stage in range(view.config.stages)]
            try:
                stranger = wanted == elsewhere.PUBLISHED
                elsewhere.take(uri, stranger, manifest, sealed, work / "taken", blobs.work, show)
                break
            except Failure as error:
                say(f"error: {error}; others are asked")
        for stage in range(view.config.stages):
            named = view.weights(stage, chosen).hex()[:16]
            show(f"{bar(stage, view.config.stages)} stage {stage} of {view.config.stages}: weights {named}")
            files.append((replay.mean if len(mean) > 1 else replay.rebuild)(stage, chosen, show))
        base = have_base(manifest, blobs, show) if merged else None
        model = export(manifest, files, work / "model", vocabulary, usage, form, base)
        found = provenance(domain, view, chosen, mean, manifest, merged) | {
            "format": GGUF if form.gguf else SAFETENSORS,
            "dtype": form.dtype,
            "model": model.hex(),
        }
        durable.write_bytes(work / "model" / PROVENANCE, (json.dumps(found, indent=2) + "\n").encode())
        durable.write_bytes(work / "model" / MANIFEST, canonical_bytes(manifest))
        durable.write_bytes(work / "model" / CARD, card(manifest, found).encode())
        sums = write_sums(work / "model").hex() if complete or form.gguf else None
        durable.move(work / "model", out)
    except (ReplayError, ExportError, WeightsError, GgufError) as error:
        raise Failure(str(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    comparable = complete and form == Form() and mean == members(manifest.average, chosen)
    others = [
        other | {"same": other["checkpoint"] == sums if comparable else None} for other in published(view, chosen)
    ]
    return found | {"checkpoint": sums, "published": others}


def open_blobs(sources: Sequence[Source], folder: Path, say: Callable[[str], None]) -> Blobs:
    """Working copies in `folder`; `say` is told who has wrong bytes."""

    def name_wrong(digest: bytes, copy: WrongCopy, own: bool) -> None:
        say(f"error: {copy.where} has wrong bytes for {digest.hex()}: not kept, trying elsewhere")

    return Blobs(sources, folder, name_wrong)


def have_base(manifest: Manifest, blobs: Blobs, show: Callable[[str], None]) -> Path:
    """The folder with the files of an adapter's base. Raises Failure."""
    try:
        for stage, named in enumerate(manifest.base):
            show(f"{bar(stage, len(manifest.base))} stage {stage} of {len(manifest.base)}: base {named.sha256[:16]}")
            blobs.get(bytes.fromhex(named.sha256), named.size)
    except BlobMissing as error:
        raise Failure(f"the base of the run's adapter cannot be had: {error}") from error
    return blobs.work


def provenance(
    domain: Domain, view: RunView, version: int, mean: Sequence[int], manifest: Manifest, merged: bool
) -> dict[str, Any]:
    """Where the version comes from; hashes in hex, those of the chain with 0x. Loss in nats per token, None at 0.
    `average`: the versions whose `mean` the folder has, None where it has the version itself. `base`: of an adapter the
    file of each stage, None without one; `merged`: whether the folder has them too."""
    stages = []
    for stage in range(view.config.stages):
        sealed = view.sealed[stage, version - 1] if version else None
        stages.append(
            {
                "stage": stage,
                "weights": view.weights(stage, version).hex(),
                "seal": None if sealed is None else "0x" + sealed.digest.hex(),
                "transaction": None if sealed is None else "0x" + sealed.at.tx.hex(),
                "block": None if sealed is None else sealed.at.block,
            }
        )
    last = view.sealed[view.config.stages - 1, version - 1] if version else None
    return {
        "run": "0x" + view.run.hex(),
        "version": version,
        "rounds": view.config.rounds,
        "average": list(mean) if len(mean) > 1 else None,
        "base": [one.sha256 for one in manifest.base] or None,
        "merged": merged,
        "manifest": view.config.manifest.hex(),
        "chain_id": domain.chain_id,
        "ledger": domain.ledger,
        "loss": last.mean_loss / MICRO if last is not None and last.count else None,
        "stages": stages,
    }


class Beside(NamedTuple):
    """What the manifest names for the files beside the weights. `vocabulary`: of the run's data; `usage`: of the model
    that the run started from, None where there is none."""

    vocabulary: Vocabulary | None
    usage: Usage | None
    whole: bool  # whether that is it: where nobody has a part, which is None then, the weights are of use without


def read_beside(manifest: Manifest, blobs: Blobs, progress: Callable[[str], None]) -> Beside:
    """`progress` is told what is missing."""
    vocabulary, usage, whole, named = None, None, True, manifest.data.manifest
    try:
        content = blobs.get(bytes.fromhex(named.sha256), min(named.size, MAX_MANIFEST_BYTES)).read_bytes()
        data = parse_data_manifest(content)
        if data.tokenizer == "bytes":
            vocabulary = Vocabulary.of_bytes()
        else:
            path = blobs.get(bytes.fromhex(data.tokenizer.sha256), min(data.tokenizer.size, MAX_TOKENIZER_BYTES))
            vocabulary = Vocabulary.parse(path.read_bytes(), data.separator, "the run's tokenizer")
    except BlobMissing as error:
        progress(f"no copy of the run's tokenizer: {error}")
        whole = False
    except DataError as error:
        progress(f"no tokenizer is written: {error}")
        whole = False
    try:
        if manifest.usage is not None:
            usage = parse_usage(blobs.get(bytes.fromhex(manifest.usage.sha256), manifest.usage.size).read_bytes())
    except BlobMissing as error:
        progress(f"no copy of the model's chat template and special tokens: {error}")
        whole = False
    except ManifestError as error:
        progress(f"no chat template and special tokens are written: {error}")
        whole = False
    return Beside(vocabulary, usage, whole)


def read_manifest(view: RunView, blobs: Blobs) -> Manifest:
    """Raises Failure."""
    try:
        return parse(blobs.get(view.config.manifest, MAX_BYTES).read_bytes())
    except BlobMissing as error:
        raise Failure(f"the run's manifest cannot be had: {error}") from error
    except ManifestError as error:
        raise Failure(f"the run's manifest is not valid: {error}") from error
