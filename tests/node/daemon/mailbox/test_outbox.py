"""What a node publishes: its own first, all that it serves if it is to, and nothing longer than it is of use."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import trio

from dlx.node.daemon.mailbox import outbox as module
from dlx.node.daemon.mailbox.messages_file import MESSAGES, pack
from dlx.node.daemon.mailbox.outbox import Outbox
from dlx.node.home import remote
from tests.patience import PATIENCE


class Place:
    def __init__(self, folder: Path) -> None:
        self.blobs, self.there, self.state = folder / "blobs", folder / "there", folder / "state"
        self.blobs.mkdir()
        self.own, self.served = set[bytes](), set[bytes]()
        self.messages: list[bytes] | None = []

    def blob(self, data: bytes) -> bytes:
        name = sha256(data).digest()
        (self.blobs / name.hex()).write_bytes(data)
        return name

    def outbox(self, mirrors: bool = False, to: str = "") -> Outbox:
        return Outbox(
            to or self.there.as_uri(), lambda: {*self.own}, (lambda: {*self.served}) if mirrors else None,
            lambda: self.messages, lambda name: self.blobs / name.hex(), self.state,
        )  # fmt: skip

    def names(self) -> set[str]:
        found = {path.name for path in self.there.iterdir()} if self.there.is_dir() else set[str]()
        return {name for name in found if name != MESSAGES and not name.endswith(".tmp")}

    def recorded(self) -> set[str]:
        """What a later process will know to be there."""
        record = self.state / "published.json"
        return set(json.loads(record.read_text())["there"]) if record.exists() else set()

    def run(self, outbox: Outbox, until: Callable[[], bool]) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outbox.run, lambda: None)
                with trio.fail_after(PATIENCE):
                    while not until():
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

        trio.run(main)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(module, "LOOK", 0.02)
    monkeypatch.setattr(module, "SWEEP", 0.02)
    return Place(tmp_path)


def hexes(*names: bytes) -> set[str]:
    return {name.hex() for name in names}


def test_own_blobs_are_there_before_what_is_said_of_them_and_as_long_as_they_are_of_use(place: Place) -> None:
    first, second, lost = place.blob(b"first"), place.blob(b"second"), sha256(b"lost").digest()
    place.there.mkdir()
    (place.there / MESSAGES).write_bytes(b"of an earlier process")
    place.own, place.messages = {first}, None  # not known yet
    place.run(place.outbox(), lambda: place.recorded() == hexes(first))
    assert (place.there / MESSAGES).read_bytes() == b"of an earlier process"
    (place.there / MESSAGES).unlink()
    (place.there / first.hex()).unlink()
    (place.state / "published.json").unlink()
    place.own, place.messages = {first, lost}, [b"of the first"]
    seen: list[set[str]] = []
    outbox = place.outbox()

    def said() -> bool:
        if (place.there / MESSAGES).exists():
            seen.append(place.names())
        return bool(seen)

    place.run(outbox, said)
    assert seen[0] == hexes(first) and (place.there / MESSAGES).read_bytes() == pack([b"of the first"])
    place.own, place.messages = {second}, [b"of the second"]
    place.run(outbox, lambda: place.names() == hexes(second) and outbox.published == 1)


def test_all_that_is_served_is_there_where_that_is_wanted(place: Place) -> None:
    others = {place.blob(bytes([at])) for at in range(40)}
    mine = place.blob(b"mine")
    place.own, place.served = {mine}, {*others}
    place.run(place.outbox(), lambda: place.names() == hexes(mine))
    outbox = place.outbox(mirrors=True)
    place.run(outbox, lambda: place.names() == hexes(mine, *others))
    place.served = set()
    place.run(outbox, lambda: place.names() == hexes(mine))


def test_a_later_process_takes_back_what_an_earlier_one_published(place: Place) -> None:
    old, new = place.blob(b"old"), place.blob(b"new")
    place.own = {old}
    place.run(place.outbox(), lambda: place.recorded() == hexes(old))
    (place.there / old.hex()).write_bytes(b"touched")
    place.own = {old, new}
    place.run(place.outbox(), lambda: place.recorded() == hexes(old, new))
    assert (place.there / old.hex()).read_bytes() == b"touched", "nothing is published twice"
    place.own = {new}
    place.run(place.outbox(), lambda: place.names() == hexes(new))
    other = place.there.with_name("other")
    place.run(place.outbox(to=other.as_uri()), lambda: (other / new.hex()).exists())
    assert place.names() == hexes(new), "what is elsewhere is no business of this one"


def test_what_was_begun_when_a_process_ended_is_taken_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, begun = place.blob(b"mine"), list[Path]()

    def stuck(path: Path, uri: str) -> None:
        begun.append(path)
        put(path, uri)
        time.sleep(0.5)

    put = remote.put
    monkeypatch.setattr(remote, "put", stuck)
    place.own = {mine}
    place.run(place.outbox(), lambda: place.names() == hexes(mine))
    assert len(begun) == 1, "each is put there once, whoever wants it"
    place.own = set()
    monkeypatch.setattr(remote, "put", put)
    place.run(place.outbox(), lambda: not place.names())


def test_a_place_that_takes_nothing_is_said_and_tried_again(place: Place) -> None:
    place.own = {place.blob(b"mine")}
    place.there.write_text("no folder")
    with pytest.raises(ExceptionGroup) as raised:
        place.run(place.outbox(), lambda: False)
    assert raised.group_contains(OSError, match="the mailbox: file://")
    place.there.unlink()
    place.run(place.outbox(), lambda: place.names() == hexes(*place.own))
