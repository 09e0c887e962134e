"""The table of a night's ends, under a real scheduler and triggerer: the run's colour is right, and nothing is left."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpu_sandbox.airflow_api import wait_until
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.faults import Stockout
from tests.airflow.harness import Airflow, FinishedRun
from tests.airflow.metrics import Metrics

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


def check_the_bill(airflow: Airflow, run: FinishedRun, metrics: Metrics, *, instance_id: str) -> None:
    """The bill in XCom is of the machine's whole life, at 0.5 a second; the log and the metrics say the same."""
    usage = airflow.xcom(run, "block-ok.scale_down")["usage"]
    seconds, cost = usage["node_seconds"], usage["cost"]
    ec2 = aws_client(airflow.sandbox.aws, "ec2")
    (reservation,) = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    launched_at = reservation["Instances"][0]["LaunchTime"].timestamp()
    released_at = airflow.sandbox.aws.called_at["autoscaling:TerminateInstanceInAutoScalingGroup"]
    # The cloud's times are whole seconds; a machine is last seen a moment before it is released.
    assert sum(seconds.values()) == pytest.approx(released_at - launched_at, abs=5)
    assert seconds["booting"] > 0
    assert seconds["working"] >= 2
    assert usage["machines"] == 1
    assert cost == pytest.approx(
        {**{p: 0.5 * s for p, s in seconds.items()}, "total": 0.5 * sum(seconds.values())}, abs=0.1
    )

    sent = metrics.gauges(pool="block-ok", dag_id="block_ok")
    assert {p: sent[f"node_seconds.{p}"] for p in seconds} == pytest.approx(seconds, abs=0.1)
    assert {p: sent[f"cost.{p}"] for p in seconds} == pytest.approx({p: cost[p] for p in seconds}, abs=0.1)

    log = airflow.log(run, "block-ok.scale_down", try_number=run.task("block-ok.scale_down").try_number)
    said = re.search(r"used (\d+) s of node time on 1 node: (\d+) s booting .*, (\d+) s working .*, (\d+) s idle ", log)
    assert said, log
    told = [float(number) for number in said.groups()]
    assert told == pytest.approx([sum(seconds.values()), *seconds.values()], abs=0.6)
    is_idle = seconds["idle"] > 0.1 * sum(seconds.values())
    assert ("of the run's node time on pool block-ok was idle" in log) == is_idle


def test_a_good_night(airflow: Airflow, metrics: Metrics) -> None:
    run = airflow.run_dag("block_ok")
    check(airflow, run, state="success", ensure="success", train="success", scale_down="success", done="success")
    ensured = airflow.xcom(run, "block-ok.ensure")
    assert [node["instance_type"] for node in ensured["nodes"]] == ["g6.xlarge"]
    assert ensured["plan"][0].startswith("Plan for block-ok")
    assert airflow.xcom(run, "block-ok.scale_down")["nodes"] == 0
    assert "trained" in airflow.log(run, "train")
    check_the_bill(airflow, run, metrics, instance_id=ensured["nodes"][0]["machine"])


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
