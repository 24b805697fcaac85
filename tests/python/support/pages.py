# SPDX-License-Identifier: Apache-2.0
"""Pages as they run: their script in Node, and the whole in a headless browser. A test skips where the
machine has neither.

assert evaluate(page, "data.plans.length") == 2
assert look(page, "innerWidth", width=400, dark=True) == 400
"""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

RUN_PAGE = Path(__file__).with_name("run_page.js")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def evaluate(page: Path, expression: str) -> Any:
    """In Node, on elements that do nothing, once the page has drawn itself."""
    if not shutil.which("node"):
        pytest.skip("no node")
    done = subprocess.run(["node", RUN_PAGE, page, expression], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["drawn"] == "yes"
    return made["result"]


def look(page: Path, expression: str, *, width: int, dark: bool) -> Any:
    """In a browser whose window is so wide, once the page has drawn itself; the page says no error."""
    if BROWSER is None:
        pytest.skip("no browser")
    asked = f"<script>document.body.append(Object.assign(document.createElement('output'), {{ id: 'asked', textContent: JSON.stringify({expression}) }}));</script>"
    copy = page.with_name(f"{page.stem}-asked.html")
    copy.write_text(page.read_text().replace("</html>", asked + "</html>"))
    words = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--window-size={width},900",
    ]
    words += [
        f"--user-data-dir={page.with_name('browser')}",
        *(["--force-dark-mode"] if dark else []),
        "--dump-dom",
        copy.as_uri(),
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip("the browser does not start here")
    found = re.search(r'<output id="asked">(.*?)</output>', done.stdout)
    if not found and "CONSOLE" not in done.stderr:
        pytest.skip("the browser does not start here")
    assert found and "CONSOLE" not in done.stderr, done.stderr
    assert 'data-drawn="yes"' in done.stdout
    return json.loads(unescape(found[1]))
