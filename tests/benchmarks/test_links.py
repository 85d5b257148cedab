"""The benchmark of slow links: what its rows are told, its table, and links that are as slow as they are told."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.links import network, picture, rows, table
from dlx.training.recipe.presets import INNER_STEPS
from tests.patience import PATIENCE

root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
DOCS = Path(__file__).parents[2] / "docs"
BYTES, SPEED = 250_000, 4e6  # half a second


def measured(
    name: str, tokens_per_second: float, trained: float | None = None, link: str = "matched"
) -> dict[str, Any]:
    return {
        "link": "matched", "replicas": 4, "row": name, "bits_per_second": 235e3, "step_seconds": 0.5, "inner_steps": 10,
        "error": None, "rounds": 3, "seconds": 10.0, "tokens": 1000, "trained": trained,
        "bytes": {"total": 52_000, "payload": 43_000}, "tokens_per_second": tokens_per_second,
    }  # fmt: skip


def test_on_the_matched_link_an_all_reduce_takes_356_times_as_long_as_a_step() -> None:
    speed = rows.matched_speed(4, 0.5)
    assert 8 * 4 * rows.parameters() * 1.5 / speed == pytest.approx(356 * 0.5)
    whole = rows.expected_seconds(rows.ROWS["ddp"], 4, 0.5, speed, 1)
    assert whole == pytest.approx(357 * 0.5)


def test_a_delayed_row_has_as_many_inner_steps_as_hide_its_exchange() -> None:
    row = rows.ROWS["delay1"]
    slow, steps = rows.planned(row, 4, 0.5, rows.matched_speed(4, 0.5))
    assert 100 < steps < 300 and f"inner_steps = {steps}" in slow
    assert rows.planned(row, 4, 0.5, None)[1] == rows.LEAST
    assert rows.planned(rows.ROWS["default"], 4, 0.5, 1e4)[1] == INNER_STEPS, "as it comes, whatever the link"


def test_a_round_that_takes_more_than_a_quarter_of_its_timeout_gets_a_longer_one() -> None:
    slow = rows.planned(rows.ROWS["delay1"], 4, 3.0, 2e5)[0]
    assert "round_timeout" in slow
    assert "round_timeout" not in rows.planned(rows.ROWS["delay1"], 4, 0.5, 1e8)[0]


def test_the_docs_have_the_table_and_the_picture_of_the_same_rows() -> None:
    found = json.loads((tables.RESULTS / "links.json").read_text())
    lines = [f"    {line}" if line else "" for line in table.text(found).splitlines()]
    assert "\n".join(lines) in (DOCS / "links.md").read_text()
    rows_drawn = [row for row in found["rows"] if not row["error"]]
    assert picture.described(rows_drawn).encode() in (DOCS / "links.png").read_bytes()


def test_links_are_named_as_tc_names_them() -> None:
    assert [rows.speed_of(name) for name in ("235kbit", "10mbit", "none")] == [235e3, 10e6, None]
    with pytest.raises(ValueError):
        rows.speed_of("fast")


def test_the_table_says_how_many_times_ddp_a_row_is_and_who_missed() -> None:
    found = [measured("ddp", 20.0), measured("delay1", 4000.0, 0.96), measured("sparse", 0.0) | {"error": "no seal"}]
    text = table.text({"command": "c", "machine": "m", "rows": found})
    assert "235 kbit/s each way" in text and "no seal" in text
    assert next(line for line in text.splitlines() if line.startswith("delay1")).split()[:6] == [
        "delay1", "10", "3", "4,000.0", "200.0", "0.960"
    ]  # fmt: skip
    assert table.missed(found) == [
        "4 replicas, matched, sparse: no seal",
        "4 replicas, matched: 200.0 times DDP at best, not 300",
        "4 replicas, matched, delay1: trains 0.960 of the time, not 0.97",
    ]


def test_without_root_it_says_so_in_one_line() -> None:
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable]
    else:
        command = [sys.executable]
    done = subprocess.run([*command, "-m", "benchmarks.links"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1:] == ["links: needs root, for network namespaces: run it with sudo"]


@root
def test_a_link_is_as_slow_as_it_is_told_and_what_came_is_counted() -> None:
    with network.alone():
        made = network.Network([["one", "two"], ["far"]])
        with made.made():
            made.shape(SPEED)
            within = _transfer(made, "one", "two")
            before, chain = made.traffic()
            between = _transfer(made, "one", "far")
            assert between > 0.8 * 8 * BYTES / SPEED, "but for what a bucket lets through at once"
            assert within < between / 2, "a site's own switch is not shaped"
            after, same = made.traffic()
            assert BYTES < after - before < 1.2 * BYTES and same - chain < BYTES / 50, "but for neighbours' discovery"
            _transfer(made, "far", network.CHAIN)
            assert BYTES < made.traffic()[1] - chain < 1.2 * BYTES
    assert not _namespaces()


@root
def test_a_run_that_was_killed_leaves_nothing_to_the_next() -> None:
    program = (
        "import subprocess, sys\nfrom benchmarks.links import network\n"
        "made = network.Network([['one']])\n"
        "with network.alone(), made.made():\n"
        "    subprocess.Popen(made.command('one', ['sleep', '600']), stdout=subprocess.DEVNULL)\n"
        "    print('up', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert killed.stdout is not None and killed.stdout.readline() == b"up\n"
    killed.kill()
    killed.communicate()
    assert _namespaces()
    with network.alone():
        assert not _namespaces()


def test_a_file_that_is_not_of_this_benchmark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps([1]))
    command = [sys.executable, "-m", "benchmarks.links", "--json", str(tmp_path / "other.json")]
    wide = os.environ | {"COLUMNS": "200"}  # so that no line breaks within what it says
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=wide)
    assert done.returncode == 2 and "is not of this benchmark" in done.stderr


def test_the_picture_has_every_row_that_was_measured(tmp_path: Path) -> None:
    found = [measured("ddp", 20.0), measured("delay1", 4000.0, 0.99), measured("sparse", 0.0) | {"error": "no seal"}]
    (axes,) = picture.drawn(found[:2]).axes
    assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == {"ddp": [20.0], "delay1": [4000.0]}
    (tmp_path / "table.json").write_text(json.dumps({"command": "-", "machine": "-", "rows": found}))
    picture.main(tmp_path / "table.json", tmp_path / "links.png")
    assert picture.described(found[:2]).encode() in (tmp_path / "links.png").read_bytes()
    assert picture.LOOKS.keys() == rows.ROWS.keys()


def _transfer(made: network.Network, sender: str, receiver: str) -> float:
    """Seconds that BYTES take."""
    with made.inside(receiver):
        listener = socket.create_server((made.address(receiver), 0))
    with made.inside(sender):
        stream = socket.create_connection(listener.getsockname(), timeout=PATIENCE)
    taken, _ = listener.accept()
    taken.settimeout(20)
    began = time.monotonic()
    sending = threading.Thread(target=lambda: (stream.sendall(bytes(BYTES)), stream.close()))
    sending.start()
    while taken.recv(1 << 16):
        pass
    sending.join()
    taken.close()
    listener.close()
    return time.monotonic() - began


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=PATIENCE).stdout
    return [line for line in listed.splitlines() if line.startswith(network.PREFIX)]
