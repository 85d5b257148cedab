"""Which tests `make quick` runs."""

from tests.quick import nearest

PACE = "from dlx.node.round.rules import pace, inclusion\n"
TESTS = {
    "tests/node/round/rules/test_pace.py": PACE,
    "tests/node/round/test_machine.py": PACE,
    "tests/node/test_other.py": "from dlx.node.round import rules\nimport dlx.p2p\n",
    "tests/p2p/test_host.py": "from tests.p2p.network import Network\n",
    "tests/p2p/test_wire.py": "import dlx.p2p.wire\n",
}


def test_changed_tests_come_first_then_a_modules_own_then_those_that_import_it() -> None:
    changed = ["node/round/rules/pace.py", "tests/p2p/test_wire.py", "docs/overview.md"]
    assert nearest(changed, TESTS) == [
        "tests/p2p/test_wire.py",
        "tests/node/round/rules/test_pace.py",
        "tests/node/round/test_machine.py",
    ]


def test_packages_and_what_tests_share_are_modules_too() -> None:
    assert nearest(["tests/p2p/network.py"], TESTS) == ["tests/p2p/test_host.py"]
    assert nearest(["p2p/__init__.py"], TESTS) == ["tests/node/test_other.py"]
    assert nearest(["README.md", "p2p/queue.py"], TESTS) == []
