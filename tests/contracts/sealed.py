"""A stage on a disk and on a ledger that seals whatever it is told: what a proof of one element is tried on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import eth_abi
import numpy as np
from eth_hash.auto import keccak

from dlx.ground.merkle import file_root
from dlx.ledger.outer_proofs import Coding, History, OuterTerms, Proof, SealedRound, StageTerms
from dlx.ledger.typed import Record
from dlx.node.audit.element_proof import Element, RoundFiles, StageFormat, proof_of
from dlx.node.runs.outer_terms import float_bits, stage_terms
from dlx.training.codecs import codec
from dlx.training.models import weights
from dlx.training.models.weights import Shapes
from dlx.training.outer.step import outer_step, parts
from dlx.training.recipe.recipe import Outer, Plan
from tests.contracts.solidity import CHAIN_ID, Chain, Contract

SHAPES: Shapes = {"a.weight": (67, 130), "b": (7,), "c.weight": (3, 1001), "d": (5000,)}
PLANS = {"int4": Plan(level=4), "int8": Plan(level=8), "ternary": Plan(level=2), "topk": Plan(level=2, rank=50)}
RUN, STAGE = keccak(b"run"), 1
_SEAL = keccak(
    b"Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previous,bytes32 weights,bytes32 momentum,"
    b"bytes32 weightsRoot,bytes32 momentumRoot,bytes11 plans,bytes records)"
)
_DOMAIN = keccak(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


@dataclass
class Round:
    files: RoundFiles | None
    records: list[Record]
    sealed: SealedRound
    digest: bytes = b""


@dataclass
class Stage:
    """`kind`: int4, int8, ternary or topk."""

    chain: Chain
    folder: Path
    kind: str
    outer: Outer
    shapes: Shapes = field(default_factory=lambda: SHAPES)
    seed: int = 0
    spoil_payload: Callable[[bytes], bytes] = lambda data: data
    spoil_words: Callable[[list[bytes]], list[bytes]] = lambda words: words
    spoil_file: dict[bool, Callable[[bytes], bytes]] = field(default_factory=dict)  # by whether it is the momentum's

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.ledger = self.chain.deploy("SealedLedger")
        self.proofs: Contract = self.chain.deploy("OuterProofs", self.ledger.address)
        self.form = StageFormat(codec(self.kind.replace("8", "4")), PLANS[self.kind], self.shapes)
        self.version = {name: self.normal(shape, 0.02) for name, shape in self.shapes.items()}
        self.momentum: Any = None
        self.weights, self.moments = self.store(self.version), cast(Path | None, None)
        self.rounds: list[Round] = []
        self.stage: StageTerms = stage_terms(self.shapes, file_root(self.weights))
        info = self.form.codec.info
        coding = Coding(info.contract, self.form.plan.level, self.form.plan.rank)
        self.terms = OuterTerms(
            coding, float_bits(self.outer.lr), float_bits(self.outer.momentum), self.outer.nesterov,
            [keccak(b"another stage"), self.stage.digest()],
        )  # fmt: skip
        self.ledger.write("setOuter", RUN, self.terms.digest())
        self.head = self.start = hashlib.sha256(self.weights.read_bytes()).digest()

    def normal(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return self.rng.normal(0, scale, shape).astype(np.float32)

    def store(self, tensors: dict[str, np.ndarray]) -> Path:
        return self.folder / weights.write_blob(tensors, self.folder).hex()

    def empty(self) -> None:
        nothing = SealedRound((bytes(32), bytes(32), bytes(32), bytes(32), bytes(11)), keccak(b""))
        self._seal(Round(None, [], nothing))

    def step(self, steps: list[int], multipliers: list[int], spoil: Any = lambda version, momentum: None) -> Round:
        """A round of so many payloads; `spoil` may change what is sealed."""
        before = self.weights, self.moments
        payloads, records, statements, gradients = [], [], [], []
        for replica, (taken, multiplier) in enumerate(zip(steps, multipliers, strict=True)):
            data = self.encode()
            gradients.append(self.form.codec.decode_arrays(data, self.shapes, self.form.plan))
            data = self.spoil_payload(data)
            path = self.folder / hashlib.sha256(data).hexdigest()
            path.write_bytes(data)
            words = [self.rng.bytes(32) for _ in range(28)]
            words[6:9] = bytes.fromhex(path.name), len(data).to_bytes(32, "big"), file_root(path)
            statement = b"".join(self.spoil_words(words))
            name = hashlib.sha256(statement).digest()
            records.append(Record(replica, name, 5, taken, 3, multiplier))
            if multiplier:
                payloads.append(path)
                statements.append(statement)
        self.momentum = outer_step(self.version, self.momentum, gradients, parts(steps, multipliers), self.outer)
        kept = {name: values.copy() for name, values in self.version.items()}
        kept_momentum = None if self.momentum is None else {n: v.copy() for n, v in self.momentum.items()}
        spoil(self.version, self.momentum)
        self.gradients = gradients
        self.right_files = self.store(self.version), None if self.momentum is None else self.store(self.momentum)
        self.weights = self._spoilt(self.right_files[0], False)
        self.moments = None if self.right_files[1] is None else self._spoilt(self.right_files[1], True)
        files = RoundFiles(self.weights, self.moments, *before, payloads, statements)
        roots = [file_root(self.weights), bytes(32) if self.moments is None else file_root(self.moments)]
        names = [
            bytes.fromhex(self.weights.name),
            bytes(32) if self.moments is None else bytes.fromhex(self.moments.name),
        ]
        outcome = (names[0], names[1], roots[0], roots[1], self.rng.bytes(11))
        encoded = b"".join(record.encode() for record in records)
        made = Round(files, records, SealedRound(outcome, keccak(encoded)))
        self._seal(made)
        self.right, self.right_momentum = kept, kept_momentum
        return made

    def encode(self) -> bytes:
        """Any payload."""
        scale = 10.0 ** self.rng.integers(-7, 1)
        return self.form.codec.encode({n: self.normal(s, scale) for n, s in self.shapes.items()}, self.form.plan)

    def _spoilt(self, path: Path, of_momentum: bool) -> Path:
        if of_momentum not in self.spoil_file:
            return path
        data = self.spoil_file[of_momentum](path.read_bytes())
        other = self.folder / hashlib.sha256(data).hexdigest()
        other.write_bytes(data)
        return other

    def _seal(self, made: Round) -> None:
        self.head = made.digest = self.digest(len(self.rounds), self.head, made.sealed)
        self.rounds.append(made)
        self.ledger.write("setHead", RUN, STAGE, self.head, len(self.rounds))

    def digest(self, round: int, previous: bytes, sealed: SealedRound) -> bytes:
        kinds = ["bytes32", "bytes32", "uint16", "uint32", "bytes32", *["bytes32"] * 4, "bytes11", "bytes32"]
        fields = [_SEAL, RUN, STAGE, round, previous, *sealed.outcome, sealed.records]
        named = [keccak(b"dlx-node TrainingLedger"), keccak(b"3")]
        domain = keccak(
            eth_abi.encode(
                ["bytes32", "bytes32", "bytes32", "uint256", "address"],
                [_DOMAIN, *named, CHAIN_ID, self.ledger.address],
            )
        )
        return keccak(b"\x19\x01" + domain + keccak(eth_abi.encode(kinds, fields)))

    def history(self, first: int, end: int | None = None) -> History:
        previous = self.start if first == 0 else self.rounds[first - 1].digest
        return History(RUN, STAGE, first, previous, [one.sealed for one in self.rounds[first:end]])

    def proof(self, round: int, element: Element, first: int | None = None, **changes: Any) -> Proof:
        """Of a round, whose history begins with the newest non-empty seal before it."""
        if first is None:
            first = max((r for r in range(round) if self.rounds[r].records), default=0)
        one = self.rounds[round]
        assert one.files is not None
        made = proof_of(
            element, self.form, one.files, self.history(first), round - first, self.terms, self.stage, one.records
        )
        return made._replace(**changes)
