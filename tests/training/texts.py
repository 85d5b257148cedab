"""Small files of every kind that data is made of, and a tokenizer, for the tests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"


def texts(count: int, words: int = 40) -> list[str]:
    return [
        " ".join(f"wörd{(index * word) % 13}" + ("\n" if word % 9 == 8 else "") for word in range(words + index))
        for index in range(count)
    ]


def tokenizer(path: Path, special: Sequence[str] = (END,), size: int = 320) -> Path:
    """A byte-level BPE, which can spell any text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    varied = [f"{a}{b}{c}{d}" for a in "strg" for b in "aeiou" for c in "lmnr" for d in "aeo"]
    made.train_from_iterator([*texts(20), " ".join(varied)], trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(path))
    return path


def json_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=3)
    return path


def saved_to_disk(folder: Path, rows: Sequence[Any], shards: int = 2, column: str = "text") -> Path:
    """What `datasets.Dataset.save_to_disk` writes for one column: of text, or of what is named otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    names, size = [f"data-{index:05}-of-{shards:05}.arrow" for index in range(shards)], -(-len(rows) // shards)
    for index, name in enumerate(names):
        kind = pa.string() if column == "text" else None
        table = pa.table({column: pa.array(rows[index * size : (index + 1) * size], kind)})
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names], "_fingerprint": "0123456789abcdef",
        "_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False,
        "_split": "train",
    }  # fmt: skip
    info = {"citation": "", "description": "", "features": {"text": {"dtype": "string", "_type": "Value"}}}
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2))
    return folder


def dataset_dict(folder: Path, splits: dict[str, Sequence[str | None]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    for name, rows in splits.items():
        saved_to_disk(folder / name, rows)
    return folder
