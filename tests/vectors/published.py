"""The examples in docs/vectors: what the code gives for fixed inputs, as JSON that any language reads.

Bytes are lowercase hex; tensors are {"shape", "data"}, the data float32, little-endian. After a change of the protocol
`python -m tests.vectors.published` in the repository's root writes the files anew; docs/protocol has to say what
changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dlx.ground.merkle import tree_root
from dlx.ledger.abi import checksum
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import (
    FALSE,
    WITHHELD,
    Contribution,
    Domain,
    Outcome,
    Plan,
    Report,
    Seal,
    SiteMember,
    Verdict,
    conviction_entries,
    entries,
    registration_digest,
    run_id,
)
from dlx.node.round.challenges.draw import checkers, draw, seed_of
from dlx.node.round.rules.pace import Pace
from dlx.p2p.sharing import bitmap, shares_of
from dlx.training.codecs import codec
from dlx.training.data.dealing import Dealing
from dlx.training.data.order import SampleOrder
from dlx.training.models import weights
from dlx.training.outer.arithmetic import approach
from dlx.training.outer.average import members
from dlx.training.outer.step import outer_step, parts
from dlx.training.recipe.recipe import Average, Outer
from dlx.training.recipe.recipe import Plan as CodecPlan

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "vectors"
KEYS = [bytes([0] * 31 + [number]) for number in (1, 2, 3)]  # known to everybody: never use them
Tensors = dict[str, np.ndarray]


def content() -> dict[str, Any]:
    """File name -> what belongs into it."""
    return {
        "statements.json": _statements(),
        "codecs.json": _codecs(),
        "outer.json": _outer(),
        "average.json": _average(),
        "files.json": _files(),
        "draw.json": _draw(),
        "samples.json": _samples(),
        "pace.json": _pace(),
        "sharing.json": _sharing(),
    }


def written(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _digest_of(name: str) -> bytes:
    """32 bytes that stand for the hash of something."""
    return bytes((7 * index + sum(name.encode())) % 256 for index in range(32))


def _statements() -> dict[str, Any]:
    domain = Domain(31337, checksum(bytes(range(20))))
    creator, makers = account_of(KEYS[0]), [account_of(key) for key in KEYS[1:]]
    run = run_id(domain.chain_id, domain.ledger, creator, _digest_of("manifest"))
    plan, made = Plan(4, 0, 10), []
    for replica, maker in enumerate(makers):
        fields: dict[str, Any] = {
            name: _digest_of(f"{name} {replica}")
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
    hashes = _digest_of("weights"), _digest_of("momentum"), _digest_of("weights root"), _digest_of("momentum root")
    seal = Seal(run, 1, 7, _digest_of("previous"), Outcome(*hashes, 10, Plan(4, 8, 20)), records)
    report = Report(run, 7, 1, 1_800_000_000_123, (made[0].hash(),), (made[1].hash(),))
    verdicts = [
        Verdict(run, 1, 7, makers[0], made[0].hash(), finding, _digest_of(f"report {finding}")).sign(domain, key)
        for finding, key in ((FALSE, KEYS[0]), (WITHHELD, KEYS[2]))
    ]
    digest, member = seal.digest(domain), SiteMember(run, makers[0])
    signed = {makers[0]: (0, sign(digest, KEYS[1]))}
    return {
        "chain_id": domain.chain_id,
        "ledger": domain.ledger,
        "separator": domain.separator.hex(),
        "run": {"creator": creator, "manifest": _digest_of("manifest").hex(), "id": run.hex()},
        "plan": {"level": 4, "rank": 0, "inner_steps": 10, "hash": plan.hash().hex()},
        "contributions": [
            {
                "key": key.hex(),
                "fields": _plain(vars(one)),
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
            for key, one in zip((KEYS[0], KEYS[2]), verdicts, strict=True)
        ],
        "conviction": conviction_entries(verdicts).hex(),
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
    }


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


def _outer() -> list[dict[str, Any]]:
    generator = np.random.default_rng(2)
    steps, multipliers = (10, 7, 10), (32768, 32768, 20001)
    found = []
    for lr, momentum, nesterov in ((0.8, 0.0, False), (0.7, 0.9, True), (1.0, 0.5, False)):
        version = {"a": generator.standard_normal((2, 3)), "b": generator.standard_normal(4)}
        version = {name: values.astype(np.float32) for name, values in version.items()}
        before = {name: (values * 0.1).astype(np.float32) for name, values in version.items()} if momentum else None
        gradients = [
            {
                name: (generator.standard_normal(values.shape) * 0.01).astype(np.float32)
                for name, values in version.items()
            }
            for _ in steps
        ]
        case: dict[str, Any] = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "inner_steps": steps, "multipliers": multipliers,
            "version": _tensors(version), "momentum_before": before and _tensors(before),
            "gradients": [_tensors(one) for one in gradients],
        }  # fmt: skip
        outer = Outer(lr=lr, momentum=momentum, nesterov=nesterov)
        after = outer_step(version, before, gradients, parts(steps, multipliers), outer)
        found.append(case | {"next": _tensors(version), "momentum_after": after and _tensors(dict(after))})
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
    run, digests = _digest_of("run"), [_digest_of("stage 0"), _digest_of("stage 1")]
    seed = seed_of(_digest_of("block"), run, 7, digests)
    members = [account_of(key) for key in KEYS]
    segments = {replica: 5 - replica % 3 for replica in range(16)}  # some did fewer steps
    return {
        "block_hash": _digest_of("block").hex(),
        "run": run.hex(),
        "round": 7,
        "digests": [one.hex() for one in digests],
        "seed": seed.hex(),
        "share": 0.3,
        "segments": list(segments.values()),
        "drawn": [[one.replica, one.segment] for one in draw(seed, 7, segments, 0.3)],
        "members": members,
        "checkers_of_replica_2": checkers(seed, 2, members),
    }


def _tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        name: {"shape": list(values.shape), "data": values.astype("<f4").tobytes().hex()}
        for name, values in tensors.items()
    }


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
    return {name: value for name, value in shown.items() if not name.startswith("_")}


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
    blob, peers = _digest_of("blob"), [f"16Uiu2HAm{letter * 44}" for letter in "ABCDEFGHJK"]
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
