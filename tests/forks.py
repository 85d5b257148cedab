"""A fork server for all training processes that a test run starts. A conftest takes it by importing it."""

import os
from collections.abc import Iterator

import pytest

from dlx.node.trainer.spawn import SHARED, ForkServer


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[None]:
    if SHARED in os.environ:  # of another conftest
        yield
        return
    server = ForkServer()
    os.environ[SHARED] = str(server.path)
    yield
    del os.environ[SHARED]
    server.stop()
