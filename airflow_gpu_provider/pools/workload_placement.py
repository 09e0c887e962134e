"""placement: what puts any workload - a Deployment, a Job, a pod of another operator - on a GPU pool, as plain dicts.

    on_gpus = placement(pool, gpus=1)
    template = {"spec": {**on_gpus.pod_spec, "containers": [{..., "resources": {"limits": on_gpus.limits}}]}}

A pod that asks for GPUs and has no run's label is demand by itself: while it runs, its node stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.accelerators import GPU_RESOURCE
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.gpu_pool import GpuPool
from airflow_gpu_provider.pools.values import is_whole


@dataclass(frozen=True, kw_only=True)
class WorkloadPlacement:
    """What goes into a manifest.

    Attributes:
        node_selector: For the pod's `nodeSelector`.
        tolerations: For the pod's `tolerations`.
        limits: For the `resources.limits` of the one container that uses the GPUs.
        host_ipc: For the pod's `hostIPC`: GPUs that are shared by MPS need it.
        warning: That each pod leaves GPUs of its node idle, with the cost where the price is known; else empty.
    """

    node_selector: dict[str, str]
    tolerations: list[dict[str, str]]
    limits: dict[str, str]
    warning: str
    host_ipc: bool = False

    @property
    def pod_spec(self) -> dict[str, Any]:
        """The pod's part of it in one piece: `nodeSelector`, `tolerations` and, where it is needed, `hostIPC`."""
        ipc = {"hostIPC": True} if self.host_ipc else {}
        tolerations = [dict(each) for each in self.tolerations]
        return {"nodeSelector": dict(self.node_selector), "tolerations": tolerations, **ipc}


def placement(gpu_pool: GpuPool, *, gpus: int) -> WorkloadPlacement:
    """Return what puts a pod with `gpus` GPUs on the pool.

    Args:
        gpu_pool: The pool. Its name, taints, machines and prices are given without Jinja expressions.
        gpus: GPUs of each pod, at least 1.

    Raises:
        PoolSpecError: gpus is less than 1, or more than the pool gives one pod, or one of these fields is still to be
            rendered.
    """
    if not is_whole(gpus) or int(gpus) < 1:
        raise PoolSpecError(f"gpus={gpus!r}.", "Ask for at least one GPU.")
    gpus = int(gpus)
    if to_render := gpu_pool.to_render(gpu_pool.placed_by):
        raise PoolSpecError(
            f"Pool {gpu_pool.name}: {', '.join(to_render)} of the spec is a Jinja expression.",
            "Write it as it is, or call placement() in a task, with the rendered spec.",
        )
    check_most(gpu_pool, gpus)
    return WorkloadPlacement(
        node_selector=gpu_pool.node_selector,
        tolerations=tolerations_of(gpu_pool),
        limits={GPU_RESOURCE: str(gpus)},
        warning=idle_gpus_warning(gpu_pool, gpus),
        host_ipc=gpu_pool.needs_host_ipc,
    )


def check_most(pool: GpuPool, gpus: int) -> None:
    """Raise PoolSpecError if no machine of the pool has that many GPUs, or gives them to one pod."""
    most = pool.most_gpus_of_a_pod
    if most is not None and gpus > most:
        raise PoolSpecError(
            f"gpus={gpus}, but the GPUs of pool {pool.name} are shared, and one pod may have {most} there.",
            f"Ask for gpus={most}, or use a pool without gpu_sharing.",
            pool=pool.name,
        )
    sizes = pool.node_sizes.values()
    most = max((size.gpus or 0 for size in sizes if size), default=0)
    if sizes and None not in sizes and gpus > most:
        raise PoolSpecError(
            f"gpus={gpus}, but the largest machine of pool {pool.name} has {most}: one pod runs on one machine.",
            "Ask for fewer GPUs, or add a larger instance type to the pool.",
            pool=pool.name,
        )


def tolerations_of(pool: GpuPool) -> list[dict[str, str]]:
    """Return what lets a pod onto the pool's nodes."""
    others = [taint for taint in pool.parsed_taints if taint.key != GPU_RESOURCE]
    return [
        {"key": GPU_RESOURCE, "operator": "Exists"},
        *({"key": t.key, "operator": "Equal", "value": t.value, "effect": t.effect} for t in others),
    ]


def idle_gpus_warning(pool: GpuPool, gpus: int) -> str:
    """Say how many GPUs of its node a pod leaves to others, and what they cost an hour; empty where it leaves none.

    It goes by the smallest machine of the pool that the pod fits on for sure.
    """
    each = pool.gpus_per_node
    if each is None or gpus >= each or pool.shares_gpus:
        return ""
    return (
        f"A pod with {gpus} of the {each} GPUs of its node leaves {each - gpus} idle"
        f"{_cost(pool, (each - gpus) / each)}, unless other pods of pool {pool.name} use them at the same time."
    )


def grace_warning(pool: GpuPool, seconds: int | None) -> str:
    """Say that a preempted machine of the pool leaves a pod less than the grace period that it asks for; else empty."""
    longest = pool.spot_notice
    if seconds is None or longest is None or seconds <= longest or "SPOT" not in pool.markets:
        return ""
    return (
        f"The pod's terminationGracePeriodSeconds={seconds} has no effect where a spot machine of pool {pool.name} is"
        f" preempted: it has {longest} seconds then. Write checkpoints while it trains, not at its end alone."
    )


def _cost(pool: GpuPool, share: float) -> str:
    markets = pool.markets or ("ON_DEMAND",)
    price = pool.price(markets[0])
    return "" if price is None else f", {price * share:.2f} of the node's {price:.2f} {pool.currency} an hour"
