"""Airflow on machines whose clocks are minutes wrong: demand, pods and waits end when the API server says so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.callbacks import KubernetesPodOperatorCallback
from kubernetes.client import CoreV1Api
from kubernetes.config import new_client_from_config

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.api.clock import ServerClock, SystemClock
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler
from airflow_gpu_provider.scaling.apply.writes import Outcome
from airflow_gpu_provider.scaling.decide.snapshot import usable_nodes
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, eventually, lines_of, run

pytestmark = pytest.mark.nightly

MAX_RUNTIME = timedelta(hours=3)
CLOSE = timedelta(minutes=5)
"""How near to each other two times are that are meant to be the same, on a machine under load."""


class Wrong(SystemClock):
    """A machine's clock that is wrong."""

    def __init__(self, by: timedelta) -> None:
        self._by = by

    def now(self) -> datetime:
        return super().now() + self._by


@pytest.fixture(scope="module")
def env(env: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
        yield


def a_pool(sandbox: Sandbox, name: str) -> EksGpuPool:
    return EksGpuPool(
        name=name,
        cluster_name=sandbox.cluster_name,
        region=sandbox.region,
        instance_types=["g6.xlarge"],
        zones=[sandbox.zones[0]],
        max_nodes=1,
        max_runtime=MAX_RUNTIME,
    )


def machines(outcome: Outcome) -> list[str]:
    return [machine.id for group in outcome.snapshot.groups for machine in group.live]


def test_demand_ends_for_everybody_when_it_should(gpu_sandbox: Sandbox, env: None) -> None:
    """One installation's clock is slow, the other's is fast: nodes are neither taken early nor kept late."""
    pool = a_pool(gpu_sandbox, "wrong-clocks-demand")
    platform = platform_for(pool, owner="tests")
    platform.apply(platform.plan(1), print)
    eventually(lambda: all(group.status == "active" for group in platform.observe()))
    api = platform.cluster_access().api_client()

    def installation(name: str, minutes: int) -> Reconciler:
        clock = ServerClock(api, Wrong(timedelta(minutes=minutes)))
        return Reconciler(pool, platform_for(pool, owner="tests"), api, holder=name, report=print, clock=clock)

    slow, fast = installation("slow", -20), installation("fast", 20)
    key = DemandKey(installation="slow", dag_id="dag", run_id="run", pool=pool.name)
    slow.want(key, 1, slow.clock.now() + timedelta(hours=1))
    eventually(lambda: usable_nodes(slow.reconcile().snapshot))

    slow.want(key, 1, slow.clock.now() + timedelta(minutes=10))
    for _ in range(3):
        outcome = fast.reconcile()
        assert machines(outcome)
        assert not outcome.decision.release
    slow.want(key, 1, slow.clock.now() + timedelta(seconds=2))
    (lease,) = list_demand(api, pool.name)
    eventually(lambda: not machines(slow.reconcile()))
    half_of_an_answer = timedelta(seconds=3)  # by which a clock may be wrong that asks a busy server for the time
    assert datetime.now(UTC) >= lease.until - half_of_an_answer


@pytest.mark.parametrize("minutes", [-20, 20], ids=["slow", "fast"])
def test_a_night_on_machines_with_a_wrong_clock(
    gpu_sandbox: Sandbox, env: None, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker and triggerer are off by more than the task's time limits; what they write is right all the same."""
    pool = a_pool(gpu_sandbox, f"wrong-clocks-{'fast' if minutes > 0 else 'slow'}")
    core = CoreV1Api(new_client_from_config(gpu_sandbox.env()["KUBECONFIG"]))
    monkeypatch.setattr(SystemClock, "now", lambda _: datetime.now(UTC) + timedelta(minutes=minutes))
    seen: dict[str, Any] = {}

    class Created(KubernetesPodOperatorCallback):
        @staticmethod
        def on_pod_creation(*, pod: Any, **_: Any) -> None:
            seen["pod"] = core.read_namespaced_pod(pod.metadata.name, pod.metadata.namespace)

    began = datetime.now(UTC)
    result = run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, timeout=timedelta(minutes=5)))
    ensured_in = datetime.now(UTC) - began
    assert len(result["nodes"]) == 1
    assert sum(phase["seconds"] for phase in result["timeline"]) < (ensured_in + CLOSE).total_seconds()
    api = platform_for(pool).cluster_access().api_client()
    (lease,) = list_demand(api, pool.name)
    assert began + MAX_RUNTIME - CLOSE < lease.until < began + MAX_RUNTIME + ensured_in + CLOSE

    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool, timeout=timedelta(minutes=5)))
    train = GpuPodOperator(
        task_id="train",
        gpu_pool=pool,
        image="busybox:1.36",
        cmds=["true"],
        callbacks=Created,
        schedule_timeout_seconds=300,
        startup_timeout_seconds=300,
    )
    _, lines = lines_of(lambda: run(train, context_of(train)))
    assert seen["pod"].spec.active_deadline_seconds is None
    (waiting,) = [line for line in lines if line.startswith("Waiting in the triggerer for pod")]
    assert f"until {lease.until:%Y-%m-%d %H:%M:%SZ} at the latest" in waiting

    result = run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool, timeout=timedelta(minutes=5)))
    assert (result["nodes"], result["desired"]) == (0, 0)
    assert 0 <= result["seconds"] < 300
