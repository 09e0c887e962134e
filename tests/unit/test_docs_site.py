"""The documentation's site is whole without a network: a page with a diagram, built with the settings of mkdocs.yml."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

REPOSITORY = Path(__file__).parents[2]
DIAGRAM = "# A page\n\n```mermaid\nflowchart TB\n    a --> b\n```\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    docs, built = tmp_path_factory.mktemp("docs"), tmp_path_factory.mktemp("site")
    (docs / "index.md").write_text(DIAGRAM)
    (docs / "javascripts").symlink_to(REPOSITORY / "docs/javascripts")
    only_this = {"nav": None, "plugins": ["search"], "hooks": [], "watch": []}
    build(load_config(str(REPOSITORY / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(built), **only_this))
    return built


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", REPOSITORY / "docs/mkdocs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_draws_its_diagrams_with_the_mermaid_that_it_serves(site: Path) -> None:
    page = (site / "index.html").read_text()
    scripts = re.findall(r'<script src="([^"]+)"', page)
    assert '<pre class="mermaid">' in page
    assert "javascripts/mermaid.tiny.js" in scripts
    assert 'globalThis["mermaid"] = ' in (site / "javascripts/mermaid.tiny.js").read_text()


def test_nothing_is_loaded_from_another_host(site: Path, hooks: ModuleType) -> None:
    assert hooks.loaded_from_elsewhere((site / "index.html").read_text()) == []
    for sheet in site.rglob("*.css"):
        assert [each for each in hooks.IN_CSS.findall(sheet.read_text()) if "//" in each.split(",")[0]] == [], sheet


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/mermaid.min.js"></script>',
        '<script src="//cdn.example/mermaid.min.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css?family=Roboto">',
        '<link rel="preconnect" href="https://fonts.example" crossorigin>',
        '<img alt="" src="https://badges.example/build.svg">',
        '<img alt="" srcset="small.png 1x, https://images.example/large.png 2x">',
        "<style>@import url('https://fonts.example/a.css')</style>",
        '<p style="background: url(https://images.example/a.png)">',
    ],
)
def test_a_page_that_loads_something_from_elsewhere_is_refused(hooks: ModuleType, html: str) -> None:
    (found,) = hooks.loaded_from_elsewhere(f"<html>{html}<a href='https://kubernetes.io'>a link</a></html>")
    assert ".example" in found
