"""Pools whose nodes come only by ProvisioningRequests, for all pods of a gang at once: what runs there. No I/O.

GKE, "Run a large-scale workload with flex-start with queued provisioning".
"""

from __future__ import annotations

from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.values import Taint

QUEUED_CLASS = "queued-provisioning.gke.io"
QUEUED_TAINT = Taint(key="cloud.google.com/gke-queued", value="true", effect="NoSchedule")
"""GKE adds it to node pools with queued provisioning."""


def provisioning_class(pool: GpuPool) -> str:
    """Return the class of the ProvisioningRequests by which a pool's nodes come; empty where they come otherwise.

    Empty, too, where only a rendered spec says which.
    """
    return QUEUED_CLASS if getattr(pool, "queued_provisioning", False) is True else ""


def check_nodes_come(pool: GpuPool, *, nodes: int, gpus: int, queue: str | None) -> None:
    """Check that a task's pods get nodes where these come only by ProvisioningRequests.

    GKE does not look at anti-affinity between pods when it counts a request's nodes, so each rank has to fill its node.

    Args:
        pool: The pool.
        nodes: How many ranks there are; 1 for what is no gang.
        gpus: GPUs of each pod.
        queue: The Kueue LocalQueue that admits them; there Kueue makes the request.

    Raises:
        PoolSpecError: No request is made for them, or it would bring fewer nodes than there are ranks.
    """
    if not provisioning_class(pool) or queue:
        return
    if nodes < 2:
        raise PoolSpecError(
            f"The nodes of pool {pool.name} come only by ProvisioningRequests (queued_provisioning), which are made for"
            " GpuPodOperator with nodes=2 or more.",
            "Give nodes=, use a pool with flex_start alone, or give queue_name=, a queue of Kueue that makes requests.",
            pool=pool.name,
        )
    offered = {size.gpus for size in pool.node_sizes.values() if size is not None and size.gpus}
    if others := sorted(offered - {gpus}):
        raise PoolSpecError(
            f"gpus={gpus}, but nodes of pool {pool.name} have {others[-1]}: with queued_provisioning each rank takes a"
            " whole one.",
            f"Give gpus={others[-1]}, and the pool machine types with as many each.",
            pool=pool.name,
        )
