"""The site that `make docs` wrote: every link leads somewhere, no other host is asked, no page is too wide."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlparse

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGES = sorted(SITE.rglob("*.html"))
if not PAGES:
    pytest.skip("missing: the site, which `make docs` writes", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("missing: Chromium (Debian: apt-get install chromium)")
    with pytest.importorskip("playwright.sync_api", reason="missing: playwright").sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def test_every_link_leads_somewhere() -> None:
    text = {page: page.read_text() for page in PAGES}
    names = {page: set(re.findall(r'\s(?:id|name)="([^"]+)"', html)) for page, html in text.items()}
    wrong = []
    for page, html in text.items():
        if page.name == "404.html":  # its links begin at the root of a server
            continue
        for link in re.findall(r'\s(?:href|src)="([^"]+)"', html):
            path, anchor = urldefrag(link)
            if urlparse(path).scheme:
                continue
            target = (page.parent / unquote(path)).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and target in names and unquote(anchor) not in names[target]):
                wrong.append(f"{page.relative_to(SITE)}: {link}")
    assert wrong == []


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_ask_nobody_and_fit(browser: Any, width: int, scheme: str) -> None:
    tab = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    asked, said = set[str](), list[str]()
    tab.on("request", lambda request: asked.add(request.url))
    tab.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    for page in PAGES:
        if page.name != "404.html":
            tab.goto(page.as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, f"{page.name} scrolls sideways"
    assert [url for url in asked if not url.startswith((SITE.as_uri(), "data:", "blob:"))] == []
    assert said == []


def test_a_word_is_found_from_a_disk(browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto((SITE / "index.html").as_uri())
    tab.get_by_role("textbox").fill("multiplier")
    found = tab.locator(".md-search-result__link").first
    found.wait_for()
    assert Path(unquote(urlparse(found.get_attribute("href")).path)).is_file()
