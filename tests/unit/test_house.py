"""The package as a house: one name for one file, and no file, class or function that outgrows its reader."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2] / "airflow_gpu_provider"
CLOUDS = {"aws", "google", "external"}

LONGEST_FILE, LONGEST_CLASS, MEDIAN_FUNCTION = 400, 300, 6  # lines
LONGER_FILES = {"errors.py": 452}
"""What is longer already: not to grow. In errors.py each failure a user can see has its class."""
LONGER_CLASSES = {"GpuPool": 311}
"""The same; most of it is what a pool's arguments mean."""


@cache
def files() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}


def nodes(*kinds: type[ast.stmt]) -> Iterator[ast.stmt]:
    for text in files().values():
        yield from (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))


def length(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def test_a_file_is_known_by_its_name() -> None:
    """But for each cloud's own: aws/quota.py and google/quota.py are two answers to platforms/quota.py."""
    found = defaultdict(list)
    for path in map(Path, files()):
        if path.name != "__init__.py" and path.parent.name not in CLOUDS:
            found[path.name].append(path.as_posix())
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_file_is_long() -> None:
    too_long = {
        path: lines
        for path, text in files().items()
        if (lines := text.count("\n")) > LONGER_FILES.get(path, LONGEST_FILE)
    }
    assert too_long == {}


def test_no_class_is_long() -> None:
    too_long = {
        node.name: length(node)
        for node in nodes(ast.ClassDef)
        if isinstance(node, ast.ClassDef) and length(node) > LONGER_CLASSES.get(node.name, LONGEST_CLASS)
    }
    assert too_long == {}


def test_functions_are_short() -> None:
    assert median(map(length, nodes(ast.FunctionDef, ast.AsyncFunctionDef))) <= MEDIAN_FUNCTION
