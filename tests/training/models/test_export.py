import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models import weights
from dlx.training.models.export import ExportError, export
from dlx.training.models.model_files import INDEX, Folder, Form, read_split, split
from dlx.training.models.shapes import stage_shapes
from dlx.training.models.stages import StageModel
from dlx.training.models.weights import Dtype, WeightsError
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
    for stages in ([(0, 3)], SPLIT):
        manifest = tiny_run(stages)
        files = [blobs / blob.sha256 for blob in manifest.genesis]
        digests.add(export(manifest, files, tmp_path / f"{len(stages)}"))
    assert len(digests) == 1
    assert (tmp_path / "1" / "config.json").read_bytes() == (tmp_path / "2" / "config.json").read_bytes()


def test_the_tokenizer_gives_the_bytes_of_the_text(manifest: Manifest, stage_files: list[Path], tmp_path: Path) -> None:
    export(manifest, stage_files, tmp_path / "hf", Vocabulary.of_bytes())
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

    export(manifest, stage_files, tmp_path / "hf", Vocabulary.of_bytes())
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounded_weights_in_several_files_are_those_that_transformers_writes(
    dtype: Dtype, manifest: Manifest, stage_files: list[Path], tmp_path: Path
) -> None:
    whole = export(manifest, stage_files, tmp_path / "whole")
    assert export(manifest, stage_files, tmp_path / "ours", form=Form(dtype, 10_000)) == whole
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "theirs", max_shard_size=10_000)
    files, expected = ({path.name for path in (tmp_path / one).glob("model*")} for one in ("ours", "theirs"))
    assert files == expected and len(files) > 3
    for name in files:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()) and loaded.dtype == getattr(torch, dtype)
    assert torch.equal(loaded(IDS).logits, AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")(IDS).logits)


def test_the_files_of_an_index_are_read_and_what_names_none_is_refused(
    manifest: Manifest, stage_files: list[Path], tmp_path: Path
) -> None:
    form = Form(shard_bytes=10_000)
    export(manifest, stage_files, tmp_path / "model", form=form)
    files = split(manifest, form)
    assert read_split(manifest, tmp_path / "model") == files and len(files) > 3
    index = tmp_path / "model" / INDEX
    whole = json.loads(index.read_text())["weight_map"]
    for wrong in (["a"], {"a": 1}, 1, None, "../x.safetensors"):
        index.write_text(json.dumps({"weight_map": whole | {next(iter(whole)): wrong}}))
        with pytest.raises(WeightsError, match="expected names of files"):
            read_split(manifest, tmp_path / "model")
    sealed = [bytes.fromhex(blob.sha256) for blob in manifest.genesis]
    index.unlink()
    assert Folder(manifest, tmp_path / "model", files).stage_hashes() == sealed, "who knows them needs no index"


def test_rounding_is_torchs_and_what_no_number_is_near_is_refused() -> None:
    values = np.frombuffer(np.random.default_rng(0).bytes(1 << 16), np.float32)
    values = np.append(values[np.isfinite(values)], np.float32([0.0, -0.0, 1e-45, 3.38e38, 65519.0]))
    bits = torch.from_numpy(values).bfloat16()
    kept = torch.isfinite(bits)
    found = weights.rounded("x", values[kept.numpy()], "bfloat16")
    assert torch.equal(torch.from_numpy(found.view(np.int16)), bits[kept].view(torch.int16))
    small = values[np.abs(values) < 65519]
    assert np.array_equal(weights.rounded("x", small, "float16"), torch.from_numpy(small).half().numpy())
    for dtype, value in (("float16", 65520.0), ("bfloat16", 3.4e38), ("bfloat16", np.nan), ("float16", np.inf)):
        with pytest.raises(weights.WeightsError, match=f"x: holds a value that {dtype} does not have"):
            weights.rounded("x", np.float32([1, value]), dtype)


def test_a_weight_that_the_form_has_no_number_for_leaves_nothing_behind(
    manifest: Manifest, stage_files: list[Path], tmp_path: Path
) -> None:
    shapes = stage_shapes(manifest, 0)
    arrays = weights.read_arrays(stage_files[0], shapes)
    arrays["model.embed_tokens.weight"][3, 1] = 1e6
    weights.write(arrays, tmp_path / "large")
    with pytest.raises(ExportError, match=r"^model\.embed_tokens\.weight: holds a value that float16 does not have$"):
        export(manifest, [tmp_path / "large", *stage_files[1:]], tmp_path / "hf", form=Form("float16"))
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
