"""What it takes until several members have one blob: real hosts, a process each, on loopback.

`python -m benchmarks.sharing [--receivers 1,8] [--megabytes 32]`. One member has the blob, the others fetch it at once,
with its Merkle root, as they do payloads and versions. Beside it the same bytes on one raw libp2p stream.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import trio
import typer
from libp2p.abc import INetStream

from dlx.ground import durable
from dlx.ground.blobs import BlobStore
from dlx.ground.limits import cores
from dlx.ground.merkle import leaf_hashes, root_of
from dlx.p2p.exchange import BlobExchange, Tree
from dlx.p2p.host import Host
from dlx.p2p.streams import read_exact, write_all
from tests.p2p.network import HELLO

RAW = "/dlx/raw/1"
PIECE = 64 * 1024  # bytes written at once to the raw stream
LIMIT = 600.0  # s for each part
COLUMNS = "receivers", "s", "times one", "maker sent", "CPU s maker", "CPU s receiver", "raw stream, s"


def main(
    receivers: Annotated[str, typer.Option(help="Numbers of receivers.")] = "1,8",
    megabytes: Annotated[int, typer.Option(min=1)] = 32,
) -> None:
    """Print seconds until the last has it, what the maker sent of it, and CPU seconds."""
    _say(f"{cores()} cores, Python {platform.python_version()}, a blob of {megabytes} MiB", "  ".join(COLUMNS))
    one = None
    for count in map(int, receivers.split(",")):
        maker, *others = _played(count, megabytes << 20)
        last = max(other["seconds"] for other in others)
        one = one or last
        cells = [
            str(count), f"{last:.1f}", f"{last / one:.1f}", f"{maker['sent'] / (megabytes << 20):.2f} x",
            f"{maker['cpu']:.2f}", f"{mean(other['cpu'] for other in others):.2f}",
            f"{others[0]['raw']:.1f}" if count == 1 else "",
        ]  # fmt: skip
        _say("  ".join(cell.rjust(len(name)) for cell, name in zip(cells, COLUMNS, strict=True)))


def _played(count: int, size: int) -> list[dict[str, Any]]:
    """What the maker and each receiver say."""
    with tempfile.TemporaryDirectory(prefix="dlx-sharing-") as folder:
        module = [sys.executable, "-m", "benchmarks.sharing", "member", folder, str(count), str(size)]
        members = [subprocess.Popen([*module, str(index)]) for index in range(count + 1)]
        try:
            for member in members:
                if member.wait(LIMIT):
                    raise typer.Exit(1)
        finally:
            for member in members:
                member.kill()
        return [json.loads((Path(folder) / f"{index}.found").read_bytes()) for index in range(count + 1)]


async def _member(folder: Path, count: int, size: int, index: int) -> None:
    """Number 0 is the maker."""
    host = Host(bytes([index + 1]) * 32, ["/ip4/127.0.0.1/tcp/0"], [], HELLO)
    store = BlobStore(folder / f"blobs-{index}")
    exchange = BlobExchange(host, store)

    async def send(stream: INetStream, peer: str) -> None:
        for _ in range(size // PIECE):
            await write_all(stream, bytes(PIECE))
        await stream.close()

    host.serve(RAW, send)
    async with host.run():
        own = {"peer": host.peer_id, "addresses": host.addresses}
        if index == 0:
            data = os.urandom(size)
            own |= {"blob": store.put(data).hex(), "root": root_of(leaf_hashes(data)).hex()}
        durable.write_bytes(folder / f"{index}.member", json.dumps(own).encode())
        found = await _all(folder, "member", count)
        host.meet({one["peer"]: one["addresses"] for one in found})
        with trio.fail_after(LIMIT):
            while len(host.agreed()) < count:
                await trio.sleep(0.01)
        result: dict[str, Any] = {}
        if index and count == 1:
            result["raw"] = await _raw(host, found[0]["peer"], size)
        durable.write_bytes(folder / f"{index}.ready", b"{}")
        await _all(folder, "ready", count)
        began, cpu, sent = time.monotonic(), time.process_time(), host.bytes_sent
        if index:
            blob, root = (bytes.fromhex(found[0][name]) for name in ("blob", "root"))
            sharers = [one["peer"] for one in found[1:]]
            await exchange.fetch(blob, size, [found[0]["peer"]], LIMIT, tree=Tree(size, root), sharers=sharers)
        result["seconds"] = time.monotonic() - began
        durable.write_bytes(folder / f"{index}.had", b"{}")
        await _all(folder, "had", count)
        result |= {"cpu": time.process_time() - cpu, "sent": host.bytes_sent - sent}
        durable.write_bytes(folder / f"{index}.found", json.dumps(result).encode())
        await _all(folder, "found", count)


async def _raw(host: Host, peer: str, size: int) -> float:
    """Seconds for as many bytes on a stream that nobody checks."""
    began = time.monotonic()
    stream = await host.open_stream(peer, RAW, LIMIT)
    await stream.close()
    for _ in range(size // PIECE):
        await read_exact(stream, PIECE)
    return time.monotonic() - began


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


async def _all(folder: Path, kind: str, count: int) -> list[dict[str, Any]]:
    """What all have written of a kind, in their order, once they have."""
    with trio.fail_after(LIMIT):
        while not all((folder / f"{index}.{kind}").exists() for index in range(count + 1)):
            await trio.sleep(0.05)
    return [json.loads((folder / f"{index}.{kind}").read_bytes()) for index in range(count + 1)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        trio.run(_member, Path(sys.argv[2]), *map(int, sys.argv[3:]))
    else:
        typer.run(main)
