"""What our own mailbox shows at the start, before it is written over: a restored folder may know less of us."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from dlx.ledger.typed import SignedContribution, TypedError
from dlx.node.daemon.mailbox import messages_file
from dlx.node.home import logs, remote
from dlx.node.home.errors import Failure
from dlx.p2p.wire import ContributionMessage, WireError, decode

log = logs.get(__name__)


async def said_before(to: str | None, registered: str | None, work: Path) -> list[bytes]:
    """The messages at `to`, where this node publishes; where it has none, those at `registered`, which the ledger has
    of our account. Each has messages_file.SECONDS; one that does not answer is passed over with a warning. `work`: a
    folder for files on their way."""
    work.mkdir(parents=True, exist_ok=True)
    for uri, is_strangers in ((to, False), (registered, True)):
        if uri is None:
            continue
        get = partial(messages_file.read, uri, is_strangers, work / ("registered" if is_strangers else "published"))
        try:
            with trio.fail_after(messages_file.SECONDS):
                return await trio.to_thread.run_sync(get, abandon_on_cancel=True)
        except remote.Absent:
            pass
        except (Failure, WireError, OSError, trio.TooSlowError) as error:
            log.warning(
                "our own mailbox cannot be read: what it shows of our work is not known",
                mailbox=uri, reason=str(error) or "no answer",
            )  # fmt: skip
    return []


def still_open(messages: Sequence[bytes], account: str, first: int) -> list[bytes]:
    """The contributions among them of an account (0x, lower case) to rounds from `first` on. They stay in the mailbox:
    where they end this node, they are to end the next one in this folder, too."""
    return [data for data in messages if (found := _contribution(data)) and found[0] == account and found[1] >= first]


def _contribution(data: bytes) -> tuple[str, int] | None:
    """Its account and round."""
    with suppress(WireError, TypedError):
        message = decode(data)
        if isinstance(message, ContributionMessage):
            contribution = SignedContribution.decode(message.statement).contribution
            return contribution.account, contribution.round
    return None
