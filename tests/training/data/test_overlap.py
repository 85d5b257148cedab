"""Held-out text that is in the training data too: exact copies are left out, and what is left is measured."""

import hashlib
import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dlx.training.data import overlap as overlap_module
from dlx.training.data.overlap import BYTES, TOKENS, Overlap, overlap
from dlx.training.data.prepare import Preparation, prepare_folder
from dlx.training.data.shards import DataError, DataManifest, Shard
from dlx.training.recipe.recipe import BlobRef


def random_tokens(seed: int, count: int, values: int = 50_000) -> list[int]:
    return random.Random(seed).choices(range(1, values), k=count)


def data(folder: Path, train: Sequence[Sequence[int]], heldout: Sequence[Sequence[int]]) -> DataManifest:
    """Shards of just these tokens."""

    def shard(tokens: Sequence[int]) -> Shard:
        content = np.array(tokens, "<u2").tobytes()
        name = hashlib.sha256(content).hexdigest()
        (folder / name).write_bytes(content)
        return Shard(name, len(content), len(tokens), "cd" * 32)

    named = BlobRef("ab" * 32, 1)
    shards = [list(map(shard, each)) for each in (train, heldout)]
    return DataManifest(*shards, tokenizer=named, vocab_size=50_000, dtype="uint16")


def shared_by_hand(train: Sequence[Sequence[int]], heldout: Sequence[Sequence[int]], length: int) -> tuple[int, int]:
    def sequences(shards: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
        return {tuple(one[at : at + length]) for one in shards for at in range(len(one) - length + 1)}

    held = sequences(heldout)
    return len(held), len(held & sequences(train))


def test_it_counts_what_a_set_of_tuples_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap_module, "_CHUNK", 100)
    held = [random_tokens(1, 500), random_tokens(2, 30, values=3)]
    train = [
        random_tokens(3, 999) + held[0][100:250] + random_tokens(4, 77),
        held[0][300 : 300 + TOKENS],
        held[0][400 : 400 + TOKENS - 1],
        random_tokens(5, 2000, values=3),
    ]
    found = overlap(data(tmp_path, train, held), tmp_path)
    assert (found.sampled, found.shared) == shared_by_hand(train, held, TOKENS)
    assert found.shared >= 139 and found.length == TOKENS


def test_of_much_text_chance_draws_what_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap_module, "KEPT", 2000)
    held, other = random_tokens(1, 60_000), random_tokens(2, 60_000)
    found = overlap(data(tmp_path, [other, held[:15_000]], [held]), tmp_path)
    assert found.sampled == 2000 and found.part == pytest.approx(0.25, abs=0.03)
    assert overlap(data(tmp_path, [other], [held]), tmp_path).shared == 0
    assert overlap(data(tmp_path, [held], [held]), tmp_path).part == 1.0


def test_data_shorter_than_a_sequence_has_no_overlap(tmp_path: Path) -> None:
    short = random_tokens(1, TOKENS - 1)
    assert overlap(data(tmp_path, [short], [short]), tmp_path) == Overlap(TOKENS, 0, 0)
    assert overlap(data(tmp_path, [short], []), tmp_path).part == 0.0


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    made = data(tmp_path, [random_tokens(1, 400_000)] * 4, [random_tokens(2, 400_000)])
    seen: list[int] = []
    tracemalloc.start()
    overlap(made, tmp_path, seen.append)
    assert tracemalloc.get_traced_memory()[1] < 25e6
    tracemalloc.stop()
    assert sum(seen) == sum(shard.size for shard in made.train + made.heldout)


def documents(folder: Path, texts: Sequence[str]) -> Path:
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text)
    return folder


def split(folder: Path, manifest: DataManifest) -> tuple[list[bytes], list[bytes]]:
    train, held = (
        b"".join((folder / shard.sha256).read_bytes() for shard in shards)
        for shards in (manifest.train, manifest.heldout)
    )
    return train.split(b"\0")[:-1], held.split(b"\0")[:-1]


def test_a_copy_of_a_held_out_document_is_not_trained_on(tmp_path: Path) -> None:
    own = [f"document {number} " + "x" * number for number in range(20)]
    source = documents(tmp_path / "in", own * 2)
    preparation = Preparation([source], heldout=0.2)
    manifest = prepare_folder(preparation, tmp_path / "out")
    train, held = split(tmp_path / "out", manifest)
    assert held and not set(train) & set(held)
    assert set(train) | set(held) == {text.encode() for text in own}
    survey = preparation.survey
    assert len(train) + len(held) + survey.left_out.sum() == 40 and survey.left_out.any()
    assert sum(map(len, train + held)) + survey.sizes[survey.left_out].sum() == survey.total


def test_a_copy_of_the_document_whose_end_is_held_out_is_not_trained_on_either(tmp_path: Path) -> None:
    long = "one long document " * 500
    source = documents(tmp_path / "in", [long, "other text", long])
    preparation = Preparation([source], heldout=0.1)
    manifest = prepare_folder(preparation, tmp_path / "out")
    train, held = split(tmp_path / "out", manifest)
    assert list(preparation.survey.left_out) == [False, False, True] and held[1] == b"other text"
    assert [(one + held[0]).decode() for one in train] == [long], "the rest of it is"


def test_documents_that_are_all_the_same_leave_nothing_to_train_on(tmp_path: Path) -> None:
    source = documents(tmp_path / "in", ["the same text"] * 5)
    with pytest.raises(DataError, match="every document has the bytes of one that is held out"):
        prepare_folder(Preparation([source], heldout=0.3), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bytes_are_compared_by_longer_sequences(tmp_path: Path) -> None:
    texts = [" ".join(map(str, random_tokens(number, 200))) for number in range(10)]
    source = documents(
        tmp_path / "in", [text + after for text, after in zip(texts, texts[1:] + texts[:1], strict=True)]
    )
    preparation = Preparation([source], heldout=0.3)
    found = overlap(prepare_folder(preparation, tmp_path / "out"), tmp_path / "out")
    assert found.length == BYTES and not preparation.survey.left_out.any()
    assert 0 < found.part < 1, "each half of a document is in another one"
