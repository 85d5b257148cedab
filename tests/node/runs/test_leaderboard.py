"""Who did what, of runs whose seals the test states."""

import pytest
from eth_utils import to_canonical_address

from dlx.ledger.events import Convicted, Left
from dlx.ledger.index import seal_rows
from dlx.ledger.index.rebuild import RunReplay
from dlx.ledger.keys import account_of
from dlx.ledger.typed import Domain
from dlx.node.audit.leaderboards import work_of
from dlx.node.round.challenges.draw import Drawn
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict, VerdictReport
from dlx.node.runs.leaderboard import AccountRow, Leaderboard, improvement, leaderboard, over_runs
from tests.ledger.ledger_logs import LEDGER
from tests.node.stated_run import RUN, START, STEPS, TOKENS, StatedRun, account

DOMAIN = Domain(31337, LEDGER)


@pytest.fixture
def stated() -> StatedRun:
    """Two replicas of two stages. Replica 1 does less in round 1, and is alone in round 2; round 3 is empty, and round
    4 is sealed by one stage only."""
    made = StatedRun()
    made.join(0)
    made.join(1)
    made.open()
    for round, counted in enumerate(({0: STEPS, 1: STEPS}, {0: STEPS, 1: 4}, {1: STEPS}, {})):
        made.seal(round, counted)
    made.seal(4, {0: STEPS}, range(1))
    return made


def board_of(stated: StatedRun, *known: object) -> Leaderboard:
    replay = RunReplay(stated.index, RUN)
    replay.advance()
    drawn, verdicts, improved = known or (None, None, None)
    return leaderboard(replay.view, work_of(stated.index, replay.view).by_account(), drawn, verdicts, improved)


def rows_of(board: Leaderboard) -> dict[str, AccountRow]:
    return {row.account: row for row in board.accounts}


def drawn(round: int, replica: int, stage: int = 0, segment: int = 0) -> Drawn:
    statement = bytes([stage, round, replica, 2]) * 8
    return Drawn(round, replica, stage, segment, account(replica, stage), statement, bytes(32), frozenset())


def verdict(of: Drawn, finding: Finding, checker: int, about: str = "") -> ReportedVerdict:
    key = bytes([checker]) * 32
    report = VerdictReport(
        run=RUN, round=of.round, stage=of.stage, replica=of.replica, account=to_canonical_address(about or of.account),
        finding=int(finding), statement=of.statement, segment=of.segment,
        checker=to_canonical_address(account_of(key)),
    )  # fmt: skip
    return ReportedVerdict.make(report, lambda verdict: verdict.sign(DOMAIN, key))


def test_work_is_what_seals_of_whole_rounds_count(stated: StatedRun) -> None:
    board = board_of(stated)
    assert (board.name, board.rounds, len(board.accounts)) == ("a-run", 4, 4)
    rows = rows_of(board)
    more, less = rows[account(1, 0)], rows[account(0, 0)]
    assert (more.steps, more.rounds, less.steps, less.rounds) == (24, 3, 20, 2)
    assert more.tokens == 24 * TOKENS // STEPS
    assert more.share == pytest.approx(24 / 88) and sum(row.share for row in board.accounts) == pytest.approx(1)
    assert [row.steps for row in board.accounts] == [24, 24, 20, 20], "most work first"
    times = [row.time for row in seal_rows.read(stated.index, RUN) if row.stage == 0]
    assert (less.first, less.last) == (times[0], times[1]) and less.first > START
    assert less.days == (times[1] - times[0]) / 86_400


def test_what_nobody_here_knows_is_not_zero(stated: StatedRun) -> None:
    (row, *_) = board_of(stated).accounts
    assert (row.drawn, row.honest, row.withheld, row.false, row.improvement) == (None,) * 5
    (row, *_) = board_of(stated, {0: ()}, [], {}).accounts
    assert (row.drawn, row.honest, row.withheld, row.false, row.improvement) == (0, 0, 0, 0, 0.0)


def test_each_drawn_piece_counts_once_by_what_most_say_of_it_and_of_equally_many_the_worst(stated: StatedRun) -> None:
    pieces = [drawn(0, 0), drawn(0, 0, segment=1), drawn(1, 0), drawn(1, 1), drawn(2, 1)]
    said = [
        verdict(pieces[0], Finding.HONEST, 1),
        verdict(pieces[0], Finding.FALSE, 2),
        verdict(pieces[1], Finding.HONEST, 1),
        verdict(pieces[1], Finding.HONEST, 2),
        verdict(pieces[2], Finding.HONEST, 1),
        verdict(pieces[3], Finding.WITHHELD, 1),
        verdict(drawn(2, 0), Finding.FALSE, 1),  # nobody drew it
    ]
    rows = rows_of(board_of(stated, {0: pieces[:2], 1: pieces[2:4], 2: pieces[4:]}, said, None))
    one, other = rows[account(0, 0)], rows[account(1, 0)]
    assert (one.drawn, one.honest, one.withheld, one.false) == (3, 2, 0, 1)
    assert (other.drawn, other.honest, other.withheld) == (2, 0, 1), "of one of them nothing was heard"
    unknown = rows_of(board_of(stated, None, said, None))[account(0, 0)]
    assert (unknown.drawn, unknown.honest, unknown.false) == (None, 2, 2), "as far as verdicts say"


def test_a_checker_cannot_put_its_verdict_on_somebody_else(stated: StatedRun) -> None:
    piece = drawn(0, 0)
    said = [verdict(piece, Finding.FALSE, 1, about=account(1, 0))]
    rows = rows_of(board_of(stated, {0: [piece]}, said, None))
    assert (rows[account(0, 0)].false, rows[account(1, 0)].false) == (1, 0)


def test_who_left_or_was_convicted_is_listed(stated: StatedRun) -> None:
    gone, false = account(0, 1), account(1, 1)
    stated.tell(lambda at: Left(RUN, gone, 0, 1, at))
    stated.tell(lambda at: Convicted(RUN, false, 1, 0, bytes(32), b"", at))
    rows = rows_of(board_of(stated))
    assert rows[gone].steps == 20 and (rows[gone].convictions, rows[false].convictions) == (0, 1)


def test_the_fall_of_the_loss_goes_to_the_work_between_two_evaluations(stated: StatedRun) -> None:
    assert board_of(stated).rounds == 4, "so the index has the rows"
    rows = list(seal_rows.read(stated.index, RUN))
    assert improvement(rows, {}) == improvement(rows, {1: 5.0}) == {}
    found = improvement(rows, {1: 5.0, 3: 4.0})  # rounds 1 and 2: 10 steps of replica 0, 14 of replica 1, twice
    assert found[account(0, 0)] == pytest.approx(10 / 48) and found[account(1, 1)] == pytest.approx(14 / 48)
    assert sum(found.values()) == pytest.approx(1.0)
    both = improvement(rows, {1: 5.0, 2: 5.5, 3: 4.0})
    assert both[account(0, 0)] == pytest.approx(-0.5 * 10 / 28) and sum(both.values()) == pytest.approx(1.0)
    assert sum(improvement(rows, {1: 5.0, 4: 4.0}).values()) == pytest.approx(1.0), "an empty round has no part"
    assert improvement(rows, {3: 5.0, 4: 4.0}) == {}, "nobody worked for it"


def test_over_runs_sums_are_not_known_where_a_part_is_not(stated: StatedRun) -> None:
    first = board_of(stated, {0: [drawn(0, 0)]}, [], {account(0, 0): 0.5})
    known, part = over_runs([first, first]), over_runs([first, board_of(stated)])
    row = {row.account: row for row in known.accounts}[account(0, 0)]
    assert (row.runs, row.steps, row.rounds, row.drawn, row.honest) == (2, 40, 4, 2, 0)
    assert row.improvement is None, "nats of two runs are two things"
    assert sum(row.share for row in known.accounts) == pytest.approx(1) and row.days == first.accounts[2].days
    assert {row.drawn for row in part.accounts} == {None} and len(part.runs) == 2
    assert over_runs([]).accounts == ()
