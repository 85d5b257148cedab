"""Streams of one protocol that are served at once: a bounded number, of which the worst has to go for a better one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from dlx.p2p.admission import Place, worst


@dataclass(eq=False)
class ServedStream:
    """One of them."""

    peer: str
    networks: tuple[str, ...]
    since: float = field(default_factory=trio.current_time)  # it was opened, or asked last
    busy: bool = True  # with a request; at first one is on its way
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def place(self, registered: bool) -> Place:
        """Of the idle the one that is so longest goes first, of the busy the youngest."""
        turn = -self.since if self.busy else self.since
        return Place(self.peer, self.networks, registered, self.busy, turn)


class ServedStreams:
    """`registered(peer id)`: whether it comes before strangers. `gone(peer id)` is told whose stream had to go."""

    def __init__(
        self, limit: int, per_peer: int, registered: Callable[[str], bool], gone: Callable[[str], None]
    ) -> None:
        self._limit = limit
        self._per_peer = per_peer
        self._registered = registered
        self._gone = gone
        self._streams: list[ServedStream] = []

    def __len__(self) -> int:
        return len(self._streams)

    @contextmanager
    def admit(self, peer: str, networks: tuple[str, ...]) -> Iterator[ServedStream | None]:
        """None if there is no place for it. What is done in the context is cancelled when another needs the place."""
        new = ServedStream(peer, networks)
        if not self._let_in(new):
            yield None
            return
        try:
            with new.scope:
                yield new
        finally:
            if new in self._streams:
                self._streams.remove(new)

    def _let_in(self, new: ServedStream) -> bool:
        there, gone = [*self._streams, new], None
        if sum(stream.peer == new.peer for stream in there) > self._per_peer:
            gone = new
        elif len(there) > self._limit:
            gone = there[worst([stream.place(self._registered(stream.peer)) for stream in there])]
        if gone is not None:
            self._gone(gone.peer)
            gone.scope.cancel()
            there.remove(gone)
        self._streams = there
        return gone is not new
