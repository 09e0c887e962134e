"""A block's nights whose end depends on real processes: right colours, and nothing is left.

The DAGs of gpu_blocks.py all run at once, each on a pool of its own, so each test says what its own run has left. What
only the scheduler decides is in tests/dry_nights.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from gpu_sandbox import airflow_processes
from gpu_sandbox.airflow_api import RunStatus, wait_until
from gpu_sandbox.aws.observer import aws_client
from gpu_sandbox.faults import Stockout
from tests.airflow.harness import Airflow, FinishedRun
from tests.airflow.metrics import Metrics
from tests.airflow.pools import demand, pods_of, zero

pytestmark = pytest.mark.nightly

# The slow one first.
DAGS = ("block_timeout", "block_killed", "block_ok", "block_run_marked", "block_unconnected")
NIGHTS = "block_ten_nights"


@pytest.fixture(scope="module")
def started(airflow: Airflow) -> Mapping[str, RunStatus]:
    """Runs of all DAGs, started together; what has to be dry is so before, until the first test has ended."""
    airflow.sandbox.faults.add(Stockout(zone="us-west-2c"))
    started = {dag_id: airflow.trigger(dag_id) for dag_id in DAGS}
    airflow.api.wait_for_dag(NIGHTS)
    for day in range(1, 11):
        date = datetime(2026, 1, day, tzinfo=UTC)
        started[f"{NIGHTS} {day}"] = airflow.api.trigger(NIGHTS, logical_date=date)
    return started


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def training(airflow: Airflow, run: RunStatus) -> str:
    """Wait until the training's container runs, with its task in the triggerer; return its pod's name."""
    airflow.until_watched(run)
    pods = pods_of(airflow, run.dag_id.replace("_", "-"))
    (name,) = (pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running")
    return str(name)


def check(airflow: Airflow, run: FinishedRun, *, state: str, **tasks: str) -> None:
    name = run.status.dag_id.replace("_", "-")
    states = {task_id.removeprefix(f"{name}."): state for task_id, state in run.states.items()}
    assert {task_id: states[task_id] for task_id in tasks} == tasks
    assert run.state == state
    zero(airflow, name)


def let_an_hour_pass(airflow: Airflow, run: RunStatus) -> None:
    """Have the run seem to have started an hour earlier: that is what the scheduler looks at."""
    with closing(sqlite3.connect(airflow.home.home / "airflow.db", timeout=60)) as database, database:
        (started_at,) = database.execute("SELECT start_date FROM dag_run WHERE run_id = ?", (run.run_id,)).fetchone()
        earlier = datetime.fromisoformat(started_at) - timedelta(hours=1)
        database.execute("UPDATE dag_run SET start_date = ? WHERE run_id = ?", (str(earlier), run.run_id))


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
    tags = {"pool": "block-ok", "dag_id": "block_ok"}
    wait_until(lambda: "cost.idle" in metrics.gauges(**tags, currency="USD"), what="the metrics")
    sent = {**metrics.gauges(**tags), **metrics.gauges(**tags, currency="USD")}
    assert {p: sent[f"node_seconds.{p}"] for p in seconds} == pytest.approx(seconds, abs=0.1)
    assert {p: sent[f"cost.{p}"] for p in seconds} == pytest.approx({p: cost[p] for p in seconds}, abs=0.1)

    log = airflow.log(run, "block-ok.scale_down", try_number=run.task("block-ok.scale_down").try_number)
    said = re.search(r"used (\d+) s of node time on 1 node: (\d+) s booting .*, (\d+) s working .*, (\d+) s idle ", log)
    assert said, log
    told = [float(number) for number in said.groups()]
    assert told == pytest.approx([sum(seconds.values()), *seconds.values()], abs=0.6)
    assert "of the run's node time on pool block-ok was idle" not in log, "seconds of it are nobody's fault"


def told(airflow: Airflow, run: FinishedRun) -> tuple[str, str]:
    """Wait for the two lines that the notifier got in the DAG processor."""
    path = airflow.home.home / f"{run.status.dag_id}.night"
    wait_until(lambda: path.exists() and "\n" in path.read_text(), what=path.name)
    what_happened, what_it_took = path.read_text().splitlines()
    return what_happened, what_it_took


def test_worker_of_ensure_is_killed_while_it_waits(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = runs["block_killed"]
    wait_until(lambda: bool(demand(airflow, "block-killed")), what="demand to be written")
    pid = airflow.api.task(run.dag_id, run.run_id, "block-killed.ensure").pid
    assert pid in airflow_processes.processes_of(airflow.home.home)
    os.kill(pid, signal.SIGKILL)
    finished = airflow.finish(run)
    check(airflow, finished, state="failed", ensure="failed", train="upstream_failed", scale_down="success")


def test_a_good_night(airflow: Airflow, runs: Mapping[str, RunStatus], metrics: Metrics) -> None:
    run = airflow.finish(runs["block_ok"])
    check(airflow, run, state="success", ensure="success", train="success", scale_down="success", done="success")
    ensured = airflow.xcom(run, "block-ok.ensure")
    assert [node["instance_type"] for node in ensured["nodes"]] == ["g6.xlarge"]
    assert ensured["plan"][0].startswith("Plan for block-ok")
    assert airflow.xcom(run, "block-ok.scale_down")["nodes"] == 0
    assert "trained" in airflow.log(run, "train")
    check_the_bill(airflow, run, metrics, instance_id=ensured["nodes"][0]["machine"])
    what_happened, what_it_took = told(airflow, run)
    assert what_happened == f"block_ok {run.status.run_id}: success."
    cost = airflow.xcom(run, "block-ok.scale_down")["usage"]["cost"]["total"]
    assert re.fullmatch(
        rf"waited .* s, ran \d+ s on 1 node \(g6\.xlarge\), cost {cost:.2f} USD; all nodes released\.", what_it_took
    )
    for operator in ("EnsureGpuPoolOperator", "GpuPodOperator", "ScaleDownSensor", "BlockVerdictOperator"):
        tags = {"dag_id": "block_ok", "operator": operator, "outcome": "success"}
        pool = {} if operator == "BlockVerdictOperator" else {"pool": "block-ok"}
        assert metrics.counts(**tags, **pool) == {"outcome": 1, "outcome.success": 1}


def test_block_that_never_reached_its_pool_has_nothing_to_release(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    """What tries of Ensure share outlives each of them in Airflow's database, and its scale-down reads it."""
    run = airflow.finish(runs["block_unconnected"])
    check(airflow, run, state="failed", ensure="failed", train="upstream_failed", scale_down="success", done="failed")
    assert (run.task("block-unconnected.ensure").try_number, run.task("block-unconnected.scale_down").try_number) == (
        3,
        1,
    )
    assert airflow.xcom(run, "block-unconnected.scale_down")["nothing_begun"]
    log = airflow.log(run, "block-unconnected.scale_down")
    assert "This run has nothing of pool block-unconnected to release: no try of block-unconnected.ensure got so" in log
    what_happened, what_it_took = told(airflow, run)
    assert "ConnectionNotFound: The Airflow connection 'nobodys' was not found." in what_happened
    assert what_it_took == "No node was started."


def test_run_marked_failed(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = runs["block_run_marked"]
    training(airflow, run)
    airflow.api.mark_run(run.dag_id, run.run_id, "failed")
    finished = airflow.finish(run)
    check(airflow, finished, state="failed", train="failed", scale_down="success", done="failed")
    what_happened, what_it_took = told(airflow, finished)
    assert "BlockFailed: The run was marked before its tasks had ended" in what_happened
    assert what_it_took.endswith("; all nodes released.")


def test_dagrun_timeout_skips_the_scale_down_and_the_trigger_does_its_work(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = runs["block_timeout"]
    airflow.until_watched(run)
    assert demand(airflow, "block-timeout")
    let_an_hour_pass(airflow, run)
    finished = airflow.finish(run)
    check(airflow, finished, state="failed", train="skipped", scale_down="skipped")
    what_happened, _ = told(airflow, finished)
    assert "failed, for it ran longer than its dagrun_timeout of 1 h 0 min." in what_happened


def test_ten_nights_that_are_caught_up_on_get_their_nodes_and_leave_none(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    nights = [airflow.finish(runs[f"{NIGHTS} {day}"]) for day in range(1, 11)]
    assert [night.state for night in nights] == ["success"] * 10
    for night in nights:
        assert airflow.xcom(night, "block-ten-nights.ensure")["nodes"]
    zero(airflow, "block-ten-nights")


def test_zero_fails_and_is_cleared(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    """The last one: the errors meet all pools."""
    for each in runs.values():
        airflow.finish(each)
    run = airflow.trigger("block_zero_fails")
    pod = training(airflow, run)
    airflow.sandbox.faults.set_error_rate(1.0, service="autoscaling")
    airflow.run_in(pod, "touch", "/dev/shm/end")
    finished = airflow.finish(run)
    assert finished.task("block-zero-fails.scale_down").state == "failed"
    assert finished.state == "failed"
    airflow.sandbox.faults.clear()

    def goes_on_well() -> bool:
        airflow.api.clear_task(run.dag_id, run.run_id, "block-zero-fails.scale_down")
        return airflow.finish(run).state == "success"

    # Its time-out of a second may be too short on a busy machine: the next try goes on where it stopped.
    wait_until(goes_on_well, what="zero")
    check(airflow, airflow.finish(run), state="success", train="success", scale_down="success")
    wait_until(lambda: airflow.leftovers().nothing, what=f"zero, but there are {airflow.leftovers()}")
