"""What llama.cpp itself makes of a GGUF file: the folder's ids and logits. Skipped without llama-cpp-python."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dlx.training.models.export import export
from dlx.training.models.gguf_file import FILE
from dlx.training.models.model_files import Form
from dlx.training.recipe.manifest import Manifest
from tests.training.models.loading import TEXTS
from tests.training.models.test_gguf import CUTS, MODELS, USAGE, make_run

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is built by hand: CONTRIBUTING.md")

# Of the largest logit: with matrices of two bytes llama.cpp rounds what it multiplies them with too.
TOLERANCE = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}


def _opened(path: Path) -> Any:
    exact = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False}
    return llama_cpp.Llama(str(path), n_ctx=32, n_threads=1, logits_all=True, verbose=False, **exact)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", MODELS)
def test_llama_cpp_computes_what_the_folder_does(
    case: str, dtype: Any, tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    manifest, files = make_run(tiny_run, blobs, MODELS[case])
    for name, form in (("hf", Form()), ("gguf", Form(dtype, gguf=True))):
        export(manifest, files, tmp_path / name, CUTS["qwen2"], USAGE, form)
    ids = torch.randint(0, 320, (1, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")(ids).logits[0].numpy()
    llama = _opened(tmp_path / "gguf" / FILE)
    llama.eval(ids[0].tolist())
    assert np.abs(llama.scores[:32] - expected).max() <= TOLERANCE[dtype] * np.abs(expected).max()


@pytest.mark.parametrize("cut", CUTS)
def test_llama_cpp_cuts_text_as_the_folder_does(
    cut: str, tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    manifest, files = make_run(tiny_run, blobs, MODELS["llama"])
    for name, form in (("hf", Form()), ("gguf", Form(gguf=True))):
        export(manifest, files, tmp_path / name, CUTS[cut], USAGE, form)
    llama, tokenizer = _opened(tmp_path / "gguf" / FILE), AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in (unicodedata.normalize("NFC", text) for text in TEXTS):  # llama.cpp composes no characters
        assert llama.tokenize(text.encode(), add_bos=True, special=True) == tokenizer(text)["input_ids"]
    assert llama.metadata["tokenizer.chat_template"] == tokenizer.chat_template
    assert (llama.token_bos(), llama.token_eos()) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
