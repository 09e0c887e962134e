"""The rest of all ranks' logs: what was not followed while they ran, read before their Job is deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import TaskLog
from airflow_gpu_provider.scaling.setbacks import Setbacks
from airflow_gpu_provider.workloads.logs import shown_as


def write_rest(
    log: TaskLog,
    pods: Mapping[int, tuple[V1Pod, PodState]],
    error: GpuError | None,
    *,
    ranks: Sequence[int] | None,
    cluster: TaskCluster,
    setbacks: Setbacks,
) -> None:
    """Write what was not followed of each rank's log, as TaskLog.write_rest does for one pod.

    Args:
        log: The task's; how far it is written is kept by the names of the pods.
        pods: Each rank's pod, as it is now.
        error: How the gang ended; what its rank's own log may lack for that is left out.
        ranks: Whose logs are wanted; None for all.
        cluster: Where they run.
        setbacks: As TaskLog.write_rest has them.

    Raises:
        GpuError: A log may be read later.
    """
    positions = dict(log.followed.get("positions") or {})
    may_repeat = log.followed.get("may_repeat")
    for rank, (pod, state) in sorted(pods.items()):
        if ranks is not None and rank not in ranks:
            continue
        name = pod.metadata.name
        own = replace(
            log,
            shown_as=partial(shown_as, rank=rank, base=cluster.base_container),
            followed={"positions": positions.get(name) or {}, "may_repeat": may_repeat},
        )
        is_failed_one = error is not None and error.details.get("rank") == rank
        try:
            own.write_rest(pod, state, error if is_failed_one else None, api=cluster.api, setbacks=setbacks)
        finally:
            positions[name] = own.followed.get("positions") or {}
            log.followed = {**log.followed, "positions": positions}
    log.followed = {"positions": positions, "may_repeat": False}
