"""A run.toml that a wizard wrote is a run, and says what it costs."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dlx.node.runs.draft_text import even, suggested_rounds
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.recipe.advice import warnings
from dlx.training.recipe.draft import draft_from_toml
from tests.node.command import Terminal, dlx
from tests.training import texts
from tests.training.recipe.test_families import CASES


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "my books"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text("some text\n" * 20_000)
    return folder


def test_layers_are_shared_evenly_and_rounds_go_once_through_the_data() -> None:
    assert even(4, 2) == [(0, 2), (2, 4)] and even(7, 3) == [(0, 2), (2, 4), (4, 7)] and even(5, 1) == [(0, 5)]
    assert suggested_rounds(10**6, 1000, 10, 2) == 50
    assert suggested_rounds(0, 1000, 10, 2) == 10 and suggested_rounds(10**15, 1, 1, 1) == 10_000


def test_options_and_defaults_make_a_run_with_its_cost(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run.toml"
    given = ["--data", text, "--stages", "2", "--licence", "CC0-1.0", "--price", "2", "--link", "100Mbit/s"]
    done = dlx("run", "new", out, "--public-data", *given)
    draft = draft_from_toml(out)
    assert (draft.name, draft.stages, draft.min_replicas) == ("my-books", [(0, 2), (2, 4)], 2)
    assert draft.data.licence == "CC0-1.0" and draft.sources == [text]
    assert draft.rounds == suggested_rounds(400_000, 8 * 128, 10, 2)
    assert "memory of" in done.stdout and "payload per round" in done.stdout and "hours of 4 devices" in done.stdout
    assert "run create" in done.stderr and out.read_text().count("#") > 10
    assert "gives the text to whoever asks" in done.stderr
    assert "the text is 2 .txt: 2 documents; 50.0% are copies of another" in done.stderr
    assert "The text is public" in out.read_text() and "private = true" in out.read_text()
    before = out.read_bytes()
    assert "cannot be made" in dlx("run", "new", out, "--public-data", *given, code=2).stderr
    with monkeypatch.context() as locked:  # as another user's folder: nothing is read first
        locked.setattr("os.access", lambda path, how: False)
        said = dlx("run", "new", tmp_path / "other.toml", "--public-data", "--data", "nowhere", code=2).stderr
    assert "other.toml cannot be made: you may not write in" in said
    limited = dlx(
        "run", "plan", "--manifest", out, "--json", HOME=str(tmp_path), DLX_UP_LIMIT="1MB", DLX_DOWN_LIMIT="2MB"
    )
    assert json.loads(limited.stdout)["conditions"]["link"] == 8e6, "the plan follows the operator's limit"
    assert out.read_bytes() == before


def test_a_round_that_takes_long_gets_a_timeout_in_which_it_fits(text: Path, tmp_path: Path) -> None:
    slow, fast = tmp_path / "slow.toml", tmp_path / "fast.toml"
    said = dlx("run", "new", slow, "--public-data", "--data", text, "--link", "20kbit/s")
    timeout = draft_from_toml(slow).timing.round_timeout
    assert timeout > 300 and f"times out after {timeout} s" in said.stdout
    assert "timing.round_timeout" not in said.stderr
    dlx("run", "new", fast, "--public-data", "--data", text)
    assert "# round_timeout = 120  #" in fast.read_text()
    assert slow.read_text().replace(f"[timing]\nround_timeout = {timeout} ", "# [timing]\n# round_timeout = 120 ") == (
        fast.read_text().replace('"fast"', '"slow"')
    )


def test_records_have_their_text_where_the_option_says_and_files_may_be_any_bytes(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "run.toml"
    rows.write_text("".join(f'{{"content": "some text {n}"}}\n' for n in range(1000)))
    assert (
        "'content': name the one with the text as `field`"
        in dlx("run", "new", out, "--public-data", "--data", rows, code=2).stderr
    )
    dlx("run", "new", out, "--public-data", "--data", rows, "--field", "content")
    assert (draft_from_toml(out).data.field, draft_from_toml(out).data.raw) == ("content", False)
    (tmp_path / "any.bin").write_bytes(bytes(range(256)) * 100)
    given = ["run", "new", tmp_path / "raw.toml", "--public-data", "--data", tmp_path / "any.bin"]
    assert "--raw" in dlx(*given, code=2).stderr
    dlx(*given, "--raw")
    assert draft_from_toml(tmp_path / "raw.toml").data.raw


def test_nothing_is_written_without_a_yes_to_a_public_text(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run.toml"
    assert "say by --public-data" in dlx("run", "new", out, "--data", text, code=2).stderr
    monkeypatch.setattr(sys, "stdin", Terminal(f"{text}\nn\n"))
    assert "Publish it?" in dlx("run", "new", out, code=1).stderr and not out.exists()


def test_conversations_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [("user", "Hello"), ("assistant", "Good day")]
    talks = [{"messages": [{"role": role, "content": f"{text} {n}"} for role, text in turns]} for n in range(100)]
    rows = texts.json_lines(tmp_path / "rows.jsonl", talks)
    model, out = tmp_path / "model", tmp_path / "run.toml"
    texts.tokenizer(model / "tokenizer.json")
    (model / "config.json").write_text(json.dumps({**CASES["llama"][0], "vocab_size": 320}))
    given = ["run", "new", out, "--public-data", "--data", rows, "--model"]
    assert "has to be a folder with a tokenizer" in (said := dlx(*given, model, code=2).stderr), said
    assert f"{model}: has no chat template" in said and not out.exists()
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert "of conversations" in dlx("run", "new", out, "--public-data", "--data", rows, "--model", model).stderr
    assert draft_from_toml(out).data.chat
    out.unlink()
    said = "--data holds conversations: --model has to be a folder with a tokenizer and a chat template"
    assert said in dlx(*given, "tiny", code=2).stderr and not out.exists()
    monkeypatch.setattr(sys, "stdin", Terminal(f"\n{model}\n\n\n\n\n\n\n"))
    assert said in dlx(*given[:-1]).stderr and draft_from_toml(out).model.source == str(model)


@pytest.mark.parametrize("option", ["--data", "--model"])
def test_a_path_that_no_draft_can_name_is_refused(option: str, text: Path, tmp_path: Path) -> None:
    strange = tmp_path / os.fsdecode(b"b\xe9b\xe9")
    strange.mkdir()
    (strange / "a.txt").write_text("some text\n" * 1000)
    given = {"--data": text, option: strange}
    said = dlx(
        "run", "new", tmp_path / "run.toml", "--public-data", *(part for pair in given.items() for part in pair), code=2
    ).stderr
    assert f"{option} {tmp_path}/b" in said and "is not UTF-8" in said and "Traceback" not in said
    assert not (tmp_path / "run.toml").exists()


def test_it_starts_from_a_hugging_face_folder(text: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({**CASES["llama"][0], "architectures": ["LlamaForCausalLM"]}))
    out = tmp_path / "run.toml"
    dlx("run", "new", out, "--public-data", "--data", text, "--model", model, "--rounds", "3", "--name", "mine")
    draft = draft_from_toml(out)
    assert (draft.name, draft.rounds, draft.model.source) == ("mine", 3, str(model))
    assert not warnings(draft), "its rates are those of a trained model"
    assert draft.kind == "finetune" and draft.inner.lr < 1e-3
    again = tmp_path / "again.toml"
    dlx("run", "new", again, "--public-data", "--data", text, "--model", model, "--kind", "pretrain")
    assert draft_from_toml(again).inner.lr == 0.004
    tiny = ["run", "new", tmp_path / "tiny.toml", "--public-data", "--data", text, "--kind", "finetune"]
    assert "--kind finetune: expected pretrain" in dlx(*tiny, code=2).stderr


@pytest.mark.parametrize(("kind", "small"), [("finetune", "0.0004"), ("lora", "0.01")])
def test_a_large_model_gets_rates_of_which_its_plan_does_not_warn(
    kind: str, small: str, text: Path, tmp_path: Path
) -> None:
    large = CASES["llama"][0] | {"hidden_size": 4096, "num_hidden_layers": 2}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(large))
    out = tmp_path / "run.toml"
    done = dlx("run", "new", out, "--public-data", "--data", text, "--model", tmp_path / "model", "--kind", kind)
    assert "suit small" not in done.stdout + done.stderr and "suits small" not in done.stdout + done.stderr
    assert not warnings(draft := draft_from_toml(out)) and draft.kind == kind
    assert draft.inner.lr < float(small) and f"the kind's {small} suits small ones" in out.read_text()


def test_it_says_that_a_tied_model_is_untied_in_several_stages(text: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    tied = {**CASES["llama"][0], "tie_word_embeddings": True}
    (tmp_path / "model" / "config.json").write_text(json.dumps(tied))
    given = ["--public-data", "--data", text, "--model", tmp_path / "model"]
    assert (
        "4,096 parameters more"
        in dlx("run", "new", tmp_path / "two.toml", "--public-data", *given, "--stages", "2").stderr
    )
    assert (
        "parameters more"
        not in dlx("run", "new", tmp_path / "one.toml", "--public-data", *given, "--stages", "1").stderr
    )


def test_a_pulled_model_of_bytes_goes_on_with_bytes(text: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CASES["llama"][0]))
    (tmp_path / "model" / "tokenizer.json").write_bytes(Vocabulary.of_bytes().content)  # as `pull` writes it
    dlx("run", "new", tmp_path / "run.toml", "--public-data", "--data", text, "--model", tmp_path / "model")
    assert not draft_from_toml(tmp_path / "run.toml").data.tokenizer


def test_a_model_of_another_family_is_refused_by_its_parameters(text: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "run.toml"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CASES["llama"][0]))
    given = ["--data", text, "--model", model, "--stages", "1", "--public-data"]
    dlx("run", "new", out, *given)
    (model / "config.json").write_text('{"model_type": "deepseek_v3", "kv_lora_rank": 512, "n_routed_experts": 256}')
    for command in (["new", tmp_path / "other.toml", *given], ["plan", "--manifest", out]):
        said = dlx("run", *command, code=2).stderr
        assert (
            "kv_lora_rank = 512: there is no attention through latent vectors (MLA); n_routed_experts = 256: " in said
        )
        assert "model_type: expected one of gemma2, " in said and 'got "deepseek_v3"' in said


@pytest.mark.parametrize(
    "files", [{"tokenizer_config": {"eos_token": "+"}}, {"generation_config": {"eos_token_id": 11}}]
)
def test_the_end_of_a_text_is_the_models_own(files: dict[str, Any], text: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    texts.tokenizer(model / "tokenizer.json", ["<unk>"])
    (model / "config.json").write_text(json.dumps({**CASES["llama"][0], "vocab_size": 320}))
    given = ["--public-data", "--data", text, "--model", model]
    said = dlx("run", "new", tmp_path / "unclear.toml", "--public-data", *given).stderr
    assert "which of its tokens ends a document is not clear" in said
    for name, table in files.items():
        (model / f"{name}.json").write_text(json.dumps(table))
    assert "not clear" not in dlx("run", "new", tmp_path / "run.toml", "--public-data", *given).stderr
    tokenizer = Path(draft_from_toml(tmp_path / "run.toml").data.tokenizer)
    assert Vocabulary.read(tokenizer).separator == 11, "as `run create` reads it"
    (model / "config.json").write_text(json.dumps({**CASES["llama"][0], "vocab_size": 300}))
    said = dlx("run", "new", tmp_path / "short.toml", *given, code=2).stderr
    assert "vocab_size: expected at least its tokenizer's 320 tokens, got 300" in said, "as `run create` refuses it"


def test_a_person_is_asked(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{text}\ny\nsmall\n3\n1\nasked\n7\nMIT\n"))
    out = tmp_path / "run.toml"
    dlx("run", "new", out)
    draft = draft_from_toml(out)
    assert (draft.name, draft.rounds, draft.min_replicas, len(draft.stages)) == ("asked", 7, 1, 3)
    assert draft.data.licence == "MIT" and draft.model.config["hidden_size"] == 384


def test_a_person_who_errs_is_told_why_and_asked_again(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    answers = [
        "nowhere",
        tmp_path / "empty",
        text,
        "y",
        "/etc",
        "tiny",
        0,
        5,
        2,
        -1,
        1,
        "a b",
        "mine",
        "many",
        0,
        4,
        "",
    ]
    monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{one}\n" for one in answers)))
    done = dlx("run", "new", tmp_path / "run.toml")
    draft = draft_from_toml(tmp_path / "run.toml")
    assert (draft.name, draft.rounds, draft.min_replicas, len(draft.stages)) == ("mine", 4, 1, 2)
    for why in ("no such file", "no text", "config.json", "has 4 layers", "1 to 64", "letters, digits"):
        assert why in done.stdout + done.stderr, why


@pytest.mark.parametrize("answers", ["", "{text}\n", "{text}\ny\ntiny\n1\n"])
def test_who_stops_answering_gets_no_run(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    """The end of input, and Ctrl-C, which a prompt cannot tell from it."""
    monkeypatch.setattr(sys, "stdin", Terminal(answers.format(text=text)))
    done = dlx("run", "new", tmp_path / "run.toml", code=130)
    assert "Aborted" not in done.stderr and not (tmp_path / "run.toml").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--data", "empty"], "--data empty: there is no text"),
        (["--data", "chat.jsonl"], "--model has to be a folder with a tokenizer and a chat template"),
        (["--data", "mixed"], "not UTF-8 text at byte 3"),
        (["--data", ".", "--model", "/etc"], "--model /etc"),
        (["--data", ".", "--name", "a b"], "--name a b"),
        (["--data", ".", "--licence", "x" * 201], "licence"),
        (["--data", ".", "--link", "0"], "--link 0"),
        (["--data", "nowhere"], "no such file or folder"),
        ([], "there is nobody to ask"),
        (["--data", ".", "--model", "nowhere"], "--model nowhere"),
        (["--data", ".", "--stages", "5"], "the model has 4 layers"),
        (["--data", ".", "--name", "a b"], "name"),
        (["--data", ".", "--device", "abacus"], "--device abacus"),
    ],
)
def test_what_cannot_be_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("text")
    if "chat.jsonl" in given:
        (tmp_path / "chat.jsonl").write_text(
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
        )
    if "mixed" in given:
        (tmp_path / "mixed").mkdir()
        for name, content in (("a.txt", b"text"), ("b.png", b"\x89PNG"), ("c.txt", "caf\xe9".encode("latin-1"))):
            (tmp_path / "mixed" / name).write_bytes(content)
    assert said in dlx("run", "new", "run.toml", "--public-data", *given, code=2).stderr
    assert not (tmp_path / "run.toml").exists()
