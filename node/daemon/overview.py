"""What a node says about itself: am I connected, do I hold a slot, was I counted, what am I waiting for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dlx.node import version
from dlx.node.daemon.status import LedgerStatus, NodeStatus, PeerView, SealStatus
from dlx.node.home.config import shown_url

if TYPE_CHECKING:
    from dlx.node.daemon.node import Node


class Overview:
    """Reads a running node; nothing here changes it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._started_at = time.time()

    def status(self) -> NodeStatus:
        node = self._node
        account = node.startup.account.address
        session, machine = node.session, node.session.machine if node.session else None
        slot = node.view.slot_of(account) if node.view.created else None
        progress = session.progress if session else None
        waiting = machine.waiting_for(time.time()) if machine else self._before_session()
        return NodeStatus(
            version=version(),
            account=account,
            peer_id=node.host.peer_id,
            addresses=node.host.addresses,
            run="0x" + node.startup.run.hex(),
            replica=slot[0] if slot else None,
            stage=slot[1] if slot else None,
            round=progress.round if progress else None,
            step=progress.step if progress else 0,
            steps=progress.steps if progress else 0,
            phase=self._phase(),
            waiting_for=waiting,
            peers=len(node.host.agreed()),
            ledger=LedgerStatus(
                rpc_url=shown_url(node.startup.settings.rpc_url),
                reachable=node.ledger_reachable,
                block=node.head.block if node.head else None,
                age_seconds=round(max(0.0, time.time() - node.head.time), 1) if node.head else None,
            ),
            last_counted_round=node.view.last_round_counted(account),
            counted_in_last_round=node.counted,
            loss=progress.loss if progress else None,
            tokens_per_second=progress.tokens_per_second if progress else None,
            bytes_sent=node.host.bytes_sent,
            bytes_received=node.host.bytes_received,
            last_seal=self._last_seal(),
            not_ready=self._not_ready(),
            rejected=node.metrics.rejections,
            started_at=self._started_at,
        )

    def peers(self) -> list[PeerView]:
        return [
            PeerView(
                peer_id=peer.peer_id,
                addresses=peer.addresses,
                connected_seconds=round(time.time() - peer.connected_since, 1),
                rtt_ms=None if peer.rtt_ms is None else round(peer.rtt_ms, 2),
                agreed=peer.agreed,
            )
            for peer in self._node.host.peers()
        ]

    def _phase(self) -> str:
        node = self._node
        if node.stopping:
            return "stopping"
        if node.finished:
            return "finished"
        machine = node.session.machine if node.session else None
        if machine is None:
            return "starting"
        if machine.diverged:
            return "diverged"
        return "training" if machine.training is not None else "waiting"

    def _before_session(self) -> str:
        node = self._node
        if node.view.slot_of(node.startup.account.address) is None:
            return "the run's public blobs, or a slot"
        return "the training process"

    def _last_seal(self) -> SealStatus | None:
        sealed = self._node.last_seal
        if sealed is None:
            return None
        return SealStatus(
            round=sealed.round, transaction="0x" + sealed.at.tx.hex(), weights=sealed.seal.next_weights.hex()
        )

    def _needs_peers(self) -> bool:
        """Not where one node is the whole run."""
        view = self._node.view
        return not view.created or view.config.stages * view.config.min_replicas > 1 or len(view.members()) > 1

    def _not_ready(self) -> tuple[str, ...]:
        node, reasons = self._node, []
        if not node.ledger_reachable:
            reasons.append("the chain does not answer")
        if node.view.created and node.view.slot_of(node.startup.account.address) is None:
            reasons.append("no slot is held")
        if self._needs_peers() and not node.host.agreed():
            reasons.append("no peer is connected")
        if node.session is None or node.session.machine is None:
            reasons.append("the training process is not up")
        elif node.session.machine.diverged:
            reasons.append(f"stopped contributing: {node.session.machine.diverged}")
        return tuple(reasons)
