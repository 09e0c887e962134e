"""docs/leans-on-*.md: each rule of a cloud has a source, and a test that exists and holds it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted((REPOSITORY / "docs").glob("leans-on-*.md"))
_HELD_BY = re.compile(r"((?:sandbox/)?tests/\S+\.py)::(\w+)")


def rows(page: Path) -> list[list[str]]:
    """The cells of the tables' rows, heads left out."""
    cells = [line.strip("|").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in cells if row[0].strip() != "rule or limit"]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / file).read_text())
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_there_are_pages() -> None:
    assert all(len(rows(page)) > 30 for page in PAGES)
    assert PAGES


@pytest.mark.parametrize("row", [row for page in PAGES for row in rows(page)], ids=lambda row: row[0])
def test_a_rule_has_its_source_and_a_test_that_exists(row: list[str]) -> None:
    rule, source, held_by = row
    assert rule
    assert source
    match = _HELD_BY.fullmatch(held_by)
    assert match is not None
    assert match[2] in names_in(match[1])
