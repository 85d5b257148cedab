"""Examples in the docstrings of what a reader calls first. Those of `dlx` need a history: tests/api/test_docs.py."""

from __future__ import annotations

import doctest
import importlib

import pytest

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize(
    "module",
    [
        "dlx.ground.merkle",
        "dlx.ledger.proof.history",
        "dlx.node.home.citation",
        "dlx.p2p.wire",
        "dlx.training.codecs",
        "dlx.training.data.dealing",
        "dlx.training.data.order",
        "dlx.training.inner.schedule",
        "dlx.training.outer.arithmetic",
        "dlx.training.outer.step",
    ],
)
def test_the_examples_are_true(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module), optionflags=OPTIONS)
    assert found.attempted > 0 and found.failed == 0
