"""Whether the trainings after an Ensure can run in the namespaces that the DAG file gives them.

A namespace that is not there is an error before a node costs anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.operators.tasks_after_ensure import trainings_after
from airflow_gpu_provider.operators.training_code import namespace_given
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.block_tasks import value_of
from airflow_gpu_provider.tasks.roles import role_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from airflow_gpu_provider.clouds.base import Report


def check_namespaces(ensure: Any, api: ApiClient, report: Report) -> None:
    """Check the namespaces that the DAG file gives to the tasks that are to run on Ensure's nodes.

    A task of the author's that comes before such a task may create its namespace: then what is missing is only said.

    Raises:
        ReferenceNotFound, NamespaceTerminating, PermissionDenied: See `check_namespace`.
    """
    from airflow_gpu_provider.cluster.api.access_review import check_namespace

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
    for task in trainings_after(ensure):
        given = namespace_given(task)
        if isinstance(given, str) and not is_template(given):
            yield task, given


def _creates_a_pod(task: Any) -> bool:
    return value_of(task, "manifest") is None and value_of(task, "nodes") in (None, 1)


def _is_first(task: Any) -> bool:
    """Whether nothing of the author's comes before it."""
    return all(role_of(each) in ("ensure", "device_plugin") for each in task.upstream_list)
