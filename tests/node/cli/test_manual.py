"""The man pages are those of the commands and name every option; the operator's table is that of the settings."""

from pathlib import Path

import typer.main

from dlx.node.cli import manual
from dlx.node.cli.app import app

DOCS = Path(__file__).parents[3] / "docs"


def test_the_committed_man_pages_are_current() -> None:
    kept = {path.name: path.read_text() for path in (DOCS / "man").glob("*.1")}
    assert kept == manual.pages(), "run `make man` (or `python -m dlx.node.cli.manual docs`) and commit docs"


def test_a_page_for_each_command_names_all_its_options() -> None:
    pages = manual.pages()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        page = pages[f"dlx-node-{name}.1"].replace("\\-", "-")
        for one in (command, *getattr(command, "commands", {}).values()):
            for option in one.params:
                assert all(opt in page for opt in option.opts if opt.startswith("-")), (name, option.opts)


def test_the_table_of_settings_in_the_operators_guide_is_current() -> None:
    guide = (DOCS / "operator.md").read_text()
    assert manual.settings_table(guide) in guide, "run `make man` (or `python -m dlx.node.cli.manual docs`)"
