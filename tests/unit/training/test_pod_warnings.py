"""What a task's log warns of before its pod is created."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import V1Container, V1Pod, V1PodSpec

from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.training.life.task_attempt import check_pods
from tests.unit.clouds.aws.test_eks_pool import pool as eks
from tests.unit.clouds.google.test_gke_pool import pool as gke


def warned(pool: GpuPool, caplog: pytest.LogCaptureFixture, **spec: Any) -> str:
    caplog.clear()
    platform = SimpleNamespace(observe=tuple)
    cluster = SimpleNamespace(pool=pool, core_v1_client=None, platform=platform)
    run: Any = SimpleNamespace(
        cluster=cluster, settings=SimpleNamespace(checkpoint=""), log=logging.getLogger("airflow.task")
    )
    pod = V1Pod(spec=V1PodSpec(containers=[V1Container(name="base")], **spec))
    check_pods(run, [(pod, "base", 1)], is_wanted=lambda: True)
    return caplog.text


@pytest.mark.parametrize(
    ("pool", "longest"),
    [
        (gke(capacity_types=["SPOT"]), 15),
        (gke(capacity_types=["ON_DEMAND", "PREEMPTIBLE"]), 15),
        (eks(capacity_types=["SPOT"]), 120),
    ],
)
def test_grace_period_that_a_spot_machine_does_not_leave(
    pool: GpuPool, longest: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = warned(pool, caplog, termination_grace_period_seconds=longest + 1)
    assert f"terminationGracePeriodSeconds={longest + 1} has no effect" in told
    assert f"it has {longest} seconds then" in told
    assert "no effect" not in warned(pool, caplog, termination_grace_period_seconds=longest)
    assert "no effect" not in warned(pool, caplog)


def test_grace_period_of_machines_that_nobody_takes(caplog: pytest.LogCaptureFixture) -> None:
    assert "no effect" not in warned(gke(), caplog, termination_grace_period_seconds=600)
