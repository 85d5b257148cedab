"""The run's manifest: the full, immutable description of one training job, and the TOML draft it is made from.

Needs neither torch nor transformers, so that every part of the node can read a manifest cheaply.
"""

import glob
import hashlib
import json
import re
import secrets
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import rfc8785
from msgspec import Meta, Struct

from training.families import FAMILIES, Config, config_class
from training.presets import INNER_STEPS, MIN_INNER_STEPS, PRESETS, expand

MAX_BYTES = 256 * 1024  # of a manifest, and of a draft

_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
_Size = Annotated[int, Meta(ge=1, le=1 << 40)]
_Count = Annotated[int, Meta(ge=1, le=1 << 16)]
_Seconds = Annotated[int, Meta(ge=1, le=30 * 86400)]
_Seed = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Fraction = Annotated[float, Meta(ge=0, le=1)]
_BelowOne = Annotated[float, Meta(ge=0, lt=1)]
_Rate = Annotated[float, Meta(gt=0, le=100)]


class ManifestError(ValueError):
    """The manifest or draft is not valid; the message names the key and the reason in one line."""


class BlobRef(Struct, frozen=True, forbid_unknown_fields=True):
    """A blob by name (lowercase hex sha256) and size in bytes."""

    sha256: _Sha256
    size: _Size


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    config: dict[str, bool | int | float | str]  # a transformers config; training/families.py has the keys


class DraftModel(Model, frozen=True, forbid_unknown_fields=True):
    """Either the config of a model that starts from scratch, or the Hugging Face folder that it starts from, whose
    config reading the draft fills in."""

    config: dict[str, bool | int | float | str] = {}
    source: str = ""  # absolute after reading


class Data(Struct, frozen=True, forbid_unknown_fields=True):
    manifest: BlobRef
    sequence_length: _Count
    batch_size: _Count  # samples of one replica per inner step
    micro_batches: _Count
    seed: _Seed  # of the sample order and of the genesis
    private: bool = False  # whether a replica may train on a folder of its own, which never leaves it


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    """AdamW for every tensor, or Muon for the layers' matrices and AdamW for the rest (embeddings, norms, head)."""

    optimiser: Literal["adamw", "muon"] = "adamw"
    lr: _Rate = 4e-3
    beta1: _BelowOne = 0.9
    beta2: _BelowOne = 0.95
    eps: Annotated[float, Meta(gt=0, le=0.1)] = 1e-8
    weight_decay: _Fraction = 0.1
    muon_lr: _Rate = 0.02
    muon_momentum: _BelowOne = 0.95
    clip: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  # of the whole replica's gradient norm
    warmup: _Fraction = 0.05  # fraction of the run's inner steps
    schedule: Literal["cosine", "wsd"] = "cosine"
    decay: _Fraction = 0.2  # last fraction of the run's inner steps, in which `wsd` goes down
    final: _Fraction = 0.1  # lr at the end of the run as a fraction of lr


class Outer(Struct, frozen=True, forbid_unknown_fields=True):
    optimiser: Literal["sgd"] = "sgd"
    lr: _Rate = 1.0
    momentum: _BelowOne = 0.0
    nesterov: bool = False
    delay: Literal[0, 1] = 0
    alpha: Annotated[float, Meta(ge=0, le=100)] = 0.0
    policy: Literal["mean", "clip", "clip+cosine"] = "mean"  # how a seal weighs contributions, beyond their tokens


class Codec(Struct, frozen=True, forbid_unknown_fields=True):
    name: Literal["int4", "lowrank", "topk"] = "int4"


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """What the codec and the inner loop do in a round. Level: bits of a value. Rank: of `lowrank`; values kept of each
    4,096 of `topk`; 0 for `int4`."""

    level: Annotated[int, Meta(ge=2, le=8)] = 4
    rank: Annotated[int, Meta(ge=0, le=4096)] = 0
    inner_steps: Annotated[int, Meta(ge=1, le=100_000)] = INNER_STEPS


class Adaptive(Struct, frozen=True, forbid_unknown_fields=True):
    """The plan of later rounds follows what was measured; a manifest without this keeps its plan to the end."""

    inner_steps: Annotated[int, Meta(ge=1, le=1 << 40)]  # of the whole run, which ends with the round that reaches it
    window: Annotated[int, Meta(ge=1, le=1000)] = 5  # rounds between two changes
    energy: Annotated[float, Meta(gt=0, lt=1)] = 0.9  # part of the shared update's energy that the rank has to keep
    min_rank: Annotated[int, Meta(ge=1, le=4096)] = 4
    max_rank: Annotated[int, Meta(ge=1, le=4096)] = 128
    min_inner_steps: Annotated[int, Meta(ge=1, le=100_000)] = MIN_INNER_STEPS
    max_inner_steps: Annotated[int, Meta(ge=1, le=100_000)] = 500


class Timing(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds."""

    round_timeout: _Seconds = 120
    straggler_grace: _Seconds = 20
    proposal_timeout: _Seconds = 10  # how long one proposer may stay silent
    eviction_time: _Seconds = 60


class Quorum(Struct, frozen=True, forbid_unknown_fields=True):
    numerator: Annotated[int, Meta(ge=1, le=65535)] = 2
    denominator: Annotated[int, Meta(ge=1, le=65535)] = 3


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    payloads: Literal["run"] = "run"
    versions: Annotated[int, Meta(ge=1, le=10_000)] = 3  # newest versions kept
    every: Annotated[int, Meta(ge=1, le=1_000_000)] = 10  # and every so many-th


class Manifest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: Literal[1] = 1
    name: _Name
    salt: _Sha256
    model: Model
    stages: Annotated[list[tuple[int, int]], Meta(min_length=1, max_length=64)]  # layers [low, high) of each stage
    genesis: Annotated[list[BlobRef], Meta(min_length=1, max_length=64)]
    data: Data
    precision: Literal["float32", "bfloat16"] = "float32"
    inner: Inner
    outer: Outer
    codec: Codec
    plan: Plan
    adaptive: Adaptive | None = None
    rounds: Annotated[int, Meta(ge=1, le=10_000_000)]
    tokens_per_step: Annotated[int, Meta(ge=1, lt=1 << 40)]  # of one replica
    timing: Timing
    quorum: Quorum
    min_replicas: Annotated[int, Meta(ge=1, le=64)]
    max_replicas: Annotated[int, Meta(ge=1, le=64)]
    confirmations: Annotated[int, Meta(ge=0, le=1000)]
    retention: Retention


class DraftData(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Either sources, and what to make of them, or the folder that `dlx-node data prepare` made of some."""

    source: Annotated[list[str], Meta(max_length=1000)] = []  # files, folders or globs; absolute after reading
    prepared: str = ""  # absolute after reading
    tokenizer: str = ""  # a tokenizer.json, absolute after reading; without one every byte is a token
    separator: str | int | None = None  # token between documents, by text or id
    field: str = "text"  # key or column of records
    sequence_length: _Count
    batch_size: _Count
    micro_batches: _Count = 1
    seed: _Seed = 0
    heldout: Annotated[float, Meta(gt=0, le=0.5)] = 0.05  # fraction of the bytes
    private: bool = False


class Draft(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A manifest before its run is created: without salt, genesis and data manifest."""

    version: Literal[1] = 1
    name: _Name
    model: DraftModel
    stages: Annotated[list[tuple[int, int]], Meta(min_length=1, max_length=64)]
    data: DraftData
    precision: Literal["float32", "bfloat16"] = "float32"
    inner: Inner = Inner()
    outer: Outer = Outer()
    codec: Codec = Codec()
    plan: Plan = Plan()
    adaptive: Adaptive | None = None
    rounds: Annotated[int, Meta(ge=1, le=10_000_000)]
    tokens_per_step: Annotated[int, Meta(ge=1, lt=1 << 40)] | None = None  # computed when left out
    timing: Timing = Timing()
    quorum: Quorum = Quorum()
    min_replicas: Annotated[int, Meta(ge=1, le=64)] = 1
    max_replicas: Annotated[int, Meta(ge=1, le=64)] = 8
    confirmations: Annotated[int, Meta(ge=0, le=1000)] = 1
    retention: Retention = Retention()

    @property
    def sources(self) -> list[Path]:
        return [Path(source) for source in self.data.source]


def parse(data: bytes) -> Manifest:
    """The manifest in `data`, which may come from anyone. Raises ManifestError unless it is canonical and sound."""
    if len(data) > MAX_BYTES:
        raise ManifestError(f"manifest: expected at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"manifest: not readable as JSON ({error})") from None
    manifest = _convert(raw, Manifest)
    _check(manifest)
    if canonical_bytes(manifest) != data:
        _refuse_absent(raw, msgspec.to_builtins(manifest), "")
        raise ManifestError("manifest: expected canonical JSON (RFC 8785)")
    return manifest


def canonical_bytes(manifest: Manifest) -> bytes:
    """The manifest as RFC 8785 JSON."""
    return rfc8785.dumps(msgspec.to_builtins(manifest))


def manifest_hash(manifest: Manifest) -> bytes:
    """The 32-byte sha256 of the canonical bytes: what the ledger records."""
    return hashlib.sha256(canonical_bytes(manifest)).digest()


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
        _fail("preset", f"expected one of {', '.join(PRESETS)}", raw["preset"])
    draft = _convert(expand(raw), Draft)
    model = _draft_model(draft, path.parent.resolve())
    draft = msgspec.structs.replace(
        draft,
        model=model,
        data=_draft_data(draft.data, raw["data"], path.parent.resolve()),
        tokens_per_step=draft.tokens_per_step or draft.data.batch_size * draft.data.sequence_length,
    )
    _check(draft)
    return draft


def complete(draft: Draft, genesis: list[BlobRef], data_manifest: BlobRef, salt: bytes | None = None) -> Manifest:
    """The manifest of a new run; `salt` (32 bytes) is random unless given. Raises ManifestError."""
    shared = {field: getattr(draft, field) for field in Draft.__struct_fields__ if field not in ("data", "model")}
    data = {field: getattr(draft.data, field) for field in Data.__struct_fields__ if field != "manifest"}
    salt_hex = (secrets.token_bytes(32) if salt is None else salt).hex()
    shared["model"] = Model(draft.model.config)
    manifest = Manifest(**shared, salt=salt_hex, genesis=genesis, data=Data(manifest=data_manifest, **data))
    return parse(canonical_bytes(manifest))


def activation_bytes(manifest: Manifest | Draft) -> int:
    """Bytes of one activation or gradient message between two stages (float32): what a link must be able to carry."""
    micro_batch = manifest.data.batch_size // manifest.data.micro_batches
    return micro_batch * manifest.data.sequence_length * parse_model(manifest.model).width * 4


def parse_model(model: Model) -> Config:
    """The model's config as its family's. Raises ManifestError; what depends on several keys is not checked again."""
    kind = config_class(model.config)
    if kind is None:
        _fail("model.config.model_type", f"expected one of {', '.join(FAMILIES)}", model.config["model_type"])
    return _convert(model.config, kind, "model.config.")  # type: ignore[arg-type]


_T = TypeVar("_T")


def _convert(raw: Any, kind: type[_T], prefix: str = "") -> _T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ManifestError(_one_line(str(error), raw, prefix)) from None


def _one_line(message: str, raw: Any, prefix: str) -> str:
    """msgspec's "Expected `float` > 0.0 - at `$.inner.lr`" as "inner.lr: expected a number > 0.0, got -1"."""
    reason, _, where = message.partition(" - at ")
    found = re.fullmatch(r"(?:`key` in )?`\$\.?(.*)`", where)
    path = found.group(1) if found else ""
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason, re.DOTALL)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", reason, re.DOTALL)
    if missing or unknown:
        key = (missing or unknown).group(1)  # type: ignore[union-attr]
        return f"{prefix}{path}{'.' if path else ''}{_safe(key)}: {'missing' if missing else 'unknown key'}"
    if reason.startswith("Invalid enum value"):
        reason = "not a supported value"
    for technical, plain in _PLAIN:
        reason = reason.replace(technical, plain)
    value = _at(raw, path)
    if ", got" not in reason and not isinstance(value, (dict, list)):
        reason += f", got {_shown(value)}"
    return f"{prefix}{path or 'manifest'}: {reason[0].lower()}{reason[1:]}"


_PLAIN = (
    ("`str` matching regex '^[0-9a-f]{64}\\\\Z'", "64 lowercase hex digits"),
    ("`str` matching regex '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\\\\Z'", "1 to 64 letters, digits, '.', '_' or '-'"),
    ("`float`", "a number"),
    ("`int`", "a whole number"),
    ("`str`", "text"),
    ("`bool`", "true or false"),
    ("`array`", "a list"),
    ("`object`", "a table"),
    ("`null`", "nothing"),
    ("`bool | int | float | str`", "a plain value"),
)


def _safe(key: str) -> str:
    """A stranger's key, fit for one line of a terminal."""
    return _shown(key)[1:-1]


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, default=str)[:80]


def _refuse_absent(raw: Any, full: Any, path: str) -> None:
    """Raise for the first key that `full` has and `raw` leaves to a default."""
    pairs = full.items() if isinstance(full, dict) else enumerate(full) if isinstance(full, list) else ()
    for key, value in pairs:
        where = f"{path}[{key}]" if isinstance(full, list) else f"{path}.{key}" if path else str(key)
        if isinstance(full, dict) and key not in raw:
            raise ManifestError(f"{where}: missing")
        _refuse_absent(raw[key], value, where)


def _at(raw: Any, path: str) -> Any:
    for part in re.findall(r"[^.\[\]]+", path):
        try:
            raw = raw[int(part)] if isinstance(raw, list) else raw[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return {}
    return raw


def _draft_model(draft: Draft, base: Path) -> DraftModel:
    """With every key of the config, and an absolute source."""
    model = draft.model
    if bool(model.config) == bool(model.source):
        raise ManifestError("model: expected either model.config or model.source")
    if not model.source:
        return DraftModel(msgspec.to_builtins(parse_model(model)))
    from training.pretrained import read_config  # transformers: seconds to import

    folder = base / model.source
    return DraftModel(read_config(folder, untie=len(draft.stages) > 1), str(folder))


def _check(manifest: Manifest | Draft) -> None:
    """What single keys cannot say."""
    config = parse_model(manifest.model)
    _check_model(manifest, config)
    _check_stages(manifest, config.layers)
    data, timing, outer = manifest.data, manifest.timing, manifest.outer
    if data.batch_size % data.micro_batches:
        _fail("data.micro_batches", f"expected a divisor of data.batch_size ({data.batch_size})", data.micro_batches)
    too_long = config.positions_problem(data.sequence_length)
    if too_long:
        _fail("data.sequence_length", too_long, data.sequence_length)
    tokens = data.batch_size * data.sequence_length
    if manifest.tokens_per_step != tokens:
        expected = f"expected data.batch_size x data.sequence_length = {tokens}"
        _fail("tokens_per_step", expected, manifest.tokens_per_step)
    if timing.straggler_grace + timing.proposal_timeout > timing.round_timeout:
        expected = f"expected at least straggler_grace + proposal_timeout ({timing.straggler_grace}"
        _fail("timing.round_timeout", f"{expected} + {timing.proposal_timeout})", timing.round_timeout)
    _check_plan(manifest.codec, manifest.plan)
    if manifest.adaptive is not None:
        _check_adaptive(manifest.codec, manifest.plan, manifest.adaptive)
    if outer.nesterov and not outer.momentum:
        _fail("outer.nesterov", "expected false, or outer.momentum > 0", True)
    if outer.alpha and not outer.delay:
        _fail("outer.alpha", "expected 0 where outer.delay is 0 (nothing is in flight then)", outer.alpha)
    if manifest.quorum.numerator > manifest.quorum.denominator:
        limit = f"at most quorum.denominator ({manifest.quorum.denominator})"
        _fail("quorum.numerator", f"expected {limit}", manifest.quorum.numerator)
    if manifest.min_replicas > manifest.max_replicas:
        _fail("min_replicas", f"expected at most max_replicas ({manifest.max_replicas})", manifest.min_replicas)


def _check_model(manifest: Manifest | Draft, config: Config) -> None:
    absent = msgspec.to_builtins(config).keys() - manifest.model.config.keys()
    if absent:
        raise ManifestError(f"model.config.{min(absent)}: missing")
    for key, expected, value in config.problems():
        _fail(f"model.config.{key}", expected, value)
    if config.tie_word_embeddings and len(manifest.stages) > 1:
        # The first and the last stage would each seal a copy of one tensor, and their codecs would drive them apart.
        _fail("model.config.tie_word_embeddings", "expected false where the model has more than one stage", True)


def _check_plan(codec: Codec, plan: Plan) -> None:
    levels = {"int4": (2, 4, 8), "lowrank": (4,), "topk": (2,)}[codec.name]
    if plan.level not in levels:
        _fail("plan.level", f"expected {' or '.join(map(str, levels))} for {codec.name}", plan.level)
    low, high = {"int4": (0, 0), "lowrank": (1, 4096), "topk": (32, 256)}[codec.name]
    if not low <= plan.rank <= high:
        _fail("plan.rank", f"expected {low} to {high} for {codec.name}", plan.rank)


def _check_adaptive(codec: Codec, plan: Plan, adaptive: Adaptive) -> None:
    adapts = ("rank", "inner_steps") if codec.name == "lowrank" else ("inner_steps",)
    for key in adapts:
        low, high, value = getattr(adaptive, f"min_{key}"), getattr(adaptive, f"max_{key}"), getattr(plan, key)
        if low > high:
            _fail(f"adaptive.min_{key}", f"expected at most adaptive.max_{key} ({high})", low)
        if not low <= value <= high:
            _fail(f"plan.{key}", f"expected adaptive.min_{key} to adaptive.max_{key} ({low} to {high})", value)


def _check_stages(manifest: Manifest | Draft, layers: int) -> None:
    expected_low = 0
    for index, (low, high) in enumerate(manifest.stages):
        if low != expected_low or high <= low:
            _fail(f"stages[{index}]", f"expected layers from {expected_low} to a higher one", [low, high])
        expected_low = high
    if expected_low != layers:
        _fail("stages", f"expected to end at the model's number of layers ({layers})", expected_low)
    if isinstance(manifest, Manifest) and len(manifest.genesis) != len(manifest.stages):
        _fail("genesis", f"expected one blob per stage ({len(manifest.stages)})", len(manifest.genesis))


def _fail(key: str, reason: str, value: object) -> None:
    raise ManifestError(f"{key}: {reason}, got {_shown(value)}")


def _draft_data(data: DraftData, given: dict[str, Any], base: Path) -> DraftData:
    """With absolute paths."""
    if bool(data.source) == bool(data.prepared):
        raise ManifestError("data.source: expected either data.source or data.prepared")
    for key in ("tokenizer", "separator", "field", "heldout"):
        if data.prepared and key in given:
            raise ManifestError(f"data.{key}: was decided when data.prepared was made")
    return msgspec.structs.replace(
        data,
        source=_expand(data.source, base),
        prepared=data.prepared and str(base / Path(data.prepared).expanduser()),
        tokenizer=data.tokenizer and str(base / Path(data.tokenizer).expanduser()),
    )


def _expand(sources: list[str], base: Path) -> list[str]:
    matches: set[str] = set()
    for source in sources:
        found = glob.glob(source, root_dir=base, recursive=True)
        if not found:
            raise ManifestError(f"data.source: {source!r} matches no file or folder in {base}")
        matches.update(str(base / match) for match in found)
    return sorted(matches)
