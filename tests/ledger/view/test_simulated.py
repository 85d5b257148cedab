"""The simulation of players (`benchmarks.weight`) beside the view: the same random run in both."""

import random
from dataclasses import replace
from typing import TypeVar

import pytest
from ledger_run import STEPS
from story import ACCOUNTS, FOUNDER, Story, names

from benchmarks import weight
from benchmarks.weight import BY_SEALS, SHORTEST, TIMEOUT, Rules, Stage
from dlx.ledger.view import runs
from dlx.ledger.view.seals import fraction, weight_in
from dlx.ledger.view.weights import ABSENT_TIMEOUTS

SLOTS, KNOWN = 7, 36  # of those who are known few have a slot at a time
WAITS = (SHORTEST, 20, TIMEOUT + 1, 2 * TIMEOUT, 5 * TIMEOUT, 40 * TIMEOUT)  # seconds since the round opened

_T = TypeVar("_T")


def index(account: str) -> int:
    return ACCOUNTS.index(account)


class _Both:
    """A run of one stage, told to the view and to the simulation. `idle`: most of its rounds are empty."""

    def __init__(self, chance: random.Random, idle: bool) -> None:
        self.idle = idle
        rules = Rules(horizon=16)
        numerator, denominator = rules.quorum
        self.story = Story.staffed(
            SLOTS,
            max_replicas=SLOTS,
            horizon=rules.horizon,
            quorum_numerator=numerator,
            quorum_denominator=denominator,
            min_round_time=SHORTEST,
            round_timeout=TIMEOUT,
        )
        self.view, self.chance = self.story.view, chance
        self.stage = Stage(rules, opened=self.view.round_opened_at, weights=dict.fromkeys(names(range(SLOTS)), 0))

    def wait(self, seconds: int) -> None:
        """Until the round has been open for so long."""
        self.story.time = max(self.story.time, self.stage.opened + seconds)
        self.stage = replace(self.stage, now=self.story.time)

    def some(self, of: list[_T]) -> list[_T]:
        return self.chance.sample(of, self.chance.randint(0, len(of)))

    @property
    def slack(self) -> int:
        """What roundings may part the two by: the simulation rounds the weight of each who is absent, the view their
        sum."""
        return len(self.stage.gone) + 1

    def join_or_leave(self) -> None:
        outside = [one for one in names(range(KNOWN)) if one not in self.stage.weights]
        outside = [one for one in outside if not self.view.is_convicted(one)]
        back = [*self.stage.gone] if self.chance.random() < 0.7 else []
        account = self.chance.choice(back or outside)
        free = self.view.free_slot(0, account, self.stage.now)
        if free is not None and self.chance.random() < 0.6:
            self.story.join(index(account), free, 0)
            self.stage = weight.joined(self.stage, account)
        elif len(self.stage.weights) > 3:
            account = self.chance.choice([*self.stage.weights])
            self.stage = weight.left(self.stage, account)
            self.story.leave(index(account))
        self.wait(0)

    def seal(self) -> bool:
        """Whether both take one of random records and signatures, of who has a slot and who has none."""
        slots = {account: self.view.slot_of(account) or (0, 0) for account in self.stage.weights}
        able = [account for account, (replica, _) in slots.items() if self.view.admissible(account, 0, replica)]
        makers = sorted(self.some(able), key=slots.__getitem__)
        makers = [] if self.idle and self.chance.random() < 0.95 else makers
        signers, founder = self.some([*self.stage.weights, *self.stage.gone]), self.chance.random() < 0.5
        taken = self.view.may_seal(0, makers, signers, self.stage.now, founder)
        assert weight.takes(self.stage, signers, makers, founder) == taken or self.is_close(signers, makers, founder)
        if taken:
            steps = {account: self.chance.randint(1, STEPS) for account in makers}
            self.story.seal(
                0,
                {slots[account][0]: index(account) for account in makers},
                map(index, signers),
                steps={index(account): taken for account, taken in steps.items()},
                founder=FOUNDER if founder else None,
                wait=0,
            )
            self.stage = weight.seal(self.stage, steps, signers)
        return taken

    def is_close(self, signers: list[str], makers: list[str], founder: bool) -> bool:
        """Whether roundings decide about the seal."""
        found = self.view.weigh(0, makers, signers, self.stage.now, founder)
        needed = self.view.needed(0, self.stage.now), fraction(self.view.config, found.total)
        return min(abs(found.votes - needed[0]), abs(found.makers - needed[1])) <= self.slack

    def convict(self) -> None:
        known = [*self.stage.weights, *self.stage.gone]
        account, signers, founder = self.chance.choice(known), self.some(known), self.chance.random() < 0.5
        judges = [*signers, FOUNDER] if founder else signers
        missing = self.view.verdicts_needed(0, account) - self.view.verdict_votes(0, account, judges)
        taken = weight.convicts(self.stage, account, signers, founder)
        assert taken == self.view.may_convict(0, account, judges) or abs(missing) <= self.slack
        if missing <= 0 and taken and self.chance.random() < 0.05 and len(self.stage.weights) > 4:
            self.story.apply(self.story.convicted(index(account), [index(one) for one in judges if one != account]))
            self.stage = weight.convicted(self.stage, account)

    def compare(self) -> None:
        """Lanes and what seals alone leave of the absent to the bit, all else as far as roundings allow."""
        stage, now = self.stage, self.stage.now
        assert self.story.weights(*map(index, stage.weights)) == [*stage.weights.values()]
        assert abs(self.view.vacuum(0, now) - weight.vacuum(stage, ABSENT_TIMEOUTS)) <= self.slack
        assert abs(self.view.total(0, now) - weight.total(stage, ABSENT_TIMEOUTS)) <= self.slack
        assert weight.stands_still(stage) == runs.stands_still(self.view, 0)
        vacuum, whole = weight.vacuum(stage, ABSENT_TIMEOUTS), weight.total(stage, ABSENT_TIMEOUTS)
        for account, own in stage.weights.items():
            close = min(abs(3 * vacuum - 2 * whole) / 3, abs(vacuum - own), vacuum) <= self.slack
            assert close or weight.dismissible(stage, account) == self.view.may_dismiss(FOUNDER, account, now)
        for account in stage.gone:
            assert weight_in(self.view, account, 0, None) == weight.absent(stage, account, BY_SEALS)
            assert abs(weight_in(self.view, account, 0, now) - weight.absent(stage, account, ABSENT_TIMEOUTS)) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_the_simulated_rules_are_those_of_the_view(seed: int) -> None:
    both, sealed = _Both(random.Random(seed), idle=seed >= 6), 0
    for _ in range(200):
        both.wait(both.chance.choice(WAITS))
        if both.chance.random() < 0.3:
            both.join_or_leave()
        sealed += both.seal()
        both.convict()
        both.compare()
    assert sealed > 50
