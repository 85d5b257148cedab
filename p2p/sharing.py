"""Which pieces of a blob are asked of whom, and when a peer has had its time: decisions, without a network.

A piece is asked of one peer at a time. It is asked of another one only when the first has been silent, or is slow
beside what the other has delivered. Where several members fetch one blob at once, each first has a share of its own
from whoever has it whole, and the shares of the others from them. So the blob leaves its maker about once.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

AHEAD = 2.0  # s: one request asks for as much as its peer delivers in so long
FIRST = 64 * 1024  # bytes asked of a peer whose rate is not known
MOST = 1024 * 1024  # bytes of one request
SILENCE, LONGEST_SILENCE = 5.0, 30.0  # s after which a peer that sends nothing may be replaced
FRAMES = 8  # it may also take as long as this many frames of FRAME bytes take at its rate, where that is longer
FRAME = 8 * 1024
LEAST_RATE = 1024.0  # bytes a second: who delivers less, or lets others deliver less, has left
SLOWER = 4.0  # times: whoever would need so much longer than another gives its pieces up to that one
SHARERS = 8  # members that pass a blob on to the others, at most; so many more are asked at a time
HESITATION = 1.0  # s without a byte after which others than those named are asked too


@dataclass(eq=False)
class Source:
    """A peer that offers the blob, or what it has of it."""

    peer: str
    rate: float | None = None  # bytes a second of one request; None: not known
    have: frozenset[int] | None = None  # pieces, of a peer to which it is still coming; None: all
    share: range = range(0)  # pieces that it is the first to fetch

    @property
    def patience(self) -> float:
        """Seconds that it may be silent."""
        return min(LONGEST_SILENCE, max(SILENCE, FRAMES * FRAME / self.rate if self.rate else 0.0))


@dataclass(eq=False)
class Asked:
    """Pieces from `first` to before `end`, under way."""

    source: Source
    first: int
    end: int
    since: float
    heard_at: float
    got: int = 0  # bytes


@dataclass(eq=False)
class Sharing:
    """One blob of `size` bytes in pieces of `piece`. `own`: the pieces that we fetch first, for others too. Times are
    seconds of any one clock."""

    size: int
    piece: int
    done: Collection[int] = ()
    own: range = range(0)
    sources: list[Source] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = -(-self.size // self.piece)
        self._taken = bytearray(self.count)  # 1: here, or asked for
        for index in self.done:
            self._taken[index] = 1

    def wants(self, pieces: range) -> bool:
        """Whether any of them is neither here nor asked for."""
        return self._taken.find(0, pieces.start, pieces.stop) >= 0

    def take(self, source: Source, now: float) -> Asked | None:
        """What to ask of a peer next, if there is anything."""
        for wish in self._wishes(source):
            first = self._taken.find(0, wish.start, wish.stop)
            if first < 0:
                continue
            end, most = first + 1, first + self._length(source)
            while end < min(wish.stop, most) and not self._taken[end]:
                end += 1
            self._taken[first:end] = bytes([1]) * (end - first)
            asked = Asked(source, first, end, now, now)
            self.asked.append(asked)
            return asked
        return None

    def replaceable(self, source: Source, now: float) -> Asked | None:
        """What another peer was asked for, and `source`, which has nothing to do, should be asked for instead."""
        return next((asked for asked in self.asked if self._is_overdue(asked, source, now)), None)

    def received(self, asked: Asked, bytes_: int, now: float) -> None:
        """So many bytes of it came."""
        asked.got, asked.heard_at = asked.got + bytes_, now

    def over(self, asked: Asked, here: int, now: float) -> None:
        """Its first `here` pieces are here; the rest is missing again."""
        self.asked.remove(asked)
        end = asked.first + here
        self._taken[end : asked.end] = bytes(asked.end - end)
        if asked.got and now > asked.since:
            rate = asked.got / (now - asked.since)
            known = asked.source.rate
            asked.source.rate = rate if known is None else (known + rate) / 2

    def _wishes(self, source: Source) -> Iterator[range]:
        """What it is asked for, first what matters most."""
        if source.have is not None:
            yield source.share
            yield from (range(index, index + 1) for index in sorted(source.have))
            return
        yield self.own
        others = sorted(
            (one for one in self.sources if one is not source and one.share), key=lambda one: one.share.start
        )
        start = 0
        for other in others:  # what nobody passes on
            yield range(start, other.share.start)
            start = max(start, other.share.stop)
        yield range(start, self.count)
        for other in others:
            first = self._taken.find(0, other.share.start, other.share.stop)
            rest = (other.share.stop - first) * self.piece
            if first >= 0 and self._is_slow(other.rate, source, rest):
                yield range((first + other.share.stop) // 2, other.share.stop)

    def _length(self, source: Source) -> int:
        """Pieces of one request."""
        return max(1, int(min(MOST, FIRST if source.rate is None else AHEAD * source.rate)) // self.piece)

    def _is_overdue(self, asked: Asked, source: Source, now: float) -> bool:
        if asked.source is source or asked.source not in self.sources or not self._could_give(source, asked):
            return False
        if now - asked.heard_at > asked.source.patience:
            return True
        lasted, rest = now - asked.since, (asked.end - asked.first) * self.piece - asked.got
        if lasted <= SILENCE:
            return False
        if source.rate is None:  # it may be no better: that is seen once it is asked
            return asked.got < LEAST_RATE * lasted
        return self._is_slow(asked.got / lasted, source, rest)

    @staticmethod
    def _is_slow(rate: float | None, source: Source, rest: int) -> bool:
        """Whether a peer with that rate would need far longer than `source` for so many bytes."""
        if not rate or not source.rate:
            return False
        return rest / rate > SLOWER * rest / source.rate + SILENCE

    def _could_give(self, source: Source, asked: Asked) -> bool:
        return source.have is None or source.have.issuperset(range(asked.first, asked.end))


def shares_of(hash_: bytes, peers: Sequence[str], count: int) -> dict[str, range]:
    """Who of those that fetch a blob of `count` pieces passes on which: the same for all who know the same peers."""
    order = sorted(set(peers), key=lambda peer: hashlib.sha256(hash_ + peer.encode()).digest())[:SHARERS]
    ends = [count * at // len(order) for at in range(len(order) + 1)] if order else []
    return {peer: range(ends[at], ends[at + 1]) for at, peer in enumerate(order) if ends[at] < ends[at + 1]}


def bitmap(pieces: Collection[int]) -> bytes:
    """A bit for each piece, the lowest of a byte first."""
    found = bytearray(max(pieces, default=-1) // 8 + 1)
    for index in pieces:
        found[index // 8] |= 1 << index % 8
    return bytes(found)


def pieces_of(bits: bytes) -> frozenset[int]:
    """The other way."""
    return frozenset(8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1)
