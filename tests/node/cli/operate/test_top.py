"""What `top` draws, of what a node said: as one frame, and in a terminal."""

import asyncio
import io
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from textual.pilot import Pilot
from textual.widgets import DataTable, ProgressBar, Static

from dlx.node.cli.operate import glance, top
from dlx.node.cli.operate.glance import Snapshot
from dlx.node.cli.operate.screen import Screen
from dlx.node.daemon.api.status import Bytes, PeerView, RoundView
from dlx.node.home.errors import Failure
from tests.node.command import dlx
from tests.node.daemon.api.test_http import STATUS
from tests.patience import PATIENCE

PEER = PeerView(peer_id="16Uiu2", addresses=("/ip4/10.0.0.1/tcp/1",), connected_seconds=1, rtt_ms=2.0, agreed=True)
ROUNDS = [
    RoundView(round=at, loss=3.0 - at / 4, counted=2, ours=at != 1, steps=10, time=1_700_000_000) for at in range(3)
]
SEEN = Snapshot(STATUS, [PEER], ROUNDS, at=10.0)


def drawn(what: object, width: int = 160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(what)
    return out.getvalue()


def others(count: int) -> list[PeerView]:
    return [replace(PEER, peer_id=f"16Uiu2{at}") for at in range(count)]


# ---- one frame


def test_losses_rounds_traffic_peers_and_warnings_are_there() -> None:
    status = replace(STATUS, notices=("accused by a member",), resting="paused; keeps its slot")
    found = drawn(glance.frame(Snapshot(status, others(20), ROUNDS)))
    for said in (
        "round 3",
        "step 4 of 10",
        "3.0000 ┤",
        "2.5000 ┤",
        "round 0",
        "training loss 3.0000 to 2.5000, in 3 rounds",
        "accused",
        "paused",
        "16Uiu20",
        "and 4 more",
    ):
        assert said in found, found
    evaluated = [replace(one, held_out=4.0 - one.round) for one in ROUNDS]
    found = drawn(glance.frame(Snapshot(STATUS, [], evaluated[:1] + ROUNDS[1:2] + evaluated[2:])))
    assert "held-out loss 4.0000 to 2.0000, in 2 versions; training loss" in found and "4.0000 ┤" in found
    assert "no loss of a round yet" in drawn(
        glance.frame(Snapshot(replace(STATUS, round=None, loss=None), [], [])), width=60
    )


def test_the_losses_have_axes() -> None:
    found = glance.loss_chart([(3, 3.0), (4, 2.5), (9, 2.0)], 19).splitlines()
    assert found == [
        "3.0000 ┤███",
        "       ┤███",
        "       ┤███▅▅▅",
        "       ┤██████",
        "2.0000 ┤██████▁▁▁",
        "       └round 3 9",
    ]
    many = glance.loss_chart([(at, 9.0 - at / 1000) for at in range(5000)], 60).splitlines()
    assert max(map(len, many)) <= 60 and many[-1].startswith("       └round 0") and many[-1].endswith(" 4999")
    assert "2.0000 ┤▁" in glance.loss_chart([(0, 2.0)], 60), "a flat one"
    assert glance.loss_chart([], 60) == glance.loss_chart([(0, 1.0)], 5) == ""


def test_a_name_from_outside_is_no_markup() -> None:
    strange = replace(STATUS, notices=("[red]accused[/red] [/]",))
    peer = replace(PEER, peer_id="[bold]x[/]")
    assert "[red]accused[/red] [/]" in drawn(glance.frame(Snapshot(strange, [peer], [])))


def test_traffic_is_by_the_second_and_a_new_start_is_no_negative_one() -> None:
    less = replace(STATUS, traffic=replace(STATUS.traffic, payload=Bytes(sent=0, received=1)))
    assert "450.0 kB/s" in drawn(glance.traffic(STATUS, less, 2.0))
    again = drawn(glance.traffic(less, STATUS, 2.0))
    assert "-" not in again and "payload     0 B      1 B" in again and "/s" not in drawn(glance.traffic(STATUS))


@pytest.mark.parametrize("options", [(), ("--once",)])
def test_without_a_terminal_it_is_one_frame_or_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(top, "snapshot", lambda folder: SEEN)
    (tmp_path / "config.toml").touch()
    assert "round 3" in dlx("top", "--datadir", tmp_path, *options).stdout
    found = json.loads(dlx("top", "--datadir", tmp_path, "--json", *options).stdout)
    assert found["status"]["round"] == 3 and found["peers"][0]["agreed"] and found["rounds"][2]["loss"] == 2.5


def test_where_no_node_runs_it_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    assert "no node runs in" in dlx("top", "--datadir", tmp_path, code=3).stderr


# ---- in a terminal


def in_terminal(
    ask: Callable[[], Snapshot],
    test: Callable[[Pilot[None], Screen], Awaitable[None]],
    size: tuple[int, int] = (140, 50),
    every: float = 3600.0,
) -> Screen:
    screen = Screen(ask, SEEN, every)

    async def main() -> None:
        async with screen.run_test(size=size) as pilot:
            await test(pilot, screen)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    return screen


async def answered(pilot: Pilot[None], screen: Screen) -> None:
    while screen._asking:
        await asyncio.sleep(0.01)
    await pilot.pause()


def shown(screen: Screen, name: str) -> str:
    content = screen.query_one(f"#{name}", Static).content
    return drawn(content) if isinstance(content, Table) else str(content)


def rows(screen: Screen, name: str) -> list[list[str]]:
    table = screen.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


def test_everything_is_on_the_screen_and_follows_the_node() -> None:
    traffic = replace(STATUS.traffic, payload=Bytes(sent=1_900_000, received=1))
    newer = replace(STATUS, step=9, notices=("accused by a member",), traffic=traffic)
    sealed = [*ROUNDS, replace(ROUNDS[0], round=3, loss=2.25)]

    async def test(pilot: Pilot[None], screen: Screen) -> None:
        assert "stage 1 of replica 0" in shown(screen, "facts") and "training" in shown(screen, "now")
        assert screen.query_one(ProgressBar).percentage == pytest.approx(0.4)
        assert "3.0000 ┤" in shown(screen, "losses") and "2.5000 ┤" in shown(screen, "losses")
        assert [row[0] for row in rows(screen, "rounds")] == ["2", "1", "0"], "the newest first"
        assert rows(screen, "rounds")[1][:5] == ["1", "", "2.7500", "2", "no"]
        await pilot.press("r")
        await answered(pilot, screen)
        assert "accused" in shown(screen, "facts") and "500.0 kB/s" in shown(screen, "traffic")
        assert screen.query_one(ProgressBar).percentage == pytest.approx(0.9)
        assert len(rows(screen, "rounds")) == 4 and len(rows(screen, "peers")) == 2

    in_terminal(lambda: Snapshot(newer, others(2), sealed, at=12.0), test)


def test_a_node_that_is_gone_leaves_the_last_picture_and_the_reason() -> None:
    answers: list[Snapshot | Failure] = [Failure("no node runs in /x"), SEEN]

    def ask() -> Snapshot:
        found = answers.pop(0)
        if isinstance(found, Failure):
            raise found
        return found

    async def test(pilot: Pilot[None], screen: Screen) -> None:
        for gone in (True, False):
            await pilot.press("r")
            await answered(pilot, screen)
            assert screen.query_one("#trouble").display == gone
            assert "stage 1 of replica 0" in shown(screen, "facts")
        assert "no node runs in /x" in said[0]

    said: list[str] = []
    tell = Screen._tell

    def heard(self: Screen, reason: str) -> None:
        said.extend([reason] if reason else [])
        tell(self, reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Screen, "_tell", heard)
        in_terminal(ask, test)


def test_held_it_asks_nobody_until_the_key_again() -> None:
    asked, again = [0], threading.Event()

    def ask() -> Snapshot:
        asked[0] += 1
        again.set()
        return SEEN

    async def test(pilot: Pilot[None], screen: Screen) -> None:
        await pilot.press("space")
        assert "held" in shown(screen, "title")
        again.clear()
        screen._tick()
        assert asked == [0]
        await pilot.press("space")
        assert "held" not in shown(screen, "title")
        screen._tick()
        assert await asyncio.to_thread(again.wait, PATIENCE)

    in_terminal(ask, test)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
def test_a_key_ends_it_also_while_the_node_does_not_answer(key: str) -> None:
    hangs, asked = threading.Event(), threading.Event()

    def ask() -> Snapshot:
        asked.set()
        hangs.wait(PATIENCE)
        raise Failure("too late")

    async def test(pilot: Pilot[None], screen: Screen) -> None:
        await pilot.press("r")
        assert await asyncio.to_thread(asked.wait, PATIENCE)
        await pilot.press(key)
        hangs.set()

    assert in_terminal(ask, test).return_code == 0


@pytest.mark.parametrize("size", [(140, 50), (80, 24), (40, 12), (20, 5)])
def test_it_fits_a_terminal_of_any_size_and_takes_another(size: tuple[int, int]) -> None:
    async def test(pilot: Pilot[None], screen: Screen) -> None:
        for width, height in (size, (100, 30), size):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            sides = screen.query_one("#rounds").region.x, screen.query_one("#peers").region.x
            assert (sides[0] != sides[1]) == (width >= 110), "beside each other where there is room"
            assert screen.query_one("#title").region.width == width
            assert screen.query_one("#facts").region.right <= width

    in_terminal(lambda: SEEN, test, size)


def test_where_a_table_was_scrolled_to_it_stays() -> None:
    many = [replace(ROUNDS[0], round=at, time=at) for at in range(60)]
    looks = iter([many, [*many[1:], replace(ROUNDS[0], round=60)]])

    async def test(pilot: Pilot[None], screen: Screen) -> None:
        table = screen.query_one("#rounds", DataTable)
        for _ in range(2):
            await pilot.press("r")
            await answered(pilot, screen)
            if table.scroll_offset.y == 0:
                table.scroll_to(y=7, animate=False)
                await pilot.pause()
        assert table.scroll_offset.y == 7 and rows(screen, "rounds")[0][0] == "60"

    in_terminal(lambda: Snapshot(STATUS, [PEER], next(looks), at=11.0), test)
