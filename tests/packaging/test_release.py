"""What of a release's dry run costs nothing is asked with every change."""

import re
from pathlib import Path

import pytest

from tests.packaging import release


def test_changelog_and_licences_of_others_are_as_a_release_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    release.changelog(final=False)
    release.vendored()
    monkeypatch.setattr(release, "OURS", release.OURS - {"page.js"})
    with pytest.raises(SystemExit, match=r"page\.js"):
        release.vendored()


def test_a_copy_is_what_git_knows_and_has_an_address(tmp_path: Path) -> None:
    made = release.tree(tmp_path / "source", final=False)
    assert (made / "src" / "dlx" / "node").is_symlink() and not (made / ".venv").exists()
    assert re.search(r'^source = "https://', (made / "pyproject.toml").read_text(), re.MULTILINE)
    if not release.PROJECT["tool"]["dlx-node"]["source"]:
        with pytest.raises(SystemExit, match="public address"):
            release.tree(tmp_path / "other", final=True)


@pytest.mark.parametrize("name", ["tests/x.py", "dlx/node/key.pem", "dlx/node/web/static/x.map", "dlx/.env", "x.pth"])
def test_what_does_not_belong_into_a_wheel_is_seen(name: str) -> None:
    assert not any(re.fullmatch(one, name) for one in release.ALLOWED)
