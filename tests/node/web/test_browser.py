"""The page in a browser: what it draws and updates, without a mouse, without scripts, and for who cannot see it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlx.node.audit.sources.places import Places
from dlx.node.checkpoints import evaluations
from dlx.node.checkpoints.evaluations import Evaluation
from dlx.node.runs.history import history
from dlx.node.web import export
from dlx.node.web.app import Page
from dlx.node.web.audits.process import Where
from dlx.node.web.audits.runner import Auditing
from dlx.node.web.guard import Guard
from dlx.node.web.reading.reader import Reader
from tests.ledger.ledger_logs import LEDGER
from tests.node.web.books import RUN, STEPS, Books, Silent
from tests.node.web.served import served

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(__file__).parents[3] / "contracts" / "node_modules" / "axe-core" / "axe.min.js"
RUN_PATH = f"/runs/0x{RUN.hex()}"
ALL = {0: STEPS, 1: STEPS}
if CHROMIUM is None:
    pytest.skip("missing: Chromium (Debian: apt-get install chromium)", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="missing: playwright")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


class Site:
    def __init__(self, books: Books, reader: Reader, url: str) -> None:
        self.books, self.reader, self.url = books, reader, url

    def seal(self, round: int) -> None:
        """As another process would, which reads the same index."""
        with self.reader._lock:
            self.books.seal(round, {0: STEPS, 1: 4})


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    books = Books(rounds=200)
    books.join(0)
    books.join(1)
    books.open()
    for round in range(130):
        books.seal(round, ALL if round % 9 else {0: STEPS}, loss=5_500_000 - 10_000 * round)
    (tmp_path / "blobs").mkdir()
    evaluations.record(tmp_path / "state", RUN, Evaluation(100, 4.5))
    client: Any = Silent(books)
    reader = Reader(client, (tmp_path / "blobs",), "--datadir x")
    page = Page(reader, Guard(None), Auditing(Where(("http://127.0.0.1:9",), LEDGER)), Places())
    with served(page) as url:
        yield Site(books, reader, url)


def opened(browser: Any, **how: Any) -> tuple[Any, list[str]]:
    """A tab, and what its console complains of."""
    tab, said = browser.new_context(**how).new_page(), list[str]()
    tab.set_default_timeout(120_000)
    tab.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    return tab, said


def test_it_draws_the_curve_and_shows_a_new_seal_by_itself(browser: Any, site: Site) -> None:
    tab, said = opened(browser)
    tab.goto(site.url + RUN_PATH)
    tab.wait_for_selector("figure.chart .uplot canvas")
    tab.focus("#r129")
    site.seal(130)
    tab.wait_for_selector("#r130")
    assert tab.evaluate("document.activeElement.id") == "r129", "who is somewhere stays there"
    tab.wait_for_selector("figure.chart .uplot canvas")
    tab.wait_for_selector(".figures:has-text('131')")
    tab.wait_for_selector("[role=status]:text-is('Round 130 sealed by 2 of 2 stages')", state="attached")
    assert said == [], "and the page's policy was in nothing's way"


def test_nobody_is_left_out(browser: Any, site: Site) -> None:
    """axe-core finds nothing, light or dark, wide or narrow; all that matters can be reached with the keyboard."""
    tab, said = opened(browser, color_scheme="light")
    axe = AXE.read_text() if AXE.exists() else pytest.skip("missing: axe-core: npm ci in contracts/")
    for scheme, width in (("light", 1280), ("dark", 390)):
        tab.emulate_media(color_scheme=scheme)
        tab.set_viewport_size({"width": width, "height": 900})
        for path in ("/", RUN_PATH, f"{RUN_PATH}?from=20&by=tokens", f"{RUN_PATH}/rounds/9", f"{RUN_PATH}/versions/9",
                     f"{RUN_PATH}/audit", f"{RUN_PATH}/rounds/999"):  # fmt: skip
            tab.goto(site.url + path)
            tab.evaluate(axe)
            found = tab.evaluate("axe.run().then(found => found.violations)")
            wrong = [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]
            assert wrong == [], f"{path} {scheme} {width}"
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, f"{path}: the page itself scrolls"
    tab.goto(site.url + RUN_PATH)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab.focus("#r129")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("h1:text('Round 129')")
    assert [one for one in said if "404" not in one] == []


def test_a_file_is_the_same_page_with_nothing_to_load(browser: Any, site: Site, tmp_path: Path) -> None:
    with site.reader._open(RUN) as one:
        found = history(site.books.index, one.view)
    export.write(site.reader.run_page(RUN, every=0), found, tmp_path / "run.html")
    tab, said = opened(browser)
    tab.goto((tmp_path / "run.html").as_uri())
    assert tab.is_visible("figure.chart svg .line") and tab.locator(".grid tbody tr").count() == 130
    assert tab.evaluate("getComputedStyle(document.querySelector('.figures')).display") == "grid", "it has its style"
    assert said == []


def test_without_scripts_it_reads_the_same(browser: Any, site: Site) -> None:
    plain, _ = opened(browser, java_script_enabled=False)
    plain.goto(site.url + RUN_PATH)
    assert plain.is_visible("figure.chart svg .line") and plain.is_visible("#r129")
    plain.get_by_role("link", name="Older", exact=True).click()
    plain.wait_for_selector("#r0")
    plain.click("#r9")
    assert plain.inner_text("h1") == "Round 9" and plain.is_visible("h2:text('Stage 1')")
    plain.goto(site.url + f"{RUN_PATH}/audit")
    plain.click("text=Start the audit")
    plain.wait_for_selector("text=It could not look")
