"""GPU pools for Airflow: scale up from zero, run the CUDA training pod, scale back to zero.

The public names, each imported when it is first used: a DAG file that imports a spec does not load a cloud SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_gpu_provider.block import gpu_nodes
    from airflow_gpu_provider.clouds.aws.pool import EksGpuPool
    from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
    from airflow_gpu_provider.clouds.kubernetes.pool import KubernetesGpuPool
    from airflow_gpu_provider.operators.delete import DeleteGpuPoolOperator
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.operators.extend import ExtendGpuPoolOperator
    from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
    from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
    from airflow_gpu_provider.operators.install_cluster_autoscaler import InstallClusterAutoscalerOperator
    from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
    from airflow_gpu_provider.operators.reap import ReapGpuPoolsOperator
    from airflow_gpu_provider.operators.reports import GpuPoolDoctorOperator, GpuPoolStatusOperator
    from airflow_gpu_provider.pools.workload_placement import placement
    from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor

__version__ = "0.1.0"

_NAMES = {
    "DeleteGpuPoolOperator": "operators.delete",
    "EksGpuPool": "clouds.aws.pool",
    "EnsureGpuPoolOperator": "operators.ensure",
    "ExtendGpuPoolOperator": "operators.extend",
    "GkeGpuPool": "clouds.google.pool",
    "GpuPodOperator": "operators.gpu_pod",
    "GpuPoolDoctorOperator": "operators.reports",
    "GpuPoolStatusOperator": "operators.reports",
    "GpuWorkloadOperator": "operators.gpu_workload",
    "InstallClusterAutoscalerOperator": "operators.install_cluster_autoscaler",
    "InstallDevicePluginOperator": "operators.install_device_plugin",
    "KubernetesGpuPool": "clouds.kubernetes.pool",
    "ReapGpuPoolsOperator": "operators.reap",
    "ScaleDownSensor": "sensors.scale_down",
    "gpu_nodes": "block",
    "placement": "pools.workload_placement",
}

__all__ = [
    "DeleteGpuPoolOperator",
    "EksGpuPool",
    "EnsureGpuPoolOperator",
    "ExtendGpuPoolOperator",
    "GkeGpuPool",
    "GpuPodOperator",
    "GpuPoolDoctorOperator",
    "GpuPoolStatusOperator",
    "GpuWorkloadOperator",
    "InstallClusterAutoscalerOperator",
    "InstallDevicePluginOperator",
    "KubernetesGpuPool",
    "ReapGpuPoolsOperator",
    "ScaleDownSensor",
    "gpu_nodes",
    "placement",
]


def __getattr__(name: str) -> Any:
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
