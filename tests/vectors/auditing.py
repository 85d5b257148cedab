"""Examples of what an auditor of a whole run needs: traces, what statements say of their past, how many steps they may
state, a manifest and what the ledger has of it, the contracts' code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from eth_hash.auto import keccak
from msgspec import structs

from dlx import contracts
from dlx.ground.constants import NO_HASH
from dlx.ledger.keys import account_of
from dlx.ledger.typed import STATE_RESET, Contribution, Plan
from dlx.node.round.rules.continuity import Counted, faults, named_wrongly, next_needed
from dlx.node.round.rules.plans import Terms
from dlx.node.round.rules.round_rules import base_version, most_steps
from dlx.node.runs.find import config_of
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.manifest import canonical_bytes, manifest_hash
from dlx.training.recipe.recipe import BlobRef, WeightsRef
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import Boundary, Step, Trace, stated_loss, trace_faults

MODEL: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None,
    "initializer_range": 0.02, "tie_word_embeddings": False,
}  # fmt: skip


def content() -> dict[str, Any]:
    """File name -> what belongs into it."""
    return {
        "traces.json": _traces(),
        "continuity.json": [_continuity(delay) for delay in (0, 1)],
        "trial.json": _trial(),
        "manifest.json": _manifest(),
        "contracts.json": _contracts(),
    }


def digest_of(name: str) -> bytes:
    """32 bytes that stand for the hash of something."""
    return bytes((7 * index + sum(name.encode())) % 256 for index in range(32))


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes as hex; nothing that is private to an object."""
    shown = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
    return {name: value for name, value in shown.items() if not name.startswith("_")}


def _traces() -> list[dict[str, Any]]:
    """Of both stages of a replica, and of a run of one stage: what is true, and what is refused beside it. Segments
    have four steps, as in bfloat16."""
    found = []
    for stage, stages, segments, taken in ((0, 2, 1, 3), (1, 2, 2, 5), (0, 1, 1, 1)):
        first, last = stage == 0, stage == stages - 1

        def hash_of(name: str, missing: bool) -> bytes:
            return NO_HASH if missing else digest_of(name)

        states = tuple(SegmentState(digest_of(f"w {one}"), digest_of(f"o {one}")) for one in range(segments + 1))
        boundaries = tuple(
            Boundary(
                activations_in=hash_of(f"activations in {one}", first),
                gradients_in=hash_of(f"gradients in {one}", last),
                activations_out=hash_of(f"activations out {one}", last),
                gradients_out=hash_of(f"gradients out {one}", first),
            )
            for one in range(segments)
        )
        steps = tuple(
            Step(norm_in=0.0 if first else 1.0 + one, norm_out=2.0 + one, norm=math.sqrt(3.0 + one), loss=5.5 - one / 7)
            for one in range(taken)
        )
        trace = Trace(states, boundaries, steps, (bytes([1]) * 65, bytes([2]) * 65))
        stated: Any = SimpleNamespace(
            weights_before=states[0].weights, optimiser_before=states[0].optimiser, change=states[-1].weights,
            optimiser_after=states[-1].optimiser, segments=segments, inner_steps=taken,
            loss=stated_loss([one.loss for one in steps]),
        )  # fmt: skip
        assert not trace_faults(stated, stage, stages, trace)
        end, edge, step = states[-1], boundaries[0], steps[-1]
        wrong: dict[str, dict[str, Any]] = {
            "another change": {"states": (*states[:-1], structs.replace(end, weights=digest_of("other")))},
            "another optimiser state": {"states": (*states[:-1], structs.replace(end, optimiser=digest_of("other")))},
            "a neighbour that there is not, or none that there is": {
                "boundaries": (
                    structs.replace(edge, activations_in=digest_of("other") if first else NO_HASH),
                    *boundaries[1:],
                )
            },
            "a falling sum of squares": {"steps": (*steps[:-1], structs.replace(step, norm_in=step.norm_out + 1))},
            "a norm that is too small": {"steps": (*steps[:-1], structs.replace(step, norm=0.5))},
            "a negative loss": {"steps": (*steps[:-1], structs.replace(step, loss=-5.5))},
            "a loss that is no number": {"steps": (*steps[:-1], structs.replace(step, loss=math.nan))},
            "another loss": {"steps": (*steps[:-1], structs.replace(step, loss=step.loss + taken * 1e-6))},
        }
        refused = {why: structs.replace(trace, **change) for why, change in wrong.items()}
        assert all(trace_faults(stated, stage, stages, one) for one in refused.values())
        data = trace.encode()
        found.append(
            {"stage": stage, "stages": stages, "statement": plain(vars(stated)), "trace": data.hex()}
            | {
                "refused": {why: one.encode().hex() for why, one in refused.items()}
                | {"a byte more": f"{data.hex()}00"}
            }
        )
    return found


def _terms(delay: int) -> Terms:
    return Terms(
        rounds=40, delay=delay, plan=Plan(4, 0, 40), codec="int4", adaptive=None, tokens_per_step=64,
        alpha=0.5 if delay else 0.0,
    )  # fmt: skip


def _continuity(delay: int) -> dict[str, Any]:
    """What one account states in twelve rounds of a stage: it is not counted in some, away in one, and loses its state
    in one; and what nobody may sign in their place."""
    terms, account, run = _terms(delay), account_of(digest_of("key")), digest_of("run")
    uncounted, away, reset = (2, 7, 8), (5, 9), 11
    unused, made, seals = digest_of("unused"), list[Contribution](), list[list[bytes]]()
    starts = dict[bytes, bytes]()  # the base version less alpha times a payload, by the payload
    for round in range(13):
        others = [digest_of(f"another's of {round}")]
        if round in away:
            seals.append(others)
            continue
        one = _made(terms, round, Contribution(**_blank(run, account, round, delay, unused)), made, seals, starts)
        if round == reset:
            one = _reset(one, unused)
        made.append(one)
        seals.append(others if round in uncounted else [*others, one.hash()])
        assert _follows(terms, one, made, seals, unused, starts), (delay, round)
    assert any(one.folded_payload2 != NO_HASH for one in made) == (delay == 1)
    refused = []
    for one in made:
        for why, wrong in _altered(one, made, unused):
            true, said = plain(vars(one)), plain(vars(wrong))
            differs = {name: value for name, value in said.items() if value != true[name]}
            if differs and not _follows(terms, wrong, made, seals, unused, starts):
                refused.append({"why": why, "round": one.round, "says": differs})
    return {
        "delay": delay,
        "alpha": terms.alpha,
        "unused": unused.hex(),
        "starts": {payload.hex(): start.hex() for payload, start in starts.items()},
        "seals": [[name.hex() for name in names] for names in seals],
        "statements": [plain(vars(one)) for one in made],
        "refused": refused,
    }


def _blank(run: bytes, account: str, round: int, delay: int, unused: bytes) -> dict[str, Any]:
    base = digest_of(f"version {max(0, round - delay)}")
    hashes = {name: NO_HASH for name, kind in Contribution.__annotations__.items() if "bytes" in str(kind).lower()}
    own = {name: digest_of(f"{name} of {round}") for name in ("payload", "change", "optimiser_after", "trace")}
    return hashes | own | {
        "run": run, "round": round, "stage": 0, "replica": 1, "account": account, "base_weights": base,
        "weights_before": base, "optimiser_before": unused, "payload_size": 1000, "plan": Plan(4, 0, 40).hash(),
        "inner_steps": 40, "loss": 5_000_000, "segments": 2, "compute_ms": 4000, "exchange_ms": 0, "kept": 0,
        "flags": 0,
    }  # fmt: skip


def _made(
    terms: Terms,
    round: int,
    blank: Contribution,
    made: Sequence[Contribution],
    seals: Sequence[Sequence[bytes]],
    starts: dict[bytes, bytes],
) -> Contribution:
    """What an honest member states after `made`."""
    if not made:
        return blank
    last, decided = made[-1], base_version(terms, round)
    begun = last.optimiser_after, last.change, last.payload
    one = replace(
        blank, previous=last.hash(), optimiser_before=begun[0], change_before=begun[1], payload_before=begun[2]
    )
    if terms.delay and last.round == round - 1:
        starts[last.payload] = digest_of(f"version {decided} less {last.round}")
        one = replace(one, start_payload=last.payload, weights_before=starts[last.payload])
    known = last.flags & STATE_RESET or not terms.delay
    late = [each for each in (made[-1:] if known else made[-2:]) if each.round < decided]
    late = [each for each in late if each is last or each.round == last.round - 1]
    folded = [each.payload for each in late if each.hash() not in seals[each.round]]
    oldest, second = [*folded, NO_HASH, NO_HASH][:2]
    return replace(one, folded_payload=oldest, folded_payload2=second)


def _reset(one: Contribution, unused: bytes) -> Contribution:
    none: dict[str, Any] = dict.fromkeys(
        ("change_before", "payload_before", "start_payload", "folded_payload", "previous"), NO_HASH
    )
    return replace(one, **none, weights_before=one.base_weights, optimiser_before=unused, flags=STATE_RESET)


def _altered(one: Contribution, made: Sequence[Contribution], unused: bytes) -> Iterator[tuple[str, Contribution]]:
    """One lie each."""
    other = made[0] if one is not made[0] else made[-1]
    yield "no previous contribution", replace(one, previous=NO_HASH)
    yield "another previous contribution", replace(one, previous=other.hash())
    yield "no payload in its start", replace(one, start_payload=NO_HASH)
    yield "a payload in its start", replace(one, start_payload=other.payload)
    yield "other weights", replace(one, weights_before=digest_of("other"))
    yield "another optimiser state", replace(one, optimiser_before=unused if one.previous != NO_HASH else other.change)
    yield "another change", replace(one, change_before=digest_of("other"))
    yield "another payload before", replace(one, payload_before=digest_of("other"))
    yield "nothing is folded back", replace(one, folded_payload=NO_HASH, folded_payload2=NO_HASH)
    yield "what was counted is folded back", replace(one, folded_payload=other.payload)
    yield "a reset, and a state", replace(one, flags=STATE_RESET)
    yield "a flag that means nothing", replace(one, flags=4)


def _follows(
    terms: Terms,
    one: Contribution,
    made: Sequence[Contribution],
    seals: Sequence[Sequence[bytes]],
    unused: bytes,
    starts: Mapping[bytes, bytes],
) -> bool:
    """By the code's own rules."""
    by_name = {each.hash(): each for each in made}
    counted = next(
        (
            Counted(round, name)
            for round in reversed(range(min(one.round, len(seals))))
            for name in seals[round]
            if name in by_name
        ),
        None,
    )
    if named_wrongly(one, counted):
        return False
    earlier = list[Contribution]()
    while (name := next_needed(terms, one, earlier)) is not None:
        earlier.append(by_name[name])

    def left_out(each: Contribution) -> bool:
        return each.hash() not in seals[each.round]

    return not faults(terms, unused, one, earlier, counted, left_out, starts.get(one.start_payload))


class _Seals(dict[tuple[int, int], Any]):
    def oldest(self, stage: int) -> int:
        return 0


def _trial() -> list[dict[str, Any]]:
    """How many inner steps a contribution may state, by the rounds whose seals count its replica."""
    found = []
    for delay, steps, round, counted in (
        (0, 1, 0, []), (0, 2, 0, []), (0, 40, 0, []), (0, 500, 0, []), (0, 40, 1, [0]), (0, 40, 70, [6]),
        (0, 40, 70, [7]), (1, 40, 1, [0]), (1, 40, 2, [0]), (1, 40, 2, [1]), (1, 500, 66, [2]), (1, 500, 66, [3]),
        (1, 500, 66, [64]), (1, 500, 66, [65]),
    ):  # fmt: skip
        mine, others = SimpleNamespace(replica=1), SimpleNamespace(replica=0)
        sealed = _Seals(
            ((0, at), SimpleNamespace(records=[others, mine] if at in counted else [others])) for at in range(round)
        )
        view: Any = SimpleNamespace(sealed=sealed, next_round=lambda stage, round=round: round)
        most = most_steps(_terms(delay), view, 0, 1, round, Plan(4, 0, steps))
        found.append({"delay": delay, "plan": steps, "round": round, "counted": counted, "most": most})
    return found


def _manifest() -> dict[str, Any]:
    draft = Draft(
        name="example", model=DraftModel(config=MODEL), stages=[(0, 1), (1, 2)], rounds=40, tokens_per_step=64,
        data=DraftData(source=["a.txt"], sequence_length=16, batch_size=4, micro_batches=2), bond=3,
    )  # fmt: skip
    genesis = [WeightsRef(digest_of(f"genesis {at}").hex(), 1000, digest_of(f"root {at}").hex()) for at in (0, 1)]
    manifest = complete(draft, genesis, BlobRef(digest_of("data").hex(), 1000), salt=digest_of("salt"))
    return {
        "text": canonical_bytes(manifest).decode(),
        "sha256": manifest_hash(manifest).hex(),
        "config": plain(vars(config_of(manifest))),
    }


def _contracts() -> dict[str, Any]:
    """Of each contract the length and the hash of its code, with zeros in the places that differ from one chain to
    another. Those are the words of `immutables`, and of each library its address, 20 bytes at each of these places."""
    found = {}
    for name in sorted(contracts.names()):
        artifact = contracts.load(name)
        code = bytearray(bytes.fromhex(artifact["deployedBytecode"].removeprefix("0x")))
        words = [place["start"] for place in artifact["immutableReferences"]]
        assert all(place["length"] == 32 for place in artifact["immutableReferences"])
        places = {library: sorted(starts) for library, starts in artifact["deployedLinks"].items()}
        for start, length in [*((at, 32) for at in words), *((at, 20) for one in places.values() for at in one)]:
            code[start : start + length] = bytes(length)
        found[name] = {
            "compiler": artifact["compiler"], "length": len(code), "immutables": sorted(words), "libraries": places,
            "keccak256": keccak(bytes(code)).hex(),
        }  # fmt: skip
    return found
