"""What EnsureGpuPoolOperator looks after for a block's trainings besides nodes: their namespaces and their images.

A namespace that is not there is told before a node costs anything. Images that nodes do not prefetch, trainings pull.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuError, PoolSpecError
from airflow_gpu_provider.operators.node_counts import tasks_after, value_of
from airflow_gpu_provider.pools.values import is_dns_subdomain, is_template

if TYPE_CHECKING:
    from airflow.sdk import Context
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.cluster.demand_key import DemandKey
    from airflow_gpu_provider.cluster.pod_state import Json
    from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
    from airflow_gpu_provider.platforms.base import Report
    from airflow_gpu_provider.scaling.apply.reconcile import Reconciler


_OWN = ("EnsureGpuPoolOperator", "InstallDevicePluginOperator")


def check_namespaces(ensure: Any, api: ApiClient, report: Report) -> None:
    """Check the namespaces that the DAG file gives to the tasks that are to run on Ensure's nodes.

    A task of the author's that comes before such a task may create its namespace: then what is missing is only said.

    Raises:
        ReferenceNotFound, NamespaceTerminating, PermissionDenied: See `check_namespace`.
    """
    from airflow_gpu_provider.cluster.access_review import check_namespace

    warned = set[str]()
    for task, namespace in _named(ensure):
        try:
            check_namespace(api, namespace, creates_pods=_creates_a_pod(task))
        except GpuError as error:
            if _is_first(task):
                raise
            if namespace not in warned:
                warned.add(namespace)
                report(f"task {task.task_id} is going to run in namespace {namespace}, and now could not: {error}")


def _named(ensure: Any) -> Iterator[tuple[Any, str]]:
    # In one order: the first that is not there is the error, in each try the same.
    for task in sorted(tasks_after(ensure), key=lambda task: str(task.task_id)):
        manifest = value_of(task, "manifest")
        meta = manifest.get("metadata") if isinstance(manifest, Mapping) else None
        given = value_of(task, "namespace") or (meta.get("namespace") if isinstance(meta, Mapping) else None)
        if isinstance(given, str) and not is_template(given):
            yield task, given


def _creates_a_pod(task: Any) -> bool:
    return value_of(task, "manifest") is None and value_of(task, "nodes") in (None, 1)


def _is_first(task: Any) -> bool:
    """Whether nothing of the author's comes before it."""
    return all(each.task_type in _OWN for each in task.upstream_list)


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
