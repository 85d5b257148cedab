"""Which samples a replica trains on in a round, as stage 0's seals say: everybody computes it from the chain alone.

The rule is training.data.dealing's; here it is fed from a view of the ledger. What was folded is kept, so that the
next question goes on from there, and one about an older round from near it.
"""

import threading
from collections.abc import Sequence
from itertools import takewhile

from dlx.ledger.view.run_view import RunView
from dlx.node.round.rules.plans import Terms, steps_before
from dlx.training.data.dealing import Dealing, Intervals
from dlx.training.recipe.manifest import Manifest

_STEP = 32  # rounds between two states that are kept


class Deals:
    """Of one run. Threads may share it."""

    def __init__(self, terms: Terms, replicas: int, batch_size: int) -> None:
        self._terms, self._batch = terms, batch_size
        self._states = {0: Dealing(replicas, terms.delay)}  # round -> before it
        self._outline: Sequence[bytes] = []  # of the seals that these rest on
        self._lock = threading.Lock()

    @classmethod
    def of(cls, manifest: Manifest) -> "Deals":
        return cls(Terms.of(manifest), manifest.max_replicas, manifest.data.batch_size)

    def known(self, view: RunView, round: int) -> bool:
        """Whether the seals are there that a round's lots rest on."""
        return self._decided(round) <= view.next_round(0)

    def lot(self, view: RunView, round: int, replica: int) -> Intervals:
        """The positions that the replica trains on in the round. Raises KeyError where they are not `known` yet."""
        if not self.known(view, round):
            raise KeyError((0, self._decided(round) - 1))
        return self._before(view, round).deal(self._need(view, round)).lot(replica)

    def coming(self, view: RunView, round: int, replica: int, rounds: int) -> Intervals:
        """The positions of so many rounds from this one on, as they will be if the next seals count this replica and
        those that the last one counted, and plan as many steps."""
        known = min(round, view.next_round(0) + self._terms.delay)  # the last round whose lots are certain
        state, need, found = self._before(view, known), self._need(view, known), list[tuple[int, int]]()
        likely = dict.fromkeys({*state.first, replica}, need)
        for at in range(known, round + rounds):
            if at >= round:
                found += state.deal(need).lot(replica)
            decided = at - self._terms.delay
            state = state.after(need, likely if decided >= 0 else None)
        return tuple(found)

    def _before(self, view: RunView, round: int) -> Dealing:
        with self._lock:
            self._forget(view)
            at = max(one for one in self._states if one <= round)
            state = self._states[at]
            while at < round:
                decided = at - self._terms.delay
                steps = view.sealed.counted(0, decided) if decided >= 0 else None
                taken = steps and {replica: done * self._batch for replica, done in steps.items()}
                state, at = state.after(self._need(view, at), taken), at + 1
                if at % _STEP == 0:
                    self._states[at] = state
            self._states[at] = state
            for one in [one for one in self._states if one % _STEP and one < at - _STEP]:
                del self._states[one]
            return state

    def _forget(self, view: RunView) -> None:
        """What rests on seals that were taken back."""
        outline = view.sealed.outline(0, view.next_round(0))
        same = _common(outline, self._outline)
        if same == len(outline):  # an older view of the same
            return
        if same < len(self._outline):
            self._states = {at: state for at, state in self._states.items() if self._decided(at) <= same}
        self._outline = outline

    def _decided(self, round: int) -> int:
        """How many seals the lots of a round rest on."""
        return max(0, round - self._terms.delay)

    def _need(self, view: RunView, round: int) -> int:
        """The positions that one replica takes in a round whose lots are known."""
        return (steps_before(self._terms, view, round + 1) - steps_before(self._terms, view, round)) * self._batch


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """With how many alike both begin."""
    least = min(len(one), len(other))
    if one[:least] == other[:least]:
        return least
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))
