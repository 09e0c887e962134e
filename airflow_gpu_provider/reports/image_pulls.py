"""Images whose pull took long lately, and what would have helped: from the events that a cluster keeps for an hour."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_gpu_provider.cluster.events import ImagePull, PodEvent
from airflow_gpu_provider.cluster.rest import list_items
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.wait.waits import format_seconds
from airflow_gpu_provider.training.wait.slow_pull import WORTH_A_MINUTE, remedies

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


def slow_pulls(api: ApiClient, pool: GpuPool, namespace: str) -> Iterator[tuple[str, str]]:
    """Yield of each image whose pull took a minute the slowest pull, and what would have made it shorter.

    Args:
        api: The cluster.
        pool: The pool to which the advice is fitted.
        namespace: That of its pods.
    """
    path = f"/api/v1/namespaces/{namespace}/events"
    raw = list_items(api, path, resource="events", fieldSelector="reason=Pulled")
    slowest: dict[str, ImagePull] = {}
    for pull in filter(None, (PodEvent.parse(each).pull for each in raw)):
        if pull.seconds >= max(WORTH_A_MINUTE, slowest[pull.image].seconds if pull.image in slowest else 0.0):
            slowest[pull.image] = pull
    for pull in slowest.values():
        took = format_seconds(timedelta(seconds=pull.seconds))
        fix = f"What helps: {'; '.join(remedies(pool))} (docs/fast-start.md)."
        yield f"in the last hour a pull of {pull.image} took {took}", fix
