"""Giving the slot back, when what was drawn of our work is checked: who leaves before that is convicted."""

from collections.abc import Callable

import trio

from dlx.ledger.errors import LedgerError
from dlx.node.daemon.chain.follower import Follower
from dlx.node.daemon.challenges.verifier import Verifier
from dlx.node.daemon.membership.registration import Membership
from dlx.node.home import logs

RETURN_SECONDS = 30.0  # for the block that has the return of our slot; and that the chain may be silent before it
SETTLE_TIMEOUTS = 8  # round timeouts for which who leaves serves what was drawn, until it is checked
LOOK_SECONDS = 0.5
log = logs.get(__name__)


class Leaving:
    """`last_trained()`: the last round that the slot's session trained, None without one."""

    def __init__(self, follower: Follower, membership: Membership, last_trained: Callable[[], int | None]) -> None:
        self._follower, self._membership, self._last_trained = follower, membership, last_trained
        self._verifier: Verifier | None = None  # what is drawn of our work is not known before
        self.seconds = 0.0  # for which who leaves serves what was drawn

    def open(self, verifier: Verifier, round_timeout: int) -> None:
        """The verifier knows what is drawn of our work. `round_timeout` in seconds."""
        self._verifier, self.seconds = verifier, SETTLE_TIMEOUTS * float(round_timeout)

    async def give_back(self) -> None:
        """Return the slot once our work is checked; keep it, with a line in the log, where it is not in time."""
        if not await self._settled_in_time():
            return
        try:
            with trio.fail_after(RETURN_SECONDS):
                await self._membership.leave()
        except (LedgerError, OSError) as error:
            log.warning("the slot could not be returned", error=str(error))
        except trio.TooSlowError:
            log.warning(f"the slot may still be ours: the chain did not show its return within {RETURN_SECONDS:.0f} s")

    async def settled(self) -> bool:
        """Waits until nobody can ask for our work any more, but for who was away, or until the slot is lost. False
        where that cannot be told: before `open`, or where the chain is gone."""
        said, answered = "", trio.current_time()
        while self._membership.slot is not None:
            if self._verifier is None:
                return False
            owed = self._verifier.owed(self._last_trained())
            if not owed:
                break
            if self._follower.silence is None:
                answered = trio.current_time()
            elif trio.current_time() > answered + RETURN_SECONDS:
                return False
            if str(owed) != said:
                said = str(owed)
                log.info("serving our work before the slot is returned", waits_for=said)
            await trio.sleep(LOOK_SECONDS)
        return True

    async def _settled_in_time(self) -> bool:
        with trio.move_on_after(self.seconds):
            if await self.settled():
                return True
        log.warning("the slot is kept: not all that was drawn of our work is checked; start the node to serve it")
        return False
