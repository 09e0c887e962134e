"""docs/blocks.md is a promise row by row: each row is held by a test, which exists."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.airflow.chaos.schedule import meetings
from tests.dry_nights.rows import OF_BLOCK, OF_GANG

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/blocks.md"
CELLS = {f"{strike.what} at {strike.when}" for strike in meetings()}
"""The chaos matrix."""


def rows_of_page() -> list[list[str]]:
    """What each row says happens, by table."""
    tables: list[list[str]] = []
    before = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and not before.startswith("|"):
            tables.append([])
        elif line.startswith("| "):
            tables[-1].append(line.split(" | ")[0].removeprefix("| "))
        before = line
    return tables


@cache
def named_in(file: str) -> Mapping[str, set[str]]:
    """The tests in a file, by name, and what their parameters' ids can be made of: literal strings."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((REPOSITORY / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            literals = (each for decorator in node.decorator_list for each in ast.walk(decorator))
            found[node.name] = {str(each.value) for each in literals if isinstance(each, ast.Constant)}
    return found


def exists(test: str) -> bool:
    if " at " in test:
        return test in CELLS
    file, _, name = test.partition("::")
    name, _, parameter = name.partition("[")
    tests = named_in(file) if (REPOSITORY / file).exists() else {}
    return name in tests and (not parameter or parameter.removesuffix("]") in tests[name])


def test_each_row_of_the_page_is_in_the_table_and_no_other() -> None:
    *of_block, of_gang = rows_of_page()
    assert sorted(OF_BLOCK) == sorted(row for table in of_block for row in table)
    assert list(OF_GANG) == of_gang


@pytest.mark.parametrize("rows", [OF_BLOCK, OF_GANG], ids=["block", "gang"])
def test_each_row_is_held_by_tests_that_exist(rows: Mapping[str, Sequence[str]]) -> None:
    assert [row for row, tests in rows.items() if not tests] == []
    assert [test for tests in rows.values() for test in tests if not exists(test)] == []


def test_a_test_that_does_not_exist_is_found() -> None:
    ends = "tests/dry_nights/test_ends.py"
    assert exists(f"{ends}::test_a_task_fails[train]")
    assert exists("worker-killed at ensure-after-create")
    for missing in (f"{ends}::test_a_task_fails[nobody]", f"{ends}::test_nothing", "tests/nowhere.py::test_nothing"):
        assert not exists(missing)
    assert not exists("worker-killed at noon")
