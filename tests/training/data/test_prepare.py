"""Documents as shards of a tokenizer's ids: what is in them, that they are always the same, and prepared folders."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from dlx.training.data import prepare, shards, tokenising, unfinished
from dlx.training.data.prepare import Preparation, adopt_folder, prepare_blobs, prepare_folder
from dlx.training.data.shards import DataError, DataManifest, Dataset, Split, TextError
from dlx.training.data.vocabulary import Vocabulary, tokenizer_problem
from tests.training import texts

TEXTS = texts.texts(30)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return texts.json_lines(tmp_path / "in" / "rows.jsonl", [{"text": text} for text in TEXTS])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return texts.tokenizer(tmp_path / "tokenizer.json")


def _ids(folder: Path, manifest: DataManifest, split: Split) -> list[int]:
    shards = manifest.shards(split)
    return [int(one) for shard in shards for one in np.fromfile(folder / shard.sha256, manifest.dtype)]


def _documents(ids: Sequence[int], separator: int, tokenizer: Path) -> list[str]:
    decoder, found, current = Tokenizer.from_file(str(tokenizer)), [], []
    for token in ids:
        if token == separator:
            found.append(decoder.decode(current))
            current = []
        else:
            current.append(token)
    assert not current, "every document ends with the separator"
    return found


def test_every_text_is_tokenised_on_its_own_and_ends_with_the_separator(
    rows: Path, tokenizer: Path, tmp_path: Path
) -> None:
    manifest = prepare_folder(Preparation([rows], 0.2, tokenizer), tmp_path / "out")
    train = _documents(_ids(tmp_path / "out", manifest, "train"), manifest.separator, tokenizer)
    held = _documents(_ids(tmp_path / "out", manifest, "heldout"), manifest.separator, tokenizer)
    assert sorted(train + held) == sorted(TEXTS)
    assert train == [text for text in TEXTS if text in train]
    size = sum(len(text.encode()) for text in TEXTS)
    assert 0.15 <= sum(len(text.encode()) for text in held) / size <= 0.2
    assert (manifest.dtype, manifest.vocab_size, manifest.separator) == ("uint16", 320, 0)
    content = tokenizer.read_bytes()
    assert manifest.tokenizer == shards.BlobRef(hashlib.sha256(content).hexdigest(), len(content))
    assert (tmp_path / "out" / hashlib.sha256(content).hexdigest()).read_bytes() == content
    expected = Tokenizer.from_file(str(tokenizer)).encode(train[0], add_special_tokens=False).ids
    assert _ids(tmp_path / "out", manifest, "train")[: len(expected)] == expected


def test_the_same_texts_give_the_same_bits_from_any_kind_of_file_in_any_portions(
    rows: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare_folder(Preparation([rows], 0.2, tokenizer), tmp_path / "a")
    monkeypatch.setattr(tokenising, "BATCH", 1)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert prepare_folder(Preparation([rows], 0.2, tokenizer), tmp_path / "b") == made
    bodies = texts.json_lines(tmp_path / "in2" / "rows.jsonl", [{"x": 1, "body": text} for text in TEXTS])
    assert prepare_folder(Preparation([bodies.parent], 0.2, tokenizer, field="body"), tmp_path / "c") == made


def test_a_long_document_is_cut_after_lines_alike_for_any_read_size(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenising, "PIECE", 64)
    for name, text in {"lines": "öne line\n" * 99, "words": "ünd " * 200, "wörd": "ü" * 401}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "long.txt").write_text(text)
        texts.json_lines(folder / "lines" / "long.jsonl", [{"text": text}])
        found = []
        for source in (folder / "long.txt", folder / "lines" / "long.jsonl"):
            manifest = prepare_folder(Preparation([source], 0.1, tokenizer), folder / source.suffix[1:])
            parts = [_ids(folder / source.suffix[1:], manifest, split) for split in ("train", "heldout")]
            assert "".join(_documents(parts[0] + parts[1], 0, tokenizer)) == text
            found.append(parts)
        whole = Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids
        assert len(found[0][0]) + len(found[0][1]) < 1.2 * len(whole)
        assert found[0] == found[1], "the file's pieces came in one, or in reads of their own"
        monkeypatch.setattr("dlx.training.data.formats._CHUNK", 7)
        assert prepare_folder(Preparation([folder / "long.txt"], 0.1, tokenizer), folder / "again").train
        assert _ids(folder / "again", shards.read_prepared(folder / "again"), "train") == found[0][0]
        monkeypatch.undo()
        monkeypatch.setattr(tokenising, "PIECE", 64)


def test_large_vocabularies_take_four_bytes_and_samples_come_out_as_they_went_in(rows: Path, tmp_path: Path) -> None:
    words = sorted({word for text in TEXTS for word in text.split()})
    vocabulary = {word: 70_000 + index for index, word in enumerate(words)} | {"</s>": 3, "[UNK]": 1}
    raw: dict[str, Any] = json.loads(texts.tokenizer(tmp_path / "t.json").read_text())
    raw["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    raw |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None, "added_tokens": []}
    (tmp_path / "t.json").write_text(json.dumps(raw))
    manifest = prepare_folder(Preparation([rows], 0.001, tmp_path / "t.json"), tmp_path / "out")
    assert (manifest.dtype, manifest.separator, manifest.vocab_size) == ("uint32", 3, 70_000 + len(words))
    expected = [token for text in TEXTS[:3] for token in [*(vocabulary[word] for word in text.split()), 3]]
    dataset = Dataset(manifest, tmp_path / "out")
    batch = dataset.batch("train", [0, 1], 16)
    assert batch.tolist() == [expected[:17], expected[16:33]]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_tokenizer_is_the_same_bytes_in_whatever_an_editor_makes_of_it(tmp_path: Path, encoding: str) -> None:
    path = texts.tokenizer(tmp_path / "tokenizer.json")
    plain = Vocabulary.read(path).content
    assert plain == path.read_bytes()
    path.write_text(plain.decode(), encoding=encoding, newline="")
    assert Vocabulary.read(path).content == plain


def test_the_separator_is_the_end_of_text_or_the_one_named(rows: Path, tmp_path: Path) -> None:
    plain = texts.tokenizer(tmp_path / "plain.json", ["<a>", "<b>"])
    both = texts.tokenizer(tmp_path / "both.json", ["</s>", texts.END])
    assert Vocabulary.read(both).separator == 1
    assert Vocabulary.read(both, "</s>").separator == 0
    assert Vocabulary.read(plain, "<b>").separator == Vocabulary.read(plain, 1).separator == 1
    for separator, reason in ((None, "name one"), ("<c>", "no token '<c>'"), (320, "no token of id"), (-1, "id -1")):
        with pytest.raises(DataError, match=reason):
            Vocabulary.read(plain, separator)
    with pytest.raises(DataError, match="without, byte 0 stands"):
        prepare_folder(Preparation([rows], separator="</s>"), tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 10_000,
        b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
        b'{"model": 5}',
    ],
)
def test_what_is_no_tokenizer_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json: "):
        Vocabulary.read(tmp_path / "t.json", 0)


def test_a_pointer_in_place_of_a_tokenizer_is_named_with_what_fetches_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n")
    with pytest.raises(DataError, match=r"tokenizer\.json: is a pointer of Git LFS .*: run `git lfs pull`"):
        Vocabulary.read(tmp_path / "tokenizer.json")


def test_a_tokenizer_that_draws_lots_is_refused_and_one_that_truncates_does_not(rows: Path, tmp_path: Path) -> None:
    path = texts.tokenizer(tmp_path / "t.json")
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"model": raw["model"] | {"dropout": 0.1}}))
    with pytest.raises(DataError, match="dropout"):
        Vocabulary.read(path)
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(raw | {"truncation": truncation}))
    assert len(Vocabulary.read(path).encode([TEXTS[9]])[0]) > 4


def test_a_tokenizer_that_breaks_down_over_a_text_is_one_line(tmp_path: Path) -> None:
    path = texts.tokenizer(tmp_path / "t.json")
    second = [{"Sequence": {"id": "B", "type_id": 0}}]  # a text that a template of one does not have
    template = {"type": "TemplateProcessing", "single": second, "pair": second, "special_tokens": {}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": template}))
    vocabulary = Vocabulary.read(path)
    for use in (lambda: vocabulary.encode(["a"]), vocabulary.around):
        with pytest.raises(TextError, match=r"\Athe tokenizer cannot encode the text \(.+\)\Z"):
            use()


def test_text_that_is_not_utf8_is_named_by_its_byte_and_what_cannot_go_on_leaves_nothing(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_shards: None
) -> None:
    monkeypatch.setattr(tokenising, "PIECE", 64)
    source, out = tmp_path / "a.txt", tmp_path / "out"
    source.write_bytes(b"fine words " * 50 + b"\xe9t\xe9")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 text at byte 550: write it as UTF-8"):
        prepare_folder(Preparation([source], 0.01, tokenizer), out)
    assert not out.exists()
    with pytest.raises(DataError, match="no such file"):
        prepare_folder(Preparation([tmp_path / "b.txt"]), out)
    assert not out.exists()
    source.write_bytes(b"fine words " * 50)
    assert prepare_folder(Preparation([source], 0.01, tokenizer), out).train, "the mended file is not another"
    source.write_bytes(b"\xe9t\xe9" * 500)
    assert prepare_folder(Preparation([source], raw=True), tmp_path / "bytes").train, "bytes may be any"
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 text at byte 0: "):
        prepare_folder(Preparation([source], 0.01, tokenizer, raw=True), tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 256)
    monkeypatch.setattr(unfinished, "SHARD_BYTES", 256)
    monkeypatch.setattr(tokenising, "BATCH", 1)


def _interrupt(out: Path, preparation: Preparation) -> None:
    def progress(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_folder(preparation, out, progress)


def test_an_interrupted_preparation_is_no_data_and_the_next_one_goes_on_and_leaves_no_trace_of_it(
    rows: Path, tokenizer: Path, tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation, out = Preparation([rows], 0.2, tokenizer), tmp_path / "out"
    expected = prepare_folder(preparation, tmp_path / "expected")
    _interrupt(out, preparation)
    with pytest.raises(DataError, match="has not finished"):
        shards.read_prepared(out)
    (out / ".abc.tmp").write_bytes(b"half a shard")
    encoded: list[str] = []
    encode = Vocabulary.encode
    monkeypatch.setattr(Vocabulary, "encode", lambda self, texts: [encoded.extend(texts), encode(self, texts)][1])
    assert prepare_folder(preparation, out) == expected
    assert 5 < len(encoded) < 20, "what was in shards is not tokenised again"
    assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "expected"))
    assert all((out / name).read_bytes() == (tmp_path / "expected" / name).read_bytes() for name in os.listdir(out))
    with pytest.raises(DataError, match="prepared data already"):
        prepare_folder(preparation, out)
    with pytest.raises(DataError, match=r"not empty \(it holds rows.jsonl\)"):
        prepare_folder(preparation, rows.parent)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "datasets"])
def test_an_entry_has_no_byte_0_where_that_ends_a_document(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    rows = ["fine"] * 20 + ["two\0documents"]
    match kind:
        case "jsonl":
            source = texts.json_lines(tmp_path / "x.jsonl", [{"text": row} for row in rows])
        case "parquet":
            source = texts.parquet(tmp_path / "x.parquet", {"text": rows})
        case _:
            source = texts.saved_to_disk(tmp_path / "x", rows)
    with pytest.raises(DataError, match=f"{source}, (line 21|entry 20): its text holds a zero byte"):
        prepare_folder(Preparation([source]), tmp_path / "bytes")
    assert prepare_folder(Preparation([source], tokenizer=tokenizer), tmp_path / "ids").train, (
        "no token is a byte there"
    )


def test_without_shared_memory_one_process_tokenises(
    rows: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*given: object) -> None:
        raise OSError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(tokenising, "ProcessPoolExecutor", no_locks)
    monkeypatch.setattr(prepare, "BATCH", 1)  # or so little text takes one process
    made = prepare_folder(Preparation([rows], 0.2, tokenizer, workers=2), tmp_path / "two")
    assert made == prepare_folder(Preparation([rows], 0.2, tokenizer), tmp_path / "one")


def test_two_at_once_do_not_write_into_one_folder(rows: Path, tmp_path: Path) -> None:
    preparation, out, refused = Preparation([rows]), tmp_path / "out", list[str]()

    def progress(done: int, total: int | None) -> None:
        with pytest.raises(DataError) as error:
            prepare_folder(preparation, out)
        refused.append(str(error.value))

    assert prepare_folder(preparation, out, progress) == prepare_folder(preparation, tmp_path / "expected")
    assert {f"{out}: another process prepares data there; wait for it, or name another"} == {*refused}


def test_bytes_go_on_too_and_a_lost_shard_is_made_again(rows: Path, tmp_path: Path, small_shards: None) -> None:
    preparation, out = Preparation([rows]), tmp_path / "out"
    expected = prepare_folder(preparation, tmp_path / "expected")
    _interrupt(out, preparation)
    (out / expected.train[1].sha256).unlink()
    assert prepare_folder(preparation, out) == expected
    assert (out / expected.train[1].sha256).exists()


def test_blobs_go_on_where_a_kept_file_says_and_other_data_begins_anew(
    rows: Path, tokenizer: Path, tmp_path: Path, small_shards: None
) -> None:
    preparation, blobs, kept, said = Preparation([rows], 0.2, tokenizer), tmp_path / "blobs", tmp_path / "kept", []
    expected = prepare_blobs(preparation, tmp_path / "expected")

    def progress(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    def begun() -> None:
        with pytest.raises(KeyboardInterrupt):
            prepare_blobs(preparation, blobs, progress, kept, said.append)

    begun()
    whole = list(blobs.iterdir())
    assert len(whole) > 3 and not said
    assert prepare_blobs(preparation, blobs, kept=kept, say=said.append) == expected
    assert said == [f"going on after {len(whole)} shards that an interrupted call wrote"]
    assert {path.name for path in blobs.iterdir()} == {path.name for path in (tmp_path / "expected").iterdir()}
    begun()
    other = replace(preparation, heldout=0.1)
    assert prepare_blobs(other, blobs, kept=kept, say=said.append) == prepare_blobs(other, tmp_path / "other")
    assert len(said) == 2, "the second call began where the first had ended, the third anew"


def test_a_begun_folder_takes_nothing_else(rows: Path, tokenizer: Path, tmp_path: Path, small_shards: None) -> None:
    begun, out = Preparation([rows], 0.2, tokenizer), tmp_path / "out"
    _interrupt(out, begun)
    for other, reason in (
        (replace(begun, heldout=0.1), "begun with another heldout"),
        (replace(begun, field="body"), "has no key 'body'"),
        (replace(begun, tokenizer=None), "begun with another tokenizer"),
        (replace(begun, separator="a"), "begun with another separator"),
    ):
        with pytest.raises(DataError, match=reason):
            prepare_folder(other, out)
    (out / unfinished.NAME).write_bytes((out / unfinished.NAME).read_bytes()[:-9])
    whole = prepare_folder(replace(begun, heldout=0.1), out)
    assert whole == prepare_folder(replace(begun, heldout=0.1), tmp_path / "expected"), "what it cannot read is nothing"
    _interrupt(tmp_path / "changed", begun)
    os.utime(rows, ns=(1, 1))
    with pytest.raises(DataError, match="begun from files that have changed since, or others"):
        prepare_folder(begun, tmp_path / "changed")


@pytest.mark.slow
def test_processes_give_the_same_tokens_in_the_same_order(tokenizer: Path, tmp_path: Path) -> None:
    source = texts.json_lines(tmp_path / "rows.jsonl", [{"text": f"{text} {n} " * 900} for n, text in enumerate(TEXTS)])
    assert source.stat().st_size > 3 * tokenising.BATCH
    one = prepare_folder(Preparation([source], 0.1, tokenizer), tmp_path / "one")
    assert prepare_folder(Preparation([source], 0.1, tokenizer, workers=3), tmp_path / "three") == one
    (tmp_path / "bad.txt").write_bytes(b"fine words " * 200_000 + b"\xe9")
    with pytest.raises(DataError, match=r"bad\.txt: not UTF-8 text at byte 2200000: "):
        prepare_folder(Preparation([tmp_path / "bad.txt"], 0.1, tokenizer, raw=True, workers=2), tmp_path / "bad")


def test_the_blobs_of_others_are_left_alone(rows: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.write_bytes(b"a genesis")
    with pytest.raises(DataError, match=r"not empty \(it holds abab"):
        prepare_folder(Preparation([rows]), blob.parent)
    assert blob.read_bytes() == b"a genesis"


def test_shards_never_become_documents(rows: Path, tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    source.mkdir()
    shutil.copy(rows, source)
    with pytest.raises(DataError, match="lies in"):
        prepare_folder(Preparation([source]), source / "sub" / "out")
    assert not (source / "sub").exists()
    prepare_folder(Preparation([rows]), tmp_path / "out")
    with pytest.raises(DataError, match="holds prepared data"):
        prepare_folder(Preparation([tmp_path]), tmp_path.parent / f"{tmp_path.name}-other")
    (tmp_path / "out" / "data.json").write_text('{"text": "document"}')
    assert prepare_folder(Preparation([source, tmp_path / "out"], raw=True), tmp_path / "new").train
    with pytest.raises(DataError, match="cannot be made a folder"):
        prepare_folder(Preparation([rows]), rows)


def test_a_prepared_folder_becomes_the_same_blobs_and_a_damaged_one_none(
    rows: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Preparation([rows], 0.2, tokenizer)
    prepare_folder(recipe, tmp_path / "out")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    blob = adopt_folder(tmp_path / "out", tmp_path / "a")
    assert blob == prepare_blobs(recipe, tmp_path / "direct")
    assert sorted(os.listdir(tmp_path / "a")) == sorted(os.listdir(tmp_path / "direct"))
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EXDEV, "another file system")))
    assert adopt_folder(tmp_path / "out", tmp_path / "b") == blob
    assert list(shards.check(shards.read_data_manifest(tmp_path / "b" / blob.sha256), tmp_path / "b")) == []
    shard = shards.read_prepared(tmp_path / "out").heldout[0]
    (tmp_path / "out" / shard.sha256).write_bytes(bytes(shard.size))
    with pytest.raises(DataError, match=f"{shard.sha256}: its bytes do not match"):
        adopt_folder(tmp_path / "out", tmp_path / "c")
    assert not list((tmp_path / "c").iterdir())


def test_tokens_that_the_vocabulary_does_not_have_and_another_tokenizer_are_found(
    rows: Path, tokenizer: Path, tmp_path: Path
) -> None:
    made = prepare_folder(Preparation([rows], 0.2, tokenizer), tmp_path / "out")
    assert tokenizer_problem(made, tmp_path / "out") is None
    wrong = np.array([5, 320, 7], "<u2").tobytes()
    name = hashlib.sha256(wrong).hexdigest()
    (tmp_path / "out" / name).write_bytes(wrong)
    hostile = DataManifest(
        train=[shards.Shard(name, 6, 3, "cd" * 32)],
        heldout=[],
        tokenizer=made.tokenizer,
        vocab_size=320,
        dtype="uint16",
    )
    (problem,) = shards.check(hostile, tmp_path / "out")
    assert problem == (name, "holds token 320, which is not below vocab_size (320)", False)
    larger = DataManifest(train=[], heldout=[], tokenizer=made.tokenizer, vocab_size=321, dtype="uint16")
    assert "a tokenizer of 320 tokens, not of 321" in (tokenizer_problem(larger, tmp_path / "out") or "")
    shutil.copy(rows, tmp_path / "out" / made.tokenizer.sha256)
    assert "not a tokenizer.json" in (tokenizer_problem(made, tmp_path / "out") or "")


def test_raw_changes_nothing_of_what_is_text(rows: Path, tokenizer: Path, tmp_path: Path) -> None:
    (rows.parent / "a.txt").write_text("\ufeffwords", encoding="utf-8")
    plain, raw = (Preparation([rows.parent], 0.2, tokenizer, raw=raw) for raw in (False, True))
    assert prepare_folder(plain, tmp_path / "plain") == prepare_folder(raw, tmp_path / "raw")


def test_a_full_disk_is_named_and_the_same_call_goes_on_once_there_is_room(
    rows: Path, tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparation, out = Preparation([rows]), tmp_path / "out"
    expected = prepare_folder(preparation, tmp_path / "expected")
    written, write = 0, prepare.write_blob

    def full(folder: Path, chunks: list[bytes]) -> bytes:
        nonlocal written
        written += 1
        if written > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(folder, chunks)

    monkeypatch.setattr(prepare, "write_blob", full)
    with pytest.raises(DataError, match=f"^{out}: No space left on device; the same again goes on"):
        prepare_folder(preparation, out)
    kept = {path.name for path in out.iterdir()}
    assert {shard.sha256 for shard in expected.train[:2]} < kept
    monkeypatch.setattr(prepare, "write_blob", write)
    assert prepare_folder(preparation, out) == expected
