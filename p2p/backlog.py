"""How much of a connection may be on its way before bulk waits: what is new has to queue behind it.

TCP alone fills whatever queue there is, and loses a quarter of what it sends where a slow link's is short. Linux says
how much is not acknowledged; elsewhere nothing is held back.
"""

import fcntl
import math
import socket
import struct
import sys
import termios

DELAY = 0.2  # s that bulk may wait in queues, ours and those of the way, both ways
LEAST = 8 * 1024  # bytes that may be on their way, whatever the rate
FIRST_RATE, GROWTH = 32 * 1024.0, 2.0  # bytes/s, and how often that each time that it turns out to be too low
FRAME_SECONDS, LEAST_FRAME = 0.1, 4096  # of a connection's rate, and bytes, that one frame may have
_WINDOW_SECONDS, _WINDOW_BYTES = 0.25, 32 * 1024  # either is enough to measure a rate
_LEAST_ROUND_TRIP = struct.Struct("I"), 148  # us, in Linux's tcp_info


class Backlog:
    """Of one connection. `sent`: all bytes that were given to the kernel. Times are seconds of any one clock.

    `limit`: bytes/s that the operator allows all connections together."""

    def __init__(self, limit: float = math.inf) -> None:
        self._limit = limit
        self.rate = min(FIRST_RATE, limit)  # bytes/s
        self.allowed = DELAY * self.rate  # bytes
        self._since: tuple[float, int] | None = None  # time and bytes acknowledged, since when there always was more

    @property
    def frame(self) -> int:
        """Bytes."""
        return max(LEAST_FRAME, round(FRAME_SECONDS * self.rate))

    def pause(self, sent: int, waiting: int, round_trip: float, now: float) -> float:
        """Seconds for which bulk leaves the connection alone, then to be asked again; 0: not at all. `waiting`: bytes
        that are not acknowledged."""
        acknowledged = sent - waiting
        time, before = self._since or (now, acknowledged)
        went, lasted = acknowledged - before, max(now - time, 1e-4)
        is_busy, is_faster = (
            waiting >= LEAST_FRAME,
            went >= min(self.frame, _WINDOW_BYTES) and went / lasted > self.rate,
        )
        if (is_busy and (lasted >= _WINDOW_SECONDS or went >= _WINDOW_BYTES)) or is_faster:
            self.rate = max(1.0, min(went / lasted, GROWTH * self.rate, self._limit))
            self.allowed = max(LEAST, self.rate * (DELAY + round_trip))
            self._since = None
        if self._since is None or not is_busy:
            self._since = now, acknowledged
        over = waiting - self.allowed
        return 0.0 if over < 0 else min(_WINDOW_SECONDS, max(0.002, over / self.rate))


def unacknowledged(sock: socket.socket) -> int:
    """Bytes. Raises OSError."""
    if sys.platform != "linux":
        return 0
    return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])


def least_round_trip(sock: socket.socket) -> float:
    """Seconds. Raises OSError."""
    form, place = _LEAST_ROUND_TRIP
    found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, place + form.size)
    return float(form.unpack_from(found, place)[0]) / 1e6
