"""What a check of a drawn contribution takes from its account's earlier statements."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import Contribution
from dlx.node.audit.inner_inputs import InnerInputs, MissingInputs
from tests.node.home.keys.test_slashing_protection import contribution, digest


def _plans(
    said: Contribution, segment: int, earlier: Sequence[Contribution], folder: Path, ahead: float = 0.0
) -> dict[bytes, Any]:
    """Of a run whose plan adapts, where these statements are to be had."""

    def get(name: bytes, limit: int) -> Path:
        found = next((one for one in earlier if one.hash() == name), None)
        if found is None:
            raise MissingInputs([name])
        (folder / name.hex()).write_bytes(found.encode())
        return folder / name.hex()

    inner = InnerInputs.__new__(InnerInputs)
    inner.terms = SimpleNamespace(adaptive=True, ahead=ahead)  # type: ignore[assignment]
    inner._plan = lambda stage, round: f"of round {round}"  # type: ignore[method-assign,assignment,return-value]
    return inner._own_plans(said, segment, get)


def test_who_hides_of_which_plan_its_last_payload_is_is_missed_and_not_excused(tmp_path: Path) -> None:
    """Without the plan nothing could be said of its residual, so of its change."""
    first = contribution(round=3, payload=30)
    said = replace(contribution(round=4), previous=first.hash(), payload_before=first.payload, segments=2)
    assert _plans(said, 1, [first], tmp_path) == {first.payload: "of round 3"}
    with pytest.raises(MissingInputs) as absent:
        _plans(said, 1, [], tmp_path)
    assert absent.value.blobs == (first.hash(),)
    assert _plans(said, 0, [], tmp_path) == {}, "only the last segment takes the residual"
    ahead = _plans(said, 0, [first], tmp_path, ahead=0.5)
    assert ahead == {first.payload: "of round 3"}, "and the first too, where the start has a part of it"
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
        first.payload: "of round 2",
        second.payload: "of round 3",
    }
    assert digest(30) == second.payload
