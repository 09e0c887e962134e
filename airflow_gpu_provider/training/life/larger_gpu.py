"""What follows where a try has run out of GPU memory, and the task may have a larger GPU: its next try asks for one.

What it asks for is kept in the run's demand Lease, so that it outlives the worker; as a part of the run's nodes, the
pool launches it at once, and the other tasks' nodes stay what they are.
"""

from __future__ import annotations

import re
from dataclasses import replace

from airflow_gpu_provider.cluster.model.node import INSTANCE_TYPE_LABEL
from airflow_gpu_provider.errors import GpuError, GpuOutOfMemory, GpuTooSmall, PodFailed
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.decide.placement import larger_type, memory_of
from airflow_gpu_provider.scaling.decide.scarce_capacity import DemandChange
from airflow_gpu_provider.scaling.state.demand import LargerGpu
from airflow_gpu_provider.training.life.ownership import Ownership
from airflow_gpu_provider.training.life.run import Run
from airflow_gpu_provider.training.life.task_attempt import TaskAttempt

AT_MOST = 2
"""How often a task gets a larger GPU in a run."""

_WRITES = 5  # siblings may write the same Lease at the same time

# pytorch: c10/cuda/CUDACachingAllocator.cpp
_OF_TORCH = re.compile(r"total capacity of ([\d.]+) (\w+) of which ([\d.]+) (\w+) (?:is|are) free")
_IN_GIB = {"GiB": 1.0, "MiB": 2.0**-10, "KiB": 2.0**-20, "bytes": 2.0**-30}


class _NotLarger(Exception):
    """Why the next try gets no larger GPU, as a sentence."""


def with_larger_gpu(error: GpuOutOfMemory, run: Run, attempt: TaskAttempt) -> PodFailed:
    """Return how the try ends, after asking for a larger GPU for the next one: GpuTooSmall, which is retried.

    If there is to be none, the error is final, and says why.
    """
    try:
        if not run.has_next_try:
            raise _NotLarger("There is no try left that could have a larger GPU: raise retries.")
        has, larger = _asked(error, run, attempt)
    except (_NotLarger, GpuError) as why:
        reason = str(why) if isinstance(why, _NotLarger) else f"A larger GPU could not be asked for: {why.what}"
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


def _asked(error: GpuOutOfMemory, run: Run, attempt: TaskAttempt) -> tuple[str, LargerGpu]:
    """Write what the next try is to have, and return the present machine type with it."""
    pool, owner = run.cluster.pool, attempt.owner
    reconciler = open_pool(pool, owner=owner.writer, holder=run.holder, report=run.log.info)
    for _ in range(_WRITES):
        if found := _written(reconciler, error, run, attempt, owner):
            return found
    raise _NotLarger("The run's demand was changed again and again, so that no larger GPU could be asked for.")


def _written(
    reconciler: Reconciler, error: GpuOutOfMemory, run: Run, attempt: TaskAttempt, owner: Ownership
) -> tuple[str, LargerGpu] | None:
    """Try to write it; None if somebody else was first to change the demand."""
    snapshot, settings = reconciler.snapshot(), run.settings
    lease = next((each for each in snapshot.leases if each.key == owner.key and each.live(snapshot.now)), None)
    if lease is None:
        raise _NotLarger("No block's demand covers the task, so that no larger GPU can be kept for its next try.")
    before = lease.larger_of(owner.task_id, owner.map_index, owner.iteration)
    if before is not None and before.times >= AT_MOST:
        raise _NotLarger(f"It has had a larger GPU {AT_MOST} times already.")
    chosen = ((attempt.pod or {}).get("spec") or {}).get("nodeSelector") or {}
    if before is None and INSTANCE_TYPE_LABEL in chosen:
        raise _NotLarger(f"Its node selector asks for {chosen[INSTANCE_TYPE_LABEL]}.")
    node = next((each for each in snapshot.nodes if each.name == error.details.get("node")), None)
    has = node.instance_type if node is not None else before.instance_type if before is not None else ""
    name = larger_type(snapshot, has, gpus=settings.placement.gpus)
    if name is None:
        which = f"than {memory_of(snapshot.pool, has)}" if has else "that is known: nor is the type of its node"
        raise _NotLarger(f"Pool {snapshot.pool.name} has no machine type with more memory per GPU {which}.")
    larger = LargerGpu(
        task_id=owner.task_id,
        map_index=owner.map_index,
        iteration=owner.iteration,
        instance_type=name,
        nodes=settings.nodes,
        times=before.times + 1 if before is not None else 1,
    )
    # Also of an earlier iteration of its loop, which has ended: what that has would be taken from the run's nodes.
    task = (owner.task_id, owner.map_index)
    others = tuple(each for each in lease.larger if (each.task_id, each.map_index) != task)
    after = replace(lease, larger=(*others, larger))
    outcome = reconciler.amend(DemandChange(before=lease, after=after, why=f"{owner.task_id} needs a larger GPU"))
    for line in outcome.log_lines:
        run.log.info("%s", line)
    written = any(each.key == owner.key and larger in each.larger for each in outcome.snapshot.leases)
    return (has, larger) if written else None
