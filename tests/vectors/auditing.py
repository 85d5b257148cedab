"""Examples of what an auditor of a whole run needs: traces, what statements say of their past, how many steps they may
state, a manifest and what the ledger has of it, the contracts' code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from eth_hash.auto import keccak
from msgspec import structs

from dlx import contracts
from dlx.ground.constants import MOST_LOSS, NO_HASH
from dlx.ledger.keys import account_of
from dlx.ledger.typed import STATE_RESET, Contribution, Plan
from dlx.node.audit.displacement import Displacement
from dlx.node.round.rules.continuity import Counted, counted_before, faults, named_wrongly, next_needed
from dlx.node.round.rules.plans import RESETS, Terms
from dlx.node.round.rules.round_rules import base_version, is_folded, most_steps
from dlx.node.runs.find import config_of, horizon_of
from dlx.training.inner.states import unused
from dlx.training.models.shapes import stage_shapes
from dlx.training.outer.reach import reach_of_a_step
from dlx.training.recipe.draft import Draft, DraftData, DraftModel, complete
from dlx.training.recipe.manifest import Manifest, canonical_bytes, manifest_hash
from dlx.training.recipe.recipe import BlobRef, WeightsRef
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import Boundary, Step, Trace, agreement, stated_loss, trace_faults

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
        "continuity.json": [*(_continuity(delay) for delay in (0, 1)), *_limits()],
        "trial.json": _trial(),
        "displacement.json": _displacement(),
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
    """Of both stages of a replica, and of runs of one stage: what is true, and what is refused beside it. Segments
    have four steps, as in bfloat16."""
    # Any other order of the sum, the quotient and the product gives another integer.
    halfway = (2.5281665, 2.5281665, 2.7781666, 3.0281665, 3.0281664000000017)
    cases = ((0, 2, 1, (5.5, 5.4, 5.3)), (1, 2, 2, halfway), (0, 1, 1, (5.5,)), (0, 1, 1, (MOST_LOSS,)))
    found = []
    for stage, stages, segments, losses in cases:
        first, last, taken = stage == 0, stage == stages - 1, len(losses)

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
        # There is nothing before the first stage: 0.0, and -0.0 is as good.
        steps = tuple(
            Step((-0.0 if one == 1 else 0.0) if first else 1.0 + one, 2.0 + one, math.sqrt(3.0 + one), loss)
            for one, loss in enumerate(losses)
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
            "another loss": {"steps": (*steps[:-1], structs.replace(step, loss=min(5.0, step.loss) + taken * 1e-6))},
            "a loss above 1e9": {"steps": (*steps[:-1], structs.replace(step, loss=math.nextafter(1e9, math.inf)))},
        }
        if first:
            wrong["a sum from before the first stage"] = {"steps": (*steps[:-1], structs.replace(step, norm_in=0.5))}
        refused = {why: structs.replace(trace, **change) for why, change in wrong.items()}
        assert all(trace_faults(stated, stage, stages, one) for one in refused.values())
        data = trace.encode()
        found.append(
            {"stage": stage, "stages": stages, "statement": plain(vars(stated)), "trace": data.hex()}
            | {
                "recorded": {
                    side: agreement(boundaries, steps, behind=side == "before").hex()
                    for side, missing in (("before", first), ("after", last))
                    if not missing
                }
            }
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
    terms, uncounted, away, reset = _terms(delay), (2, 7, 8), (5, 9), 11
    past = _Past(terms)
    for round in range(13):
        past.seals.append([digest_of(f"another's of {round}")])
        if round not in away:
            past.add(round, counted=round not in uncounted, reset=round == reset)
    assert any(one.folded_payload2 != NO_HASH for one in past.made) == (delay == 1)
    lies = ((one, *lie) for one in past.made for lie in _altered(one, past.made, past.unused))
    refused = [(one, why, wrong) for one, why, wrong in lies if wrong != one and not past.follows(wrong)]
    return past.case("twelve rounds", refused)


def _limits() -> Iterator[dict[str, Any]]:
    """Short pasts, each with what a single rule refuses."""
    past = _Past(_terms(0))
    for round in (0, 16, 33):
        past.add(round, counted=False)
    first, second, third = past.made
    assert second.folded_payload == first.payload and third.folded_payload == NO_HASH
    yield past.case("what is older than 16 rounds is not folded back", [
        (second, "nothing is folded back", replace(second, folded_payload=NO_HASH)),
        (third, "a payload of 17 rounds before is folded back", replace(third, folded_payload=second.payload)),
    ])  # fmt: skip

    past = _Past(_terms(1))
    for round in (0, 1, 3, 5):
        past.add(round, counted=False, reset=round == 1, names_before=True)
    first, reset, third, fourth = past.made

    def both(one: Contribution, oldest: Contribution, second: Contribution) -> Contribution:
        return replace(one, folded_payload=oldest.payload, folded_payload2=second.payload)

    yield past.case("a second payload is folded back only of the round before, and not behind a reset", [
        (third, "what was before a reset is folded back", both(third, first, reset)),
        (fourth, "one that is not of the round before is folded back", both(fourth, reset, third)),
    ])  # fmt: skip

    past = _Past(_terms(0))
    blank = past.blank(0)
    other = replace(blank, payload=digest_of("other"), change=digest_of("another"), trace=digest_of("a third"))
    past.made.append(other)
    past.made.append(blank)
    past.seals.append([blank.hash()])
    past.add(2, counted=False)
    last = past.made[-1]
    after_other = replace(
        last, previous=other.hash(), folded_payload=other.payload, optimiser_before=other.optimiser_after,
        change_before=other.change, payload_before=other.payload,
    )  # fmt: skip
    none: dict[str, Any] = dict.fromkeys(("previous", "change_before", "payload_before"), NO_HASH)
    as_first = replace(last, **none, optimiser_before=past.unused)
    yield past.case("two contributions to one round, the second of them is counted", [
        (last, "the one that was not counted is the previous one", after_other),
        (last, "a first contribution, without a reset", as_first),
    ])  # fmt: skip

    past = _Past(_terms(1))
    for round in (1, 20, 40, 60):
        past.add(round, reset=True)
    past.add(61, counted=False, reset=True)
    past.add(64, counted=False)
    past.add(65, counted=False, reset=True)
    often = past.made[-2]
    yield past.case("four resets are counted in 64 rounds, as far as a start has their seals", [
        (often, "a fifth reset", _reset(often, past.unused)),
    ])  # fmt: skip

    past = _Past(replace(_terms(1), alpha=0.0))
    past.add(0)
    past.add(1)
    first, last = past.made
    yield past.case("a delay without alpha", [
        (last, "a payload in its start", replace(last, start_payload=first.payload)),
    ])  # fmt: skip


class _Past:
    """What one account states to a stage, and whom the stage's seals count."""

    def __init__(self, terms: Terms) -> None:
        self.terms, self.unused = terms, digest_of("unused")
        self.account, self.run = account_of(digest_of("key")), digest_of("run")
        self.made, self.seals = list[Contribution](), list[list[bytes]]()
        self.starts = dict[bytes, bytes]()  # the base version less alpha times a payload, by the payload

    def blank(self, round: int) -> Contribution:
        return Contribution(**_blank(self.run, self.account, round, self.terms.delay, self.unused))

    def add(self, round: int, *, counted: bool = True, reset: bool = False, names_before: bool = False) -> None:
        """An honest statement. A reset names the contribution before only on demand."""
        self.seals += [[] for _ in range(round + 1 - len(self.seals))]
        one = _made(self.terms, round, self.blank(round), self.made, self.seals, self.starts)
        if reset:
            one = replace(_reset(one, self.unused), previous=one.previous if names_before else NO_HASH)
        self.made.append(one)
        if counted:
            self.seals[round].append(one.hash())
        assert self.follows(one), round

    def follows(self, one: Contribution) -> bool:
        """By the code's own rules."""
        known = _follows(self.terms, one, self.made, self.seals, self.unused, self.starts)
        return known and not (one.flags & STATE_RESET and self._resets(one) >= RESETS)

    def _resets(self, one: Contribution) -> int:
        """How many of the account's contributions that count against another reset state one."""
        by_name = {each.hash(): each for each in self.made}
        sealed = _Seals()
        for round, names in enumerate(self.seals):
            records = [SimpleNamespace(statement=name) for name in names if name in by_name]
            sealed[0, round] = SimpleNamespace(records=records, accounts=[self.account for _ in records])
        view: Any = SimpleNamespace(sealed=sealed)
        return sum(bool(by_name[name].flags & STATE_RESET) for name in counted_before(self.terms, view, one))

    def case(self, why: str, refused: Iterable[tuple[Contribution, str, Contribution]]) -> dict[str, Any]:
        """`refused`: instead of which one, why, and what nobody may sign."""
        found = []
        for one, what, wrong in refused:
            assert not self.follows(wrong), what
            true, said = plain(vars(one)), plain(vars(wrong))
            differs = {name: value for name, value in said.items() if value != true[name]}
            found.append({"why": what, "round": one.round, "says": differs})
        return {
            "why": why,
            "delay": self.terms.delay,
            "alpha": self.terms.alpha,
            "unused": self.unused.hex(),
            "starts": {payload.hex(): start.hex() for payload, start in self.starts.items()},
            "seals": [[name.hex() for name in names] for names in self.seals],
            "statements": [plain(vars(one)) for one in self.made],
            "refused": found,
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
    if terms.alpha and last.round == round - 1:
        starts[last.payload] = digest_of(f"version {decided} less {last.round}")
        one = replace(one, start_payload=last.payload, weights_before=starts[last.payload])
    known = last.flags & STATE_RESET or not terms.delay
    late = [each for each in (made[-1:] if known else made[-2:]) if is_folded(terms, each.round, round)]
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
    """By the code's own rules, but for the number of resets."""
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
    """How many inner steps a contribution may state, by the rounds whose seals count its account, and with
    which multiplier they do."""
    found = []
    for delay, steps, round, counted in (
        (0, 1, 0, []), (0, 2, 0, []), (0, 40, 0, []), (0, 500, 0, []), (0, 40, 1, [0]), (0, 40, 70, [6]),
        (0, 40, 70, [7]), (1, 40, 1, [0]), (1, 40, 2, [0]), (1, 40, 2, [1]), (1, 500, 66, [2]), (1, 500, 66, [3]),
        (1, 500, 66, [64]), (1, 500, 66, [65]),
    ):  # fmt: skip
        for by in (32768, 1, 0):
            full, mine = SimpleNamespace(multiplier=32768), SimpleNamespace(multiplier=by)
            seals = (
                SimpleNamespace(records=[full, mine], accounts=["another", "own"])
                if at in counted
                else SimpleNamespace(records=[full], accounts=["another"])
                for at in range(round)
            )
            sealed = _Seals(((0, at), one) for at, one in enumerate(seals))
            view: Any = SimpleNamespace(sealed=sealed, next_round=lambda stage, round=round: round)
            most = most_steps(_terms(delay), view, 0, "own", round, Plan(4, 0, steps))
            case = {"delay": delay, "plan": steps, "round": round, "counted": counted, "multiplier": by, "most": most}
            found.append(case)
    return found


def _displacement() -> list[dict[str, Any]]:
    """What an audit says of the contributions of a seal: by the norms of their payloads, steps and multipliers."""
    found = []
    for norms, steps, by, reach in (
        ([3.0, 3.5, 2.5], [10, 10, 10], [32768, 32768, 32768], 1.0),
        ([1.0, 8.0, 1.0], [10, 10, 10], [32768, 32768, 32768], 1.0),  # just as far as may be
        ([1.0, 8.25, 1.0], [10, 10, 10], [32768, 32768, 32768], 1.0),
        ([1.0, 16.0, 1.0], [10, 10, 10], [32768, 16384, 32768], 1.0),
        ([2.0, 2.0, 8.5], [20, 20, 5], [32768, 32768, 32768], 1.0),  # in a quarter of the steps
        ([1.0, 9.0], [10, 10], [32768, 32768], 0.25),
        ([1.0, 40.0], [10, 10], [32768, 32768], 0.25),
        ([9.0], [10], [32768], 0.25),
        ([9.0], [10], [32768], 0.1),
        ([9.0, 1.0, 1.0], [10, 10, 10], [32768, 0, 0], 1.0),
        ([9.0, 0.0, 0.0], [10, 10, 10], [32768, 32768, 32768], 1.0),  # of zeros the reach is the measure
        ([8.0, 8.0, 8.0], [10, 10, 10], [32768, 32768, 32768], 0.01),
    ):
        said = list[str]()
        report: Any = SimpleNamespace(
            facts={}, add=lambda level, check, verdict, *why, said=said, **of: said.append(verdict)
        )
        made = zip(steps, by, strict=True)
        records = [SimpleNamespace(inner_steps=count, multiplier=each, loss=0) for count, each in made]
        sealed: Any = SimpleNamespace(records=records, accounts=[str(at) for at in range(len(by))], round=0, stage=0)
        sealed.digest = bytes(32)
        Displacement(report, 2).check(sealed, norms, reach)
        case = {"norms": norms, "inner_steps": steps, "multipliers": by, "reach": reach}
        found.append(case | {"verdict": said[0]})
    return found


_OPTIMISERS = ("adamw", "muon", "shampoo")


def _manifest() -> dict[str, Any]:
    draft = Draft(
        name="example", model=DraftModel(config=MODEL), stages=[(0, 1), (1, 2)], rounds=40, tokens_per_step=64,
        data=DraftData(source=["a.txt"], sequence_length=16, batch_size=4, micro_batches=2), bond=3,
    )  # fmt: skip
    genesis = [WeightsRef(digest_of(f"genesis {at}").hex(), 1000, digest_of(f"root {at}").hex()) for at in (0, 1)]
    manifest = complete(draft, genesis, BlobRef(digest_of("data").hex(), 1000), salt=digest_of("salt"))
    shares = ((0.0, 8), (0.01, 8), (0.08, 8), (0.088, 8), (0.09, 8), (0.5, 64), (0.6, 8), (1.0, 8), (0.01, 64))
    return {
        "text": canonical_bytes(manifest).decode(),
        "sha256": manifest_hash(manifest).hex(),
        "config": plain(vars(config_of(manifest))),
        "horizons": [[share, replicas, horizon_of(share, replicas)] for share, replicas in shares],
        "tensors": [{name: list(shape) for name, shape in stage_shapes(manifest, stage).items()} for stage in (0, 1)],
        "unused": {
            optimiser: [unused(_stepped_by(manifest, optimiser), stage).hex() for stage in (0, 1)]
            for optimiser in _OPTIMISERS
        },
        "reach": {
            optimiser: [reach_of_a_step(_stepped_by(manifest, optimiser), stage) for stage in (0, 1)]
            for optimiser in _OPTIMISERS
        },
    }


def _stepped_by(manifest: Manifest, optimiser: Any) -> Manifest:
    return structs.replace(manifest, inner=structs.replace(manifest.inner, optimiser=optimiser))


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
