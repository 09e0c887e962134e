"""Which of a project's GPU quotas a machine counts against, and when they are too small."""

from __future__ import annotations

import pytest

from airflow_gpu_provider.errors import QuotaExceeded
from airflow_gpu_provider.platforms.gke_quota import Quota, Verdict, judge, regional_metric
from airflow_gpu_provider.pools import GkeGpuPool
from tests.unit.pools.test_gke import ZONES, n1, pool


def quota(metric: str, limit: float, usage: float = 0.0) -> Quota:
    return Quota(metric=metric, limit=limit, used=usage, where="us-central1")


def judged(spec: GkeGpuPool, missing: int, *quotas: Quota) -> Verdict:
    return judge(spec, missing, spec.candidates(ZONES), {each.metric: each for each in quotas})


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
    with pytest.raises(QuotaExceeded) as raised:
        judged(spec, 2, quota("NVIDIA_T4_GPUS", 8, 1), quota("GPUS_ALL_REGIONS", 100))
    assert raised.value.details == {"quota": "NVIDIA_T4_GPUS", "limit": 8, "used": 1, "needed": 8}
    assert "needs 2 more nodes" in str(raised.value)
    words = "n1-standard-4 on-demand: quota NVIDIA_T4_GPUS in us-central1 is 8, 1 are used, 8 more are needed"
    assert words in str(raised.value)


def test_the_projects_own_quota_counts_too() -> None:
    with pytest.raises(QuotaExceeded, match="GPUS_ALL_REGIONS"):
        judged(pool(), 1, quota("NVIDIA_L4_GPUS", 8), quota("GPUS_ALL_REGIONS", 1, 1))


def test_what_is_enough_or_not_listed_is_no_obstacle() -> None:
    assert judged(pool(), 8, quota("NVIDIA_L4_GPUS", 8), quota("GPUS_ALL_REGIONS", 8)) == Verdict()
    assert judged(pool(), 8) == Verdict()


def test_what_has_no_room_is_passed_over() -> None:
    spec = pool(capacity_types=["SPOT", "ON_DEMAND"])
    verdict = judged(spec, 2, quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 1), quota("NVIDIA_L4_GPUS", 4))
    assert verdict.passed_over == {f"train-gpu-{zone}-g2-standard-4-spot" for zone in "ab"}
    (note,) = verdict.notes
    assert note.startswith("g2-standard-4 spot is passed over: quota PREEMPTIBLE_NVIDIA_L4_GPUS in us-central1 is 1")


def test_quotas_that_have_room_for_some_are_used_together() -> None:
    spec = pool(capacity_types=["SPOT", "ON_DEMAND"])
    quotas = quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 2), quota("NVIDIA_L4_GPUS", 2)
    assert judged(spec, 4, *quotas) == Verdict()
    with pytest.raises(QuotaExceeded):
        judged(spec, 5, *quotas)
    with pytest.raises(QuotaExceeded):
        judged(spec, 4, *quotas, quota("GPUS_ALL_REGIONS", 3))
