"""The page in a browser: what it draws and updates, without a mouse, without scripts, and for who cannot see it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlx.ledger.events import RunCreated
from dlx.node.audit.sources.places import Places
from dlx.node.checkpoints import evaluation_store
from dlx.node.checkpoints.evaluation_store import Evaluation
from dlx.node.home.datadir import DataDir
from dlx.node.runs.held_out import HeldOut
from dlx.node.runs.history import history
from dlx.node.web.app import Page
from dlx.node.web.audits.process import Where
from dlx.node.web.audits.runner import Auditing
from dlx.node.web.guard import Guard
from dlx.node.web.reading.reader import Reader
from dlx.node.web.render import write_file
from tests.ledger.ledger_logs import LEDGER
from tests.node.stated_run import RUN, STEPS, SilentClient, StatedRun, account
from tests.node.web.served import served
from tests.patience import until

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
    def __init__(self, stated: StatedRun, reader: Reader, url: str) -> None:
        self.stated, self.reader, self.url = stated, reader, url

    def seal(self, round: int) -> None:
        """As another process would, which reads the same index."""
        with self.reader._lock:
            self.stated.seal(round, {0: STEPS, 1: 4})


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    stated = StatedRun(rounds=200)
    stated.join(0)
    stated.join(1)
    stated.open()
    for round in range(130):
        stated.seal(round, ALL if round % 9 else {0: STEPS}, loss=5_500_000 - 10_000 * round)
    (tmp_path / "blobs").mkdir()
    evaluation_store.add(DataDir(tmp_path), RUN, Evaluation(100, 4.5))
    reader = Reader(SilentClient(stated), (tmp_path / "blobs",), "--datadir x")
    page = Page(reader, Guard(None), Auditing(Where(("http://127.0.0.1:9",), LEDGER)), Places())
    with served(page) as url:
        yield Site(stated, reader, url)


def opened(browser: Any, **how: Any) -> tuple[Any, list[str]]:
    """A tab, and what its console complains of."""
    tab, said = browser.new_context(**how).new_page(), list[str]()
    tab.set_default_timeout(120_000)
    tab.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    return tab, said


def test_it_draws_the_curve_and_shows_a_new_seal_by_itself(browser: Any, site: Site) -> None:
    tab, said = opened(browser)
    with site.reader._open(RUN) as one:
        one.held_out = {at: HeldOut(at, 5.0 - at / 100, "byte", (("0xaa", 5.0),), ()) for at in range(10, 130, 10)}
    tab.goto(site.url + RUN_PATH)
    tab.wait_for_selector("figure.chart .uplot canvas")
    labels = [one.inner_text() for one in tab.locator(".uplot .u-legend .u-label").all()]
    assert labels == ["rounds", "training", "held-out", "measured here"]
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
        for path in ("/", "/accounts", RUN_PATH, f"{RUN_PATH}?from=20&by=tokens", f"{RUN_PATH}/rounds/9",
                     f"{RUN_PATH}/versions/9", f"{RUN_PATH}/audit", f"{RUN_PATH}/rounds/999"):  # fmt: skip
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


def test_what_matters_is_on_the_first_screen_and_a_command_is_copied(browser: Any, site: Site) -> None:
    tab, said = opened(
        browser, viewport={"width": 1280, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    tab.goto(site.url + RUN_PATH)
    for name in ("Speed", "Time left", "What is trained", "Take part"):
        assert tab.get_by_text(name, exact=True).bounding_box()["y"] < 600, name
    line = tab.inner_text("#join + p + .command code")
    tab.click("#join + p + .command button")
    tab.wait_for_selector("button:has-text('Copied')")
    assert line.startswith("dlx-node join dlx1-") and tab.evaluate("navigator.clipboard.readText()") == line
    word = tab.locator("a.word", has_text="slots")
    assert word.get_attribute("title") == "One stage of one replica."
    word.click()
    until("the word", lambda: tab.locator("#word-slot").bounding_box()["y"] < 900)  # who cannot hover reads it below
    assert said == []


def test_a_phone_shows_who_was_counted_and_a_shadow_where_more_waits(browser: Any, site: Site) -> None:
    tab, _ = opened(browser, viewport={"width": 390, "height": 844})
    tab.goto(site.url + RUN_PATH)
    for table, words in (("members", ("Last counted", "Standing")), ("who", ("Share", "Rounds"))):
        for word in words:
            box = tab.locator(f"section[aria-labelledby={table}] th", has_text=word).first.bounding_box()
            assert box["x"] + 8 * len(word) <= 390, (table, word)
    assert "linear-gradient" in tab.evaluate("getComputedStyle(document.querySelector('.scroll')).backgroundImage")
    tab.goto(site.url + f"{RUN_PATH}/rounds/999")
    tab.click("text=the run")
    tab.wait_for_selector("h1:text('a-run')")


def test_a_long_name_breaks(browser: Any, tmp_path: Path) -> None:
    stated, run, name = StatedRun(), b"\x07" * 32, "a" * 64
    genesis = tuple(bytes([stage]) * 32 for stage in (1, 2))
    stated.tell(lambda at: RunCreated(run, account(0, 0), stated._config, name, genesis, (account(0, 0),), at))
    with served(Page(Reader(SilentClient(stated), (), "--datadir x"), Guard(None))) as url:
        tab, _ = opened(browser, viewport={"width": 390, "height": 844})
        for path in ("/", f"/runs/0x{run.hex()}"):
            tab.goto(url + path)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, path
        tab.goto(url)
        assert tab.locator("th.name").first.bounding_box()["width"] < 330, "what counted stands beside it"


def test_a_run_of_one_round_is_drawn_from_0_to_1(browser: Any, tmp_path: Path) -> None:
    stated = StatedRun(rounds=200)
    stated.join(0)
    stated.join(1)
    stated.open()
    stated.seal(0, ALL, loss=5_500_000)
    with served(Page(Reader(SilentClient(stated), (), "--datadir x"), Guard(None))) as url:
        tab, said = opened(browser)
        tab.goto(url + RUN_PATH)
        tab.wait_for_selector("figure.chart .uplot canvas")
        ends = tab.evaluate("[...document.querySelectorAll('.xs li')].map(one => one.textContent)")
        assert ends == ["0", "1"] and said == []


def test_a_file_is_the_same_page_with_nothing_to_load(browser: Any, site: Site, tmp_path: Path) -> None:
    with site.reader._open(RUN) as one:
        found = history(site.stated.index, one.view)
    write_file(site.reader.run_page(RUN, every=0), found, tmp_path / "run.html")
    tab, said = opened(browser)
    tab.goto((tmp_path / "run.html").as_uri())
    assert tab.is_visible("figure.chart svg .line") and tab.locator(".grid tbody tr").count() == 130
    assert tab.evaluate("getComputedStyle(document.querySelector('.figures')).display") == "flex", "it has its style"
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
