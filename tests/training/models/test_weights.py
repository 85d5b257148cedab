import errno
import hashlib
import json
import os
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlx.ground import hash_memory
from dlx.ground.blobs import Damaged
from dlx.ground.hash_memory import remember
from dlx.training.models import weights
from dlx.training.models.weights import WeightsError

GOLDEN = Path(__file__).parent / "golden" / "layout.safetensors"

TENSORS = {
    "model.layers.0.mlp.weight": torch.arange(6.0).view(2, 3) / 4,
    "lm_head.weight": torch.tensor([[-0.0, 1e-45, 3.4e38]]),
    "b": torch.tensor(-2.5),
    "model.layers.10.bias": torch.ones(5),
}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_layout_is_the_golden_one() -> None:
    if "REGENERATE_GOLDEN" in os.environ:
        weights.write(TENSORS, GOLDEN)
    assert weights.serialise(TENSORS) == GOLDEN.read_bytes()
    assert weights.weights_hash(TENSORS) == hashlib.sha256(GOLDEN.read_bytes()).digest()


_tensors = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.lists(st.integers(0, 4), max_size=3).map(lambda shape: torch.full(shape, 0.5)),
    max_size=6,
)


@given(_tensors)
def test_safetensors_writes_and_reads_the_same_bytes(tensors: dict[str, Tensor]) -> None:
    data = weights.serialise(tensors)
    assert data == safetensors.torch.save(tensors)
    assert _equal(safetensors.torch.load(data), tensors)
    assert len(data) == weights.file_size(_shapes(tensors))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "w"
    strided = {"a": torch.arange(12.0).view(3, 4).t(), "b": torch.arange(12.0)[::3], "empty": torch.zeros(0, 4)}
    digest = weights.write(strided, path)
    assert hashlib.sha256(path.read_bytes()).digest() == digest == weights.weights_hash(strided)
    assert _equal(weights.read(path, _shapes(strided), sha256=digest, finite=True), strided)
    assert weights.write_blob(strided, tmp_path) == digest
    assert (tmp_path / digest.hex()).read_bytes() == path.read_bytes()


def test_a_lazy_mapping_is_written_and_read_one_tensor_after_the_other(tmp_path: Path) -> None:
    tensors = {"c": torch.rand(300, 300), "a": torch.rand(7), "b": torch.zeros(0, 4), "d": torch.rand(200_000)}
    made: list[str] = []

    def make(name: str) -> Tensor:
        made.append(name)
        return tensors[name]

    name = weights.write_blob(weights.Lazy(_shapes(tensors), make), tmp_path)
    assert made == ["a", "b", "c", "d"]
    assert (tmp_path / name.hex()).read_bytes() == weights.serialise(tensors)
    stored = weights.Stored(tmp_path / name.hex(), _shapes(tensors), sha256=name, finite=True)
    (tmp_path / name.hex()).unlink()
    assert list(stored) == ["a", "b", "c", "d"]
    assert _equal({key: torch.from_numpy(values) for key, values in stored.items()}, tensors)
    part = np.empty(1000, np.float32)
    stored.read_into(part, "d", 5000)
    assert np.array_equal(part, tensors["d"][5000:6000].numpy())


@pytest.mark.parametrize("order", ["abc", "b"])
def test_a_stored_file_that_was_damaged_is_told_by_the_last_tensor_or_before_any(order: str, tmp_path: Path) -> None:
    tensors = {name: torch.full((3,), float(ord(name))) for name in "abc"}
    name = weights.write_blob(tensors, tmp_path)
    path = tmp_path / name.hex()
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    stored = weights.Stored(path, _shapes(tensors), sha256=name)
    for key in order[:-1]:
        assert stored[key][0] == ord(key)
    with pytest.raises(Damaged, match="do not match its name"):
        stored[order[-1]]


def test_what_this_process_wrote_or_hashed_is_hashed_again_only_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = weights.write_blob(TENSORS, tmp_path)
    path, copy = tmp_path / name.hex(), tmp_path / "copy"
    os.utime(path, ns=(0, time.time_ns() - 10**9))  # not changed just now
    assert _hashes(path, name, monkeypatch)
    assert not _hashes(path, name, monkeypatch)
    os.link(path, copy)
    assert not _hashes(copy, name, monkeypatch)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x7f")
    with pytest.raises(Damaged):
        weights.read(path, _shapes(TENSORS), sha256=name)
    path.unlink()
    path.write_bytes(content)
    assert _hashes(path, name, monkeypatch)


def _hashes(path: Path, name: bytes, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether reading the file hashes it."""
    seen: list[bytes] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            hash_memory, "remember", lambda descriptor, sha256: (seen.append(sha256), remember(descriptor, sha256))
        )
        assert _equal(weights.read(path, _shapes(TENSORS), sha256=name), TENSORS)
    return bool(seen)


def test_a_writer_takes_the_tensors_in_their_order_and_leaves_nothing_unfinished(tmp_path: Path) -> None:
    shapes = _shapes(TENSORS)
    with pytest.raises(WeightsError, match="not the next tensor"), weights.Writer(shapes, tmp_path) as writer:
        writer.add("lm_head.weight", TENSORS["lm_head.weight"])
    with pytest.raises(WeightsError, match="no such tensor came"), weights.Writer(shapes, tmp_path) as writer:
        writer.add("b", TENSORS["b"])
        writer.finish()
    assert not list(tmp_path.iterdir())
    with weights.Writer(shapes, tmp_path, tree=True) as writer:
        for name in sorted(TENSORS):
            writer.add(name, TENSORS[name])
        written = writer.finish()
    assert written == (weights.weights_hash(TENSORS), weights.tree_root(TENSORS))
    assert [path.name for path in tmp_path.iterdir()] == [written.sha256.hex()]


def test_only_float32_has_a_canonical_file(tmp_path: Path) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.int32):
        with pytest.raises(WeightsError, match="expected float32"):
            weights.serialise({"a": torch.zeros(2, dtype=dtype)})


def _with_header(data: bytes, change: dict[str, object] | None = None, pad: int = 0) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length]) | (change or {})
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8 + pad)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


GOOD = weights.serialise(TENSORS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        _with_header(GOOD, {"__metadata__": {"format": "pt"}}),
        _with_header(GOOD, {"b": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]}}),
        _with_header(GOOD, {"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        _with_header(GOOD, pad=8),
        struct.pack("<Q", 1 << 60) + GOOD[8:],
        GOOD.replace(b'"b"', b'"c"'),
        GOOD.replace(b"[0,4]", b"[4,0]"),
        weights.serialise(TENSORS | {"more": torch.zeros(1)}),
        weights.serialise({name: TENSORS[name] for name in list(TENSORS)[1:]}),
        safetensors.torch.save({name: tensor.double() for name, tensor in TENSORS.items()}),
    ],
    ids=[
        "empty",
        "short",
        "long",
        "metadata",
        "dtype",
        "shape",
        "padding",
        "huge header",
        "name",
        "offsets",
        "more",
        "less",
        "float64",
    ],
)
def test_anything_but_the_canonical_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(data)
    with pytest.raises(WeightsError):
        weights.read(path, _shapes(TENSORS))


def test_the_reader_checks_hash_and_values_on_request(tmp_path: Path) -> None:
    path = tmp_path / "w"
    tensors = TENSORS | {"b": torch.tensor(float("nan"))}
    weights.write(tensors, path)
    weights.read(path, _shapes(tensors))
    with pytest.raises(WeightsError, match="not finite"):
        weights.read(path, _shapes(tensors), finite=True)
    with pytest.raises(Damaged, match="do not match its name"):
        weights.read(path, _shapes(tensors), sha256=weights.weights_hash(TENSORS))
    with pytest.raises(WeightsError, match="No such file"):
        weights.read(tmp_path / "none", _shapes(tensors))


def test_a_file_that_is_not_what_its_name_says_is_told_from_one_that_is_and_yet_no_weights(tmp_path: Path) -> None:
    name = weights.write_blob(TENSORS, tmp_path)
    path = tmp_path / name.hex()
    with pytest.raises(WeightsError, match=r"expected .* bytes"):
        weights.read(path, {"other": (3,)}, sha256=name)


@given(st.data())
def test_whatever_happens_to_a_file_it_is_read_as_it_was_or_called_damaged(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        name = weights.write_blob(TENSORS, Path(folder))
        path = Path(folder) / name.hex()
        whole = path.read_bytes()
        cut, most = data.draw(st.integers(0, len(whole))), len(whole) + 8
        found = data.draw(st.just(whole[:cut]) | st.binary(max_size=most).map(lambda more: (whole[:cut] + more)[:most]))
        path.write_bytes(found)
        if found == whole:
            assert _equal(weights.read(path, _shapes(TENSORS), sha256=name), TENSORS)
        else:
            with pytest.raises(Damaged) as caught:
                weights.read(path, _shapes(TENSORS), sha256=name)
            assert caught.value.blob == name


def test_a_full_disk_is_told_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full") as raised, weights.Writer({"a": (2,)}, tmp_path, cached=False) as writer:
        writer.add("a", np.zeros(2, np.float32))
        writer.finish()
    assert raised.value.filename == str(tmp_path)
