"""What the site has besides docs/: example DAGs, changelog and contributing guide as pages, and the links to them.

Links in the repository are written for whoever reads it there, `../example_dags/janitor.py` say. Here they lead to the
page of that file; one that leads to no page is left as it is, and a strict build refuses it.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "example_dags").rglob("*.py"))
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    **{path: "examples/" + path.removeprefix("example_dags/").removesuffix(".py") + ".md" for path in EXAMPLES},
}
SOURCES = {page: path for path, page in PAGES.items() if path != "README.md"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(?=[)#])")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for page, path in SOURCES.items():
        text = (REPOSITORY / path).read_text()
        files.append(File.generated(config, page, content=_example(path, text) if path in EXAMPLES else text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(here, "docs/" + here))

    def of_the_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        to = PAGES.get(target) or target.removeprefix("docs/")
        is_there = files.get_file_from_path(to) is not None
        return posixpath.relpath(to, posixpath.dirname(here) or ".") if is_there else link[1]

    return LINK.sub(of_the_site, markdown)


def _example(path: str, text: str) -> str:
    return f"# {path.removeprefix('example_dags/')}\n\n{_purpose(text)}\n\n```python\n{text}```\n"


def _purpose(text: str) -> str:
    """The first paragraph of a file's docstring."""
    return (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
