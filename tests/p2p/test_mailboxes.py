"""Blobs from mailboxes: beside peers and after them, and believed as little."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from dlx.ground.blobs import NoRoom
from dlx.ground.merkle import leaf_hashes, root_of
from dlx.p2p import exchange
from dlx.p2p.exchange import BlobContradiction, BlobExchange, BlobNotFound, BlobTimeout, Sought, Tree
from tests.p2p.network import Node, network
from tests.patience import PATIENCE

DATA = os.urandom(100_000)
HASH = hashlib.sha256(DATA).digest()
TREE = Tree(len(DATA), root_of(leaf_hashes(DATA)))


class Box:
    """Mailboxes that `give` what is sought, or none; `unsure`: what is said then."""

    def __init__(self, give: Callable[[Sought], bytes | None], unsure: bool = False) -> None:
        self.give, self.unsure, self.asked = give, unsure, list[Sought]()

    async def fetch(self, sought: Sought) -> tuple[Path | None, bool]:
        self.asked.append(sought)
        await trio.sleep(0.01)
        data = self.give(sought)
        if data is None:
            return None, self.unsure
        path = sought.draft(False)
        path.write_bytes(data)
        sought.came(len(data))
        return path, False


def reading(node: Node, box: Box) -> BlobExchange:
    node.blobs._mailboxes = box
    return node.blobs


async def test_what_no_peer_can_give_comes_from_a_mailbox(tmp_path):
    async with network(tmp_path, 1) as (one,):
        box = Box(lambda sought: DATA)
        for tree in (TREE, None):
            path = await reading(one, box).fetch(HASH, len(DATA), ["16Maker"], tree=tree)
            assert path.read_bytes() == DATA and path.parent == one.store.folder
            assert not list((one.store.folder / ".partial").iterdir())
            path.unlink()
        assert box.asked[0].makers == {"16Maker"} and list(box.asked[0].sizes) == [len(DATA)]
        assert box.asked[1].sizes == range(len(DATA) + 1)


async def test_peers_come_first(tmp_path):
    async with network(tmp_path, 2) as nodes:
        one, other = nodes
        other.store.put(DATA)
        box = Box(lambda sought: None)
        assert (await reading(one, box).fetch(HASH, len(DATA), tree=TREE)).read_bytes() == DATA
        assert not box.asked


async def test_a_mailbox_is_asked_while_peers_have_nothing_yet(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "MAILBOXES_AFTER", 0.2)
    async with network(tmp_path, 2) as nodes:
        one, other = nodes
        box = Box(lambda sought: DATA if len(box.asked) > 1 else None)
        fetch = reading(one, box).fetch
        with trio.fail_after(PATIENCE):  # the other fetches it too, so that it may have it at any time
            path = await fetch(HASH, len(DATA), ["16Maker"], tree=TREE, sharers=[one.id, other.id])
        assert path.read_bytes() == DATA and len(box.asked) == 2


async def test_nobody_has_it_only_once_all_said_so(tmp_path):
    async with network(tmp_path, 1) as (one,):
        with pytest.raises(BlobNotFound):
            await reading(one, Box(lambda sought: None)).fetch(HASH, len(DATA), [], tree=TREE)
        with pytest.raises(BlobTimeout):
            await reading(one, Box(lambda sought: None, unsure=True)).fetch(HASH, len(DATA), [], 1.0, tree=TREE)


async def test_false_bytes_hold_back_no_deadline(tmp_path):
    async with network(tmp_path, 1) as (one,):
        box = Box(lambda sought: sought.came(len(DATA)), unsure=True)
        with trio.fail_after(PATIENCE), pytest.raises(BlobTimeout):
            await reading(one, box).fetch(HASH, len(DATA), [], 3.0, tree=TREE)
        assert len(box.asked) > 1


async def test_a_stated_size_beyond_what_is_allowed_makes_no_room_and_asks_nobody(tmp_path):
    async with network(tmp_path, 1) as (one,):
        box, made = Box(lambda sought: DATA), list[int]()
        one.store.make_room = lambda size, beside=0: made.append(size)
        with pytest.raises(BlobNotFound):
            await reading(one, box).fetch(HASH, len(DATA) - 1, [], tree=TREE)
        assert not box.asked and not made


async def test_a_name_and_a_root_of_two_files_are_no_mailboxs_fault(tmp_path):
    async with network(tmp_path, 1) as (one,):
        with pytest.raises(BlobContradiction):
            await reading(one, Box(lambda sought: DATA)).fetch(HASH, len(DATA), [], tree=Tree(len(DATA), bytes(32)))
        assert not one.store.has(HASH) and not list((one.store.folder / ".partial").iterdir())


async def test_a_disk_that_is_full_is_said(tmp_path):
    def full(sought: Sought) -> bytes:
        raise NoRoom(tmp_path, "full")

    def broken(sought: Sought) -> bytes:
        raise OSError(5, "broken")

    async with network(tmp_path, 1) as (one,):
        with pytest.raises(BlobTimeout):
            await reading(one, Box(full)).fetch(HASH, len(DATA), [], 1.0, tree=TREE)
        with pytest.raises(OSError, match="broken"):
            await reading(one, Box(broken)).fetch(HASH, len(DATA), [], tree=TREE)
