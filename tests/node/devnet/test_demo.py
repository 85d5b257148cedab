"""What the demo says of a run under way, without a run."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from rich.console import Console

from dlx.ground.limits import cores
from dlx.ledger.events import EventPosition, Sealed
from dlx.ledger.typed import UNIT, Outcome, Plan, Record
from dlx.ledger.view.run_view import RunView
from dlx.node.cli.devnet import demo as command
from dlx.node.daemon.api.status import Bytes, Traffic
from dlx.node.devnet import demo
from dlx.node.devnet.demo import Observed
from dlx.node.devnet.devnet import draft
from dlx.node.devnet.terminal import fitting, round_line, terminal_plot
from dlx.node.devnet.times import lasts, measured_round
from dlx.node.home.errors import Failure
from dlx.training.balance.measured import Measured
from dlx.training.recipe.draft import Draft, draft_from_toml
from tests.ledger.ledger_run import config
from tests.node.daemon.api.test_http import STATUS

STARTED, STAGES, TOKENS = 1_800_000_000, 2, 1000


class View(RunView):
    """A run of two complete replicas, as far as its seals go."""

    config = config(stages=STAGES, tokens_per_step=TOKENS)

    def __init__(self) -> None:
        self.sealed: dict[tuple[int, int], Sealed] = {}

    def complete_replicas(self) -> tuple[int, ...]:
        return (0, 1)

    def next_round(self, stage: int) -> int:
        return sum(found == stage for found, _ in self.sealed)

    def apply(self, event: Sealed) -> None:
        self.sealed[event.stage, event.round] = event


def observed(*rounds: tuple[int, int]) -> Observed:
    """A run of which each round took place so many seconds after this process began, and counted so many replicas."""
    made = Observed(View(), started=STARTED)
    for round, (seconds, count) in enumerate(rounds):
        for stage in range(STAGES):
            records = tuple(Record(r, bytes(32), 2_500_000, 1, 0, UNIT) for r in range(count))
            at = EventPosition(round, bytes(32), 0, b"\xab" * 32, STARTED + seconds)
            outcome = Outcome(*(bytes(32),) * 4, 1, Plan(4, 0, 1))
            made.apply(Sealed(bytes(32), stage, round, b"\xcd" * 32, outcome, records, b"", at))
        assert list(made.complete(now=STARTED + seconds)) == [round]
    traffic = Traffic.of(
        {"payload": (900_000, 1), "pipe": (21_000_000, 1), "blobs": (5, 5), "relayed": (0, 0), "gossip": (7, 7)}
        | dict.fromkeys(("signalling", "chain"), (3, 3))
    )
    status = replace(STATUS, peers=3, traffic=traffic, checks=None)
    made.statuses = {"node-0": status, "node-1": status}
    return made


def test_a_round_has_the_ledgers_number_and_its_work() -> None:
    line = round_line(observed((10, 2), (20, 1)), 1)
    assert line.plain == "round   1  loss 2.500      100 tokens/s  counted 1 of 2 replicas"


@pytest.mark.parametrize("terminal", [True, False])
def test_work_that_was_left_out_is_amber_on_a_terminal_and_plain_in_a_pipe(terminal: bool) -> None:
    made, shown = observed((10, 2), (20, 1)), io.StringIO()
    console = Console(file=shown, force_terminal=terminal, color_system="standard" if terminal else None, width=200)
    for round in (0, 1):
        console.print(round_line(made, round))
    all_counted, left_out = shown.getvalue().splitlines()
    assert "\x1b" not in all_counted
    assert ("\x1b[33mcounted 1 of 2 replicas\x1b[0m" in left_out) == terminal


def test_the_speed_of_a_resumed_demo_is_that_of_what_it_saw() -> None:
    resumed = observed((-9000, 2), (-8990, 2), (30, 2), (40, 2), (50, 2))
    assert demo.tokens_per_second(resumed) == 2 * TOKENS / 10
    assert "tokens/s" not in round_line(resumed, 1).plain
    assert "     67 tokens/s" in round_line(resumed, 2).plain, "from its own start, not from yesterday's last round"
    assert demo.tokens_per_second(observed((-10, 2), (10, 2))) is None
    assert demo.tokens_per_second(observed((10, 2), (20, 2))) == 2 * TOKENS / 10


def test_the_last_word_is_the_share_of_work_counted_and_what_to_change() -> None:
    assert command._work(80, 80) == "100% (80 of 80 contributions)"
    low = command._work(60, 80)
    assert low.plain.startswith("75% (60 of 80 contributions): ") and "straggler_grace" in low.plain
    seals = [{"count": 1, "replicas": 2}, {"count": 2, "replicas": 2}]
    assert demo.work_counted(seals) == (3, 4)


def test_traffic_is_told_by_kind_and_what_was_not_sent_is_left_out() -> None:
    both = Traffic(**{kind: Bytes(sent=600_000, received=1) for kind in Traffic.__struct_fields__})
    both = replace(both, pipe=Bytes(sent=0, received=0))
    said = command._sent({"traffic_per_node": [both, both]})
    assert said == "payload 1.2 MB, blobs 1.2 MB, relayed 1.2 MB, gossip 1.2 MB, signalling 1.2 MB, chain 1.2 MB"


def test_the_draft_names_no_place_of_this_machine() -> None:
    assert 'source = ["text/*.py"]' in draft(3, 1, 1)
    assert "/usr" not in draft(3, 1, 1) and "/home" not in draft(3, 1, 1)


def test_the_checks_are_those_of_who_heard_most() -> None:
    made = observed((10, 2))
    assert demo.checks(observed()) == {"drawn": 0, "checked": 0, "honest": 0, "false": 0, "withheld": 0}
    for name, checked in (("node-0", 1), ("node-1", 3)):
        checks = replace(STATUS.checks, drawn=4, checked=checked, honest=checked, false=0, withheld=0)
        made.statuses[name] = replace(STATUS, checks=checks)
    assert demo.checks(made) == {"drawn": 4, "checked": 3, "honest": 3, "false": 0, "withheld": 0}


def result(*counts: tuple[int, int], **audit: int) -> dict[str, Any]:
    """Of a demo whose rounds counted so much work in each of two stages."""
    seals = [{"round": r, "stage": s, "count": count} for r, both in enumerate(counts) for s, count in enumerate(both)]
    verdict = {"ledger": "PASS", "outer_steps": "FAIL" if audit else "PASS", "training": "not checked"}
    found = {"counts": {"PASS": 9, "FAIL": 0, **audit}, "verdict": verdict}
    return {"seals": seals, "checks": {"false": 0, "withheld": 0}, "audit": found}


def test_a_round_that_came_late_is_told_and_the_demo_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    command._conclude(result((2, 2), (2, 2)))
    assert capsys.readouterr().err == ""
    command._conclude(result((2, 2), (0, 2)))
    said = capsys.readouterr().err
    assert "round 1 of stage 0" in said and "slow or busy" in said and "the result is good" in said


def test_a_demo_is_no_good_where_the_audit_or_most_of_a_stage_is_not() -> None:
    with pytest.raises(Failure, match="the audit found something"):
        command._conclude(result((2, 2), (0, 2), FAIL=1))
    with pytest.raises(Failure, match="2 of 3 seals of stage 0 are empty"):
        command._conclude(result((0, 2), (2, 2), (0, 2)))


def test_a_runs_times_are_ten_times_as_long_on_a_machine_that_is_ten_times_slower(tmp_path: Path) -> None:
    def written(trains: float) -> Draft:
        (tmp_path / "run.toml").write_text(draft(3, 2, 2, trains=trains))
        return draft_from_toml(tmp_path / "run.toml")

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.py").write_text("x = 1\n" * 2000)
    usual, slow = written(2.0).timing, written(20.0).timing
    for name in ("straggler_grace", "proposal_timeout", "round_timeout", "eviction_time"):
        assert getattr(slow, name) == 10 * getattr(usual, name)
    assert written(6.1).timing.round_timeout == 80, "each is one that the manifest takes beside the others"
    speeds = [Measured(flops, flops) for flops in (1e10, 1e9)]
    fast, ten_times = (lasts(written(1.0), speed, 1.0) for speed in speeds)
    assert ten_times == pytest.approx(10 * fast)
    assert lasts(written(1.0), speeds[0], 7.0) == pytest.approx(7 * fast), "replicas that share the cores"


def test_a_round_is_measured_by_real_steps(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.py").write_text("x = 1\n" * 2000)
    (tmp_path / "run.toml").write_text(draft(3, 1, 1))
    threads = torch.get_num_threads()
    one, many = (measured_round(tmp_path / "run.toml", replicas, 1) for replicas in (1, 100 * cores()))
    assert 0 < one < many
    assert torch.get_num_threads() == threads


def test_an_empty_round_is_left_out_of_the_curve() -> None:
    drawn = terminal_plot([5.0, None, 3.0, 2.5])
    assert "5.00" in drawn and "2.50" in drawn and "0.00" not in drawn


def test_a_narrow_terminal_shows_fewer_columns_and_whole_words() -> None:
    status = {
        "slot": "replica 1, stage 1",
        "round": "17",
        "step": "12 of 20",
        "tokens/s": "12,345",
        "payload": "1.2 MB",
    }
    row = dict.fromkeys(("loss", "peers", "pipe"), "3.217") | status | {"node": "node-3", "doing": "waits for a" * 9}
    wide = list(fitting([row], 200))
    assert wide[0] == "node" and wide[-1] == "doing" and len(wide) == 10
    assert list(fitting([row], 200, ("pipe",))) == [name for name in wide if name != "pipe"]
    assert list(fitting([row], 80)) == ["node", "slot", "round", "step", "loss", "doing"]
    narrow = fitting([row], 60)
    assert list(narrow) == ["node", "round", "step", "loss", "doing"]
    assert sum(narrow.values()) + 2 * 4 == 60 and narrow["step"] == len("12 of 20"), "only the last may be cut"
