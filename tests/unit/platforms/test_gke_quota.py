"""Which of a project's GPU quotas a machine counts against, and when they are too small."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_gpu_provider.platforms.gke_quota import Quota, regional_metric, shortfall
from tests.unit.pools.test_gke import n1, pool


def quota(metric: str, limit: float, usage: float = 0.0) -> Quota:
    return Quota(metric=metric, limit=limit, usage=usage, where="us-central1")


def candidate(spec: Any) -> Any:
    return spec.candidates(["us-central1-a"])[0]


@pytest.mark.parametrize(
    ("accelerator", "metric"),
    [
        ("nvidia-l4", "NVIDIA_L4_GPUS"),
        ("nvidia-tesla-t4", "NVIDIA_T4_GPUS"),
        ("nvidia-tesla-k80", "NVIDIA_K80_GPUS"),
        ("nvidia-tesla-a100", "NVIDIA_A100_GPUS"),
        ("nvidia-a100-80gb", "NVIDIA_A100_80GB_GPUS"),
    ],
)
def test_each_gpu_has_its_quota(accelerator: str, metric: str) -> None:
    known = {f"PREEMPTIBLE_{metric}": quota(f"PREEMPTIBLE_{metric}", 1)}
    assert regional_metric(accelerator, "ON_DEMAND", known) == metric
    assert regional_metric(accelerator, "SPOT", known) == f"PREEMPTIBLE_{metric}"
    assert regional_metric(accelerator, "PREEMPTIBLE", {}) == metric
    assert regional_metric(accelerator, "SPOT", {f"PREEMPTIBLE_{metric}": quota("x", 0)}) == metric


def test_says_name_limit_use_and_need() -> None:
    spec = n1(accelerator_count=4)
    short = shortfall(spec, 2, candidate(spec), [quota("NVIDIA_T4_GPUS", 8, 1), quota("GPUS_ALL_REGIONS", 100)])
    assert short
    assert short.details == {"quota": "NVIDIA_T4_GPUS", "limit": 8, "usage": 1, "needed": 8}
    assert "needs 8 GPUs for 2 x n1-standard-4 on-demand in us-central1-a" in str(short)
    assert "has room for 7: its limit is 8, 1 are used" in str(short)


def test_the_projects_own_quota_counts_too() -> None:
    spec = pool()
    quotas = [quota("NVIDIA_L4_GPUS", 8), quota("GPUS_ALL_REGIONS", 1, 1)]
    short = shortfall(spec, 1, candidate(spec), quotas)
    assert short
    assert short.details["quota"] == "GPUS_ALL_REGIONS"


def test_what_is_enough_or_not_listed_is_no_obstacle() -> None:
    spec = pool()
    assert shortfall(spec, 8, candidate(spec), [quota("NVIDIA_L4_GPUS", 8), quota("GPUS_ALL_REGIONS", 8)]) is None
    assert shortfall(spec, 8, candidate(spec), []) is None
