"""What follows where a try has run out of GPU memory, and the task may have a larger GPU: its next try asks for one."""

from __future__ import annotations

import re
from dataclasses import replace

from airflow_gpu_provider.cluster.model.node import INSTANCE_TYPE_LABEL
from airflow_gpu_provider.errors import GpuError, GpuOutOfMemory, GpuTooSmall, PodFailed
from airflow_gpu_provider.scaling.decide.placement import larger_type, memory_of
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from airflow_gpu_provider.scaling.state.demand import TaskNodes
from airflow_gpu_provider.training.life.run import Run
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt
from airflow_gpu_provider.training.life.task_nodes import NotWritten, write_task_nodes

AT_MOST = 2
"""How often a task gets a larger GPU in a run."""

# pytorch: c10/cuda/CUDACachingAllocator.cpp
_OF_TORCH = re.compile(r"total capacity of ([\d.]+) (\w+) of which ([\d.]+) (\w+) (?:is|are) free")
_IN_GIB = {"GiB": 1.0, "MiB": 2.0**-10, "KiB": 2.0**-20, "bytes": 2.0**-30}


def with_larger_gpu(error: GpuOutOfMemory, run: Run, attempt: TaskAttempt) -> PodFailed:
    """Return how the try ends, after asking for a larger GPU for the next one: GpuTooSmall, which is retried.

    If there is to be none, the error is final, and says why.
    """
    try:
        if not run.has_next_try:
            raise NotWritten("There is no try left that could have a larger GPU: raise retries.")
        has, larger = _asked(error, run, attempt)
    except (NotWritten, GpuError) as why:
        reason = str(why) if isinstance(why, NotWritten) else f"A larger GPU could not be asked for: {why.what}"
        return GpuOutOfMemory(error.what, f"{reason} {error.fix}", **error.details)
    in_use, following = used(error), memory_of(run.cluster.pool, larger.instance_type)
    run.log.info("%s on %s; next: %s", in_use, has, following)
    details = {**error.details, "instance_type": has, "next_instance_type": larger.instance_type}
    what = f"{error.what.rstrip('.')}: {in_use} on {has}; next: {following}."
    return GpuTooSmall(what, "The next try asks for that type.", **details)


def used(error: GpuOutOfMemory) -> str:
    """Return how much of the GPU's memory was in use, as far as the program has said: "22.9 of 23.0 GiB"."""
    printed = "\n".join((*map(str, error.details.get("last_lines") or ()), error.what))
    found = _OF_TORCH.search(printed)
    if found is None or not {found[2], found[4]} <= _IN_GIB.keys():
        return "too little GPU memory"
    capacity, free = float(found[1]) * _IN_GIB[found[2]], float(found[3]) * _IN_GIB[found[4]]
    return f"{capacity - free:.1f} of {capacity:.1f} GiB"


def _asked(error: GpuOutOfMemory, run: Run, attempt: TaskAttempt) -> tuple[str, TaskNodes]:
    """Write what the next try is to have, and return the present machine type with it."""
    chosen_by_author = ((attempt.pod or {}).get("spec") or {}).get("nodeSelector") or {}
    has = ""

    def larger(snapshot: PoolSnapshot, before: TaskNodes) -> TaskNodes:
        nonlocal has
        if before.times >= AT_MOST:
            raise NotWritten(f"It has had a larger GPU {AT_MOST} times already.")
        if not before.instance_type and INSTANCE_TYPE_LABEL in chosen_by_author:
            raise NotWritten(f"Its node selector asks for {chosen_by_author[INSTANCE_TYPE_LABEL]}.")
        node = next((each for each in snapshot.nodes if each.name == error.details.get("node")), None)
        has = node.instance_type if node is not None else before.instance_type
        name = larger_type(snapshot, has, gpus=run.settings.placement.gpus)
        if name is None:
            which = f"than {memory_of(snapshot.pool, has)}" if has else "that is known: nor is the type of its node"
            raise NotWritten(f"Pool {snapshot.pool.name} has no machine type with more memory per GPU {which}.")
        return replace(before, instance_type=name, times=before.times + 1)

    written = write_task_nodes(run, attempt.owner, larger, why=f"{attempt.owner.task_id} needs a larger GPU")
    return has, written
