"""What EnsureGpuPoolOperator does about the images that its nodes are to pull. Without it, the trainings pull them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuError, PoolSpecError
from airflow_gpu_provider.pools.values import is_dns_subdomain, is_template

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_gpu_provider.cluster.demand_key import DemandKey
    from airflow_gpu_provider.cluster.pod_state import Json
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler


_EXAMPLES = {"prefetch": "registry.example.com/train:1", "prefetch_secrets": "regcred"}

# The grammar of github.com/distribution/reference: [host[:port]/]path[:tag][@digest].
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][\w+.-]*:[0-9A-Fa-f]{{32,}})?", re.ASCII
)
_NAMES: Mapping[str, Callable[[str], object]] = {"prefetch": _REFERENCE.fullmatch, "prefetch_secrets": is_dns_subdomain}


def check_names(**arguments: Any) -> None:
    """Raise PoolSpecError if one of the arguments is not a list of names: images' references, or Secrets' names."""
    for argument, names in arguments.items():
        like = f'like ["{_EXAMPLES[argument]}"]'
        if isinstance(names, list | tuple) and all(isinstance(each, str) and each for each in names):
            if wrong := [each for each in names if not is_template(each) and not _NAMES[argument](each)]:
                what = "image's reference" if argument == "prefetch" else "Secret's name"
                raise PoolSpecError(f"{argument} has {wrong[0]!r}, which is no {what}.", f"Write them {like}.")
        elif not is_template(names):
            raise PoolSpecError(f"{argument}={names!r}.", f"It is a list of names, {like}.")


def begin_prefetch(ensure: EnsureGpuPoolOperator, reconciler: Reconciler, key: DemandKey) -> None:
    """Have the nodes pull the images as they join, once their demand is written; it fails nothing."""
    from airflow_gpu_provider.addons.prefetch import prefetch

    if not ensure.prefetch:
        return
    try:
        check_names(prefetch=ensure.prefetch, prefetch_secrets=ensure.prefetch_secrets)  # as they are rendered
        prefetch(reconciler.api, ensure.gpu_pool, key, ensure.prefetch, ensure.prefetch_secrets)
    except GpuError as error:
        ensure.log.warning("No image is pulled before the trainings do so: %s", error)
    else:
        ensure.log.info("The nodes pull %s as soon as they join.", ", ".join(ensure.prefetch))


def prefetched(
    ensure: EnsureGpuPoolOperator,
    opened: Callable[[], Reconciler],
    result: Mapping[str, Any],
    context: Context,
) -> list[Json]:
    """Return the pulls that are over as phases of the timeline, which overlap the others; say which are not.

    Those that an earlier try has waited beside are not among them.
    """
    from airflow_gpu_provider.addons.prefetch import pulls
    from airflow_gpu_provider.tasks.run_identity import run_key

    if not ensure.prefetch:
        return []
    key = run_key(context, ensure.gpu_pool.name, ensure.block_id)
    try:
        phases, left = pulls(opened().api, key, [node["name"] for node in result["nodes"]])
    except GpuError as error:
        ensure.log.warning("How far the images are pulled is not known: %s", error)
        return []
    for image in left:
        ensure.log.info("image %s is still being pulled, beside what comes next", image)
    since = min((each["at"] for each in result["timeline"]), default="")
    return [each for each in phases if each["at"] >= since]
