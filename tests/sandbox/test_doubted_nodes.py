"""A training's own words about its GPU, on nodes that nobody replaces: they move its tries, and take no node away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kubernetes import client, config

from airflow_gpu_provider import GpuPodOperator, KubernetesGpuPool
from airflow_gpu_provider.cluster.api.nodes import list_nodes
from airflow_gpu_provider.cluster.model.node import Node
from airflow_gpu_provider.errors import BadGpu, PodPreempted
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, eventually, lines_of, run

NAMES = ("metal-d", "metal-e")
POOL = KubernetesGpuPool(name="doubted", nodes=[*NAMES], gpus_per_node=1, max_nodes=2, max_runtime=timedelta(hours=1))
XID = ("sh", "-c", "echo 'NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.'; exit 1")


@pytest.fixture
def core(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[client.CoreV1Api]:
    """Airflow's default Kubernetes connection leads to a cluster with two machines of one GPU each."""
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    core = client.CoreV1Api(config.new_client_from_config(str(gpu_sandbox.kubeconfig)))
    for name in NAMES:
        gpu_sandbox.agent.add_node(NodeSpec(name=name, gpus=1))
    eventually(lambda: {*NAMES} <= {node.metadata.name for node in core.list_node().items})
    yield core
    for name in NAMES:
        gpu_sandbox.agent.remove_node(name)


ASKS_TWICE = ("sh", "-c", '[ "$AIRFLOW_GPU_ATTEMPT" = 3 ] || exit 75')


def pod(*command: str, gpu_pool: GpuPool = POOL, **changes: Any) -> GpuPodOperator:
    return GpuPodOperator(task_id="train", gpu_pool=gpu_pool, gpus=1, image="busybox:1.36", cmds=[*command], **changes)


def asking(gpu_pool: GpuPool, **changes: Any) -> GpuPodOperator:
    """A training that asks for another node twice."""
    return pod(*ASKS_TWICE, gpu_pool=gpu_pool, checkpoint="s3://bucket/run", resume_on_exit_codes=75, **changes)


def left(lines: list[str]) -> list[str]:
    """The nodes that its attempts have left."""
    return re.findall(r"another node than (\S+) \(exit code 75\)\. Attempt", "\n".join(lines))


def found(core: client.CoreV1Api) -> dict[str, Node]:
    return {node.name: node for node in list_nodes(core.api_client, POOL.node_selector)}


def test_tries_that_print_an_xid_move_and_mark_no_node_for_others(core: client.CoreV1Api) -> None:
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, nodes=2, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=POOL, deferrable=False))
    used = []
    for number in (1, 2, 3):
        with pytest.raises(BadGpu) as error:
            run(pod(*XID), try_number=number, dag_id="noisy")
        used.append(error.value.details["node"])
        assert all(node.usable for node in found(core).values())
    assert {*used[:2]} == {*NAMES}  # the third try had no other node left
    (free,) = {*NAMES} - {used[-1]}
    core.patch_node(free, {"spec": {"unschedulable": True}})
    with pytest.raises(BadGpu, match=used[-1]):
        run(pod(*XID), dag_id="another")
    core.patch_node(free, {"spec": {"unschedulable": None}})
    bad = found(core)[used[-1]].bad_gpu
    assert "in noisy" in bad
    assert "in another" in bad
    assert found(core)[free].usable
    run(ScaleDownSensor(task_id="zero", gpu_pool=POOL))


def test_a_training_that_asks_for_another_node_gets_one_and_no_others_avoid_what_it_left(
    core: client.CoreV1Api,
) -> None:
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, nodes=2, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=POOL, deferrable=False))
    task = asking(POOL, max_preemptions=2, deferrable=False)
    context = context_of(task, dag_id="asks")
    _, lines = lines_of(lambda: run(task, context))
    assert {*left(lines)} == {*NAMES}  # it ends on one of them: no third one comes
    ends = [phase.get("end") for phase in context["ti"].xcoms["timeline"] if phase["phase"] == "ran"]
    assert ends == ["asked for another node", "asked for another node", None]
    assert all(node.usable and not node.bad_gpu for node in found(core).values())
    with pytest.raises(PodPreempted, match="asked for another node") as error:
        run(asking(POOL, max_preemptions=1, deferrable=False), dag_id="asks again")
    assert error.value.details["exit_code"] == 75
    run(ScaleDownSensor(task_id="zero", gpu_pool=POOL))


def test_a_cloud_brings_the_other_node(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    pool = with_nodes(eks_pool(gpu_sandbox, "asked", max_nodes=1))
    _, lines = lines_of(lambda: run(asking(pool)))
    assert len({*left(lines)}) == 2
    run(ScaleDownSensor(task_id="zero", gpu_pool=pool))
