"""What waiting for a gang costs: one deferred GpuPodOperator(nodes=64), beside one for a single pod.

All pods run, and are played. The gang's Job is managed by nobody (spec.managedBy, KEP-4368), so that Kubernetes' Job
controller leaves the played ranks alone.
"""

from __future__ import annotations

from typing import Any

from kubernetes import client

from airflow_gpu_provider.cluster.model.pool_pod import GANG_LABEL, JOB_LABEL, RANK_ANNOTATION
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from benchmarks.figure import Figure
from benchmarks.played_pods import PlayedPods
from benchmarks.waiting_pods import MEASURE_SECONDS, Side, Waiter, requests_in

RANKS = 64
_POOL = "bench-gang"


def measure(api: client.CoreV1Api) -> list[Figure]:
    """Return requests and CPU a minute of a gang's wait, the peer being a single pod's."""
    with PlayedPods(api) as played:
        (pod,) = played.create(1, "running", prefix="single", labels={POOL_LABEL: _POOL})
        one = _cost(api, "ours", {**pod, "pool": _POOL})
        batch = client.BatchV1Api(api.api_client)
        job = _job(batch)
        try:
            played.create(
                RANKS,
                "running",
                prefix=f"{job.metadata.name}-rank",
                labels=_labels(job.metadata.name),
                metadata=lambda rank: _of_job(job, rank),
            )
            gang = {"name": job.metadata.name, "uid": job.metadata.uid, "pool": _POOL, "nodes": str(RANKS)}
            ranks = _cost(api, "gang", gang)
        finally:
            batch.delete_namespaced_job(job.metadata.name, "default", propagation_policy="Background")
    what = f"a gang of {RANKS} running ranks; peer: one running pod of ours"
    return [
        Figure(name=f"API requests a minute, {what}", unit="requests/min", ours=ranks[0], peer=one[0], n=1),
        Figure(name=f"CPU of the triggerer, {what}", unit="CPU s/min", ours=ranks[1], peer=one[1], n=1),
    ]


def _cost(api: client.CoreV1Api, side: Side, waited_for: dict[str, str]) -> tuple[float, float]:
    idle = requests_in(api, MEASURE_SECONDS)
    with Waiter(side, [waited_for]) as waiter:
        waiter.wait_settled()
        before, requests = waiter.sample(), requests_in(api, MEASURE_SECONDS)
        after = waiter.sample()
    if after["ended"]:
        raise RuntimeError(f"the wait of {side} ended before its pods did: {waiter.told[:3]}")
    minutes = MEASURE_SECONDS / 60
    return max(0.0, requests - idle) / minutes, (after["cpu"] - before["cpu"]) / minutes


def _job(batch: client.BatchV1Api) -> Any:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "base", "image": "busybox:1.36"}]}}
    spec = {
        "managedBy": "airflow-gpu-provider.benchmarks/played",
        "completionMode": "Indexed",
        "completions": RANKS,
        "parallelism": RANKS,
        "template": template,
    }
    metadata = {"name": "gang", "labels": {POOL_LABEL: _POOL, GANG_LABEL: str(RANKS)}}
    return batch.create_namespaced_job("default", {"metadata": metadata, "spec": spec})


def _labels(job: str) -> dict[str, str]:
    return {POOL_LABEL: _POOL, GANG_LABEL: str(RANKS), JOB_LABEL: job}


def _of_job(job: Any, rank: int) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.metadata.name, "uid": job.metadata.uid}
    return {"annotations": {RANK_ANNOTATION: str(rank)}, "ownerReferences": [owner]}
