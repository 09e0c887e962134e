"""GpuPodOperator under a real scheduler and triggerer: killed means gone, by the pod's own task alone; and a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.sandbox.airflow_api import wait_until
from tests.airflow.harness import Airflow


def pods(airflow: Airflow) -> list[dict[str, Any]]:
    _, reply = airflow.sandbox.control_plane.request("GET", "/api/v1/namespaces/default/pods")
    return [pod for pod in reply["items"] if "deletionTimestamp" not in pod["metadata"]]


def is_running(airflow: Airflow) -> bool:
    return any(pod["status"].get("phase") == "Running" for pod in pods(airflow))


@pytest.mark.parametrize("dag_id", ["pod_killed", "pod_killed_blocking"])
def test_pod_of_a_task_that_is_marked_failed_goes_at_once(airflow: Airflow, dag_id: str) -> None:
    run = airflow.trigger(dag_id)
    wait_until(lambda: is_running(airflow), timeout=120, what="the training's pod to run")
    if dag_id == "pod_killed":
        # What is marked in the second before the triggerer knows of the trigger is left to scale-down.
        wait_until(
            lambda: "started on node" in airflow.log(run, "train"), timeout=30, what="the trigger to watch the pod"
        )
    airflow.api.mark_task(run.dag_id, run.run_id, "train", "failed")
    wait_until(lambda: not pods(airflow), timeout=20, what="the pod to go")
    assert airflow.api.task(run.dag_id, run.run_id, "scale_down").state in (None, "scheduled")
    finished = airflow.finish(run)
    assert finished.states["train"] == "failed"
    assert finished.states["scale_down"] == "success"


def test_spot_loss_while_deferred_uses_no_retry(airflow: Airflow) -> None:
    run = airflow.trigger("pod_resumed")
    wait_until(lambda: is_running(airflow), timeout=120, what="the training's pod to run")
    wait_until(lambda: "started on node" in airflow.log(run, "train"), timeout=60, what="the trigger to watch the pod")
    (pod,) = pods(airflow)
    _, node = airflow.sandbox.control_plane.request("GET", f"/api/v1/nodes/{pod['spec']['nodeName']}")
    airflow.sandbox.aws.interrupt_spot(node["spec"]["providerID"].rpartition("/")[2])
    finished = airflow.finish(run, timeout=300)
    assert finished.state == "success"
    assert finished.task("train").try_number == 1
    attempt, checkpoint = airflow.xcom(finished, "train")
    assert attempt == 2
    assert checkpoint.startswith("s3://checkpoints/resumed/")
    assert {phase["attempt"] for phase in airflow.xcom(finished, "train", key="timeline")} == {1, 2}
    assert not pods(airflow)


def test_sweep_in_a_block(airflow: Airflow) -> None:
    run = airflow.run_dag("pod_sweep")
    assert run.state == "success"
    results = [airflow.api.xcom(run.status.dag_id, run.status.run_id, "train", map_index=index) for index in range(3)]
    assert results == [{"rate": 1}, {"rate": 2}, {"rate": 3}]


def test_a_function_runs_on_gpus_with_its_arguments_and_its_result(airflow: Airflow) -> None:
    run = airflow.run_dag("gpu_function")
    assert run.state == "success", run.states
    assert airflow.xcom(run, "visible_gpus") == {"sum": 6, "gpus": 2}
    mapped = [airflow.api.xcom(run.status.dag_id, run.status.run_id, "mapped", map_index=index) for index in (0, 1)]
    assert mapped == [{"sum": 3, "gpus": 2}, {"sum": 7, "gpus": 2}]
    assert airflow.leftovers().nothing
