"""What a node says about itself: am I connected, do I hold a slot, was I counted, what am I waiting for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dlx.ground.constants import MICRO
from dlx.ledger.events import Sealed
from dlx.node import version
from dlx.node.daemon.api.status import (
    CheckStatus,
    LedgerStatus,
    Mailboxes,
    NodeStatus,
    Peers,
    PeerView,
    Relaying,
    RoundView,
    SealStatus,
    Traffic,
)
from dlx.node.daemon.chain.clock import ChainClock
from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.challenges.responder import ChallengeResponder
from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.evaluation.evaluating import Evaluating
from dlx.node.daemon.mailbox.inbox import Inbox
from dlx.node.daemon.mailbox.outbox import Outbox
from dlx.node.daemon.membership.reachability import Reachability
from dlx.node.daemon.membership.registration import Membership, eligibility
from dlx.node.daemon.membership.rest import Rest
from dlx.node.daemon.metrics import Metrics, SealCounter
from dlx.node.daemon.metrics import Traffic as Counted
from dlx.node.daemon.slot.assignment import Assignment
from dlx.node.daemon.supervisor import Supervisor
from dlx.node.daemon.vouching.vouching import Vouching
from dlx.node.daemon.vouching.vouching_session import VouchingSession
from dlx.node.home.config import redacted_urls
from dlx.node.round.challenges.turns import summary
from dlx.node.round.machine import RoundMachine
from dlx.p2p.host import Host
from dlx.p2p.relay.carrier import Carrier

_ROUNDS = 64  # newest ones that are told
_UNREACHED = 8  # members that are named
_LATE = 3.0  # s that the chain's answers may take


@dataclass(kw_only=True)
class Overview:
    """Reads the node's parts; nothing here changes them."""

    run: bytes
    account: str
    rpc_url: tuple[str, ...]
    host: Host
    follower: Follower
    membership: Membership
    assignment: Assignment
    seal_counter: SealCounter
    supervisor: Supervisor
    clock: ChainClock
    metrics: Metrics
    traffic: Callable[[], Counted]
    rest: Rest
    reachability: Reachability
    carrier: Carrier
    inbox: Inbox
    outbox: Outbox | None
    responder: ChallengeResponder | None = None
    verifier: Verifier | None = None
    vouching: Vouching | None = None
    evaluating: Evaluating | None = None
    before: float | None = None  # held-out loss of the genesis by the manifest, once that is here
    stopping: bool = False
    started_at: float = field(default_factory=time.time)

    def status(self) -> NodeStatus:
        session, slot, seen = self.assignment.session, self.membership.slot, self.follower.seen.value
        progress = session.progress if session else None
        return NodeStatus(
            version=version(),
            account=self.account,
            peer_id=self.host.peer_id,
            addresses=self.host.addresses,
            listens=self.host.listening(),
            reachable=str(self.reachability),
            unreached=self._unreached(),
            mailboxes=Mailboxes(
                to=self.outbox.to if self.outbox else None,
                published=self.outbox.published if self.outbox else 0,
                read=self.inbox.read,
            ),
            relays=Relaying(members=self.carrier.members, connections=self.carrier.connections),
            run="0x" + self.run.hex(),
            replica=slot[0] if slot else None,
            stage=slot[1] if slot else None,
            site=seen.view.site_at(slot[0]) if slot and seen else None,
            round=progress.round if progress else None,
            step=progress.step if progress else 0,
            steps=progress.steps if progress else 0,
            phase=self._phase(),
            resting=str(resting) if (resting := self.rest.state.value) else None,
            waiting_for=self._waiting_for(),
            failing=(*self._failing_parts(), *self._failing_actions()),
            trained_on=str(session.placement) if session and session.placement else None,
            peers=len(self.host.agreed()),
            ledger=LedgerStatus(
                rpc_url=redacted_urls(self.rpc_url),
                reachable=seen is not None and self.follower.silence is None,
                block=seen.head.block if seen else None,
                age_seconds=round(max(0.0, self.clock.now() - seen.head.time), 1) if seen else None,
                clock_skew_seconds=round(self.clock.skew, 1) if seen else None,
            ),
            last_counted_round=seen.view.last_round_counted(self.account) if seen else None,
            counted_in_last_round=self.seal_counter.counted,
            weight=eligibility.weight(seen.view, self.account, self.clock.now())
            if seen and seen.view.created
            else None,
            lacks_founder=self._machine.lacks_founder(self.clock.now()) if self._machine else None,
            vouches={stage: one.waiting_for for stage, one in sorted(self._vouched.items())},
            notices=eligibility.notices(seen.view, self.account, self.clock.now())
            if seen and seen.view.created
            else (),
            loss=progress.loss if progress else None,
            held_out=self._losses[max(self._losses)] if self._losses else None,
            held_out_version=max(self._losses, default=None),
            held_out_before=self.before,
            tokens_per_second=progress.tokens_per_second if progress else None,
            traffic=Traffic.of(self.traffic()),
            last_seal=self._last_seal(),
            checks=self._checks(),
            not_ready=self._not_ready(),
            rejected=self.metrics.rejections,
            started_at=self.started_at,
        )

    def peers(self) -> Peers:
        found = [
            PeerView(
                peer_id=peer.peer_id,
                addresses=peer.addresses,
                connected_seconds=round(time.time() - peer.connected_since, 1),
                rtt_ms=None if peer.rtt_ms is None else round(peer.rtt_ms, 2),
                agreed=peer.agreed,
                relay=peer.relay,
            )
            for peer in self.host.peers()
        ]
        return Peers(found, str(self.reachability), self._unreached())

    def rounds(self) -> list[RoundView]:
        """The newest sealed rounds of this node's stage, oldest first."""
        seen, slot = self.follower.seen.value, self.membership.slot
        if seen is None or not seen.view.created:
            return []
        sealed, last = seen.view.sealed, seen.view.config.stages - 1
        stage = slot[1] if slot else last
        newest = range(sealed.rounds(stage))[-_ROUNDS:]
        return [
            RoundView(
                round=one.round,
                loss=_loss(sealed.get((last, one.round))),
                held_out=self._losses.get(one.round + 1),
                counted=one.count,
                ours=self.account in one.accounts,
                steps=one.outcome.inner_steps,
                time=one.at.time,
            )
            for round in newest
            if (one := sealed.get((stage, round))) is not None
        ]

    @property
    def _machine(self) -> RoundMachine | None:
        return self.assignment.session.machine if self.assignment.session else None

    @property
    def _losses(self) -> Mapping[int, float]:
        return {} if self.evaluating is None else self.evaluating.losses

    @property
    def _vouched(self) -> dict[int, VouchingSession]:
        return {} if self.vouching is None else self.vouching.sessions

    def _phase(self) -> str:
        if self.stopping:
            return "stopping"
        if self.assignment.finished:
            return "finished"
        machine = self._machine
        if machine is None:
            return "vouching" if self._vouched else "resting" if self.rest.leaves else "starting"
        if machine.diverged:
            return "diverged"
        return "training" if machine.training is not None else "waiting"

    def _waiting_for(self) -> str | None:
        """The first thing in the way: without the chain nobody can say what comes after it."""
        if self.follower.silence is not None and (self._machine is None or self._machine.training is None):
            return f"the chain, which does not answer: {self.follower.silence}"
        if self.follower.seen.value is None:
            return "the chain's first answer"
        if self._machine is not None:
            said = self._machine.waiting_for(self.clock.now())
            if said is not None and self.follower.late > _LATE:
                return f"the chain's answers, which take {self.follower.late:.0f} s to come here; then {said}"
            return said or self._stalled()
        if self.assignment.finished:
            return "nothing: the run is finished"
        if failing := self._failing_parts():
            return failing[0]
        if self.rest.leaves:
            return f"the end of its rest: {self.rest.state.value}"
        if self.membership.waiting_for is not None:
            return self.membership.waiting_for
        return "the run's public data, or a slot" if self.membership.slot is None else "the training process"

    def _stalled(self) -> str | None:
        """A step that takes far too long: which process does not run, else what may be why."""
        session = self.assignment.session
        said = session.progress.stalled(time.monotonic()) if session and self._phase() == "training" else None
        if said is None:
            return None
        why = [*self.unreached_neighbours(), *self.assignment.stuck()]
        return f"{said}; {'; '.join(why) or 'a neighbour, a rank or the device is slow, or hangs'}"

    def _failing_parts(self) -> tuple[str, ...]:
        trouble = self.assignment.trouble
        return (*self.supervisor.reasons(), *(() if trouble is None else (f"the training process: {trouble}",)))

    def _failing_actions(self) -> tuple[str, ...]:
        """What the round needs and could not be done the last time."""
        failing = self._machine.failing(self.clock.now()) if self._machine else []
        return tuple(
            f"{one.action}: {one.reason} (failed {one.failures} times, tried again in {one.next_try:.0f} s)"
            for one in failing
        )

    def _last_seal(self) -> SealStatus | None:
        sealed, seen = self.seal_counter.last, self.follower.seen.value
        if sealed is None or seen is None:
            return None
        return SealStatus(
            round=sealed.round,
            counted=sealed.count,
            replicas=max(sealed.count, len(seen.view.complete_replicas())),
            inner_steps=sealed.outcome.inner_steps,
            steps={record.replica: record.inner_steps for record in sealed.records},
            transaction="0x" + sealed.at.tx.hex(),
            weights=seen.view.weights(sealed.stage, sealed.round + 1).hex(),
        )

    def _checks(self) -> CheckStatus | None:
        if self.verifier is None or self.responder is None:
            return None
        effort, held = self.verifier.effort, self.responder.held
        return CheckStatus(
            **summary(self.verifier.cases()),
            served=held.drawn,
            undecided_bytes=held.undecided,
            seconds=round(effort.spent, 1),
            allowed_seconds=round(effort.allowed, 1),
            waits=self.verifier.awaits(),
        )

    def _unreached(self) -> tuple[str, ...]:
        return *self.unreached_neighbours(), *self._unreached_others()

    def _unreached_others(self) -> tuple[str, ...]:
        """The other members of our stage that cannot be reached."""
        session = self.assignment.session
        found = [
            f"{who} (account {account}) is not connected: {why}"
            for who, account, peer in (session.others() if session else ())
            if (why := self.host.unreached(peer))
        ]
        more = len(found) - _UNREACHED
        return *found[:_UNREACHED], *((f"and {more} more members of the stage",) if more > 0 else ())

    def unreached_neighbours(self) -> tuple[str, ...]:
        """The neighbours in our replica that cannot be reached, in words. While nothing connects them the replica is
        not counted, and after some such rounds its members are dealt."""
        session = self.assignment.session
        if session is None:
            return ()
        neighbours = ((stage, session.member_at(stage)) for stage in (session.stage - 1, session.stage + 1))
        return tuple(
            f"the neighbour at stage {stage} (account {member[0]}) is not connected: {why}"
            for stage, member in neighbours
            if member is not None and (why := self.host.unreached(member[1]))
        )

    def _needs_peers(self) -> bool:
        """Not where one node is the whole run."""
        seen = self.follower.seen.value
        if seen is None or not seen.view.created:
            return True
        return seen.view.config.stages * seen.view.config.min_replicas > 1 or len(seen.view.members()) > 1

    def _not_ready(self) -> tuple[str, ...]:
        reasons = list(self._failing_parts())
        if self.follower.silence is not None:
            reasons.append(f"the chain does not answer: {self.follower.silence}")
        elif self.follower.seen.value is None:
            reasons.append("the chain has not answered yet")
        elif self.membership.slot is None and not self._vouched:
            reasons.append("no slot is held")
        if self._needs_peers() and not self.host.agreed() and not self.inbox.read:
            reasons.append("no peer is connected")
        reasons += self.unreached_neighbours()
        if self._machine is None and not self._vouched:
            reasons.append("no session is open")
        elif self._machine is not None and self._machine.diverged:
            reasons.append(f"stopped contributing: {self._machine.diverged}")
        return tuple(reasons)


def _loss(sealed: Sealed | None) -> float | None:
    return None if sealed is None or not sealed.records else sealed.mean_loss / MICRO
