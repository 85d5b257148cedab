"""What honest nodes state follows from what they stated before, whatever happens to them, and who checks it agrees."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from dlx.ground.constants import NO_HASH
from dlx.ledger.typed import STATE_RESET, Contribution
from dlx.ledger.view.run_view import RunView
from dlx.node.round import actions as a
from dlx.node.round.machine import RoundMachine
from dlx.node.round.rules.continuity import (
    faults,
    is_start_public,
    last_counted,
    left_out_by,
    named_wrongly,
    next_needed,
    start_of,
)
from dlx.node.round.rules.plans import seals_needed
from dlx.node.round.rules.round_rules import base_version, is_folded
from tests.node.round.simulation import Member, Simulation, digest, make_rules

ZEROS = digest("optimiser of zeros")


@dataclass(frozen=True)
class Kept:
    """What a slot has on disk, as `training.slot` keeps it: its newest statement, and payloads not decided yet."""

    last: Contribution | None = None
    own: tuple[tuple[int, bytes], ...] = ()


@dataclass
class Log:
    statements: dict[bytes, Contribution] = field(default_factory=dict)
    resets: int = 0
    folded: int = 0
    checked: int = 0


class Stating(Simulation):
    """Members state what slots state; everybody checks everybody's statements with its own view."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.log = Log()
        self.disks: dict[str, Kept] = {}
        self.orders: dict[str, tuple[a.StartRound, bytes]] = {}
        super().__init__(*args, **options)

    def act(self, member: Member, action: a.Action) -> None:
        if isinstance(action, a.StartRound):
            base = member.machine.view.weights(member.machine.stage, action.base)
            self.orders[member.account] = action, base
        if isinstance(action, a.CheckStatement):
            statement = action.signed.contribution
            assert self.faults(member.machine.view, statement) == []
            self.log.checked += 1
        super().act(member, action)

    def contribution(self, member: Member, round: int, **changes: object):  # type: ignore[no-untyped-def]
        order, base = self.orders[member.account]
        assert order.round == round
        own = member.machine.own
        kept = self.disks.get(member.account, Kept())
        if kept.last is not None and own and own[max(own)].contribution.payload != kept.last.payload:
            kept = Kept()
        delay, alpha, ahead = self.rules.delay, self.rules.alpha, self.rules.ahead
        started = [payload for at, payload in kept.own if at == round - 1 and delay and alpha]
        decided = [(at, payload) for at, payload in kept.own if at <= round - 1 - delay]
        folded = [payload for _, payload in decided if payload in order.left_out]
        folds = [*folded, NO_HASH, NO_HASH]
        previous = own[max(own)].contribution.hash() if own else NO_HASH
        start = digest("start", base, started[0]) if started else base
        counted = self.view.last_round_counted(member.account)
        contributed = previous != NO_HASH or (counted is not None and counted < round)
        fields = dict(
            base_weights=base, previous=previous, start_payload=started[0] if started else NO_HASH,
            folded_payload=folds[0], folded_payload2=folds[1],
            weights_before=digest("residual", start, kept.last.hash()) if ahead and kept.last else start,
            optimiser_before=kept.last.optimiser_after if kept.last else ZEROS,
            optimiser_after=digest("optimiser", member.account, round),
            change_before=kept.last.change if kept.last else NO_HASH,
            payload_before=kept.last.payload if kept.last else NO_HASH,
            change=digest("change", member.account, round),
            flags=STATE_RESET if kept.last is None and contributed else 0,
        )  # fmt: skip
        signed = super().contribution(member, round, **fields, **changes)
        made = signed.contribution
        still = tuple(one for one in kept.own if one not in decided)
        self.disks[member.account] = Kept(made, (*still, (round, made.payload)))
        self.log.statements[made.hash()] = made
        self.log.resets += made.flags == STATE_RESET
        self.log.folded += len(folded)
        return signed

    def faults(self, view: RunView, statement: Contribution) -> list[object]:
        counted = last_counted(view, statement.account, statement.stage, statement.round)
        if fault := named_wrongly(statement, counted):
            return [fault]
        earlier: list[Contribution] = []
        while (name := next_needed(self.rules, statement, earlier)) is not None:
            earlier.append(self.log.statements[name])
        own, base = start_of(self.rules, statement, earlier), base_version(self.rules, statement.round)
        start = None
        if own != NO_HASH and is_start_public(self.rules, statement):
            start = digest("start", view.weights(statement.stage, base), own)
        return [*faults(self.rules, ZEROS, statement, earlier, counted, left_out_by(view), start)]


def check_all(sim: Stating) -> None:
    """As an auditor, who sees only what was counted."""
    for (stage, _), sealed in sim.view.sealed.items():
        for record in sealed.records:
            statement = sim.log.statements[record.statement]
            assert statement.stage == stage and sim.faults(sim.view, statement) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "alpha", "ahead", "seed"),
    [(0, 0.0, 0.0, 0), (1, 0.0, 0.0, 0), (1, 0.7, 0.0, 1), (0, 0.0, 0.5, 2), (1, 0.7, 0.5, 4)],
)
def test_honest_statements_follow_whatever_happens(delay: int, alpha: float, ahead: float, seed: int) -> None:
    rules = make_rules(rounds=24, delay=delay, alpha=alpha, ahead=ahead, straggler_grace=2, proposal_timeout=2)
    sim = Stating(rules, replicas=4, seed=seed, loss=0.1)
    accounts, random = list(sim.members), sim.random
    older: dict[str, Kept] = {}
    while not sim.finished and sim.view.next_round(0) < 24:
        assert sim.run(lambda: False, random.uniform(2, 8)) is False
        dead = [account for account in accounts if not sim.members[account].alive]
        for account in dead:
            sim.restart(account)
        victim = accounts[random.randrange(len(accounts))]
        older[victim] = older.get(victim, sim.disks.get(victim, Kept()))
        match random.randrange(6):  # or nothing
            case 0 | 1:
                sim.kill(victim)
            case 2:  # its disk is lost, its slashing protection is not
                sim.kill(victim)
                sim.disks.pop(victim, None)
            case 3:  # both
                sim.kill(victim)
                sim.disks.pop(victim, None)
                lose_book(sim, victim)
                older.pop(victim, None)
            case 4:  # an older state comes back, as from another machine
                sim.kill(victim)
                sim.disks[victim] = older.pop(victim) if sim.members[victim].machine.own else Kept()
        assert sim.finished or sim.now < (sim.view.opened_at or 0) + 300, "the run stands still"
    check_all(sim)
    assert sim.log.checked > 100 and sim.log.resets > 0
    assert sim.log.folded > 0, "some rounds were late"


def lose_book(sim: Stating, account: str) -> None:
    member, old = sim.members[account], sim.members[account].machine
    # It remembers at least which round it was at: nothing here is about contradicting itself.
    member.machine = RoundMachine(
        sim.rules, old.account, old.stage, sim.kept.copy(), old.version, old.oldest, last_trained=old.last_trained
    )


def test_what_was_left_out_long_ago_is_not_folded_back() -> None:
    """A member that was away for long: those who check it have the seal of its last round no more."""
    rules = make_rules(rounds=60, delay=1)
    assert [at for at in range(40) if is_folded(rules, at, 30)] == list(range(14, 29))
    oldest = 30 - rules.delay - seals_needed(rules)  # in the view of who checks, at the earliest
    assert oldest <= 14
