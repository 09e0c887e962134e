"""docs/compatibility.md says what the sets of tests/compat install, and pyproject.toml takes each of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SETS = sorted((ROOT / "tests" / "compat").glob("*.txt"))
COLUMNS = (
    "apache-airflow",
    "apache-airflow-providers-cncf-kubernetes",
    "kubernetes",
    "apache-airflow-providers-amazon",
    "apache-airflow-providers-google",
)


def pins_of(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", file.read_text(), re.MULTILINE))


NEWEST = pins_of(ROOT / "requirements-dev.txt")


def rows() -> dict[str, list[str]]:
    """Return the versions that the table has for each set."""
    table = re.findall(
        r"^\|[^|]*\| `([\w.-]+)` \|(.*)\|$", (ROOT / "docs" / "compatibility.md").read_text(), re.MULTILINE
    )
    return {name: [cell.strip(" *\\") for cell in cells.split("|")] for name, cells in table}


def test_the_table_has_each_set_and_what_everything_else_is_tested_with() -> None:
    assert set(rows()) == {file.stem for file in SETS} | {"requirements-dev.txt"}
    assert rows()["requirements-dev.txt"] == [NEWEST[name] for name in COLUMNS]


@pytest.mark.parametrize("file", SETS, ids=lambda file: file.stem)
def test_a_row_has_what_its_set_installs(file: Path) -> None:
    pins = NEWEST | pins_of(file)
    assert rows()[file.stem] == [pins[name] for name in COLUMNS]


def test_the_package_takes_every_set_and_nothing_older_than_the_oldest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    given = [Requirement(each) for each in (*project["dependencies"], *optional["amazon"], *optional["google"])]
    for file in SETS:
        pins = NEWEST | pins_of(file)
        for each in given:
            assert each.specifier.contains(pins[each.name], prereleases=True), f"{file.stem}: {each}"
    (floor,) = [each.specifier for each in given if each.name == COLUMNS[1]]
    assert str(floor) == f">={min((pins_of(file)[COLUMNS[1]] for file in SETS), key=Version)}"
