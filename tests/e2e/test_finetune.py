"""Fine-tuning a small local checkpoint: two real nodes, one pipeline, from a Hugging Face folder to another."""

import json
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dlx.node.devnet.devnet import Devnet
from dlx.training.data.vocabulary import Vocabulary
from tests.e2e.devnets import BLOCK_TIME, Watched
from tests.node.command import dlx
from tests.training import texts

ROUNDS, STAGES = 2, 2

DRAFT = """\
name = "tune"
rounds = {rounds}
stages = [[0, 1], [1, 2]]
confirmations = 0

[model]
source = "base"

[data]
source = ["{source}"]
sequence_length = 32
batch_size = 4
micro_batches = 2

[inner]
lr = 1e-2

[plan]
inner_steps = 20

[timing]
straggler_grace = 3
proposal_timeout = 2
round_timeout = 60
eviction_time = 60
"""

ALL_DRAWN = """
[audit]
share = 1
"""

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@contextmanager
def _trained(root: Path, text: str, replicas: int, stages: int) -> Iterator[list[object]]:
    """The options that read the run once its rounds are sealed: its nodes have ended, their blobs are there."""
    devnet = Devnet.create(root, ROUNDS, replicas, stages, lambda line: None, text, BLOCK_TIME)
    try:
        devnet.start()
        watched = Watched(devnet)
        watched.until("both rounds sealed", lambda: watched.sealed_rounds() == ROUNDS)
        devnet.stop_nodes()
        blobs = [one for name in devnet.names for one in ("--blobs", devnet.folder(name).blobs)]
        yield ["--datadir", root, "--rpc-url", devnet.rpc_url, *blobs]
    finally:
        devnet.stop()


@pytest.mark.slow
def test_conversations_are_learnt_in_three_stages_and_the_pulled_folder_asks_as_they_did(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    root, source = tmp_path / "devnet", tmp_path / "chat.jsonl"
    rows = [
        [
            {"role": "user", "content": f"Say {index % 5} again, {index}."},
            {"role": "assistant", "content": f"{index % 5}!"},
        ]
        for index in range(200)
    ]
    texts.json_lines(source, [{"messages": row} for row in rows])
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=320, max_position_embeddings=128, **sizes)).save_pretrained(
        tmp_path / "base"
    )
    texts.tokenizer(tmp_path / "base" / "tokenizer.json", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps(settings))
    chat = f'chat = true\ntokenizer = "{tmp_path / "base" / "tokenizer.json"}"\nsequence_length = 127'
    text = DRAFT.format(rounds=ROUNDS, source=source).replace('"base"', f'"{tmp_path / "base"}"')
    text = text.replace("sequence_length = 32", chat).replace("[[0, 1], [1, 2]]", "[[0, 1], [1, 2], [2, 3]]")

    with _trained(root, text + ALL_DRAWN, 1, 3) as where:
        dlx("pull", *where, "--round", "2", "--out", tmp_path / "model")
        losses = [
            json.loads(dlx("evaluate", *where, "--round", version, "--json").stdout)["heldout"]["loss"]
            for version in ("0", "2")
        ]
        _assert_trained_honestly(where)
    assert losses[1] < losses[0] - 1
    chosen, before = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("model", "base"))
    asked = [tokenizer.apply_chat_template(rows[7][:1], add_generation_prompt=True) for tokenizer in (chosen, before)]
    assert asked[0] == asked[1]
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")


@pytest.mark.slow
def test_a_tied_checkpoint_is_tuned_in_two_stages_and_pulled(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    root, source = tmp_path / "devnet", Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    base = _base(tmp_path / "base")
    text = DRAFT.format(rounds=ROUNDS, source=source).replace('"base"', f'"{tmp_path / "base"}"')

    with _trained(root, text, 1, STAGES) as where:
        for version in ("0", "2"):
            dlx("pull", *where, "--round", version, "--out", tmp_path / f"model-{version}")

    first, tuned = (AutoModelForCausalLM.from_pretrained(tmp_path / f"model-{version}") for version in (0, 2))
    said = [{"role": "user", "content": "Hello"}]
    chosen = AutoTokenizer.from_pretrained(tmp_path / "model-2")
    assert chosen.apply_chat_template(said, tokenize=False) == "Hello"
    ids = torch.frombuffer(bytearray(source.read_bytes()[5000:9096]), dtype=torch.uint8).long().view(64, 64)
    with torch.inference_mode():
        assert torch.equal(first(ids).logits, base(ids).logits)
        before, after = (float(model(ids, labels=ids).loss) for model in (first, tuned))
    assert after < before - 1
    assert not tuned.config.tie_word_embeddings


ADAPTER = """
[adapter]
rank = 8
alpha = 64
"""


@pytest.mark.slow
def test_an_adapter_is_trained_by_two_replicas_audited_pulled_and_loaded_by_peft(tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    root, source = tmp_path / "devnet", Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    base = _base(tmp_path / "base")
    text = DRAFT.format(rounds=ROUNDS, source=source).replace('"base"', f'"{tmp_path / "base"}"') + ADAPTER + ALL_DRAWN
    text = text.replace("[[0, 1], [1, 2]]", "[[0, 2]]")

    with _trained(root, text, 2, 1) as where:
        dlx("pull", *where, "--out", tmp_path / "adapter")
        dlx("pull", *where, "--merged", "--out", tmp_path / "whole")
        for folder in ("adapter", "whole"):
            dlx("verify", tmp_path / folder, *where)
        _assert_trained_honestly(where)
        evaluated = json.loads(dlx("evaluate", *where, "--json").stdout)

    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    ids = torch.frombuffer(bytearray(source.read_bytes()[5000:9096]), dtype=torch.uint8).long().view(64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, whole(ids).logits)
        after = float(loaded(ids, labels=ids).loss)
        with loaded.disable_adapter():
            before = float(loaded(ids, labels=ids).loss)
    assert after < before - 0.05 and evaluated["heldout"]["loss"] < before - 0.05
    assert whole.config.tie_word_embeddings
    adapter, all_of_it = tmp_path / "adapter" / "adapter_model.safetensors", tmp_path / "whole" / "model.safetensors"
    assert adapter.stat().st_size < all_of_it.stat().st_size / 2

    (tmp_path / "asked.jsonl").write_text('{"prompt": "def add_argument(", "expected": "self", "match": "contains"}\n')
    asked = ["--chat", tmp_path / "asked.jsonl", "--max-tokens", "8", "--json"]
    folders = [["adapter", "--base", tmp_path / "base"], ["whole"]]
    answers = [json.loads(dlx("evaluate", tmp_path / name, *more, *asked).stdout) for name, *more in folders]
    assert answers[0] == answers[1] and answers[0]["model"].startswith("dlx:")


def _assert_trained_honestly(where: list[object]) -> None:
    """By a replay of all stages of the first round: the nodes may have ended before they served the last one's work."""
    report = json.loads(dlx("audit", *where, "--level", "3", "--rounds", "0", "--json").stdout)
    training = report["training"]
    assert not report["failed"] and training["drawn"] == training["replayed"] == training["honest"] > 0


def _base(folder: Path) -> Any:
    """A tied model of random weights, as Hugging Face folders have them: of more rows than there are tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=260, max_position_embeddings=64, tie_word_embeddings=True, **sizes)
    base = LlamaForCausalLM(config).eval()
    base.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(Vocabulary.of_bytes().content)
    (folder / "chat_template.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}")
    return base
