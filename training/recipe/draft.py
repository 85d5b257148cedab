"""A draft: what a run's creator writes in a TOML file, before data and genesis make a manifest of it."""

import glob
import secrets
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dlx.ground import machine
from dlx.training.recipe.huggingface import read_config
from dlx.training.recipe.manifest import MAX_BYTES, Data, Lineage, Manifest, canonical_bytes, parse
from dlx.training.recipe.presets import PRESETS, expand
from dlx.training.recipe.recipe import BlobRef, Model, Recipe, Retention, Samples, parse_model
from dlx.training.recipe.soundness import check
from dlx.training.recipe.strict import ManifestError, convert, fail


class DraftModel(Model, frozen=True, forbid_unknown_fields=True):
    """Either the config of a model that starts from scratch, or the Hugging Face folder that it starts from, whose
    config reading the draft fills in."""

    config: dict[str, bool | int | float | str] = msgspec.field(default_factory=dict)
    source: str = ""  # absolute after reading


class DraftData(Samples, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Either sources, and what to make of them, or the folder that `dlx-node data prepare` made of some."""

    # Files, folders or globs; absolute after reading.
    source: Annotated[list[str], Meta(max_length=1000)] = msgspec.field(default_factory=list)
    prepared: str = ""  # absolute after reading
    tokenizer: str = ""  # a tokenizer.json, absolute after reading; without one every byte is a token
    separator: str | int | None = None  # token between documents, by text or id
    field: str = "text"  # key or column of entries
    raw: bool = False  # take files that are no text as their bytes
    heldout: Annotated[float, Meta(gt=0, le=0.5)] = 0.05  # fraction of the bytes


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
    """A manifest before its run is created: without salt, genesis and data manifest."""

    model: DraftModel
    data: DraftData
    retention: DraftRetention = DraftRetention()

    @property
    def sources(self) -> list[Path]:
        return [Path(source) for source in self.data.source]


def draft_from_toml(path: Path) -> Draft:
    """The draft in a TOML file; `data.source` (relative to the file) becomes the sorted list of what it matches.

    Raises ManifestError, also for a file that cannot be read.
    """
    try:
        data = path.read_bytes()
        if len(data) > MAX_BYTES:
            raise ManifestError(f"{path}: expected at most {MAX_BYTES} bytes, got {len(data)}")
        raw = tomllib.loads(data.decode())
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{path}: not readable as TOML ({error})") from None
    if raw.get("preset", "default") not in list(PRESETS):  # whatever type it has
        fail("preset", f"expected one of {', '.join(PRESETS)}", raw["preset"])
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
    genesis: list[BlobRef],
    data_manifest: BlobRef,
    salt: bytes | None = None,
    lineage: Lineage | None = None,
    usage: BlobRef | None = None,
) -> Manifest:
    """The manifest of a new run; `salt` (32 bytes) is random unless given. Raises ManifestError."""
    shared = {field: getattr(draft, field) for field in Draft.__struct_fields__ if field not in ("data", "model")}
    data = {field: getattr(draft.data, field) for field in Data.__struct_fields__ if field != "manifest"}
    salt_hex = (secrets.token_bytes(32) if salt is None else salt).hex()
    shared["model"], shared["retention"] = Model(draft.model.config), draft.retention.settled("run")
    data_ = Data(manifest=data_manifest, **data)
    manifest = Manifest(**shared, salt=salt_hex, genesis=genesis, data=data_, lineage=lineage, usage=usage)
    return parse(canonical_bytes(manifest))


def _draft_model(draft: Draft, base: Path) -> DraftModel:
    """With every key of the config, and an absolute source."""
    model = draft.model
    if bool(model.config) == bool(model.source):
        raise ManifestError("model: expected either model.config or model.source")
    if not model.source:
        return DraftModel(msgspec.to_builtins(parse_model(model)))
    folder = base / machine.expand(model.source)
    return DraftModel(read_config(folder, untie=len(draft.stages) > 1), str(folder))


def _draft_data(data: DraftData, given: dict[str, Any], base: Path) -> DraftData:
    """With absolute paths."""
    if bool(data.source) == bool(data.prepared):
        raise ManifestError("data.source: expected either data.source or data.prepared")
    for key in ("tokenizer", "separator", "field", "raw", "heldout"):
        if data.prepared and key in given:
            raise ManifestError(f"data.{key}: was decided when data.prepared was made")
    return msgspec.structs.replace(
        data,
        source=_expand(data.source, base),
        prepared=data.prepared and str(base / machine.expand(data.prepared)),
        tokenizer=data.tokenizer and str(base / machine.expand(data.tokenizer)),
    )


def _expand(sources: list[str], base: Path) -> list[str]:
    matches: set[str] = set()
    for source in sources:
        found = glob.glob(str(machine.expand(source)), root_dir=base, recursive=True)
        if not found:
            raise ManifestError(f"data.source: {source!r} matches no file or folder in {base}")
        matches.update(str(base / match) for match in found)
    return sorted(matches)
