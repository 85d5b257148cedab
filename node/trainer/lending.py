"""The ranks of a machine that another machine's node has the use of: made again whenever the node wants them."""

import contextlib
import socket
import time
from random import Random

from dlx.ground.backoff import Backoff
from dlx.node.home import logs
from dlx.node.trainer.ranks import RankEnded, run_ranks
from dlx.training.models.placement import Placement, address

AGAIN = Backoff(first=1.0, cap=30.0)
STEADY_SECONDS = 120.0  # ranks that lived for so long were no failed attempt
_LOOK_SECONDS = 1.0  # between two looks whether the node is there
log = logs.get(__name__)


def lend(placement: Placement, machine: int) -> None:
    """Until Ctrl-C. `placement` is settled, and says where the node's `machine` 0 is."""
    from torch.distributed.elastic.multiprocessing import SignalException

    log.info("lent to a node of this site", ranks=str(placement), at=placement.rendezvous)
    try:
        _lend(placement, machine)
    except SignalException:  # torch's way with signals, which it keeps when the ranks have ended
        raise KeyboardInterrupt from None


def _lend(placement: Placement, machine: int) -> None:
    random, failures = Random(), 0
    while True:
        life = _await(placement.rendezvous)
        began = time.monotonic()
        try:
            with life:  # at its end the meeting is over, though torch may wait for its other side for long
                run_ranks(placement, machine, life=life)
            reason = "the node is done with them"
        except RankEnded as error:
            reason = str(error)
        except RuntimeError as error:  # torch's own, of machines that do not meet
            reason = f"the machines did not meet: {error}"
        failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
        delay = AGAIN.delay(failures, random)
        log.warning("the ranks ended", reason=reason, again_in_seconds=round(delay, 1))
        time.sleep(delay)


def _await(rendezvous: str) -> socket.socket:
    """A connection to there, once somebody listens."""
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection(address(rendezvous), timeout=_LOOK_SECONDS)
        time.sleep(_LOOK_SECONDS)
