"""What `pull` writes is the model that was trained, for whoever loads it by transformers 5 or by transformers 4: logits
and ids of every family, and what its source said of its use."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.export import export
from dlx.training.models.stages import StageModel
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Model
from dlx.training.recipe.usage import read_usage
from tests.patience import patient
from tests.training import texts
from tests.training.models import loading
from tests.training.recipe.test_families import CASES, SPLITS, full

REPOSITORY = Path(__file__).resolve().parents[3]
TRANSFORMERS4 = REPOSITORY / ".transformers4"  # `make test-slow` installs it
TEMPLATE = "{{ bos_token }}{% for one in messages %}<|{{ one.role }}|>{{ one.content }}<|im_end|>\n{% endfor %}"
SPECIAL = ("<|endoftext|>", "<s>", "<|im_end|>", "<pad>")  # the ids 0 to 3
NO_DEFAULTS = {"rope_theta": 500.0, "rotary_emb_base": 500.0, "rope_local_base_freq": 300.0}
SIZE = 320  # of the models' vocabulary: more than the tokenizer's


def source(folder: Path) -> Path:
    """The files beside the weights of an instruction-tuned model."""
    texts.tokenizer(folder / "tokenizer.json", SPECIAL, size=303)
    settings = {
        "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False},
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "unk_token": None,
        "additional_special_tokens": ["<|im_end|>", "<|nowhere|>"],
        "tokenizer_class": "LlamaTokenizerFast",
        "chat_template": TEMPLATE,
        "auto_map": {"AutoTokenizer": ["evil.Evil", None]},
    }
    generation = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 999], "bos_token_id": 1}
    ids = {"bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 3}
    for name, table in (("tokenizer_config", settings), ("generation_config", generation), ("config", ids)):
        (folder / f"{name}.json").write_text(json.dumps(table))
    return folder


@pytest.fixture(scope="module")
def pulled(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_run: Callable[..., Manifest],
    build_stages: Callable[[Manifest], list[StageModel]],
    blobs: Path,
) -> Iterator[dict[tuple[str, bool], tuple[Path, torch.Tensor]]]:
    """Of each family, with a tokenizer and with bytes: the folder, and the logits of what was trained."""
    base, found = source(tmp_path_factory.mktemp("source")), {}
    vocabulary, usage = Vocabulary.read(base / "tokenizer.json"), read_usage(base)[0]
    for case in CASES:
        for tokenised in (True, False):
            config = full(CASES[case][0] | {"vocab_size": SIZE if tokenised else 256})
            config |= {key: value for key, value in NO_DEFAULTS.items() if key in config}
            manifest = tiny_run(SPLITS[1], model=Model(config))
            folder = tmp_path_factory.mktemp("pulled") / "model"
            files = [blobs / blob.sha256 for blob in manifest.genesis]
            export(manifest, files, folder, *((vocabulary, usage) if tokenised else (Vocabulary.of_bytes(),)))
            hidden = loading.IDS
            with torch.inference_mode():
                for stage in build_stages(manifest):
                    hidden = stage(hidden)
            found[case, tokenised] = folder, hidden
    yield found


def _loaded(folders: list[Path], packages: Path | None) -> list[dict[str, Any]]:
    """As another process has them, with the packages of a folder before those of this environment."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    done = subprocess.run(
        [sys.executable, loading.__file__, *folders],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(500),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("release", [5, pytest.param(4, marks=pytest.mark.slow)])
def test_every_family_is_loaded_as_it_was_trained(
    release: int, pulled: dict[tuple[str, bool], tuple[Path, torch.Tensor]]
) -> None:
    packages = None if release == 5 else TRANSFORMERS4
    if packages is not None and not packages.is_dir():
        pytest.skip("missing: transformers 4: make .transformers4/.installed")
    found = _loaded([folder for folder, _ in pulled.values()], packages)
    wrong = {}
    for ((case, tokenised), (folder, logits)), one in zip(pulled.items(), found, strict=True):
        assert one["release"].startswith(f"{release}.")
        expected = _expected(case, tokenised, folder)
        differs = {key: (one[key], value) for key, value in expected.items() if one[key] != value}
        distance = float((torch.tensor(one["logits"]) - logits).abs().max())
        if distance > 1e-5:
            differs["logits"] = distance
        if differs:
            wrong[case, tokenised] = differs
    assert not wrong


def _expected(case: str, tokenised: bool, folder: Path) -> dict[str, Any]:
    shared = {
        "class": CASES[case][1].__name__,
        "dtype": "torch.float32",
        "report": {},
        "inputs": ["attention_mask", "input_ids"],
        "decoded": list(loading.TEXTS),
    }
    if not tokenised:
        ids = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
        return shared | {
            "ids": [list(text.encode()) for text in loading.TEXTS],
            "size": 256,
            "tokens": {"bos_token": None, "eos_token": "Ā", "pad_token": None, "unk_token": None},
            "config": ids,
            "generation": {"do_sample": True, "eos_token_id": 0, "temperature": 1.0, "top_p": 1.0},
            "chat": None,
        }
    vocabulary = Vocabulary.read(folder / "tokenizer.json")
    return shared | {
        "ids": vocabulary.encode(list(loading.TEXTS)),
        "size": vocabulary.size,
        "tokens": {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": None},
        "config": {"bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 3},
        "generation": {"do_sample": True, "eos_token_id": [2, 0], "temperature": 0.6, "top_p": 0.9},
        "chat": "<s><|user|>Hello<|im_end|>\n<|assistant|>Good day<|im_end|>\n",
    }
