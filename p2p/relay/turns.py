"""Who has a relay's places where more want one than there are: each for a while, in the order of asking.

What a member says of its need costs nothing, so nobody is asked: whoever has had its turn waits behind all others.
"""

from collections.abc import Collection, Mapping

PLACES = 16  # members that have one
TERM = 3600.0  # s that a place lasts where others wait: each change of addresses costs a member gas
PATIENT = 600.0  # s after which who does not ask again waits no longer


class Turns:
    """Of one relay. All times are seconds of one clock."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, float]] = {}  # member -> when it asked first and last

    def ask(self, peer: str, held: Mapping[str, float], members: Collection[str], now: float) -> str | None:
        """Who has to go so that a member has a place: `peer` itself where that has to wait, None where nobody has to.
        `held`: who has a place, and since when."""
        first, _ = self._waiting.get(peer, (now, now))
        self._waiting[peer] = first, now
        self._waiting = {one: asked for one, asked in self._waiting.items() if asked[1] > now - PATIENT}
        ahead = sum(asked[0] < first and one in members for one, asked in self._waiting.items())
        others = {one: since for one, since in held.items() if one != peer and one in members}
        free = max(0, PLACES - len(others))
        due = [one for one, since in others.items() if since <= now - TERM]
        if peer not in held and ahead >= free + len(due):
            return peer
        del self._waiting[peer]
        return None if free else min(due, key=lambda one: others[one])
