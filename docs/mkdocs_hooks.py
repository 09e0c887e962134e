"""What the site has besides docs/: example DAGs, changelog and contributing guide as pages, and the links to them.

Links in the repository are written for its readers there, such as `../example_dags/janitor.py`. Here they lead to the
page of that file; one that leads to no page is left as it is, and a strict build refuses it.

A page loads nothing from elsewhere, so that it is whole offline and tells nobody who reads it: a strict build refuses
one that does.
"""

from __future__ import annotations

import ast
import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

log = get_plugin_logger("pages that load from elsewhere")

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "example_dags").rglob("*.py"))
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    **{path: "examples/" + path.removeprefix("example_dags/").removesuffix(".py") + ".md" for path in EXAMPLES},
}
SOURCES = {page: path for path, page in PAGES.items() if path != "README.md"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(?=[)#])")
IN_CSS = re.compile(r"""(?:@import\s+(?:url\()?|url\()\s*["']?([^"')\s]+)""")


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


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    for address in loaded_from_elsewhere(output):
        log.warning("%s loads %s from elsewhere", page.file.src_uri, address)
    return output


def loaded_from_elsewhere(html: str) -> list[str]:
    """Return the addresses on other hosts that a browser fetches by itself when it shows the page."""
    loaded = _Loaded()
    loaded.feed(html)
    return [address for address in loaded.addresses if urlsplit(address).netloc]


class _Loaded(HTMLParser):
    """Collects what a page loads: scripts, style sheets, icons, images, frames, and what its own CSS names."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.addresses += [given[name] for name in ("src", "data", "poster") if name in given]
        self.addresses += [each.split()[0] for each in given.get("srcset", "").split(",") if each.strip()]
        self.addresses += IN_CSS.findall(given.get("style", ""))
        if tag == "link":
            self.addresses.append(given.get("href", ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.addresses += IN_CSS.findall(data)


def _example(path: str, text: str) -> str:
    return f"# {path.removeprefix('example_dags/')}\n\n{_purpose(text)}\n\n```python\n{text}```\n"


def _purpose(text: str) -> str:
    """The first paragraph of a file's docstring."""
    return (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
