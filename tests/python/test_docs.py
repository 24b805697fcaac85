# SPDX-License-Identifier: Apache-2.0
"""The documents: links lead somewhere, lines are short, commands have the options that are shown, and
sections are right.

What the tutorial shows runs in test_tutorial.py.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ostinato import Placement
from ostinato.deepspeed.section.config import Search, Section, parse_section
from support.commands import ostinato

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100


def pages() -> list[Path]:
    """Every page that git knows, but for those of others."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git, or no checkout: the pages cannot be listed")
    return [
        path
        for word in listed.stdout.split()
        if not word.startswith("third_party/") and (path := ROOT / word).is_file()
    ]


def blocks(text: str) -> list[tuple[str, str]]:
    """(what stands behind the opening fence, content) of each block of code."""
    return re.findall(r"^```(.*)\n((?:.*\n)*?)```$", text, re.M)


def prose(text: str) -> str:
    """Without blocks of code, and with the words of `code` left out."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*\n(?:.*\n)*?```$", "", text, flags=re.M))


def anchors(text: str) -> set[str]:
    """Those that GitHub gives to headings."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*\n(?:.*\n)*?```$", "", text, flags=re.M), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            wrong.append(link)
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text())):
            wrong.append(link)
    return wrong


def test_links_and_anchors_lead_somewhere():
    wrong = {str(page.relative_to(ROOT)): links for page in pages() if (links := broken(page))}
    assert wrong == {}


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A `name`, with more\n```\n# no heading\n```\n# Twice\n# Twice\n")
    good = "other.md other.md#a-name-with-more other.md#twice-1 #here https://nowhere"
    bad = "others.md other.md#a-name other.md#no-heading #there"
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n" + "".join(f"[x]({link})\n" for link in f"{good} {bad}".split()) + "`[x](code)`\n"
    )
    assert broken(page) == bad.split()


def test_lines_are_short():
    """Rows of tables excepted, which cannot be broken."""
    long = [
        f"{page.relative_to(ROOT)}:{number}: {len(line)} columns"
        for page in pages()
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > COLUMNS and not line.startswith("|")
    ]
    assert long == []


def commands() -> list[tuple[str, str, str]]:
    """(page, command of ostinato, its words) wherever one is shown."""
    found = []
    for page in pages():
        for kind, content in blocks(page.read_text()):
            if kind.split(" ")[0] in ("", "sh"):
                for line in content.replace("\\\n", " ").splitlines():
                    line = line.split(" -- ")[0].split(" # ")[0]
                    for command, words in re.findall(r"(?:^|[ /])ostinato ([a-z]+)((?: .*)?)$", line):
                        found.append((page.name, command, words))
    return found


def test_commands_have_the_options_that_are_shown():
    shown = commands()
    assert len(shown) > 30
    helps = {command: help_of(command) for command in {command for _, command, _ in shown}}
    helps["partition"] += help_of("partition", "--strategy", "best")
    wrong = [
        f"{page}: ostinato {command} {option}"
        for page, command, words in shown
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", words)
        if not re.search(rf"(?<![\w-]){option}(?![\w-])", helps[command])
    ]
    assert wrong == []


def help_of(*words: str) -> str:
    asked = subprocess.run(
        [sys.executable, "-m", "ostinato", *words, "--help"], capture_output=True, text=True, timeout=300
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def test_sections_that_are_shown_are_right():
    """Each `"ostinato": {...}` of a page, whole or as the line that one adds."""
    shown = 0
    for page in pages():
        for kind, content in blocks(page.read_text()):
            if kind.startswith("json") and '"ostinato"' in content:
                whole = content if content.lstrip().startswith("{") else f"{{{content.rstrip().rstrip(',')}}}"
                parse_section(json.loads(whole)["ostinato"], page.name)
                shown += 1
    assert shown >= 3


def test_the_reference_has_every_key_of_the_section():
    text = (ROOT / "docs" / "deepspeed.md").read_text()
    assert [key for key in (*Section.model_fields, *Search.model_fields) if f"`{key}`" not in text] == []


def test_the_files_that_are_shown_load():
    shown = [
        content
        for kind, content in blocks((ROOT / "docs" / "formats.md").read_text())
        if kind == "toml" and content.startswith("format")
    ]
    placement, sizes = shown
    assert len(Placement.from_text(placement).devices) == 2
    assert len(tomllib.loads(sizes)["micro_batches"]) == 3  # no reader of sizes alone is in the API


def test_the_glossary_is_in_order():
    words = re.findall(r"^\*\*(.*?)\*\*:", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert words == sorted(words, key=str.lower) and len(words) == len(set(words)) > 20


def test_the_picture_is_one():
    image = ElementTree.parse(ROOT / "docs" / "plan.svg").getroot()
    assert image.tag == "{http://www.w3.org/2000/svg}svg"
    assert "docs/plan.svg" in (ROOT / "README.md").read_text()


def test_the_table_of_the_readme_is_what_its_command_prints(tmp_path):
    shown = blocks((ROOT / "README.md").read_text())
    place, command = next(
        (i, text) for i, (kind, text) in enumerate(shown) if kind == "sh" and " plan examples/" in text
    )
    words = [*command.replace("\\\n", " ").split()[1:], "--time-limit", "120"]  # of a busy machine
    printed = ostinato(
        *(str(ROOT / word) if word.startswith("examples/") else word for word in words), cwd=tmp_path
    )
    lines = [line.split(", and ")[0] for line in printed.stdout.splitlines()]
    assert [line for line in shown[place + 1][1].splitlines() if line not in lines] == []
