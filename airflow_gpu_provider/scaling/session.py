"""open_pool: a pool's platform and cluster, connected, behind one Reconciler."""

from __future__ import annotations

from airflow_gpu_provider.platforms.base import Say, platform_for
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.reconcile import Reconciler


def open_pool(pool: GpuPool, *, owner: str, holder: str, say: Say) -> Reconciler:
    """Connect to a (rendered) pool.

    Args:
        pool: The spec.
        owner: Who writes the groups' spec, "<installation>/<dag>"; another writer's difference is a PoolDrift.
        holder: What the pool's lock says of its holder.
        say: Takes lines for the task's log.

    Raises:
        ConnectionNotFound, CredentialsError: The pool's Airflow connection is missing or holds no credentials.
        ClusterNotFound: There is no such cluster.
    """
    platform = platform_for(pool, owner=owner)
    return Reconciler(pool, platform, platform.cluster_access().api_client(), holder=holder, say=say)
