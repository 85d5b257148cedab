"""Fork servers for all nodes and training processes that a test run starts. A conftest takes them by importing them."""

import os
from collections.abc import Iterator

import pytest

from dlx.ground import forks
from dlx.node.devnet.server import NODES, NodeServer
from dlx.node.trainer.spawn import SHARED, ForkServer


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[None]:
    yield from _shared(SHARED, ForkServer)


@pytest.fixture(scope="session", autouse=True)
def node_server() -> Iterator[None]:
    yield from _shared(NODES, NodeServer)


def _shared(variable: str, kind: type[forks.ForkServer]) -> Iterator[None]:
    if variable in os.environ:  # of another conftest
        yield
        return
    server = kind()
    os.environ[variable] = str(server.path)
    yield
    del os.environ[variable]
    server.stop()
