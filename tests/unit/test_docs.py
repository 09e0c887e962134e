"""What the strict build of the documentation (`make docs`) does not see: the README, and code that readers copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_gpu_provider import errors
from tests.unit import error_messages

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()
PAGES = [
    *(REPOSITORY / page for page in ("README.md", "docs/index.md", "docs/reference/testing.md")),
    *sorted((REPOSITORY / "docs/howto").glob("*.md")),
]
SITE = [REPOSITORY / "CHANGELOG.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PROGRAMS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 120
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README) if "://" not in link]
    assert 5 <= len(links) <= 7, "docs/index.md has the others"
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


@pytest.mark.parametrize("code", PROGRAMS)
def test_a_dag_that_a_how_to_shows_parses(code: str) -> None:
    exec(compile(code, "example", "exec"), {})


def test_the_recipes_for_checkpoints_compile() -> None:
    recipes = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/checkpoints.md").read_text(), re.DOTALL)
    assert len(recipes) == 3
    for number, recipe in enumerate(recipes):
        compile(recipe, f"recipe {number}", "exec")
        assert "AIRFLOW_GPU_CHECKPOINT" in recipe


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.stem)
def test_a_list_begins_after_a_blank_line(page: Path) -> None:
    """Without one the site shows it as running text; the repository's own view does not."""
    prose = re.sub(r"^```.*?^```", "```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^(?![-*#] |\d+\. |##|\s)(.+)\n(?:[-*]|\d+\.) ", prose, re.MULTILINE) == []


TOLD = [cls.__name__ for cls in errors.error_types()[1:] if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("name", [*TOLD, errors.TaskKilled.__name__])
def test_each_error_is_a_symptom_that_is_explained(name: str) -> None:
    assert f"`{name}`" in (REPOSITORY / "docs/at-3-am.md").read_text()


def test_the_table_of_messages_is_what_the_code_says() -> None:
    """If not, `python -m tests.unit.error_messages` writes it anew."""
    assert error_messages.page(error_messages.PAGE.read_text()) == error_messages.PAGE.read_text()


def test_each_example_dag_is_listed() -> None:
    listed = (REPOSITORY / "docs/examples/index.md").read_text() + (REPOSITORY / "mkdocs.yml").read_text()
    for file in (REPOSITORY / "example_dags").glob("*.py"):
        assert listed.count(f"/{file.stem}.") == 2, file


def test_make_help_lists_each_target() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets
    built_by_others = {"help", ".venv", "control-plane", "engines", "ui-check"}
    listed = set(re.findall(r"[a-z-]+", makefile.split("\n\n", 1)[0]))
    assert set(targets[1].split()) - built_by_others - listed == set()


def test_each_test_that_a_page_names_exists() -> None:
    """The threat model, above all: what nobody can do is as true as the test that holds it."""
    named = {
        (page.name, path)
        for page in SITE
        for path in re.findall(r"`((?:tests|ui/test|sandbox/tests)/[\w./-]+\.(?:py|ts))", page.read_text())
    }
    assert len(named) > 20
    assert {(page, path) for page, path in named if not (REPOSITORY / path).exists()} == set()
