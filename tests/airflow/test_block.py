"""The table of a night's ends, under a real scheduler and triggerer: the run's colour is right, and nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.sandbox.airflow_api import wait_until
from airflow_gpu_provider.sandbox.faults import Stockout
from tests.airflow.harness import Airflow, FinishedRun

DEFERRED = frozenset({"deferred"})


def zero_in_the_end(airflow: Airflow, *, timeout: float = 60) -> None:
    """Wait until nothing is left that costs money; the message says what there still is."""
    wait_until(lambda: airflow.leftovers().nothing, timeout=timeout, what=f"zero, but there are {airflow.leftovers()}")


def no_leases(airflow: Airflow) -> bool:
    path = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
    _, reply = airflow.sandbox.control_plane.request("GET", path)
    return not [lease for lease in reply.get("items", []) if lease["metadata"]["name"].startswith("demand-")]


def wait_for_training(airflow: Airflow, run: Any) -> None:
    """Wait until the training's container runs, with its task in the triggerer."""
    airflow.api.wait_for_task(run.dag_id, run.run_id, "train", states=DEFERRED, timeout=90)

    def started() -> bool:
        _, pods = airflow.sandbox.control_plane.request("GET", "/api/v1/namespaces/default/pods")
        return any(pod["status"].get("phase") == "Running" for pod in pods["items"])

    wait_until(started, timeout=60, what="the training's pod to run")


def check(airflow: Airflow, run: FinishedRun, *, state: str, **tasks: str) -> None:
    name = run.status.dag_id.replace("_", "-")
    states = {task_id.removeprefix(f"{name}."): state for task_id, state in run.states.items()}
    assert {task_id: states[task_id] for task_id in tasks} == tasks
    assert run.state == state
    zero_in_the_end(airflow)
    assert no_leases(airflow)


def test_a_good_night(airflow: Airflow) -> None:
    run = airflow.run_dag("block_ok")
    check(airflow, run, state="success", ensure="success", train="success", scale_down="success", done="success")
    ensured = airflow.xcom(run, "block-ok.ensure")
    assert [node["instance_type"] for node in ensured["nodes"]] == ["g6.xlarge"]
    assert ensured["plan"][0].startswith("Plan for block-ok")
    assert airflow.xcom(run, "block-ok.scale_down")["nodes"] == 0
    assert "trained" in airflow.log(run, "train")


def test_a_second_night_plans_no_change(airflow: Airflow) -> None:
    again = airflow.run_dag("block_ok")
    check(airflow, again, state="success")
    changes = [line for line in airflow.xcom(again, "block-ok.ensure")["plan"] if line.lstrip().startswith(("+", "~"))]
    assert changes == []


def test_train_fails(airflow: Airflow) -> None:
    run = airflow.run_dag("block_train_fails")
    check(airflow, run, state="failed", train="failed", scale_down="success", done="failed")
    assert "no such file: data.csv" in airflow.log(run, "train")
    assert "PodFailed" in airflow.log(run, "train")


def test_ensure_fails(airflow: Airflow) -> None:
    airflow.sandbox.faults.add(Stockout(zone="us-west-2b"))
    run = airflow.run_dag("block_ensure_fails")
    check(airflow, run, state="failed", ensure="failed", train="upstream_failed", scale_down="success", done="failed")
    assert "OutOfStock" in airflow.log(run, "block-ensure-fails.ensure")


def test_zero_fails_and_is_cleared(airflow: Airflow) -> None:
    run = airflow.trigger("block_zero_fails")
    wait_for_training(airflow, run)
    airflow.sandbox.faults.set_error_rate(1.0, service="autoscaling")
    finished = airflow.finish(run, timeout=240)
    assert finished.task("block-zero-fails.scale_down").state == "failed"
    assert finished.state == "failed"
    airflow.sandbox.faults.clear()
    airflow.api.clear_task(run.dag_id, run.run_id, "block-zero-fails.scale_down")
    check(airflow, airflow.finish(run), state="success", train="success", scale_down="success")


def test_run_marked_failed(airflow: Airflow) -> None:
    run = airflow.trigger("block_long")
    wait_for_training(airflow, run)
    airflow.api.mark_run(run.dag_id, run.run_id, "failed")
    check(airflow, airflow.finish(run), state="failed", train="failed")


def test_task_marked_failed(airflow: Airflow) -> None:
    run = airflow.trigger("block_long")
    wait_for_training(airflow, run)
    airflow.api.mark_task(run.dag_id, run.run_id, "train", "failed")
    check(airflow, airflow.finish(run), state="failed", train="failed", scale_down="success", done="failed")


def test_task_cleared_while_it_trains(airflow: Airflow) -> None:
    run = airflow.trigger("block_cleared")
    wait_for_training(airflow, run)
    airflow.api.clear_task(run.dag_id, run.run_id, "train")
    finished = airflow.finish(run, timeout=240)
    check(airflow, finished, state="success", train="success", scale_down="success")
    assert "trained again" in airflow.log(finished, "train", try_number=finished.task("train").try_number)


@pytest.mark.parametrize("dag_id", ["block_two_nodes", "block_one_node"])
def test_two_runs_share_a_pool(airflow: Airflow, dag_id: str) -> None:
    runs = [airflow.trigger(dag_id), airflow.trigger(dag_id)]
    for finished in [airflow.finish(run, timeout=240) for run in runs]:
        check(airflow, finished, state="success", train="success", scale_down="success")
