"""A founder's part in the seals of stages where it holds no slot.

As long as work has not earned a stage's weight, the stage's seals take a founder's signature too. The founder fetches
what was contributed, takes the outer step and signs the seals that a member would sign, by the same rules. It trains,
proposes and sends nothing. Where its operator wants it, it seals rounds empty that nobody else seals, so that the stage
stands still for the ledger, and who holds its slots can be dismissed.
"""

from dataclasses import dataclass

from dlx.ledger.view.run_view import RunView
from dlx.node.round import actions as a
from dlx.node.round.rules.plans import Terms, finished
from dlx.node.round.stage_machine import StageMachine


@dataclass
class VouchingMachine(StageMachine):
    """Of the founder `account`, which holds no slot of `stage`."""

    seals_empty: bool = False  # its operator wants rounds sealed that nobody else seals, and peers are connected

    def waiting_for(self) -> str | None:
        """What keeps the founder from checking the next seal, in words; None where nothing does."""
        if self.diverged:
            return f"nothing: stopped signing, {self.diverged}"
        if trouble := self._pending.trouble():
            return f"this machine: {trouble}"
        if self.version is None or self.version < self.unsealed:
            return f"the weights of version {self.unsealed}"
        return None

    def _advance(self, now: float, out: list[a.Action]) -> None:
        self._adopt(now, out)
        if self.diverged is None and not finished(self.rules, self.view):
            self._sealing.advance(now, self.version, None, self._since or now, out)
            self._sealing.seal_alone(now, self.version, self.seals_empty, out)
        for evidence in self._known.evidence.values():
            self._ask(evidence, now, out)


def vouched_stages(terms: Terms, view: RunView, account: str, now: float) -> tuple[int, ...]:
    """The stages for which the account signs as a founder without a slot: those whose weight work has not earned yet.
    Of the stage where it holds a slot its session signs."""
    if not view.created or not view.is_founder(account) or view.open_round is None or finished(terms, view):
        return ()
    slot = view.slot_of(account)
    others = (stage for stage in range(view.config.stages) if slot is None or stage != slot[1])
    return tuple(stage for stage in others if view.vacuum(stage, int(now)) > 0)
