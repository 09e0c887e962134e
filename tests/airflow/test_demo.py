"""`gpu-sandbox demo`, as make demo runs it: a sandbox and an Airflow of its own, watched from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_sandbox.airflow_api import PATIENCE

pytestmark = pytest.mark.nightly

DEMO = (sys.executable, "-m", "gpu_sandbox.cli", "demo")


@pytest.mark.nightly
def test_a_red_night_is_shown_as_it_should_be(tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    shown = subprocess.run(
        [*DEMO, "--fault", "train-fails", "--fault", "stockout:us-west-2a", "--report", str(report_file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "The run is red, as it should be." in shown.stdout
    assert "Nothing is left." in shown.stdout
    assert "us-west-2b g6.xlarge" in shown.stdout
    report = json.loads(report_file.read_text())
    assert report["dag_run_state"] == "failed"
    assert (report["max_nodes_seen"], report["nodes_after"], report["desired_after"]) == (1, 0, 0)
    assert report["release_seconds"] is not None


@pytest.mark.nightly
def test_two_nodes_train_as_one_and_go_on_when_one_of_them_is_taken_away(tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="requirements-two-nodes.txt has it")
    report_file = tmp_path / "report.json"
    shown = subprocess.run(
        [*DEMO, "--training", "two-nodes", "--fault", "spot-lost", "--report", str(report_file)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "The run is green, as it should be." in shown.stdout
    assert "resuming from round" in shown.stdout
    report = json.loads(report_file.read_text())
    assert (report["ranks"], report["attempts"]) == (2, 2)
    assert len(set(report["rank_nodes"])) == 2
    assert len(set(report["rank_zones"])) == 1
    assert report["accuracy"] > 0.94, "as on one node: tests/unit/test_train_trees.py"
    assert (report["nodes_after"], report["machines_after"], report["desired_after"]) == (0, 0, 0)
    assert report["release_seconds"] is not None


def test_an_unknown_fault_is_refused(tmp_path: Path) -> None:
    refused = subprocess.run(
        [*DEMO, "--fault", "nonsense", "--report", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "known: stockout:ZONE" in refused.stdout
