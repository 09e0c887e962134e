"""Whole nights with the real Karpenter, by the tasks of a `gpu_nodes` block: from no node to no node."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import DAG

from airflow_gpu_provider import GpuPodOperator, KubernetesGpuPool, gpu_nodes
from gpu_sandbox.karpenter import MachineCloud
from tests.karpenter.cluster import Cluster
from tests.karpenter.nights import SMI, told
from tests.sandbox.running import context_of, run
from tests.sandbox.ways import BOTH_WAYS


def one_night(pool: KubernetesGpuPool, *, deferrable: bool) -> dict[str, Any]:
    """Run the block's tasks in order, as workers and a triggerer would; return their results."""
    with (
        DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1), default_args={"deferrable": deferrable}) as dag,
        gpu_nodes(pool, gpus=1),
    ):
        GpuPodOperator(task_id="train", gpus=1, image="busybox:1.36", cmds=[*SMI])
    tasks = [task for task in dag.topological_sort() if not task.task_id.endswith(".done")]
    night = {task.task_id: run(task, context_of(task, run_id=pool.name)) for task in tasks}
    return {name.removeprefix(f"{pool.name}."): result for name, result in night.items()}


@BOTH_WAYS
def test_a_night_from_nothing_to_nothing(cluster: Cluster, cloud: MachineCloud, deferrable: bool) -> None:
    cloud.brings_plugin = False  # InstallDevicePluginOperator does
    name = f"night-{deferrable}".lower()
    pool = cluster.node_pool(name)
    with told() as lines:
        results = one_night(pool, deferrable=deferrable)
    assert results["ensure"]["nodes"] == []
    assert results["device_plugin"]["change"] == "created"
    assert results["scale_down"] == {**results["scale_down"], "nodes": 0, "desired": 0, "kept": []}
    assert results["scale_down"]["usage"]["machines"] == 1
    assert not cluster.claims(name)
    assert not cluster.nodes(name)
    assert lines.matching("Karpenter has asked for a machine for it: nodeclaim/")
    assert lines.matching("waiting for Karpenter to remove it, no run wants it")
