# SPDX-License-Identifier: Apache-2.0
"""What mkdocs.yml needs beside docs/: README as the first page, the files that pages link to outside docs/,
and the Python API.

A page links to files as they lie in the repository, so that it reads on a code host, too. Here such a link
leads to a copy under files/.
"""

import ast
import os
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
TITLES = {
    "core": "`import ostinato`",
    "objects": "What it takes and gives",
    "errors": "Errors",
    "data": "`ostinato.data`",
}  # by module


def place_of(path: Path) -> str:
    """Where a file of the repository is in the site, from its root."""
    if path == ROOT / "README.md":
        return "index.md"
    return (
        os.path.relpath(path, ROOT / "docs")
        if path.is_relative_to(ROOT / "docs")
        else f"files/{path.relative_to(ROOT)}"
    )


def linked(page: Path) -> list[tuple[str, Path]]:
    """(link, file of the repository) of a page."""
    found = [(link[0], (page.parent / link[0]).resolve()) for link in LINK.findall(page.read_text())]
    return [(link, path) for link, path in found if path.is_file() and path.is_relative_to(ROOT)]


def on_files(files, config):
    """Adds what lies elsewhere, and what that links to."""
    queue, seen = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], set()
    while queue:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        if files.get_file_from_path(place_of(path)) is None:
            files.append(File.generated(config, place_of(path), abs_src_path=str(path)))
        if path.suffix == ".md":
            queue += [target for _, target in linked(path)]
    files.append(File.generated(config, "api.md", content=api()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links as the site has them; what stands behind the language of a block is for the tests."""
    markdown = re.sub(r"^```(\w+) \w+$", r"```\1", markdown, flags=re.M)
    if page.file.src_uri == "api.md":
        return markdown
    source = Path(page.file.abs_src_path)
    here = os.path.dirname(place_of(source))
    for link, path in linked(source):
        markdown = re.sub(
            rf"(?<=\]\(){re.escape(link)}(?=[)#])", os.path.relpath(place_of(path), here or "."), markdown
        )
    return re.sub(r"(?<=\]\()docs/(\w+\.svg)", r"\1", markdown)


def api() -> str:
    """The page of the Python API, from the docstrings."""
    names = public()
    parts = [
        "# Python API\n\nWritten from the docstrings; [python.md](python.md) shows how the parts go together.\n"
    ]
    for module in TITLES:
        tree = ast.parse(module_file(module).read_text())
        parts.append(f"## {TITLES[module]}\n")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                parts += described(node, node.name, "###")
    return "\n".join(parts)


def module_file(module: str) -> Path:
    """Of the package, wherever its room is: ostinato.core is core.py in the folder python of one of the root
    folders."""
    return next(ROOT.glob(f"*/python/{module}.py"))


def public() -> set[str]:
    """What `import ostinato` has, and ostinato.data."""
    lists = [
        node.value
        for node in ast.parse(module_file("__init__").read_text()).body
        if isinstance(node, ast.Assign)
    ]
    return {*(name for one in lists for name in ast.literal_eval(one)), "BalancedBatches", "Deal"}


def described(node: ast.FunctionDef | ast.ClassDef, name: str, heading: str) -> list[str]:
    """One function or class, with its public methods."""
    parts = [
        f"{heading} `{name}`\n",
        f"```python\n{signature(node, name)}\n```\n",
        with_examples(ast.get_docstring(node) or ""),
    ]
    for inner in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and ast.get_docstring(inner):
            parts += described(inner, f"{name}.{inner.name}", heading + "#")
    return parts


def signature(node: ast.FunctionDef | ast.ClassDef, name: str) -> str:
    """
    >>> signature(ast.parse("def f(a, *, b=1) -> int: ...").body[0], "f")
    'f(a, *, b=1) -> int'
    """
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {name}({bases})" if bases else f"class {name}"
    if any(ast.unparse(one) in ("property", "cached_property") for one in node.decorator_list):
        return f"{name}: {ast.unparse(node.returns)}" if node.returns else name
    words = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ")
    words = "" if words in ("self", "cls") else words
    whole = f"{name}({words})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
    return whole if len(whole) < 80 else whole.replace(", ", ",\n    ").replace("(", "(\n    ", 1)


def with_examples(text: str) -> str:
    """Paragraphs that begin with >>> become blocks of code."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return (
        "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in paragraphs)
        + "\n"
    )
