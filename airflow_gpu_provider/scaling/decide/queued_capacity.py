"""What a gang's ProvisioningRequest says: why its nodes are not there yet, or that they do not come. Pure."""

from __future__ import annotations

from airflow_gpu_provider.cluster.provisioning_requests import ProvisioningRequest
from airflow_gpu_provider.errors import OutOfStock, QuotaExceeded
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.pools.widening import how_to_widen
from airflow_gpu_provider.scaling.decide.shortage import NoCapacity

NO_REQUEST = "its ProvisioningRequest is not there: it was deleted, or is being created"


def not_provisioned(pool: GpuPool, request: ProvisioningRequest) -> NoCapacity | None:
    """Return why a gang has no nodes by its request, as an error; None where it has them.

    A request that is over was terminal: the task's next try makes another.
    """
    if request.is_provisioned:
        return None
    what = f"Pool {pool.name}: {request.in_words}."
    if "quota" in request.reason.lower():
        return QuotaExceeded(what, "Ask the cloud for a higher quota, or want fewer GPUs.", pool=pool.name)
    if request.is_over:
        fix = f"Retry the task: the next try requests its nodes again. {how_to_widen(pool)}, if it fails again."
    else:
        fix = f"{how_to_widen(pool)}, or give it more time with schedule_timeout_seconds."
    return OutOfStock(what, fix, pool=pool.name)
