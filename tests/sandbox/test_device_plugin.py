"""InstallDevicePluginOperator against a real API server: what it looks for, applies, waits for and refuses."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client, config, utils

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.addons import plugin_watch
from airflow_gpu_provider.addons.device_plugin import PLUGIN_NAMESPACE
from airflow_gpu_provider.addons.plugin_watch import GpusWait, watch_plugin
from airflow_gpu_provider.cluster.api.access import ClusterAccess
from airflow_gpu_provider.errors import ClusterUnreachable, DevicePluginConflict, GpusNotAllocatable
from airflow_gpu_provider.operators import install_device_plugin as device_plugin
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool
from tests.sandbox.running import context_of, copy_of, eventually, first_event, run
from tests.unit.addons.test_detection import DRA, STATIC

NODES = "airflow-gpu-provider/pool"


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with one node that has no plugin."""
    pool = eks_pool(gpu_sandbox, "plugin")
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False))
    return pool


@pytest.fixture(autouse=True)
def apps(env: None) -> Iterator[client.AppsV1Api]:
    """The cluster's DaemonSets, as its administrator; those that a test left are deleted, pods and GPUs too."""
    api = config.new_client_from_config(os.environ["KUBECONFIG"])
    remove_daemon_sets(api)
    yield client.AppsV1Api(api)
    remove_daemon_sets(api)


def remove_daemon_sets(api: client.ApiClient) -> None:
    for one in client.AppsV1Api(api).list_daemon_set_for_all_namespaces().items:
        client.AppsV1Api(api).delete_namespaced_daemon_set(one.metadata.name, one.metadata.namespace)
    core = client.CoreV1Api(api)
    eventually(lambda: not any(core.list_namespaced_pod(each).items for each in ("kube-system", PLUGIN_NAMESPACE)))
    eventually(lambda: not any(gpus_of(node) for node in core.list_node(label_selector=NODES).items))


def gpus_of(node: client.V1Node) -> int:
    return int((node.status.allocatable or {}).get("nvidia.com/gpu", 0))


def plugin(pool: EksGpuPool, **changes: Any) -> InstallDevicePluginOperator:
    return InstallDevicePluginOperator(task_id="plugin", gpu_pool=pool, **changes)


def apply(apps: client.AppsV1Api, manifest: dict[str, Any]) -> None:
    """Create a DaemonSet as somebody else would."""
    spec = manifest["spec"]["template"]["spec"]
    mounted = [{**container, "command": ["sleep", "600"]} for container in spec["containers"]]
    template = {"metadata": {"labels": {"app": "other"}}, "spec": {**spec, "containers": mounted}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": manifest["metadata"]["name"], "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"app": "other"}}, "template": template},
    }
    utils.create_from_dict(apps.api_client, body)


def daemon_sets(apps: client.AppsV1Api) -> list[str]:
    return [one.metadata.name for one in apps.list_daemon_set_for_all_namespaces().items]


def test_installs_and_waits_for_the_gpus(pool: EksGpuPool, apps: client.AppsV1Api) -> None:
    result = run(plugin(pool))
    assert result["change"] == "created"
    assert list(result["nodes"].values()) == [1]
    assert daemon_sets(apps) == ["nvidia-device-plugin-plugin"]


def test_second_run_changes_nothing(pool: EksGpuPool, apps: client.AppsV1Api) -> None:
    run(plugin(pool))
    before = apps.read_namespaced_daemon_set("nvidia-device-plugin-plugin", PLUGIN_NAMESPACE)
    assert run(plugin(pool))["change"] == "unchanged"
    after = apps.read_namespaced_daemon_set("nvidia-device-plugin-plugin", PLUGIN_NAMESPACE)
    assert after.metadata.generation == before.metadata.generation


def test_option_reaches_the_plugin_and_changes_it_once(pool: EksGpuPool, apps: client.AppsV1Api) -> None:
    run(plugin(pool))
    options = {"DP_DISABLE_HEALTHCHECKS": "xids"}
    changes = [run(plugin(pool, options=options))["change"] for _ in range(2)]
    assert changes == ["configured", "unchanged"]
    after = apps.read_namespaced_daemon_set("nvidia-device-plugin-plugin", PLUGIN_NAMESPACE)
    environment = {entry.name: entry.value for entry in after.spec.template.spec.containers[0].env}
    assert environment["DP_DISABLE_HEALTHCHECKS"] == "xids"


def test_a_config_reaches_the_plugin_by_a_config_map(pool: EksGpuPool, apps: client.AppsV1Api) -> None:
    config = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
    core = client.CoreV1Api(apps.api_client)
    run(plugin(pool))
    changes = [run(plugin(pool, config=config))["change"] for _ in range(2)]
    assert changes == ["configured", "unchanged"]
    (written,) = core.list_namespaced_config_map(PLUGIN_NAMESPACE, label_selector=f"{NODES}=plugin").items
    assert json.loads(written.data["config.yaml"])["sharing"] == config["sharing"]

    def is_running_with_it() -> bool:
        pods = core.list_namespaced_pod(PLUGIN_NAMESPACE, label_selector=f"{NODES}=plugin").items
        mounted = [v.config_map.name for pod in pods for v in pod.spec.volumes if v.config_map]
        return [pod.status.phase for pod in pods] == ["Running"] and written.metadata.name in mounted

    eventually(is_running_with_it)
    core.delete_namespaced_config_map(written.metadata.name, PLUGIN_NAMESPACE)


def test_pool_without_a_node_is_done_at_once(gpu_sandbox: Sandbox, apps: client.AppsV1Api) -> None:
    result = run(plugin(eks_pool(gpu_sandbox, "empty")))
    assert result["nodes"] == {}
    assert daemon_sets(apps) == ["nvidia-device-plugin-empty"]


def test_each_pool_has_its_own_and_they_do_not_meet(
    pool: EksGpuPool, gpu_sandbox: Sandbox, apps: client.AppsV1Api
) -> None:
    run(plugin(eks_pool(gpu_sandbox, "empty")))
    run(plugin(pool))

    def scheduled() -> dict[str, int]:
        found = apps.list_daemon_set_for_all_namespaces().items
        return {one.metadata.name: one.status.desired_number_scheduled for one in found}

    # Their controller writes that down after it has made the pods.
    eventually(lambda: scheduled() == {"nvidia-device-plugin-empty": 0, "nvidia-device-plugin-plugin": 1})


def test_dry_run_changes_nothing(pool: EksGpuPool, apps: client.AppsV1Api) -> None:
    assert run(plugin(pool, dry_run=True))["change"] == "created"
    assert daemon_sets(apps) == []


def test_plugin_that_is_there_is_respected(pool: EksGpuPool, apps: client.AppsV1Api) -> None:
    apply(apps, STATIC)
    result = run(plugin(pool, deferrable=False))
    assert result["served_by"] == "device plugin kube-system/nvidia-device-plugin-daemonset"
    assert result["change"] == "unchanged"
    assert daemon_sets(apps) == ["nvidia-device-plugin-daemonset"]


def test_dra_driver_is_refused(pool: EksGpuPool, apps: client.AppsV1Api) -> None:
    apply(apps, DRA)
    with pytest.raises(DevicePluginConflict):
        run(plugin(pool))
    assert daemon_sets(apps) == ["nvidia-dra-driver-gpu-kubelet-plugin"]


@pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
def test_plugin_that_never_registers_names_node_and_last_words(
    pool: EksGpuPool,
    gpu_sandbox: Sandbox,
    apps: client.AppsV1Api,
    monkeypatch: pytest.MonkeyPatch,
    deferrable: bool,
) -> None:
    monkeypatch.setattr(device_plugin, "_BLOCK_FIRST", timedelta(seconds=1))
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    gpu_sandbox.faults.device_plugin_never_ready = True
    gpu_sandbox.agent.set_device_plugin_ready(False)
    try:
        with pytest.raises(GpusNotAllocatable):
            run(plugin(pool, timeout=timedelta(0), deferrable=False))
        eventually(lambda: last_words(apps))  # before its time is over, on a busy machine too
        with pytest.raises(
            GpusNotAllocatable, match=r"ip-.*plugin pod nvidia-device-plugin-plugin-\w+.*last log line: .+"
        ):
            run(plugin(pool, timeout=timedelta(seconds=3), deferrable=deferrable))
    finally:
        gpu_sandbox.faults.device_plugin_never_ready = False
        gpu_sandbox.agent.set_device_plugin_ready(True)


def last_words(apps: client.AppsV1Api) -> str:
    """What the pool's plugin has logged; nothing before it runs."""
    core = client.CoreV1Api(apps.api_client)
    pods = core.list_namespaced_pod(PLUGIN_NAMESPACE, label_selector=f"{NODES}=plugin").items
    names = [pod.metadata.name for pod in pods if pod.status.phase == "Running"]
    return "".join(str(core.read_namespaced_pod_log(name, PLUGIN_NAMESPACE)) for name in names)


def test_slow_plugin_is_waited_for_in_the_triggerer(
    pool: EksGpuPool, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_plugin, "_BLOCK_FIRST", timedelta(seconds=1))
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    gpu_sandbox.faults.device_plugin_never_ready = True
    gpu_sandbox.agent.set_device_plugin_ready(False)
    task = plugin(pool)
    context = context_of(task)
    try:
        with pytest.raises(TaskDeferred) as deferral:
            task.execute(context)
    finally:
        gpu_sandbox.faults.device_plugin_never_ready = False
        gpu_sandbox.agent.set_device_plugin_ready(True)
    trigger = copy_of(deferral.value.trigger)
    assert gpu_sandbox.aws.access_key.secret_access_key not in json.dumps(trigger.serialize())
    event = asyncio.run(first_event(trigger))
    assert list(task.resume(context, event)["nodes"].values()) == [1]


def test_a_wait_whose_time_is_over_still_looks_before_it_says_that_there_is_no_node(
    pool: EksGpuPool, gpu_sandbox: Sandbox
) -> None:
    """Its triggerer was away for longer than its timeout."""
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    wait = GpusWait(pool=pool.name, server="nothing", started=long_ago, deadline=long_ago + timedelta(minutes=10))
    progress = asyncio.run(watch_plugin(pool, wait, namespace=PLUGIN_NAMESPACE, report=print))
    assert isinstance(progress.error, GpusNotAllocatable)


def test_a_wait_that_never_hears_of_nodes_is_no_success(
    pool: EksGpuPool, gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_watch, "_FIRST_LOOK", timedelta(seconds=2))
    away = ClusterAccess(server="https://127.0.0.1:1")
    monkeypatch.setattr(plugin_watch, "cluster_access", lambda pool: away)
    now = datetime.now(UTC)
    said: list[str] = []
    wait = GpusWait(pool=pool.name, server="nothing", started=now, deadline=now + timedelta(hours=1))

    def is_told() -> bool:
        """Not while a busy machine takes all its time for the first request."""
        sooner = asyncio.run(watch_plugin(pool, wait, namespace=PLUGIN_NAMESPACE, report=said.append, until=now))
        assert (sooner.done, sooner.error) == (False, None)
        return any("the API server does not answer" in line for line in said)

    eventually(is_told)
    over = replace(wait, deadline=now)
    assert isinstance(
        asyncio.run(watch_plugin(pool, over, namespace=PLUGIN_NAMESPACE, report=print)).error, ClusterUnreachable
    )
