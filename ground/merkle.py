"""The Merkle tree hash of RFC 6962 with sha256, over grains of 1 KiB of a file: a root beside the file's sha256.

Whoever has the root can be shown one grain and believe it, without the rest of the file. Every four grains make a leaf
of 4 KiB, a node of the same tree: transfers check these. Nothing needs the whole file in memory. An empty file has the
root of an empty list: the sha256 of nothing.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dlx.ground.durable import Chunk

GRAIN_BYTES = 1024
LEAF_BYTES = 4096
HASH_BYTES = 32
_LEAF_HEIGHT = 2  # of a whole leaf in the tree of grains
_READ_BYTES = 1 << 20


class Opening(NamedTuple):
    """A grain of a file and the hashes that lead from it to the file's root, lowest first."""

    grain: bytes
    path: tuple[bytes, ...]


class TreeHash:
    """`update` it with pieces of any size, then ask for the `root`; it can go on after that."""

    def __init__(self) -> None:
        self._peaks: dict[int, bytes] = {}  # height -> root of a whole subtree; the higher, the earlier its grains
        self._rest = bytearray()  # of the grain that is not whole yet

    def update(self, data: Chunk) -> None:
        view, start, found = memoryview(data).cast("B"), 0, list[bytes]()
        if self._rest:
            start = GRAIN_BYTES - len(self._rest)
            self._rest += view[:start]
            if len(self._rest) == GRAIN_BYTES:
                found.append(_grain(self._rest))
                self._rest = bytearray()
        whole = start + (len(view) - start) // GRAIN_BYTES * GRAIN_BYTES
        if start < len(view):
            found += _grains(view[start:whole])
            self._rest += view[whole:]
        self._extend(found, 0)

    @property
    def root(self) -> bytes:
        """Of all that came so far, 32 bytes."""
        root = _grain(self._rest) if self._rest else b""
        for _, peak in sorted(self._peaks.items()):
            root = _node(peak, root) if root else peak
        return root or hashlib.sha256().digest()

    def _extend(self, hashes: list[bytes], height: int) -> None:
        """With the next whole subtrees of that height."""
        while hashes:
            if height in self._peaks:
                hashes = [self._peaks.pop(height), *hashes]
            if len(hashes) % 2:
                self._peaks[height] = hashes.pop()
            hashes = _above(hashes)
            height += 1


def tree_root(chunks: Iterable[Chunk]) -> bytes:
    """The root of a file that comes in pieces: 32 bytes, however it is cut.

    Examples:
        >>> whole = bytes(10_000)
        >>> tree_root([whole]) == tree_root([whole[:1], whole[1:]])
        True
        >>> tree_root([]) == hashlib.sha256(b"").digest()
        True
    """
    tree = TreeHash()
    for chunk in chunks:
        tree.update(chunk)
    return tree.root


def file_root(path: Path) -> bytes:
    """The root of a file, in constant memory. Raises OSError."""
    with open(path, "rb") as file:
        return tree_root(iter(lambda: file.read(_READ_BYTES), b""))


def leaf_hashes(data: Chunk) -> bytes:
    """The hashes of the leaves of a file's piece that begins with a leaf, one after the other, 32 bytes each."""
    hashes = _grains(memoryview(data).cast("B"))
    for _ in range(_LEAF_HEIGHT):
        hashes = _above(hashes)
    return b"".join(hashes)


def file_leaves(path: Path) -> bytes:
    """The hashes of all leaves of a file. Raises OSError."""
    with open(path, "rb") as file:
        return b"".join(map(leaf_hashes, iter(lambda: file.read(_READ_BYTES), b"")))


def root_of(leaves: Chunk) -> bytes:
    """The root over such hashes."""
    hashes = _apart(leaves)
    while len(hashes) > 1:
        hashes = _above(hashes)
    return hashes[0] if hashes else hashlib.sha256().digest()


def opening(path: Path, leaves: Chunk, grain: int) -> Opening:
    """Of a grain of a file whose leaves have these hashes. Raises IndexError for a grain it lacks; OSError.

    Examples:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(bytes(range(256)) * 40), file.flush()
        ...     found = opening(Path(file.name), file_leaves(Path(file.name)), 7)
        >>> len(found.grain), len(found.path)
        (1024, 4)
        >>> opens(tree_root([bytes(range(256)) * 40]), 10_240, 7, found)
        True
    """
    if grain < 0:
        raise IndexError(f"grain {grain}")
    leaf, place = divmod(grain, LEAF_BYTES // GRAIN_BYTES)
    with open(path, "rb") as file:
        file.seek(leaf * LEAF_BYTES)
        data = file.read(LEAF_BYTES)
    hashes = _grains(memoryview(data))
    if place >= len(hashes):
        raise IndexError(f"the file ends before grain {grain}")
    within = _path(hashes, place)
    return Opening(data[place * GRAIN_BYTES :][:GRAIN_BYTES], (*within, *_path(_apart(leaves), leaf)))


def opens(root: bytes, size: int, grain: int, opened: Opening) -> bool:
    """Whether that is the grain of this number of the file of `size` bytes with that root."""
    data, path = opened
    last = (size - 1) // GRAIN_BYTES
    if not 0 <= grain <= last or len(data) != min(GRAIN_BYTES, size - grain * GRAIN_BYTES):
        return False
    found, at = _grain(data), grain
    for other in path:
        if last == 0:
            return False
        if at & 1 or at == last:
            found = _node(other, found)
            while not at & 1 and at:  # levels on which the last node of all moves up alone
                at, last = at >> 1, last >> 1
        else:
            found = _node(found, other)
        at, last = at >> 1, last >> 1
    return last == 0 and found == root


def _path(hashes: list[bytes], at: int) -> tuple[bytes, ...]:
    """What stands beside the one and its ancestors, up to the root over these hashes."""
    path = []
    while len(hashes) > 1:
        if at ^ 1 < len(hashes):
            path.append(hashes[at ^ 1])
        hashes, at = _above(hashes), at >> 1
    return tuple(path)


def _above(hashes: list[bytes]) -> list[bytes]:
    """The nodes above these, from the left on; the last of an odd number moves up alone."""
    pairs = iter(hashes)
    above = [hashlib.sha256(b"\1" + left + right).digest() for left, right in zip(pairs, pairs, strict=False)]
    return [*above, hashes[-1]] if len(hashes) % 2 else above


def _apart(hashes: Chunk) -> list[bytes]:
    data = bytes(hashes)
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]


def _grains(view: memoryview) -> list[bytes]:
    """The hashes of the grains of a file's piece that begins with one."""
    sha256 = hashlib.sha256  # half of the time goes into calls
    return [sha256(b"\0" + view[at : at + GRAIN_BYTES]).digest() for at in range(0, len(view), GRAIN_BYTES)]


def _grain(data: Chunk) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()  # a copy costs less than a second call


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
