"""The notebooks, run as they stand, in one folder: the second makes a small run that the third reads again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import patient

nbformat = pytest.importorskip("nbformat", reason="missing: nbformat")
nbclient = pytest.importorskip("nbclient", reason="missing: nbclient")

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
IN_ORDER = ("round", "seal", "model")
LARGEST = 20_000  # bytes of a notebook: small outputs only

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebooks")


def test_each_is_run_here() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {*IN_ORDER}
    assert max(path.stat().st_size for path in NOTEBOOKS.glob("*.ipynb")) < LARGEST


@pytest.mark.parametrize("name", IN_ORDER)
def test_it_runs(name: str, folder: Path) -> None:
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=round(patient(600)), resources={"metadata": {"path": str(folder)}}).execute()
