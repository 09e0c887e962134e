"""The code of a try in its cluster: written by its first attempt, mounted by all, deleted when the task has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from kubernetes.client import V1Volume

from airflow_gpu_provider.cluster.api.code_requests import delete_code_of_task, read_maps, write_maps
from airflow_gpu_provider.cluster.model.code_record import CodeRecord
from airflow_gpu_provider.errors import GpuError
from airflow_gpu_provider.scaling.decide.snapshot import plural
from airflow_gpu_provider.scaling.wait.retry import call_with_retries
from airflow_gpu_provider.training.code.code_files import Code, kib
from airflow_gpu_provider.training.code.code_maps import MOUNT_PATH, pack, volume
from airflow_gpu_provider.training.code.left_behind import AIRFLOWIGNORE, GPUIGNORE, NO_FILE, SECRET, Why
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import Run

_DELETED_WITHIN = timedelta(minutes=1)
_SHOWN = 20
_SHOWN_REASONS: Mapping[Why, str] = {
    SECRET: "it may be secret",
    AIRFLOWIGNORE: f"by {AIRFLOWIGNORE}",
    GPUIGNORE: f"by {GPUIGNORE}",
    NO_FILE: "neither a file nor a folder",
}


def code_volume(run: Run, owner: Ownership, namespace: str) -> V1Volume | None:
    """Return the volume with the code of the try, which its first attempt writes; None for a task without.

    Raises:
        CodeUnusable: It cannot be taken from this machine.
        GpuError: The cluster refuses it.
    """
    if run.take_code is None:
        return None
    api = run.cluster.api
    record = CodeRecord(key=owner.key, task=owner.task, try_id=owner.try_id, namespace=namespace, maps=1)
    maps = read_maps(api, record)
    if maps:
        run.log.info("The code is that with which this try began: %s.", ", ".join(record.map_names[: len(maps)]))
    else:
        code = run.take_code()
        maps = write_maps(api, record, pack(code.files))
        for line in _in_words(code, namespace, maps=len(maps)):
            run.log.info("%s", line)
    return volume(maps)


def delete_code_quietly(run: Run, owner: Ownership) -> None:
    """Delete it at the task's end, however that is; an error is only logged: what is left goes with the run.

    A task that received SIGTERM has seconds left, and tries once.
    """
    within = _DELETED_WITHIN if run.stop.error is None else timedelta(0)
    try:
        call_with_retries(
            lambda: delete_code_of_task(run.cluster.api, owner.key.pool, owner.task),
            within=within,
            report=run.log.warning,
        )
    except GpuError as error:
        run.log.warning("The ConfigMaps with the task's code stay until its run is released: %s", error)


def _in_words(code: Code, namespace: str, *, maps: int) -> Iterator[str]:
    size = kib(sum(len(each.data) for each in code.files))
    files, where = plural(len(code.files), "file"), f"{plural(maps, 'ConfigMap')} in {namespace}"
    yield f"Mounting the code at {MOUNT_PATH}: {files}, {size}, in {where}."
    for why, reason in _SHOWN_REASONS.items():
        paths = [path for path, each in code.left_out if each == why]
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        if paths:
            yield f"Left out of the code, {reason}: {', '.join(paths[:_SHOWN])}{more}."
