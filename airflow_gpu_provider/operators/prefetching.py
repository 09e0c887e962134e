"""The images that a pool's nodes pull as they join, for Ensure: what they do not prefetch, trainings pull."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.operators.ensure_arguments import check_names

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from airflow_gpu_provider.cluster.model.pod_state import Json
    from airflow_gpu_provider.pools.demand_key import DemandKey
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler


def begin_prefetch(
    images: Sequence[str], secrets: Sequence[str], reconciler: Reconciler, key: DemandKey, log: Logger
) -> None:
    """Have the nodes pull the images as they join, once their demand is written; it fails nothing."""
    from airflow_gpu_provider.addons.prefetch import prefetch

    if not images:
        return
    try:
        check_names(prefetch=images, prefetch_secrets=secrets)  # as they are rendered
        prefetch(reconciler.api, reconciler.pool, key, images, secrets)
    except GpuError as error:
        log.warning("No image is pulled before the trainings do so: %s", error)
    else:
        log.info("The nodes pull %s as soon as they join.", ", ".join(images))


def prefetched(opened: Callable[[], Reconciler], key: DemandKey, result: Mapping[str, Any], log: Logger) -> list[Json]:
    """Return the pulls that are over as phases of the timeline, which overlap the others; log which are not.

    Those that an earlier try has waited beside are not among them.
    """
    from airflow_gpu_provider.addons.prefetch import pulls

    try:
        phases, left = pulls(opened().api, key, [node["name"] for node in result["nodes"]])
    except GpuError as error:
        log.warning("How far the images are pulled is not known: %s", error)
        return []
    for image, why in left.items():
        if why:
            log.warning("The nodes cannot pull image %s for prefetch: %s", image, why)
        else:
            log.info("The nodes still pull image %s; the run goes on meanwhile.", image)
    since = min((each["at"] for each in result["timeline"]), default="")
    return [each for each in phases if each["at"] >= since]
