"""What a check of a drawn contribution takes from its account's earlier statements."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import Contribution
from dlx.ledger.typed import Plan as LedgerPlan
from dlx.node.audit.inner_inputs import InnerInputs, MissingInputs
from dlx.node.round.rules.plans import Terms
from dlx.training.recipe.recipe import Adaptive, Plan
from tests.node.made_statements import contribution, digest


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
