"""`gpu_nodes` in every place of a DAG and in every way to be ended, all runs at once: right colours, and zero.

Each DAG of gpu_blocks_at_once.py has a pool of its own, so each test can say what its own run has left.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_sandbox import airflow_processes
from gpu_sandbox.airflow_api import RunStatus, wait_until
from gpu_sandbox.faults import Stockout
from tests.airflow.harness import Airflow

LEASES = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
# The slow ones first: they all run together.
DAGS = ("blocks_timeout", "blocks_killed", "blocks_marked", "blocks_share", "blocks_sweep", "blocks_mapped")


@pytest.fixture(scope="module")
def started(airflow: Airflow) -> Mapping[str, RunStatus]:
    """Runs of all DAGs, started together; what has to be dry is so before."""
    airflow.sandbox.faults.add(Stockout(zone="us-west-2c"))
    airflow.api.wait_for_dag("blocks_backfill")
    # The first: Airflow refuses it where another process writes to SQLite.
    airflow.api.backfill(
        "blocks_backfill", datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC), max_active_runs=2
    )
    return {dag_id: airflow.trigger(dag_id) for dag_id in (*DAGS, "blocks_skipped")}


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def items(airflow: Airflow, path: str) -> list[dict[str, Any]]:
    status, reply = airflow.sandbox.control_plane.request("GET", path)
    assert status in (200, 404), reply
    return list(reply.get("items", []))


def demand(airflow: Airflow, pool: str) -> list[dict[str, Any]]:
    """The pool's demand Leases."""
    leases = (lease["metadata"] for lease in items(airflow, LEASES))
    named = [lease for lease in leases if lease["name"].startswith("demand-")]
    return [lease for lease in named if lease["labels"]["airflow-gpu-provider/pool"] == pool]


def pod_of(airflow: Airflow, pool: str, task_id: str) -> str:
    """The name of the task's pod that runs on a pool."""
    labels = f"labelSelector=airflow-gpu-provider%2Fpool%3D{pool},task_id%3D{task_id}"
    path = f"/api/v1/namespaces/default/pods?{labels}&fieldSelector=status.phase%3DRunning"
    wait_until(lambda: bool(items(airflow, path)), what=f"the pod of {task_id} to run")
    (pod,) = items(airflow, path)
    return str(pod["metadata"]["name"])


def left_of(airflow: Airflow, pool: str) -> list[str]:
    """What there is of a pool that costs money, or would bring it up again."""
    label = "airflow-gpu-provider/pool"
    nodes = [n["metadata"] for n in items(airflow, "/api/v1/nodes")]
    pods = [pod for pod in items(airflow, "/api/v1/pods") if pod["spec"].get("nodeSelector", {}).get(label) == pool]
    groups = [g for g in airflow.sandbox.cluster.groups() if str(g["nodegroup"]).startswith(pool)]
    return [
        *(f"node {node['name']}" for node in nodes if node.get("labels", {}).get(label) == pool),
        *(f"pod {pod['metadata']['name']}" for pod in pods if pod["status"]["phase"] in ("Pending", "Running")),
        *(f"{group['name']} at {group['desired']}" for group in groups if group["desired"] or group["instances"]),
        *(f"lease {lease['name']}" for lease in demand(airflow, pool)),
    ]


def zero(airflow: Airflow, pool: str) -> None:
    """Wait until nothing is left of a pool; on a busy machine a triggerer takes its time."""
    wait_until(lambda: not left_of(airflow, pool), what=f"pool {pool} to be at zero")


def state(airflow: Airflow, run: RunStatus, task_id: str, map_index: int = -1) -> str | None:
    return airflow.api.task(run.dag_id, run.run_id, task_id, map_index=map_index).state


def ended(airflow: Airflow, run: RunStatus) -> str:
    return airflow.api.wait_for_run(run.dag_id, run.run_id).state


def assert_unharmed(airflow: Airflow, run: RunStatus, task_id: str) -> None:
    """No pod of the task was taken away, and the last one has trained."""
    # From the files: Airflow shows no log of a try that it has lost itself.
    folder = airflow.home.home / "logs" / f"dag_id={run.dag_id}" / f"run_id={run.run_id}" / f"task_id={task_id}"
    assert not [log for log in folder.iterdir() if "PodPreempted" in log.read_text()]
    tries = airflow.api.task(run.dag_id, run.run_id, task_id).try_number
    assert "trained" in airflow.log(run, task_id, try_number=tries)


def let_an_hour_pass(airflow: Airflow, run: RunStatus) -> None:
    """Have the run seem to have started an hour earlier: that is what the scheduler looks at."""
    assert run.queued_at
    with closing(sqlite3.connect(airflow.home.home / "airflow.db", timeout=60)) as database, database:
        (started_at,) = database.execute("SELECT start_date FROM dag_run WHERE run_id = ?", (run.run_id,)).fetchone()
        earlier = datetime.fromisoformat(started_at) - timedelta(hours=1)
        database.execute("UPDATE dag_run SET start_date = ? WHERE run_id = ?", (str(earlier), run.run_id))


def test_ensure_that_is_killed_or_marked_while_it_waits(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    killed, marked = runs["blocks_killed"], runs["blocks_marked"]
    wait_until(lambda: bool(demand(airflow, "blocks-killed")), what="demand to be written")
    pid = airflow.api.task(killed.dag_id, killed.run_id, "blocks-killed.ensure").pid
    assert pid in airflow_processes.processes_of(airflow.home.home)
    os.kill(pid, signal.SIGKILL)
    ensure = "blocks-marked.ensure"
    airflow.api.wait_for_task(marked.dag_id, marked.run_id, ensure, states=frozenset({"deferred"}))
    airflow.api.mark_run(marked.dag_id, marked.run_id, "failed")
    for run, train in ((killed, "upstream_failed"), (marked, "skipped")):
        name = run.dag_id.replace("_", "-")
        assert ended(airflow, run) == "failed"
        states = {task: state(airflow, run, task) for task in (f"{name}.ensure", "train", f"{name}.scale_down")}
        assert states == {f"{name}.ensure": "failed", "train": train, f"{name}.scale_down": "success"}
        zero(airflow, name)


def test_blocks_of_one_run_share_a_pool(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = runs["blocks_share"]
    airflow.api.wait_for_task(run.dag_id, run.run_id, "next.scale_down")
    airflow.run_in(pod_of(airflow, "blocks-share", "long_training"), "touch", "/dev/shm/end")
    assert ended(airflow, run) == "success"
    for task_id in ("short_training", "long_training", "next_training"):
        assert_unharmed(airflow, run, task_id)
    kept = airflow.api.xcom(run.dag_id, run.run_id, "short.scale_down")["kept"]
    assert any(f"{run.dag_id}/{run.run_id}/long" in line for line in kept)
    zero(airflow, "blocks-share")


def test_blocks_in_a_mapped_task_group(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = runs["blocks_mapped"]
    assert ended(airflow, run) == "failed"
    block = "cities.city.blocks-mapped"
    found = {
        name: [state(airflow, run, name, index) for index in (0, 1)]
        for name in ("cities.city.train", f"{block}.scale_down", f"{block}.done")
    }
    assert found == {
        "cities.city.train": ["success", "failed"],
        f"{block}.scale_down": ["success", "success"],
        f"{block}.done": ["success", "failed"],
    }
    zero(airflow, "blocks-mapped")


def test_skipped_tasks_leave_a_run_green_and_nothing_behind(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = runs["blocks_skipped"]
    assert ended(airflow, run) == "success"
    tasks = ("whole.ensure", "never", "whole.scale_down", "inside.ensure", "neither", "inside.scale_down")
    states = {name: state(airflow, run, name) for name in tasks}
    # A decision before the block keeps its nodes from coming; one inside comes too late for that.
    assert states == dict(zip(tasks, [*["skipped"] * 3, "success", "skipped", "success"], strict=True))
    zero(airflow, "blocks-skipped")


def test_task_that_is_cleared_without_its_setup_brings_its_node_and_takes_it_away(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = runs["blocks_sweep"]
    assert ended(airflow, run) == "failed"
    failed_alone = "sweep: 2 success, 1 failed (map index 1)" in airflow.log(run, "blocks-sweep.done")
    assert failed_alone or airflow.lost_by_airflow(run, "sweep")
    zero(airflow, "blocks-sweep")
    tries = {task.task_id: task.try_number for task in airflow.api.tasks(run.dag_id, run.run_id)}
    airflow.api.clear_task(run.dag_id, run.run_id, "sweep", downstream=False, only_failed=True)
    wait_until(lambda: state(airflow, run, "sweep", 1) == "success", what="the sweep to end well")
    # "Only failed tasks": Ensure and scale-down had succeeded, and do not run again; the verdict had not.
    assert ended(airflow, run) == "success"
    for task_id in ("blocks-sweep.ensure", "blocks-sweep.scale_down"):
        assert airflow.api.task(run.dag_id, run.run_id, task_id).try_number == tries[task_id]
    zero(airflow, "blocks-sweep")


def test_runs_of_a_backfill(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    found = airflow.api.runs("blocks_backfill")
    assert [ended(airflow, run) for run in found] == ["success"] * 2
    for run in found:
        assert_unharmed(airflow, run, "train")
    zero(airflow, "blocks-backfill")


def test_dagrun_timeout_skips_the_scale_down_and_the_trigger_does_its_work(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = runs["blocks_timeout"]
    airflow.until_watched(run)
    assert demand(airflow, "blocks-timeout")
    let_an_hour_pass(airflow, run)
    assert ended(airflow, run) == "failed"
    assert state(airflow, run, "train") == "skipped"
    assert state(airflow, run, "blocks-timeout.scale_down") == "skipped"
    zero(airflow, "blocks-timeout")


def test_nothing_is_left_of_all_runs(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    wait_until(lambda: airflow.leftovers().nothing, what=f"zero, but there are {airflow.leftovers()}")
    assert not [lease for lease in items(airflow, LEASES) if lease["metadata"]["name"].startswith("demand-")]
