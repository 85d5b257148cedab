"""The Merkle tree hash of RFC 6962 with sha256, over leaves of 4 KiB of a file: a root beside the file's sha256.

Whoever has the root can be shown one leaf and believe it, without the rest of the file. Nothing needs the whole file in
memory. An empty file has the root of an empty list: the sha256 of nothing.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from dlx.ground.durable import Chunk

LEAF_BYTES = 4096
HASH_BYTES = 32
_READ_BYTES = 1 << 20


class TreeHash:
    """`update` it with pieces of any size, then ask for the `root`; it can go on after that."""

    def __init__(self) -> None:
        self._peaks: dict[int, bytes] = {}  # height -> root of a whole subtree; the higher, the earlier its leaves
        self._rest = bytearray()  # of the leaf that is not whole yet

    def update(self, data: Chunk) -> None:
        view, start, found = memoryview(data).cast("B"), 0, list[bytes]()
        if self._rest:
            start = LEAF_BYTES - len(self._rest)
            self._rest += view[:start]
            if len(self._rest) == LEAF_BYTES:
                found.append(_leaf(self._rest))
                self._rest = bytearray()
        whole = start + (len(view) - start) // LEAF_BYTES * LEAF_BYTES
        found += [_leaf(view[at : at + LEAF_BYTES]) for at in range(start, whole, LEAF_BYTES)]
        if start < len(view):
            self._rest += view[whole:]
        self.extend(found)

    @property
    def root(self) -> bytes:
        """Of all that came so far, 32 bytes."""
        root = _leaf(self._rest) if self._rest else b""
        for _, peak in sorted(self._peaks.items()):
            root = _node(peak, root) if root else peak
        return root or hashlib.sha256().digest()

    def extend(self, hashes: list[bytes]) -> None:
        """The next leaves by their hashes; all are whole."""
        height = 0
        while hashes:
            if height in self._peaks:
                hashes = [self._peaks.pop(height), *hashes]
            if len(hashes) % 2:
                self._peaks[height] = hashes[-1]
            hashes = [_node(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=False)]
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
    view = memoryview(data).cast("B")
    return b"".join(_leaf(view[at : at + LEAF_BYTES]) for at in range(0, len(view), LEAF_BYTES))


def file_leaves(path: Path) -> bytes:
    """The hashes of all leaves of a file. Raises OSError."""
    with open(path, "rb") as file:
        return b"".join(map(leaf_hashes, iter(lambda: file.read(_READ_BYTES), b"")))


def root_of(leaves: Chunk) -> bytes:
    """The root over such hashes."""
    tree, data = TreeHash(), bytes(leaves)
    tree.extend([data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)])
    return tree.root


def inclusion_proof(data: bytes, leaf: int) -> tuple[bytes, ...]:
    """The hashes that lead from a leaf of `data` to its root, lowest first. Raises IndexError for a leaf it lacks."""
    hashes = [_leaf(data[at : at + LEAF_BYTES]) for at in range(0, len(data), LEAF_BYTES)]
    if not 0 <= leaf < len(hashes):
        raise IndexError(f"leaf {leaf} of {len(hashes)}")
    return _path(hashes, leaf)


def verify_inclusion(root: bytes, data: bytes, leaf: int, size: int, proof: Iterable[bytes]) -> bool:
    """Whether `data` is leaf number `leaf` of the file of `size` bytes with that root.

    Examples:
        >>> file = bytes(range(256)) * 40
        >>> root, proof = tree_root([file]), inclusion_proof(file, 1)
        >>> [len(one) for one in proof]
        [32, 32]
        >>> verify_inclusion(root, file[4096:8192], 1, len(file), proof)
        True
        >>> verify_inclusion(root, file[4095:8191], 1, len(file), proof)
        False
    """
    last = (size - 1) // LEAF_BYTES
    if not 0 <= leaf <= last or len(data) != min(LEAF_BYTES, size - leaf * LEAF_BYTES):
        return False
    found, at = _leaf(data), leaf
    for other in proof:
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


def _path(hashes: list[bytes], leaf: int) -> tuple[bytes, ...]:
    if len(hashes) == 1:
        return ()
    split = _split(len(hashes))
    left, right = hashes[:split], hashes[split:]
    if leaf < split:
        return *_path(left, leaf), _root(right)
    return *_path(right, leaf - split), _root(left)


def _root(hashes: list[bytes]) -> bytes:
    if len(hashes) == 1:
        return hashes[0]
    split = _split(len(hashes))
    return _node(_root(hashes[:split]), _root(hashes[split:]))


def _split(count: int) -> int:
    """The largest power of two below the count."""
    return 1 << ((count - 1).bit_length() - 1)


def _leaf(data: Chunk) -> bytes:
    return hashlib.sha256(b"\0" + data).digest()  # a copy costs less than a second call


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()
