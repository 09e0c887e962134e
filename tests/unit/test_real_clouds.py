"""docs/reliability.md's list of what the real clouds do names a test for each, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "docs" / "reliability.md").read_text()
ROWS = re.findall(r"^\| .+ \| ((?:sandbox/)?tests/\S+\.py)::(\w+) \| .+ \|$", TEXT, re.MULTILINE)


def test_the_list_is_there() -> None:
    assert len(ROWS) > 60


@pytest.mark.parametrize(("file", "name"), ROWS)
def test_a_row_s_test_exists(file: str, name: str) -> None:
    tree = ast.parse((REPOSITORY / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
