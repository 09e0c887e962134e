"""The reports as tasks: pools are asked at the same time, told in their order, and one that fails hides no other."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from airflow_gpu_provider.errors import ClusterUnreachable, GpuError, PoolNotUsable
from airflow_gpu_provider.operators.reports import GpuPoolDoctorOperator, GpuPoolStatusOperator
from airflow_gpu_provider.reports import doctor, status
from airflow_gpu_provider.reports.doctor import Finding
from tests.sandbox.running import context_of
from tests.unit.scaling.pools import pool, snapshot

NAMES = ("first", "away", "last")
POOLS = [pool(name=name) for name in NAMES]


class Ti:
    """Of a task's context, what takes XComs."""

    dag_id, run_id, task_id, map_index = "janitor", "r", "report", -1

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def executed(task: BaseOperator, ti: Ti) -> Any:
    return task.execute({**context_of(task), "ti": ti})  # type: ignore[typeddict-item]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> threading.Barrier:
    """Nobody is answered before all are asked."""
    monkeypatch.setattr("airflow_gpu_provider.operators.reports._ReportOperator._open", lambda self, _, pool: pool)
    return threading.Barrier(len(NAMES))


def test_a_pool_that_cannot_be_read_fails_the_task_and_hides_no_other(
    together: threading.Barrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(pool: Any) -> status.PoolStatus:
        together.wait(60)
        if pool.name == "away":
            raise ClusterUnreachable("It does not answer.")
        return status.pool_status(snapshot(spec=pool), "here")

    monkeypatch.setattr(status, "read_status", read)
    ti = Ti()
    with pytest.raises(ClusterUnreachable, match="It does not answer"):
        executed(GpuPoolStatusOperator(task_id="status", gpu_pools=POOLS), ti)
    assert [each["pool"] for each in ti.pushed["return_value"]] == ["first", "last"]


def test_the_doctor_tells_all_pools_in_their_order(
    together: threading.Barrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(pool: Any, connect: Any, *, pod_namespace: str) -> tuple[Finding, ...]:
        together.wait(60)
        try:
            assert connect() is pool
        except GpuError:
            raise AssertionError from None
        return (Finding(pool=pool.name, check="cluster", result="problem", message=f"{pod_namespace}?", fix="See."),)

    monkeypatch.setattr(doctor, "examine", examine)
    ti = Ti()
    with pytest.raises(PoolNotUsable, match="Pool first, cluster: ml\\?; Pool away"):
        executed(GpuPoolDoctorOperator(task_id="doctor", gpu_pools=POOLS, pod_namespace="ml"), ti)
    assert [each["pool"] for each in ti.pushed["findings"]] == list(NAMES)
