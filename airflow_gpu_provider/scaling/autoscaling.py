"""A pool whose nodes an autoscaler adds: whether it runs, what it reports, and whether it has all the tags it needs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.autoscaler_status import check_running
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.decisions import decide
from airflow_gpu_provider.scaling.snapshot import PoolSnapshot

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

WITHOUT_AUTOSCALER = 'or let this package scale: scaling="direct"'
"""What to do without an autoscaler."""


def check_autoscaler(api: ApiClient, pool: GpuPool, now: datetime) -> None:
    """Check that cluster-autoscaler is alive, if it adds the pool's nodes.

    Raises:
        AutoscalerNotRunning: It has never reported, or not for minutes.
    """
    if not pool.needs_cluster_autoscaler:
        return
    check_running(api, pool.name, now, or_else=WITHOUT_AUTOSCALER)


def groups_are_ready(snapshot: PoolSnapshot) -> bool:
    """Return True if the pool's groups exist, with all the tags that the autoscaler needs, and the switch is set."""
    decision = decide(snapshot)
    is_creating = any(group.status == "creating" for group in snapshot.groups)
    return bool(snapshot.groups) and not (is_creating or decision.update_tags or decision.switch)


def autoscaler_lines(snapshot: PoolSnapshot, since: datetime) -> Iterator[str]:
    """Yield what the autoscaler did since then about the nodes that placeholders request, and what prevents it."""
    for event in snapshot.placeholder_events:
        if event.at >= since.replace(microsecond=0) and event.in_words:
            yield event.in_words
    status = snapshot.autoscaler
    if status is None:
        if snapshot.pool.needs_cluster_autoscaler and any(pod.node is None for pod in snapshot.pods):
            yield "no cluster-autoscaler has ever reported from the cluster: nothing adds nodes"
        return
    if not status.is_fresh(snapshot.now):
        yield f"cluster-autoscaler has not reported since {status.updated_at or 'ever'}: it no longer runs"
    for group in snapshot.groups:
        if group.autoscaler_name in status.backoff:
            yield f"cluster-autoscaler passes over {group.candidate} for now: {status.backoff[group.autoscaler_name]}"
