"""GPUs: allocatable only with a device plugin, counted, named in the container, shown by nvidia-smi."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client

from gpu_sandbox.nodes import NodeAgent, NodeSpec
from sandbox.tests.process_nodes.conftest import PLUGIN, Cluster


def gpus(core: client.CoreV1Api, node: str) -> tuple[str | None, str | None]:
    """(capacity, allocatable) of a node."""
    status = core.read_node(node).status
    return status.capacity.get("nvidia.com/gpu"), status.allocatable.get("nvidia.com/gpu")


def wait_gpus(core: client.CoreV1Api, node: str, wanted: tuple[str | None, str | None]) -> None:
    deadline = time.monotonic() + 120
    while gpus(core, node) != wanted:
        assert time.monotonic() < deadline, f"{node} has {gpus(core, node)}, not {wanted}"
        time.sleep(0.02)


@pytest.fixture
def gpu_node(agent: NodeAgent) -> Iterator[Callable[..., str]]:
    """Adds nodes that go again."""
    added: list[str] = []

    def add(name: str, **fields: Any) -> str:
        agent.add_node(NodeSpec(name=name, labels={"role": name}, **{"gpus": 2, "cpus": 16, **fields}))
        added.append(name)
        return name

    yield add
    for name in added:
        agent.remove_node(name)


def test_gpus_come_and_go_with_the_device_plugin(cluster: Cluster, gpu_node: Callable[..., str]) -> None:
    node = gpu_node("with-plugin")
    assert gpus(cluster.core, node) == (None, None)
    plugin = cluster.pod(image=PLUGIN, node=node)
    wait_gpus(cluster.core, node, ("2", "2"))
    assert "Registered device plugin for 'nvidia.com/gpu' with Kubelet" in cluster.logs(plugin)
    cluster.delete(plugin)
    wait_gpus(cluster.core, node, ("2", "0"))


def test_a_node_whose_image_brings_the_plugin(cluster: Cluster, gpu_node: Callable[..., str]) -> None:
    node = gpu_node("bottlerocket", device_plugin_builtin=True)
    assert gpus(cluster.core, node) == ("2", "2")


def test_a_plugin_that_never_becomes_ready(cluster: Cluster, gpu_node: Callable[..., str], agent: NodeAgent) -> None:
    node = gpu_node("unlucky")
    agent.set_device_plugin_ready(False)
    try:
        plugin = cluster.pod(image=PLUGIN, node=node)
        cluster.wait(plugin, "Running")
        cluster.until(plugin, lambda _: "Failed to initialize NVML" in cluster.logs(plugin))
        assert gpus(cluster.core, node) == (None, None)
    finally:
        agent.set_device_plugin_ready(True)
    wait_gpus(cluster.core, node, ("2", "2"))


def test_a_plugin_on_a_node_without_gpus(cluster: Cluster) -> None:
    failing = cluster.pod(image=PLUGIN, restartPolicy="Always")
    cluster.waiting(failing, "CrashLoopBackOff")
    assert "Failed to initialize NVML" in cluster.logs(failing, previous=True)
    idle = cluster.pod(image=PLUGIN, env=[{"name": "FAIL_ON_INIT_ERROR", "value": "false"}])
    cluster.wait(idle, "Running")
    cluster.until(idle, lambda _: "No devices found. Waiting indefinitely." in cluster.logs(idle))


def test_each_container_gets_gpus_of_its_own(cluster: Cluster, gpu_node: Callable[..., str]) -> None:
    node = gpu_node("shared", device_plugin_builtin=True, gpu_product="NVIDIA-L4", gpu_memory_mib=23034)
    script = "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L; trap 'exit 0' TERM; while :; do sleep 0.1; done"
    names = [cluster.sh(script, gpus=1, node=node) for _ in range(2)]
    for name in names:
        cluster.until(name, lambda _, name=name: "UUID" in _logs_or_nothing(cluster, name))
    indices = {cluster.logs(name).splitlines()[0] for name in names}
    cards = {cluster.logs(name).splitlines()[1] for name in names}
    assert indices == {"0", "1"}
    assert len(cards) == 2
    assert all(card.startswith("GPU 0: NVIDIA L4 (UUID: GPU-") for card in cards)
    third = cluster.sh("true", gpus=1, node=node)
    time.sleep(0.5)
    assert cluster.read(third).spec.node_name is None
    cluster.delete(names[0])
    cluster.wait(third, "Succeeded")


def _logs_or_nothing(cluster: Cluster, name: str) -> str:
    return cluster.logs(name) if cluster.read(name).status.phase == "Running" else ""


def test_nvidia_smi(cluster: Cluster, gpu_node: Callable[..., str]) -> None:
    node = gpu_node("smi", device_plugin_builtin=True)
    query = "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader"
    assert cluster.output(query, gpus=2, node=node) == "NVIDIA L4, 23034 MiB\nNVIDIA L4, 23034 MiB\n"
    table = cluster.output("nvidia-smi", gpus=1, node=node)
    assert "NVIDIA L4" in table
    assert "Driver Version" in table


def test_who_asks_for_no_gpu(cluster: Cluster, gpu_node: Callable[..., str]) -> None:
    node = gpu_node("asking", device_plugin_builtin=True)
    quiet = "echo ${NVIDIA_VISIBLE_DEVICES:-unset}; command -v nvidia-smi || echo no smi"
    assert cluster.output(quiet, node=node) == "unset\nno smi\n"
    everything = cluster.output("nvidia-smi -L | wc -l", node=node, image="nvidia/cuda:13")
    assert everything == "2\n"
    one = cluster.output("nvidia-smi -L | wc -l", node=node, image="nvidia/cuda:13", gpus=1)
    assert one == "1\n"


def test_more_gpus_than_there_are(cluster: Cluster, gpu_node: Callable[..., str]) -> None:
    node = gpu_node("full", device_plugin_builtin=True)
    holder = cluster.sh("trap 'exit 0' TERM; while :; do sleep 0.1; done", gpus=2, node=node)
    cluster.wait(holder, "Running")
    late = cluster.sh("true", gpus=1, node="", nodeName=node)
    pod = cluster.wait(late, "Failed")
    assert pod.status.reason == "UnexpectedAdmissionError"
    assert pod.status.message == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 1, Available: 0, which is unexpected"
    )


def test_more_cpu_than_there_is(cluster: Cluster, gpu_node: Callable[..., str]) -> None:
    node = gpu_node("small", cpus=2)
    name = cluster.pod("true", node="", nodeName=node, resources={"requests": {"cpu": "3"}})
    pod = cluster.wait(name, "Failed")
    assert pod.status.reason == "OutOfcpu"
    wanted = "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"
    assert pod.status.message == f"Pod was rejected: {wanted}"
