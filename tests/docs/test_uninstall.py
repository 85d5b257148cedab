"""Where docs/uninstall.md says that things lie, they lie; its commands are there. And tutorials open alike."""

import re
from pathlib import Path

import pytest

from dlx.node.cli.devnet import demo, devnet
from dlx.node.home import ledgers
from tests.deploy.test_deploy import INSTALLED, NODE, check_call

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "uninstall.md").read_text()
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def test_every_place_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for place in (demo._PLACE, devnet._PLACE.parent, Path(INSTALLED).parents[1]):
        assert f"`{place}`" in TEXT
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    found = ledgers.index_folder(None)
    assert found is not None and f"`~/{found.relative_to(tmp_path)}`" in TEXT
    (volume,) = NODE["volumes"]
    assert f"the volume `{volume}`" in TEXT
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        assert re.search("^ReadWritePaths=/var/lib/dlx-node$", unit.read_text(), re.M) and "`/var/lib/dlx-node`" in TEXT


def test_its_commands_are_there() -> None:
    said = re.findall(r"`(dlx-node [a-z].*?)`", TEXT)
    assert len(said) > 3
    for line in said:
        check_call(line)


def test_it_is_in_the_sites_menu() -> None:
    assert "uninstall.md" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_opens_with_a_picture_and_six_words(path: Path) -> None:
    opening = path.read_text().partition("\n## ")[0]
    assert "```mermaid\nflowchart" in opening
    table = opening.partition("| word | |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table.count("\n") + 1 == 6, table
