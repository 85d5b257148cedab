"""`python loading.py FOLDER ...` with whichever transformers is installed: what it makes of each pulled folder, as one
JSON object a line. Imports nothing of ours, as nobody who loads such a folder does."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, __version__

TEXTS = (
    "A line,  two spaces\tand ünïcode: ½ 漢字 🙂\r\n\n'tis don't DON'T 12345 done ",
    "e\u0301 is not \u00e9, and \u0100 is a letter",
    "<|endoftext|> spelled <|im_end|> out <s> <pad> </s>",
)
CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
IDS = torch.arange(3 * 16).view(3, 16) * 5 % 256


def load(folder: Path) -> dict[str, Any]:
    capped = json.loads((folder / "config.json").read_text())["model_type"] == "gemma2"
    options = {"attn_implementation": "eager"} if capped else {}  # by itself release 4 leaves the cap of scores out
    loaded = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    model, report = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)  # a pair, because of what was asked for
    tokenizer = AutoTokenizer.from_pretrained(folder)
    generation = GenerationConfig.from_pretrained(folder)
    with torch.inference_mode():
        logits = model.eval()(IDS).logits
    encoded = [tokenizer(text, add_special_tokens=False) for text in TEXTS]
    return {
        "release": __version__,
        "class": type(model).__name__,
        "dtype": str(model.dtype),
        "report": {key: sorted(map(str, value)) for key, value in report.items() if value},
        "logits": logits.tolist(),
        "ids": [one["input_ids"] for one in encoded],
        "inputs": sorted(encoded[0]),
        "decoded": [tokenizer.decode(one["input_ids"]) for one in encoded],
        "size": len(tokenizer),
        "tokens": {key: getattr(tokenizer, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")},
        "config": {key: getattr(model.config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "generation": {
            "do_sample": generation.do_sample,
            "eos_token_id": generation.eos_token_id,
            "temperature": generation.temperature or 1.0,  # 5 leaves the default out
            "top_p": generation.top_p or 1.0,
        },
        "chat": tokenizer.apply_chat_template(CHAT, tokenize=False) if tokenizer.chat_template else None,
    }


if __name__ == "__main__":
    for one in sys.argv[1:]:
        print(json.dumps(load(Path(one))))
