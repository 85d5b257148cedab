"""Which round a member and its pipe neighbours begin next, and with how many inner steps: what they told each other.

Each hears what its neighbour and all stages beyond it could do, so all of a replica come to the same.
"""

from collections.abc import Collection

from dlx.node.round import actions as a
from dlx.node.round import events as e


class Neighbours:
    """Of a member of `stage`, one of `stages`."""

    def __init__(self, stage: int, stages: int) -> None:
        self._links = ["previous"] * (stage > 0) + ["next"] * (stage < stages - 1)
        self._wants: dict[str, e.NeighbourWants] = {}  # by link
        self._told: dict[str, a.WantRound] = {}

    def see(self, event: e.NeighbourWants) -> None:
        self._wants[event.link] = event
        if event.round is None:
            self._told.pop(event.link, None)

    @property
    def connected(self) -> dict[str, int]:
        """The links whose pipes are open, and the round that the neighbour there named."""
        return {link: want.round for link, want in self._wants.items() if want.round is not None}

    @property
    def are_all_here(self) -> bool:
        return len(self.connected) == len(self._links)

    def steps(self, round: int, own: int | None, fewest: int) -> int | None:
        """The inner steps for which we (`own`; None: cannot start) and all others have time; None while somebody is not
        ready. Nobody can name fewer than count."""
        return self._agreed(round, own, fewest, self._links)

    def tell(self, round: int, own: int | None, fewest: int, last_trained: int) -> list[a.Action] | None:
        """What is news to each neighbour: what we and the stages on our other side could do. None where the pipes have
        to break, because one may already train what we said before."""
        if not self.are_all_here:
            return []
        out: list[a.Action] = []
        for link in self._links:
            agreed = self._agreed(round, own, fewest, [other for other in self._links if other != link])
            want, before = a.WantRound(link, round, agreed is not None, agreed or 0), self._told.get(link)
            if want == before:
                continue
            if before is not None and before.ready and before.round > last_trained:
                self.take_back()
                return None
            self._told[link] = want
            out.append(want)
        return out

    def take_back(self) -> None:
        """What we said holds no more."""
        self._told = {}

    def _agreed(self, round: int, own: int | None, fewest: int, links: Collection[str]) -> int | None:
        wants = [self._wants.get(link) for link in links]
        ready = [want.steps for want in wants if want is not None and want.round == round and want.ready]
        if own is None or len(ready) < len(wants):
            return None
        return min([own, *(max(one, fewest) for one in ready)])
