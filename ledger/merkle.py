"""Merkle trees as OpenZeppelin's MerkleProof reads them: pairs hashed in sorted order, an odd last node promoted."""

from collections.abc import Sequence

from eth_hash.auto import keccak


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root of 32-byte leaves in the order given; 32 zero bytes for none."""
    level = list(leaves)
    while len(level) > 1:
        level = _parents(level)
    return level[0] if level else bytes(32)


def merkle_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings that lead from leaf `index` to the root."""
    level, proof = list(leaves), []
    while len(level) > 1:
        if index ^ 1 < len(level):
            proof.append(level[index ^ 1])
        level, index = _parents(level), index // 2
    return tuple(proof)


def _parents(level: list[bytes]) -> list[bytes]:
    paired = [_pair(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return paired + level[2 * len(paired) :]


def _pair(a: bytes, b: bytes) -> bytes:
    return keccak(a + b if a < b else b + a)
