"""A pod without a `gpu_nodes` block brings its node and takes it along, however it ends, or the log says what does."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred
from kubernetes import client, config
from kubernetes.client import models as k8s
from structlog.testing import capture_logs

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.errors import PodDeadline, PoolNotEnsured, TaskKilled
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from airflow_gpu_provider.testing import first_event
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool
from tests.sandbox.running import (
    airflow_says,
    context_of,
    copy_of,
    eventually,
    in_worker,
    lines_of,
    meanwhile,
    resumption,
    run,
    told_to_stop,
    watched_until,
)
from tests.sandbox.ways import DEFERRED_BY_DAY

FOREVER = ["sh", "-c", "trap 'exit 143' TERM; while :; do sleep 0.1; done"]
SAVES_FOR_A_WHILE = ["sh", "-c", "trap 'sleep 4; exit 143' TERM; while :; do sleep 0.1; done"]
SOON = 120.0


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool whose groups are there, and that nobody wants nodes of."""
    pool = eks_pool(gpu_sandbox, "alone", max_runtime=timedelta(hours=24))
    prepared, lines = lines_of(lambda: run(EnsureGpuPoolOperator(task_id="prepare", gpu_pool=pool, nodes=0)))
    assert (prepared["nodes"], prepared["wanted"], prepared["got"]) == ([], 0, 0)
    assert "Pool alone is prepared, and nodes=0 requests none: they come when a run or a pod wants some." in lines
    groups = [each for each in gpu_sandbox.cluster.groups() if str(each["nodegroup"]).startswith("alone-")]
    assert {(each["status"], each["desired"]) for each in groups} == {("ACTIVE", 0)}
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool))
    return pool


@pytest.fixture
def api(pool: EksGpuPool) -> Iterator[client.CoreV1Api]:
    """The cluster, as its administrator."""
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    assert not nodes(core)
    yield core
    core.delete_collection_namespaced_pod("default", grace_period_seconds=1)
    eventually(lambda: not core.list_namespaced_pod("default").items, seconds=SOON)
    assert not list_demand(core.api_client, pool.name)


@pytest.fixture(scope="module", autouse=True)
def now() -> Iterator[None]:
    """Nothing is waited for that only a real night has to wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        patch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
        yield


@pytest.fixture(scope="module")
def seconds_of_a_night(pool: EksGpuPool) -> float:
    """How long it takes on this machine until a pod's own node has come and gone."""
    core = client.CoreV1Api(config.new_client_from_config(os.environ["KUBECONFIG"]))
    began = time.monotonic()
    run(pod(pool, "true", task_id="up", deferrable=False))
    eventually(lambda: not nodes(core), seconds=SOON)
    return time.monotonic() - began


def pod(pool: EksGpuPool, *cmds: str, **changes: Any) -> GpuPodOperator:
    arguments: dict[str, Any] = {"task_id": "train", "image": "busybox:1.36", "cmds": list(cmds)}
    return GpuPodOperator(gpu_pool=pool, **(arguments | changes))


def nodes(api: client.CoreV1Api) -> list[client.V1Node]:
    return api.list_node(label_selector=f"{POOL_LABEL}=alone").items


def running(api: client.CoreV1Api) -> client.V1Pod:
    def look() -> client.V1Pod | None:
        return next((each for each in api.list_namespaced_pod("default").items if is_up(each)), None)

    return eventually(look, seconds=SOON)


def is_up(pod: client.V1Pod) -> bool:
    return any(state.ready and state.name == "base" for state in pod.status.container_statuses or ())


def switch_of(pool: EksGpuPool) -> datetime:
    (group,) = platform_for(pool).observe()
    assert group.switch_at is not None
    return group.switch_at


@pytest.mark.parametrize("head_start", [2.0, 0.0], ids=["timer in the release", "timer in the wait"])
def test_execution_timeout_of_a_blocking_task(
    pool: EksGpuPool, seconds_of_a_night: float, api: client.CoreV1Api, head_start: float
) -> None:
    """Airflow's timer, which counts from `execute`, may end the wait, or what comes after the pod's own deadline."""
    timeout = timedelta(seconds=2 * seconds_of_a_night + 10)
    task = pod(pool, *SAVES_FOR_A_WHILE, deferrable=False, execution_timeout=timeout)
    context = context_of(task, start_date=datetime.now(UTC) - timedelta(seconds=head_start))
    with pytest.raises((PodDeadline, AirflowTaskTimeout)):
        in_worker(task, context)
    eventually(lambda: not nodes(api), seconds=SOON)


def test_blocking_task_that_is_told_to_stop(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    """Airflow kills the process five seconds later: what ends the node without it comes first."""
    soon = datetime.now(UTC) + timedelta(minutes=30)
    saves = "trap 'sleep 600; exit 143' TERM; while :; do sleep 0.1; done"
    task = pod(pool, "sh", "-c", saves, deferrable=False, termination_grace_period=610)
    switches = []

    def runs() -> bool:
        running(api)
        switches.append(switch_of(pool))
        return True

    with told_to_stop(task, runs), capture_logs() as told, pytest.raises(TaskKilled):
        run(task)
    assert switch_of(pool) < soon < switches[0]
    assert any("which is deleted, has ended; the switch of" in str(entry) for entry in told)
    (left,) = api.list_namespaced_pod("default").items
    assert left.metadata.deletion_timestamp
    api.delete_namespaced_pod(left.metadata.name, "default", grace_period_seconds=0)
    run(ScaleDownSensor(task_id="zero", gpu_pool=pool))


def test_execution_timeout_of_a_deferred_task(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    """It is the pod's own deadline, which the kubelet holds; the next leg deletes the pod, and the node goes."""
    task = pod(pool, *FOREVER, execution_timeout=timedelta(hours=1), termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        in_worker(task, context)
    deadlines = []

    def time_is_over() -> None:
        up = running(api)
        deadlines.append(up.spec.active_deadline_seconds)
        api.patch_namespaced_pod(up.metadata.name, "default", {"spec": {"activeDeadlineSeconds": 1}})

    thread = meanwhile(time_is_over)
    event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
    thread.join()
    assert 3500 < deadlines[0] <= 3600
    with pytest.raises(PodDeadline):
        resumption(task, deferral.value, context, event)()
    eventually(lambda: not nodes(api), seconds=SOON)


def test_deferred_task_that_is_marked_failed(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trigger deletes the pod, and sees the node go."""
    task = pod(pool, *FOREVER, termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    asyncio.run(watched_until(deferral.value, lambda: running(api)))
    assert nodes(api)
    airflow_says(monkeypatch, states={context["run_id"]: {"train": "failed"}}, unfinished_runs=0)
    trigger = copy_of(deferral.value.trigger)
    trigger.task_instance = context["ti"]
    asyncio.run(trigger.on_kill())
    assert not [each for each in api.list_namespaced_pod("default").items if not each.metadata.deletion_timestamp]
    eventually(lambda: not nodes(api), seconds=SOON)


@DEFERRED_BY_DAY
def test_pod_that_is_kept_while_a_sidecar_runs_on(pool: EksGpuPool, api: client.CoreV1Api, deferrable: bool) -> None:
    sidecar = k8s.V1Container(name="side", image="busybox:1.36", command=["sh", "-c", "while :; do sleep 0.1; done"])
    task = pod(
        pool,
        "true",
        deferrable=deferrable,
        on_finish_action="keep_pod",
        active_deadline_seconds=3600,
        termination_grace_period=1,
        full_pod_spec=k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base"), sidecar])),
    )
    with capture_logs() as told:
        run(task)
    (kept,) = api.list_namespaced_pod("default").items
    (line,) = (entry["event"] for entry in told if "keeps running" in str(entry["event"]))
    assert f"pod default/{kept.metadata.name} keeps running, and node {kept.spec.node_name} stays for it" in line
    assert f"`kubectl -n default delete pod {kept.metadata.name}` ends it; the switch of" in line
    assert switch_of(pool) < datetime.now(UTC) + timedelta(hours=1, minutes=20)
    assert nodes(api)
    api.delete_namespaced_pod(kept.metadata.name, "default", grace_period_seconds=0)
    run(ScaleDownSensor(task_id="zero", gpu_pool=pool))


def test_pool_that_nobody_has_prepared_is_an_error_at_once(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    unknown = EksGpuPool(
        name="nobodys",
        cluster_name=pool.cluster_name,
        region=pool.region,
        instance_types=["g6.xlarge"],
        zones=list(pool.zones or ()),
        max_nodes=1,
    )
    with pytest.raises(PoolNotEnsured, match=r"Pool nobodys: it has no node group.*EnsureGpuPoolOperator\(nodes=0\)"):
        run(pod(unknown, "true"))
    assert not api.list_namespaced_pod("default").items
