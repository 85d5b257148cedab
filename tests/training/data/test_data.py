import hashlib
import math
import os
import resource
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from dlx.training.data import shards
from dlx.training.data.prepare import prepare
from dlx.training.data.shards import DataError, Dataset, parse_data_manifest, positions, sample_ids, verify_shards
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
    with pytest.raises(DataError, match="hold no text"):
        prepare([tmp_path / "void"], tmp_path / "blobs")


def test_damaged_or_missing_shards_are_named(corpus: Path, tmp_path: Path) -> None:
    ref = prepare([corpus], tmp_path)
    manifest_path = tmp_path / ref.sha256
    manifest = parse_data_manifest(manifest_path.read_bytes())
    assert verify_shards(manifest_path, tmp_path) == []
    shard = tmp_path / manifest.train[0].sha256
    content = bytearray(shard.read_bytes())
    content[5] ^= 1
    shard.write_bytes(content)
    assert verify_shards(manifest_path, tmp_path) == [shard.name]
    shard.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"expected .* bytes"):
        Dataset.open(manifest_path, tmp_path)
    shard.unlink()
    assert verify_shards(manifest_path, tmp_path) == [shard.name]
    with pytest.raises(DataError, match="cannot be opened"):
        Dataset.open(manifest_path, tmp_path)
    manifest_path.write_bytes(b"{}")
    with pytest.raises(DataError, match="do not match its name"):
        Dataset.open(manifest_path, tmp_path)


def test_a_blob_that_nothing_can_make_what_the_manifest_says_is_not_asked_for_again(tmp_path: Path) -> None:
    content = b"x" * 100
    name = hashlib.sha256(content).hexdigest()
    (tmp_path / name).write_bytes(content)
    shard = {"sha256": name, "size": 101, "tokens": 101}
    manifest = parse_data_manifest(_hostile(lambda raw: raw.update(train=[shard] * 1000)))
    read: list[int] = []
    assert [problem.again for problem in shards.check(manifest, tmp_path, read.append)] == [False]
    assert read == [101], "a shard that is listed a thousand times is read once"


BPE = {
    "tokenizer": {"sha256": "cd" * 32, "size": 9},
    "vocab_size": 1000,
    "separator": 999,
    "dtype": "uint16",
    "train": [{"sha256": "ab" * 32, "size": 100, "tokens": 50}],
}


def _hostile(change: Callable[[dict], object]) -> bytes:
    shard = {"sha256": "ab" * 32, "size": 100, "tokens": 100}
    raw = {"tokenizer": "bytes", "vocab_size": 256, "dtype": "uint8", "train": [shard], "heldout": [], "separator": 0}
    change(raw)
    return rfc8785.dumps(raw)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        _hostile(lambda raw: raw.pop("dtype")),
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
        _hostile(lambda raw: raw.update(BPE, train=[{"sha256": "ab" * 32, "size": 100, "tokens": 100}])),
        _hostile(lambda raw: raw["train"][0].update(size=shards.SHARD_BYTES + 1, tokens=shards.SHARD_BYTES + 1)),
        _hostile(lambda raw: raw["train"][0].update(tokens=99)),
        _hostile(lambda raw: raw["heldout"].append({"sha256": "ab" * 32, "size": 99, "tokens": 99})),
        _hostile(lambda raw: raw.update(BPE, tokenizer={"sha256": "ab" * 32, "size": 100})),
        _hostile(lambda raw: raw["train"][0].update(sha256="../../etc/passwd")),
        _hostile(lambda raw: None) + b" ",
    ],
)
def test_a_hostile_data_manifest_is_refused(content: bytes) -> None:
    assert parse_data_manifest(_hostile(lambda raw: None)).train[0].size == 100
    assert parse_data_manifest(_hostile(lambda raw: raw.update(BPE))).separator == 999
    with pytest.raises(DataError):
        parse_data_manifest(content)


def test_a_sample_outside_the_data_is_refused(dataset: Dataset) -> None:
    samples = dataset.len_samples("heldout", 16)
    for wrong in (-1, samples):
        with pytest.raises(DataError, match="no sample"):
            dataset.batch("heldout", [wrong], 16)
    assert dataset.len_samples("train", 1 << 20) == 0


@given(samples=st.integers(1, 600), seed=st.integers(0, 2**53 - 1), batch=st.integers(1, 5), replicas=st.integers(1, 4))
def test_no_sample_comes_twice_in_an_epoch_and_none_is_left_out(
    samples: int, seed: int, batch: int, replicas: int
) -> None:
    steps = math.ceil(2 * samples / (batch * replicas))
    order = [
        sample
        for step in range(steps)
        for replica in range(replicas)
        for sample in sample_ids(seed, positions(step, replica, replicas, batch), samples)
    ]
    assert sorted(order[:samples]) == sorted(order[samples : 2 * samples]) == list(range(samples))


@given(
    samples=st.integers(8, 600),
    seed=st.integers(0, 2**53 - 1),
    first=st.integers(0, 10**6),
    steps=st.lists(st.integers(0, 3), max_size=20),
)
def test_whoever_takes_part_from_whichever_step_on_nobody_trains_on_anothers_sample(
    samples: int, seed: int, first: int, steps: list[int]
) -> None:
    """Replicas come and go in the middle of epochs (`steps`: who trains in each step, as bits)."""
    epochs: dict[int, list[int]] = {}
    for index, present in enumerate(steps):
        for replica in (0, 1):
            if present >> replica & 1:
                ids = sample_ids(seed, positions(first + index, replica, 2, 2), samples)
                place = ((first + index) * 2 + replica) * 2
                for at, sample in enumerate(ids):
                    epochs.setdefault((place + at) // samples, []).append(sample)
    for seen in epochs.values():
        assert len(set(seen)) == len(seen)


@given(samples=st.integers(1, 2**40), step=st.integers(0, 2**40), seed=st.integers(0, 2**53 - 1))
def test_samples_exist_however_far_the_run_and_however_large_the_data(samples: int, step: int, seed: int) -> None:
    ids = sample_ids(seed, positions(step, 3, 64, 8), samples)
    assert len(ids) == 8
    assert all(0 <= sample < samples for sample in ids)


def test_the_order_is_shuffled_and_differs_by_seed_and_epoch() -> None:
    def order(seed: int, first_step: int) -> list[int]:
        return sample_ids(seed, range(first_step, first_step + 1000), 1000)

    orders = [order(0, 0), order(1, 0), order(0, 1000)]
    for one in orders:
        assert sum(a == b for a, b in zip(one, sorted(one), strict=True)) < 20
        assert abs(float(np.corrcoef(one, np.arange(1000))[0, 1])) < 0.15
        assert sum(abs(a - b) == 1 for a, b in pairwise(one)) < 20
    assert sum(a == b for a, b in zip(orders[0], orders[1], strict=True)) < 20
    assert sum(a == b for a, b in zip(orders[0], orders[2], strict=True)) < 20


def test_the_order_does_not_change_from_one_release_to_the_next() -> None:
    assert sample_ids(7, positions(12, 1, 4, 8), 1000) == [278, 353, 516, 345, 667, 476, 731, 754]
    assert sample_ids(0, range(4), 123_456_789) == [62318014, 38033496, 101899996, 8461349]


def test_without_samples_there_is_a_clear_error() -> None:
    with pytest.raises(DataError, match="no sample"):
        sample_ids(0, range(1), 0)


def test_the_data_manifest_is_canonical_and_counts_every_byte(
    dataset: Dataset, data_manifest: BlobRef, blobs: Path
) -> None:
    content = (blobs / data_manifest.sha256).read_bytes()
    assert len(content) == data_manifest.size
    assert rfc8785.dumps(msgspec.json.decode(content)) == content
    assert dataset.tokens("train") == len(_stream(blobs, data_manifest, "train"))


def test_more_shards_than_a_process_may_have_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlx.training.data.shards.SHARD_BYTES", 64)
    (tmp_path / "text").write_bytes(bytes(range(256)) * 64)
    ref = prepare([tmp_path / "text"], tmp_path / "blobs")
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
