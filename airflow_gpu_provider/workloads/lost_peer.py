"""A rank that failed because a peer's machine went: the machine's end is the gang's, and no failure of the training.

A spot machine may be gone minutes before Kubernetes says so of its node, and its peers fail on a broken connection
within a second. So the cloud is asked about the machines of the ranks that have not ended well.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from airflow_gpu_provider.cluster.nodes import machine_of
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.cluster.threads import in_parallel
from airflow_gpu_provider.errors import GpuError, PodPreempted
from airflow_gpu_provider.pods.end import end_of
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.workloads.first_failure import of_rank

_log = logging.getLogger(__name__)


def lost_peer(states: Mapping[int, PodState], failed: int, cluster: TaskCluster) -> GpuError | None:
    """Return the preemption of a rank whose machine the cloud has ended; None where no peer of `failed` lost its own.

    Args:
        states: Each rank's pod.
        failed: The rank that has failed by itself, on a machine of its own.
        cluster: Where they run.
    """

    def preempted(rank: int) -> GpuError | None:
        pod = states[rank]
        machine = machine_of(cluster.api, pod.node) if pod.node else ""
        end = cluster.hook.platform.machine_end(machine) if machine else None
        if end is None:
            return None
        what = f"Pod {pod.name} was taken away before it had finished: its machine {machine} ended ({end.why})."
        fix = "Retry the task: the next try waits for new capacity."
        return of_rank(PodPreempted(what, fix, pod=pod.name, node=pod.node, machine=machine), rank)

    try:
        found = in_parallel(
            preempted, [rank for rank in sorted(states) if rank != failed and not _is_well(states[rank])]
        )
    except GpuError as error:
        _log.warning("What became of the other ranks' machines is not known: %s", error)
        return None
    return next((error for error in found if error is not None), None)


def _is_well(pod: PodState) -> bool:
    end = end_of(pod)
    return end is not None and end.error is None
