"""The device plugin's DaemonSet, and the wait for its GPUs in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider.addons.device_plugin import DevicePlugin
from airflow_gpu_provider.addons.plugin_watch import GpusWait, PluginSnapshot, has_failed
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.cluster.model.pod_state import ContainerState, PodState
from airflow_gpu_provider.errors import GpusNotAllocatable, PoolSpecError
from tests.unit.training.test_pod_end import START, pod, running, waiting
from tests.unit.training.test_pod_placement import a_pool

WAIT = GpusWait(pool="train-gpu", server="ours", started=START, deadline=START + timedelta(minutes=10))
NODE = Node(name="n1", machine="i-1", ready=True, gpus=0, created_at=START)


def pod_spec(**plugin: Any) -> dict[str, Any]:
    manifest = DevicePlugin(**({"pool": a_pool()} | plugin)).manifest()
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return spec


def environment(**plugin: Any) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in pod_spec(**plugin)["containers"][0]["env"]}


def test_each_pool_has_its_own() -> None:
    names = {DevicePlugin(pool=a_pool(name=name)).manifest()["metadata"]["name"] for name in ("a", "b")}
    assert names == {"nvidia-device-plugin-a", "nvidia-device-plugin-b"}


def test_it_runs_on_the_pools_nodes_and_on_no_others() -> None:
    spec = pod_spec(pool=a_pool(taints=["nvidia.com/gpu=true:NoSchedule", "team=vision:NoExecute"]))
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {
        "matchExpressions": [{"key": "airflow-gpu-provider/pool", "operator": "In", "values": ["train-gpu"]}]
    }
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert {"key": "team", "operator": "Equal", "value": "vision", "effect": "NoExecute"} in spec["tolerations"]
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["volumes"][0]["hostPath"] == {"path": "/var/lib/kubelet/device-plugins"}


def test_selector_is_part_of_the_labels_and_never_changes_with_options() -> None:
    plain, other = (DevicePlugin(pool=a_pool(), options=o).manifest()["spec"] for o in ({}, {"A": "1"}))
    assert plain["selector"] == other["selector"]
    assert plain["selector"]["matchLabels"].items() <= plain["template"]["metadata"]["labels"].items()


def test_options() -> None:
    assert environment() == {"FAIL_ON_INIT_ERROR": "true"}
    assert environment(options={"FAIL_ON_INIT_ERROR": "false", "DP_DISABLE_HEALTHCHECKS": "xids"}) == {
        "FAIL_ON_INIT_ERROR": "false",
        "DP_DISABLE_HEALTHCHECKS": "xids",
    }
    with pytest.raises(PoolSpecError, match="FAIL_ON_INIT_ERROR=False"):
        environment(options={"FAIL_ON_INIT_ERROR": False})


@pytest.mark.parametrize(
    ("fields", "needs_it"),
    [
        ({"options": {"MIG_STRATEGY": "mixed"}}, True),
        ({"options": {"MIG_STRATEGY": "single"}}, True),
        ({"options": {"DEVICE_LIST_STRATEGY": "volume-mounts"}}, True),
        ({"config": {"flags": {"migStrategy": "mixed"}}}, True),
        ({"config": {"flags": {"plugin": {"deviceListStrategy": ["envvar", "volume-mounts"]}}}}, True),
        ({"options": {"MIG_STRATEGY": "none"}, "config": {"flags": {"migStrategy": "mixed"}}}, False),
        ({"options": {"DEVICE_LIST_STRATEGY": "envvar"}}, False),
        ({}, False),
    ],
)
def test_it_has_the_capability_without_which_it_would_end_and_else_none(fields: dict[str, Any], needs_it: bool) -> None:
    """NVIDIA's chart, v0.20.0, _helpers.tpl."""
    (container,) = pod_spec(**{"pool": a_pool(), **fields})["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], **({"add": ["SYS_ADMIN"]} if needs_it else {})}
    assert ("allowPrivilegeEscalation" in context) != needs_it, "the API server takes not both"
    monitor = {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}
    assert (monitor in container["env"]) == needs_it


SLICED = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}


def test_a_config_comes_by_a_config_map_and_restarts_the_plugin_when_it_changes() -> None:
    config_map, daemon_set = DevicePlugin(pool=a_pool(), config=SLICED).manifests()
    assert json.loads(config_map["data"]["config.yaml"]) == {"version": "v1", **SLICED}
    template = daemon_set["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert {"name": "CONFIG_FILE", "value": "/config/config.yaml"} in container["env"]
    assert {"name": "config", "configMap": {"name": config_map["metadata"]["name"]}} in template["spec"]["volumes"]
    assert "/config" in [mount["mountPath"] for mount in container["volumeMounts"]]
    other = DevicePlugin(pool=a_pool(), config={**SLICED, "flags": {"migStrategy": "single"}}).manifest()
    assert other["spec"]["template"]["metadata"]["annotations"] != template["metadata"]["annotations"]
    assert [each["kind"] for each in DevicePlugin(pool=a_pool()).manifests()] == ["DaemonSet"]


@pytest.mark.parametrize(
    ("sharing", "says"),
    [
        ({"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}, "by MPS"),
        ({"timeSlicing": {"renameByDefault": True}}, "renames shared GPUs"),
        ({"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "rename": "gpu.shared"}]}}, "renames shared GPUs"),
    ],
)
def test_a_config_by_which_pods_would_not_get_their_gpus_is_refused(sharing: dict[str, Any], says: str) -> None:
    with pytest.raises(PoolSpecError, match=says):
        DevicePlugin(pool=a_pool(), config={"sharing": sharing}).manifests()


def test_image_and_resources() -> None:
    assert pod_spec()["containers"][0]["image"].startswith("nvcr.io/nvidia/k8s-device-plugin:v0.20.0@sha256:")
    assert pod_spec(version="v0.19.0")["containers"][0]["image"].endswith(":v0.19.0")
    assert pod_spec(image="mirror/plugin:1")["containers"][0]["image"] == "mirror/plugin:1"
    assert pod_spec(resources={"limits": {"memory": "100Mi"}})["containers"][0]["resources"] == {
        "limits": {"memory": "100Mi"}
    }


# -- the wait ----------------------------------------------------------------------------------------------------


def snapshot(*nodes: Node, **pods: PodState) -> PluginSnapshot:
    return PluginSnapshot(nodes=nodes, pods=pods)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_no_node_is_nothing_to_wait_for() -> None:
    progress = WAIT.step(snapshot(), at(0))
    assert progress.done
    assert progress.result == {"nodes": {}, "timeline": []}


def test_every_node_is_waited_for() -> None:
    ready = replace(NODE, name="n2", gpus=4)
    assert not WAIT.step(snapshot(NODE, ready), at(1)).done
    progress = WAIT.step(snapshot(replace(NODE, gpus=1), ready), at(7))
    began = START.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    phases = [{"phase": "GPUs allocatable", "at": began, "seconds": 7.0}]
    assert progress.result == {"nodes": {"n1": 1, "n2": 4}, "timeline": phases}


def test_nodes_on_their_way_out_are_not_waited_for() -> None:
    gone_soon = ({"cordoned": True}, {"autoscaler_deleting": True}, {"leaving": "Karpenter disrupts it"})
    assert WAIT.step(snapshot(*(replace(NODE, **fields) for fields in gone_soon)), at(1)).done


def restarted(exit_code: int) -> PodState:
    seen = pod(running())
    assert seen.base is not None
    before = ContainerState(name="train", status="terminated", exit_code=exit_code)
    return replace(seen, base=replace(seen.base, before=before))


RESTARTED = restarted(1)


@pytest.mark.parametrize(
    ("plugin_pod", "failed"),
    [
        (pod(running()), False),
        (restarted(0), False),
        (RESTARTED, True),
        (pod(waiting("CrashLoopBackOff")), True),
        (pod(waiting("ContainerCreating")), False),
    ],
)
def test_one_that_ends_with_an_error_has_failed_also_while_it_is_started_again(
    plugin_pod: PodState, failed: bool
) -> None:
    assert has_failed(plugin_pod) == failed


@given(seconds=st.floats(0, 2000))
def test_late(seconds: float) -> None:
    error = WAIT.step(snapshot(NODE), at(seconds)).error
    assert (type(error) is GpusNotAllocatable) == (seconds >= 600)


@pytest.mark.parametrize(
    ("plugin_pod", "words"),
    [
        (None, "served by ours"),
        (pod(running()), "plugin pod train-x is running and has not registered any GPU"),
        (RESTARTED, "plugin pod train-x is running again, after exit code 1, and has not registered any GPU"),
        (pod(waiting("CrashLoopBackOff", "back-off 5m0s")), "is waiting (CrashLoopBackOff: back-off 5m0s)"),
        (pod(phase="Pending"), "plugin pod train-x is Pending"),
    ],
)
def test_error_names_the_node_and_what_its_plugin_does(plugin_pod: PodState | None, words: str) -> None:
    pods = {"n1": plugin_pod} if plugin_pod else {}
    progress = WAIT.step(snapshot(NODE, **pods), at(600))
    assert "not allocatable on n1 after 10 min 0 s" in str(progress.error)
    assert words in str(progress.error)


def test_record_survives_the_database() -> None:
    assert GpusWait.from_record(json.loads(json.dumps(WAIT.to_record()))) == WAIT
