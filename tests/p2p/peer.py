"""A node for `network.other_process`: echoes pipe frames, serves one random blob; prints where it is."""

import json
import os
import sys
from pathlib import Path

import trio

from dlx.p2p.pipe import Pipe, PipeClosed
from tests.p2p.network import Node


async def main(directory: Path, blob_size: int) -> None:
    node = Node(99, directory)
    async with node.host.run(), trio.open_nursery() as nursery:
        print(json.dumps([node.host.addresses[0], node.id, node.store.put(os.urandom(blob_size)).hex()]), flush=True)
        while True:
            nursery.start_soon(echo, await node.pipes.incoming.receive())


async def echo(pipe: Pipe) -> None:
    try:
        while True:
            await pipe.send(await pipe.receive())
    except PipeClosed:
        pass


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
