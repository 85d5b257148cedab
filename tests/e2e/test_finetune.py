"""Fine-tuning a small local checkpoint: two real nodes, one pipeline, from a Hugging Face folder to another."""

import sysconfig
from pathlib import Path

import pytest

from dlx.node.devnet.devnet import Devnet
from dlx.training.data.vocabulary import Vocabulary
from tests.e2e.devnets import BLOCK_TIME, Watched
from tests.node.command import dlx

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


@pytest.mark.slow
def test_a_tied_checkpoint_is_tuned_in_two_stages_and_pulled(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    root, source = tmp_path / "devnet", Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=256, max_position_embeddings=64, tie_word_embeddings=True, **sizes)
    base = LlamaForCausalLM(config).eval()
    base.save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "tokenizer.json").write_bytes(Vocabulary.of_bytes().content)
    (tmp_path / "base" / "chat_template.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}")
    text = DRAFT.format(rounds=ROUNDS, source=source).replace('"base"', f'"{tmp_path / "base"}"')

    devnet = Devnet.create(root, ROUNDS, 1, STAGES, lambda line: None, text, BLOCK_TIME)
    try:
        devnet.start()
        watched = Watched(devnet)
        watched.until("both rounds sealed", lambda: watched.sealed_rounds() == ROUNDS)
        devnet.stop_nodes()
        where: list[object] = ["--datadir", root, "--rpc-url", devnet.rpc_url]
        for name in devnet.names:
            where += ["--blobs", devnet.folder(name).blobs]
        for version in ("0", "2"):
            dlx("pull", *where, "--round", version, "--out", tmp_path / f"model-{version}")
    finally:
        devnet.stop()

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
