"""When a gang's pods ran, written down for the bill of their run before they are deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from airflow_gpu_provider.cluster.pod_state import Json
from airflow_gpu_provider.cluster.pods import Pod
from airflow_gpu_provider.cluster.usage import record_pods
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.pods.task_cluster import TaskCluster

_log = logging.getLogger(__name__)


def note_use(pods: Iterable[Json], cluster: TaskCluster) -> None:
    """Write it down; a bill that is too low is no reason for a task to fail."""
    try:
        record_pods(cluster.api, [Pod.parse(dict(pod)) for pod in pods], cluster.clock.now())
    except (GpuError, ApiException, HTTPError) as error:
        _log.warning("When the gang ran could not be written down for the run's bill: %s", error)
