"""How much of a connection may be on its way: decisions, over a pretended link."""

from dlx.p2p.backlog import DELAY, FRAME_SECONDS, Backlog


def deliver(backlog: Backlog, rate: float, seconds: float, burst: float = 0.0) -> tuple[float, float]:
    """Bulk over a link of so many bytes a second, of which `burst` pass at once: bytes that came, the most that waited
    in the second half."""
    now, sent, came, most = 0.0, 0, 0.0, 0.0
    while now < seconds:
        waiting = sent - int(came)
        pause = backlog.pause(sent, waiting, 0.001, now)
        if not pause:
            sent, pause = sent + min(backlog.frame, 65_000), 1e-4
            at_once = min(float(burst), sent - came)
            came, burst = came + at_once, burst - at_once
        now, came = now + pause, min(float(sent), came + rate * pause)
        if now > seconds / 2:
            most = max(most, sent - came)
    return came, most


def test_a_slow_link_is_full_and_little_waits_for_it():
    for rate in (10_000.0, 30_000.0, 1_250_000.0):
        came, most = deliver(Backlog(), rate, 20.0, burst=32_000.0)
        assert came > 0.97 * rate * 20
        assert most < max(13_000, 1.1 * (DELAY + FRAME_SECONDS) * rate), rate


def test_a_fast_link_is_full_soon():
    came, _ = deliver(Backlog(), 1e9, 2.0)
    assert came > 100e6
