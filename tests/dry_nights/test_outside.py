"""What Airflow does to a run by itself: its timeout, a paused DAG, a file that changes or is gone, a deleted run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import DAG

from airflow_gpu_provider import gpu_nodes
from tests.dry_nights.dags import dag, pool
from tests.dry_nights.installation import Airflow, Work

HOUR = timedelta(hours=1)


def training(block_name: str = "gpus", **arguments: object) -> DAG:
    with dag(**arguments) as nightly:
        first = Work(task_id="first")
        with gpu_nodes(pool(block_name), install_device_plugin=False) as gpus:
            Work(task_id="train", retries=1)
        first >> gpus
    return nightly


@pytest.mark.parametrize("task_id", ["gpus.ensure", "train", "gpus.scale_down"])
@pytest.mark.parametrize("how", ["running", "deferred"])
def test_dagrun_timeout_skips_all_that_has_not_ended_teardowns_too(airflow: Airflow, task_id: str, how: str) -> None:
    night = airflow.begin(training(dagrun_timeout=HOUR), **{task_id: how}).until(task_id, how)
    airflow.pass_time(HOUR / 2)
    assert (night.go_on().state, night[task_id]) == ("running", how)
    airflow.pass_time(HOUR)
    assert night.go_on().state == "failed"
    assert (night[task_id], night["gpus.scale_down"], night["gpus.done"]) == ("skipped", "skipped", "skipped")
    airflow.look()
    assert not airflow.worker.running, "its process was told to stop"


def test_dagrun_timeout_while_the_training_waits_for_its_retry(airflow: Airflow) -> None:
    night = airflow.begin(training(dagrun_timeout=HOUR), train="failed").until("train", "up_for_retry")
    airflow.pass_time(2 * HOUR)
    assert night.go_on().state == "failed"
    assert (night["train"], night["gpus.scale_down"]) == ("skipped", "skipped")


@pytest.mark.parametrize("how", ["running", "deferred"])
def test_a_dag_is_paused_while_its_training_runs(airflow: Airflow, how: str) -> None:
    """What runs goes on, and nothing starts, scale-down included, until it is unpaused."""
    nightly = training()
    night = airflow.begin(nightly, train=[how, "success"]).until("train", how)
    airflow.pause(nightly)
    night.end("train") if how == "running" else night.resume("train")
    night.go_on()
    assert night["train"] == {"running": "success", "deferred": "scheduled"}[how]
    assert (night.state, night["gpus.scale_down"]) == ("running", None)
    airflow.pause(nightly, False)
    assert (night.go_on().state, night["gpus.scale_down"]) == ("success", "success")


def test_a_dag_s_file_disappears_while_its_training_runs(airflow: Airflow) -> None:
    nightly = training()
    night = airflow.begin(nightly, train="running").until("train", "running")
    airflow.lose_file(nightly)
    night.end("train").go_on()
    assert (night.state, night["gpus.scale_down"]) == ("running", None)
    airflow.parse(nightly)
    assert (night.go_on().state, night["gpus.scale_down"]) == ("success", "success")


@pytest.mark.parametrize("train", ["success", "failed"])
def test_a_block_is_renamed_while_its_training_runs(airflow: Airflow, train: str) -> None:
    """Airflow adds the new block's tasks to the run and removes the old one's; the training belongs to the new one."""
    nightly = training("old")
    nightly.get_task("train").retries = 0
    night = airflow.begin(nightly, train="running").until("train", "running")
    renamed = training("new")
    renamed.get_task("train").retries = 0
    airflow.parse(renamed)
    night.go_on()
    assert (night["new.ensure"], night["train"], night["new.scale_down"]) == ("success", "running", None)
    assert (night["old.scale_down"], night["old.done"]) == ("removed", "removed")
    night.end("train", train).go_on()
    assert (night.state, night["new.scale_down"], night["new.done"]) == (train, "success", train)


def test_a_block_disappears_while_its_training_runs(airflow: Airflow) -> None:
    """The run is green if all other tasks are."""
    night = airflow.begin(training(), train="running").until("train", "running")
    with dag() as without:
        Work(task_id="first")
    airflow.parse(without)
    assert night.go_on().state == "success"
    assert {state for name, state in night.states.items() if name != "first"} == {"removed"}


def test_a_pool_gets_other_machines_while_its_training_runs(airflow: Airflow) -> None:
    """Nothing changes for the run: the tasks are the same."""
    night = airflow.begin(training(), train="running").until("train", "running")
    other = training()
    other.get_task("gpus.ensure").gpus = 2
    airflow.parse(other)
    night.go_on().end("train").go_on()
    assert (night.state, night.tries("gpus.ensure"), night.tries("gpus.scale_down")) == ("success", 1, 1)


def test_a_dag_is_deleted_while_its_training_is_deferred(airflow: Airflow) -> None:
    """Nothing is left that could release its nodes but the training's trigger."""
    nightly = training()
    night = airflow.begin(nightly, train="deferred").until("train", "deferred")
    airflow.delete(nightly)
    airflow.go_on()
    assert not night.states
