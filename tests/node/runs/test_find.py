"""Reading a run: whole, or not at all."""

from typing import Any

import pytest

from dlx.ledger.errors import LedgerError, LedgerUnavailable
from dlx.ledger.events import Event, EventPosition, Joined, RunCreated
from dlx.ledger.feed import ChainUpdate, Head
from dlx.ledger.typed import Domain
from dlx.ledger.view import ViewError
from dlx.node.runs import find
from tests.ledger.ledger_run import config

RUN, ACCOUNT = b"\x01" * 32, f"0x{1:040x}"
AT = EventPosition(1, bytes(32), 0, bytes(32), 1_700_000_000)
CREATED = RunCreated(RUN, ACCOUNT, config(stages=1), "a-run", (bytes(32),), AT)
JOINED = Joined(RUN, ACCOUNT, 0, 0, AT)


def told(*events: Event, complete: bool = True) -> ChainUpdate:
    return ChainUpdate(Head(9, bytes(32), 1_700_000_009), events, False, complete)


class Client:
    """Each feed gives its own answers, one a poll, and then nothing new."""

    def __init__(self, *feeds: list[ChainUpdate | BaseException]) -> None:
        self.feeds = iter(feeds)

    domain = Domain(31337, ACCOUNT)

    def feed(self, run: bytes) -> list[ChainUpdate | BaseException]:
        return next(self.feeds)

    def poll(self, feed: list[ChainUpdate | BaseException]) -> ChainUpdate:
        answer = feed.pop(0) if feed else told()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def reader(*feeds: list[ChainUpdate | BaseException]) -> find.RunReader:
    client: Any = Client(*feeds)
    return find.RunReader(client, RUN)


@pytest.mark.parametrize("wrong", [told(JOINED), LedgerError("not a log"), KeyboardInterrupt()])
def test_after_an_error_the_run_is_read_anew(wrong: ChainUpdate | BaseException) -> None:
    run = reader([wrong], [told(CREATED, JOINED)])
    with pytest.raises((ViewError, LedgerError, KeyboardInterrupt)):
        run.view()
    assert run.view().slot_of(ACCOUNT) == (0, 0)


def test_half_a_run_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_READ_ON_SECONDS", 0.0)
    assert reader([told(CREATED, complete=False), told(JOINED)]).view().slot_of(ACCOUNT) == (0, 0)


def test_what_was_read_before_the_chain_fell_silent_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_READ_ON_SECONDS", 0.0)
    run = reader([told(CREATED, complete=False), LedgerUnavailable("no answer"), told(JOINED)])
    with pytest.raises(LedgerUnavailable):
        run.view()
    assert run.view().slot_of(ACCOUNT) == (0, 0)
