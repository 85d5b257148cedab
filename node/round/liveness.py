"""Who holds the others up, and what is done about it on the ledger: accuse, answer, evict, deal, and moving down.

One transaction does it for all, so members take turns: those who were heard lately, in an order that is another for
each question, one proposal timeout after the other.

- Who was not heard for a round timeout is asked, and evicted if it does not answer. A member hears those of its stage,
  by their statements, and its neighbours in the replica, by their open pipes; of others it hears contributions and no
  more, so their silence says nothing. Who answers was heard: it is there, though no pipe may lead to it.
- A replica that was not counted for three rounds is dealt by its own members, for nobody can prove which of them breaks
  it. They deal once all that the round waits for is here: who is dealt before it has contributed to a round misses it.
  The dead among them are evicted first: they would break the replicas that work. Those whose slots are forfeit are
  asked, by members whose own are not: only being counted keeps them their slots, wherever they are dealt. So two
  neighbours that nothing connects are parted. Who hears nobody deals nothing: it may be itself that is cut off.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable

from eth_utils import keccak, to_canonical_address

from dlx.ledger.view.run_view import RunView
from dlx.ledger.view.runs import RECLAIM_TIMEOUTS
from dlx.node.round import actions as a
from dlx.node.round.rules.plans import finished
from dlx.node.round.rules.round_rules import Rules
from dlx.node.round.rules.sites import stays

HEARSAY = 6  # round timeouts, in which silence has lost most of its weight; in a round that lasts longer all are asked
MAX_VOTES = 4096  # remembered
MAX_TURNS = 8  # then everybody does it


class Liveness:
    """Who was heard of lately, and which ledger actions follow. Only validly signed statements and pipes that are open
    count as hearing.

    A statement about the open round may still be somebody's repetition, so hearing only puts the question off.
    """

    def __init__(self, rules: Rules, account: str) -> None:
        self._rules = rules
        self._account = account
        self._heard: dict[str, float] = {}
        self._since: float | None = None  # when this member began to listen
        self._reported: dict[str, int] = {}
        self._votes: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._wanted: dict[Hashable, float] = {}  # what is to be done -> since when
        self._broken: dict[int, float] = {}  # replicas that may be dealt -> since when

    def heard(self, account: str, now: float) -> None:
        self._heard[account] = now

    def is_news(self, account: str, digest: bytes) -> bool:
        """Whether this is the account's first vote for the seal."""
        known = (account, digest) in self._votes
        self._votes[account, digest] = None
        if len(self._votes) > MAX_VOTES:
            self._votes.popitem(last=False)
        return not known

    def is_later(self, account: str, made: int) -> bool:
        """Whether the account's report is later than those before: an old one may be somebody's repetition."""
        known = self._reported.get(account, -1)
        self._reported[account] = max(known, made)
        return made > known

    def due(self, view: RunView, now: float, gathered: bool) -> list[a.Send]:
        """The transactions that this member should have sent by now. `gathered`: all that the open round waits for is
        here."""
        if self._since is None:
            self._since = now
        out: list[a.Send] = [a.Send("answer")] if view.should_answer(self._account) else []
        if view.may_move(self._account, int(now)) and not stays(view, self._account):
            out.append(a.Send("move_down"))
        wanted: dict[Hashable, a.Send] = {}
        for action in self._removals(view, now):
            wanted[action.key()] = action
        self._wanted = {key: self._wanted.get(key, now) for key in wanted}
        if not wanted:
            return out
        awake = [
            account for account in view.members() if account == self._account or not self._silent(view, account, now)
        ]
        overdue = now > (view.opened_at or now) + self._rules.round_timeout
        return out + [
            action
            for key, action in wanted.items()
            if now >= self._wanted[key] + self._turn(key, awake) and (gathered or overdue or action.call != "deal")
        ]

    def _removals(self, view: RunView, now: float) -> list[a.Send]:
        others = [account for account in view.members() if account != self._account]
        evicted = [account for account in others if view.may_evict(account, int(now))]
        if view.open_round is None or finished(self._rules, view):
            return [a.Send("evict", account) for account in evicted]
        idle = self._idle(view, now)
        accused = [
            account
            for account in others
            if (account in idle or self._is_suspect(view, account, now))
            and view.may_accuse(self._account, account, int(now))
        ]
        slot = view.slot_of(self._account)
        dealt = [a.Send("deal", slot[0])] if slot is not None and self._may_deal(view, slot[0], now) else []
        removed = [a.Send("evict", account) for account in evicted]
        return [*removed, *(a.Send("accuse", account) for account in accused), *dealt]

    # ---- who is asked -----------------------------------------------------------------------------------------------

    def _is_suspect(self, view: RunView, account: str, now: float) -> bool:
        """Whether the member of an unsealed stage, heard here when it speaks, has said nothing for too long.

        That is a round timeout in a round that is open for more than one, when everybody has to speak, and two in any
        round. Where the round is open so long that what was heard may be somebody's repetition, it is whoever it is.
        Who has just joined is given as long from there."""
        slot, timeout = view.slot_of(account), self._rules.round_timeout
        if slot is None or view.next_round(slot[1]) != view.open_round:
            return False
        opened_at = view.opened_at or now
        overdue = now > opened_at + timeout + self._rules.proposal_timeout
        if self._is_missed(view, account, now if overdue else now - timeout):
            return True
        began = now - HEARSAY * timeout
        return began > opened_at and began > max(self._since or now, view.joined_at(account))

    def _is_missed(self, view: RunView, account: str, now: float) -> bool:
        """Whether an account that this member would hear is silent."""
        ours, theirs = view.slot_of(self._account), view.slot_of(account)
        if ours is None or theirs is None:
            return False
        nearby = ours[1] == theirs[1] or (ours[0] == theirs[0] and abs(ours[1] - theirs[1]) == 1)
        return nearby and self._silent(view, account, now)

    def silent(self, view: RunView, stage: int, now: float) -> list[str]:
        """The others of a stage of which nothing was heard for a round timeout, by replica."""
        members = sorted((slot, account) for account, slot in view.members().items() if slot[1] == stage)
        return [one for _, one in members if one != self._account and self._silent(view, one, now)]

    def _silent(self, view: RunView, account: str, now: float) -> bool:
        since = max(view.joined_at(account), view.answered_at(account))
        heard = max(self._heard.get(account, self._since or now), since)
        return now > heard + self._rules.round_timeout

    def _idle(self, view: RunView, now: float) -> set[str]:
        """Members with forfeit slots in replicas that may be dealt: only work keeps them their slots."""
        slot, timeout = view.slot_of(self._account), self._rules.round_timeout
        if slot is None or view.open_round is None:
            return set()
        found: set[str] = set()
        ours_is_forfeit = view.is_forfeit(self._account)
        complete = view.complete_replicas()
        self._broken = {r: self._broken.get(r, now) for r in complete if view.may_deal(r)}
        for replica, since in self._broken.items():
            if not ours_is_forfeit and (replica == slot[0] or now > since + timeout):
                team = self._team(view, replica)
                found |= {account for account in team if view.is_forfeit(account)}
        return found - {self._account}

    def _may_deal(self, view: RunView, replica: int, now: float) -> bool:
        """Whether dealing is all that can be done: nobody in the replica is to be asked for work, or evicted, first (a
        deal brings it among others, who would begin anew with it). Who has just come back can still be counted. A
        replica of one stage has no members to part."""
        if self._rules.stages == 1 or not view.may_deal(replica):
            return False
        team = self._team(view, replica)
        if any(map(view.came_back, team)):
            return False
        if not view.is_forfeit(self._account) and any(
            view.is_forfeit(account) and view.may_accuse(self._account, account, int(now))
            for account in team
            if account != self._account
        ):
            return False
        if any(account in view.accusations for account in team):
            return False
        if any(account != self._account and self._is_missed(view, account, now) for account in team):
            return False
        stage = team.index(self._account)
        others = [account for account in view.members_in(stage) if account != self._account]
        return any(now <= self._heard.get(account, -math.inf) + self._rules.round_timeout for account in others)

    def _team(self, view: RunView, replica: int) -> list[str]:
        members = (view.member_at(replica, stage) for stage in range(self._rules.stages))
        return [account for account in members if account is not None]

    def _turn(self, key: Hashable, awake: list[str]) -> float:
        """Seconds that this member leaves to those whose turn is before its own."""
        question = self._rules.run + repr(key).encode()
        order = sorted(awake, key=lambda account: keccak(question + to_canonical_address(account)))
        return min(order.index(self._account), MAX_TURNS) * self._rules.proposal_timeout


def reclaims_soon(view: RunView, account: str, stage: int, now: float) -> bool:
    """Whether an account without a slot waits for one of the full stage where it left weight. The stage is late, and
    once it stands still the account takes a slot there. In another stage its weight would be lost. Nobody waits so whom
    a founder could dismiss again."""
    if view.is_outweighed(account, int(now)):
        return False
    late = now + (RECLAIM_TIMEOUTS - 1) * view.config.round_timeout
    held = (view.reclaimable_from(account, member) for member, slot in view.members().items() if slot[1] == stage)
    return any(since is not None and since <= late for since in held)


def claims(view: RunView, account: str, stage: int | None, now: float) -> list[a.Send]:
    """What an account without a slot can do to get one (of `stage`, or of any) where none is free.

    It takes a slot that stands still where it left weight; those who come back at once take different ones. Else it
    asks who has to answer to anybody, the lowest replica first: who has forfeited the slot, or anybody where a round is
    open for very long. It evicts who could not keep it."""
    held = sorted((slot, member) for member, slot in view.members().items() if stage is None or slot[1] == stage)
    still = [member for _, member in held if view.may_reclaim(account, member, int(now))]
    if still:
        return [a.Send("reclaim", still[int(account, 16) % len(still)])]
    evictable = [member for _, member in held if view.may_evict(member, int(now))]
    if evictable:
        return [a.Send("evict", evictable[0])]
    asked = [member for _, member in held if view.may_accuse(account, member, int(now))]
    return [a.Send("accuse", asked[0])] if asked else []
