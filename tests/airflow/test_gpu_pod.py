"""GpuPodOperator under a real scheduler and triggerer: preemption, live logs, a sweep, a function."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.stream import stream

from airflow_gpu_provider.pods.followed_log import REPEATED
from gpu_sandbox.airflow_api import wait_until
from tests.airflow.harness import Airflow


def pods(airflow: Airflow) -> list[dict[str, Any]]:
    _, reply = airflow.sandbox.control_plane.request("GET", "/api/v1/namespaces/default/pods")
    return [pod for pod in reply["items"] if "deletionTimestamp" not in pod["metadata"]]


def is_running(airflow: Airflow) -> bool:
    return any(pod["status"].get("phase") == "Running" for pod in pods(airflow))


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


def test_log_is_live_while_deferred_and_outlives_a_killed_triggerer(airflow: Airflow) -> None:
    def numbers(log: str) -> list[int]:
        return [int(number) for number in re.findall(r"^\[base\] line (\d+)$", log, flags=re.MULTILINE)]

    airflow.api.set_variable("tracking_api_key", "known-to-workers-only")
    run = airflow.trigger("pod_logs")
    airflow.api.wait_for_task(run.dag_id, run.run_id, "train", states=frozenset({"deferred"}), timeout=120)
    wait_until(lambda: len(numbers(airflow.log(run, "train"))) > 80, timeout=60, what="the log of a deferred pod")
    assert airflow.api.task(run.dag_id, run.run_id, "train").state == "deferred"
    airflow.home.kill("triggerer")
    airflow.home.restart("triggerer")
    # Airflow gives a dead triggerer's triggers to another one after 30 s without a heartbeat.
    wait_until(lambda: REPEATED in airflow.log(run, "train"), timeout=90, what="the next triggerer to go on with it")
    assert airflow.api.task(run.dag_id, run.run_id, "train").state == "deferred"
    finished = airflow.finish(run, timeout=240)
    before, repeated, after = airflow.log(finished, "train").partition(REPEATED)
    assert repeated
    assert "the key is ***" in before
    assert "known-to-workers-only" not in before + after
    assert numbers(before) == [*range(len(numbers(before)))]
    assert numbers(after) == [*range(numbers(after)[0], 900)]
    assert 0 <= len(numbers(before)) - numbers(after)[0] <= 50, "at most 5 s are repeated, at ten lines a second"


@pytest.mark.timeout(900)
def test_training_outlives_ten_triggerers_whose_cluster_is_away_at_first(airflow: Airflow) -> None:
    """What ended well is a success, after all of them, and its log is whole."""

    def times(what: str) -> int:
        return airflow.log(run, "train").count(what)

    def said(what: str, *, since: int) -> None:
        wait_until(lambda: times(what) > since, timeout=300, what=f"{what!r} again, after {since} times")

    run = airflow.trigger("pod_watched_anew")
    airflow.api.wait_for_task(run.dag_id, run.run_id, "train", states=frozenset({"deferred"}), timeout=300)
    said("started on node", since=0)
    for _ in range(10):
        borne, watched = times("The wait continues."), times("started on node")
        airflow.home.kill("triggerer", signal.SIGTERM)
        airflow.sandbox.faults.set_error_rate(1.0)  # a triggerer finds the cluster by asking AWS for it
        airflow.home.restart("triggerer")
        said("The wait continues.", since=borne)
        airflow.sandbox.faults.set_error_rate(0)
        said("started on node", since=watched)
    (pod,) = pods(airflow)
    core = client.CoreV1Api(config.new_client_from_config(airflow.sandbox.env()["KUBECONFIG"]))
    touch = ["touch", "/dev/shm/end"]
    stream(core.connect_get_namespaced_pod_exec, pod["metadata"]["name"], "default", command=touch, container="base")
    finished = airflow.finish(run, timeout=300)
    assert finished.state == "success", airflow.account()
    assert finished.task("train").try_number == 1
    lines = re.findall(r"^\[base\] line (\d+)$", airflow.log(finished, "train"), flags=re.MULTILINE)
    assert sorted({int(line) for line in lines}) == [*range(airflow.xcom(finished, "train"))]
    assert airflow.leftovers().nothing


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
