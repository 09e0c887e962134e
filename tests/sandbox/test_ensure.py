"""EnsureGpuPoolOperator when it fails or is told to stop: nothing is left that costs money, and it is never green."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from airflow_gpu_provider.errors import OutOfStock, TaskKilled
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools import EksGpuPool
from airflow_gpu_provider.pools.base import POOL_LABEL
from airflow_gpu_provider.sandbox.faults import Stockout
from airflow_gpu_provider.sandbox.sandbox import Sandbox
from tests.sandbox.running import eventually, run


@pytest.fixture
def operator(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[EnsureGpuPoolOperator]:
    """Ensure for a pool whose only zone has nothing to give."""
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    zone = gpu_sandbox.zones[2]
    pool = EksGpuPool(
        name="no-stock",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=["g5.xlarge"],
        zones=[zone],
        max_nodes=1,
    )
    gpu_sandbox.faults.add(Stockout(zone=zone))
    yield EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False, timeout=timedelta(seconds=8))
    gpu_sandbox.faults.clear()


def leases(sandbox: Sandbox) -> list[str]:
    path = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
    _, reply = sandbox.control_plane.request("GET", path)
    mine = [lease for lease in reply.get("items", []) if lease["metadata"]["labels"].get(POOL_LABEL) == "no-stock"]
    return [lease["metadata"]["name"] for lease in mine if lease["metadata"]["name"].startswith("demand-")]


def desired(sandbox: Sandbox) -> int:
    groups = sandbox.aws.describe_groups()
    return sum(group["desired"] for group in groups if str(group["nodegroup"]).startswith("no-stock-"))


def test_a_stock_out_everywhere_is_told_and_given_up(gpu_sandbox: Sandbox, operator: EnsureGpuPoolOperator) -> None:
    with pytest.raises(OutOfStock, match=r"No capacity for g5.xlarge on-demand in us-west-2c"):
        run(operator)
    assert leases(gpu_sandbox) == []
    eventually(lambda: desired(gpu_sandbox) == 0)


def test_sigterm_gives_the_demand_up_and_is_never_green(gpu_sandbox: Sandbox, operator: EnsureGpuPoolOperator) -> None:
    operator.wait_timeout = timedelta(minutes=5)
    before = signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())

    def kill_when_it_waits() -> None:
        eventually(lambda: leases(gpu_sandbox))
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=kill_when_it_waits)
    killer.start()
    try:
        with pytest.raises(TaskKilled, match="was told to stop while it ensured pool no-stock"):
            run(operator)
    finally:
        killer.join()
        signal.signal(signal.SIGTERM, before)
    assert leases(gpu_sandbox) == []
    eventually(lambda: desired(gpu_sandbox) == 0)
