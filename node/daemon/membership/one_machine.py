"""A node's folder, keys and account are at work on one machine only: two would sign, and contradict each other."""

from collections.abc import Sequence

import trio

from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.supervisor import ReportHealthy
from dlx.node.home.errors import Failure
from dlx.node.home.folder_lock import BEAT_SECONDS, FolderLock
from dlx.p2p.host import Host
from dlx.p2p.twin import is_elsewhere

TWIN_SECONDS = 30.0  # after which it is sure that another node has our account: a reorg is over by then


class OneMachine:
    """Each of its parts raises Failure, which ends the node, where another machine is at work with the same."""

    def __init__(self, account: str, host: Host, follower: Follower, lock: FolderLock) -> None:
        self._account, self._host, self._follower, self._lock = account, host, follower, lock

    @property
    def registered(self) -> str | None:
        """The peer id that the ledger has of our account; None before it has one."""
        seen = self._follower.seen.value
        return None if seen is None else seen.peer_of(self._account)

    async def hold_folder(self, report_healthy: ReportHealthy) -> None:
        """For as long as the node runs. Another machine may have the same disk."""
        while True:
            await trio.sleep(BEAT_SECONDS)
            await trio.to_thread.run_sync(self._lock.beat)
            report_healthy()

    async def check_peer(self, addresses: Sequence[str]) -> None:
        """Before anything is signed or sent to the ledger. `addresses`: our own, as the ledger has them."""
        if await is_elsewhere(self._host, addresses):
            raise Failure(
                f"another node is at work with this node's keys: peer {self._host.peer_id} answers at "
                f"{' or '.join(addresses)}. Two lose slot and bond for what both sign: stop one for good, or make "
                "another folder with `init` and a --datadir of its own"
            )

    async def mind_account(self, report_healthy: ReportHealthy) -> None:
        """For as long as the node runs. It may have registered another node before it starts, not afterwards."""
        since, was_ours = trio.current_time(), False
        while True:
            await trio.sleep(1)
            registered = self.registered
            ours = registered == self._host.peer_id
            was_ours = was_ours or ours
            since = since if was_ours and registered is not None and not ours else trio.current_time()
            if trio.current_time() > since + TWIN_SECONDS:
                raise Failure(
                    f"another node has registered itself for account {self._account}, as {registered}: "
                    "an account signs on one machine only"
                )
