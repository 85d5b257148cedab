"""A run on conversations, from a file of messages and a model's folder: what it learns, and what it keeps of both."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from dlx.node.home.datadir import DataDir
from dlx.node.runs import create
from dlx.training.data.prepare import Preparation, prepare_folder
from dlx.training.data.shards import DataError, Dataset
from dlx.training.inner.loop import InnerLoop
from dlx.training.models import weights
from dlx.training.models.batches import documents, parted
from dlx.training.recipe.manifest import Manifest, parse
from dlx.training.recipe.strict import ManifestError
from dlx.training.recipe.usage import parse as parse_usage
from tests.node.cli.test_cli import DRAFT
from tests.node.command import dlx
from tests.node.runs.test_data import _agreed, _Ledger
from tests.training import texts

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = 'source = ["../chat.jsonl"]\nchat = true\ntokenizer = "../model/tokenizer.json"'


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    found = [
        {
            "messages": [
                {"role": "user", "content": f"How many are {index % 9}?"},
                {"role": "assistant", "content": f"So many: {index % 9}."},
                {"role": "user", "content": f"Thanks {index}"},
                {"role": "assistant", "content": "You are welcome."},
            ]
        }
        for index in range(60)
    ]
    texts.json_lines(tmp_path / "chat.jsonl", found)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(vocab_size=320, max_position_embeddings=128, **sizes)).save_pretrained(folder)
    texts.tokenizer(folder / "tokenizer.json", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _create(tmp_path: Path, name: str, data: str, length: int = 127) -> tuple[Manifest, Path, list[str]]:
    (tmp_path / name).mkdir(exist_ok=True)
    head, _, rest = DRAFT.partition("[model.config]")
    rest = rest[rest.index("[data]") :].replace('source = ["text/*.txt"]', data)
    text = f'{head}[model]\nsource = "../model"\n{rest}'.replace("[[0, 1], [1, 2]]", "[[0, 2]]")
    (tmp_path / name / "run.toml").write_text(text.replace("sequence_length = 32", f"sequence_length = {length}"))
    folder, told = DataDir(tmp_path / name / "home"), list[str]()
    folder.create()
    created = create.create_run(tmp_path / name / "run.toml", folder, _Ledger(), _agreed, told.append)
    return parse((folder.blobs / created.manifest).read_bytes()), folder.blobs, told


def test_a_run_learns_the_answers_and_nothing_else(rows: list[dict[str, Any]], model: Path, tmp_path: Path) -> None:
    manifest, blobs, told = _create(tmp_path, "a", CHAT)
    assert manifest.data.chat and "60 conversations in rows of 128 tokens; 0 are cut" in "\n".join(told)
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    loop = InnerLoop(manifest, 0, dataset)
    loop.load_weights(weights.read(blobs / manifest.genesis[0].sha256, loop.shapes))
    stated = loop.step(0, 50, range(4), None, None)

    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    words = dataset.batch("train", dataset.ids(manifest.data.seed, range(4), 127), 127)
    total, count, answers = 0.0, 0, set[str]()
    with torch.inference_mode():
        for ids, labels in documents(parted(words, rows=True)):
            losses = functional.cross_entropy(theirs(ids).logits[0], labels[0], reduction="none", ignore_index=-100)
            total, count = total + float(losses.sum()), count + int((labels >= 0).sum())
            answers.add(tokenizer.decode(labels[labels >= 0]))
            text = tokenizer.decode([*ids[0], *(labels[0, -1:][labels[0, -1:] >= 0])])
            assert text in {tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows}
    assert stated == pytest.approx(total / count, rel=1e-6)
    assert answers <= {f"So many: {n}.<|im_end|>\nYou are welcome.<|im_end|>\n" for n in range(9)}
    for step in range(1, 30):
        last = loop.step(step, 50, range(4), None, None)
    assert last < stated - 0.5


def test_a_run_keeps_the_template_that_made_its_text(rows: list[dict[str, Any]], model: Path, tmp_path: Path) -> None:
    manifest, blobs, _ = _create(tmp_path, "a", CHAT)
    assert manifest.usage is not None
    usage = parse_usage((blobs / manifest.usage.sha256).read_bytes())
    assert (usage.chat_templates, usage.tokens.eos_token) == ({"default": TEMPLATE}, "<|im_end|>")
    (tmp_path / "own.jinja").write_bytes((own := TEMPLATE.replace("}}\n", "}}\r\n") + "{# ü #}").encode())
    manifest, blobs, _ = _create(tmp_path, "b", f'{CHAT}\ntemplate = "../own.jinja"')
    assert manifest.usage is not None
    assert parse_usage((blobs / manifest.usage.sha256).read_bytes()).chat_templates == {"default": own}
    dataset = Dataset.open(blobs / manifest.data.manifest.sha256, blobs)
    assert dataset.manifest.rows is not None
    assert (blobs / dataset.manifest.rows.template.sha256).read_bytes().decode() == own


def test_what_the_template_refuses_is_named_before_anything_is_frozen(
    rows: list[dict[str, Any]], model: Path, tmp_path: Path
) -> None:
    refuses = "{% if messages[0].content == 'How many are 4?' %}{{ raise_exception('not that') }}{% endif %}"
    (tmp_path / "own.jinja").write_text(TEMPLATE + refuses)
    with pytest.raises(DataError, match=r"chat.jsonl, line 5: the chat template refuses it \(not that\)"):
        _create(tmp_path, "a", f'{CHAT}\ntemplate = "../own.jinja"')
    assert not any(DataDir(tmp_path / "a" / "home").blobs.iterdir())
    given = ["--source", tmp_path / "chat.jsonl", "--chat", "--sequence-length", "127", "--out", tmp_path / "out"]
    assert "conversations need a tokenizer, and a chat template" in dlx("data", "prepare", *given, code=2).stderr
    assert not (tmp_path / "out").exists()


def test_prepared_conversations_make_the_same_run(rows: list[dict[str, Any]], model: Path, tmp_path: Path) -> None:
    given = ["--source", tmp_path / "chat.jsonl", "--chat", "--tokenizer", model / "tokenizer.json"]
    said = dlx("data", "prepare", *given, "--sequence-length", "127", "--out", tmp_path / "out").stdout
    assert "60 conversations in rows of 128 tokens; 0 are cut, 0 left out" in said
    found = json.loads(dlx("data", "check", tmp_path / "out", "--json").stdout)
    assert found["rows"]["conversations"] == 60 and found["problems"] == [] and found["dtype"] == "uint32"
    first, *_ = _create(tmp_path, "a", CHAT)
    again, *_ = _create(tmp_path, "b", 'prepared = "../out"\nchat = true')
    assert again.data == first.data and again.usage == first.usage
    assert "go together" in dlx("data", "prepare", *given, "--out", tmp_path / "x", code=2).stderr


@pytest.mark.parametrize(
    ("data", "length", "reason"),
    [
        ('source = ["../chat.jsonl"]\nchat = true', 127, "data.tokenizer: missing: conversations"),
        ('source = ["../chat.jsonl"]\ntemplate = "x.jinja"', 127, "data.template: .*: set data.chat too"),
        ('prepared = "../out"\nchat = true\ntemplate = "x.jinja"', 127, "data.template: was decided"),
        ('prepared = "../out"', 127, "data.chat: the prepared data has conversations in rows of 128 tokens"),
        ('prepared = "../out"\nchat = true', 64, "data.sequence_length: .* rows of 128 tokens"),
        ('prepared = "../plain"\nchat = true', 64, "data.chat: the prepared data has documents"),
    ],
)
def test_what_does_not_fit_is_refused(
    data: str, length: int, reason: str, rows: list[dict[str, Any]], model: Path, tmp_path: Path
) -> None:
    tokenizer = model / "tokenizer.json"
    chat = Preparation([tmp_path / "chat.jsonl"], 0.1, tokenizer, chat=True, sequence_length=127)
    prepare_folder(chat, tmp_path / "out")
    plain = texts.json_lines(tmp_path / "in" / "plain.jsonl", [{"text": text} for text in texts.texts(30)])
    prepare_folder(Preparation([plain], 0.1, tokenizer), tmp_path / "plain")
    with pytest.raises(ManifestError, match=reason):
        _create(tmp_path, "a", data, length)
