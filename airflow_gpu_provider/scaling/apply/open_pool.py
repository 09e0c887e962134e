"""open_pool: a pool's platform and cluster, connected, behind one Reconciler."""

from __future__ import annotations

from airflow_gpu_provider.platforms.base import Report, platform_for
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler


def open_pool(pool: GpuPool, *, owner: str, holder: str, report: Report) -> Reconciler:
    """Connect to a (rendered) pool.

    Args:
        pool: The spec.
        owner: The writer of the groups' spec, "<installation>/<dag>"; a different spec by another is a PoolDrift.
        holder: The holder that the pool's lock names.
        report: Takes lines for the task's log.

    Raises:
        ConnectionNotFound, CredentialsError: The pool's Airflow connection is missing or holds no credentials.
        ClusterNotFound: There is no such cluster.
    """
    platform = platform_for(pool, owner=owner)
    return Reconciler(pool, platform, platform.cluster_access().api_client(), holder=holder, report=report)
