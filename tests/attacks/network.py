"""What a liar's network process does to the other members, by changing the classes of its own process for good."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlx.ledger.typed import Plan, SignedContribution
from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.slot.executor import Executor
from dlx.node.round import actions as a
from dlx.node.round.challenges.verdicts import Finding
from dlx.node.round.knowledge import Knowledge
from dlx.node.round.machine import RoundMachine
from dlx.node.round.round_state import RoundState
from dlx.node.round.rules.pace import fewest_steps
from dlx.node.round.sealing import Sealing
from dlx.training.slot.undecided import Undecided
from tests.attacks import acts
from tests.attacks.lies import Lie

OUTAGE_AFTER, OUTAGE_TIMEOUTS = 24, 6  # own rounds, round timeouts


def lie_to_members(lie: Lie) -> None:
    changes = {
        "": _nothing,
        "withhold": _withhold,
        "equivocate": _equivocate,
        "censor": _censor,
        "collude": _collude,
        "own-multiplier": _own_multiplier,
        "all-steps": _all_steps,
        "captor": _captor,
        "outage": _outage,
    }
    changes[lie.node]()


def _nothing() -> None:
    pass


def _withhold() -> None:
    """Whatever is drawn goes the way of what is not."""
    honest = Undecided.decide

    def decide(self: Any, round: int, segments: Collection[int], blobs: Path, ahead: float = 0.0) -> frozenset[bytes]:
        if segments:
            acts.note()
        return honest(self, round, (), blobs)

    Undecided.decide = decide  # type: ignore[method-assign]


def _equivocate() -> None:
    """A second statement about each round, signed like the first."""
    honest = Executor._gossip

    async def gossip(self: Any, statement: a.Statement) -> None:
        await honest(self, statement)
        if isinstance(statement, a.GossipContribution):
            said = statement.signed.contribution
            if said.account == self._context.account:
                other = replace(said, loss=said.loss // 2)
                signed: SignedContribution = other.sign(self._rules.domain, self._context.signer._key)
                await honest(self, a.GossipContribution(signed))
                acts.note()

    Executor._gossip = gossip  # type: ignore[method-assign]


def _censor() -> None:
    """Lists its own replica alone, and signs nobody else's proposals."""
    honest_usable, honest_attest = Knowledge.usable, Sealing._attest

    def usable(self: Any, state: RoundState) -> dict[int, bytes]:
        found, slot = honest_usable(self, state), self.view.slot_of(self._account)
        alone = {slot[0]: found[slot[0]]} if slot is not None and slot[0] in found else {}
        if len(alone) < len(found):
            acts.note()
        return alone

    def attest(self: Any, moment: Any, digest: bytes, proposal: Any) -> None:
        if proposal.signer == self._account:
            honest_attest(self, moment, digest, proposal)

    Knowledge.usable, Sealing._attest = usable, attest  # type: ignore[method-assign]


def _collude() -> None:
    """Finds everything honest, unseen."""
    from dlx.node.daemon.challenges import verifier

    honest = verifier.VerdictReport

    def report(**fields: Any) -> Any:
        if fields["finding"] != int(Finding.HONEST):
            acts.note()
        return honest(**fields | {"finding": int(Finding.HONEST), "reasons": ()})

    verifier.VerdictReport = report  # type: ignore[misc, assignment]
    assert Verifier._check.__globals__["VerdictReport"] is report


def _own_multiplier() -> None:
    """As a proposer it counts its own payload where the policy gives that nothing, and finds nothing wrong with that:
    who refuses its own proposal never sends it."""
    honest, honest_fault = Sealing._multipliers, Sealing._multiplier_fault
    chosen: set[tuple[tuple[bytes, ...], tuple[int, ...]]] = set()

    def multipliers(self: Any, moment: Any, listed: tuple[bytes, ...]) -> tuple[int, ...] | None:
        found = honest(self, moment, listed)
        if found is None:
            return None
        makers = [signed.contribution.account for signed in moment.state.listing(listed)]
        false = tuple(
            1 if one == 0 and maker == self._account else one for one, maker in zip(found, makers, strict=True)
        )
        if false != found:
            chosen.add((listed, false))
        return false

    def fault(self: Any, moment: Any, listed: tuple[bytes, ...], sealed: tuple[int, ...]) -> str | None:
        return "" if (listed, sealed) in chosen else honest_fault(self, moment, listed, sealed)

    Sealing._multipliers, Sealing._multiplier_fault = multipliers, fault  # type: ignore[method-assign]


def _captor() -> None:
    """The fewest steps that count, in two of eight rounds; it signs and proposes as ever."""
    honest = RoundMachine._train

    def train(self: Any, now: float, out: list[a.Action]) -> None:
        if self.training is not None or self.next_round() % 8 < 2:
            honest(self, now, out)

    def steps(self: Any, round: int, plan: Plan, now: float) -> int:
        acts.note()
        return fewest_steps(plan.inner_steps)

    RoundMachine._train, RoundMachine._steps = train, steps  # type: ignore[method-assign]


def _outage() -> None:
    """Neither heard nor seen, from its 24th round on, for so long. Then it goes on as if nothing had been."""
    honest = RoundMachine._train
    goes: int | None = None  # in which round

    def train(self: Any, now: float, out: list[a.Action]) -> None:
        nonlocal goes
        honest(self, now, out)
        if goes is None:
            goes = self.next_round() + OUTAGE_AFTER
        if self.next_round() == goes:
            goes = -1
            acts.note()
            time.sleep(OUTAGE_TIMEOUTS * self.view.config.round_timeout)

    RoundMachine._train = train  # type: ignore[method-assign]


def _all_steps() -> None:
    honest = RoundMachine._steps

    def steps(self: Any, round: int, plan: Plan, now: float) -> int:
        if honest(self, round, plan, now) < plan.inner_steps:
            acts.note()
        return plan.inner_steps

    RoundMachine._steps = steps  # type: ignore[method-assign]
