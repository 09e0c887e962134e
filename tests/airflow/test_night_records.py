"""A block's record of its last nights, from one run's scale-down to the next run's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpu_sandbox.airflow_api import PATIENCE
from tests.airflow.harness import Airflow

pytestmark = pytest.mark.nightly


def test_a_night_carries_on_the_record_of_the_one_before(airflow: Airflow) -> None:
    records = []
    for _ in range(2):
        run = airflow.finish(airflow.trigger("block_ok"))
        assert run.state == "success"
        records.append(airflow.xcom(run, "block-ok.scale_down", key="history"))
    first, second = records
    assert [len(each) for each in records] == [1, 2]
    assert second[0] == first[0]
    for run_name, _, wait, _, ran, cost, state in second:
        assert len(run_name) == 8
        assert (wait > 0, ran > 0, cost > 0, state) == (True, True, True, "success")
    (row,) = advice(airflow)
    assert (row["block"], row["about"]) == ("block-ok", "nights")
    assert row["advice"].startswith("2 nights are known")


def advice(airflow: Airflow) -> list[dict[str, str]]:
    """What an engineer is told in a shell."""
    command = [sys.executable, "-m", "airflow", "gpu", "advise", "block_ok", "--output", "json"]
    home = airflow.home
    done = subprocess.run(
        command, env=home.environment, cwd=home.home, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, str]] = json.loads(done.stdout)
    return rows
