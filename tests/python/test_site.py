# SPDX-License-Identifier: Apache-2.0
"""The documents as a site (mkdocs.yml): it builds without a warning, has every page, and a link that leads
nowhere fails it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ostinato
import pytest
import yaml
from support.tiers import everyday

ROOT = Path(__file__).resolve().parents[2]


def build(root: Path, into: Path) -> subprocess.CompletedProcess:
    words = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        root / "mkdocs.yml",
        "--site-dir",
        into,
    ]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stdout + built.stderr
    return folder


def text_of(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text()


def test_every_page_is_there_and_in_the_navigation(site):
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert listed == pages | {"index.md", "api.md"}
    assert all((site / name.removesuffix(".md") / "index.html").is_file() for name in pages)


def test_the_navigation_has_the_four_kinds():
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text())
    kinds = [kind for entry in yaml.safe_load(text)["nav"] for kind in entry]
    assert kinds == ["Home", "Tutorial", "How-to", "Reference", "Explanation"]


def test_readme_is_the_first_page_with_its_picture_and_links(site):
    text = (site / "index.html").read_text()
    assert 'src="plan.svg"' in text and (site / "plan.svg").is_file()
    assert 'href="tutorial/"' in text and (site / "tutorial/index.html").is_file()
    assert 'href="files/configs/options.toml"' in text and (site / "files/configs/options.toml").is_file()


def test_nothing_is_fetched_from_elsewhere(site):
    fetched = [
        link
        for path in site.rglob("*.html")
        for link in re.findall(
            r"""(?:src|href)=["']?(https?://[^"' >]+\.(?:js|css|woff2?))""", path.read_text()
        )
    ]
    assert fetched == []


def test_code_and_lists_are_shown_as_such(site):
    assert "```" not in "".join(path.read_text() for path in site.rglob("*.html"))
    begins = re.compile(r"<p>[^<]*(?:<[^>]*>[^<]*)*?\n- ")
    assert [
        str(path.relative_to(site)) for path in site.rglob("*.html") if begins.search(path.read_text())
    ] == []


def test_the_api_has_every_public_name(site):
    text = text_of(site, "api")
    assert [name for name in ostinato.__all__ if f'id="{name.lower()}"' not in text] == []


BROKEN = [
    ("nowhere.md", "nowhere.md"),
    ("tutorial.md#nowhere", "nowhere"),
    ("../nowhere.toml", "nowhere.toml"),
]


@pytest.mark.parametrize(("link", "words"), everyday(BROKEN, BROKEN[1]))
def test_a_broken_link_fails(link, words, tmp_path):
    for name in ("docs", "script", "bindings/python", "search/python", "configs", "examples", "third_party"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE", ROOT / "NOTICE"):
        shutil.copy(path, tmp_path)
    with (tmp_path / "docs" / "faq.md").open("a") as page:
        page.write(f"\n[x]({link})\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0 and words in built.stderr, built.stderr
