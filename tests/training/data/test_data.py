import hashlib
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import rfc8785

from dlx.training.data import shards
from dlx.training.data.order import WINDOW
from dlx.training.data.prepare import Preparation, prepare, prepare_blobs
from dlx.training.data.rows import BEGINS, SILENT
from dlx.training.data.shards import DataDamaged, DataError, Dataset, parse_data_manifest
from dlx.training.models.batches import IGNORED, counted, parted
from dlx.training.recipe.recipe import BlobRef


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def _stream(blobs: Path, ref: BlobRef, split: shards.Split) -> bytes:
    manifest = parse_data_manifest((blobs / ref.sha256).read_bytes())
    return b"".join((blobs / shard.sha256).read_bytes() for shard in manifest.shards(split))


def test_every_document_ends_up_whole_in_one_split_in_sorted_order(corpus: Path, tmp_path: Path) -> None:
    ref = prepare([corpus], tmp_path)
    train = _stream(tmp_path, ref, "train").split(b"\0")
    held = _stream(tmp_path, ref, "heldout").split(b"\0")
    assert train.pop() == held.pop() == b""
    texts = [path.read_bytes() for path in sorted(corpus.iterdir())]
    assert sorted(train + held) == sorted(texts)
    assert train == [text for text in texts if text in train]
    assert 0.03 <= sum(map(len, held)) / sum(map(len, texts)) <= 0.05


def test_the_same_files_give_the_same_blobs_anywhere(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "texts"
    shutil.copytree(corpus, copy)
    first = prepare([corpus], tmp_path / "a")
    assert prepare([copy], tmp_path / "b") == first
    assert prepare(sorted(copy.iterdir(), reverse=True), tmp_path / "c") == first
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(
        p.name for p in (tmp_path / "b").iterdir()
    )
    for path in (tmp_path / "a").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_the_split_does_not_change_from_one_release_to_the_next(tmp_path: Path) -> None:
    files = {f"{index}.txt": bytes([65 + index]) * 10 for index in range(20)}
    ref = prepare([_write(tmp_path / "texts", files)], tmp_path / "blobs")
    assert _stream(tmp_path / "blobs", ref, "heldout") == b"B" * 10 + b"\0"


@pytest.mark.parametrize("files", [{"all.txt": b"x" * 10_000}, {"a": b"a" * 9000, "b": b"b" * 900, "c": b"c" * 100}])
def test_few_or_large_files_still_leave_some_text_held_out(tmp_path: Path, files: dict[str, bytes]) -> None:
    ref = prepare([_write(tmp_path / "texts", files)], tmp_path / "blobs")
    train, held = (_stream(tmp_path / "blobs", ref, split).replace(b"\0", b"") for split in ("train", "heldout"))
    assert sorted(train + held) == sorted(b"".join(files.values()))
    assert len(held) == 500


def test_shards_are_bounded_and_samples_stay_inside_them(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _stream(tmp_path, prepare([corpus], tmp_path), "train")
    monkeypatch.setattr(shards, "SHARD_BYTES", 1000)
    ref = prepare([corpus], tmp_path)
    assert _stream(tmp_path, ref, "train") == whole
    dataset = Dataset.open(tmp_path / ref.sha256, tmp_path)
    samples = dataset.len_samples("train", 16)
    assert samples == sum((shard.tokens - 1) // 16 for shard in dataset.manifest.train)
    rows = dataset.batch("train", range(samples), 16).numpy()
    expected = []
    for start in range(0, len(whole), 1000):
        shard = np.frombuffer(whole[start : start + 1000], np.uint8)
        expected += [shard[at : at + 17] for at in range(0, len(shard) - 16, 16)]
    assert (rows == np.stack(expected)).all()


def test_progress_reaches_the_total_and_hidden_and_empty_files_do_not_count(tmp_path: Path) -> None:
    texts = _write(tmp_path / "texts", {"a.txt": b"x" * 50, "b/c.txt": b"y" * 50, ".git/x": b"no", "empty.txt": b""})
    seen: list[tuple[int, int]] = []
    ref = prepare([texts], tmp_path / "blobs", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (100, 100)
    assert b"no" not in _stream(tmp_path / "blobs", ref, "train")


def test_sources_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        prepare([tmp_path / "none"], tmp_path / "blobs")
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="void: there is no text in it"):
        prepare([tmp_path / "void"], tmp_path / "blobs")


def test_a_shard_is_looked_at_when_it_is_needed_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlx.training.data.shards.SHARD_BYTES", 64)
    (tmp_path / "text").write_bytes(bytes(range(256)) * 4)
    ref = prepare_blobs(Preparation([tmp_path / "text"], raw=True), tmp_path)
    dataset = Dataset.open(tmp_path / ref.sha256, tmp_path)
    kept, *others = dataset.manifest.train
    for shard in {one.sha256 for one in others} - {kept.sha256}:
        (tmp_path / shard).unlink()
    assert dataset.batch("train", [0], 8).shape == (1, 9)
    with pytest.raises(DataDamaged, match="No such file") as missing:
        dataset.batch("train", [(kept.tokens - 1) // 8], 8)
    assert missing.value.blob.hex() == others[0].sha256


@pytest.mark.parametrize("damage", ["a bit", "shorter", "gone"])
def test_a_damaged_shard_is_named_so_that_another_copy_is_had(corpus: Path, tmp_path: Path, damage: str) -> None:
    ref = prepare([corpus], tmp_path)
    dataset = Dataset.open(tmp_path / ref.sha256, tmp_path)
    shard = tmp_path / dataset.manifest.train[0].sha256
    content = bytearray(shard.read_bytes())
    if damage == "gone":
        shard.unlink()
    else:
        content[5] ^= 1
        shard.write_bytes(content if damage == "a bit" else content[:-1])
    with pytest.raises(DataDamaged) as refused:
        dataset.batch("train", [0], 16)
    assert refused.value.blob.hex() == shard.name
    content[5] ^= damage != "gone"
    shard.write_bytes(content)
    assert dataset.batch("train", [0], 16).shape == (1, 17)


def test_a_shard_that_is_cut_short_or_overwritten_in_place_while_it_is_read_from_is_had_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlx.training.data.shards.OPEN_SHARDS", 1)
    monkeypatch.setattr("dlx.training.data.shards.SHARD_BYTES", 4096)
    ref = prepare([corpus], tmp_path)
    dataset = Dataset.open(tmp_path / ref.sha256, tmp_path)
    first, second = dataset.manifest.train[:2]
    other = (first.tokens - 1) // 16
    path, good = tmp_path / first.sha256, dataset.batch("train", [0], 16)
    content, changed = path.read_bytes(), path.stat().st_mtime_ns
    os.truncate(path, 8)
    with pytest.raises(DataDamaged) as short:
        dataset.batch("train", [0], 16)
    assert short.value.blob.hex() == first.sha256
    path.write_bytes(content)
    assert dataset.batch("train", [0], 16).equal(good)
    path.write_bytes(bytes(len(content)))
    os.utime(path, ns=(changed, changed))
    dataset.batch("train", [other], 16)  # the first is closed
    with pytest.raises(DataDamaged) as zeros:
        dataset.batch("train", [0], 16)
    assert zeros.value.blob.hex() == first.sha256 != second.sha256


def test_a_shard_stays_open_while_it_is_read_though_another_thread_has_it_give_way(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlx.training.data.shards.OPEN_SHARDS", 1)
    monkeypatch.setattr("dlx.training.data.shards.SHARD_BYTES", 4096)
    ref = prepare([corpus], tmp_path)
    dataset, pread = Dataset.open(tmp_path / ref.sha256, tmp_path), os.pread
    good, last = dataset.batch("train", [0], 16), dataset.len_samples("train", 16) - 1

    def interrupted(descriptor: int, size: int, at: int) -> bytes:
        monkeypatch.setattr(os, "pread", pread)
        dataset.batch("train", [last], 16)
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", interrupted)
    assert dataset.batch("train", [0], 16).equal(good)


def test_a_damaged_data_manifest_is_named(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / prepare([corpus], tmp_path).sha256
    path.write_bytes(b"{}")
    with pytest.raises(DataDamaged, match="do not match its name"):
        Dataset.open(path, tmp_path)


def test_a_shard_of_tokens_beyond_the_vocabulary_is_never_trained_on(tmp_path: Path) -> None:
    content = np.arange(100, dtype="<u2").tobytes()
    name = hashlib.sha256(content).hexdigest()
    (tmp_path / name).write_bytes(content)
    shard = {"sha256": name, "size": 200, "tokens": 100, "root": "cd" * 32}
    beyond = {"tokenizer": {"sha256": "cd" * 32, "size": 9}, "vocab_size": 99, "separator": 9, "dtype": "uint16"}
    manifest = parse_data_manifest(_hostile(lambda raw: raw.update(beyond, train=[shard])))
    with pytest.raises(DataError, match="holds token 99, which is not below vocab_size") as refused:
        Dataset(manifest, tmp_path).batch("train", [0], 8)
    assert not isinstance(refused.value, DataDamaged), "no other copy is asked for"


def test_a_blob_that_nothing_can_make_what_the_manifest_says_is_not_asked_for_again(tmp_path: Path) -> None:
    content = b"x" * 100
    name = hashlib.sha256(content).hexdigest()
    (tmp_path / name).write_bytes(content)
    shard = {"sha256": name, "size": 101, "tokens": 101, "root": "cd" * 32}
    manifest = parse_data_manifest(_hostile(lambda raw: raw.update(train=[shard] * 1000)))
    read: list[int] = []
    assert [problem.again for problem in shards.check(manifest, tmp_path, read.append)] == [False]
    assert read == [101], "a shard that is listed a thousand times is read once"


BPE = {
    "tokenizer": {"sha256": "cd" * 32, "size": 9},
    "vocab_size": 1000,
    "separator": 999,
    "dtype": "uint16",
    "train": [{"sha256": "ab" * 32, "size": 100, "tokens": 50, "root": "cd" * 32}],
}


CHAT = BPE | {
    "dtype": "uint32",
    "train": [{"sha256": "ab" * 32, "size": 80, "tokens": 20, "root": "cd" * 32}],
    "rows": {
        "tokens": 5,
        "template": {"sha256": "ee" * 32, "size": 9},
        "conversations": 4,
        "cut": 0,
        "left_out": 0,
    },
}


def _hostile(change: Callable[[dict], object]) -> bytes:
    shard = {"sha256": "ab" * 32, "size": 100, "tokens": 100, "root": "cd" * 32}
    raw = {"tokenizer": "bytes", "vocab_size": 256, "dtype": "uint8", "train": [shard], "heldout": [], "separator": 0}
    raw |= {"format": 4, "rows": None, "sources": []}
    change(raw)
    return rfc8785.dumps(raw)


def test_rows_are_samples(tmp_path: Path) -> None:
    words = np.arange(20, dtype="<u4")
    words[[0, 5, 10, 15]] |= BEGINS | SILENT
    words[12] |= SILENT
    name = hashlib.sha256(words.tobytes()).hexdigest()
    (tmp_path / name).write_bytes(words.tobytes())
    shard = {"sha256": name, "size": 80, "tokens": 20, "root": "cd" * 32}
    manifest = parse_data_manifest(_hostile(lambda raw: raw.update(CHAT, train=[shard])))
    data = Dataset(manifest, tmp_path)
    assert data.len_samples("train", 4) == 4 and data.len_samples("train", 3) == 0
    batch = parted(data.batch("train", [2, 0], 4), rows=True)
    assert batch.ids.tolist() == [[10, 11, 12, 13], [0, 1, 2, 3]]
    assert batch.labels.tolist() == [[11, IGNORED, 13, 14], [1, 2, 3, 4]]
    assert batch.begins is not None and batch.begins.tolist() == [[True, False, False, False]] * 2
    assert int(counted(data.batch("train", [2, 0], 4))) == 7
    with pytest.raises(DataError, match="no sample of 5 tokens"):
        shards.sample_order(manifest, 0, 5)


@pytest.mark.parametrize(("word", "wrong"), [(BEGINS | 3, "first token whose loss counts"), (1000, "holds token 1000")])
def test_rows_that_no_preparation_makes_are_refused(word: int, wrong: str, tmp_path: Path) -> None:
    words = np.full(20, word, "<u4")
    name = hashlib.sha256(words.tobytes()).hexdigest()
    (tmp_path / name).write_bytes(words.tobytes())
    shard = {"sha256": name, "size": 80, "tokens": 20, "root": "cd" * 32}
    manifest = parse_data_manifest(_hostile(lambda raw: raw.update(CHAT, train=[shard])))
    with pytest.raises(DataError, match=wrong) as refused:
        Dataset(manifest, tmp_path).batch("train", [0], 4)
    assert not isinstance(refused.value, DataDamaged)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        _hostile(lambda raw: raw.pop("dtype")),
        _hostile(lambda raw: raw.update(format=2)),
        _hostile(lambda raw: raw.update(CHAT, tokenizer="bytes", vocab_size=256, separator=0)),
        _hostile(lambda raw: raw.update(CHAT, dtype="uint16")),
        _hostile(lambda raw: raw.update(CHAT, rows=CHAT["rows"] | {"tokens": 1})),
        _hostile(lambda raw: raw.update(CHAT, rows=CHAT["rows"] | {"tokens": 6})),
        _hostile(lambda raw: raw.update(CHAT, rows=CHAT["rows"] | {"conversations": 0})),
        _hostile(
            lambda raw: raw.update(CHAT, rows=CHAT["rows"] | {"template": {"sha256": "ee" * 32, "size": 1 << 20}})
        ),
        _hostile(lambda raw: raw.update(CHAT, rows=CHAT["rows"] | {"template": {"sha256": "ab" * 32, "size": 9}})),
        _hostile(lambda raw: raw.update(CHAT, rows=CHAT["rows"] | {"template": CHAT["tokenizer"]})),
        _hostile(lambda raw: raw.update(dtype="pickle")),
        _hostile(lambda raw: raw.update(extra=1)),
        _hostile(lambda raw: raw.update(vocab_size=300)),
        _hostile(lambda raw: raw.update(separator=1)),
        _hostile(lambda raw: raw.update(dtype="uint16")),
        _hostile(lambda raw: raw.update(tokenizer="file")),
        _hostile(lambda raw: raw.update(BPE, tokenizer={"sha256": "../x", "size": 1})),
        _hostile(lambda raw: raw.update(BPE, tokenizer={"sha256": "ab" * 32, "size": 1 << 30})),
        _hostile(lambda raw: raw.update(BPE, dtype="uint32")),
        _hostile(lambda raw: raw.update(BPE, vocab_size=1 << 17)),
        _hostile(lambda raw: raw.update(BPE, vocab_size=1 << 40)),
        _hostile(lambda raw: raw.update(BPE, separator=1000)),
        _hostile(
            lambda raw: raw.update(BPE, train=[{"sha256": "ab" * 32, "size": 100, "tokens": 100, "root": "cd" * 32}])
        ),
        _hostile(lambda raw: raw["train"][0].update(size=shards.SHARD_BYTES + 1, tokens=shards.SHARD_BYTES + 1)),
        _hostile(lambda raw: raw["train"][0].update(tokens=99)),
        _hostile(lambda raw: raw["heldout"].append({"sha256": "ab" * 32, "size": 99, "tokens": 99, "root": "cd" * 32})),
        _hostile(lambda raw: raw.update(BPE, tokenizer={"sha256": "ab" * 32, "size": 100})),
        _hostile(lambda raw: raw["train"][0].update(sha256="../../etc/passwd")),
        _hostile(lambda raw: raw.update(sources=[{"name": "a", "tokens": 60}, {"name": "b", "tokens": 41}])),
        _hostile(lambda raw: raw.update(sources=[{"name": "a", "tokens": -1}])),
        _hostile(lambda raw: raw.update(sources=[{"name": "two\nlines", "tokens": 1}])),
        _hostile(lambda raw: raw.update(sources=[{"name": "a", "tokens": 0}] * 1001)),
        _hostile(lambda raw: None) + b" ",
    ],
)
def test_a_hostile_data_manifest_is_refused(content: bytes) -> None:
    assert parse_data_manifest(_hostile(lambda raw: None)).train[0].size == 100
    assert parse_data_manifest(_hostile(lambda raw: raw.update(BPE))).separator == 999
    assert parse_data_manifest(_hostile(lambda raw: raw.update(sources=[{"name": "a b", "tokens": 100}]))).sources
    with pytest.raises(DataError):
        parse_data_manifest(content)


def test_a_sample_outside_the_data_is_refused(dataset: Dataset) -> None:
    samples = dataset.len_samples("heldout", 16)
    for wrong in (-1, samples):
        with pytest.raises(DataError, match="no sample"):
            dataset.batch("heldout", [wrong], 16)
    assert dataset.len_samples("train", 1 << 20) == 0


def test_without_samples_there_is_a_clear_error(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="no sample of 1048576 tokens"):
        dataset.ids(0, [0], 1 << 20)


def test_the_data_manifest_is_canonical_and_counts_every_byte(
    dataset: Dataset, data_manifest: BlobRef, blobs: Path
) -> None:
    content = (blobs / data_manifest.sha256).read_bytes()
    assert len(content) == data_manifest.size
    assert rfc8785.dumps(msgspec.json.decode(content)) == content
    assert dataset.tokens("train") == len(_stream(blobs, data_manifest, "train"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_more_shards_than_a_process_may_have_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlx.training.data.shards.SHARD_BYTES", 64)
    (tmp_path / "text").write_bytes(bytes(range(256)) * 64)
    ref = prepare_blobs(Preparation([tmp_path / "text"], raw=True), tmp_path / "blobs")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, limits[1]))
    try:
        dataset = Dataset.open(tmp_path / "blobs" / ref.sha256, tmp_path / "blobs")
        assert len(dataset.manifest.train) > 200
        samples = dataset.len_samples("train", 8)
        rows = dataset.batch("train", range(samples), 8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (rows[:, 1:] == (rows[:, :-1] + 1) % 256).all(), "no sample is of another shard"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_shards_that_are_removed_give_their_room_back_as_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlx.training.data.shards.SHARD_BYTES", 64)
    (tmp_path / "text").write_bytes(np.random.default_rng(0).bytes(8192))
    ref = prepare_blobs(Preparation([tmp_path / "text"], raw=True), tmp_path)
    dataset = Dataset.open(tmp_path / ref.sha256, tmp_path)
    dataset.batch("train", range(dataset.len_samples("train", 8)), 8)
    for shard in {one.sha256 for one in dataset.manifest.train}:
        (tmp_path / shard).unlink()
    held = [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{tmp_path}/" in line]
    assert len(dataset.manifest.train) > 100
    assert len(held) <= 4 * WINDOW, "the windows that a round may be in the midst of, and no more"
