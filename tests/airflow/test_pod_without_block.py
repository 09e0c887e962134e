"""A pod without a block, in both modes, leaves no node that nobody is told of: timed out, marked failed, or kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes import client, config

from airflow_gpu_provider.operators.device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.platforms.base import platform_for
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.airflow_api import RunStatus, wait_until
from tests.airflow.dags.gpu_pods_alone import alone
from tests.airflow.harness import Airflow
from tests.sandbox.running import run as run_here

NAMES = ("timed-out-blocking", "timed-out-deferred", "failed-blocking", "failed-deferred", "kept")


@pytest.fixture(scope="module")
def core(airflow: Airflow) -> Iterator[client.CoreV1Api]:
    """The cluster, with the groups of all pools and no node of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in airflow.sandbox.env().items():
            patch.setenv(name, value)
        patch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
        with ThreadPoolExecutor() as threads:
            list(threads.map(prepare, NAMES))
        yield client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
        with ThreadPoolExecutor() as threads:
            list(threads.map(zero, NAMES))


def prepare(name: str) -> None:
    run_here(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=alone(name), deferrable=False))
    run_here(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=alone(name), deferrable=False))
    zero(name)


def zero(name: str) -> None:
    run_here(ScaleDownSensor(task_id="scale_down", gpu_pool=alone(name)))


@pytest.fixture(scope="module")
def runs(airflow: Airflow, core: client.CoreV1Api) -> dict[str, RunStatus]:
    """All trainings, which begin together."""
    return {name: airflow.trigger(f"alone_{name.replace('-', '_')}") for name in NAMES}


def nodes(core: client.CoreV1Api, name: str) -> list[Any]:
    return core.list_node(label_selector=f"{POOL_LABEL}=alone-{name}").items


def pods(core: client.CoreV1Api, name: str) -> list[Any]:
    return core.list_namespaced_pod("default", label_selector=f"{POOL_LABEL}=alone-{name}").items


def until_it_trains(core: client.CoreV1Api, name: str) -> None:
    wait_until(lambda: any(pod.status.phase == "Running" for pod in pods(core, name)), what=f"{name} to train")


def switch_of(name: str) -> datetime | None:
    (group,) = platform_for(alone(name)).observe()
    return group.switch_at


@pytest.mark.parametrize("name", ["failed-blocking", "failed-deferred"])
def test_marked_failed(airflow: Airflow, core: client.CoreV1Api, runs: dict[str, RunStatus], name: str) -> None:
    run = runs[name]
    until_it_trains(core, name)
    wait_until(lambda: "started on node" in airflow.log(run, "train"), what="somebody to watch the pod")
    cut_short = airflow.cut_short
    airflow.api.mark_task(run.dag_id, run.run_id, "train", "failed")
    may_stay = "deferred" not in name
    wait_until(lambda: not pods(core, name) or (may_stay and airflow.cut_short > cut_short), what="the pod to go")
    for pod in pods(core, name):  # its task was killed before it could delete it
        core.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=0)
    assert airflow.finish(run).states == {"train": "failed"}

    def has_an_end() -> bool:
        switch = switch_of(name)
        is_soon = switch is not None and switch < datetime.now(UTC) + timedelta(minutes=20)
        return not nodes(core, name) or ("deferred" not in name and is_soon)

    if "deferred" not in name and _was_cut_short(airflow.log(run, "train")):
        zero(name)  # as the next run's, or the janitor's
    wait_until(has_an_end, what=f"the node to go, or its end to be set, after:\n{airflow.log(run, 'train')}")


def _was_cut_short(log: str) -> bool:
    """Return True if SIGKILL came, five seconds after SIGTERM, before a loaded machine had looked at the pool."""
    return "releasing node" not in log and "is released when pod" not in log


@pytest.mark.parametrize("name", ["timed-out-blocking", "timed-out-deferred"])
def test_execution_timeout(airflow: Airflow, core: client.CoreV1Api, runs: dict[str, RunStatus], name: str) -> None:
    assert airflow.finish(runs[name]).states == {"train": "failed"}
    wait_until(lambda: not pods(core, name), what="the pod to go")
    wait_until(lambda: not nodes(core, name), what="the node to go")


def test_kept_pod_is_named_with_its_node_and_its_end(
    airflow: Airflow, core: client.CoreV1Api, runs: dict[str, RunStatus]
) -> None:
    assert airflow.finish(runs["kept"]).states == {"train": "success"}
    (pod,) = pods(core, "kept")
    # Airflow may write a task's last lines after its end.
    wait_until(lambda: "keeps running, and" in airflow.log(runs["kept"], "train"), what="the task's last line")
    log = airflow.log(runs["kept"], "train")
    assert f"pod default/{pod.metadata.name} keeps running, and node {pod.spec.node_name} stays for it" in log
    switch = switch_of("kept")
    assert switch is not None
    assert switch < datetime.now(UTC) + timedelta(hours=1, minutes=20)
    assert f"at {switch:%Y-%m-%d %H:%M}Z at the latest" in log
    core.delete_namespaced_pod(pod.metadata.name, "default", grace_period_seconds=0)
