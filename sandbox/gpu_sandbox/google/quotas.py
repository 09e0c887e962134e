"""Compute Engine's GPU quotas: by region, model and market, and GPUS_ALL_REGIONS of the project.

Those of newer GPUs count as the others do, and are not listed: Quota.metric of the compute v1 API has no name for them.

Spot machines count against PREEMPTIBLE_* quota where the project has any of it, else against the standard one. Machines
whose run is limited to seven days may use either ("Limit the run time of VMs in a MIG", release notes of 2024-06-18):
they take the preemptible one while it has room.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpu_sandbox.faults import Faults
from gpu_sandbox.google.interface import Market
from gpu_sandbox.google.machine_types import ACCELERATORS

ALL_REGIONS = "GPUS_ALL_REGIONS"
CPUS = "CPUS"
_DEFAULT_LIMIT = 16.0
_DEFAULT_ALL_REGIONS = 64.0
_DEFAULT_CPUS = 2400.0
_SHORT_RUN = 7 * 86400
# Accelerators whose metric is not their name in capitals.
_METRICS = {
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA_GPUS",
    "nvidia-h200-141gb": "NVIDIA_H200_GPUS",
}
_LISTED_GPUS = frozenset(
    {
        *("NVIDIA_A100_80GB_GPUS", "NVIDIA_A100_GPUS", "NVIDIA_K80_GPUS", "NVIDIA_L4_GPUS", "NVIDIA_P100_GPUS"),
        *("NVIDIA_P4_GPUS", "NVIDIA_T4_GPUS", "NVIDIA_V100_GPUS"),
    }
)
_LISTED = frozenset(
    {CPUS, *_LISTED_GPUS, *(f"PREEMPTIBLE_{name}" for name in _LISTED_GPUS), "PREEMPTIBLE_NVIDIA_H100_GPUS"}
)


def metric_of(accelerator: str) -> str:
    """The quota's name: `NVIDIA_L4_GPUS` for nvidia-l4, `NVIDIA_T4_GPUS` for nvidia-tesla-t4."""
    known = _METRICS.get(accelerator)
    return known or accelerator.replace("nvidia-tesla-", "nvidia-").replace("-", "_").upper() + "_GPUS"


@dataclass(frozen=True, kw_only=True)
class Exceeded:
    """A quota that has no room for one more instance."""

    metric: str
    limit: float
    where: str
    """`in region us-central1`, or `globally`."""

    @property
    def message(self) -> str:
        return f"Quota '{self.metric}' exceeded.  Limit: {float(self.limit)} {self.where}."


class Quotas:
    """Limits and use. Not thread-safe: used under the cloud's lock."""

    def __init__(self, *, region: str, faults: Faults) -> None:
        self._region = region
        self._faults = faults
        self._limits = {CPUS: _DEFAULT_CPUS, ALL_REGIONS: _DEFAULT_ALL_REGIONS}
        for accelerator in ACCELERATORS:
            metric = metric_of(accelerator)
            self._limits |= {metric: _DEFAULT_LIMIT, f"PREEMPTIBLE_{metric}": _DEFAULT_LIMIT}
        self._used: Counter[str] = Counter()

    def set(self, metric: str, limit: float) -> None:
        """ValueError if there is no such quota."""
        if metric not in self._limits:
            raise ValueError(f"no quota {metric!r}; there are {sorted(self._limits)}")
        self._limits[metric] = limit

    def limit(self, metric: str) -> float:
        """A fault's limit, else the project's own; a metric that is none of these has none."""
        declared = self._faults.quota(metric)
        return self._limits.get(metric, float("inf")) if declared is None else declared

    def regional(self) -> list[dict[str, object]]:
        """As `regions.get` lists them."""
        return [
            {"metric": metric, "limit": self.limit(metric), "usage": float(self._used[metric])}
            for metric in self._limits
            if metric in _LISTED
        ]

    def project_wide(self) -> list[dict[str, object]]:
        """As `projects.get` lists them."""
        return [{"metric": ALL_REGIONS, "limit": self.limit(ALL_REGIONS), "usage": float(self._used[ALL_REGIONS])}]

    def needs(
        self, *, accelerator: str | None, gpus: int, vcpus: int, market: Market, max_run_seconds: float | None
    ) -> Counter[str]:
        """What one instance counts as."""
        needs = Counter({CPUS: vcpus})
        if accelerator and gpus:
            standard = metric_of(accelerator)
            preemptible = f"PREEMPTIBLE_{standard}"
            if market == "spot":
                uses_preemptible = self.limit(preemptible) > 0
            else:
                is_short = max_run_seconds is not None and max_run_seconds <= _SHORT_RUN
                uses_preemptible = is_short and self._used[preemptible] + gpus <= self.limit(preemptible)
            needs |= Counter({preemptible if uses_preemptible else standard: gpus, ALL_REGIONS: gpus})
        return needs

    def exceeded(self, needs: Counter[str]) -> Exceeded | None:
        """Which quota has no room for so much."""
        for metric, amount in needs.items():
            limit = self.limit(metric)
            if self._used[metric] + amount > limit:
                where = "globally" if metric == ALL_REGIONS else f"in region {self._region}"
                return Exceeded(metric=metric, limit=limit, where=where)
        return None

    def take(self, needs: Counter[str]) -> Exceeded | None:
        """Count an instance in, or say which quota has no room for it."""
        if exceeded := self.exceeded(needs):
            return exceeded
        self._used += needs
        return None

    def give_back(self, needs: Counter[str]) -> None:
        self._used -= needs
