"""The contract OuterProofs: what its proofs are made of, in the shape of its ABI (contracts/src/OuterProofs.sol)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import eth_abi
from eth_hash.auto import keccak

from dlx.ground.constants import NO_HASH
from dlx.ledger.events import Sealed
from dlx.ledger.typed import encode_records

_CODING = "(uint8,uint8,uint16)"
_OUTER_TERMS = f"({_CODING},uint32,uint32,bool,bytes32[])"
_STAGE_TERMS = "(uint64,bytes32,bytes)"
NOT_PROVABLE = NO_HASH  # in the place of the digest of a run's terms


class Coding(NamedTuple):
    """How payloads are coded; `codec` is the contract's number of it."""

    codec: int
    level: int
    rank: int


class StageTerms(NamedTuple):
    """Where what is in a stage's files: bytes before the first value, Merkle root of the genesis, and each tensor's
    values, 8 bytes each, in the order of names."""

    header: int
    genesis: bytes
    counts: bytes

    def digest(self) -> bytes:
        return keccak(eth_abi.encode([_STAGE_TERMS], [self]))


class OuterTerms(NamedTuple):
    """How a run's versions follow from its payloads. Learning rate and momentum are float32 bits; `stages` are the
    digests of the stages' terms."""

    coding: Coding
    lr: int
    momentum: int
    nesterov: bool
    stages: Sequence[bytes]

    def digest(self) -> bytes:
        """What the run's config commits to."""
        return keccak(eth_abi.encode([_OUTER_TERMS], [self]))


class SealedRound(NamedTuple):
    """What a seal says beside its place: the outcome's fields, and the hash of its records."""

    outcome: tuple[bytes, bytes, bytes, bytes, bytes]
    records: bytes


class History(NamedTuple):
    """Consecutive seals of a stage from `round` on; `previous` is the digest before the first of them."""

    run: bytes
    stage: int
    round: int
    previous: bytes
    seals: Sequence[SealedRound]


class Shown(NamedTuple):
    """A statement, and openings of its payload: (grain, path) each."""

    statement: bytes
    openings: Sequence[tuple[bytes, Sequence[bytes]]]


class Proof(NamedTuple):
    """An element of the seal of that number in the history, and all that it was made of."""

    history: History
    number: int
    terms: OuterTerms
    stage: StageTerms
    records: bytes
    of_momentum: bool
    tensor: int
    element: int
    state: Sequence[tuple[bytes, Sequence[bytes]]]
    first: int  # of the contributions that count, the one that is shown first
    shown: Sequence[Shown]


class Call(NamedTuple):
    """A transaction that the contract is to be sent."""

    function: str
    arguments: tuple[Any, ...]


def sealed_round(sealed: Sealed) -> SealedRound:
    """Of a seal as the ledger tells it."""
    outcome = sealed.outcome
    return SealedRound((*outcome.hashes, outcome.plans), keccak(encode_records(sealed.records)))
