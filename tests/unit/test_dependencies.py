"""What is imported is declared, where deptry is blind: airflow and google are folders that many distributions fill."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SHARED = ("airflow", "google")
PROJECTS = {"airflow_gpu_provider": ROOT / "pyproject.toml", "sandbox/gpu_sandbox": ROOT / "sandbox/pyproject.toml"}
OF_AIRFLOW = {"apache-airflow-core", "apache-airflow-task-sdk"}
"""What apache-airflow installs, at its own version."""


def declared(project: Path) -> list[Requirement]:
    of = tomllib.loads(project.read_text())["project"]
    optional = [each for extra in of["optional-dependencies"].values() for each in extra]
    return [Requirement(each) for each in (*of["dependencies"], *optional)]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The distribution of each file in a shared folder, by the file's path."""
    found = {}
    for distribution in metadata.distributions():
        if paths := re.findall(rf"^(?:{'|'.join(SHARED)})/.+?\.py(?=,)", distribution.read_text("RECORD") or "", re.M):
            found |= dict.fromkeys(paths, canonicalize_name(distribution.name))
    return found


def imported(folder: str) -> Iterator[str]:
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (f"{node.module}.{each.name}" for each in node.names)


def distribution_of(name: str, files: dict[str, str]) -> str | None:
    while name:
        path = name.replace(".", "/")
        if found := files.get(f"{path}.py") or files.get(f"{path}/__init__.py"):
            return found
        name = name.rpartition(".")[0]
    return None


@pytest.mark.parametrize("folder", PROJECTS)
def test_each_import_from_a_shared_folder_is_of_a_declared_distribution(folder: str, files: dict[str, str]) -> None:
    shared = {name for name in imported(folder) if name.split(".")[0] in SHARED}
    found = {name: distribution_of(name, files) for name in shared}
    assert len(found) > 5
    names = {canonicalize_name(each.name) for each in declared(PROJECTS[folder])}
    names |= OF_AIRFLOW if "apache-airflow" in names else set()
    assert {name: of for name, of in found.items() if of not in names} == {}
