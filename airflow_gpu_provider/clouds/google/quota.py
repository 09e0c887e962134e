"""Whether the project's GPU quotas have room for more nodes, before any is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.clouds.google.clients import Rest
from airflow_gpu_provider.clouds.google.pool import GkeGpuPool
from airflow_gpu_provider.clouds.quota import Limited, Quota, Verdict, judge_all
from airflow_gpu_provider.pools import Candidate

ALL_REGIONS = "GPUS_ALL_REGIONS"

# Machines that may run no longer may also count against PREEMPTIBLE_ quota (Compute Engine: "Limit the run time of VMs
# in a MIG"; release notes of 2024-06-18). That GKE's nodes are charged alike is not documented, so the rooms add up:
# Compute Engine has the last word.
_SHORT = timedelta(days=7)

# Accelerators whose quota is not their name in capitals.
_METRICS = {
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA_GPUS",
    "nvidia-h200-141gb": "NVIDIA_H200_GPUS",
}


def read_quotas(compute: Rest, pool: GkeGpuPool) -> dict[str, Quota]:
    """Return the quotas of the pool's region and of the project, by their names.

    Raises:
        PermissionDenied: The account may not read them.
    """
    region = compute.get(f"projects/{pool.project_id}/regions/{pool.region}", permission="compute.regions.get")
    project = compute.get(f"projects/{pool.project_id}", permission="compute.projects.get")
    quotas = [*_quotas(region, pool.region), *_quotas(project, "all regions")]
    return {quota.name: quota for quota in quotas}


def judge(pool: GkeGpuPool, missing: int, candidates: Sequence[Candidate], quotas: Mapping[str, Quota]) -> Verdict:
    """Say which candidates cannot have the missing nodes; see `judge_all`. Pure.

    Three quotas count: the region's for the GPU, the region's PREEMPTIBLE_ one for spot and preemptible machines
    (where the project has any of it), and GPUS_ALL_REGIONS. On-demand machines that live for at most seven days may
    count against either of the region's two. One that Google does not list is no obstacle: newer GPUs have theirs
    elsewhere.
    """
    if pool.is_reserved:
        return Verdict()  # a reservation is itself what counts against the quotas
    limited = [
        Limited(
            candidate=each,
            units=pool.accelerator_of(each.instance_type)[1],
            either=_regional(pool, each, quotas),
            everywhere=quotas.get(ALL_REGIONS),
        )
        for each in candidates
    ]
    return judge_all(pool, missing, limited, whose=f"the quotas of project {pool.project_id}")


def _regional(pool: GkeGpuPool, candidate: Candidate, quotas: Mapping[str, Quota]) -> tuple[Quota, ...]:
    """Return the region's quotas that a machine may count against, one of them each, as far as Google lists them."""
    accelerator, _ = pool.accelerator_of(candidate.instance_type)
    lifetime = pool.node_lifetime
    is_short = lifetime is not None and lifetime <= _SHORT
    market = "FLEX_START" if pool.flex_start else candidate.market
    names = regional_metrics(accelerator, market, quotas, is_short=is_short)
    return tuple(quotas[name] for name in names) if all(name in quotas for name in names) else ()


def regional_metrics(accelerator: str, market: str, known: Mapping[str, Quota], *, is_short: bool) -> tuple[str, ...]:
    """Return the names of the region's quotas one of which a machine counts against.

    Args:
        market: Its capacity type; flex-start counts as spot does.
        is_short: Whether the machine may run for at most seven days.
    """
    # NVIDIA_L4_GPUS for nvidia-l4, NVIDIA_T4_GPUS for nvidia-tesla-t4
    in_capitals = accelerator.replace("nvidia-tesla-", "nvidia-").replace("-", "_").upper()
    standard = _METRICS.get(accelerator, f"{in_capitals}_GPUS")
    preemptible = f"PREEMPTIBLE_{standard}"
    has_preemptible = preemptible in known and known[preemptible].limit > 0
    if has_preemptible and market != "ON_DEMAND":
        return (preemptible,)
    return (standard, preemptible) if has_preemptible and is_short else (standard,)


def _quotas(answer: Mapping[str, Any], where: str) -> list[Quota]:
    found = answer.get("quotas") or ()
    return [quota_of(q["metric"], float(q.get("limit", 0)), float(q.get("usage", 0)), where) for q in found]


def quota_of(metric: str, limit: float, used: float, where: str) -> Quota:
    """Return one quota of GPUs as Compute Engine tells it; `where` is the region, or "all regions"."""
    return Quota(
        name=metric,
        limit=limit,
        used=used,
        words=f"quota {metric} in {where} is {limit:g}, {used:g} are used",
        request=f"{metric} in the Google Cloud console (IAM & Admin, Quotas)",
    )
