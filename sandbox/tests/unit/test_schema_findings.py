"""What the judges find reaches the test in which it happened, from other processes, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpu_sandbox.schemas.findings import FOLDER_VARIABLE, FindingsFolder, judge, note

REPOSITORY = Path(__file__).parents[3]
NOTE = "from gpu_sandbox.schemas.findings import note; note('Google answer', 'compute.x', {wrong})"
A_RUN = f"""
import subprocess, sys

import pytest

from gpu_sandbox.schemas.findings import note

def test_right():
    subprocess.run([sys.executable, "-c", {NOTE.format(wrong="[]")!r}], check=True)

def test_wrong():
    subprocess.run([sys.executable, "-c", {NOTE.format(wrong="['x is unknown']")!r}], check=True)

def test_after_it():
    pass

@pytest.mark.against_schema
def test_deliberately_wrong():
    note("Google request", "compute.x", ["y is unknown"])
"""


def test_each_violation_is_read_once_and_each_call_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    found = FindingsFolder(tmp_path)
    assert found.new_violations() == []
    assert not found.counts()
    note("Google answer", "compute.x", [])
    note("Google answer", "compute.x", ["y is unknown", "z is missing"])
    assert [str(each) for each in found.new_violations()] == ["Google answer of compute.x: y is unknown; z is missing"]
    assert found.new_violations() == []
    assert found.counts() == {"Google answer": 2}


def test_a_judge_that_fails_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))

    def fails() -> list[str]:
        raise KeyError("x")

    judge("Google answer", "compute.x", fails)
    assert [each.wrong for each in FindingsFolder(tmp_path).new_violations()] == [("the judge failed: KeyError('x')",)]


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_the_test_fails_in_which_a_process_found_a_violation(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "conftest.py").write_text("from tests.rules import pytest_configure\n")
    (tmp_path / "test_run.py").write_text(A_RUN)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    run = subprocess.run(
        [*command, str(tmp_path), "-rA", *workers], capture_output=True, text=True, cwd=REPOSITORY, timeout=200
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "1 failed, 3 passed" in run.stdout, run.stdout
    assert "FAILED" in run.stdout
    assert "Google answer of compute.x: x is unknown" in run.stdout
    assert "schemas: 2 Google answers, 1 Google requests judged; 1 violations" in run.stdout
