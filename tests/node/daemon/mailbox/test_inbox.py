"""Mailboxes of strangers, at a real server of https: honest, false, endless, dripping, private."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial, wraps
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import trio

from dlx.ground.backoff import Backoff
from dlx.ground.blobs import NoRoom
from dlx.node.daemon.mailbox import inbox as module
from dlx.node.daemon.mailbox import messages_file
from dlx.node.daemon.mailbox.inbox import Inbox
from dlx.node.daemon.mailbox.messages_file import MESSAGES, pack
from dlx.node.daemon.messages import Heard
from dlx.node.home import mailboxes, remote
from dlx.node.home.errors import Failure
from dlx.p2p.exchange import Sought
from tests.node.https_server import serving, trust
from tests.patience import PATIENCE, patient

BLOB = b"blob" * 5000
HASH = hashlib.sha256(BLOB).digest()
OWN, MAKER, OTHER = "16Own", "16Maker", "16Other"
CHANGED = {"false": BLOB[:-1] + b"!", "longer": BLOB + b"!", "shorter": BLOB[1:]}


class Server:
    """By the first part of the path, what a mailbox is like."""

    def __init__(self) -> None:
        self.url, self.asked, self.messages, self.drip_bytes = "", list[str](), b"", 1

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                _, kind, name = self.path.split("/")
                content = server.messages if name == MESSAGES else BLOB if name == HASH.hex() else None
                status = 500 if kind == "broken" else 404 if content is None or kind == "empty" else 200
                self.send_response(status)
                self.end_headers()
                if status == 200 and content is not None:
                    self.send(kind, CHANGED.get(kind, content))

            def send(self, kind: str, content: bytes) -> None:
                try:
                    while kind == "drips" and content:
                        self.wfile.write(content[: server.drip_bytes])
                        content = content[server.drip_bytes :]
                        time.sleep(0.2)
                    while kind == "endless":
                        self.wfile.write(bytes(1 << 16))
                    self.wfile.write(content)
                except OSError:
                    pass

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    with serving(made.handler(), tmp_path / "certificate.pem") as made.url:
        trust(monkeypatch, tmp_path / "certificate.pem", "127.0.0.1")
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "drafts").mkdir()
    return tmp_path / "drafts"


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """All of it by one clock."""

    @wraps(test)
    def run(**given: Any) -> None:
        trio.run(partial(test, **given))

    return run


class Reader:
    """An inbox, with what it wrote and heard."""

    def __init__(self, folder: Path, server: Server, named: tuple[str, ...] = (), **kinds: str) -> None:
        self.folder, self.heard, self.came, self.agreed = folder, list[bytes](), 0, set[str]()
        self.says: Heard | None = Heard.NO_NEWS
        self.open_round: int | None = 7
        self.has_room = True  # for a second file of a blob
        ids = {"maker": MAKER, "other": OTHER, "own": OWN}
        peers = {ids[who]: ("/ip4/1.2.3.4/tcp/1", f"{server.url}/{kind}") for who, kind in kinds.items()}
        self.inbox = Inbox(
            named, OWN, lambda: peers, lambda: self.agreed, self.hear, lambda: self.open_round, folder / "work"
        )

    def hear(self, message: bytes, where: str) -> Heard | None:
        self.heard.append(message)
        return self.says

    def draft(self, beside: bool) -> Path:
        if beside and not self.has_room:
            raise NoRoom(self.folder, "full")
        return self.folder / f"draft{time.monotonic_ns()}"

    def drafts(self) -> list[int]:
        """The bytes of each file on its way."""
        return [path.stat().st_size for path in self.folder.glob("draft*")]

    def count(self, bytes_: int) -> None:
        self.came += bytes_

    async def fetch(
        self, sizes: range = range(len(BLOB), len(BLOB) + 1), draft: Any = None
    ) -> tuple[bytes | None, bool]:
        with trio.fail_after(PATIENCE):
            path, unsure = await self.inbox.fetch(Sought(HASH, sizes, {MAKER}, draft or self.draft, self.count))
        return (None if path is None else path.read_bytes()), unsure

    async def read(self, until: Callable[[], bool]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.inbox.run, lambda: None)
            with trio.fail_after(PATIENCE):
                while not until():
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


@in_trio
async def test_a_blob_is_had_from_its_makers_mailbox_first(server: Server, folder: Path) -> None:
    reader = Reader(folder, server, maker="good", other="too", own="mine")
    assert await reader.fetch() == (BLOB, False)
    assert server.asked == [f"/good/{HASH.hex()}"] and reader.came == len(BLOB)
    assert await reader.fetch(range(len(BLOB) + 100)) == (BLOB, False), "also where the size is only bounded"


@pytest.mark.parametrize("kind", ["false", "longer", "shorter", "broken", "endless", "drips"])
@in_trio
async def test_what_is_not_the_blob_is_not_kept_and_others_are_asked(
    server: Server, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", patient(2.0) if kind in ("endless", "drips") else PATIENCE)
    monkeypatch.setattr(mailboxes, "BLOB_SECONDS", 2 * PATIENCE)
    reader = Reader(folder, server, maker=kind, other="good")
    assert (await reader.fetch())[0] == BLOB
    assert len(server.asked) == 2 and server.asked[0].startswith(f"/{kind}/")
    server.asked.clear()  # it is left alone from now on
    assert (await reader.fetch())[0] == BLOB
    assert [path.split("/")[1] for path in server.asked] == ["good"]


@in_trio
async def test_a_download_that_is_given_up_ends_soon_and_counts_until_then(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", 0.5)
    monkeypatch.setattr(remote, "_ASK", 3600.0)  # its thread does not notice yet
    reader = Reader(folder, server, maker="drips", other="good")
    assert (await reader.fetch())[0] == BLOB
    (slow,) = (one for one in reader.inbox._known.values() if one.owner == MAKER)
    assert slow.failures == 1 and slow.downloads.borrowed_tokens == reader.inbox._threads.borrowed_tokens == 1
    monkeypatch.setattr(remote, "_ASK", 0.5)
    with trio.fail_after(PATIENCE):
        while reader.inbox._threads.borrowed_tokens:
            await trio.sleep(0.05)
    assert not slow.downloads.borrowed_tokens


@in_trio
async def test_a_download_that_another_overtook_takes_no_room_any_more(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", 0.5)
    monkeypatch.setattr(remote, "_ASK", 3600.0)  # its thread does not notice
    reader = Reader(folder, server, maker="drips", other="good")
    assert (await reader.fetch())[0] == BLOB
    assert reader.inbox._threads.borrowed_tokens == 1 and reader.drafts() == [len(BLOB)]


@in_trio
async def test_without_room_for_two_a_slow_one_gives_way_to_the_next(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", 0.5)
    reader = Reader(folder, server, maker="drips", other="good")
    reader.has_room = False
    assert await reader.fetch() == (BLOB, False)
    assert [path.split("/")[1] for path in server.asked] == ["drips", "good"]
    assert reader.drafts() == [len(BLOB)], "the slow one's is gone"
    (slow,) = (one for one in reader.inbox._known.values() if one.owner == MAKER)
    assert slow.failures == 1


@in_trio
async def test_a_slow_one_that_gave_way_is_asked_again_where_no_other_has_it(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", 0.5)
    server.drip_bytes = len(BLOB) // 6 + 1
    reader = Reader(folder, server, maker="drips", other="empty")
    reader.has_room = False
    assert await reader.fetch() == (BLOB, False)
    assert [path.split("/")[1] for path in server.asked] == ["drips", "empty", "drips"]
    assert not any(one.failures for one in reader.inbox._known.values()), "it is the only one that has it"


@in_trio
async def test_one_that_is_not_slow_gives_no_room_to_one_that_gave_blobs(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", 0.3)
    monkeypatch.setattr(module, "SLOW", 0)  # nobody is
    server.drip_bytes = len(BLOB) // 6 + 1
    reader = Reader(folder, server, maker="drips", other="good")
    reader.has_room = False
    next(one for one in reader.inbox._mailboxes() if one.owner == OTHER).blobs = 1
    assert await reader.fetch() == (BLOB, False)
    assert [path.split("/")[1] for path in server.asked] == ["drips"]


@in_trio
async def test_who_waited_for_its_turn_while_all_others_failed_writes_the_first_file(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", 0.2)
    monkeypatch.setattr(mailboxes, "BLOB_SECONDS", 4.0)
    monkeypatch.setattr(mailboxes, "SLOWEST", 1 << 30)
    reader = Reader(folder, server, maker="drips", other="good")
    reader.has_room = False
    maker, other = sorted(reader.inbox._mailboxes(), key=lambda one: one.owner != MAKER)
    busy = [object() for _ in range(module.DOWNLOADS)]
    for each in busy:
        other.downloads.acquire_on_behalf_of_nowait(each)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def turn() -> None:
            while not maker.failures:
                await trio.sleep(0.01)
            for each in busy:
                other.downloads.release_on_behalf_of(each)

        assert (await reader.fetch())[0] == BLOB


@in_trio
async def test_one_that_gave_blobs_is_asked_too_however_fast_another_is(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEDGE", 0.5)
    monkeypatch.setattr(module, "SLOW", 1)  # nobody is slow
    monkeypatch.setattr(remote, "_PIECE", 1)
    monkeypatch.setattr(mailboxes, "BLOB_SECONDS", 2 * PATIENCE)
    reader = Reader(folder, server, maker="drips", other="good")
    gave = next(one for one in reader.inbox._mailboxes() if one.owner == OTHER)
    gave.blobs = 1
    assert (await reader.fetch())[0] == BLOB


@in_trio
async def test_false_bytes_are_forgotten_by_time_and_not_by_the_next_success(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(folder, server, maker="changing")
    (one,) = reader.inbox._mailboxes()
    for false, failures in ((True, 1), (False, 1), (True, 2), (False, 2)):
        monkeypatch.setitem(CHANGED, "changing", CHANGED["false"] if false else BLOB)
        one.left_until = 0.0
        assert (await reader.fetch())[0] == (None if false else BLOB) and one.failures == failures
    one.left_until = one.false_until = 0.0
    assert (await reader.fetch())[0] == BLOB and not one.failures


def test_an_owners_failures_stay_at_another_address_and_beyond_the_most_that_are_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    peers = {peer: [f"https://{peer}.example/one"] for peer in "cab"}
    inbox = Inbox((), OWN, lambda: peers, lambda: (), lambda message, where: Heard.NEWS, lambda: 0, folder)
    first, second = inbox._mailboxes()
    assert (first.owner, second.owner) == ("a", "b"), "in a fixed order"
    second.failures = 7
    peers |= {"Z": ["https://z.example"], "b": ["https://b.example/two"]}
    assert [one.owner for one in inbox._mailboxes()] == ["Z", "a"]
    peers[OWN], peers["0"] = ["https://own.example"], ["https://0.example"]
    assert [one.owner for one in inbox._mailboxes()] == [OWN, "0"], "our own among them"
    for peer in (OWN, "0", "Z"):
        del peers[peer]
    found = inbox._mailboxes()[1]
    assert found is second and found.failures == 7 and found.uri == "https://b.example/two"


@in_trio
async def test_who_drips_has_the_time_of_what_came_and_no_more(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_ASK", 0.2)
    monkeypatch.setattr(mailboxes, "BLOB_SECONDS", 1.0)
    monkeypatch.setattr(mailboxes, "SLOWEST", 10)
    assert await Reader(folder, server, maker="drips").fetch() == (None, True)


@in_trio
async def test_nobody_has_it_where_its_maker_says_so_whatever_strangers_say(server: Server, folder: Path) -> None:
    assert await Reader(folder, server).fetch() == (None, False)
    assert await Reader(folder, server, maker="empty", other="empty").fetch() == (None, False)
    assert await Reader(folder, server, maker="empty", other="broken").fetch() == (None, False), (
        "a stranger delays nobody"
    )
    assert await Reader(folder, server, maker="broken", other="empty").fetch() == (None, True)
    assert not list(folder.glob("draft*"))


@in_trio
async def test_a_full_disk_is_nobodys_fault(server: Server, folder: Path) -> None:
    def full(beside: bool) -> Path:
        raise NoRoom(folder, "full")

    reader = Reader(folder, server, maker="good")
    with pytest.raises(NoRoom):
        await reader.fetch(draft=full)
    assert await reader.fetch() == (BLOB, False)


@in_trio
async def test_a_strangers_mailbox_leads_to_no_private_address_and_an_operators_may(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch, folder.parent / "certificate.pem")  # 127.0.0.1 is taken for what it is
    assert await Reader(folder, server, maker="good").fetch() == (None, True) and not server.asked
    place = folder.parent / "mine"
    place.mkdir()
    (place / HASH.hex()).write_bytes(BLOB)
    assert (await Reader(folder, server, (place.as_uri(),), maker="good").fetch())[0] == BLOB


@in_trio
async def test_messages_are_heard_once_in_a_while_and_only_of_who_is_not_connected(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ", Backoff(0.05, 0.05))
    server.messages = pack([b"one", b"two"])
    reader = Reader(folder, server, maker="good", own="mine", other="too")
    reader.agreed = {OTHER}
    await reader.read(lambda: server.asked.count(f"/good/{MESSAGES}") > 2)
    assert sorted(reader.heard) == sorted([b"one", b"two"] * 2)  # of our own mailbox too, where a copy may publish
    assert {*server.asked} == {f"/good/{MESSAGES}", f"/mine/{MESSAGES}"}
    server.messages = pack([b"two", b"three"])
    await reader.read(lambda: b"three" in reader.heard)
    assert {*reader.heard} == {b"one", b"two", b"three"}
    monkeypatch.setattr(module, "AGAIN", 0.0)
    await reader.read(lambda: reader.heard.count(b"two") > 3)


@in_trio
async def test_what_our_own_mailbox_says_of_a_copy_of_this_node_goes_on(server: Server, folder: Path) -> None:
    def works_elsewhere(message: bytes, where: str) -> Heard:
        raise Failure("works elsewhere too")

    server.messages = pack([b"one"])
    reader = Reader(folder, server, own="mine")
    reader.inbox._hear = works_elsewhere
    with trio.fail_after(PATIENCE), pytest.RaisesGroup(pytest.RaisesExc(Failure, match="works elsewhere")):
        await reader.inbox.run(lambda: None)
    assert not reader.inbox.read and await reader.fetch() == (None, False), "no blob is looked for there"


@pytest.mark.parametrize("kind", ["junk", "endless", "drips", "broken", "refused"])
@in_trio
async def test_a_mailbox_of_junk_is_left(
    server: Server, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_file, "SECONDS", 1.0 if kind in ("endless", "drips") else PATIENCE)
    server.messages = pack([b"x", b"y" * 99]) if kind in ("refused", "drips") else b"\xff" * 99
    reader = Reader(folder, server, maker=kind)
    reader.says = Heard.JUNK
    await reader.read(lambda: any(one.failures for one in reader.inbox._known.values()))
    assert reader.heard == ([b"x"] if kind == "refused" else [])
    (one,) = reader.inbox._known.values()
    assert one.left_until > 0 and one.looked_at is None and len(server.asked) == 1


@in_trio
async def test_what_nobody_can_use_is_borne_up_to_a_bound_and_let_be_beyond(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ", Backoff(0.05, 0.05))
    server.messages = pack([b"%d" % number for number in range(999)])
    reader = Reader(folder, server, maker="good")
    reader.says = Heard.REFUSED
    (one,) = reader.inbox._mailboxes()
    await reader.read(lambda: one.look_at > trio.current_time() + module.REST / 2)
    assert len(reader.heard) == pytest.approx(module.STRIKES, abs=50) and len({*reader.heard}) == len(reader.heard)
    assert await reader.fetch() == (BLOB, False) and not one.failures, "its blobs are as good as ever"
    one.look_at, reader.says = 0.0, Heard.NEWS  # as after that time
    await reader.read(lambda: reader.inbox.read == 1)


@in_trio
async def test_what_stays_in_a_mailbox_counts_once(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that sees the ledger late, and lying members, make honest mirrors look useless."""
    monkeypatch.setattr(module, "READ", Backoff(0.05, 0.05))
    monkeypatch.setattr(module, "AGAIN", 0.0)
    server.messages = pack([b"%d" % number for number in range(99)])
    reader = Reader(folder, server, maker="good")
    reader.says = Heard.REFUSED
    (one,) = reader.inbox._mailboxes()
    await reader.read(lambda: len(reader.heard) > 2 * module.STRIKES)
    assert one.look_at < trio.current_time() + module.REST / 2 and not one.failures


@in_trio
async def test_a_mailbox_is_read_while_its_news_are_of_now(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ", Backoff(0.05, 0.05))
    monkeypatch.setattr(module, "AGAIN", 0.0)
    server.messages = pack([b"one"])
    reader = Reader(folder, server, maker="good")
    for nothing in (Heard.NO_NEWS, Heard.REFUSED):
        reader.says, asked = nothing, len(server.asked)
        await reader.read(lambda asked=asked: len(server.asked) > asked + 2)  # type: ignore[misc]
        assert not reader.inbox.read, "whatever a stranger's mailbox has, no member is heard by it"
    reader.says = Heard.NEWS
    await reader.read(lambda: reader.inbox.read == 1)
    reader.says, reader.open_round = Heard.NO_NEWS, 8
    assert reader.inbox.read, "the round has just begun"
    reader.open_round = 9
    assert reader.inbox.read, "rounds are short"
    monkeypatch.setattr(module, "FRESH", 0.5)
    await reader.read(lambda: not reader.inbox.read)
    reader.open_round = 8
    await reader.read(lambda: reader.inbox.read == 1)


@in_trio
async def test_what_comes_before_anybody_listens_is_heard_later(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ", Backoff(0.05, 0.05))
    server.messages = pack([b"one"])
    reader = Reader(folder, server, maker="good")
    reader.says = None
    await reader.read(lambda: len(reader.heard) > 2)
    reader.says, before = Heard.NEWS, len(reader.heard)
    asked = len(server.asked)
    await reader.read(lambda: len(server.asked) > asked + 4)
    assert len(reader.heard) <= before + 2
