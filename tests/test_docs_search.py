"""The documentation is read from disk, too: there a browser starts no workers, and the search must do without."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in ("mkdocs", "mkdocstrings"):
        pytest.importorskip(name, reason=f"no {name}: pip install 'metaprior[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


def test_no_script_comes_from_another_server(site):
    for page in site.glob("*.html"):
        assert 'src="http' not in page.read_text(), page.name
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")


def test_the_search_finds_pages_from_disk(site):
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'metaprior[browser]'")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto((site / "index.html").as_uri())
        page.evaluate("document.querySelector('input.md-search__input').focus()")
        page.keyboard.type("photos")
        page.wait_for_selector(".md-search-result__link", timeout=20_000)
        found = page.eval_on_selector_all(".md-search-result__link", "links => links.map(link => link.href)")
        browser.close()
    assert any(link.startswith((site / "photos.html").as_uri()) for link in found)
