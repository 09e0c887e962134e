"""The table of a night's ends, under a real scheduler and triggerer: the run's colour is right, and nothing is left.

The DAGs of gpu_blocks.py all run at once, each on a pool of its own, so each test says what its own run has left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from gpu_sandbox.airflow_api import RunStatus, wait_until
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.faults import Stockout
from tests.airflow.harness import Airflow, FinishedRun
from tests.airflow.metrics import Metrics
from tests.airflow.test_blocks import items, zero

DAGS = ("block_ensure_fails", "block_ok", "block_run_marked", "block_task_marked", "block_cleared", "block_train_fails")
TWICE = ("block_two_nodes", "block_one_node")


@pytest.fixture(scope="module")
def started(airflow: Airflow) -> Mapping[str, list[RunStatus]]:
    """Runs of all DAGs, started together; what has to be dry is so before, until the first test has ended."""
    airflow.sandbox.faults.add(Stockout(zone="us-west-2b"))
    return {dag_id: [airflow.trigger(dag_id)] for dag_id in DAGS} | {
        dag_id: [airflow.trigger(dag_id), airflow.trigger(dag_id)] for dag_id in TWICE
    }


@pytest.fixture
def runs(
    airflow: Airflow, started: Mapping[str, list[RunStatus]], begin_and_end_clean: None
) -> Mapping[str, list[RunStatus]]:
    """The same runs, for a test that fails to show them."""
    for each in started.values():
        airflow.remember(*each)
    return started


def finish(airflow: Airflow, run: RunStatus) -> FinishedRun:
    return airflow.finish(run)


def training(airflow: Airflow, run: RunStatus) -> str:
    """Wait until the training's container runs, with its task in the triggerer; return its pod's name."""
    airflow.until_watched(run)
    (name,) = running(airflow, run)
    return name


def running(airflow: Airflow, run: RunStatus) -> list[str]:
    """The names of the pods that run on the DAG's own pool."""
    pool = {"airflow-gpu-provider/pool": run.dag_id.replace("_", "-")}.items()
    pods = items(airflow, "/api/v1/namespaces/default/pods?fieldSelector=status.phase%3DRunning")
    return [pod["metadata"]["name"] for pod in pods if pool <= pod["spec"].get("nodeSelector", {}).items()]


def check(airflow: Airflow, run: FinishedRun, *, state: str, **tasks: str) -> None:
    name = run.status.dag_id.replace("_", "-")
    states = {task_id.removeprefix(f"{name}."): state for task_id, state in run.states.items()}
    assert {task_id: states[task_id] for task_id in tasks} == tasks
    assert run.state == state
    zero(airflow, name)


def check_the_bill(airflow: Airflow, run: FinishedRun, metrics: Metrics, *, instance_id: str) -> None:
    """The bill in XCom is of the machine's whole life, at 0.5 a second; the log and the metrics say the same."""
    usage = airflow.xcom(run, "block-ok.scale_down")["usage"]
    seconds, cost = usage["node_seconds"], usage["cost"]
    ec2 = aws_client(airflow.sandbox.aws, "ec2")
    (reservation,) = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    (instance,) = reservation["Instances"]
    group = next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == "aws:autoscaling:groupName")
    asg = aws_client(airflow.sandbox.aws, "autoscaling")
    activities = asg.describe_scaling_activities(AutoScalingGroupName=group)["Activities"]
    (release,) = (each for each in activities if each["Description"] == f"Terminating EC2 instance: {instance_id}")
    released, gone = ((release[time] - instance["LaunchTime"]).total_seconds() for time in ("StartTime", "EndTime"))
    # The cloud's times are whole seconds.
    assert released - 1 <= sum(seconds.values()) <= gone + 1
    assert seconds["booting"] > 0
    assert seconds["working"] >= 2
    assert usage["machines"] == 1
    assert cost == pytest.approx(
        {**{p: 0.5 * s for p, s in seconds.items()}, "total": 0.5 * sum(seconds.values())}, abs=0.1
    )

    # The last one of them that is sent.
    wait_until(lambda: "cost.idle" in metrics.gauges(pool="block-ok", dag_id="block_ok"), what="the metrics")
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


def test_ensure_fails(airflow: Airflow, runs: Mapping[str, list[RunStatus]]) -> None:
    run = finish(airflow, *runs["block_ensure_fails"])
    check(airflow, run, state="failed", ensure="failed", train="upstream_failed", scale_down="success", done="failed")
    assert "OutOfStock" in airflow.log(run, "block-ensure-fails.ensure")


def test_a_good_night(airflow: Airflow, runs: Mapping[str, list[RunStatus]], metrics: Metrics) -> None:
    run = finish(airflow, *runs["block_ok"])
    check(airflow, run, state="success", ensure="success", train="success", scale_down="success", done="success")
    ensured = airflow.xcom(run, "block-ok.ensure")
    assert [node["instance_type"] for node in ensured["nodes"]] == ["g6.xlarge"]
    assert ensured["plan"][0].startswith("Plan for block-ok")
    assert airflow.xcom(run, "block-ok.scale_down")["nodes"] == 0
    assert "trained" in airflow.log(run, "train")
    check_the_bill(airflow, run, metrics, instance_id=ensured["nodes"][0]["machine"])


def test_a_second_night_plans_no_change(airflow: Airflow, runs: Mapping[str, list[RunStatus]]) -> None:
    finish(airflow, *runs["block_ok"])
    again = finish(airflow, airflow.trigger("block_ok"))
    check(airflow, again, state="success")
    changes = [line for line in airflow.xcom(again, "block-ok.ensure")["plan"] if line.lstrip().startswith(("+", "~"))]
    assert changes == []


def test_train_fails(airflow: Airflow, runs: Mapping[str, list[RunStatus]]) -> None:
    run = finish(airflow, *runs["block_train_fails"])
    check(airflow, run, state="failed", train="failed", scale_down="success", done="failed")
    assert "no such file: data.csv" in airflow.log(run, "train")
    assert "PodFailed" in airflow.log(run, "train")


def test_run_marked_failed(airflow: Airflow, runs: Mapping[str, list[RunStatus]]) -> None:
    (run,) = runs["block_run_marked"]
    training(airflow, run)
    airflow.api.mark_run(run.dag_id, run.run_id, "failed")
    check(airflow, finish(airflow, run), state="failed", train="failed")


def test_task_marked_failed(airflow: Airflow, runs: Mapping[str, list[RunStatus]]) -> None:
    (run,) = runs["block_task_marked"]
    training(airflow, run)
    airflow.api.mark_task(run.dag_id, run.run_id, "train", "failed")
    check(airflow, finish(airflow, run), state="failed", train="failed", scale_down="success", done="failed")


def test_task_cleared_while_it_trains(airflow: Airflow, runs: Mapping[str, list[RunStatus]]) -> None:
    (run,) = runs["block_cleared"]
    training(airflow, run)
    airflow.api.clear_task(run.dag_id, run.run_id, "train")
    finished = finish(airflow, run)
    check(airflow, finished, state="success", train="success", scale_down="success")
    assert "trained again" in airflow.log(finished, "train", try_number=finished.task("train").try_number)


@pytest.mark.parametrize("dag_id", TWICE)
def test_two_runs_share_a_pool(airflow: Airflow, runs: Mapping[str, list[RunStatus]], dag_id: str) -> None:
    for finished in [finish(airflow, run) for run in runs[dag_id]]:
        check(airflow, finished, state="success", train="success", scale_down="success")


def test_zero_fails_and_is_cleared(airflow: Airflow, runs: Mapping[str, list[RunStatus]]) -> None:
    """The last one: the errors meet all pools."""
    for run in [run for each in runs.values() for run in each]:
        finish(airflow, run)
    run = airflow.trigger("block_zero_fails")
    pod = training(airflow, run)
    airflow.sandbox.faults.set_error_rate(1.0, service="autoscaling")
    airflow.run_in(pod, "touch", "/dev/shm/end")
    finished = finish(airflow, run)
    assert finished.task("block-zero-fails.scale_down").state == "failed"
    assert finished.state == "failed"
    airflow.sandbox.faults.clear()

    def goes_on_well() -> bool:
        airflow.api.clear_task(run.dag_id, run.run_id, "block-zero-fails.scale_down")
        return finish(airflow, run).state == "success"

    # Its time-out of a second may be too short on a busy machine: the next try goes on where it stopped.
    wait_until(goes_on_well, what="zero")
    check(airflow, finish(airflow, run), state="success", train="success", scale_down="success")
    wait_until(lambda: airflow.leftovers().nothing, what=f"zero, but there are {airflow.leftovers()}")
