"""Removing silent members by question and answer: accuse, answer, evict, and moving down into a freed seat."""

from collections import OrderedDict

from dlx.ledger.view import RunView
from dlx.node.round import actions as a
from dlx.node.round.plans import finished
from dlx.node.round.rules import Rules

HEARSAY = 4  # round timeouts; in a round that lasts longer even those who were heard are asked on the ledger
MAX_VOTES = 4096  # remembered


class Liveness:
    """Who was heard of lately, and which ledger actions follow. Only validly signed statements count as hearing.

    A statement about the open round may still be somebody's repetition, so hearing only puts the question off.
    """

    def __init__(self, rules: Rules, account: str) -> None:
        self._rules = rules
        self._account = account
        self._heard: dict[str, float] = {}
        self._since: float | None = None  # when this member began to listen
        self._votes: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def heard(self, account: str, now: float) -> None:
        self._heard[account] = now

    def is_news(self, account: str, digest: bytes) -> bool:
        """Whether this is the account's first vote for the seal."""
        known = (account, digest) in self._votes
        self._votes[account, digest] = None
        if len(self._votes) > MAX_VOTES:
            self._votes.popitem(last=False)
        return not known

    def due(self, view: RunView, block: int, now: float) -> list[a.Transaction]:
        """The transactions that this member should have sent by now; `block` is the newest one."""
        if self._since is None:
            self._since = now
        out: list[a.Transaction] = []
        if self._account in view.accusations:
            out.append(a.SendAnswer())
        out += [
            a.SendEvict(account)
            for account in view.accusations
            if account != self._account and view.may_evict(account, int(now), block + 1)
        ]
        out += [a.SendAccuse(account) for account in self._silent(view, now)]
        if self._may_move_down(view):
            out.append(a.SendMoveDown())
        return out

    def _silent(self, view: RunView, now: float) -> list[str]:
        """Holders of unsealed stages that have said nothing for a round timeout, where the ledger lets us ask. Who has
        just joined is given as long from there."""
        if view.open_round is None or finished(self._rules, view):
            return []
        since, timeout = self._since or now, self._rules.round_timeout
        found = []
        for account, (_, stage) in view.members().items():
            joined = view.joined_at(account)
            silent = now > max(self._heard.get(account, since), joined) + timeout
            hopeless = now > max(view.opened_at or now, since, joined) + HEARSAY * timeout
            if account == self._account or view.next_round(stage) != view.open_round:
                continue
            if (hopeless or silent) and view.may_accuse(account, int(now)):
                found.append(account)
        return found

    def _may_move_down(self, view: RunView) -> bool:
        slot = view.slot_of(self._account)
        if slot is None or slot[0] in view.complete_replicas():
            return False
        return any(view.holder(lower, slot[1]) is None for lower in range(slot[0]))
