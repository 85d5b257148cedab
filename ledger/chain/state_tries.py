"""The Merkle-Patricia tries of a block and a state: roots, proofs, and the nodes that states consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import rlp
from eth.constants import BLANK_ROOT_HASH, EMPTY_SHA3
from eth.rlp.accounts import Account
from eth_hash.auto import keccak
from trie import HexaryTrie

_HASH_BYTES = 32
_LEAF = 0x20  # this bit of a two-item node's first byte tells a leaf from an extension


@dataclass(frozen=True, slots=True)
class Proved:
    """A value (RLP; empty where the trie has none), with the nodes from the root on that prove it (EIP-1186)."""

    value: bytes
    proof: list[bytes]


def prove_account(nodes: Mapping[bytes, bytes], state_root: bytes, address: bytes) -> tuple[Account, Proved]:
    """The account; an empty one where the state has none."""
    found = _prove(nodes, state_root, keccak(address))
    return rlp.decode(found.value, sedes=Account) if found.value else Account(), found


def prove_slot(nodes: Mapping[bytes, bytes], storage_root: bytes, slot: int) -> Proved:
    return _prove(nodes, storage_root, keccak(slot.to_bytes(32, "big")))


def reachable(read: Callable[[bytes], bytes], state_roots: Iterable[bytes]) -> set[bytes]:
    """The hashes of all nodes and of the code that the states consist of."""
    found: set[bytes] = {BLANK_ROOT_HASH, EMPTY_SHA3}
    waiting = [(state_root, True) for state_root in state_roots]
    while waiting:
        name, has_accounts = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for kind, child in _children(rlp.decode(read(name)), has_accounts):
            if kind == "code":
                found.add(child)
            else:
                waiting.append((child, kind == "accounts"))
    return found


def _prove(nodes: Mapping[bytes, bytes], root_hash: bytes, key: bytes) -> Proved:
    trie = HexaryTrie(nodes, root_hash)
    # A node below the size of a hash lies inside its parent, and is no item of its own.
    encoded = [rlp.encode(node) for node in trie.get_proof(key)]
    return Proved(trie[key], [node for i, node in enumerate(encoded) if i == 0 or len(node) >= _HASH_BYTES])


def _children(node: Any, has_accounts: bool) -> Iterator[tuple[str, bytes]]:
    if len(node) == 2 and node[0][0] & _LEAF:
        if has_accounts:
            account = rlp.decode(node[1], sedes=Account)
            yield "storage", account.storage_root
            yield "code", account.code_hash
        return
    for child in node[1:] if len(node) == 2 else node[:16]:
        if isinstance(child, list):
            yield from _children(child, has_accounts)
        elif child:
            yield "accounts" if has_accounts else "storage", child
