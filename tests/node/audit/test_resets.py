"""Who begins from zeros again and again is counted, and warned of."""

from types import SimpleNamespace
from typing import Any

import pytest

from dlx.ledger.typed import PRIVATE_DATA, STATE_RESET
from dlx.node.audit.report import Report
from dlx.node.audit.resets import Resets, densest
from dlx.node.round.rules.plans import RESET_WINDOW, RESETS

A, B = "0x" + "11" * 20, "0x" + "22" * 20


@pytest.mark.parametrize(
    ("rounds", "most"),
    [
        ([], 0), ([5], 1), ([0, RESET_WINDOW - 1], 2), ([0, RESET_WINDOW], 1), ([0, 1, 2, 70, 71, 72, 73], 4),
        (range(200), RESET_WINDOW),
    ],
)  # fmt: skip
def test_the_densest_stretch_counts(rounds: Any, most: int) -> None:
    assert densest(rounds) == most


def _report(flags: dict[str, list[int | None]]) -> Report:
    """Of a stage whose seals count these statements' flags, by account; None: nobody has the statement."""
    report = Report(bytes(32))
    resets = Resets(report)
    for round, said in enumerate(zip(*flags.values(), strict=True)):
        sealed: Any = SimpleNamespace(round=round, stage=1, accounts=tuple(flags))
        made: Any = [
            None if one is None else SimpleNamespace(account=account, flags=one)
            for account, one in zip(flags, said, strict=True)
        ]
        resets.check(sealed, made)
    resets.close()
    return report


def test_who_resets_in_every_round_is_warned_of_and_nobody_else_is() -> None:
    rounds = RESETS + 1
    report = _report({A: [STATE_RESET] * rounds, B: [STATE_RESET | PRIVATE_DATA, *[0] * (rounds - 2), None]})
    (check,) = report.checks
    assert (check.check, check.verdict, check.stage) == ("resets", "WARN", 1) and check.detail.startswith(A)
    assert "in 5 of 64 rounds" in check.detail
    assert report.notes == [
        f"{A} reset its state in 5 of 5 rounds of stage 1", f"{B} reset its state in 1 of 5 rounds of stage 1",
    ]  # fmt: skip


def test_a_disk_may_die_now_and_then() -> None:
    assert not _report({A: [STATE_RESET] * RESETS + [0] * 60 + [STATE_RESET] * RESETS}).checks
