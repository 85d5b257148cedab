"""What a verifier makes of what a check comes to, of verdicts that it hears, and of those that convict."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from eth_utils import to_canonical_address

from dlx.ground.blobs import BlobStore
from dlx.ledger.events import Sealed
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.inner_inputs import FalseStatement, MissingInputs, Undecidable
from dlx.node.audit.verdict_store import VerdictStore
from dlx.node.daemon.challenges.draws import RoundDraw
from dlx.node.daemon.challenges.evidence import CHECK_SECONDS, SLOWER, Effort, check_seconds
from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.messages import Heard
from dlx.node.home.keys.slashing_protection import SlashingProtection
from dlx.node.round.challenges import turns
from dlx.node.round.challenges.draw import Drawn, drawn_of, seals_of
from dlx.node.round.challenges.verdicts import Finding, ReportedVerdict, VerdictReport
from dlx.node.trainer.checks import CheckFailed, Outcome
from dlx.p2p import wire
from tests.ledger.ledger_run import contribution
from tests.node.daemon.contexts import make_context
from tests.node.round.simulation import DOMAIN, RUN, Simulation, digest, make_rules

TIMEOUT, PROPOSAL = 12.0, 3.0
HONEST = Outcome(
    done=True,
    weights=1e-5,
    optimiser=2e-5,
    loss_stated=2.5,
    loss_replayed=2.5,
    hardware="cuda NVIDIA RTX\t6000 Ada Generation",
)


@pytest.fixture(scope="module")
def run() -> tuple[RunView, tuple[Sealed, ...], dict[str, bytes]]:
    sim = Simulation(make_rules(rounds=6), replicas=4, seed=1)
    assert sim.run(lambda: sim.view.finished, 300)
    seals = seals_of(sim.view, 2)
    assert seals is not None
    return sim.view, seals, {account: member.key for account, member in sim.members.items()}


class Bench:
    """A verifier whose checks come to whatever `comes` gives or raises, at the chain's time `now`; it is the first who
    checks the first drawn segment, made known at time 100."""

    def __init__(self, folder: Path, run: Any) -> None:
        self.view, seals, self.keys = run
        self.drawn = drawn_of(seals, digest("block"), 1.0, 20)
        self.account = self.checkers(self.drawn[0])[0]
        self.now, self.comes, self.said, self.sent, self.rejected = 100.0, HONEST, list[Any](), list[Any](), list[str]()
        self.peers: tuple[str, ...] = ()
        draw = RoundDraw(100.0, self.drawn[:1], 1, digest("block"), ())
        self.draws: Any = Draws(SimpleNamespace(value={2: draw}), self.drawn[:1])
        self.store = VerdictStore(folder / "verdicts.sqlite", RUN, DOMAIN)
        timing = SimpleNamespace(round_timeout=TIMEOUT, proposal_timeout=PROPOSAL)
        signer = SlashingProtection(folder / "signed.sqlite", self.keys[self.account], DOMAIN)
        context = make_context(
            signer=signer, manifest=SimpleNamespace(timing=timing),
            client=SimpleNamespace(domain=DOMAIN, convict=self.sent.append), blobs=BlobStore(folder / "blobs"),
            gossip=SimpleNamespace(publish=self._publish), now=lambda: self.now, peer_of=lambda account: account,
            metrics=SimpleNamespace(verdict=lambda finding: None),
            reject=lambda reason, source: self.rejected.append(reason),
        )  # fmt: skip
        nobody: Any = None
        self.verifier = Verifier(
            context, self.draws, self.store, nobody, Effort(1.0), lambda: self.view,
            lambda: self.peers,
        )  # fmt: skip
        self.verifier._evidence = SimpleNamespace(outcome=self._outcome)  # type: ignore[assignment]

    def checkers(self, drawn: Drawn) -> list[str]:
        able = [account for account in self.view.members() if turns.may_check(self.view, drawn, account)]
        return sorted(able, key=lambda account: turns.turn(self.view, drawn, account))

    async def _outcome(self, view: RunView, drawn: Drawn, *, whole: bool) -> Outcome:
        if isinstance(self.comes, Exception):
            raise self.comes
        return self.comes

    async def _publish(self, topic: str, data: bytes) -> None:
        self.said.append(wire.decode(data))

    def look(self) -> list[Finding]:
        """One look at what is to be checked; the findings that the verifier knows then."""

        async def main() -> None:
            case = self.verifier._next()
            if case is not None:
                await self.verifier._check(case)

        trio.run(main)
        return self.known()

    def hear(self, *verdicts: ReportedVerdict) -> None:
        async def main() -> None:
            for one in verdicts:
                await self.verifier._hear(wire.VerdictMessage(one.data, one.signature), "a peer")

        trio.run(main)

    def known(self) -> list[Finding]:
        return [one.finding for case in self.verifier.cases() for one in case.verdicts.values()]

    def verdict(self, checker: str, finding: Finding, drawn: Drawn | None = None) -> ReportedVerdict:
        about = drawn or self.drawn[0]
        report = VerdictReport(
            run=RUN, round=about.round, stage=about.stage, replica=about.replica,
            account=to_canonical_address(about.account), statement=about.statement, finding=int(finding),
            segment=about.segment, checker=to_canonical_address(checker),
        )  # fmt: skip
        return ReportedVerdict.make(report, lambda verdict: verdict.sign(DOMAIN, self.keys[checker]))


class Draws:
    def __init__(self, rounds: Any, drawn: tuple[Drawn, ...]) -> None:
        self.rounds, self._drawn = rounds, drawn

    def __iter__(self) -> Any:
        return iter(self._drawn)


@pytest.fixture
def bench(tmp_path: Path, run: Any) -> Bench:
    return Bench(tmp_path, run)


def test_what_a_check_finds_is_signed_kept_and_said(bench: Bench) -> None:
    assert bench.look() == [Finding.HONEST]
    (said,) = bench.said
    read = ReportedVerdict.read(said.report, said.signature, RUN, DOMAIN)
    assert (
        read.checker == bench.account and read.report.is_about(bench.drawn[0]) and read.report.distances.weights == 1e-5
    )
    assert read.report.hardware == "cuda NVIDIA RTX?6000 Ada Generat", "what it ran on, as a report takes it"
    assert bench.store.since(0) == [read]
    assert bench.look() == [Finding.HONEST] and len(bench.said) == 1, "once"


@pytest.mark.parametrize(
    "comes", [Outcome(done=True, reasons=("the payload is another\n",)), FalseStatement("no statement")]
)
def test_what_differs_or_is_no_statement_is_false(bench: Bench, comes: Any) -> None:
    bench.comes = comes
    assert bench.look() == [Finding.FALSE]
    assert bench.store.since(0)[0].report.reasons


@pytest.mark.parametrize("comes", [CheckFailed("killed"), OSError("no room"), Undecidable("private data")])
def test_what_this_machine_cannot_do_is_nobodys_fault(bench: Bench, comes: Exception) -> None:
    bench.comes = comes
    for at in (100.0, 110.0, 1000.0, 5000.0):
        bench.now = at
        assert bench.look() == []


def test_what_is_not_served_is_withheld_when_its_maker_works_and_had_its_time(bench: Bench) -> None:
    bench.comes = MissingInputs([bytes(32)])
    assert bench.look() == [], "it has four round timeouts"
    maker = bench.drawn[0].account
    last = bench.view.sealed[bench.drawn[0].stage, 5]
    rounds = bench.verifier._draws.rounds.value
    assert maker in last.accounts
    since = last.at.time - TIMEOUT
    rounds[2] = RoundDraw(since, rounds[2].drawn, 1, rounds[2].block_hash, ())  # type: ignore[index]
    bench.now = since + 4 * TIMEOUT + 100
    assert bench.look() == [], "nobody is connected: it may be our own fault"
    bench.peers, bench.now = (maker,), bench.now + 1000
    assert bench.look() == [Finding.WITHHELD]


def test_a_replay_may_take_several_times_as_long_as_its_segment_took_to_train_and_not_for_ever() -> None:
    def seconds(compute_ms: int, segments: int) -> float:
        said = contribution(bytes(32), 0, 0, 0, "0x" + "11" * 20, compute_ms=compute_ms, segments=segments)
        return check_seconds(SimpleNamespace(statement=said.encode()), 120.0)  # type: ignore[arg-type]

    assert seconds(80_000, 2) == CHECK_SECONDS + SLOWER * 40
    assert seconds(2**32 - 1, 1) == CHECK_SECONDS + SLOWER * 120, "its maker may lie"


def test_who_is_down_is_not_accused(bench: Bench) -> None:
    bench.comes, bench.peers = MissingInputs([bytes(32)]), tuple(bench.keys)
    rounds = bench.verifier._draws.rounds.value
    since = bench.view.sealed[bench.drawn[0].stage, 5].at.time + 1000.0
    rounds[2] = RoundDraw(since, rounds[2].drawn, 1, rounds[2].block_hash, ())  # type: ignore[index]
    bench.now = since + 10 * TIMEOUT
    assert bench.look() == []


def test_who_left_with_work_that_nobody_checked_withholds_it(bench: Bench) -> None:
    bench.comes, bench.peers = MissingInputs([bytes(32)]), tuple(bench.keys)
    rounds = bench.verifier._draws.rounds.value
    since = bench.view.sealed[bench.drawn[0].stage, 5].at.time + 1000.0
    rounds[2] = RoundDraw(since, rounds[2].drawn, 1, rounds[2].block_hash, ())  # type: ignore[index]
    bench.now = since
    assert bench.look() == [], "it has four round timeouts"
    bench.now = since + 10 * TIMEOUT
    bench.view.gave_back[bench.drawn[0].account] = int(since)
    try:
        assert bench.look() == [Finding.WITHHELD]
    finally:
        del bench.view.gave_back[bench.drawn[0].account]


def test_only_verdicts_of_those_who_may_check_what_was_drawn_count(bench: Bench) -> None:
    other = bench.checkers(bench.drawn[0])[1]
    stranger = next(one for one in bench.drawn if one.replica != bench.drawn[0].replica)
    forged = bench.verdict(other, Finding.FALSE)
    bench.hear(
        bench.verdict(bench.drawn[0].account, Finding.HONEST),
        bench.verdict(bench.checkers(stranger)[0], Finding.FALSE, stranger),
        ReportedVerdict(forged.report, forged.data, bytes(65)),
    )
    assert bench.known() == [] and bench.rejected == ["verdict"], "its own, of nothing drawn; and a forged one"
    bench.hear(forged, forged)
    assert bench.known() == [Finding.FALSE]


def test_a_mailboxs_verdicts_are_told_apart(bench: Bench) -> None:
    """Whoever reads one lets it be where it has too many of no use, and leaves it at once where it has false ones."""
    checker = bench.checkers(bench.drawn[0])[1]
    honest, later = bench.verdict(checker, Finding.HONEST), bench.verdict(checker, Finding.FALSE)
    stranger = next(one for one in bench.drawn if one.replica != bench.drawn[0].replica)
    undrawn = bench.verdict(bench.checkers(stranger)[0], Finding.FALSE, stranger)
    own = bench.verdict(bench.drawn[0].account, Finding.HONEST)

    def take(one: ReportedVerdict, signature: bytes | None = None) -> Heard:
        return bench.verifier.take(wire.VerdictMessage(one.data, signature or one.signature), "a mailbox")

    assert take(honest, bytes(65)) is Heard.JUNK and bench.rejected == ["verdict"]
    assert take(undrawn) is take(own) is Heard.REFUSED
    assert take(honest) is Heard.NO_NEWS
    bench.hear(honest)
    assert take(honest) is take(later) is Heard.NO_NEWS, "whoever keeps its other word is not to blame"
    assert bench.known() == [Finding.HONEST]
    bench.draws.rounds = SimpleNamespace(value={bench.drawn[0].round - 1: None})
    assert take(undrawn) is Heard.NO_NEWS, "our chain node may be late"
    bench.draws.rounds = SimpleNamespace(value={bench.drawn[0].round + 1: None})
    assert take(undrawn) is Heard.REFUSED, "the run is through with it"
    bench.draws.rounds = SimpleNamespace(value={})
    assert take(undrawn) is Heard.NO_NEWS, "who has just started knows no draws"


def test_what_is_known_or_of_nothing_drawn_costs_no_look_at_its_signature(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers send all that they keep, again and again."""
    other = bench.verdict(bench.checkers(bench.drawn[0])[1], Finding.HONEST)
    bench.hear(other)
    monkeypatch.setattr(ReportedVerdict, "signed", property(lambda self: pytest.fail("looked at")))
    bench.hear(other, bench.verdict(bench.checkers(bench.drawn[-1])[0], Finding.FALSE, bench.drawn[-1]))
    assert bench.known() == [Finding.HONEST]


def test_a_quorum_of_the_stages_verdicts_is_sent_to_the_ledger(bench: Bench) -> None:
    about = bench.drawn[0].stage, bench.drawn[0].account
    jury = bench.view.jury(*about)
    needed = next(few for few in range(len(jury) + 1) if bench.view.may_convict(*about, jury[:few]))
    bench.hear(*(bench.verdict(one, Finding.FALSE) for one in jury[: needed - 1]))
    (case,) = bench.verifier.cases()
    assert turns.conviction(bench.view, [case]) == []
    bench.hear(bench.verdict(jury[needed - 1], Finding.WITHHELD))
    (case,) = bench.verifier.cases()
    against = turns.conviction(bench.view, [case])
    assert {one.checker for one in against} == set(jury[:needed])
    trio.run(bench.verifier._send, case.drawn, against)
    assert bench.sent == [[one.signed for one in against]]
