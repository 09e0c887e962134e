"""Whether the project's GPU quotas have room for more nodes, before any is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
    used: float
    where: str

    @property
    def room(self) -> float:
        """How many more GPUs it allows."""
        return max(0.0, self.limit - self.used)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The groups whose quota is too small for them to be tried, and a line about each such quota."""

    passed_over: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


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
    (where the project has any of it), and GPUS_ALL_REGIONS. One that Google does not list is no obstacle: newer GPUs
    have theirs elsewhere. Where no quota has room for all nodes, those that have room for some are used together.

    Raises:
        QuotaExceeded: All quotas together have too little room.
    """
    if not candidates:
        return Verdict()  # groups of others that do not exist: a plan names them
    room = {c.group: _nodes(pool, c, quotas) for c in candidates}
    has_room_for_all = max(room.values()) >= missing
    if not has_room_for_all and _together(pool, candidates, quotas) < missing:
        raise _exceeded(pool, missing, candidates, quotas)
    enough = missing if has_room_for_all else 1
    short = [c for c in candidates if room[c.group] < enough]
    lines = dict.fromkeys(f"{_kind(c)} is passed over: {_words(pool, c, missing, quotas)}" for c in short)
    return Verdict(passed_over=frozenset(c.group for c in short), notes=tuple(lines))


def _tightest(pool: GkeGpuPool, candidate: Candidate, quotas: Mapping[str, Quota]) -> Quota | None:
    """Return the quota that a candidate meets first, or None where Google lists none for it."""
    accelerator, _ = pool.accelerator_of(candidate.instance_type)
    names = (regional_metric(accelerator, candidate.market, quotas), ALL_REGIONS)
    return min((quotas[name] for name in names if name in quotas), key=lambda quota: quota.room, default=None)


def _nodes(pool: GkeGpuPool, candidate: Candidate, quotas: Mapping[str, Quota]) -> float:
    """Return for how many nodes of a candidate there is room."""
    quota = _tightest(pool, candidate, quotas)
    return quota.room // pool.accelerator_of(candidate.instance_type)[1] if quota else math.inf


def _together(pool: GkeGpuPool, candidates: Iterable[Candidate], quotas: Mapping[str, Quota]) -> float:
    """Return for how many nodes there is room in all quotas: candidates of one quota share it."""
    by_quota: dict[str, float] = {}
    for candidate in candidates:
        quota = _tightest(pool, candidate, quotas)
        name = quota.metric if quota else ""
        by_quota[name] = max(by_quota.get(name, 0.0), _nodes(pool, candidate, quotas))
    total = sum(by_quota.values())
    least = min(pool.accelerator_of(candidate.instance_type)[1] for candidate in candidates)
    everywhere = quotas.get(ALL_REGIONS)
    return min(total, everywhere.room // least) if everywhere else total


def _exceeded(
    pool: GkeGpuPool, missing: int, candidates: Sequence[Candidate], quotas: Mapping[str, Quota]
) -> QuotaExceeded:
    first = candidates[0]
    quota = _tightest(pool, first, quotas)
    assert quota is not None  # a candidate without one has room
    lines = dict.fromkeys(f"{_kind(c)}: {_words(pool, c, missing, quotas)}" for c in candidates)
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
    quota = _tightest(pool, candidate, quotas)
    needed = missing * pool.accelerator_of(candidate.instance_type)[1]
    if quota is None:
        return "no quota is known"
    return (
        f"quota {quota.metric} in {quota.where} is {quota.limit:g}, {quota.used:g} are used, {needed} more are needed"
    )


def _kind(candidate: Candidate) -> str:
    return f"{candidate.instance_type} {candidate.market.lower().replace('_', '-')}"


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
        Quota(metric=q["metric"], limit=float(q.get("limit", 0)), used=float(q.get("usage", 0)), where=where)
        for q in answer.get("quotas") or ()
    ]
