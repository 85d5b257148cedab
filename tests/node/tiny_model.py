"""A Hugging Face folder of a tiny Llama that reads bytes and has learned nothing."""

from pathlib import Path

from dlx.training.data.vocabulary import Vocabulary


def write_model(folder: Path, context: int, seed: int = 1) -> Path:
    """The folder itself; `context`: tokens that the model has room for."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=context, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(Vocabulary.of_bytes().content)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "Ā"}')
    return folder
