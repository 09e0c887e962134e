"""GpuPodOperator(nodes=2) under a real scheduler: a rank that is taken away, one that fails, a task that is ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_gpu_provider.pods.followed_log import REPEATED
from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.harness import Airflow
from tests.airflow.test_blocks import items, zero

DAGS = ("gang_night", "gang_marked_failed", "gang_rank_fails")


@pytest.fixture(scope="module")
def started(airflow: Airflow) -> Mapping[str, RunStatus]:
    """Runs of all DAGs, started together, each on a pool of its own; a rank that is to fail fails beside the tests."""
    started = {dag_id: airflow.trigger(dag_id) for dag_id in DAGS}
    fails = started["gang_rank_fails"]
    until_all_run(airflow, fails)
    wait_until(lambda: "[rank 0] up" in airflow.log(fails, "train"), what="rank 0 to be up")
    airflow.run_in(pod_of(airflow, fails, rank=1), "touch", "/dev/shm/end")
    return started


@pytest.fixture
def runs(airflow: Airflow, started: Mapping[str, RunStatus], begin_and_end_clean: None) -> Mapping[str, RunStatus]:
    """The same runs, for a test that fails to show them."""
    airflow.remember(*started.values())
    return started


def objects(airflow: Airflow, run: RunStatus, path: str) -> list[dict[str, Any]]:
    pool = run.dag_id.replace("_", "-")
    found = items(airflow, path)
    return [each for each in found if (each["metadata"].get("labels") or {}).get("airflow-gpu-provider/pool") == pool]


def jobs(airflow: Airflow, run: RunStatus) -> list[dict[str, Any]]:
    return objects(airflow, run, "/apis/batch/v1/namespaces/default/jobs")


def pod_of(airflow: Airflow, run: RunStatus, *, rank: int) -> str:
    """The name of the rank's pod."""
    pods = objects(airflow, run, "/api/v1/namespaces/default/pods")
    return next(name for name in (pod["metadata"]["name"] for pod in pods) if name.rsplit("-", 2)[1] == str(rank))


def until_all_run(airflow: Airflow, run: RunStatus) -> None:
    airflow.api.wait_for_task(run.dag_id, run.run_id, "train", states=frozenset({"deferred"}))
    wait_until(lambda: "2 of 2 ranks run" in airflow.log(run, "train"), what="both ranks to run")


def test_night_on_two_nodes_of_one_zone_outlives_the_loss_of_a_rank(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = runs["gang_night"]
    until_all_run(airflow, run)
    pods = objects(airflow, run, "/api/v1/namespaces/default/pods")
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in objects(airflow, run, "/api/v1/nodes")}
    zones = [nodes[pod["spec"]["nodeName"]]["topology.kubernetes.io/zone"] for pod in pods]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    assert len(set(zones)) == 1
    lost = pod_of(airflow, run, rank=1)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": lost, "namespace": "default"}}
    path = f"/api/v1/namespaces/default/pods/{lost}/eviction"
    status, reply = airflow.sandbox.control_plane.request("POST", path, eviction)
    assert status == 201, reply
    finished = airflow.finish(run)
    assert finished.state == "success", airflow.log(run, "train")
    assert finished.task("train").try_number == 1
    assert airflow.xcom(finished, "train") == {"rank": 0}
    log = airflow.log(run, "train")
    said = [log.count(f"[rank {rank}] rank {rank} of 2, attempt 2") for rank in (0, 1)]
    # A triggerer that is overloaded says that lines may come twice.
    assert said == [1, 1] or (REPEATED in log and all(said))
    assert "Rank 1: " in log
    assert {phase["attempt"] for phase in airflow.xcom(finished, "train", key="timeline")} == {1, 2}
    zero(airflow, "gang-night")
    wait_until(lambda: not jobs(airflow, run), what="the gang's Job to go")


def test_task_that_is_marked_failed_takes_its_gang_along(airflow: Airflow, runs: Mapping[str, RunStatus]) -> None:
    run = runs["gang_marked_failed"]
    until_all_run(airflow, run)
    airflow.api.mark_task(run.dag_id, run.run_id, "train", "failed")
    assert airflow.finish(run).state == "failed"
    wait_until(lambda: not jobs(airflow, run), what="the gang's Job to go")
    zero(airflow, "gang-marked-failed")


def test_night_fails_with_the_error_of_the_rank_that_failed_first(
    airflow: Airflow, runs: Mapping[str, RunStatus]
) -> None:
    run = runs["gang_rank_fails"]
    finished = airflow.finish(run)
    assert finished.state == "failed"
    log = airflow.log(run, "train")
    assert "Rank 1: " in log
    assert "exit code 3" in log
    assert "[rank 0] told to stop" in log
    zero(airflow, "gang-rank-fails")
    wait_until(lambda: not jobs(airflow, run), what="the gang's Job to go")
