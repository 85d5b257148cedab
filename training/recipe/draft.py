"""A draft: what a run's creator writes in a TOML file, before data and genesis make a manifest of it."""

import glob
import re
import secrets
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dlx.ground import handwritten, machine
from dlx.training.recipe.huggingface import read_config
from dlx.training.recipe.manifest import MAX_BYTES, Data, Lineage, Manifest, canonical_bytes, parse
from dlx.training.recipe.presets import KINDS, PRESETS, expand
from dlx.training.recipe.recipe import BlobRef, Evaluation, Model, Recipe, Retention, Samples, WeightsRef, parse_model
from dlx.training.recipe.soundness import check
from dlx.training.recipe.strict import ManifestError, convert, fail

Kind = Literal["pretrain", "finetune", "lora"]


class DraftModel(Model, frozen=True, forbid_unknown_fields=True):
    """Either the config of a model that starts from scratch, or the Hugging Face folder that it starts from, whose
    config reading the draft fills in."""

    config: dict[str, Any] = msgspec.field(default_factory=dict)
    source: str = ""  # absolute after reading


class DraftSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a mixture, which counts `epochs` times or, as all the others, by its weight."""

    path: str | list[str]  # files, folders or globs; a list, absolute, after reading
    name: Annotated[str, Meta(pattern=r"^[ -~]{0,100}\Z")] = ""  # in the data manifest; "": the path's last part
    field: str | None = None  # key or column of entries; None: that of all
    epochs: Annotated[float, Meta(gt=0, le=1000)] | None = None  # None: 1, or by weight
    weight: Annotated[float, Meta(gt=0, le=1e6)] | None = None


class DraftData(Samples, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Either sources, and what to make of them, or the folder that `dlx-node data prepare` made of some."""

    # Files, folders or globs, or parts of a mixture; absolute after reading.
    source: Annotated[list[str | DraftSource], Meta(max_length=1000)] = msgspec.field(default_factory=list)
    prepared: str = ""  # absolute after reading
    tokenizer: str = ""  # a tokenizer.json, absolute after reading; without one every byte is a token
    separator: str | int | None = None  # token between documents, by text or id
    field: str = "text"  # key or column of entries
    raw: bool = False  # take files that are no text as their bytes
    template: str = ""  # a chat template, absolute after reading; without one that of the tokenizer's folder
    heldout: Annotated[float, Meta(gt=0, le=0.5)] = 0.05  # fraction of the bytes
    # Files, folders or globs that are held out in place of a fraction; absolute after reading.
    heldout_source: Annotated[list[str], Meta(max_length=1000)] = msgspec.field(default_factory=list)
    drop_duplicates: bool = False  # whether a document with the bytes of one before it is left out


class DraftRetention(Retention, frozen=True, forbid_unknown_fields=True):
    """What is kept by "size" takes a member's disk no more than so much: see `training.balance.history`."""

    payloads: Literal["run", "size"] | Annotated[int, Meta(ge=1, le=1_000_000)] = "size"  # type: ignore[assignment]
    checkpoints: Literal["run", "size"] | Annotated[int, Meta(ge=1, le=1_000_000)] = "size"  # type: ignore[assignment]

    def settled(self, rounds: Literal["run"] | int) -> "DraftRetention":
        """With so many rounds in place of "size", and no more payloads than what replays them begins with."""
        payloads = rounds if self.payloads == "size" else self.payloads
        checkpoints = rounds if self.checkpoints == "size" else self.checkpoints
        if checkpoints != "run" and payloads != "run" and checkpoints < payloads:
            payloads = checkpoints if self.payloads == "size" else payloads
            checkpoints = payloads if self.checkpoints == "size" else checkpoints
        return msgspec.structs.replace(self, payloads=payloads, checkpoints=checkpoints)


class Draft(Recipe, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A manifest before its run is created: without salt, genesis and data manifest. `kind`: what the run makes of its
    first weights; reading the draft has filled in the keys that it stands for."""

    kind: Kind = "pretrain"
    model: DraftModel
    data: DraftData
    retention: DraftRetention = DraftRetention()

    @property
    def sources(self) -> list[Path]:
        """Those that are no part of a mixture, and all of its parts."""
        return [
            Path(path) for one in self.data.source for path in (one.path if isinstance(one, DraftSource) else [one])
        ]


def draft_from_toml(path: Path) -> Draft:
    """The draft in a TOML file; `data.source` (relative to the file) becomes the sorted list of what it matches.

    Raises ManifestError, also for a file that cannot be read.
    """
    try:
        raw = tomllib.loads(handwritten.read(path, MAX_BYTES))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ManifestError(f"{path}: not readable as TOML ({error})") from None
    except ValueError as error:
        raise ManifestError(str(error)) from None
    for key, known in (("preset", PRESETS), ("kind", KINDS)):
        if raw.get(key, next(iter(known))) not in list(known):  # whatever type it has
            fail(key, f"expected one of {', '.join(known)}", raw[key])
    draft = convert(expand(raw), Draft)
    model = _draft_model(draft, path.parent.resolve())
    draft = msgspec.structs.replace(
        draft,
        model=model,
        data=_draft_data(draft.data, raw["data"], path.parent.resolve()),
        tokens_per_step=draft.tokens_per_step or draft.data.batch_size * draft.data.sequence_length,
    )
    check(draft, parse_model(draft.model))
    return draft


def complete(
    draft: Draft,
    genesis: list[WeightsRef],
    data_manifest: BlobRef,
    salt: bytes | None = None,
    lineage: Lineage | None = None,
    usage: BlobRef | None = None,
    base: Sequence[WeightsRef] = (),
) -> Manifest:
    """The manifest of a new run; `salt` (32 bytes) is random unless given. Nothing is evaluated unless the draft says
    so. Raises ManifestError."""
    shared = {
        field: getattr(draft, field) for field in Draft.__struct_fields__ if field not in ("data", "model", "kind")
    }
    data = {field: getattr(draft.data, field) for field in Data.__struct_fields__ if field != "manifest"}
    salt_hex = (secrets.token_bytes(32) if salt is None else salt).hex()
    shared["model"], shared["retention"] = Model(draft.model.config), draft.retention.settled("run")
    shared["evaluation"] = draft.evaluation or Evaluation()
    data_ = Data(manifest=data_manifest, **data)
    manifest = Manifest(
        **shared, salt=salt_hex, genesis=genesis, base=[*base], data=data_, lineage=lineage, usage=usage
    )
    return parse(canonical_bytes(manifest))


def _draft_model(draft: Draft, base: Path) -> DraftModel:
    """With every key of the config, and an absolute source."""
    model = draft.model
    if draft.kind != "pretrain" and not model.source:
        raise ManifestError(f"kind: {draft.kind} starts from a trained model: name its folder as model.source")
    if draft.kind != "lora" and draft.adapter is not None:
        raise ManifestError(f"adapter: {draft.kind} trains all weights: with an adapter the kind is lora")
    if bool(model.config) == bool(model.source):
        raise ManifestError("model: expected either model.config or model.source")
    if not model.source and draft.adapter:
        raise ManifestError("adapter: expected a base, the folder that model.source names")
    if not model.source:
        return DraftModel(msgspec.to_builtins(parse_model(model)))
    folder = base / machine.expand(model.source)
    return DraftModel(read_config(folder, untie=len(draft.stages) > 1 and not draft.adapter), str(folder))


def _draft_data(data: DraftData, given: dict[str, Any], base: Path) -> DraftData:
    """With absolute paths."""
    if bool(data.source) == bool(data.prepared):
        raise ManifestError("data.source: expected either data.source or data.prepared")
    keys = ("tokenizer", "separator", "field", "raw", "template", "heldout", "heldout_source", "drop_duplicates")
    for key in keys:
        if data.prepared and key in given:
            raise ManifestError(f"data.{key}: was decided when data.prepared was made")
    if data.template and not data.chat:
        raise ManifestError("data.template: makes text of conversations: set data.chat too")
    if data.chat and data.source and not data.tokenizer:
        raise ManifestError("data.tokenizer: missing: conversations (data.chat) need one")
    if data.heldout_source and "heldout" in given:
        raise ManifestError("data.heldout: expected either data.heldout or data.heldout_source")
    plain = _expand([one for one in data.source if isinstance(one, str)], base, "data.source")
    parts = [one for one in data.source if isinstance(one, DraftSource)]
    for place, one in enumerate(parts):
        if one.epochs is not None and one.weight is not None:
            raise ManifestError(f"data.source[{place}].weight: expected either epochs or weight")
    weighed = [one.weight is not None for one in parts]
    if any(weighed) and (plain or not all(weighed)):
        raise ManifestError("data.source: expected a weight of each source, or of none")
    return msgspec.structs.replace(
        data,
        source=[*plain, *(_expand_part(one, place, base) for place, one in enumerate(parts))],
        heldout_source=_expand(data.heldout_source, base, "data.heldout_source"),
        template=data.template and str(base / machine.expand(data.template)),
        prepared=data.prepared and str(base / machine.expand(data.prepared)),
        tokenizer=data.tokenizer and str(base / machine.expand(data.tokenizer)),
    )


def _expand_part(part: DraftSource, place: int, base: Path) -> DraftSource:
    given = [part.path] if isinstance(part.path, str) else part.path
    name = part.name or re.sub("[^ -~]", "-", Path(given[0] if given else "").name)[:100] or "data"
    return msgspec.structs.replace(part, path=_expand(given, base, f"data.source[{place}].path"), name=name)


def _expand(sources: list[str], base: Path, key: str) -> list[str]:
    matches: set[str] = set()
    for source in sources:
        found = glob.glob(str(machine.expand(source)), root_dir=base, recursive=True)
        if not found:
            raise ManifestError(f"{key}: {source!r} matches no file or folder in {base}")
        matches.update(str(base / match) for match in found)
    return sorted(matches)
