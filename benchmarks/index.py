"""What the index of events costs: 100,000 events read for the first time, later starts, histories, and memory.

`python -m benchmarks.index [--events N] [--strangers N] [--json FILE]` serves a made-up chain from a process of its
own, so that the CPU seconds are the client's alone. The events are encoded as the contracts do: seals of one run of
4 stages and 8 replicas that all members sign, and those of a stranger's run with as many events as is said.
"""

import json
import os
import platform
import resource
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.synthetic_chain import RUN, Chain
from dlx.ledger.index.event_index import EventIndex
from dlx.ledger.rpc.rpc_client import RpcClient
from dlx.node.runs import find, history

_spawn = get_context("spawn")


def main(
    events: Annotated[int, typer.Option(min=1000, help="Of the run that is read.")] = 100_000,
    strangers: Annotated[int, typer.Option(min=0, help="Of another run, which nobody asks for.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result there.")
    ] = None,
) -> None:
    """Print CPU seconds of a first and a later start, milliseconds of history queries, and the client's memory."""
    result: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, "-m", "benchmarks.index", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
    }
    with tempfile.TemporaryDirectory(prefix="dlx-index-") as folder, served(events, strangers) as url:
        path = Path(folder) / "events.sqlite"
        result["first sync"] = measured(_sync, url, path)
        result["first look at the run"] = measured(_look, url, path)
        result["later start"] = measured(_look, url, path)
        result["queries, CPU ms"] = measured(_query, url, path)["result"]
        result["file, MB"] = round(sum(one.stat().st_size for one in Path(folder).iterdir()) / 1e6, 1)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")


def _sync(url: str, path: Path) -> None:
    _open(url, path)


def _look(url: str, path: Path) -> None:
    find.replayed(_open(url, path), RUN)


def _query(url: str, path: Path) -> dict[str, float]:
    index = _open(url, path)
    view = find.replayed(index, RUN)
    rounds = view.next_round(0)
    return {
        "newest 20 rounds": _milliseconds(lambda: history.history(index, view, 20)),
        "newest 1,000 rounds": _milliseconds(lambda: history.history(index, view, 1000)),
        f"all {rounds:,} rounds": _milliseconds(lambda: history.history(index, view)),
        "a run by its prefix": _milliseconds(lambda: find.resolve(index, RUN.hex()[:6])),
    }


def _open(url: str, path: Path) -> EventIndex:
    index = EventIndex(path, Chain.ID, Chain.CONTRACTS)
    index.sync(RpcClient(url))
    return index


def _milliseconds(query: Any) -> float:
    """Of CPU, the median of some."""
    times = []
    for _ in range(5):
        started = time.process_time()
        query()
        times.append(time.process_time() - started)
    return round(1000 * sorted(times)[2], 1)


def measured(work: Any, url: str, path: Path) -> dict[str, Any]:
    """CPU and wall seconds of `work` in a new process, without its imports, and by how much its memory grew."""
    ours, theirs = _spawn.Pipe()
    child = _spawn.Process(target=_measure, args=(theirs, work, url, path))
    child.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        child.join()


def _measure(answer: Connection, work: Any, url: str, path: Path) -> None:
    RpcClient(url).head()  # what the first request loads
    before, cpu, wall = _peak(), time.process_time(), time.perf_counter()
    result = work(url, path)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    found = {"cpu s": round(cpu, 2), "wall s": round(wall, 2), "memory, MB": round(_peak() - before, 1)}
    answer.send(found | ({} if result is None else {"result": result}))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


@contextmanager
def served(events: int, strangers: int) -> Iterator[str]:
    """The URL of a chain with so many events, in a process of its own."""
    ours, theirs = _spawn.Pipe()
    server = _spawn.Process(target=_serve, args=(theirs, events, strangers), daemon=True)
    server.start()
    try:
        yield ours.recv()
    finally:
        server.terminate()
        server.join()


def _serve(ready: Connection, events: int, strangers: int) -> None:
    chain = Chain(events, strangers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = b'{"jsonrpc":"2.0","id":1,%s}' % chain.answer(request["method"], request["params"])
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.send(f"http://127.0.0.1:{server.server_address[1]}")
    server.serve_forever()


if __name__ == "__main__":
    typer.run(main)
