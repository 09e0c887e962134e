"""Whether the project's GPU quotas have room for more nodes, before any is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_gpu_provider.errors import QuotaExceeded
from airflow_gpu_provider.platforms.google_clients import Compute
from airflow_gpu_provider.pools import Candidate, GkeGpuPool

ALL_REGIONS = "GPUS_ALL_REGIONS"

# Accelerators whose quota is not their name in capitals.
_METRICS = {
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA_GPUS",
    "nvidia-h200-141gb": "NVIDIA_H200_GPUS",
}


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota as Compute Engine tells it; `where` is the region, or "all regions"."""

    metric: str
    limit: float
    usage: float
    where: str

    @property
    def room(self) -> float:
        """How many more GPUs it allows."""
        return max(0.0, self.limit - self.usage)


def check_quota(compute: Compute, pool: GkeGpuPool, nodes: int, candidate: Candidate) -> QuotaExceeded | None:
    """Say whether `nodes` more machines of a candidate are over a quota of the project; None where they are not.

    Three quotas count: the region's for the GPU, the region's PREEMPTIBLE_ one for spot and preemptible machines
    (where the project has any of it), and GPUS_ALL_REGIONS. A quota that Google does not list is not checked: newer
    GPUs have theirs elsewhere.

    Raises:
        PermissionDenied: The account may not read quotas; whoever asks goes on without, and says so.
    """
    region = compute.get(f"projects/{pool.project_id}/regions/{pool.region}", permission="compute.regions.get")
    project = compute.get(f"projects/{pool.project_id}", permission="compute.projects.get")
    quotas = [*_quotas(region, pool.region), *_quotas(project, "all regions")]
    return shortfall(pool, nodes, candidate, quotas)


def shortfall(pool: GkeGpuPool, nodes: int, candidate: Candidate, quotas: Iterable[Quota]) -> QuotaExceeded | None:
    """The same as `check_quota` from quotas that were read. Pure."""
    accelerator, each = pool.accelerator_of(candidate.instance_type)
    need = each * nodes
    by_metric = {quota.metric: quota for quota in quotas}
    for metric in (regional_metric(accelerator, candidate.market, by_metric), ALL_REGIONS):
        quota = by_metric.get(metric)
        if quota and need > quota.room:
            return QuotaExceeded(
                f"Pool {pool.name} needs {need} GPUs for {nodes} x {candidate}, and quota {metric} of project"
                f" {pool.project_id} in {quota.where} has room for {quota.room:g}: its limit is {quota.limit:g},"
                f" {quota.usage:g} are used.",
                f"Ask for a higher {metric} in the Google Cloud console (IAM & Admin, Quotas), or want fewer GPUs.",
                quota=metric,
                limit=quota.limit,
                usage=quota.usage,
                needed=need,
            )
    return None


def regional_metric(accelerator: str, market: str, known: Mapping[str, Any]) -> str:
    """Return the name of the region's quota that a machine counts against."""
    standard = _METRICS.get(accelerator) or metric_name(accelerator)
    preemptible = f"PREEMPTIBLE_{standard}"
    if market != "ON_DEMAND" and preemptible in known and known[preemptible].limit > 0:
        return preemptible
    return standard


def metric_name(accelerator: str) -> str:
    """Return `NVIDIA_L4_GPUS` for nvidia-l4, `NVIDIA_T4_GPUS` for nvidia-tesla-t4."""
    return f"{accelerator.replace('nvidia-tesla-', 'nvidia-').replace('-', '_').upper()}_GPUS"


def _quotas(answer: Mapping[str, Any], where: str) -> list[Quota]:
    return [
        Quota(metric=q["metric"], limit=float(q.get("limit", 0)), usage=float(q.get("usage", 0)), where=where)
        for q in answer.get("quotas") or ()
    ]
