"""A node's data folder for each test."""

from pathlib import Path

import pytest

from dlx.node.home.datadir import DataDir


@pytest.fixture
def folder(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "node")
    made.create()
    return made
