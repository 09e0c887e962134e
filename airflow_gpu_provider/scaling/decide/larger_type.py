"""Which machine type a task gets that has run out of GPU memory on another: the pool's next larger one. Pure."""

from __future__ import annotations

from airflow_gpu_provider.accelerators import gpu_of_machine
from airflow_gpu_provider.platforms.backoff import OFF_LIMITS
from airflow_gpu_provider.pools.prices import too_dear
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot


def larger_type(snapshot: PoolSnapshot, than: str, *, gpus: int) -> str | None:
    """Return the pool's machine type with the least memory per GPU above that of `than`; None if there is none.

    Of several, the one that the pool prefers. What costs more than the pool pays is left out, and so are machines that
    the catalogue of GPUs does not know, and those with fewer GPUs than the task's pods ask for.
    """
    has = gpu_of_machine(than)
    if has is None:
        return None
    groups = [group for group in snapshot.groups if group.status not in OFF_LIMITS]
    dear = {each.candidate for each in too_dear(snapshot.prices, [group.candidate for group in groups])}
    offered = [group.candidate.instance_type for group in groups if group.candidate not in dear]
    there = [node.instance_type for node in snapshot.nodes if node.usable]
    larger: dict[str, int] = {}
    for name in (*offered, *there):
        found = gpu_of_machine(name)
        if found is not None and found.gpu.memory_gib > has.gpu.memory_gib and found.gpus >= gpus:
            larger.setdefault(name, found.gpu.memory_gib)
    return min(larger, key=lambda name: larger[name], default=None)


def memory_of(instance_type: str) -> str:
    """Return a machine type with the memory of each of its GPUs, for people: "g6e.xlarge (48 GiB)"."""
    found = gpu_of_machine(instance_type)
    return f"{instance_type} ({found.gpu.memory_gib} GiB)" if found is not None else instance_type
