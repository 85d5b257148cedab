"""The examples in docs/vectors: what the code gives for fixed inputs, as JSON that any language reads.

Bytes are lowercase hex; tensors are {"shape", "data"}, the data float32, little-endian. After a change of the protocol
`python -m tests.vectors.published` in the repository's root writes the files anew; docs/protocol has to say what
changed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dlx.ground.merkle import tree_root
from dlx.ledger.abi import checksum
from dlx.ledger.events import EventPosition, Joined, Left, RunCreated, RunOpened, Sealed
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import (
    FALSE,
    WITHHELD,
    Agreement,
    Contribution,
    Domain,
    Evaluation,
    Outcome,
    Plan,
    Record,
    Report,
    RunConfig,
    Seal,
    SiteMember,
    Verdict,
    conviction_entries,
    entries,
    registration_digest,
    run_id,
)
from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.runs import free_slot
from dlx.ledger.view.seals import absent_now, fraction
from dlx.ledger.view.weights import Lanes, shares
from dlx.node.round.challenges.draw import checkers, draw, seed_of
from dlx.node.round.challenges.evaluation import evaluation_of
from dlx.node.round.rules.pace import Pace
from dlx.node.round.rules.stopping import is_over
from dlx.p2p.sharing import bitmap, shares_of
from dlx.training.codecs import codec
from dlx.training.codecs.base import CodecError
from dlx.training.data.dealing import Dealing
from dlx.training.data.order import SampleOrder
from dlx.training.exact import functions, grid
from dlx.training.models import weights
from dlx.training.outer.arithmetic import approach, rounded
from dlx.training.outer.average import members
from dlx.training.outer.payloads import Payload
from dlx.training.outer.policy import disagreement, measure, multipliers
from dlx.training.outer.step import outer_step, parts
from dlx.training.recipe.recipe import Average, Outer, Stop
from dlx.training.recipe.recipe import Plan as CodecPlan
from dlx.training.slot.change import Difference
from tests.vectors import auditing, slots
from tests.vectors.auditing import digest_of, plain

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "vectors"
KEYS = [bytes([0] * 31 + [number]) for number in (1, 2, 3)]  # known to everybody: never use them
Tensors = dict[str, np.ndarray]


def content() -> dict[str, Any]:
    """File name -> what belongs into it."""
    return {
        "statements.json": _statements(),
        "codecs.json": _codecs(),
        "codes.json": _codes(),
        "outer.json": _outer(),
        "start.json": _start(),
        "policy.json": _policy(),
        "average.json": _average(),
        "exact.json": _exact(),
        "files.json": _files(),
        "draw.json": _draw(),
        "evaluation.json": _evaluation(),
        "stopping.json": _stopping(),
        "samples.json": _samples(),
        "pace.json": _pace(),
        "sharing.json": _sharing(),
        "weights.json": _weights(),
        "slots.json": slots.content(),
        **auditing.content(),
    }


def written(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _statements() -> dict[str, Any]:
    domain = Domain(31337, checksum(bytes(range(20))))
    creator, makers = account_of(KEYS[0]), [account_of(key) for key in KEYS[1:]]
    run = run_id(domain.chain_id, domain.ledger, creator, digest_of("manifest"))
    plan, made = Plan(4, 0, 10), []
    for replica, maker in enumerate(makers):
        fields: dict[str, Any] = {
            name: digest_of(f"{name} {replica}")
            for name, kind in Contribution.__annotations__.items()
            if "bytes" in str(kind).lower()
        }
        fields |= {
            "run": run, "round": 7, "stage": 1, "replica": replica, "account": maker, "payload_size": 1234 + replica,
            "plan": plan.hash(), "inner_steps": 10, "loss": 2_345_678 + replica, "segments": 1, "compute_ms": 4000,
            "exchange_ms": 1990 * replica, "kept": 30_000 + replica, "flags": replica,
        }  # fmt: skip
        made.append(Contribution(**fields))
    records = tuple(one.record(multiplier) for one, multiplier in zip(made, (32768, 20000), strict=True))
    hashes = digest_of("weights"), digest_of("momentum"), digest_of("weights root"), digest_of("momentum root")
    seal = Seal(run, 1, 7, digest_of("previous"), Outcome(*hashes, 10, Plan(4, 8, 20)), records)
    report = Report(run, 7, 1, 1_800_000_000_123, (made[0].hash(),), (made[1].hash(),))
    verdicts = [
        Verdict(run, 1, 7, makers[0], made[0].hash(), finding, digest_of(f"report {finding}")).sign(domain, key)
        for finding, key in ((WITHHELD, KEYS[2]), (FALSE, KEYS[0]))  # their accounts ascend
    ]
    digest, member = seal.digest(domain), SiteMember(run, makers[0])
    agreement = Agreement(run, 7, 1, 0, digest_of("recorded"))
    timings = ((0, 5), (5, 0), (4000, 10), (200, 1), (1000, 14), (1000, 15), (1000, 25), (100, 254), (100, 300))
    signed = {makers[0]: (0, sign(digest, KEYS[1]))}
    return {
        "chain_id": domain.chain_id,
        "ledger": domain.ledger,
        "separator": domain.separator.hex(),
        "run": {"creator": creator, "manifest": digest_of("manifest").hex(), "id": run.hex()},
        "plan": {"level": 4, "rank": 0, "inner_steps": 10, "hash": plan.hash().hex()},
        "contributions": [
            {
                "key": key.hex(),
                "fields": plain(vars(one)),
                "statement": one.encode().hex(),
                "name": one.hash().hex(),
                "record": record.encode().hex(),
                "digest": one.digest(domain).hex(),
                "signature": sign(one.digest(domain), key).hex(),
            }
            for key, one, record in zip(KEYS[1:], made, records, strict=True)
        ],
        "seal": {
            "packed": seal.encode().hex(),
            "digest": digest.hex(),
            "key": KEYS[1].hex(),
            "signature": sign(digest, KEYS[1]).hex(),
            "mean_loss": seal.mean_loss,
            "entries": entries(signed, {1: sign(made[1].digest(domain), KEYS[2])}).hex(),
        },
        "report": {
            "made": report.made,
            "holding": [name.hex() for name in report.holding],
            "missing": [name.hex() for name in report.missing],
            "digest": report.digest(domain).hex(),
        },
        "verdicts": [
            {
                "key": key.hex(),
                "finding": one.verdict.finding,
                "report": one.verdict.report.hex(),
                "digest": one.verdict.digest(domain).hex(),
                "signature": one.signature.hex(),
            }
            for key, one in zip((KEYS[2], KEYS[0]), verdicts, strict=True)
        ],
        "conviction": conviction_entries(verdicts, domain).hex(),
        "site": {
            "key": KEYS[1].hex(),
            "account": makers[0],
            "digest": member.digest(domain).hex(),
            "signature": member.sign(domain, KEYS[1]).hex(),
        },
        "registration": {
            "account": makers[0],
            "nonce": 3,
            "digest": registration_digest(domain.chain_id, domain.ledger, makers[0], 3).hex(),
        },
        "agreement": plain(vars(agreement)) | {"digest": agreement.digest(domain).hex()},
        "exchanges": [
            [compute, waited, replace(made[0], compute_ms=compute, exchange_ms=waited).exchange]
            for compute, waited in timings
        ],
    }


def _weights() -> dict[str, Any]:
    """What becomes of the weights of a stage in 40 rounds: work of different sizes, an empty seal, members that come,
    leave, are counted after that and return, and rounds that are late. Members are numbers."""
    whole, halved = _Stage(60), _Stage(3600)
    _forty_rounds(whole)
    _half_a_weight(halved)
    return {
        "horizon": 8, "quorum": [5, 8], "round_timeout": 60, "events": whole.events,
        "halved": {"round_timeout": 3600, "events": halved.events},
        "alone": _alone(),
    }  # fmt: skip


class _Stage:
    """The only one of a run. Members are numbers."""

    def __init__(self, timeout: int) -> None:
        self.view = RunView(digest_of("run"), Domain(31337, checksum(bytes(range(20)))))
        self.accounts = [account_of(bytes(31) + bytes([number])) for number in range(1, 7)]
        self.events, self.time, founder = list[dict[str, Any]](), 1000, account_of(KEYS[2])
        terms: dict[str, Any] = dict(
            manifest=digest_of("manifest"), rounds=40, stages=1, min_replicas=3, max_replicas=8, quorum_numerator=5,
            quorum_denominator=8, horizon=8, min_round_time=10, round_timeout=timeout, eviction_time=60,
            max_inner_steps=100, start_time=0, tokens_per_step=64, invited=False, bond=0, outer=bytes(32),
        )  # fmt: skip
        self.tell(RunCreated, founder, RunConfig(**terms), "weights", (digest_of("genesis"),), (founder,))
        for number in range(3):
            self.join(number)
        self.tell(RunOpened, self.time)

    def tell(self, kind: Any, *said: Any) -> None:
        at = EventPosition(len(self.events) + 1, bytes(32), 0, bytes(32), self.time)
        self.view.apply(kind(self.view.run, *said, at))

    def join(self, number: int) -> None:
        account = self.accounts[number]
        self.tell(Joined, account, free_slot(self.view, 0, account, self.time), 0)
        self.events.append({"time": self.time, "join": number})

    def leave(self, number: int) -> None:
        account = self.accounts[number]
        self.tell(Left, account, *(self.view.slot_of(account) or ()))
        self.events.append({"time": self.time, "leave": number})

    def ask(self, *signers: int, by_founder: bool = False) -> dict[str, Any]:
        view, time = self.view, self.time
        signed = [self.accounts[number] for number in signers]
        found, pool = view.weigh(0, signed[:1], signed, time, by_founder), absent_now(view, 0, time)
        vacuum = view.weigh(0, (), signed, time, True).votes - view.weigh(0, (), signed, time, False).votes
        late = max(0, time - view.round_opened_at - view.config.round_timeout)
        asked = {
            "time": time, "signers": signers, "founder": by_founder, "late": late, "votes": found.votes,
            "total": found.total, "vacuum": vacuum, "pool": [pool.for_seals, pool.for_verdicts],
            "needed": view.needed(0, time), "needed_against_0": view.verdicts_needed(0, self.accounts[0]),
            "in_time": bool(signers) and found.makers >= fraction(view.config, found.total),
        }  # fmt: skip
        self.events.append(asked)
        return asked

    def seal(self, **steps: int) -> None:
        view, round, plan = self.view, self.view.next_round(0), Plan(4, 0, 100)
        counted = {int(name[1:]): taken for name, taken in steps.items()}
        makers = {view.maker(replica, 0): replica for replica in range(8)}
        records = sorted((makers[self.accounts[number]], number) for number in counted)
        made = tuple(Record(replica, digest_of("s"), 0, counted[number], 0, 32768) for replica, number in records)
        some, none = digest_of("weights"), bytes(32)
        hashes = (some, none, some, none) if made else (none, none, none, none)
        entry = bytes([192]) + bytes(65)  # as if a founder had signed it
        self.tell(Sealed, 0, round, digest_of(f"seal {round}"), Outcome(*hashes, 100, plan), made, entry)
        lanes = view.stages[0].lanes
        held = {number: view.member(one).lane for number, one in enumerate(self.accounts) if view.member(one).holds}
        after = {
            number: [lane, lanes.weights[lane], lanes.pay[lane], lanes.ages[lane]] for number, lane in held.items()
        }
        counts = [[number, counted[number]] for _, number in records]
        self.events.append({"time": self.time, "round": round, "seal": counts, "lanes": after})


def _forty_rounds(stage: _Stage) -> None:
    stage.ask(0, 1, 2)
    stage.ask(by_founder=True)
    for round in range(40):
        stage.time += 60 if round % 7 else 60 * (3 + round)
        if round == 5:
            stage.join(3)
        if round in (9, 30):
            stage.leave(1)
        if round == 12:
            stage.join(4)  # in the lane of 1
        if round == 18:
            stage.leave(2)
        if round in (20, 33):
            stage.join(1)
        if round == 30:
            stage.join(5)
            stage.leave(5)
        stage.ask(0, 1, by_founder=round < 3)
        stage.ask(1, 2, 3)
        took = {"_0": 100, "_1": 40 + round, "_2": 7 * round + 1, "_3": 99, "_4": 50}
        sitting = {f"_{number}" for number, one in enumerate(stage.accounts) if stage.view.member(one).holds}
        sitting |= {"_1"} if round == 9 else set()  # whose work counts although it left
        sitting -= {"_0"} if 22 <= round < 28 else set()
        stage.seal(
            **({} if round == 14 else {name: min(100, steps) for name, steps in took.items() if name in sitting})
        )


def _half_a_weight(stage: _Stage) -> None:
    """After 64 round timeouts half of an absent weight is left, exactly. The pool was rounded between, and has less."""
    timeout = stage.view.config.round_timeout
    stage.time += timeout
    stage.seal(_0=100, _1=1, _2=99)
    stage.leave(1)
    stage.time += timeout
    stage.leave(0)
    stage.join(0)
    stage.time += 63 * timeout
    stage.ask(0, by_founder=True)
    asked, held = stage.ask(1, 0, by_founder=True), sum(stage.view.stages[0].lanes.weights)
    assert asked["total"] - asked["vacuum"] - held == asked["pool"][0] + 1, "the signers have more than the pool"


def _alone() -> dict[str, list[int]]:
    """What comes of two lanes after so many seals, the first of which counts both alike, all others the first lane
    alone: weight and age of each."""
    lanes, found = Lanes.of(2), dict[str, list[int]]()
    for seals in range(120):
        counted = [0, 1] if not seals else [0]
        lanes = lanes.sealed(seals, 8, dict(zip(counted, shares([100] * len(counted), seals, 8), strict=True)))
        if seals + 1 in (1, 2, 15, 16, 17, 40) or seals >= 104:
            found[str(seals + 1)] = [*lanes.weights, *lanes.ages]
    assert max(max(one) for one in found.values()) == 65535
    return found


def _codecs() -> list[dict[str, Any]]:
    generator = np.random.default_rng(1)
    made: Tensors = {
        "model.embed_tokens.weight": generator.standard_normal((5, 3)),
        "model.layers.0.mlp.up_proj.weight": generator.standard_normal((24, 40)) * 1e-3,
        "model.norm.weight": np.concatenate([generator.standard_normal(130), [0.0, 1e-9]]),
    }
    tensors = {name: values.astype(np.float32) for name, values in made.items()}
    plans = [("int4", 4, 0), ("int4", 8, 0), ("ternary", 2, 0), ("lowrank", 4, 3), ("topk", 2, 32)]
    found = []
    for name, level, rank in plans:
        plan = CodecPlan(level, rank, 10)
        payload = codec(name).encode(tensors, plan)
        shapes = {key: values.shape for key, values in tensors.items()}
        decoded = codec(name).decode_arrays(payload, shapes, plan)
        found.append(
            {
                "codec": name,
                "level": level,
                "rank": rank,
                "tensors": _tensors(tensors),
                "payload": payload.hex(),
                "decoded": _tensors(decoded),
            }
        )
    return found


def _codes() -> list[dict[str, Any]]:
    """Small parts whose codes are written out, and what is refused beside them. Of `lowrank` these are the sign and the
    order of components, and exponents too large; of `topk` the places of values that are none."""
    name, found = "model.layers.0.mlp.up_proj.weight", list[dict[str, Any]]()

    def decoded(kind: str, shape: tuple[int, ...], plan: CodecPlan, payload: bytes) -> Tensors:
        return codec(kind).decode_arrays(payload, {name: shape}, plan)

    def add(kind: str, shape: tuple[int, ...], plan: CodecPlan, parts: Any, good: Any, refused: dict[str, Any]) -> None:
        payload, bad = parts(**good), {why: parts(**(good | change)) for why, change in refused.items()}
        for why, wrong in bad.items():
            try:
                decoded(kind, shape, plan, wrong)
            except CodecError:
                continue
            raise AssertionError(f"{kind} takes what is wrong: {why}")
        found.append(
            {"codec": kind, "level": plan.level, "rank": plan.rank}
            | {key: value for key, value in good.items() if key != "rest"}
            | {
                "decoded": _tensors(decoded(kind, shape, plan, payload)),
                "payload": payload.hex(),
                "refused": {why: wrong.hex() for why, wrong in bad.items()},
            }
        )

    def factors(exponents: list[int], components: list[list[int]], rest: int) -> bytes:
        """`rest` fills the last byte, where anything is left of it."""
        nibbles = [code % 16 for component in components for code in component]
        nibbles += [rest] * (len(nibbles) % 2)
        pairs = zip(nibbles[::2], nibbles[1::2], strict=True)
        return bytes(one % 256 for one in exponents) + bytes(low | high << 4 for low, high in pairs)

    # P of four codes, then Q of three. Of equal exponents the bytes decide: those of 2 are below those of -2.
    first, second, none = [0, 1, 2, -7, -3, 0, 5], [0, 1, -2, 4, 7, 2, -6], [0] * 7
    opposite, even = [0, -1, -2, 7, 3, 0, -5], [0, 2, 4, -6, -3, 0, 5]
    add("lowrank", (4, 3), CodecPlan(4, 3, 10), factors,
        {"exponents": [-3, -3, 0], "components": [first, second, none], "rest": 0},
        {
            "P's first code that is not zero is negative": {"components": [second, opposite, none]},
            "components in another order": {"components": [second, first, none]},
            "two equal components": {"components": [first, first, none]},
            "a lower exponent first": {"exponents": [-4, -3, 0]},
            "a code of -8": {"components": [[0, 1, 2, -8, -3, 0, 5], second, none]},
            "all codes of P are even": {"components": [second, even, none]},
            "a component of zeros before another": {"components": [first, none, second], "exponents": [-3, 0, -3]},
            "a component of zeros with an exponent": {"exponents": [-3, -3, -4]},
            "padding that is not zero": {"rest": 1},
        })  # fmt: skip

    # The highest exponent, and the widest spread that four components may have.
    limits, other = [100, 56, 56, 0], [1, 0, -3, 2, 5, -4, 0, 7]
    add("lowrank", (4, 4), CodecPlan(4, 4, 10), factors,
        {"exponents": limits, "components": [other, [*first, 1], [*second, 0], [0] * 8], "rest": 0},
        {
            "an exponent above 100": {"exponents": [101, 57, 57, 0]},
            "exponents too far apart": {"exponents": [100, 55, 55, 0]},
        })  # fmt: skip

    def groups(scales: list[float], codes: list[int], rest: int, bits: int = 4) -> bytes:
        """One group. `rest` is the last code of its padding."""
        padded = [*codes, *[0] * (127 - len(codes)), rest]
        data = sum(code % (1 << bits) << bits * index for index, code in enumerate(padded))
        return np.array(scales, "<f2").tobytes() + data.to_bytes(16 * bits, "little")

    def wide(**parts: Any) -> bytes:
        return groups(**parts, bits=8)

    # As factors this matrix would take as many bytes as it does so.
    codes = [7 * index % 15 - 7 for index in range(100)]
    add("lowrank", (10, 10), CodecPlan(4, 6, 10), groups, {"scales": [0.25], "codes": codes, "rest": 0}, {
        "a code of -8": {"codes": [-8, *codes[1:]]},
    })  # fmt: skip
    scaled: dict[str, dict[str, Any]] = {
        "a negative scale": {"scales": [-0.5]},
        "a scale of -0.0": {"scales": [-0.0], "codes": [0, 0, 0]},
        "an infinite scale": {"scales": [math.inf]},
        "a scale that is no number": {"scales": [math.nan]},
        "a scale of zero with codes": {"scales": [0.0]},
    }
    add("int4", (3,), CodecPlan(4, 0, 10), groups, {"scales": [0.5], "codes": [7, -3, 0], "rest": 0}, scaled | {
        "a code of -8": {"codes": [7, -8, 0]},
        "a scale without a code of 7 or -7": {"codes": [6, -3, 0]},
        "padding that is not zero": {"rest": 1},
    })  # fmt: skip
    add("int4", (3,), CodecPlan(8, 0, 10), wide, {"scales": [0.5], "codes": [-127, 3, 0], "rest": 0}, {
        "a code of -128": {"codes": [127, -128, 0]},
        "a scale without a code of 127 or -127": {"codes": [-126, 3, 0]},
    })  # fmt: skip

    def digits(scales: list[float], codes: list[int], rest: int) -> bytes:
        """Five to a byte. `rest` is the last one of the last byte."""
        fives = [[*codes, 0, 0, rest][start : start + 5] for start in range(0, len(codes) + 3, 5)]
        numbers = [sum(digit * 3**index for index, digit in enumerate(five)) for five in fives]
        return np.array(scales, "<f2").tobytes() + bytes(numbers)

    ternary: dict[str, Any] = {"scales": [0.5], "codes": [0, 1, 2, 0, 2, 1, 1], "rest": 0}
    add("ternary", (7,), CodecPlan(2, 0, 10), digits, ternary, scaled | {
        "a scale of -0.0": {"scales": [-0.0], "codes": [0] * 7},
        "a scale without digits": {"codes": [0] * 7},
        "a byte above 242": {"codes": [1, 0, 0, 0, 3, 1, 1]},
        "a digit after the last value": {"rest": 1},
    })  # fmt: skip

    def kept(magnitudes: list[float], places: list[int], codes: list[int], rest: int) -> bytes:
        """Of one chunk of 512 values, 4 kept: 2 high bits and 7 low ones of a place. `rest` fills the last byte."""
        marks = sum(1 << (place >> 7) + index for index, place in enumerate(places))
        lows = sum((place & 127) << 7 * index for index, place in enumerate(places)) | rest << 28
        choices = sum(code << 2 * index for index, code in enumerate(codes))
        head = np.array(magnitudes, "<f2").tobytes()
        return head + bytes([marks]) + lows.to_bytes(4, "little") + bytes([choices])

    full: dict[str, Any] = {"magnitudes": [0.25, 1.5], "places": [3, 200, 201, 511], "codes": [2, 1, 0, 3], "rest": 0}
    add("topk", (16, 32), CodecPlan(2, 32, 10), kept, full, {
        "low above high": {"magnitudes": [1.75, 1.5]},
        "a negative magnitude": {"magnitudes": [-0.25, 1.5]},
        "an infinite magnitude": {"magnitudes": [0.25, math.inf]},
        "low is not zero and not used": {"codes": [3, 1, 1, 3]},
        "high is not zero and not used": {"codes": [2, 0, 0, 2]},
        "places not ascending": {"places": [3, 201, 200, 511]},
        "one place twice": {"places": [3, 200, 200, 511]},
        "padding that is not zero": {"rest": 1},
    })  # fmt: skip
    # Two values of four: the first and the last in the list. The other two places are numbers 1 and 2 of the list.
    few: dict[str, Any] = {"magnitudes": [0.0, 1.5], "places": [0, 1, 2, 300], "codes": [1, 0, 0, 3], "rest": 0}
    add("topk", (16, 32), CodecPlan(2, 32, 10), kept, few, {
        "a place without a value that is not its number": {"places": [0, 1, 3, 300]},
        "a place without a value after one that has none either": {"places": [0, 2, 3, 300]},
        "a place without a value has a sign": {"codes": [1, 2, 0, 3]},
    })  # fmt: skip
    return found


def _outer() -> list[dict[str, Any]]:
    generator = np.random.default_rng(2)
    unequal, long = (10, 7, 10), (100_000, 99_999, 6_250)
    cases = (
        (0.8, 0.0, False, unequal, (32768, 32768, 20001), 0.01),
        (0.7, 0.9, True, unequal, (32768, 32768, 20001), 0.01),
        (1.0, 0.5, False, unequal, (32768, 32768, 20001), 0.01),
        (1.0, 0.0, False, unequal, (32768, 0, 20001), 0.01),  # what is dropped takes nothing from the others
        (0.7, 0.9, True, unequal, (0, 0, 0), 0.01),
        (1.0, 0.0, False, long, (32768, 32767, 32768), 0.01),  # numbers beyond 64 bits
        # Changes as large as the version, where each rounding shows; and the longest contribution is dropped.
        (0.7, 0.9, True, unequal, (32768, 32768, 20001), 1.0),
        (0.8, 0.0, False, (100, 7, 10), (0, 32768, 20001), 1.0),
        (0.7, 0.9, False, unequal, (32768, 20001, 32768), CodecPlan(2, 0, 10)),
        (0.7, 0.9, True, unequal, (20001, 32768, 32768), CodecPlan(2, 32, 10)),
    )
    found = []
    for lr, momentum, nesterov, steps, by, size in cases:
        version = {"a": generator.standard_normal((2, 3)), "b": generator.standard_normal(4)}
        version = {name: values.astype(np.float32) for name, values in version.items()}
        before = {name: (values * 0.1).astype(np.float32) for name, values in version.items()} if momentum else None
        gradients: list[Tensors] = [
            {
                name: (generator.standard_normal(values.shape) * (size if isinstance(size, float) else 1)).astype(
                    np.float32
                )
                for name, values in version.items()
            }
            for _ in steps
        ]
        sent: dict[str, Any] = {}
        if isinstance(size, CodecPlan):
            kind, shapes = "topk" if size.rank else "ternary", {name: one.shape for name, one in version.items()}
            payloads = [codec(kind).encode(one, size) for one in gradients]
            gradients = [codec(kind).decode_arrays(one, shapes, size) for one in payloads]
            sent = {"codec": kind, "level": size.level, "rank": size.rank, "payloads": [one.hex() for one in payloads]}
        its_parts = parts(steps, by)
        case: dict[str, Any] = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "inner_steps": steps, "multipliers": by,
            "parts": np.array(its_parts, "<f4").tobytes().hex(),
            "version": _tensors(version), "momentum_before": before and _tensors(before),
            "gradients": [_tensors(one) for one in gradients],
        } | sent  # fmt: skip
        outer = Outer(lr=lr, momentum=momentum, nesterov=nesterov)
        after = outer_step(version, before, gradients, its_parts, outer)
        found.append(case | {"next": _tensors(version), "momentum_after": after and _tensors(dict(after))})
    return found


def _start() -> list[dict[str, Any]]:
    """What a round with delay 1 starts from: a version less alpha times the own payload of the round before.
    It is as large as the version, so that each rounding shows."""
    generator, found = np.random.default_rng(5), list[dict[str, Any]]()
    for alpha, kind, plan in ((0.3, "int4", CodecPlan(4, 0, 10)), (1.0, "ternary", CodecPlan(2, 0, 10))):
        version, change = (
            {name: generator.standard_normal(size).astype(np.float32) for name, size in (("a", 5), ("b", 4))}
            for _ in range(2)
        )
        shapes, payload = {name: one.shape for name, one in version.items()}, codec(kind).encode(change, plan)
        with TemporaryDirectory() as folder:
            path = Path(folder) / hashlib.sha256(payload).hexdigest()
            path.write_bytes(payload)
            whole = SimpleNamespace(read_into=lambda out, name, start=0, version=version: np.copyto(out, version[name]))
            begun = Difference(whole, Payload(codec(kind), shapes, path, plan), rounded(alpha))
            start = {name: np.empty_like(values) for name, values in version.items()}
            for name, values in start.items():
                begun.read_into(values, name)
        found.append(
            {"alpha": alpha, "codec": kind, "level": plan.level, "rank": plan.rank, "payload": payload.hex()}
            | {"version": _tensors(version), "start": _tensors(start), "sha256": weights.weights_hash(start).hex()}
        )
    return found


def _policy() -> list[dict[str, Any]]:
    """Contributions of one seal: steps, payloads of a few numbers, how far a step reaches, what is sealed, what else
    may be signed, and what nobody may sign."""
    cases: dict[str, tuple[list[int], list[tuple[float, ...]], float]] = {
        "equals": ([10, 10, 10], [(3.0, 4.0), (4.0, 3.0), (5.0, 0.0)], 1.0),
        "one is ten times as long": ([10, 10, 10], [(3.0, 4.0), (40.0, 30.0), (5.0, 0.0)], 9.0),
        "a short round moves further a step": ([20, 5, 5], [(4.0, 0.0), (1.5, 0.5), (1.5, -0.5)], 1.0),
        "one that rounds to nothing": ([10, 10, 10], [(3.0, 4.0), (5.0, 0.0), (5e6, 0.0)], 1.0),
        "all are longer than a step reaches": ([10, 20, 10], [(3.0, 4.0), (10.0, 0.0), (5.0, 0.0)], 0.3),
        "one alone": ([10], [(3.0, 4.0)], 0.3),
        "of two neither is held against the other": ([10, 20], [(3e-9, 4e-9), (-30.0, 40.0)], 2.4),
        "two that pull against each other": ([1, 1], [(1.0, 0.0), (-1.0, 0.0)], 1.0),
        "one pulls against the others": ([10, 10, 10], [(1.0, 0.0), (1.0, 0.1), (-1.0, 0.0)], 1.0),
        "two of five": ([1] * 5, [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (-1.0, 0.1), (-3.0, 0.0)], 1.0),
        "two against two": ([1] * 4, [(1.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (-1.0, 0.0)], 1.0),
        "all three would go: nobody does": ([1, 1, 1], [(1.0, 0.0), (-0.5, 0.8), (-0.5, -0.8)], 1.0),
        "two against one of the others": ([1] * 5, [(1.0, 0.0), (1.0, 2.0), (1.0, 3.0), (-1.0, 2.0), (-1.0, 2.5)], 9.0),
        "zeros": ([1, 1, 1], [(0.0, 0.0), (0.0, 0.0), (1.0, 0.0)], 1.0),
        "a cosine just above the threshold": ([1, 1, 1], [(1.0, 0.0), (1.0, 0.0), (5e-10, 1.0)], 1.0),
        "a cosine just below it": ([1, 1, 1], [(1.0, 0.0), (1.0, 0.0), (-5e-10, 1.0)], 1.0),
        "surely below it": ([1, 1, 1], [(1.0, 0.0), (1.0, 0.0), (-5e-9, 1.0)], 1.0),
        "half may pull against most: whoever surely does may stay": (
            [1, 1, 1], [(1.0, 0.0, 0.0), (-5e-10, 1.0, 0.0), (-1.0, -1.0, 0.0)], 9.0,
        ),
    }  # fmt: skip
    found = []
    for name, (steps, payloads, reach) in cases.items():
        products = np.array(payloads) @ np.array(payloads).T
        case: dict[str, Any] = {"name": name, "inner_steps": steps, "payloads": payloads, "reach": reach}
        for policy in ("clip", "clip+cosine"):
            measured = measure(policy, steps, products.tolist(), reach)
            sealed = multipliers(measured)
            instead = [(at, other) for at, one in enumerate(sealed) for other in {one - 1, one + 1, 0, 32768} - {one}]
            others = [(*sealed[:at], other, *sealed[at + 1 :]) for at, other in sorted(instead) if other >= 0]
            case[policy] = {
                "multipliers": sealed,
                "signed": [one for one in others if not disagreement(measured, one)],
                "refused": [one for one in others if disagreement(measured, one)],
            }
        found.append(case)
    return found


def _exact() -> dict[str, Any]:
    """Lines of very different sizes: as float32 data, and of the functions as float64."""
    numbers = np.random.default_rng(5)

    def lines(*shape: int) -> np.ndarray:
        return (numbers.standard_normal(shape) * np.exp2(numbers.integers(-12, 12, (shape[0], 1)))).astype(np.float32)

    left, right, rows = lines(3, 9), lines(9, 2), np.array([2, 0, 2])
    factors = torch.from_numpy(left), torch.from_numpy(right)
    bases, counts = (0.9, 0.95, 0.999), (0, 1, 7, 1000)
    made = {
        "left": left,
        "right": right,
        "sums": grid.total(factors[0], [1]).numpy(),
        "scattered": grid.scattered(factors[0], torch.from_numpy(rows), 4).numpy(),
    }
    found: dict[str, Any] = {
        **_tensors(made),
        "rows": rows.tolist(),
        "products": _tensors({str(bits): grid.product(*factors, bits).numpy() for bits in (7, 15, 21)}),
        "powers": [[base, count, functions.power(base, count).hex()] for base in bases for count in counts],
    }
    arguments = np.concatenate([numbers.uniform(-30, 30, 12), [0.0, -0.0, 1.0, 0.5]])
    for name in ("exp", "log", "sin", "cos", "sigmoid", "tanh", "erf"):
        given = np.abs(arguments) + 1e-9 if name == "log" else arguments
        values = getattr(functions, name)(torch.from_numpy(given)).numpy()
        found[name] = {"of": given.astype("<f8").tobytes().hex(), "is": values.astype("<f8").tobytes().hex()}
    return found


def _average() -> dict[str, Any]:
    generator = np.random.default_rng(4)
    versions = [(generator.standard_normal(7) * 3).astype(np.float32) for _ in range(5)]
    mean = versions[0].copy()
    for number, version in enumerate(versions[1:], 2):
        approach(mean, version.copy(), 1 / number)
    average = Average(versions=4, every=10)
    return {
        "versions": [_tensors({"a": version}) for version in versions],
        "mean": _tensors({"a": mean}),
        "members": {str(version): members(average, version) for version in (0, 7, 10, 11, 30, 34, 41)},
        "average": {"versions": average.versions, "every": average.every},
    }


def _files() -> list[dict[str, Any]]:
    generator = np.random.default_rng(3)
    found = []
    for shapes in ({"b.weight": (2, 2), "a.weight": (3,), "é": (1,)}, {"w": (40, 40)}):
        tensors = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        data = weights.serialise(tensors)
        found.append(
            {
                "tensors": _tensors(tensors),
                "file": data.hex(),
                "sha256": weights.weights_hash(tensors).hex(),
                "merkle_root": tree_root([data]).hex(),
            }
        )
    return found


def _draw() -> dict[str, Any]:
    run, digests = digest_of("run"), [digest_of("stage 0"), digest_of("stage 1")]
    seed = seed_of(digest_of("block"), run, 7, digests)
    members = [account_of(key) for key in KEYS]
    segments = {replica: 5 - replica % 3 for replica in range(16)}  # some did fewer steps
    return {
        "block_hash": digest_of("block").hex(),
        "run": run.hex(),
        "round": 7,
        "digests": [one.hex() for one in digests],
        "seed": seed.hex(),
        "share": 0.3,
        "segments": list(segments.values()),
        "drawn": [[one.replica, one.segment] for one in draw(seed, 7, segments, 0.3)],
        "members": members,
        "checkers_of_replica_2_segment_1": checkers(seed, 2, 1, members),
    }


def _evaluation() -> dict[str, Any]:
    """Of replicas 0 to 7 but 5, which one stage does not count, three are drawn."""
    domain, replicas = Domain(31337, checksum(bytes(range(20)))), [[0, 1, 2, 3, 4, 6, 7], [*range(8)]]
    run, digests = digest_of("run"), [digest_of("stage 0"), digest_of("stage 1")]
    seals = [_seal_of(stage, run, digest, replicas[stage]) for stage, digest in enumerate(digests)]
    found = evaluation_of(seals, digest_of("block"), 3)
    said, previous = [], bytes(32)
    for stage, result in enumerate([(digest_of("activations"), 0, 0), (bytes(32), 2_345_678_901, 1024)]):
        made = Evaluation(run, 8, found.evaluators[0].replica, stage, previous, *result)
        signed = made.sign(domain, KEYS[stage])
        previous = signed.name
        said.append(
            {
                "fields": plain(vars(made)),
                "digest": made.digest(domain).hex(),
                "signer": account_of(KEYS[stage]),
                "signed": signed.encode().hex(),
                "name": signed.name.hex(),
            }
        )
    return {
        "chain_id": domain.chain_id,
        "ledger": domain.ledger,
        "block_hash": digest_of("block").hex(),
        "run": run.hex(),
        "round": 7,
        "digests": [one.hex() for one in digests],
        "counted": replicas,
        "replicas": 3,
        "version": found.version,
        "drawn": [one.replica for one in found.evaluators],
        "key": found.key.hex(),
        "held_out": 1000,
        "samples": found.places(12, 1000),
        "said": said,
    }


Word = tuple[int, int | None]  # a loss in micronats, and how many blocks late it is; None: never


def _stopping() -> list[dict[str, Any]]:
    """Which seals of a run may end it: where all lie, are late or say nothing."""

    def fall(t: int) -> list[Word]:
        return [(3_000_000 - 50_000 * t, 0)] * 3

    def lies(t: int) -> list[Word]:
        true = 5_000_000 - 100_000 * t
        said = 900_000_000 if t % 3 else true
        return [(said, 0), (said, 0), (true, 0)]

    def apart(t: int) -> list[Word]:
        return [(9_000_000, 0), (3_000_000, 0), (9_000_000 if t % 2 else 1, 0)]

    def late(t: int) -> list[Word]:
        return [(3_000_000, 0), (3_000_000 + t, 6 if t % 4 else 3), (2_000_000 if t == 6 else 3_000_000, 0)]

    def silent(t: int) -> list[Word]:
        third, fourth = None if t % 4 == 1 else 0, None if t % 4 < 3 else 10**6
        return [(3_000_000 - t, 0), (3_000_000, 0), (3_000_000, third), (4_000_000, fourth)]

    versions = range(1, 24)
    return [
        _stop_of("it falls by 0.1, which is below the float of 0.1", Stop(2, 0.1), 1, map(fall, versions)),
        _stop_of("it falls by 0.1, which is not below 0.0999", Stop(2, 0.0999), 1, map(fall, versions)),
        _stop_of("lies about half of a window and more", Stop(4, 0.0), 2, map(lies, range(1, 40))),
        _stop_of("the least and the greatest of three words", Stop(3, 0.01), 1, map(apart, versions)),
        _stop_of("one of three words is late", Stop(2, 0.001), 2, map(late, range(1, 30))),
        _stop_of("one or two of four words are missing", Stop(2, 0.5), 1, map(silent, versions)),
    ]


def _stop_of(why: str, stop: Stop, every: int, words: Iterable[list[Word]]) -> dict[str, Any]:
    """`words`: of each version from 1 on. Round r is sealed in block 5 r, and its evaluators' words are due 2 after."""
    run, block_hash, window, said = digest_of("run"), digest_of("block"), 6, dict[int, list[list[int] | None]]()
    sealed, heard, drawn = dict[tuple[int, int], Sealed](), dict[tuple[str, int], Any](), 0
    accounts = tuple(account_of(bytes(31) + bytes([1 + replica])) for replica in range(5))
    for round, spoken in enumerate(words):
        seal = _seal_of(0, run, digest_of(f"seal {round}"), [*range(5)])
        seal = replace(seal, round=round, accounts=accounts, at=replace(seal.at, block=5 * round))
        sealed[0, round], drawn = seal, len(spoken)
        if (round + 1) % every:
            continue
        evaluators = evaluation_of([seal], block_hash, drawn).evaluators
        said[round + 1] = [None if late is None else [loss, 1, 5 * round + 2 + late] for loss, late in spoken]
        for one, word in zip(evaluators, said[round + 1], strict=True):
            if word is not None:
                at = SimpleNamespace(block=word[2])
                heard[one.accounts[-1], round + 1] = SimpleNamespace(sum=word[0], count=word[1], at=at)
    evaluation, audit = SimpleNamespace(every=every, replicas=drawn), SimpleNamespace(draw_after=1, window=window)
    manifest: Any = SimpleNamespace(stop=stop, evaluation=evaluation, audit=audit)
    view: Any = SimpleNamespace(config=SimpleNamespace(stages=1), sealed=sealed)
    view.evaluation = lambda account, version: heard.get((account, version))
    over = [round for round in range(len(sealed) + 1) if is_over(view, manifest, round, lambda number: block_hash)]
    return {
        "why": why, "patience": stop.patience, "min_improvement": stop.min_improvement, "every": every,
        "window": window, "seal_blocks": [seal.at.block for seal in sealed.values()], "drawn": drawn, "said": said,
        "over": over,
    }  # fmt: skip


def _seal_of(stage: int, run: bytes, digest: bytes, replicas: list[int]) -> Sealed:
    records = tuple(Record(replica, bytes(32), 0, 1, 0, 32768) for replica in replicas)
    outcome, at = Outcome.empty(1, Plan(4, 0, 1)), EventPosition(1, bytes(32), 0, bytes(32), 0)
    accounts = tuple(account_of(KEYS[stage]) for _ in replicas)
    return Sealed(run, stage, 7, digest, outcome, records, b"", at, accounts)


def _tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        name: {"shape": list(values.shape), "data": values.astype("<f4").tobytes().hex()}
        for name, values in tensors.items()
    }


def _samples() -> dict[str, Any]:
    counts, places = [30, 0, 17, 44, 5, 26, 61, 12, 9, 38], [*range(0, 260, 7), *range(700, 720)]
    rounds: list[tuple[int, dict[int, int]]] = [  # positions of a lot, and what the counted replicas took of theirs
        (12, {0: 12, 3: 12}), (12, {3: 4}), (12, {}), (20, {0: 20, 3: 8, 4: 12}), (20, {1: 4, 3: 20}),
        (16, {1: 16, 3: 16}), (16, {0: 8, 1: 16, 3: 12}), (16, {}),
    ]  # fmt: skip
    runs = []
    for delay in (0, 1):
        dealing, lots = Dealing(5, delay), []
        for number, (need, _) in enumerate(rounds):
            lots.append([dealing.deal(need).lot(replica) for replica in range(5)])
            dealing = dealing.after(need, rounds[number - delay][1] if number >= delay else None)
        runs.append({"delay": delay, "lots": lots})
    return {
        "order": {"seed": 7, "counts": counts, "positions": places, "samples": SampleOrder(7, counts).ids(places)},
        "deals": {
            "replicas": 5,
            "rounds": [{"need": need, "taken": sorted(map(list, taken.items()))} for need, taken in rounds],
            "runs": runs,
        },
    }


def _pace() -> list[dict[str, Any]]:
    """What the slowest of three members of a stage sees, and the steps that it chooses; the second takes fewer steps,
    the third is hasty once, and its slot another's at last."""
    own, other, hasty, new = (account_of(bytes(31) + bytes([number])) for number in (1, 2, 3, 4))
    cases = []
    for delay in (0, 1):
        pace, events, held = Pace(own, delay, 10.0, None), list[list[Any]](), [own, other, hasty]

        def note(name: str, *said: Any, pace: Pace = pace, events: list[list[Any]] = events) -> None:
            events.append([name, *said])
            getattr(pace, {"came": "contributed"}.get(name, name))(*said)

        note("opened", delay, 100.0)
        now, ended = 100.0, dict.fromkeys(held, 100.0)
        for round in range(8):
            if round == 6:
                held = [own, other, new]
            steps = pace.steps(round, 40, held, now)
            events.append(["steps", round, 40, held, now, steps])
            done = {own: (now + 2 + steps + round % 3, steps), other: (ended[other] + 4 + 0.75 * 30, 30)}
            done[held[2]] = (ended.get(held[2], now) + (0.25 if round == 3 else 21 - round), 40)
            for account, (when, taken) in sorted(done.items(), key=lambda one: one[1]):
                note("came", round, account, taken, when)
            note("trained", round, steps, done[own][0] - now, None if round == 1 else 1 + round % 2 / 100)
            counted = {str(at): held[: 2 if at == 3 else 3] for at in range(max(0, round - 4), round + 1)}
            events.append(["sealed", counted])
            pace.sealed({int(at): frozenset(accounts) for at, accounts in counted.items()})
            opens = max(when for when, _ in done.values()) if delay == 0 else done[own][0] + 0.5
            note("opened", round + 1 + delay, opens)
            now = max(done[own][0], opens) if delay == 0 else done[own][0] + 1
            ended = {account: max(when, opens) if delay == 0 else when for account, (when, _) in done.items()}
        cases.append({"delay": delay, "grace": 10.0, "account": own, "events": events})
    return cases


def _sharing() -> dict[str, Any]:
    blob, peers = digest_of("blob"), [f"16Uiu2HAm{letter * 44}" for letter in "ABCDEFGHJK"]
    cases = [(peers, 100), (peers[:3], 100), (peers, 5), (peers[4:5], 7), ([], 7)]
    return {
        "shares": [
            {
                "hash": blob.hex(),
                "peers": given,
                "pieces": pieces,
                "shares": {peer: [share.start, share.stop] for peer, share in shares_of(blob, given, pieces).items()},
            }
            for given, pieces in cases
        ],
        "bitmaps": [{"pieces": pieces, "bits": bitmap(pieces).hex()} for pieces in ([], [0, 9], [1, 7, 8, 30])],
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, value in content().items():
        (FOLDER / file).write_text(written(value))
