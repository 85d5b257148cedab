import csv
import io
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

from dlx.ledger.events import Convicted, EventPosition, Joined, RunCreated, RunOpened, Sealed
from dlx.ledger.index import seal_rows
from dlx.ledger.index.event_index import Contracts, EventIndex
from dlx.ledger.keys import account_of, sign
from dlx.ledger.typed import Domain, Outcome, Plan, Record, Seal, entries
from dlx.ledger.view.run_view import RunView
from dlx.node.cli.runs.history import _first_and_newest
from dlx.node.home.errors import Failure
from dlx.node.runs.held_out import HeldOut
from dlx.node.runs.history import History, history, plot, to_csv
from tests.ledger.ledger_run import config

RUN, KEY = b"\x01" * 32, b"\x02" * 32
DOMAIN = Domain(31337, "0x" + "00" * 20)
STAGES, TOKENS = 2, 1000


class Ledger:
    """A run of two stages and one replica whose seals the test states."""

    def __init__(self, rounds: int = 10) -> None:
        self.view, self.time = RunView(RUN, DOMAIN), 1_700_000_000
        self.index = EventIndex(None, 31337, Contracts("", ""))
        terms = config(rounds=rounds, stages=STAGES, min_replicas=1, max_replicas=1, tokens_per_step=TOKENS)
        account = account_of(KEY)
        self.view.apply(RunCreated(RUN, account, terms, "a-run", (b"\x04" * 32, b"\x05" * 32), (account,), self.at()))
        self.view.apply(Joined(RUN, account, 0, 0, self.at()))
        self.view.apply(Joined(RUN, account_of(b"\x06" * 32), 0, 1, self.at()))
        self.view.apply(RunOpened(RUN, self.time, self.at(0)))

    def at(self, seconds: int = 2000) -> EventPosition:
        self.time += seconds
        return EventPosition(self.time, bytes(32), 0, self.time.to_bytes(32, "big"), self.time)

    def seal(self, stage: int, round: int, loss: int = 0, steps: int = 1, **changes: Any) -> None:
        weights = bytes([stage, round]) * 16
        outcome = Outcome(weights, bytes(32), weights, bytes(32), max(1, steps), Plan(0, 4, 2))
        records = (Record(0, weights, loss, steps, 0, 32768),) if steps else ()
        outcome = replace(outcome, **changes) if steps else Outcome.empty(1, Plan(0, 4, 2))
        seal = Seal(RUN, stage, round, self.view.head(stage), outcome, records)
        key = KEY if stage == 0 else b"\x06" * 32
        digest = seal.digest(DOMAIN)
        signed = entries({account_of(key): (0, sign(digest, key))}, {})
        self.view.apply(Sealed(RUN, stage, round, digest, outcome, records, signed, self.at()))
        sealed = self.view.sealed[stage, round]
        self.index.keep(self.index.mark(), (0, 0), lambda db: seal_rows.write(db, self.view, [sealed]))


@pytest.fixture
def found() -> History:
    """Round 0 trained, round 1 was empty, round 2 trained, round 3 lacks its last stage."""
    ledger = Ledger()
    for round, loss, steps in ((0, 5_500_000, 1), (1, 0, 0), (2, 4_250_000, 2)):
        ledger.seal(0, round, loss - 1 if loss else 0, steps)
        ledger.seal(1, round, loss, steps)
    ledger.seal(0, 3)
    return history(ledger.index, ledger.view)


def test_the_loss_is_the_last_stages_and_tokens_are_counted_once(found: History) -> None:
    assert [row.loss for row in found.rounds] == [5.5, None, 4.25, None]
    assert [row.tokens for row in found.rounds] == [TOKENS, 0, 2 * TOKENS, TOKENS]
    assert [row.total_tokens for row in found.rounds] == [TOKENS, TOKENS, 3 * TOKENS, 4 * TOKENS]
    assert [row.sealed for row in found.rounds] == [True, True, True, False]
    last = found.rounds[2].stages[1]
    assert (last.stage, last.weights, last.contributions, last.signers) == (1, "0102" * 16, 1, 1)
    assert (last.next_level, last.next_rank, last.next_inner_steps) == (0, 4, 2)
    assert found.rounds[1].stages[1].weights == found.rounds[0].stages[1].weights, "an empty seal changes nothing"
    assert last.transaction.startswith("0x") and len(last.transaction) == 66


def test_the_first_held_out_loss_is_shown_beside_the_newest(found: History) -> None:
    assert _first_and_newest(found) == ""
    assert _first_and_newest(replace_struct(found, held_out_before=2.0)) == "2.0000 of version 0"
    losses = [3.0, None, 1.5, None]
    rows = tuple(replace_struct(row, held_out=loss) for row, loss in zip(found.rounds, losses, strict=True))
    told = replace_struct(found, rounds=rows)
    assert _first_and_newest(told) == "3.0000 of version 1, 1.5000 of version 3"
    assert _first_and_newest(replace_struct(told, held_out_before=4.0)) == "4.0000 of version 0, 1.5000 of version 3"


def test_the_plan_in_force_is_one_that_an_earlier_seal_planned() -> None:
    ledger = Ledger()
    ledger.seal(0, 0, plan=Plan(4, 8, 3))
    ledger.seal(1, 0, plan=Plan(4, 2, 3))
    for stage in (0, 1):
        ledger.seal(stage, 1, steps=1, plan=Plan(4, 16, 3))
    ranks = [stage.rank for stage in history(ledger.index, ledger.view).rounds[1].stages]
    assert ranks == [8, 2], "whatever the delay"
    for stage in (0, 1):
        ledger.seal(stage, 2, steps=3, plan=Plan(4, 16, 5))
    ranks = [stage.rank for stage in history(ledger.index, ledger.view).rounds[2].stages]
    assert ranks == [None, None], "two earlier seals planned three steps"
    for stage in (0, 1):
        ledger.seal(stage, 3, steps=5, plan=Plan(4, 16, 5))
    assert [stage.rank for stage in history(ledger.index, ledger.view).rounds[3].stages] == [16, 16], "as the steps say"


def test_convictions_are_listed_with_the_reports_that_say_why() -> None:
    ledger = Ledger()
    ledger.seal(0, 0)
    assert history(ledger.index, ledger.view).convictions == ()
    entries = b"".join(b"\2" + bytes([report]) * 32 + bytes(65) for report in (7, 8))
    ledger.view.apply(Convicted(RUN, account_of(KEY), 0, 0, b"\3" * 32, entries, ledger.at()))
    (row,) = history(ledger.index, ledger.view).convictions
    assert (row.account, row.stage, row.round, row.statement) == (account_of(KEY), 0, 0, "03" * 32)
    assert row.reports == ("07" * 32, "08" * 32) and row.time == ledger.time


def test_csv_has_a_line_per_round_and_columns_per_stage(found: History) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["loss"] for row in rows] == ["5.500000", "", "4.250000", ""]
    assert rows[0]["time"].endswith("Z") and rows[0]["stage0_weights"] == "0000" * 16
    assert rows[3]["stage1_weights"] == "" and rows[3]["stage0_weights"] != ""


def test_json_reads_back(found: History) -> None:
    assert msgspec.json.decode(msgspec.json.encode(found), type=History) == found


def test_the_plot_is_a_picture(found: History, tmp_path: Path) -> None:
    plot(found, tmp_path / "loss.png")
    data = (tmp_path / "loss.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 1000 and height > 600


def test_held_out_losses_are_those_of_the_version_that_a_round_made(tmp_path: Path) -> None:
    ledger = Ledger()
    for round in range(3):
        ledger.seal(0, round, 5_000_000)
        ledger.seal(1, round, 5_000_000)
    record = {
        2: HeldOut(2, 4.5, "token", (("0xaa", 4.5), ("0xbb", 4.75)), ("0xcc",)),
        3: HeldOut(3, None, "token", (), ()),
    }
    found = history(ledger.index, ledger.view, held_out=record)
    assert [row.held_out for row in found.rounds] == [None, 4.5, None]
    assert found.rounds[1].held_out_said == {"0xaa": 4.5, "0xbb": 4.75}
    assert found.rounds[1].held_out_missing == ("0xcc",)
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [row["held_out"] for row in rows] == ["", "4.500000", ""]
    plot(found, tmp_path / "both.png")
    plot(history(ledger.index, ledger.view), tmp_path / "trained.png")
    assert (tmp_path / "both.png").read_bytes() != (tmp_path / "trained.png").read_bytes()


def test_one_round_can_be_drawn_and_none_says_so(tmp_path: Path) -> None:
    ledger = Ledger()
    with pytest.raises(Failure, match="nothing to draw"):
        plot(history(ledger.index, ledger.view), tmp_path / "none.png")
    ledger.seal(0, 0)
    ledger.seal(1, 0, 3_000_000)
    plot(history(ledger.index, ledger.view), tmp_path / "one.png")
    with pytest.raises(Failure, match="cannot write"):
        plot(history(ledger.index, ledger.view), tmp_path / "missing" / "one.png")
