"""Placeholder pods that make an autoscaler add nodes: how many are missing, and which are no longer needed. Pure."""

from __future__ import annotations

from airflow_gpu_provider.cluster.demand import DemandKey
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.supply import Supply
from airflow_gpu_provider.scaling.wanted import leased_pending, live_leases, usable_needed


def placeholder_changes(
    snapshot: PoolSnapshot, machines: tuple[Supply, ...]
) -> tuple[dict[DemandKey, int], tuple[Pod, ...]]:
    """Return how many to create, by the demand that they are for, and those to delete.

    One is pending for each node that a warm demand lacks. As soon as its machine exists it is no longer needed: if
    another pod took that node, the autoscaler would add one more for the placeholder.
    """
    warm = [lease for lease in live_leases(snapshot) if lease.warm]
    there = [pod for pod in snapshot.pods if pod.placeholder and not (pod.finished or pod.deleting)]
    runs = {lease.key.hash for lease in warm}
    strays = tuple(pod for pod in there if pod.run not in runs)
    if not warm or not snapshot.pool.is_autoscaled:
        return {}, strays
    waiting = tuple(pod for pod in there if pod.run in runs and pod.node is None)
    short = _short(snapshot, machines, max(usable_needed(snapshot, lease.key) for lease in warm))
    if short > len(waiting):
        return {warm[-1].key: short - len(waiting)}, strays
    return {}, (*strays, *waiting[short:])


def _short(snapshot: PoolSnapshot, machines: tuple[Supply, ...], needed: int) -> int:
    """Return how many nodes are needed that neither exist nor are requested by the runs' own pods."""
    coming = sum(each.counts for each in machines) + leased_pending(snapshot)
    room = snapshot.pool.max_nodes - len(machines)
    return max(0, min(needed - coming, room))
