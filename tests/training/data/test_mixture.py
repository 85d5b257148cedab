"""What is found out before anything is made of the data, and how often each source is trained on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlx.training.data import near, prepare, shards, tokenising, unfinished
from dlx.training.data.prepare import Preparation, prepare_folder
from dlx.training.data.shards import DataError, DataManifest, Split
from dlx.training.data.survey import Portion
from tests.training import texts


def _rows(path: Path, name: str, count: int) -> Path:
    rows = [
        {"text": f"{name} {number} " + " ".join(f"{name}{number * at}" for at in range(9))} for number in range(count)
    ]
    return texts.json_lines(path, rows)


def _documents(folder: Path, manifest: DataManifest, split: Split) -> list[str]:
    content = b"".join((folder / shard.sha256).read_bytes() for shard in manifest.shards(split))
    return content.decode().split("\0")[:-1]


def _of(documents: list[str], name: str) -> list[str]:
    return [one for one in documents if one.startswith(name)]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    return _rows(tmp_path / "in" / "books.jsonl", "book", 200)


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    return _rows(tmp_path / "in" / "talks.jsonl", "talk", 50)


@pytest.mark.parametrize("epochs", [0.5, 1.0, 2.0, 2.5])
def test_a_source_counts_as_often_as_it_is_to(epochs: float, books: Path, talks: Path, tmp_path: Path) -> None:
    given = [Portion([books], "books"), Portion([talks], "talks", epochs=epochs)]
    made = prepare_folder(Preparation(given, 0.2), tmp_path / "out")
    train, held = (_documents(tmp_path / "out", made, split) for split in ("train", "heldout"))
    assert len(_of(train, "book")) == len(set(_of(train, "book"))) and len(held) == len(set(held))
    assert not set(train) & set(held) and len(set(train) | set(held)) <= 250
    found = _of(train, "talk")
    kept = 50 - len(_of(held, "talk"))
    assert abs(len(found) - epochs * kept) < 12 and len(set(found)) <= kept
    assert max(map(found.count, found)) == np.ceil(epochs)
    assert [one.name for one in made.sources] == ["books", "talks"]
    for name, source in zip(("book", "talk"), made.sources, strict=True):
        assert source.tokens == sum(len(one.encode()) + 1 for one in _of(train, name))
    assert prepare_folder(Preparation(given, 0.2), tmp_path / "again") == made


def test_weights_are_kept_and_all_is_as_long_as_it_was(books: Path, talks: Path, tmp_path: Path) -> None:
    given = [Portion([books], "books", weight=1), Portion([talks], "talks", weight=3)]
    preparation = Preparation(given, 0.1)
    made = prepare_folder(preparation, tmp_path / "out")
    one, three = (source.tokens for source in made.sources)
    assert three / one == pytest.approx(3, rel=0.1)
    whole = prepare_folder(Preparation([books, talks], 0.1), tmp_path / "whole")
    assert one + three == pytest.approx(whole.tokens("train"), rel=0.05) and whole.sources == []
    with pytest.raises(DataError, match="have a weight each"):
        prepare_folder(Preparation([given[0], talks], 0.1), tmp_path / "no")


def test_sources_alternate_and_no_document_is_torn(
    books: Path, talks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "BATCH", 500)
    monkeypatch.setattr(tokenising, "BATCH", 100)
    given = [Portion([books], "books"), Portion([talks], "talks")]
    made = prepare_folder(Preparation(given, 0.1), tmp_path / "out")
    train = _documents(tmp_path / "out", made, "train")
    halves = [train[: len(train) // 2], train[len(train) // 2 :]]
    counts = [len(_of(half, "talk")) for half in halves]
    assert all(15 < count < 35 for count in counts), counts
    tokenizer = texts.tokenizer(tmp_path / "tokenizer.json")
    for workers in (1, 2):
        ids = prepare_folder(Preparation(given, 0.1, tokenizer, workers=workers), tmp_path / f"ids{workers}")
        assert sum(source.tokens for source in ids.sources) == ids.tokens("train")
    assert ids == shards.read_prepared(tmp_path / "ids1")


def test_an_interrupted_mixture_goes_on(
    books: Path, talks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (shards, unfinished):
        monkeypatch.setattr(module, "SHARD_BYTES", 1024)
    monkeypatch.setattr(tokenising, "BATCH", 1)
    monkeypatch.setattr(prepare, "BATCH", 300)
    preparation = Preparation([Portion([books], "books"), Portion([talks], "talks", epochs=1.5)], 0.1)
    expected = prepare_folder(preparation, tmp_path / "expected")

    def progress(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_folder(preparation, tmp_path / "out", progress)
    with pytest.raises(DataError, match="begun with another mixture"):
        prepare_folder(Preparation([Portion([books], "books"), Portion([talks], "talks")], 0.1), tmp_path / "out")
    assert prepare_folder(preparation, tmp_path / "out") == expected


def test_a_held_out_set_of_ones_own(books: Path, talks: Path, tmp_path: Path) -> None:
    with open(books, "ab") as file:
        file.write(talks.read_bytes().splitlines(keepends=True)[7])
    made = prepare_folder(Preparation([books], held_set=[talks]), tmp_path / "out")
    train, held = (_documents(tmp_path / "out", made, split) for split in ("train", "heldout"))
    assert len(held) == len(_of(held, "talk")) == 50 and len(train) == len(_of(train, "book")) == 200
    assert made.sources == []
    with pytest.raises(DataError, match="every document has the bytes of one that is held out"):
        prepare_folder(Preparation([talks], held_set=[talks]), tmp_path / "same")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="the held-out set: there is no text"):
        prepare_folder(Preparation([talks], held_set=[tmp_path / "empty"]), tmp_path / "none")


def test_copies_and_near_copies_are_counted_and_copies_left_out_where_that_is_wanted(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = tmp_path / "in" / "more.jsonl"
    more.write_bytes(books.read_bytes() + books.read_bytes().replace(b'"}', b' end"}'))
    both = Preparation([books.parent], 0.1)
    found = both.survey.counts()
    assert (found["documents"], found["copies"]) == (600, 200) and found["near_copies"] == pytest.approx(0.5, abs=0.05)
    assert "600 documents; 33.3% are copies of another, and" in str(both.survey)
    monkeypatch.setattr(near, "KEPT", 100)
    assert replace(both).survey.near.part == pytest.approx(0.5, abs=0.15), "of a sample"
    once = Preparation([books.parent], 0.1, drop_copies=True)
    made = prepare_folder(once, tmp_path / "out")
    train, held = (_documents(tmp_path / "out", made, split) for split in ("train", "heldout"))
    assert len(train + held) == len(set(train + held)) == 400 and once.survey.left_out.sum() == 200


def test_tokens_are_guessed_before_they_are_counted(books: Path, tmp_path: Path) -> None:
    given = Preparation([books], 0.1, texts.tokenizer(tmp_path / "tokenizer.json"))
    made = prepare_folder(given, tmp_path / "out")
    exact = made.tokens("train") + made.tokens("heldout")
    assert given.survey.tokens(given.vocabulary) == pytest.approx(exact, rel=0.1)
    assert given.survey.tokens(None) == given.survey.total + 200


def test_one_bad_file_of_many_is_met_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(300):
        (folder / f"{number:04}.txt").write_text(f"text {number}")
    (folder / "0299.txt").write_bytes(b"caf\xe9")
    heard = list[tuple[int, int]]()
    preparation = Preparation([folder], looked=lambda done, total: heard.append((done, total)))
    with pytest.raises(DataError, match=r"0299\.txt: not UTF-8 text at byte 3"):
        prepare_folder(preparation, tmp_path / "out")
    assert not (tmp_path / "out").exists() and heard[-1] == (299, 300)
