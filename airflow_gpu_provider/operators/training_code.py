"""Whether the trainings after an Ensure can have their code: it is read as they will, and may be written.

Too much code, or a role that is not bound, is an error before a node costs anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_gpu_provider.operators.tasks_after_ensure import expanded, trainings_after
from airflow_gpu_provider.pools.values import is_template
from airflow_gpu_provider.tasks.block_tasks import value_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


def check_code_of_trainings(ensure: Any, api: ApiClient) -> None:
    """Check the code of the tasks that are to run on Ensure's nodes, and the permission to write it.

    Of a mapped task that of all its instances, as far as the DAG file has it.

    Raises:
        CodeUnusable: It could not be taken from this machine.
        PermissionDenied: It may not be written where the DAG file has the pods run.
    """
    for task in trainings_after(ensure):
        if codes := _codes_of(task):
            from airflow_gpu_provider.cluster.api.access_review import check_code_is_writable
            from airflow_gpu_provider.operators.task_code import take_code
            from airflow_gpu_provider.training.code.code_maps import pack

            for code in codes:
                pack(take_code(code, task.get_dag()).files)
            namespace = namespace_given(task) or "default"
            if not is_template(namespace):
                check_code_is_writable(api, namespace)


def check_code_of_mapped(ensure: Any) -> None:
    """Check the folders that the mapped tasks among them name, when the DAG is parsed; raises CodeUnusable."""
    for task in trainings_after(ensure):
        for code in _codes_of(task) if hasattr(task, "partial_kwargs") else ():
            from airflow_gpu_provider.operators.task_code import check_folder

            check_folder(code, task.get_dag(), task.task_id)


def _codes_of(task: Any) -> list[Any]:
    """Return what a task's `code` is, in each instance of a mapped one, as far as the DAG file has it."""
    return [each for each in (value_of(task, "code"), *expanded(task, "code")) if each is not None]


def namespace_given(task: Any) -> Any:
    """Return the namespace that the DAG file gives a training; None for none."""
    manifest = value_of(task, "manifest")
    meta = manifest.get("metadata") if isinstance(manifest, Mapping) else None
    return value_of(task, "namespace") or (meta.get("namespace") if isinstance(meta, Mapping) else None)
