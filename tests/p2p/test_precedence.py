"""What goes first of a node's answers, on trio's clock."""

import trio
from trio.testing import MockClock

from dlx.p2p.precedence import HELD, LINGER, LONGEST, SLOW, Precedence


async def _waits(precedence: Precedence) -> float:
    began = trio.current_time()
    await precedence.turn()
    return trio.current_time() - began


def _run(check) -> None:
    trio.run(check, clock=MockClock(autojump_threshold=0))


def test_a_piece_waits_for_a_payload_and_a_while_longer_but_not_for_ever() -> None:
    async def check() -> None:
        precedence = Precedence()
        assert await _waits(precedence) == 0
        with precedence.payload("reader"):
            assert HELD <= await _waits(precedence) < HELD + 0.1
        assert LINGER <= await _waits(precedence) < LINGER + 0.1

    _run(check)


def test_who_reads_a_payload_slowly_holds_up_nobody_for_long_nor_again_soon() -> None:
    """Our link has room then: else one reader that hangs would keep every newcomer at five kilobytes a second."""

    async def check() -> None:
        precedence = Precedence()
        with precedence.payload("slow"):
            await trio.sleep(LONGEST)
            assert await _waits(precedence) == 0
            await trio.sleep(1)
        with precedence.payload("slow"):
            assert await _waits(precedence) == 0
        with precedence.payload("other"):
            assert await _waits(precedence) >= HELD
        await trio.sleep(SLOW)
        with precedence.payload("slow"):
            assert await _waits(precedence) >= HELD

    _run(check)
