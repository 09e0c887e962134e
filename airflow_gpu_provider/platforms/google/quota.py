"""Whether the project's GPU quotas have room for more nodes, before any is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_gpu_provider.errors import QuotaExceeded
from airflow_gpu_provider.platforms.google.clients import Compute
from airflow_gpu_provider.platforms.quota import Verdict, pass_over
from airflow_gpu_provider.pools import Candidate, GkeGpuPool

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


@dataclass(frozen=True, kw_only=True)
class Quota:
    """One quota as Compute Engine tells it; `where` is the region, or "all regions"."""

    metric: str
    limit: float
    used: float
    where: str

    @property
    def room(self) -> float:
        """How many more GPUs it allows."""
        return max(0.0, self.limit - self.used)


def read_quotas(compute: Compute, pool: GkeGpuPool) -> dict[str, Quota]:
    """Return the quotas of the pool's region and of the project, by their names.

    Raises:
        PermissionDenied: The account may not read them.
    """
    region = compute.get(f"projects/{pool.project_id}/regions/{pool.region}", permission="compute.regions.get")
    project = compute.get(f"projects/{pool.project_id}", permission="compute.projects.get")
    quotas = [*_quotas(region, pool.region), *_quotas(project, "all regions")]
    return {quota.metric: quota for quota in quotas}


def judge(pool: GkeGpuPool, missing: int, candidates: Sequence[Candidate], quotas: Mapping[str, Quota]) -> Verdict:
    """Say which candidates cannot have the missing nodes. Pure.

    Three quotas count: the region's for the GPU, the region's PREEMPTIBLE_ one for spot and preemptible machines
    (where the project has any of it), and GPUS_ALL_REGIONS. On-demand machines that live for at most seven days may
    count against either of the region's two. One that Google does not list is no obstacle: newer GPUs have theirs
    elsewhere. Where no quota has room for all nodes, those that have room for some are used together.

    Raises:
        QuotaExceeded: All quotas together have too little room.
    """
    if not candidates or pool.is_reserved:
        # External groups that do not exist: a plan names them. A reservation is itself what counts against the quotas.
        return Verdict()
    room = {c.group: _nodes(pool, c, quotas) for c in candidates}
    if max(room.values()) < missing and _together(pool, candidates, quotas) < missing:
        raise _exceeded(pool, missing, candidates, quotas)
    return pass_over(candidates, missing, room, lambda candidate: _words(pool, candidate, missing, quotas))


def _regional(pool: GkeGpuPool, candidate: Candidate, quotas: Mapping[str, Quota]) -> tuple[Quota, ...]:
    """Return the region's quotas that a machine may count against, one of them each, as far as Google lists them."""
    accelerator, _ = pool.accelerator_of(candidate.instance_type)
    lifetime = pool.node_lifetime
    is_short = lifetime is not None and lifetime <= _SHORT
    market = "FLEX_START" if pool.flex_start else candidate.market
    names = regional_metrics(accelerator, market, quotas, is_short=is_short)
    return tuple(quotas[name] for name in names) if all(name in quotas for name in names) else ()


def _met_first(pool: GkeGpuPool, candidate: Candidate, quotas: Mapping[str, Quota]) -> tuple[Quota, ...]:
    """Return the quotas that limit a candidate: the region's or the project's; empty where Google lists none."""
    regional = _regional(pool, candidate, quotas)
    everywhere = (quotas[ALL_REGIONS],) if ALL_REGIONS in quotas else ()
    limits = [each for each in (regional, everywhere) if each]
    return min(limits, key=lambda each: _fitting(pool, candidate, each), default=())


def _fitting(pool: GkeGpuPool, candidate: Candidate, either: Iterable[Quota]) -> float:
    """Return how many nodes fit into the larger of quotas."""
    gpus = pool.accelerator_of(candidate.instance_type)[1]
    return max(quota.room // gpus for quota in either)


def _nodes(pool: GkeGpuPool, candidate: Candidate, quotas: Mapping[str, Quota]) -> float:
    """Return for how many nodes of a candidate there is room."""
    limits = _met_first(pool, candidate, quotas)
    return _fitting(pool, candidate, limits) if limits else math.inf


def _together(pool: GkeGpuPool, candidates: Iterable[Candidate], quotas: Mapping[str, Quota]) -> float:
    """Return for how many nodes there is room in all quotas: candidates of one quota share it."""
    by_quota: dict[str, float] = {}
    for candidate in candidates:
        regional = _regional(pool, candidate, quotas)
        if not regional:
            by_quota[""] = math.inf
        for quota in regional:
            by_quota[quota.metric] = max(by_quota.get(quota.metric, 0.0), _fitting(pool, candidate, [quota]))
    total = sum(by_quota.values())
    least = min(pool.accelerator_of(candidate.instance_type)[1] for candidate in candidates)
    everywhere = quotas.get(ALL_REGIONS)
    return min(total, everywhere.room // least) if everywhere else total


def _exceeded(
    pool: GkeGpuPool, missing: int, candidates: Sequence[Candidate], quotas: Mapping[str, Quota]
) -> QuotaExceeded:
    first = candidates[0]
    quota = _met_first(pool, first, quotas)[0]  # a candidate without one has room
    lines = dict.fromkeys(f"{c.machine}: {_words(pool, c, missing, quotas)}" for c in candidates)
    return QuotaExceeded(
        f"Pool {pool.name} needs {missing} more node{'s' * (missing > 1)}, and the quotas of project {pool.project_id}"
        f" have no room: {'; '.join(lines)}.",
        f"Ask for a higher {quota.metric} in the Google Cloud console (IAM & Admin, Quotas), or want fewer GPUs.",
        quota=quota.metric,
        limit=quota.limit,
        used=quota.used,
        needed=missing * pool.accelerator_of(first.instance_type)[1],
    )


def _words(pool: GkeGpuPool, candidate: Candidate, missing: int, quotas: Mapping[str, Quota]) -> str:
    limits = _met_first(pool, candidate, quotas)
    needed = missing * pool.accelerator_of(candidate.instance_type)[1]
    if not limits:
        return "no quota is known"
    said = (f"quota {each.metric} in {each.where} is {each.limit:g}, {each.used:g} are used" for each in limits)
    return f"{' and '.join(said)}, {needed} more are needed"


def regional_metrics(accelerator: str, market: str, known: Mapping[str, Quota], *, is_short: bool) -> tuple[str, ...]:
    """Return the names of the region's quotas one of which a machine counts against.

    Args:
        accelerator: The machine's accelerator type.
        market: Its capacity type; flex-start counts as spot does.
        known: The quotas that Google lists.
        is_short: Whether the machine may run for at most seven days.
    """
    standard = _METRICS.get(accelerator) or metric_name(accelerator)
    preemptible = f"PREEMPTIBLE_{standard}"
    has_preemptible = preemptible in known and known[preemptible].limit > 0
    if has_preemptible and market != "ON_DEMAND":
        return (preemptible,)
    return (standard, preemptible) if has_preemptible and is_short else (standard,)


def metric_name(accelerator: str) -> str:
    """Return `NVIDIA_L4_GPUS` for nvidia-l4, `NVIDIA_T4_GPUS` for nvidia-tesla-t4."""
    return f"{accelerator.replace('nvidia-tesla-', 'nvidia-').replace('-', '_').upper()}_GPUS"


def _quotas(answer: Mapping[str, Any], where: str) -> list[Quota]:
    return [
        Quota(metric=q["metric"], limit=float(q.get("limit", 0)), used=float(q.get("usage", 0)), where=where)
        for q in answer.get("quotas") or ()
    ]
