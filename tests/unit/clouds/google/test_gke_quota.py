"""Which of a project's GPU quotas a machine counts against, and when they are too small."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import GkeGpuPool
from airflow_gpu_provider.clouds.google.quota import judge, quota_of, regional_metrics
from airflow_gpu_provider.clouds.quota import Quota, Verdict
from airflow_gpu_provider.errors import QuotaExceeded
from tests.unit.clouds.google.test_gke_pool import FLEX_START, RESERVED, ZONES, n1, pool


def quota(metric: str, limit: float, usage: float = 0.0) -> Quota:
    return quota_of(metric, limit, usage, "us-central1")


def judged(spec: GkeGpuPool, missing: int, *quotas: Quota) -> Verdict:
    return judge(spec, missing, spec.candidates(ZONES), {each.name: each for each in quotas})


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
    none_granted = {f"PREEMPTIBLE_{metric}": quota("x", 0)}
    assert regional_metrics(accelerator, "ON_DEMAND", known, is_short=False) == (metric,)
    assert regional_metrics(accelerator, "ON_DEMAND", known, is_short=True) == (metric, f"PREEMPTIBLE_{metric}")
    assert regional_metrics(accelerator, "ON_DEMAND", none_granted, is_short=True) == (metric,)
    assert regional_metrics(accelerator, "SPOT", known, is_short=True) == (f"PREEMPTIBLE_{metric}",)
    assert regional_metrics(accelerator, "SPOT", none_granted, is_short=False) == (metric,)


def test_says_name_limit_use_and_need() -> None:
    spec = n1(accelerator={"count": 4})
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
    assert verdict.over_quota == {f"train-gpu-{zone}-g2-standard-4-spot" for zone in "ab"}
    (note,) = verdict.notes
    assert note.startswith("g2-standard-4 spot is not tried: quota PREEMPTIBLE_NVIDIA_L4_GPUS in us-central1 is 1")


def test_quotas_that_have_room_for_some_are_used_together() -> None:
    spec = pool(capacity_types=["SPOT", "ON_DEMAND"])
    quotas = quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 2), quota("NVIDIA_L4_GPUS", 2)
    assert judged(spec, 4, *quotas) == Verdict()
    with pytest.raises(QuotaExceeded):
        judged(spec, 5, *quotas)
    with pytest.raises(QuotaExceeded):
        judged(spec, 4, *quotas, quota("GPUS_ALL_REGIONS", 3))


def test_machines_that_live_for_a_week_at_most_may_use_the_preemptible_quota_too() -> None:
    quotas = quota("NVIDIA_L4_GPUS", 1, 1), quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 8)
    assert judged(pool(), 8, *quotas) == Verdict()
    week = timedelta(days=7)
    assert judged(pool(max_run_duration=week), 1, *quotas) == Verdict()
    with pytest.raises(QuotaExceeded):
        judged(pool(max_run_duration=week + timedelta(seconds=1)), 1, *quotas)
    with pytest.raises(QuotaExceeded):
        judged(pool(min_nodes=1), 1, *quotas)  # machines that stay have no end
    with pytest.raises(QuotaExceeded) as raised:
        judged(pool(), 9, *quotas)
    both = (
        "quota NVIDIA_L4_GPUS in us-central1 is 1, 1 are used and quota PREEMPTIBLE_NVIDIA_L4_GPUS in us-central1 is 8"
    )
    assert both in str(raised.value)
    assert raised.value.details["quota"] == "NVIDIA_L4_GPUS"


def test_a_reservation_counts_against_the_quotas_itself() -> None:
    used_up = quota("NVIDIA_L4_GPUS", 8, 8), quota("GPUS_ALL_REGIONS", 8, 8)
    assert judged(pool(reservation_affinity=RESERVED), 4, *used_up) == Verdict()
    with pytest.raises(QuotaExceeded):
        judged(pool(reservation_affinity={"consume_reservation_type": "ANY_RESERVATION"}), 4, *used_up)


def test_flex_start_counts_as_spot_does() -> None:
    with pytest.raises(QuotaExceeded, match="PREEMPTIBLE_NVIDIA_L4_GPUS"):
        judged(pool(**FLEX_START), 1, quota("NVIDIA_L4_GPUS", 8), quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, 1))


rooms = st.integers(0, 9)


@given(standard=rooms, preemptible=rooms, everywhere=rooms, missing=st.integers(1, 4), gpus=st.sampled_from([1, 2, 4]))
def test_short_lived_machines_are_refused_only_where_no_way_to_charge_them_fits(
    standard: int, preemptible: int, everywhere: int, missing: int, gpus: int
) -> None:
    spec = n1(accelerator={"count": gpus})
    quotas = (
        quota("NVIDIA_T4_GPUS", standard),
        quota("PREEMPTIBLE_NVIDIA_T4_GPUS", preemptible),
        quota("GPUS_ALL_REGIONS", everywhere),
    )
    fits = missing * gpus <= everywhere and any(
        here * gpus <= standard and (missing - here) * gpus <= preemptible for here in range(missing + 1)
    )
    if fits:
        assert judged(spec, missing, *quotas) == Verdict()
    else:
        with pytest.raises(QuotaExceeded):
            judged(spec, missing, *quotas)
