"""Pools of the shared EKS sandbox, and how their nodes come up."""

from __future__ import annotations

from typing import Any

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import run


def eks_pool(sandbox: Sandbox, name: str, **fields: Any) -> EksGpuPool:
    """Return a pool of one node of one GPU in the first zone; `fields` are what differs from that."""
    spec: dict[str, Any] = {
        "name": name,
        "cluster_name": sandbox.cluster_name,
        "region": sandbox.region,
        "instance_types": ["g6.xlarge"],
        "zones": [sandbox.zones[0]],
        "node_role": sandbox.node_role_arn,
        "max_nodes": 1,
    }
    return EksGpuPool(**(spec | fields))


def with_nodes(pool: EksGpuPool, nodes: int = 1) -> EksGpuPool:
    """Bring the pool's nodes up, with their device plugin."""
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=nodes, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool, deferrable=False))
    return pool
