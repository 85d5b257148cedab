"""docs/vectors: what the code gives, and what a stranger's verifier finds who has only the page to go by."""

import hashlib
import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from eth_hash.auto import keccak

from dlx import contracts
from dlx.ledger.bindings import Interface
from dlx.ledger.keys import account_of, recover
from tests.training.exact import second as exact
from tests.vectors import published
from tests.vectors import stranger as s

FILES = {path.name: json.loads(path.read_text()) for path in published.FOLDER.glob("*.json")}


def test_the_published_examples_are_of_this_protocol() -> None:
    made = {name: json.loads(published.written(value)) for name, value in published.content().items()}
    assert made == FILES, "the protocol changed: run python -m tests.vectors.published and say so in docs/protocol"


def test_a_stranger_signs_the_same_statements() -> None:
    known = FILES["statements.json"]
    domain = s.separator(b"dlx-node TrainingLedger", b"3", known["chain_id"], known["ledger"])
    assert domain.hex() == known["separator"]
    run = known["run"]
    manifest = bytes.fromhex(run["manifest"])
    assert s.run_id(known["chain_id"], known["ledger"], run["creator"], manifest).hex() == run["id"]
    plan = known["plan"]
    assert keccak(b"".join(map(s.word, (plan["level"], plan["rank"], plan["inner_steps"])))).hex() == plan["hash"]
    packed = bytes.fromhex(known["seal"]["packed"])
    for number, one in enumerate(known["contributions"]):
        fields, data = one["fields"], bytes.fromhex(one["statement"])
        assert s.statement(fields) == data and len(data) == 896
        assert hashlib.sha256(data).hexdigest() == one["name"]
        record = bytes.fromhex(one["record"])
        multiplier = int.from_bytes(record[-2:], "big")
        assert s.record(fields, bytes.fromhex(one["name"]), multiplier) == record
        assert packed[209 + 44 * number :][:44] == record
        told = s.contribution_digest(domain, bytes.fromhex(run["id"]), fields["round"], fields["stage"], record)
        assert told.hex() == one["digest"]
        assert recover(told, bytes.fromhex(one["signature"])) == account_of(bytes.fromhex(one["key"]))
    sealed = known["seal"]
    assert s.seal_digest(domain, packed).hex() == sealed["digest"]
    entries = bytes.fromhex(sealed["entries"])
    assert entries[0] == 0 and entries[1:66].hex() == sealed["signature"], "a vote, which proves its record too"
    assert entries[66] == 128 + 1 and entries[67:].hex() == known["contributions"][1]["signature"]
    report = known["report"]
    told = s.report_digest(domain, bytes.fromhex(run["id"]), 7, 1, report["made"], report["holding"], report["missing"])
    assert told.hex() == report["digest"]
    accused, conviction = known["contributions"][0], bytes.fromhex(known["conviction"])
    for number, one in enumerate(known["verdicts"]):
        about = 1, 7, accused["fields"]["account"], accused["name"]
        told = s.verdict_digest(domain, bytes.fromhex(run["id"]), *about, one["finding"], one["report"])
        assert told.hex() == one["digest"]
        entry = conviction[98 * number : 98 * number + 98]
        assert (entry[0], entry[1:33].hex(), entry[33:].hex()) == (one["finding"], one["report"], one["signature"])
        assert recover(told, entry[33:]) == account_of(bytes.fromhex(one["key"]))
    site = known["site"]
    told = s.site_digest(domain, bytes.fromhex(run["id"]), site["account"])
    assert told.hex() == site["digest"]
    assert recover(told, bytes.fromhex(site["signature"])) == account_of(bytes.fromhex(site["key"]))
    agreement = known["agreement"]
    assert s.agreement_digest(domain, agreement).hex() == agreement["digest"]
    for compute, waited, percent in known["exchanges"]:
        assert s.exchange(compute, waited) == percent, (compute, waited)
    registry = s.separator(b"dlx-node NodeRegistry", b"1", known["chain_id"], known["ledger"])
    wanted = known["registration"]
    assert s.registration_digest(registry, wanted["account"], wanted["nonce"]).hex() == wanted["digest"]


@pytest.mark.parametrize("case", FILES["codecs.json"], ids=lambda case: f"{case['codec']}-{case['level']}")
def test_a_stranger_decodes_the_same_bits(case: dict[str, Any]) -> None:
    shapes = {name: tensor["shape"] for name, tensor in case["tensors"].items()}
    found = s.decode(case["codec"], case["level"], case["rank"], shapes, bytes.fromhex(case["payload"]))
    for name, tensor in case["decoded"].items():
        assert struct.pack(f"<{len(found[name][1])}f", *found[name][1]).hex() == tensor["data"], name


@pytest.mark.parametrize("case", FILES["codes.json"], ids=lambda case: f"{case['codec']}-{case['payload'][:4]}")
def test_a_stranger_reads_the_same_codes_and_refuses_the_same_parts(case: dict[str, Any]) -> None:
    ((name, tensor),) = case["decoded"].items()
    plan = case["codec"], case["level"], case["rank"], {name: tensor["shape"]}
    _, values = s.decode(*plan, bytes.fromhex(case["payload"]))[name]
    assert _hex(values) == tensor["data"]
    for why, payload in case["refused"].items():
        with pytest.raises(AssertionError):
            s.decode(*plan, bytes.fromhex(payload))
            pytest.fail(why)


@pytest.mark.parametrize("case", FILES["outer.json"], ids=lambda case: f"{case['lr']}/{case['multipliers']}")
def test_a_stranger_takes_the_same_outer_step(case: dict[str, Any]) -> None:
    shapes = {name: tensor["shape"] for name, tensor in case["version"].items()}
    for payload, gradient in zip(case.get("payloads", ()), case["gradients"], strict=False):
        decoded = s.decode(case["codec"], case["level"], case["rank"], shapes, bytes.fromhex(payload))
        assert {name: _hex(values) for name, (_, values) in decoded.items()} == {
            name: tensor["data"] for name, tensor in gradient.items()
        }
    for name in case["version"]:
        before = case["momentum_before"]
        version, momentum = s.outer(
            _values(case["version"][name]),
            before and _values(before[name]),
            [_values(one[name]) for one in case["gradients"]],
            case["inner_steps"],
            case["multipliers"],
            case["lr"],
            case["momentum"],
            case["nesterov"],
        )
        assert _hex(version) == case["next"][name]["data"]
        if momentum is not None:
            assert _hex(momentum) == case["momentum_after"][name]["data"]
    assert _hex(s.parts(case["inner_steps"], case["multipliers"])) == case["parts"]


@pytest.mark.parametrize("case", FILES["start.json"], ids=lambda case: case["codec"])
def test_a_stranger_starts_from_the_same_weights(case: dict[str, Any]) -> None:
    shapes = {name: tensor["shape"] for name, tensor in case["version"].items()}
    sent = s.decode(case["codec"], case["level"], case["rank"], shapes, bytes.fromhex(case["payload"]))
    found = {name: s.start(_values(one), sent[name][1], case["alpha"]) for name, one in case["version"].items()}
    assert {name: _hex(values) for name, values in found.items()} == {n: t["data"] for n, t in case["start"].items()}
    file = s.canonical({name: (shapes[name], values) for name, values in found.items()})
    assert hashlib.sha256(file).hexdigest() == case["sha256"]


@pytest.mark.parametrize("name", ["clip", "clip+cosine"])
@pytest.mark.parametrize("case", FILES["policy.json"], ids=lambda case: case["name"])
def test_a_stranger_seals_and_signs_the_same_multipliers(case: dict[str, Any], name: str) -> None:
    found = s.policy(name, case["inner_steps"], case["payloads"], case["reach"])
    assert [s.multiplier(u, dropped) for u, dropped, *_ in found] == case[name]["multipliers"]
    assert case[name]["refused"]
    for sealed in case[name]["multipliers"], *case[name]["signed"], *case[name]["refused"]:
        may = all(s.may_sign(u, *bounds, each) for (u, _, *bounds), each in zip(found, sealed, strict=True))
        assert may == (sealed not in case[name]["refused"]), sealed


@pytest.mark.parametrize("optimiser", ["adamw", "muon", "shampoo"])
def test_a_stranger_finds_the_same_reach_of_a_step(optimiser: str) -> None:
    known = FILES["manifest.json"]
    for tensors, reach in zip(known["tensors"], known["reach"][optimiser], strict=True):
        values = {name: math.prod(shape) for name, shape in tensors.items()}
        matrices = sum(count for name, count in values.items() if name.split(".")[-2] in s.MATRICES)
        inner = json.loads(known["text"])["inner"] | {"optimiser": optimiser}
        assert s.reach(inner, matrices, sum(values.values()) - matrices) == pytest.approx(reach, rel=1e-12)


def test_a_stranger_sees_who_moved_the_model_too_far() -> None:
    for case in FILES["displacement.json"]:
        found = s.displacement(case["norms"], case["inner_steps"], case["multipliers"], case["reach"])
        assert found == case["verdict"], case


def test_a_second_implementation_computes_exactly_the_same() -> None:
    known = FILES["exact.json"]
    left, right, rows = _array(known["left"]), _array(known["right"]), np.array(known["rows"])
    for bits, product in known["products"].items():
        assert exact.product(left, right, int(bits)).tobytes().hex() == product["data"], bits
    assert exact.total(left).tobytes().hex() == known["sums"]["data"]
    assert exact.scattered(left, rows, 4).tobytes().hex() == known["scattered"]["data"]
    for base, count, value in known["powers"]:
        assert exact.power(base, count).hex() == value
    for name in ("exp", "log", "sin", "cos", "sigmoid", "tanh", "erf"):
        of, values = (struct.iter_unpack("<d", bytes.fromhex(known[name][key])) for key in ("of", "is"))
        assert [getattr(exact, name)(one) for (one,) in of] == [one for (one,) in values], name


def test_a_stranger_makes_the_same_average() -> None:
    case = FILES["average.json"]
    assert _hex(s.mean([_values(one["a"]) for one in case["versions"]])) == case["mean"]["a"]["data"]
    for version, known in case["members"].items():
        assert s.members(**case["average"], version=int(version)) == known


@pytest.mark.parametrize("case", FILES["files.json"], ids=lambda case: f"{len(case['file']) // 2}-bytes")
def test_a_stranger_writes_the_same_files(case: dict[str, Any]) -> None:
    tensors = {name: (one["shape"], _values(one)) for name, one in case["tensors"].items()}
    file = s.canonical(tensors)
    assert file.hex() == case["file"]
    assert hashlib.sha256(file).hexdigest() == case["sha256"]
    assert s.merkle_root(file).hex() == case["merkle_root"]


def test_a_stranger_draws_the_same_segments() -> None:
    case = FILES["draw.json"]
    block, run = bytes.fromhex(case["block_hash"]), bytes.fromhex(case["run"])
    digests = [bytes.fromhex(one) for one in case["digests"]]
    seed, drawn = s.draw(block, run, case["round"], digests, case["share"], case["segments"])
    assert seed.hex() == case["seed"] and drawn == case["drawn"]
    order = sorted(case["members"], key=lambda one: keccak(seed + b"\0\2\0\1" + bytes.fromhex(one[2:])))
    assert order == case["checkers_of_replica_2_segment_1"]


def test_a_stranger_draws_the_same_evaluators_and_samples_and_signs_the_same_evaluations() -> None:
    case = FILES["evaluation.json"]
    block, run = bytes.fromhex(case["block_hash"]), bytes.fromhex(case["run"])
    digests = [bytes.fromhex(one) for one in case["digests"]]
    drawn, key = s.evaluators(block, run, case["round"], digests, case["counted"], case["replicas"])
    assert drawn == case["drawn"] and key.hex() == case["key"]
    assert [s.permuted(key, place, case["held_out"]) for place in range(12)] == case["samples"]
    domain, previous = s.separator(b"dlx-node TrainingLedger", b"3", case["chain_id"], case["ledger"]), bytes(32)
    for one in case["said"]:
        assert one["fields"]["previous"] == previous.hex()
        data, signed = s.evaluation(one["fields"]), bytes.fromhex(one["signed"])
        assert s.digest(domain, keccak(s.EVALUATION_TYPE + data)).hex() == one["digest"] and signed[:256] == data
        assert recover(bytes.fromhex(one["digest"]), signed[256:]) == one["signer"]
        previous = hashlib.sha256(signed).digest()
        assert previous.hex() == one["name"]


@pytest.mark.parametrize("case", FILES["stopping.json"], ids=lambda case: str(case["why"]))
def test_a_stranger_ends_a_run_with_the_same_seals(case: dict[str, Any]) -> None:
    rounds = len(case["seal_blocks"])
    assert [round for round in range(rounds + 1) if s.may_end(case, round)] == case["over"]


def test_a_stranger_finds_the_same_samples_and_deals_the_same_lots() -> None:
    order, dealt = FILES["samples.json"]["order"], FILES["samples.json"]["deals"]
    assert s.samples(order["seed"], order["counts"], order["positions"]) == order["samples"]
    for run in dealt["runs"]:
        lots = [[[one for low, high in lot for one in range(low, high)] for lot in lots] for lots in run["lots"]]
        assert s.deals(dealt["replicas"], run["delay"], dealt["rounds"]) == lots


def test_a_stranger_recounts_the_same_weights() -> None:
    case, fields = FILES["weights.json"], ("lane", "weight", "pay", "age")
    asked = []
    for story in case, case["halved"]:
        weights = s.Weights(case["horizon"], story["round_timeout"])
        for event in story["events"]:
            match event:
                case {"time": time, "join": number}:
                    weights.join(time, number)
                case {"time": time, "leave": number}:
                    weights.leave(time, number)
                case {"round": round, "seal": records, "lanes": lanes}:
                    weights.seal(round, records)
                    found = {str(one["who"]): [one[name] for name in fields] for one in weights.lanes.values()}
                    assert found == lanes, round
                case {"time": time, "signers": signers, "founder": founder, "late": late, "needed": needed}:
                    found = weights.judge(time, signers, founder)
                    assert found == {name: event[name] for name in found}, event
                    assert weights.is_in_time(time, signers, founder, case["quorum"]) == event["in_time"], event
                    assert weights.convicts_with(0, time) == event["needed_against_0"], event
                    whole = weights.judge(time, [], False)["total"]
                    assert weights.seals_with(needed, whole, late, case["quorum"]), event
                    assert not weights.seals_with(needed - 1, whole, late, case["quorum"]), event
                    asked.append(event)
    for seals, lanes in case["alone"].items():
        assert s.Weights(case["horizon"], case["round_timeout"]).alone(int(seals)) == lanes, seals
    assert any(one["late"] for one in asked) and any(not one["vacuum"] for one in asked), (
        "the example tells rules apart"
    )


def test_a_stranger_knows_whose_slots_they_are() -> None:
    case = FILES["slots.json"]
    seen = set[str]()
    for run in case["runs"]:
        slots = s.Slots(case | run)
        for number, event in enumerate(run["events"]):
            slots.see(event)
            assert slots.state(event["time"]) == event["then"], (number, event)
            seen |= {*event, *event["then"]}
    assert seen >= {"join", "leave", "move", "accuse", "answer", "evict", "deal", "seal", "forfeit", "dealt"}


@pytest.mark.parametrize("case", FILES["pace.json"], ids=lambda case: f"delay {case['delay']}")
def test_a_stranger_takes_as_many_steps(case: dict[str, Any]) -> None:
    pace, chosen = s.Pace(case["delay"], case["grace"], case["account"]), []
    for name, *said in case["events"]:
        if name == "steps":
            *asked, steps = said
            assert pace.steps(*asked) == steps, asked
            chosen.append(steps)
        else:
            pace.see(name, *said)
    assert len(set(chosen)) > 2, "the example tells rules apart"


@pytest.mark.parametrize("case", FILES["traces.json"], ids=lambda case: f"stage {case['stage']} of {case['stages']}")
def test_a_stranger_takes_the_same_traces(case: dict[str, Any]) -> None:
    def is_true(data: str) -> bool:
        return s.trace_is_true(case["statement"], case["stage"], case["stages"], bytes.fromhex(data))

    assert is_true(case["trace"])
    assert s.recorded(case["stage"], case["statement"], bytes.fromhex(case["trace"])) == case["recorded"]
    assert not [why for why, data in case["refused"].items() if is_true(data)]


@pytest.mark.parametrize("case", FILES["continuity.json"], ids=lambda case: f"delay {case['delay']}: {case['why']}")
def test_a_stranger_finds_that_the_same_statements_follow_from_their_past(case: dict[str, Any]) -> None:
    of = {one["round"]: one for one in case["statements"]}
    assert all(s.follows(case, one) for one in case["statements"])
    assert not [one["why"] for one in case["refused"] if s.follows(case, of[one["round"]] | one["says"])]


def test_a_stranger_allows_the_same_steps() -> None:
    for case in FILES["trial.json"]:
        assert s.most_steps(**{key: one for key, one in case.items() if key != "most"}) == case["most"], case


def test_a_stranger_reads_the_same_of_a_manifest() -> None:
    case = FILES["manifest.json"]
    assert hashlib.sha256(case["text"].encode()).hexdigest() == case["sha256"]
    assert s.config(case["text"]) == {name: value for name, value in case["config"].items() if name != "outer"}
    for share, replicas, horizon in case["horizons"]:
        assert s.horizon(share, replicas) == horizon, (share, replicas)
    shapes = [s.tensors(case["text"], stage) for stage in (0, 1)]
    assert shapes == case["tensors"]
    for optimiser, hashes in case["unused"].items():
        assert [s.unused(optimiser, each) for each in shapes] == hashes, optimiser


def test_a_stranger_knows_the_contracts_wherever_they_are() -> None:
    for name, case in FILES["contracts.json"].items():
        code, address = bytearray(bytes.fromhex(contracts.load(name)["deployedBytecode"][2:])), bytes(range(1, 21))
        assert len(code) == case["length"]
        for at in case["immutables"]:
            code[at : at + 32] = bytes(range(32))
        for at in (place for places in case["libraries"].values() for place in places):
            code[at : at + 20] = address
        assert Interface(name).same_code(bytes(code)), name
        assert s.code_hash(case, bytes(code)) == case["keccak256"], name


def test_a_stranger_gives_everybody_the_same_shares() -> None:
    for case in FILES["sharing.json"]["shares"]:
        assert s.shares(bytes.fromhex(case["hash"]), case["peers"], case["pieces"]) == case["shares"]
    for case in FILES["sharing.json"]["bitmaps"]:
        bits = int.from_bytes(bytes.fromhex(case["bits"]), "little")
        assert [at for at in range(64) if bits >> at & 1] == case["pieces"]


def _values(tensor: dict[str, Any]) -> list[float]:
    data = bytes.fromhex(tensor["data"])
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _hex(values: list[float]) -> str:
    return struct.pack(f"<{len(values)}f", *values).hex()


def _array(tensor: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(tensor["data"]), "<f4").reshape(tensor["shape"])
