"""What is read of a pod that has ended, before it is let go: how it ended, all things considered, and its result."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from kubernetes.client import V1Pod

from airflow_gpu_provider.cluster.nodes import is_node_there, machine_of
from airflow_gpu_provider.cluster.pod_state import PodState
from airflow_gpu_provider.errors import BadGpu, GpuError, PodFailed, PodPreempted
from airflow_gpu_provider.pods.diagnosis import diagnosed
from airflow_gpu_provider.pods.end import end_of
from airflow_gpu_provider.pods.machine import PodMachine
from airflow_gpu_provider.pods.result import invalid, parsed, unread
from airflow_gpu_provider.pods.task_cluster import TaskCluster
from airflow_gpu_provider.pods.task_log import last_lines
from airflow_gpu_provider.pods.verdict import Watched

_log = logging.getLogger(__name__)


def explained(error: GpuError | None, watched: Watched, pod: V1Pod | None, cluster: TaskCluster) -> GpuError | None:
    """Return how a pod ended: by its own account (`error`), and by its machine, its last lines and its node.

    A node whose GPU turns out to be broken is marked.
    """
    if error is None and watched.result:
        return None  # it was written before the container ended, and its machine has answered after that
    node = (pod.spec.node_name if pod is not None else "") or ""
    machine = PodMachine(
        watched.machine, cluster.pool, lambda: cluster.hook.platform, lambda node: machine_of(cluster.api, node)
    )
    error = machine.judged(error, pod=watched.name, node=node)
    if type(error) is not PodFailed or pod is None:
        return error
    lines = last_lines(cluster.client, pod, error.details.get("container") or cluster.base_container)
    bad_gpu = cluster.gpu_health.of_node(node)
    cause = diagnosed(error, lines, pool=cluster.pool, node=node, bad_gpu=bad_gpu)
    if isinstance(cause, BadGpu):
        cluster.gpu_health.mark(node, cause.what)
    return cause


def result_of_gone(watched: Watched) -> Any:
    """Return the result of a pod that ended well and is gone.

    Raises:
        GpuError: It was not read in time, or is no JSON.
    """
    if watched.result is None:
        raise unread(None, LookupError(watched.name), pod=watched.name, node_is_there=True)
    return parsed(watched.result, pod=watched.name)


def read_result(
    pod: V1Pod,
    state: PodState,
    error: GpuError | None,
    watched: Watched,
    *,
    cluster: TaskCluster,
    extract: Callable[[V1Pod], Any],
) -> tuple[Any, GpuError | None]:
    """Return the pod's result, and how it ended; that of a failed pod is a bonus, of a good one it is owed.

    Where the wait has not read it, `extract` does, and ends the container that keeps it.

    Raises:
        GpuError: The result is there, and could not be read; it may be read later.
    """
    if isinstance(error, PodPreempted) or end_of(state) is None:
        return None, error
    try:
        if watched.result is not None:
            _end_sidecar(pod, cluster)
            return parsed(watched.result, pod=watched.name), error
        return _extracted(pod, cluster, extract), error
    except GpuError as missing:
        if error is not None:
            _log.info("The failed pod's result is left out: %s", missing.what)
            return None, error
        if isinstance(missing, PodFailed):
            return None, explained(missing, watched, pod, cluster)
        raise


def _extracted(pod: V1Pod, cluster: TaskCluster, extract: Callable[[V1Pod], Any]) -> Any:
    name = pod.metadata.name
    try:
        return extract(pod)
    except json.JSONDecodeError as error:
        raise invalid(error.doc, error, pod=name) from None
    except Exception as error:
        # Of exec, every library below raises what it likes: the pod says what it means.
        now = cluster.pods.read(name, pod.metadata.namespace, uid=pod.metadata.uid)
        state = cluster.state(now) if now is not None else None
        is_there = is_node_there(cluster.api, pod.spec.node_name)
        raise unread(state, error, pod=name, node_is_there=is_there) from error


def _end_sidecar(pod: V1Pod, cluster: TaskCluster) -> None:
    """End the container that keeps the result: it ignores SIGTERM, and would keep the node for the grace period."""
    try:
        cluster.manager.extract_xcom_kill(pod)
    except Exception as error:  # noqa: BLE001 - exec's libraries raise what they like
        _log.warning("The XCom sidecar of pod %s runs on: %r", pod.metadata.name, error)
