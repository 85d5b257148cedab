"""What work is paid for: whose a lane's pay was, and in which epoch. As the ledger's earnedIn and sealsIn.

An epoch has EPOCH_ROUNDS rounds, and is over once a round after it is open, or the run is finished.
"""

from typing import NamedTuple

from dlx.ledger.view.run_state import RunState, Stage, Stay, ViewError
from dlx.ledger.view.weights import EPOCH_ROUNDS


class Earning(NamedTuple):
    """What an account earned in an epoch that is over, in 255ths of a seal, by its stay of this number: 0 to 4080."""

    stage: int
    epoch: int
    stay: int
    pay: int


def is_over(state: RunState, epoch: int) -> bool:
    """Whether nothing is earned in the epoch any more."""
    return state.finished or state.round >= EPOCH_ROUNDS * (epoch + 1)


def seals_in(state: RunState, stage: int, epoch: int) -> int:
    """How many non-empty seals the stage has in an epoch. Raises ViewError for one that is not over."""
    at = _over(state, stage, epoch)
    return at.epoch_seals if epoch == at.epoch else state.sealed.paid(stage, epoch).seals


def earned_in(state: RunState, stage: int, epoch: int, account: str, stay: int) -> int:
    """What the account earned of a stage's epoch in its stay of this number; the one that lasts has the number of those
    before. 0 where that does not cover the epoch. Raises ViewError for an epoch that is not over."""
    _over(state, stage, epoch)
    stays = _stays(state, account)
    if stay >= len(stays) or stays[stay].stage != stage:
        return 0
    covers = stays[stay]
    if not covers.from_epoch <= epoch <= covers.to_epoch:
        return 0
    if epoch == covers.to_epoch:
        return covers.rest
    pay = state.sealed.paid(stage, epoch).pay
    return pay[covers.lane] if pay else 0


def earnings(state: RunState, account: str) -> tuple[Earning, ...]:
    """All epochs that are over and in which the account earned anything, stay by stay."""
    found = []
    for number, stay in enumerate(_stays(state, account)):
        for epoch in range(stay.from_epoch, stay.to_epoch + 1):
            if is_over(state, epoch) and (pay := earned_in(state, stay.stage, epoch, account, number)):
                found.append(Earning(stay.stage, epoch, number, pay))
    return tuple(found)


def _over(state: RunState, stage: int, epoch: int) -> Stage:
    if not is_over(state, epoch):
        raise ViewError(f"epoch {epoch} is not over")
    return state.stage(stage)


def _stays(state: RunState, account: str) -> tuple[Stay, ...]:
    """With the one that lasts, as if it ended now."""
    ended, member = state.stays.get(account, ()), state.member(account)
    if not member.holds:
        return ended
    at = state.stages[member.stage]
    pay = at.lanes.pay[member.lane]
    return (*ended, Stay(member.stage, member.lane, member.mark // EPOCH_ROUNDS, at.epoch, pay))
