import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import FieldInfo, replace

from dlx.training.recipe.draft import complete, draft_from_toml
from dlx.training.recipe.families import FAMILIES
from dlx.training.recipe.manifest import MAX_BYTES, Manifest, canonical_bytes, manifest_hash, parse
from dlx.training.recipe.recipe import Adaptive, Average, BlobRef, WeightsRef, activation_bytes
from dlx.training.recipe.strict import ManifestError

GROUPED = {  # keys of the families that docs/protocol/manifest.md calls so
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
    "rms_norm_eps", "rope_theta", "rope_scaling", "initializer_range",
}  # fmt: skip

TOML = """
name = "demo"
stages = [[0, 2], [2, 4]]
rounds = 40

[model.config]
model_type = "llama"
vocab_size = 256
hidden_size = 128
intermediate_size = 344
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
max_position_embeddings = 128

[data]
source = ["texts", "more/**/*.txt"]
sequence_length = 128
batch_size = 8
micro_batches = 4
"""


def _write_draft(folder: Path) -> Path:
    (folder / "texts").mkdir()
    (folder / "more" / "deep").mkdir(parents=True)
    (folder / "more" / "deep" / "a.txt").write_text("a")
    path = folder / "run.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return _write_draft(tmp_path)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    blob = WeightsRef("ab" * 32, 1000, "cd" * 32)
    draft = draft_from_toml(_write_draft(tmp_path_factory.mktemp("draft")))
    return complete(draft, [blob, blob], BlobRef("ab" * 32, 1000), salt=bytes(32))


def test_a_manifest_survives_its_canonical_bytes(manifest: Manifest) -> None:
    assert parse(canonical_bytes(manifest)) == manifest
    assert activation_bytes(manifest) == 2 * 128 * 128 * 4
    assert activation_bytes(replace(manifest, precision="bfloat16")) == 2 * 128 * 128 * 2
    assert activation_bytes(replace(manifest, precision="bfloat16", pipe="int8")) == 2 * 128 * (4 + 128)


def test_the_hash_of_a_known_manifest_never_changes(manifest: Manifest) -> None:
    assert manifest_hash(manifest).hex() == "0d2d42bb232753a9a39f854769030449f805a1e1108ce580008234efffeb06f4"


def test_the_protocol_lists_every_field_of_a_manifest(manifest: Manifest) -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol" / "manifest.md").read_text()
    stated = msgspec.to_builtins(manifest) | {"model": {}}
    named = [*stated, *(key for part in stated.values() if isinstance(part, dict) for key in part)]
    named += [field.name for kind in (Adaptive, Average) for field in msgspec.structs.fields(kind)]
    assert not [key for key in named if f"`{key}`" not in page and f".{key}`" not in page and f"`{key}." not in page]
    for family, kind in FAMILIES.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{family}`"))
        keys = {field.name for field in msgspec.structs.fields(kind)} - {"model_type"}
        common = {"vocab_size", "tie_word_embeddings"} | (GROUPED if "(grouped)" in row else set())
        assert set(re.findall(r"`(\w+)`", row)) - {family} == keys - common, family


def test_the_operators_guide_lists_every_familys_keys_and_defaults() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operator.md").read_text()
    usual = {one.name: one for one in msgspec.structs.fields(FAMILIES["llama"]) if one.name in GROUPED}

    def listed(fields: Iterable[FieldInfo], required: bool) -> str:
        given = [one for one in fields if one.required == required]
        return ", ".join(f"`{one.name}`" + ("" if required else f" {json.dumps(one.default)}") for one in given)

    start = page.index("All but\n`gpt2`")
    common = " ".join(page[start : page.index("| family", start)].split())
    assert f"{listed(usual.values(), True)}, {listed(usual.values(), False)}." in common
    for family, kind in FAMILIES.items():
        fields = [one for one in msgspec.structs.fields(kind) if one.name not in _EVERYWHERE]
        if usual.keys() <= {one.name for one in fields}:
            fields = [one for one in fields if one.name not in usual or one.default != usual[one.name].default]
        assert f"\n| `{family}` | {listed(fields, True)} | {listed(fields, False)} |\n" in page


_EVERYWHERE = ("model_type", "vocab_size", "tie_word_embeddings")


def test_a_chain_id_that_canonical_json_cannot_write_is_refused(manifest: Manifest) -> None:
    lineage = {"chain_id": 1 << 53, "ledger": "0x" + 40 * "0", "run": "0x" + 64 * "0", "version": 1}
    raw = msgspec.to_builtins(manifest) | {"lineage": lineage}
    with pytest.raises(ManifestError, match=r"^lineage\.chain_id: "):
        parse(msgspec.json.encode(raw))


def test_two_runs_from_one_draft_differ_by_their_salt(toml: Path) -> None:
    blob = WeightsRef("ab" * 32, 1000, "cd" * 32)
    draft = draft_from_toml(toml)
    data = BlobRef("ab" * 32, 1000)
    assert complete(draft, [blob, blob], data).salt != complete(draft, [blob, blob], data).salt


def test_a_draft_fills_in_the_defaults_and_finds_its_sources(toml: Path) -> None:
    draft = draft_from_toml(toml)
    assert draft.tokens_per_step == 1024
    assert draft.model.config["rope_theta"] == 10000
    assert draft.sources == sorted([toml.parent / "texts", toml.parent / "more" / "deep" / "a.txt"])


def test_sources_may_be_absolute_and_lie_beside_any_folder_name(tmp_path: Path) -> None:
    folder = tmp_path / "odd [name]*"
    folder.mkdir()
    path = _write_draft(folder)
    assert folder / "texts" in draft_from_toml(path).sources
    path.write_text(TOML.replace('"texts"', f'"{tmp_path}/*/more"').replace("[name]", "?name?"))
    assert folder / "more" in draft_from_toml(path).sources


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = ["texts"', 'source = ["nowhere/*"', "data.source: 'nowhere/*' matches no file or folder in "),
        ("rounds = 40", "rounds = 0", "rounds: expected a whole number >= 1, got 0"),
        ("rounds = 40", "", "rounds: missing"),
        ("rounds = 40", "rounds = 40\nrouns = 40", "rouns: unknown key"),
        (
            "rounds = 40",
            "rounds = 40\ntiming.min_round_time = 121",
            "timing.min_round_time: expected at most round_timeout (120), got 121",
        ),
        (
            "rounds = 40",
            "rounds = 40\ntiming.start_time = -1",
            "timing.start_time: expected a whole number >= 0, got -1",
        ),
        ("rounds = 40", "rounds = ", "not readable as TOML"),
        ("vocab_size = 256", "", "model.config.vocab_size: missing"),
        ("batch_size = 8", "batch_size = 9", "data.micro_batches: expected a divisor of data.batch_size (9), got 4"),
        ("sequence_length = 128", "sequence_length = 256", "data.sequence_length: expected at most "),
        (
            "rounds = 40",
            'rounds = 40\narithmetic = "exact"\nprecision = "bfloat16"',
            'precision: expected "float32" where arithmetic is "exact", got "bfloat16"',
        ),
        (
            "rounds = 40",
            'rounds = 40\narithmetic = "exact"\ninner.optimiser = "shampoo"',
            'inner.optimiser: expected "muon" or "adamw" where arithmetic is "exact", got "shampoo"',
        ),
        (
            "rounds = 40",
            'rounds = 40\narithmetic = "exact"\ncodec.name = "lowrank"',
            'codec.name: expected "int4", "ternary" or "topk" where arithmetic is "exact", got "lowrank"',
        ),
        (
            "rounds = 40",
            'rounds = 40\narithmetic = "exact"\nexact_bits = 22',
            "exact_bits: expected a whole number <= 21, got 22",
        ),
        ("rounds = 40", "rounds = 40\nexact_bits = 15", 'exact_bits: expected 21 unless arithmetic is "exact", got 15'),
    ],
)
def test_a_wrong_draft_names_the_key_and_the_reason(toml: Path, old: str, new: str, message: str) -> None:
    toml.write_text(TOML.replace(old, new))
    with pytest.raises(ManifestError) as caught:
        draft_from_toml(toml)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_draft_is_read_as_an_editor_wrote_it(toml: Path, encoding: str) -> None:
    plain = draft_from_toml(toml)
    toml.write_text(TOML.replace("\n", "\r\n") + "# Grüße\r\n", encoding=encoding, newline="")
    assert draft_from_toml(toml) == plain


def test_a_draft_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none\.toml: cannot be read \(No such file"):
        draft_from_toml(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xff")
    with pytest.raises(ManifestError, match=r"binary\.toml: is neither UTF-8, nor .*: save it as UTF-8 text"):
        draft_from_toml(tmp_path / "binary.toml")


def _set(path: str, value: Any) -> Callable[[dict], None]:
    def change(raw: Any) -> None:
        *parents, last = path.split(".")
        for part in parents:
            raw = raw[part]
        raw[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inner.lr", -1, "inner.lr: expected a number > 0.0, got -1"),
        ("inner.lr", "fast", "inner.lr: expected a number, got text"),
        ("inner.beta2", 1, "inner.beta2: expected a number < 1.0, got 1"),
        ("inner.secret", 1, "inner.secret: unknown key"),
        ("usage", {"sha256": "ab" * 32, "size": 1 << 20}, "usage.size: expected at most 524288, got 1048576"),
        ("version", 1, "version: not a supported value, got 1"),
        ("precision", "float16", 'precision: not a supported value, got "float16"'),
        ("salt", "AB" * 32, f'salt: expected 64 lowercase hex digits, got "{"AB" * 32}"'),
        ("salt", "ab" * 32 + "\n", "salt: expected 64 lowercase hex digits"),
        ("name", "../etc", "name: expected 1 to 64 letters, digits, '.', '_' or '-', got \"../etc\""),
        ("stages", [[0, 2], [3, 4]], "stages[1]: expected layers from 2 to a higher one, got [3, 4]"),
        ("stages", [[0, 2], [2, 2]], "stages[1]: expected layers from 2 to a higher one, got [2, 2]"),
        ("stages", [[0, 2], [2, 3]], "stages: expected to end at the model's number of layers (4), got 3"),
        ("stages", [[0, 4]], "genesis: expected one blob per stage (1), got 2"),
        ("stages", [], "stages: expected a list of length >= 1"),
        ("tokens_per_step", 1000, "tokens_per_step: expected data.batch_size x data.sequence_length = 1024, got 1000"),
        ("outer.delay", 2, "outer.delay: not a supported value, got 2"),
        ("outer.alpha", 0.5, "outer.alpha: expected 0 where outer.delay is 0 (nothing is in flight then), got 0.5"),
        ("outer.nesterov", True, "outer.nesterov: expected false, or outer.momentum > 0, got true"),
        ("min_replicas", 9, "min_replicas: expected at most max_replicas (8), got 9"),
        ("max_replicas", 65, "max_replicas: expected a whole number <= 64, got 65"),
        ("quorum.numerator", 9, "quorum.numerator: expected at most quorum.denominator (8), got 9"),
        ("quorum.numerator", 1, "quorum.numerator: expected more than half of quorum.denominator (8), got 1"),
        ("quorum", {"numerator": 1, "denominator": 65535}, "quorum.numerator: expected more than half of quorum"),
        ("timing.start_time", 1 << 36, "timing.start_time: expected a whole number <= 68719476735"),
        ("plan.inner_steps", 100_001, "plan.inner_steps: expected a whole number <= 100000"),
        ("timing.round_timeout", 29, "timing.round_timeout: expected at least straggler_grace + proposal_timeout"),
        ("timing.round_timeout", 60.5, "timing.round_timeout: expected a whole number, got a number"),
        ("timing.straggler_grace", 0, "timing.straggler_grace: expected a number >= 0.1, got 0"),
        ("rounds", 1 << 60, "rounds: expected a whole number <= 1000000"),
        ("rounds", True, "rounds: expected a whole number, got true or false"),
        ("data.seed", -1, "data.seed: expected a whole number >= 0, got -1"),
        (
            "model.config.model_type",
            "bloom",
            "model.config.model_type: expected one of gemma2, gemma3_text, glm, glm4, gpt2, gpt_neox, ",
        ),
        ("model.config.auto_map", "evil.py", "model.config.auto_map: unknown key"),
        ("model.config.attention_dropout", 0.1, "model.config.attention_dropout: unknown key"),
        ("average", {"versions": 4, "every": 15}, "average.every: expected a multiple of retention.every (10)"),
        ("retention.checkpoints", 1_000_001, "retention.checkpoints: "),
        (
            "retention",
            {"payloads": 24, "versions": 3, "every": 10, "checkpoints": 23},
            "retention.checkpoints: expected at least retention.payloads (24): a replay of them begins with a version",
        ),
        ("average", {"versions": 1, "every": 10}, "average.versions: expected a whole number >= 2"),
        ("model.config.hidden_size", 126, "model.config.hidden_size: expected a multiple of 2 x num_attention_heads"),
        ("model.config.num_key_value_heads", 3, "model.config.num_key_value_heads: expected a divisor of "),
        ("model.config.rope_scaling", {"a": [1]}, "model.config.rope_scaling.rope_type: missing"),
        (
            "model.config.rope_scaling",
            {"a": {}},
            ("model.config.rope_scaling", [1], "model.config.rope_scaling: expected a table"),
        ),
        ("\x1b[31m\n", 1, "\\u001b[31m\\n: unknown key"),
    ],
)
def test_a_wrong_manifest_names_the_key_and_the_reason(manifest: Manifest, path: str, value: Any, message: str) -> None:
    raw = copy.deepcopy(msgspec.to_builtins(manifest))
    _set(path, value)(raw)
    with pytest.raises(ManifestError) as caught:
        parse(msgspec.json.encode(raw) if value == 1 << 60 else rfc8785.dumps(raw))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["version", "inner.lr", "outer.momentum", "model.config.rope_theta", "retention", "salt"]
)
def test_every_key_must_be_present(manifest: Manifest, path: str) -> None:
    raw = copy.deepcopy(msgspec.to_builtins(manifest))
    place = raw
    *parents, last = path.split(".")
    for part in parents:
        place = place[part]
    del place[last]
    with pytest.raises(ManifestError, match=f"^{path}: missing$"):
        parse(rfc8785.dumps(raw))


def test_only_one_byte_string_describes_a_run(manifest: Manifest) -> None:
    good = canonical_bytes(manifest)
    for other in (good + b"\n", good.replace(b":", b": ", 1), good.replace(b'"lr":1,', b'"lr":1.0,')):
        assert other != good
        with pytest.raises(ManifestError, match="canonical"):
            parse(other)
    with pytest.raises(ManifestError, match="canonical"):
        parse(b'{"version":1,' + good[1:])


def test_times_that_the_ledger_does_not_count_may_be_fractions_and_whole_ones_have_one_form(manifest: Manifest) -> None:
    raw = msgspec.to_builtins(manifest)
    raw["timing"] |= {"straggler_grace": 1.5, "proposal_timeout": 0.25}
    fraction = parse(rfc8785.dumps(raw))
    assert (fraction.timing.straggler_grace, fraction.timing.proposal_timeout) == (1.5, 0.25)
    good = canonical_bytes(manifest)
    assert b'"straggler_grace":20' in good and parse(good) == manifest
    with pytest.raises(ManifestError, match="canonical"):
        parse(good.replace(b'"straggler_grace":20', b'"straggler_grace":20.0'))


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"[" * 100_000, b'{"a":' * 40_000, b'{"version":1e999}', b"\xff", b"{}", b"0" * MAX_BYTES],
)
def test_hostile_bytes_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(data)
    assert len(str(caught.value).splitlines()) == 1


def test_a_huge_manifest_is_refused_unread() -> None:
    with pytest.raises(ManifestError, match=f"at most {MAX_BYTES} bytes"):
        parse(b"[" * (MAX_BYTES + 1))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.data())
def test_any_value_anywhere_is_refused_or_makes_a_sound_manifest(manifest: Manifest, data: st.DataObject) -> None:
    raw: Any = copy.deepcopy(msgspec.to_builtins(manifest))
    place = raw
    while True:
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(_JSON)
        break
    try:
        changed = parse(msgspec.json.encode(raw))
    except ManifestError as error:
        assert "\n" not in str(error)
    else:
        assert parse(canonical_bytes(changed)) == changed


def test_reading_a_manifest_needs_no_torch() -> None:
    code = "import sys, dlx.training.recipe.manifest, dlx.training.data.shards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
