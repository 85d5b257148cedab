"""Merkle-Patricia tries: the root of a list, and what a proof says of a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import rlp
from eth_hash.auto import keccak
from trie import HexaryTrie

from dlx.ground.untrusted import printable


class BadProof(ValueError):
    """The nodes prove nothing of the key under this root."""


def list_root(items: Iterable[bytes]) -> bytes:
    """The root of the trie that has the items under their indices."""
    trie = HexaryTrie({})
    for index, item in enumerate(items):
        trie[rlp.encode(index)] = item
    return trie.root_hash


def code_hash(state_root: bytes, address: bytes, proof: Sequence[bytes]) -> bytes:
    """The hash of an account's code, by the nodes from the state's root to it (EIP-1186). Raises BadProof."""
    try:
        account = HexaryTrie.get_from_proof(state_root, keccak(address), [rlp.decode(node) for node in proof])
        *_, found = rlp.decode(account)
    except Exception as error:  # the libraries' have no common base, and what the nodes are is anybody's bytes
        raise BadProof(printable(str(error), 200)) from None
    return bytes(found)
