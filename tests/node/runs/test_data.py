"""`dlx-node data`, and how runs and nodes take prepared and private data."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from dlx.ledger.client import LedgerClient
from dlx.ledger.typed import PRIVATE_DATA, RunConfig
from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.checkpoints import pull
from dlx.node.daemon.data.public_data import private_folder
from dlx.node.daemon.stage.statements import _flags
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.runs import create
from dlx.training.data import prepare, shards, tokenising, unfinished
from dlx.training.data.prepare import Preparation, adopt_folder, prepare_folder
from dlx.training.data.shards import DataError, Dataset, parse_data_manifest, read_prepared
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.evaluate import heldout_loss
from dlx.training.models.export import described
from dlx.training.recipe.manifest import parse
from dlx.training.recipe.strict import ManifestError
from tests.node.cli.test_cli import DRAFT
from tests.node.command import dlx
from tests.node.daemon.stage.test_statements import trained
from tests.node.made_statements import digest
from tests.training import texts

TEXTS = texts.texts(30)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return texts.json_lines(tmp_path / "in" / "rows.jsonl", [{"body": text} for text in TEXTS])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return texts.tokenizer(tmp_path / "tokenizer.json")


@pytest.fixture
def prepared(rows: Path, tokenizer: Path, tmp_path: Path) -> Path:
    dlx("data", "prepare", "--source", rows, "--field", "body", "--tokenizer", tokenizer, "--out", tmp_path / "out")
    return tmp_path / "out"


def test_prepare_says_what_it_made_and_check_finds_it_intact(
    prepared: Path, rows: Path, tokenizer: Path, tmp_path: Path
) -> None:
    arguments = ("--source", rows, "--field", "body", "--tokenizer", tokenizer, "--separator", "0", "--json")
    made = json.loads(dlx("data", "prepare", *arguments, "--out", tmp_path / "again").stdout)
    assert made.pop("data") == str(tmp_path / "again")
    found = json.loads(dlx("data", "check", prepared, "--json").stdout)
    assert found.pop("data") == str(prepared)
    assert (made.pop("taken"), made.pop("left_out")) == ({".jsonl": 1}, {})
    counted = [made.pop(key) for key in ("documents", "bytes_of_text", "copies", "near_copies")]
    assert counted[0] == 30 and counted[1] == sum(len(text.encode()) for text in TEXTS) and counted[2] == 0
    assert (made.pop("left_out_documents"), made.pop("left_out_bytes")) == (0, 0)
    assert found == made and found["overlap"]["length"] == 13 and found["overlap"]["sampled"] > 10
    manifest = read_prepared(prepared)
    assert (found["vocab_size"], found["dtype"], found["separator"], found["problems"]) == (320, "uint16", 0, [])
    assert found["train_tokens"] == manifest.tokens("train") > 1000
    said = dlx("data", "check", prepared / "data.json").stdout
    assert "problems        none" in said and "None" not in said and f"{found['train_tokens']:,}" in said


def test_prepare_says_what_it_took_and_left_out_and_takes_bytes_for_who_means_it(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.txt", "b.txt", ".a", ".b", "a.pdf"):
        (folder / name).write_text("text\n")
    refused = dlx("data", "prepare", "--source", folder / "a.pdf", "--out", tmp_path / "out", code=1).stderr
    assert "a.pdf: is a PDF document" in refused and "--raw" in refused and not (tmp_path / "out").exists()
    said = dlx("data", "prepare", "--source", folder, "--out", tmp_path / "out").stdout
    assert "files               2 .txt; left out: 1 PDF document, 2 hidden files\n" in said
    again = dlx("data", "prepare", "--source", folder, "--raw", "--out", tmp_path / "again", "--json").stdout
    assert json.loads(again)["taken"] == {".txt": 2, ".pdf": 1} and json.loads(again)["left_out"] == {"hidden files": 2}


def test_prepare_counts_copies_of_held_out_documents_and_warns_of_what_is_nearly_one(tmp_path: Path) -> None:
    bodies = [
        f"This is document {number}, of many words that stand in no other one: {number**99}" for number in range(20)
    ]
    lines = [{"text": text} for text in (*bodies, *bodies, *(body + "." for body in bodies))]
    source = texts.json_lines(tmp_path / "rows.jsonl", lines)
    told = dlx("data", "prepare", "--source", source, "--heldout", "0.3", "--out", tmp_path / "out", "--json")
    found = json.loads(told.stdout)
    assert found["copies"] == 20 and found["near_copies"] > 0.3
    assert found["left_out_documents"] > 0 and found["left_out_bytes"] > 0 and found["overlap"]["part"] > 0.5
    assert "held-out sequences of 64 tokens are in the training data: the held-out loss will look better" in told.stderr
    assert dlx("data", "check", tmp_path / "out").stderr.count("warning") == 1


def test_check_names_every_wrong_blob(prepared: Path) -> None:
    manifest = read_prepared(prepared)
    (prepared / manifest.train[0].sha256).write_bytes(b"short")
    (prepared / manifest.heldout[0].sha256).unlink()
    shown = dlx("data", "check", prepared, code=1)
    assert f"wrong: {manifest.train[0].sha256}: expected {manifest.train[0].size} bytes, got 5\n" in shown.stdout
    assert f"wrong: {manifest.heldout[0].sha256}: No such file or directory\n" in shown.stdout
    assert len(json.loads(dlx("data", "check", prepared, "--json", code=1).stdout)["problems"]) == 2
    named = prepared / ("ab" * 32)
    (prepared / "data.json").rename(named)
    assert "do not match its name" in dlx("data", "check", named, code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["prepare", "--source", "none", "--out", "x"], 2, "none: no such file or folder"),
        (["prepare", "--source", ".", "--out", "x"], 2, "x: lies in .,"),
        (["prepare", "--source", "rows.jsonl", "--out", "x"], 1, "rows.jsonl, line 1: has no key 'text'"),
        (
            ["prepare", "--source", "rows.jsonl", "--field", "body", "--separator", "</s>", "--out", "x"],
            2,
            "of a tokenizer",
        ),
        (["prepare", "--source", "rows.jsonl", "--field", 'a"b', "--out", "x"], 2, "expected a key without quotes"),
        (["prepare", "--source", "rows.jsonl", "--separator", "9" * 5000, "--out", "x"], 2, "of a tokenizer"),
        (["prepare", "--source", "rows.jsonl", "--tokenizer", "none", "--out", "x"], 2, "--tokenizer none"),
        (["prepare", "--source", "rows.jsonl", "--field", "body", "--out", "."], 2, "name a new folder"),
        (["prepare", "--source", ".", "--heldout", "0.6", "--out", "x"], 2, "--heldout 0.6"),
        (["check", "."], 1, "holds no data.json"),
        (["check", "nowhere"], 2, "no such file"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], code: int, reason: str, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rows.parent)
    shown = dlx("data", *arguments, code=code)
    assert reason in " ".join(shown.stderr.split())
    assert shown.stdout == ""


class _Ledger(LedgerClient):
    """Where a run can be registered."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", "0x" + "11" * 20, bytes([2]) * 32, chain_id=31337)

    def runs(self) -> tuple[bytes, ...]:
        return ()

    def balance(self, account: str) -> int:
        return 1

    def create_run(self, config: RunConfig, name: str, genesis: Sequence[bytes], founders: Sequence[str]) -> bytes:
        return bytes(32)


def _agreed(what: str) -> None:
    """The data may be public."""


def _create(tmp_path: Path, name: str, data: str, vocab_size: int = 320) -> tuple[create.CreatedRun, Path]:
    (tmp_path / name).mkdir(exist_ok=True)
    draft = DRAFT.replace("vocab_size = 256", f"vocab_size = {vocab_size}").replace('source = ["text/*.txt"]', data)
    (tmp_path / name / "run.toml").write_text(draft)
    folder = DataDir(tmp_path / name / "home")
    folder.create()
    return create.create_run(tmp_path / name / "run.toml", folder, _Ledger(), _agreed), folder.blobs


def test_a_run_that_anybody_joins_has_a_bound_unless_it_is_said_twice(prepared: Path, tmp_path: Path) -> None:
    """One member of a run with the policy `mean` moves the model as far as it likes."""
    draft, folder = tmp_path / "run.toml", DataDir(tmp_path / "home")
    folder.create()
    text = DRAFT.replace("vocab_size = 256", "vocab_size = 320") + '\n[outer]\npolicy = "mean"\n'
    draft.write_text(text.replace('source = ["text/*.txt"]', f'prepared = "{prepared}"'))

    def created(**said: bool) -> create.CreatedRun:
        return create.create_run(draft, folder, _Ledger(), _agreed, **said)

    with pytest.raises(Failure, match="--unbounded"):
        created()
    assert created(unbounded=True).run != created(invited=True).run


def test_a_run_takes_sources_with_a_tokenizer_or_the_same_data_prepared(
    rows: Path, tokenizer: Path, prepared: Path, tmp_path: Path
) -> None:
    source = 'source = ["../in/*.jsonl"]\nfield = "body"\ntokenizer = "../tokenizer.json"'
    created, blobs = _create(tmp_path, "a", source)
    other, _ = _create(tmp_path, "b", 'prepared = "../out"')
    assert other.data_manifest == created.data_manifest
    manifest = parse((blobs / created.manifest).read_bytes())
    assert manifest.data.manifest.sha256 == created.data_manifest
    listed = parse_data_manifest((blobs / created.data_manifest).read_bytes())
    assert listed == read_prepared(prepared)
    assert all((blobs / blob.sha256).stat().st_size == blob.size for blob in listed.blobs())
    again, _ = _create(tmp_path, "a", 'prepared = "../out"')
    assert again.run == created.run, "where the data lay does not make it another run"


def test_a_run_takes_bytes_that_are_no_text_only_where_its_draft_says_so(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bytes").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(DataError, match=r"no text in it \(no files; left out: 1 binary file \(bytes\)\): .*--raw"):
        _create(tmp_path, "a", 'source = ["../in"]')
    assert not list((tmp_path / "a" / "home" / "blobs").iterdir()), "nothing was frozen"
    created, _ = _create(tmp_path, "a", 'source = ["../in"]\nraw = true')
    assert (created.taken, created.left_out) == ({"without ending": 1}, {})
    prepare_folder(Preparation([tmp_path / "in"], raw=True), tmp_path / "out")
    again, _ = _create(tmp_path, "a", 'prepared = "../out"')
    assert again.run == created.run, "how the data came about does not make it another run"


def test_a_mixture_has_its_counts_in_the_data_manifest(rows: Path, tmp_path: Path) -> None:
    texts.json_lines(tmp_path / "in2" / "b.jsonl", [{"text": text + "!"} for text in TEXTS])
    texts.json_lines(tmp_path / "held" / "c.jsonl", [{"body": text + "?"} for text in TEXTS])
    data = (
        'heldout_source = ["../held/*.jsonl"]\nfield = "body"\ndrop_duplicates = true\nsource = ['
        '{path = "../in/*.jsonl", epochs = 2, name = "mine"}, {path = "../in2", field = "text"}]'
    )
    created, blobs = _create(tmp_path, "a", data)
    listed = parse_data_manifest((blobs / created.data_manifest).read_bytes())
    assert [one.name for one in listed.sources] == ["mine", "in2"]
    assert listed.sources[0].tokens > 1.5 * listed.sources[1].tokens
    assert listed.tokens("heldout") == sum(len((text + "?").encode()) + 1 for text in TEXTS)
    assert _create(tmp_path, "a", data)[0].run == created.run


def test_an_interrupted_creation_goes_on_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 256)
    monkeypatch.setattr(unfinished, "SHARD_BYTES", 256)
    monkeypatch.setattr(tokenising, "BATCH", 1)
    texts.json_lines(tmp_path / "in" / "rows.jsonl", [{"text": text} for text in TEXTS])
    source, told = f'source = ["{tmp_path / "in"}"]', list[str]()
    (tmp_path / "run.toml").write_text(DRAFT.replace('source = ["text/*.txt"]', source))
    folder = DataDir(tmp_path / "home")
    folder.create()

    def created() -> create.CreatedRun:
        return create.create_run(tmp_path / "run.toml", folder, _Ledger(), _agreed, told.append)

    def interrupted(*what: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prepare._ShardWriter, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            created()
    assert (folder.state / "created" / "unfinished").exists()
    made = created()
    assert any("shards that an interrupted call wrote" in line for line in told)
    assert not (folder.state / "created" / "unfinished").exists()
    other, _ = _create(tmp_path, "a", source)
    assert made.data_manifest == other.data_manifest


@pytest.mark.parametrize(
    ("data", "vocab_size", "reason"),
    [
        ('prepared = "../out"', 300, "model.config.vocab_size: expected at least the data's 320 tokens, got 300"),
        ('source = ["../in"]\ntokenizer = "../tokenizer.json"', 300, "expected at least the data's 320 tokens"),
        ('source = ["../in"]', 200, "expected at least the data's 256 tokens"),
        ('prepared = "../out"\nsource = ["../in"]', 320, "data.source: expected either data.source or data.prepared"),
        ("", 320, "data.source: expected either"),
        ('prepared = "../out"\ntokenizer = "t.json"', 320, "data.tokenizer: was decided"),
        ('prepared = "../out"\nraw = true', 320, "data.raw: was decided"),
        ('prepared = "../out"\nheldout_source = ["../in"]', 320, "data.heldout_source: was decided"),
        ('source = ["../in"]\nheldout_source = ["../none"]', 320, "data.heldout_source: '../none' matches no"),
        ('source = ["../in"]\nheldout_source = ["../in"]\nheldout = 0.1', 320, "expected either data.heldout or"),
        ('source = ["../in", {path = "../in", weight = 1}]', 320, "expected a weight of each source, or of none"),
        ('source = [{path = "../in", weight = 1, epochs = 2}]', 320, r"data.source\[0\].weight: expected either"),
        ('source = [{path = "../none"}]', 320, r"data.source\[0\].path: '../none' matches no"),
        ('source = [{path = "../in", epochs = 0}]', 320, r"data.source\[0\].epochs: expected a number > 0"),
        ('source = [{path = "../in", times = 2}]', 320, r"data.source\[0\].times: unknown key"),
        ('prepared = "../nowhere"', 320, "holds no data.json"),
        ('source = ["../in"]\nfield = "none"', 320, "rows.jsonl, line 1: has no key 'none'"),
        ('source = ["../in"]\ntokenizer = "../in/rows.jsonl"', 320, "not a tokenizer.json"),
    ],
)
def test_data_that_does_not_fit_is_refused_before_anything_is_registered(
    data: str, vocab_size: int, reason: str, prepared: Path, tmp_path: Path
) -> None:
    with pytest.raises((ManifestError, DataError), match=reason):
        _create(tmp_path, "a", data, vocab_size)


def test_data_without_one_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("too short for 32 and one more")
    with pytest.raises(ManifestError, match=r"data\.sequence_length: .* no sample of 32 tokens"):
        _create(tmp_path, "a", 'source = ["x.txt"]')


def test_a_node_takes_private_data_only_where_the_run_allows_it_and_never_from_what_it_serves(
    prepared: Path, rows: Path, tmp_path: Path
) -> None:
    def found(private_data: Path | str, private: bool = True, public: Path = prepared) -> Path | None:
        manifest: Any = SimpleNamespace(data=SimpleNamespace(private=private))
        return private_folder(str(private_data), tmp_path / "blobs", manifest, read_prepared(public))

    assert found("") is None
    assert found(prepared) == prepared
    with pytest.raises(Failure, match="allows no private data"):
        found(prepared, private=False)
    with pytest.raises(Failure, match="is served to everybody"):
        found(tmp_path / "blobs" / "mine")
    with pytest.raises(DataError, match=r"holds no data\.json"):
        found(tmp_path / "in")
    prepare_folder(Preparation([rows], field="body"), tmp_path / "bytes")
    with pytest.raises(DataError, match="another tokenizer"):
        found(tmp_path / "bytes")


def test_pull_writes_the_bytes_tokenizer_also_where_the_model_has_more_rows(rows: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    created, folder = _create(tmp_path, "a", 'source = ["../in"]\nfield = "body"', vocab_size=300)
    manifest = parse((folder / created.manifest).read_bytes())
    found = pull.read_beside(manifest, Blobs([Folder(folder, own=False)], tmp_path / "work"), lambda line: None)
    files = described(manifest, found.vocabulary, found.usage)
    assert found.whole and files["tokenizer.json"] == Vocabulary.of_bytes().content
    assert json.loads(files["config.json"])["vocab_size"] == 300


def test_pull_finds_the_tokenizer_and_does_without_a_lost_one(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "work").mkdir()
    ref = adopt_folder(prepared, tmp_path / "blobs")
    manifest: Any = SimpleNamespace(data=SimpleNamespace(manifest=ref), usage=None)
    told: list[str] = []
    blobs = Blobs([Folder(tmp_path / "blobs", own=False)], tmp_path / "work")
    found = pull.read_beside(manifest, blobs, told.append)
    assert found.whole and found.vocabulary is not None
    assert (found.vocabulary.size, found.vocabulary.separator) == (320, 0)
    lost = read_prepared(prepared).tokenizer
    assert not isinstance(lost, str)
    for folder in ("blobs", "work"):
        (tmp_path / folder / lost.sha256).unlink()
    assert pull.read_beside(manifest, blobs, told.append) == (None, None, False)
    assert len(told) == 1 and lost.sha256 in told[0]


def _tuned(tmp_path: Path, name: str, data: str, model: Path) -> tuple[create.CreatedRun, Path, list[str]]:
    """A run that starts from a model's folder, its blobs, and what its creator was told."""
    (tmp_path / name).mkdir(exist_ok=True)
    head, _, rest = DRAFT.partition("[model.config]")
    rest = rest[rest.index("[data]") :].replace('source = ["text/*.txt"]', data)
    (tmp_path / name / "run.toml").write_text(f'{head}[model]\nsource = "{model}"\n{rest}')
    folder, told = DataDir(tmp_path / name / "home"), list[str]()
    folder.create()
    created = create.create_run(tmp_path / name / "run.toml", folder, _Ledger(), _agreed, told.append)
    return created, folder.blobs, told


def test_a_run_states_how_good_the_model_is_that_it_starts_from(
    rows: Path, prepared: Path, tokenizer: Path, tmp_path: Path
) -> None:
    model = _model(tmp_path)
    created, folder, told = _tuned(tmp_path, "a", 'prepared = "../out"', model)
    manifest = parse((folder / created.manifest).read_bytes())
    dataset = Dataset.open(folder / created.data_manifest, folder)
    known = heldout_loss(model, dataset, manifest.data.sequence_length)
    assert created.held_out == manifest.loss_before == pytest.approx(known, abs=1e-4)
    assert manifest.before is not None
    assert manifest.before.count == manifest.before.samples * manifest.data.sequence_length
    assert any("held-out loss of the model that the run starts from" in line for line in told)
    blobs = {manifest.data.manifest.sha256, created.manifest, *created.genesis}
    blobs |= {blob.sha256 for blob in parse_data_manifest((folder / created.data_manifest).read_bytes()).blobs()}
    assert {path.name for path in folder.iterdir() if path.is_file()} == blobs, "no activations stay"


def _model(tmp_path: Path) -> Path:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=320, max_position_embeddings=64, tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_run_keeps_how_the_model_that_it_starts_from_is_used(
    rows: Path, prepared: Path, tokenizer: Path, tmp_path: Path
) -> None:
    model = _model(tmp_path)
    shutil.copy(tokenizer, model)
    settings = {"eos_token": texts.END, "chat_template": "{{ messages }}"}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))

    created, folder, told = _tuned(tmp_path, "a", 'prepared = "../out"', model)
    manifest = parse((folder / created.manifest).read_bytes())
    assert any("its rates" in one or "inner.lr 0.004" in one for one in told), told
    assert any("head" in one for one in told) == (len(manifest.stages) > 1)
    (tmp_path / "work").mkdir()
    found = pull.read_beside(manifest, Blobs([Folder(folder, own=False)], tmp_path / "work"), told.append)
    assert found.whole and found.usage is not None
    assert found.usage.chat_templates == {"default": "{{ messages }}"}
    assert found.usage.tokens.eos_token == texts.END
    assert _tuned(tmp_path, "a", 'prepared = "../out"', model)[0].run == created.run
    (model / "chat_template.jinja").write_text("another")
    assert _tuned(tmp_path, "a", 'prepared = "../out"', model)[0].run != created.run, "another template, another run"

    assert manifest.usage is not None
    for place in (folder, tmp_path / "work"):
        (place / manifest.usage.sha256).unlink()
    lost = pull.read_beside(manifest, Blobs([Folder(folder, own=False)], tmp_path / "work"), told.append)
    assert (lost.vocabulary is not None, lost.usage, lost.whole) == (True, None, False)
    assert "chat template" in told[-1]

    (model / "tokenizer.json").write_text("{}")
    created, folder, told = _tuned(tmp_path, "b", 'source = ["../in"]\nfield = "body"', model)
    assert parse((folder / created.manifest).read_bytes()).usage is None
    assert any("are left behind" in one for one in told), "of another tokenizer, here bytes, all that says nothing"


def test_settings_that_training_never_reads_keep_no_model_from_it(rows: Path, tmp_path: Path) -> None:
    model = _model(tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"pad_token_id": -1}))
    (model / "generation_config.json").write_text('{"temperature": 0.5}')
    created, folder, told = _tuned(tmp_path, "a", 'source = ["../in"]\nfield = "body"', model)
    assert parse((folder / created.manifest).read_bytes()).usage is None
    warned = f"warning: {model / 'config.json'}: pad_token_id: expected a whole number >= 0, got -1; it is left behind"
    assert warned in told
    assert any("are left behind" in one for one in told), "also where there are ids and generation settings alone"


def test_a_model_that_was_not_resized_for_its_tokenizers_tokens_is_refused(
    rows: Path, tokenizer: Path, tmp_path: Path
) -> None:
    model = _model(tmp_path)
    added = Tokenizer.from_file(str(tokenizer))
    added.add_special_tokens(["<|tool|>", "<|think|>"])
    added.save(str(model / "tokenizer.json"))
    source = f'source = ["../in"]\nfield = "body"\ntokenizer = "{model / "tokenizer.json"}"'
    with pytest.raises(
        ManifestError, match=r"config\.json: vocab_size: expected at least the data's 322 tokens, got 320"
    ):
        _tuned(tmp_path, "a", source, model)


def test_a_model_folder_that_is_refused_is_refused_before_the_data_is_frozen(rows: Path, tmp_path: Path) -> None:
    model = _model(tmp_path)
    (model / "generation_config.json").write_text("[")
    with pytest.raises(ManifestError, match=r"generation_config\.json: not readable as JSON"):
        _tuned(tmp_path, "a", 'source = ["../in"]\nfield = "body"', model)
    assert not list((tmp_path / "a" / "home" / "blobs").iterdir())


def test_a_contribution_says_that_its_data_is_private() -> None:
    from msgspec.structs import replace

    assert _flags(replace(trained(3), private_data=True), digest(1)) == PRIVATE_DATA
    assert _flags(replace(trained(3, reset=True), private_data=True), digest(1)) == PRIVATE_DATA | 2
