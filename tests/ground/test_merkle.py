"""The tree hash against RFC 6962's definition written down naively, against known roots, and proofs of inclusion."""

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.ground import merkle
from dlx.ground.merkle import GRAIN_BYTES, LEAF_BYTES, Opening, TreeHash, file_root, opening, opens, tree_root

# The inputs of the test vectors of RFC 6962's reference implementation, and the roots of the first 1, 2, ... of them.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def naive(leaves: list[bytes]) -> bytes:
    """The definition in section 2.1 of the RFC."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + naive(leaves[:k]) + naive(leaves[k:])).digest()


def grains_of(data: bytes) -> list[bytes]:
    return [data[at : at + GRAIN_BYTES] for at in range(0, len(data), GRAIN_BYTES)]


def opened(path: Path, data: bytes, grain: int) -> Opening:
    path.write_bytes(data)
    return opening(path, merkle.file_leaves(path), grain)


@pytest.mark.parametrize("count", range(1, 9))
def test_the_naive_definition_gives_the_rfcs_test_vectors(count: int) -> None:
    assert naive([bytes.fromhex(leaf) for leaf in LEAVES[:count]]).hex() == ROOTS[count - 1]


def test_an_empty_file_has_the_root_of_an_empty_list() -> None:
    assert tree_root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(st.integers(0, 40 * GRAIN_BYTES), st.integers(0, 2**32))
def test_pieces_of_any_size_give_the_root_of_the_definition(size: int, seed: int) -> None:
    rng = random.Random(seed)
    data, tree, at = rng.randbytes(size), TreeHash(), 0
    while at < size:
        step = rng.choice([1, 17, GRAIN_BYTES - 1, GRAIN_BYTES, GRAIN_BYTES + 1, 5 * GRAIN_BYTES])
        tree.update(data[at : at + step])
        at += step
        assert len(data) > 4 * GRAIN_BYTES or tree.root == naive(grains_of(data[:at]))
    assert tree.root == naive(grains_of(data))


def test_a_file_is_read_in_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(merkle, "_READ_BYTES", 5000)
    data = random.Random(0).randbytes(7 * LEAF_BYTES + 11)
    (tmp_path / "file").write_bytes(data)
    assert file_root(tmp_path / "file") == naive(grains_of(data))


@given(st.integers(1, 33 * GRAIN_BYTES), st.data())
def test_every_grain_opens_and_nothing_else(tmp_path_factory, size: int, draw: st.DataObject) -> None:
    data = random.Random(size).randbytes(size)
    root, grains = tree_root([data]), grains_of(data)
    at = draw.draw(st.integers(0, len(grains) - 1))
    found = opened(tmp_path_factory.mktemp("file") / "file", data, at)
    assert found.grain == grains[at] and opens(root, size, at, found)
    other = bytes([grains[at][0] ^ 1]) + grains[at][1:]
    assert not opens(root, size, at, found._replace(grain=other))
    assert not opens(root, size, at, found._replace(path=(*found.path, root)))
    if found.path:
        assert not opens(root, size, at, found._replace(path=found.path[:-1]))
        assert not opens(root, size, at ^ 1, found)


def test_a_node_is_not_taken_for_a_grain() -> None:
    data = bytes(2 * GRAIN_BYTES)
    root = tree_root([data])
    inner = b"".join(hashlib.sha256(b"\0" + grain).digest() for grain in grains_of(data))
    assert not opens(root, len(inner), 0, Opening(inner, ()))


@pytest.mark.parametrize("grain", [-1, 2, 4])
def test_no_grain_beyond_the_end_opens(tmp_path, grain: int) -> None:
    data = bytes(2 * GRAIN_BYTES)
    with pytest.raises(IndexError):
        opened(tmp_path / "file", data, grain)
    assert not opens(tree_root([data]), len(data), grain, Opening(bytes(GRAIN_BYTES), ()))


@pytest.mark.parametrize("size", [0, 1, LEAF_BYTES, LEAF_BYTES + 1, 5 * LEAF_BYTES, 300 * LEAF_BYTES + 7])
def test_a_list_of_leaf_hashes_has_the_files_root(tmp_path, size):
    (tmp_path / "file").write_bytes(data := random.Random(size).randbytes(size))
    leaves = merkle.file_leaves(tmp_path / "file")
    assert leaves == merkle.leaf_hashes(data) and len(leaves) == -(-size // LEAF_BYTES) * merkle.HASH_BYTES
    assert merkle.root_of(leaves) == file_root(tmp_path / "file")
