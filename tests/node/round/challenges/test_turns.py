"""Who checks what was drawn, who takes over, and what becomes of alarms: over the ledger of a simulated run."""

from dataclasses import replace

import pytest
from eth_utils import to_canonical_address

from dlx.ledger.events import Sealed
from dlx.ledger.view.run_view import RunView
from dlx.node.round.challenges import turns
from dlx.node.round.challenges.draw import Drawn, draw_block, drawn_of, seals_of
from dlx.node.round.challenges.turns import Case
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict, VerdictError, VerdictReport, decode
from tests.node.round.simulation import DOMAIN, RUN, Simulation, digest, make_rules

TIMEOUT = 12.0
KEYS: dict[str, bytes] = {}


@pytest.fixture(scope="module")
def run() -> tuple[RunView, tuple[Sealed, ...]]:
    """Four replicas of two stages that sealed rounds enough for work to have weight."""
    sim = Simulation(make_rules(rounds=40), replicas=4, seed=1)
    assert sim.run(lambda: (sim.view.open_round or 0) >= 21, 300)
    KEYS.update({account: member.key for account, member in sim.members.items()})
    seals = seals_of(sim.view, 20)
    assert seals is not None
    return sim.view, seals


@pytest.fixture
def case(run: tuple[RunView, tuple[Sealed, ...]]) -> Case:
    return Case(drawn_of(run[1], digest("block"), 1.0, 2)[0], since=100.0)


def judged(case: Case, **findings: Finding) -> Case:
    """With verdicts by these accounts."""
    found = {account: verdict(case.drawn, account, finding) for account, finding in findings.items()}
    return replace(case, verdicts={**case.verdicts, **found})


def verdict(drawn: Drawn, checker: str, finding: Finding) -> ReportedVerdict:
    report = VerdictReport(
        run=RUN, round=drawn.round, stage=drawn.stage, replica=drawn.replica,
        account=to_canonical_address(drawn.account), statement=drawn.statement, finding=int(finding),
        segment=drawn.segment, checker=to_canonical_address(checker),
    )  # fmt: skip
    return ReportedVerdict.make(report, lambda verdict: verdict.sign(DOMAIN, KEYS[checker]))


def order(view: RunView, case: Case) -> list[str]:
    able = [account for account in view.members() if turns.may_check(view, case.drawn, account)]
    return sorted(able, key=lambda account: turns.turn(view, case.drawn, account))


def test_a_drawn_segment_is_drawn_in_all_stages(run: tuple[RunView, tuple[Sealed, ...]]) -> None:
    view, seals = run
    drawn = drawn_of(seals, digest("block"), 1.0, 2)
    segments = {record.replica: -(-record.inner_steps // 2) for record in seals[0].records}
    assert len(segments) == 4 and max(segments.values()) > 1
    places = [(r, part, s) for r in range(4) for part in range(segments[r]) for s in range(2)]
    assert [(one.replica, one.segment, one.stage) for one in drawn] == places
    assert len({one.key for one in drawn}) == len(drawn)
    assert all(view.member_at(one.replica, one.stage) == one.account for one in drawn)
    assert draw_block(seals, 2) == max(seal.at.block for seal in seals) + 2
    assert seals_of(view, 25) is None, "not sealed yet"
    some = drawn_of(seals, digest("block"), 0.5, 2)
    assert set(some) < set(drawn) and len({(one.replica, one.segment) for one in some}) * 2 == len(some)


def test_a_stage_that_states_fewer_steps_hides_nothing_of_its_mates(run: tuple[RunView, tuple[Sealed, ...]]) -> None:
    """It has fewer segments itself, as many as its own steps make, and is drawn in those as before."""
    _, (first, second) = run
    few = (replace(second.records[0], inner_steps=1), *second.records[1:])
    honest, bent = (
        {(one.stage, *one.key) for one in drawn_of((first, other), digest("block"), 1.0, 2)}
        for other in (second, replace(second, records=few))
    )
    gone = honest - bent
    assert bent < honest and {(stage, statement) for stage, statement, _ in gone} == {(1, few[0].statement)}
    assert (1, few[0].statement, 0) in bent, "what it says that it did is drawn"


def test_each_segment_is_settled_by_itself(run: tuple[RunView, tuple[Sealed, ...]]) -> None:
    """Honest in one says nothing of another, and an alarm in one makes nobody check another beyond the budget."""
    view, seals = run
    one, other = (Case(drawn, 100.0) for drawn in drawn_of(seals, digest("block"), 1.0, 2)[0:4:2])
    assert one.drawn.statement == other.drawn.statement and one.drawn.segment != other.drawn.segment
    first, *_ = order(view, other)
    everybody = dict.fromkeys(order(view, one), Finding.HONEST)
    found = turns.next_check([judged(one, **everybody), other], view, first, 100, TIMEOUT, has_budget=True)
    assert found == other
    liar, *_ = order(view, one)
    alarmed = judged(one, **{liar: Finding.FALSE})
    jury = [account for account in view.jury(one.drawn.stage, one.drawn.account) if account != liar]
    for account in jury:
        assert turns.next_check([alarmed, other], view, account, 100, TIMEOUT, has_budget=False) == alarmed


def test_who_found_a_segment_false_checks_no_other_of_the_contribution(
    run: tuple[RunView, tuple[Sealed, ...]],
) -> None:
    """Its vote is given; and the votes on different segments convict together, one of each checker."""
    view, seals = run
    cases = [Case(drawn, 100.0) for drawn in drawn_of(seals, digest("block"), 1.0, 2)[0:4:2]]
    stage, accused = cases[0].drawn.stage, cases[0].drawn.account
    jury = view.jury(stage, accused)
    said = judged(cases[0], **dict.fromkeys(jury, Finding.FALSE))
    alarm = judged(cases[1], **{jury[0]: Finding.WITHHELD})
    assert all(
        turns.next_check([said, alarm], view, account, 1000, TIMEOUT, has_budget=True) is None for account in jury
    )
    half = len(jury) // 2
    split = [
        judged(cases[0], **dict.fromkeys(jury[: half + 1], Finding.FALSE)),
        judged(cases[1], **dict.fromkeys(jury[half:], Finding.FALSE)),
    ]
    assert not any(turns.conviction(view, [one]) for one in split), "neither half convicts"
    (together,) = turns.by_contribution(split).values()
    assert sorted(one.checker for one in turns.conviction(view, together)) == sorted(jury)


def test_nobody_checks_work_of_its_own_replica(run: tuple[RunView, tuple[Sealed, ...]], case: Case) -> None:
    view, _ = run
    for stage in range(2):
        mate = view.member_at(case.drawn.replica, stage)
        assert mate is not None and not turns.may_check(view, case.drawn, mate)
    assert not turns.may_check(view, case.drawn, "0x" + "11" * 20), "nor who holds no slot"
    assert len(order(view, case)) == 6


def test_the_next_checker_takes_over_where_nothing_was_heard(
    run: tuple[RunView, tuple[Sealed, ...]], case: Case
) -> None:
    view, _ = run
    first, second, *_ = order(view, case)

    def due(account: str, now: float, case: Case = case) -> bool:
        return turns.next_check([case], view, account, now, TIMEOUT, has_budget=True) is not None

    assert due(first, 100) and not due(second, 100) and not due(second, 123)
    assert due(second, 124), "two round timeouts later"
    settled = judged(case, **{first: Finding.HONEST})
    assert not due(second, 1000, settled) and not due(first, 1000, settled)
    pushed = judged(case, **{second: Finding.HONEST})
    assert due(first, 100, pushed), "a liar's other slot settles nothing out of its turn"
    assert turns.next_check([case], view, first, 100, TIMEOUT, has_budget=False) is None


def test_what_nobody_checked_says_for_what_it_waits(run: tuple[RunView, tuple[Sealed, ...]], case: Case) -> None:
    view, _ = run
    first, second, *_ = order(view, case)
    mate = view.member_at(case.drawn.replica, 0)
    assert mate is not None

    def said(account: str, now: float = 100, case: Case = case, has_budget: bool = True) -> str | None:
        return turns.awaits([case], view, account, now, TIMEOUT, has_budget)

    assert said(first) is None, "it checks it now"
    assert "turn is in 24 s" in str(said(second)) and "turn is in 4 s" in str(said(second, 120))
    assert "audit_share" in str(said(first, has_budget=False))
    assert "for others" in str(said(mate)) and "for others" in str(said("0x" + "11" * 20))
    assert said(second, case=judged(case, **{first: Finding.HONEST})) is None, "it was checked"


def test_an_alarm_makes_every_voter_of_the_stage_check_whatever_it_costs(
    run: tuple[RunView, tuple[Sealed, ...]], case: Case
) -> None:
    view, _ = run
    liar = next(one for one in order(view, case) if view.slot_of(one)[1] != case.drawn.stage)  # type: ignore[index]
    alarmed = judged(case, **{liar: Finding.FALSE})
    checking = {
        account
        for account in view.members()
        if turns.next_check([alarmed], view, account, 100, TIMEOUT, has_budget=False) is not None
    }
    assert checking == set(view.voters(case.drawn.stage)) - {case.drawn.account}


def test_who_is_contradicted_by_a_quorum_alarms_nobody_any_more(
    run: tuple[RunView, tuple[Sealed, ...]], case: Case
) -> None:
    view, seals = run
    voters = [one for one in view.voters(case.drawn.stage) if turns.may_check(view, case.drawn, one)]
    liar = next(one for one in order(view, case) if one not in voters)
    contradicted = judged(case, **{liar: Finding.FALSE}, **dict.fromkeys(voters[:3], Finding.HONEST))
    assert turns.discredited([contradicted], view) == {liar}
    other = next(one for one in drawn_of(seals, digest("block"), 1.0, 2) if turns.may_check(view, one, liar))
    again = judged(Case(other, since=100.0), **{liar: Finding.WITHHELD})
    for account in view.members():
        assert turns.next_check([contradicted, again], view, account, 100, TIMEOUT, has_budget=False) is None
    assert turns.discredited([judged(case, **{liar: Finding.FALSE, voters[0]: Finding.HONEST})], view) == set()


def test_a_share_that_members_do_not_pay_for_is_said() -> None:
    assert turns.unpaid(0.1, 0.1) is None and turns.unpaid(0.0, 0.0) is None
    assert "audit.share 0.25" in str(turns.unpaid(0.25, 0.1)) and "audit_share 0.1 " in str(turns.unpaid(0.25, 0.1))


def test_members_send_a_conviction_one_after_the_other(run: tuple[RunView, tuple[Sealed, ...]], case: Case) -> None:
    view, _ = run
    delays = sorted(turns.conviction_delay(view, case.drawn.statement, account, 3.0) for account in view.members())
    assert delays == [3.0 * place for place in range(8)]


def test_who_is_down_does_not_withhold(run: tuple[RunView, tuple[Sealed, ...]], case: Case) -> None:
    """A maker that no later seal counts is silent, and loses its slot for that alone."""
    view, _ = run
    first = drawn_of(seals_of(view, 0) or (), digest("block"), 1.0, 2)[0]
    sealed_at = max(seal.at.time for seal in seals_of(view, 1) or ())
    assert turns.has_worked_since(view, first, sealed_at - TIMEOUT, TIMEOUT)
    assert not turns.has_worked_since(view, first, sealed_at + 1000.0, TIMEOUT)
    gone = replace(first, account="0x" + "11" * 20)
    assert not turns.has_worked_since(view, gone, 0.0, TIMEOUT)


def test_the_summary_tells_what_most_found(run: tuple[RunView, tuple[Sealed, ...]], case: Case) -> None:
    view, _ = run
    a, b, c, *_ = order(view, case)
    cases = [case, judged(case, **{a: Finding.HONEST}), judged(case, **{a: Finding.HONEST, b: Finding.FALSE})]
    cases.append(judged(case, **{a: Finding.HONEST, b: Finding.FALSE, c: Finding.HONEST}))
    assert turns.summary(cases) == {"drawn": 4, "checked": 3, "honest": 2, "false": 1, "withheld": 0}


def test_a_verdict_is_read_back_and_nothing_else(run: tuple[RunView, tuple[Sealed, ...]], case: Case) -> None:
    checker = order(run[0], case)[0]
    made = verdict(case.drawn, checker, Finding.FALSE)
    read = ReportedVerdict.read(made.data, made.signature, RUN, DOMAIN)
    assert read == made and read.checker == checker and read.report.is_about(case.drawn)
    assert not read.report.is_about(replace(case.drawn, segment=case.drawn.segment + 1))
    other = verdict(case.drawn, order(run[0], case)[1], Finding.FALSE)
    for data, signature, of in (
        (made.data, other.signature, RUN),
        (made.data, b"\x00" * 65, RUN),
        (made.data, made.signature, digest("another run")),
        (made.data + b"\x00", made.signature, RUN),
        (b"\xc1", made.signature, RUN),
        (b"\x81" * 4096, made.signature, RUN),
        (bytes(5000), made.signature, RUN),
    ):
        with pytest.raises(VerdictError):
            ReportedVerdict.read(data, signature, of, DOMAIN)


def test_a_report_keeps_to_its_limits(run: tuple[RunView, tuple[Sealed, ...]], case: Case) -> None:
    report = verdict(case.drawn, order(run[0], case)[0], Finding.FALSE).report
    full = replace_report(report, reasons=("x" * 200,) * 8, software="s" * 32, hardware="h" * 32)
    assert decode(full.encode()) == full
    for bad in (
        {"reasons": ("x" * 201,)},
        {"reasons": ("x",) * 9},
        {"reasons": ("two\nlines",)},
        {"loss_stated": float("nan")},
        {"loss_replayed": -1.0},
        {"finding": 4},
        {"account": b"short"},
    ):
        with pytest.raises(VerdictError):
            replace_report(report, **bad).encode()


def replace_report(report: VerdictReport, **changes: object) -> VerdictReport:
    import msgspec

    return msgspec.structs.replace(report, **changes)
