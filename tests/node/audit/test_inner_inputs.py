"""What a check of a drawn segment takes from its account's earlier statements."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlx.ground.blobs import write_blob
from dlx.ground.constants import NO_HASH, UNIT
from dlx.ledger.typed import Agreement, Contribution, account_of, sign
from dlx.ledger.typed import Plan as LedgerPlan
from dlx.node.audit.inner_inputs import FalseStatement, InnerInputs, MissingInputs
from dlx.node.round.challenges.draw import Drawn
from dlx.node.round.rules.plans import Terms
from dlx.training.recipe.recipe import Adaptive, Plan
from dlx.training.slot.segments import SegmentState
from dlx.training.slot.trace import NO_SIGNATURE, Boundary, Step, Trace, agreement
from tests.node.made_statements import DOMAIN, RUN, contribution, digest


def plan_of(round: int) -> Plan:
    return Plan(4, round, 10)


class PlannedInputs(InnerInputs):
    """Of a run whose plan of each round has the round's number as its rank."""

    def __init__(self, ahead: float) -> None:
        self.terms = Terms(
            rounds=9, delay=1, plan=LedgerPlan(4, 0, 10), codec="int4", adaptive=Adaptive(90), tokens_per_step=1000,
            ahead=ahead,
        )  # fmt: skip

    def _plan(self, stage: int, round: int) -> Plan:
        return plan_of(round)


def _plans(
    said: Contribution, segment: int, earlier: Sequence[Contribution], folder: Path, ahead: float = 0.0
) -> dict[bytes, Plan]:
    """Of a run whose plan adapts, where these statements are to be had."""

    def get(name: bytes, limit: int) -> Path:
        found = next((one for one in earlier if one.hash() == name), None)
        if found is None:
            raise MissingInputs([name])
        (folder / name.hex()).write_bytes(found.encode())
        return folder / name.hex()

    return PlannedInputs(ahead)._own_plans(said, segment, get)


def test_who_hides_of_which_plan_its_last_payload_is_is_missed_and_not_excused(tmp_path: Path) -> None:
    """Without the plan nothing could be said of its residual, so of its change."""
    first = contribution(round=3, payload=30)
    said = replace(contribution(round=4), previous=first.hash(), payload_before=first.payload, segments=2)
    assert _plans(said, 1, [first], tmp_path) == {first.payload: plan_of(3)}
    with pytest.raises(MissingInputs) as absent:
        _plans(said, 1, [], tmp_path)
    assert absent.value.blobs == (first.hash(),)
    assert _plans(said, 0, [], tmp_path) == {}, "only the last segment takes the residual"
    ahead = _plans(said, 0, [first], tmp_path, ahead=0.5)
    assert ahead == {first.payload: plan_of(3)}, "and the first too, where the start has a part of it"
    anew = replace(said, previous=NO_HASH, payload_before=NO_HASH)
    assert _plans(anew, 1, [], tmp_path) == {}


def test_what_is_folded_back_may_be_two_contributions_ago(tmp_path: Path) -> None:
    first = contribution(round=2, payload=20)
    second = replace(contribution(round=3, payload=30), previous=first.hash())
    said = replace(
        contribution(round=4), previous=second.hash(), payload_before=second.payload,
        folded_payload=first.payload, folded_payload2=second.payload,
    )  # fmt: skip
    assert _plans(said, 0, [first, second], tmp_path) == {
        first.payload: plan_of(2),
        second.payload: plan_of(3),
    }
    assert digest(30) == second.payload


def test_a_trace_that_its_neighbour_did_not_sign_is_false_before_anything_is_replayed(tmp_path: Path) -> None:
    """Two stages of replica 1; the first publishes another sum than it agreed on."""
    keys = [bytes([0x11 + stage]) * 32 for stage in range(2)]
    honest, other = [_signed(stage, 0.5, keys) for stage in range(2)], _signed(0, 0.25, [keys[0], keys[0]])

    def work(traces: Sequence[Trace], stage: int, came: int = 9) -> None:
        said = []
        for at, trace in enumerate(traces):
            made = contribution(stage=at)
            name = write_blob(tmp_path, [trace.encode()])
            said.append(replace(made, account=account_of(keys[at]), trace=name))
            write_blob(tmp_path, [said[-1].encode()])
        sealed = {
            (at, 4): SimpleNamespace(
                run=RUN, round=4, records=(one.record(UNIT),), accounts=(account_of(keys[at]),)
            )
            for at, one in enumerate(said)
        }  # fmt: skip
        sealed |= {(at, 3): SimpleNamespace(at=SimpleNamespace(time=came)) for at in range(2)}
        view = SimpleNamespace(
            run=RUN, domain=DOMAIN, sealed=sealed, config=SimpleNamespace(stages=2), started_at=1,
            accounts=tuple(map(account_of, keys)), joined_at=lambda account: 5,
        )  # fmt: skip
        drawn = Drawn(4, 1, stage, 0, said[stage].account, said[stage].hash(), bytes(32), frozenset())
        inputs = PlannedInputs(0.0)
        inputs.manifest = SimpleNamespace(precision="float32", outer=SimpleNamespace(delay=0))  # type: ignore[assignment]
        inputs.view = view  # type: ignore[assignment]
        get = lambda name, limit: tmp_path / name.hex()  # noqa: E731
        inputs._require_agreed(drawn, said[stage], traces[stage].encode(), get)

    for stage in range(2):
        work(honest, stage)
    with pytest.raises(FalseStatement, match=r"stage 1 has not signed.*agreed with stage 1 on other tensors or norms"):
        work([other, honest[1]], 0)
    work([other, honest[1]], 1)
    work([other, honest[1]], 0, came=4)  # its neighbour came later, so who left may have signed it


def _signed(stage: int, norm: float, keys: Sequence[bytes]) -> Trace:
    """The trace of one of two stages, of one segment and ten steps, signed by the other's key."""
    state, first = SegmentState(digest(1), digest(2)), stage == 0
    boundary = (
        Boundary(NO_HASH, digest(5), digest(4), NO_HASH) if first else Boundary(digest(4), NO_HASH, NO_HASH, digest(5))
    )
    step = Step(0.0, norm, 2.0, 3.0) if first else Step(norm, 4.0, 2.0, 3.0)
    recorded = agreement([boundary], [step] * 10, behind=stage == 1)
    signature = sign(Agreement(RUN, 4, 1, 0, recorded).digest(DOMAIN), keys[1 - stage])
    agreed = (NO_SIGNATURE, signature) if first else (signature, NO_SIGNATURE)
    return Trace((state, state), (boundary,), (step,) * 10, agreed)
