"""Airflow itself, as the other tests here find it: DAGs run for real, and nothing is left when it stops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpu_sandbox import airflow_processes
from gpu_sandbox.airflow_api import AirflowApiError, wait_until
from gpu_sandbox.airflow_home import COMMANDS, AirflowHome, AirflowNotHealthy
from tests.airflow.harness import Airflow

pytestmark = pytest.mark.nightly


def test_a_trivial_dag_runs(airflow: Airflow) -> None:
    run = airflow.run_dag("harness_trivial", {"word": "hello"})
    assert run.state == "success"
    assert run.states == {"echo": "success", "second_try_lucky": "success"}
    assert airflow.xcom(run, "echo") == "hello"
    assert airflow.xcom(run, "second_try_lucky") == 2
    assert "the first try always fails" in airflow.log(run, "second_try_lucky", try_number=1)
    account = airflow.account()  # what a failing test shows
    assert "second_try_lucky (try 1 of 2)" in account
    assert "the first try always fails" in account


def test_a_deferred_task_comes_back(airflow: Airflow) -> None:
    finished = airflow.run_dag("harness_deferred")
    if airflow.lost_by_airflow(finished, "defers"):
        pytest.skip("Airflow lost the task (apache/airflow#72716)")
    assert finished.state == "success"
    assert airflow.xcom(finished, "defers") == "resumed"  # by the method that only its trigger's event leads to


def test_a_running_task_marked_failed_ends(airflow: Airflow) -> None:
    run = airflow.trigger("harness_long")
    airflow.api.wait_for_task(run.dag_id, run.run_id, "sleeps", states=frozenset({"running"}))
    airflow.api.mark_task(run.dag_id, run.run_id, "sleeps", "failed")
    assert airflow.finish(run).state == "failed"


def test_a_killed_component_is_missed_and_comes_back(airflow: Airflow) -> None:
    airflow.home.kill("triggerer")
    with pytest.raises(AirflowNotHealthy, match="triggerer"):
        airflow.home.check()
    airflow.home.restart("triggerer")
    run = airflow.run_dag("harness_deferred")
    if airflow.lost_by_airflow(run, "defers"):
        pytest.skip("Airflow lost the task (apache/airflow#72716)")
    assert run.state == "success"


def test_a_component_that_ended_by_itself_runs_again_in_the_next_test(airflow: Airflow) -> None:
    (triggerer,) = (each for each in psutil.Process().children() if "triggerer" in each.cmdline())
    triggerer.kill()
    wait_until(lambda: airflow.home.ended() == ["triggerer"], what="the triggerer to end")
    with pytest.warns(UserWarning, match="triggerer ended by itself; the end of .*log:"):
        airflow.begin_test()
    airflow.home.check()


def test_an_unknown_dag_is_an_error(airflow: Airflow) -> None:
    with pytest.raises(AirflowApiError, match="waited 1 s in vain for the DAG nowhere"):
        airflow.api.wait_for_dag("nowhere", timeout=1)


def test_a_home_whose_component_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    home = AirflowHome(tmp_path, tmp_path, {"AIRFLOW__CORE__EXECUTOR": "NoSuchExecutor"})
    with pytest.raises(AirflowNotHealthy, match="NoSuchExecutor"), home:
        pass
    assert airflow_processes.processes_of(home.home) == []


def test_nothing_survives_the_process_that_started_it(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from gpu_sandbox.airflow_home import AirflowHome
home = AirflowHome(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}), {{}})
home.begin()
print("begun", flush=True)
import signal; signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "begun\n"
            # A process that has only just begun its program has no environment yet.
            wait_until(lambda: len(airflow_processes.processes_of(tmp_path)) >= len(COMMANDS), what="its components")
        finally:
            owner.kill()
    wait_until(lambda: not airflow_processes.processes_of(tmp_path), what="its processes to end")
