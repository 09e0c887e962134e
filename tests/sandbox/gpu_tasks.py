"""Tasks of one pod, or of a gang of two, and what a cluster shows of them."""

from __future__ import annotations

from typing import Any

from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from tests.sandbox.running import eventually

FOREVER = ["sh", "-c", "while :; do sleep 0.1; done"]


def pod(pool: EksGpuPool, *cmds: str, **changes: Any) -> GpuPodOperator:
    arguments: dict[str, Any] = {"task_id": "train", "image": "busybox:1.36", "cmds": list(cmds) or ["true"]}
    return GpuPodOperator(gpu_pool=pool, **(arguments | changes))


def gang(pool: EksGpuPool, script: str, **changes: Any) -> GpuPodOperator:
    return pod(pool, "sh", "-c", script, **({"nodes": 2} | changes))


def pods(api: client.CoreV1Api) -> list[client.V1Pod]:
    return [one for one in api.list_namespaced_pod("default").items if not one.metadata.deletion_timestamp]


def running(api: client.CoreV1Api, count: int) -> list[client.V1Pod]:
    """Return the pods that run, where they are so many."""
    pods = [pod for pod in api.list_namespaced_pod("default").items if pod.status.phase == "Running"]
    return pods if len(pods) == count else []


def running_pod(api: client.CoreV1Api) -> client.V1Pod:
    """Return a pod that runs, as soon as one does."""
    return eventually(lambda: next((one for one in pods(api) if one.status.phase == "Running"), None))
