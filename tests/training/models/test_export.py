import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.export import ExportError, export
from dlx.training.models.stages import StageModel
from dlx.training.recipe.manifest import Manifest

SPLIT = [(0, 1), (1, 3)]
IDS = torch.randint(0, 256, (3, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def manifest(tiny_run: Callable[..., Manifest]) -> Manifest:
    return tiny_run(SPLIT)


@pytest.fixture
def stage_files(manifest: Manifest, blobs: Path) -> list[Path]:
    return [blobs / blob.sha256 for blob in manifest.genesis]


def test_transformers_loads_the_folder_and_computes_the_same(
    manifest: Manifest,
    stage_files: list[Path],
    build_stages: Callable[[Manifest], list[StageModel]],
    tmp_path: Path,
) -> None:
    digest = export(manifest, stage_files, tmp_path / "hf")
    assert hashlib.sha256((tmp_path / "hf" / "model.safetensors").read_bytes()).digest() == digest
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values())
    hidden = IDS
    for stage in build_stages(manifest):
        hidden = stage(hidden)
    assert model.dtype == torch.float32
    assert torch.equal(model(IDS).logits, hidden)


def test_the_split_does_not_change_the_exported_model(
    tiny_run: Callable[..., Manifest], blobs: Path, tmp_path: Path
) -> None:
    digests = set()
    for split in ([(0, 3)], SPLIT):
        manifest = tiny_run(split)
        files = [blobs / blob.sha256 for blob in manifest.genesis]
        digests.add(export(manifest, files, tmp_path / f"{len(split)}"))
    assert len(digests) == 1
    assert (tmp_path / "1" / "config.json").read_bytes() == (tmp_path / "2" / "config.json").read_bytes()


def test_the_tokenizer_gives_the_bytes_of_the_text(manifest: Manifest, stage_files: list[Path], tmp_path: Path) -> None:
    export(manifest, stage_files, tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "A line,  two spaces\tand ünïcode: ½ 漢字 🙂\r\n\n'tis <s> done "
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.eos_token_id == 0
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"


def test_a_run_with_a_tokenizer_exports_its_very_bytes(
    manifest: Manifest, stage_files: list[Path], tmp_path: Path
) -> None:
    tokens = {"<eos>": 0, "line": 1, "file": 2, "?": 3}
    model = {"type": "WordLevel", "vocab": tokens, "unk_token": "?"}
    added = {"id": 0, "content": "<eos>", "special": True}
    added |= {key: False for key in ("single_word", "lstrip", "rstrip", "normalized")}
    raw = {"version": "1.0", "added_tokens": [added], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    raw |= {key: None for key in ("truncation", "padding", "normalizer", "post_processor", "decoder")}
    content = json.dumps(raw).encode()
    export(manifest, stage_files, tmp_path / "hf", Vocabulary.parse(content, None, "test"))
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == content
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer("line file line")["input_ids"] == [1, 2, 1]
    assert tokenizer.eos_token == "<eos>"
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["eos_token_id"] == 0


def test_text_generation_works_out_of_the_box(manifest: Manifest, stage_files: list[Path], tmp_path: Path) -> None:
    from transformers import pipeline

    export(manifest, stage_files, tmp_path / "hf")
    answer = pipeline("text-generation", model=str(tmp_path / "hf"))("line", max_new_tokens=4, return_full_text=True)
    assert answer[0]["generated_text"].startswith("line")


def test_nothing_is_overwritten(manifest: Manifest, stage_files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "hf"
    out.mkdir()
    export(manifest, stage_files, out)
    with pytest.raises(ExportError, match="already exists"):
        export(manifest, stage_files, out)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ExportError, match="already exists"):
        export(manifest, stage_files, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_wrong_stage_files_leave_nothing_behind(manifest: Manifest, stage_files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"one file per stage \(2\), got 1"):
        export(manifest, stage_files[:1], tmp_path / "hf")
    with pytest.raises(ExportError, match="stage 0: "):
        export(manifest, stage_files[::-1], tmp_path / "hf")
    with pytest.raises(ExportError, match="stage 1: none"):
        export(manifest, [stage_files[0], tmp_path / "none"], tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_clear_line(
    manifest: Manifest, stage_files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export(manifest, stage_files, tmp_path / "file" / "hf")
