"""The gossip messages about open rounds, as they came: for those who lack them, so that nobody has to repeat himself.

What a member may have on it is bounded; of several reports the latest is kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dlx.ledger.view.run_view import RunView
from dlx.node.round import events as e
from dlx.node.round.rules.round_rules import has_votes, may_count
from dlx.p2p import wire
from dlx.p2p.message_sync import short_id

AHEAD = 2  # rounds after a stage's unsealed one
MOST = {e.ContributionSeen: 2, e.ProposalSeen: 8, e.AttestationSeen: 8, e.ReportSeen: 1}  # of one account, for a round


@dataclass(frozen=True, slots=True)
class _Message:
    event: e.AboutRound
    data: bytes


class MessagePool:
    """Of one who holds a slot of `stage`, or vouches for it as a founder."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self._messages: dict[tuple[int, int], dict[bytes, _Message]] = {}  # (stage, round) -> id -> message

    def put(self, event: e.AboutRound, data: bytes, view: RunView, now: float) -> bool:
        """Keeps a message of a member, or a founder's signature, about a round that is open or will be soon; False
        where it is none, or one more than its maker may have. `data`: as gossip carries it."""
        if not self._is_wanted(event, view, now):
            return False
        known, name = self._messages.setdefault(_place(event), {}), short_id(data)
        if name in known:
            return True
        same = [other for other, one in known.items() if _maker(one.event) == _maker(event)]
        is_more = len(same) >= MOST[type(event)]
        if is_more:
            oldest = known[same[0]].event
            if isinstance(event, e.ContributionSeen):
                return False
            if isinstance(event, e.ReportSeen) and isinstance(oldest, e.ReportSeen) and event.made <= oldest.made:
                return True
            del known[same[0]]
        known[name] = _Message(event, data)
        return not is_more or isinstance(event, e.ReportSeen)

    def is_for_others(self, event: e.AboutRound, view: RunView) -> bool:
        """Whether it says something of another stage's seals, of a round that is open or will be soon."""
        stage, round = _place(event)
        if isinstance(event, e.ContributionSeen) or stage == self.stage or stage >= view.config.stages:
            return False
        return _is_soon(view, stage, round)

    def has(self, data: bytes) -> bool:
        return any(short_id(data) in known for known in self._messages.values())

    def forget(self, view: RunView) -> None:
        """What the run is through with."""
        first = _first(view, self.stage)
        self._messages = {place: known for place, known in self._messages.items() if place[1] >= first}

    def ids(self, stage: int, round: int, seals: bool) -> list[bytes]:
        """What names those about a round of a stage: contributions, and with `seals` everything."""
        return [name for name, _ in self._about(stage, round, seals)]

    def events(self, stage: int, round: int) -> list[e.AboutRound]:
        """What they say about a round of a stage."""
        return [message.event for _, message in self._about(stage, round, True)]

    def beyond(self, request: wire.RecordsRequest) -> Iterator[bytes]:
        """What somebody asks for, contributions first."""
        have = frozenset(request.have)
        about = sorted(
            self._about(request.stage, request.round, request.seals),
            key=lambda one: not isinstance(one[1].event, e.ContributionSeen),
        )
        return (message.data for name, message in about if name not in have)

    def said(self, account: str | None) -> list[bytes]:
        """All messages, or one account's, contributions first."""
        every = [one for known in self._messages.values() for one in known.values()]
        every.sort(key=lambda one: not isinstance(one.event, e.ContributionSeen))
        return [one.data for one in every if account in (None, one.event.signer)]

    def wanted(self, view: RunView) -> list[tuple[int, int, bool]]:
        """(stage, round, with its seals) that this member should ask others about. That is all of its own stage's
        unsealed round. Other stages' contributions too, where those of a replica that contributed to it are not all
        here."""
        round = view.next_round(self.stage)
        replicas = self._contributed(self.stage, round)
        found = [(self.stage, round, True)]
        for stage in range(view.config.stages):
            sealed = view.sealed.get((stage, round))
            counted = {record.replica for record in sealed.records} if sealed is not None else set[int]()
            if stage != self.stage and not replicas <= counted | self._contributed(stage, round):
                found.append((stage, round, False))
        return found

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _about(self, stage: int, round: int, seals: bool) -> Iterable[tuple[bytes, _Message]]:
        for name, message in self._messages.get((stage, round), {}).items():
            if seals or isinstance(message.event, e.ContributionSeen):
                yield name, message

    def _contributed(self, stage: int, round: int) -> set[int]:
        events = (message.event for _, message in self._about(stage, round, False))
        return {event.signed.contribution.replica for event in events if isinstance(event, e.ContributionSeen)}

    def _is_wanted(self, event: e.AboutRound, view: RunView, now: float) -> bool:
        stage, round = _place(event)
        if not _is_soon(view, self.stage, round):
            return False
        if isinstance(event, e.ContributionSeen):
            statement = event.signed.contribution
            return statement.run == view.run and event.signer == statement.account and _may_count(view, event)
        if stage != self.stage:
            return False
        slot = view.slot_of(event.signer)
        is_member = (slot is not None and slot[1] == stage) or has_votes(view, event.signer, stage, now)
        vouches = isinstance(event, e.AttestationSeen) and view.is_founder(event.signer)
        return is_member or vouches


def _may_count(view: RunView, event: e.ContributionSeen) -> bool:
    statement = event.signed.contribution
    return statement.stage < view.config.stages and may_count(view, statement)


def _first(view: RunView, stage: int) -> int:
    """The lowest round that some stage has not sealed."""
    unsealed = view.next_round(stage)
    return unsealed if view.open_round is None else min(view.open_round, unsealed)


def _is_soon(view: RunView, stage: int, round: int) -> bool:
    """Whether the round is open, as the stage sees it, or will be soon."""
    return _first(view, stage) <= round <= view.next_round(stage) + AHEAD


def _place(event: e.AboutRound) -> tuple[int, int]:
    """The stage and round that it is about."""
    match event:
        case e.ContributionSeen(signed=signed):
            return signed.contribution.stage, signed.contribution.round
        case e.ProposalSeen(seal=seal):
            return seal.stage, seal.round
    return event.stage, event.round


def _maker(event: e.AboutRound) -> tuple[type, str]:
    return type(event), event.signer
