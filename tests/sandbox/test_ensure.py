"""EnsureGpuPoolOperator when it fails, is told to stop or is killed: nothing is left that costs money, never green."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_gpu_provider import DeleteGpuPoolOperator, EksGpuPool, ScaleDownSensor
from airflow_gpu_provider.errors import CloudError, NodesNotReady, OutOfStock, TaskKilled
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.testing import first_event
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import (
    airflow_says,
    context_of,
    copy_of,
    eventually,
    in_worker,
    resumption,
    run,
    timing_out_once,
    told_to_stop,
)


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
        instance_types=("g5.xlarge",),
        zones=(zone,),
        max_nodes=1,
    )
    gpu_sandbox.faults.add(Stockout(zone=zone))
    yield EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False, timeout=timedelta(seconds=15))
    gpu_sandbox.faults.clear()


def demand_of(sandbox: Sandbox, pool: str) -> list[str]:
    path = "/apis/coordination.k8s.io/v1/namespaces/airflow-gpu-provider/leases"
    _, reply = sandbox.control_plane.request("GET", path)
    mine = [lease for lease in reply.get("items", []) if lease["metadata"]["labels"].get(POOL_LABEL) == pool]
    return [lease["metadata"]["name"] for lease in mine if lease["metadata"]["name"].startswith("demand-")]


def desired(sandbox: Sandbox) -> int:
    groups = sandbox.aws.describe_groups()
    return sum(group["desired"] for group in groups if str(group["nodegroup"]).startswith("no-stock-"))


@pytest.mark.usefixtures("stock_out_first")
def test_a_stock_out_everywhere_is_told_and_given_up(gpu_sandbox: Sandbox, operator: EnsureGpuPoolOperator) -> None:
    with pytest.raises(OutOfStock, match=r"No capacity for g5.xlarge on-demand in us-west-2c"):
        run(operator)
    assert demand_of(gpu_sandbox, "no-stock") == []
    eventually(lambda: desired(gpu_sandbox) == 0)


def test_sigterm_gives_the_demand_up_and_is_never_green(gpu_sandbox: Sandbox, operator: EnsureGpuPoolOperator) -> None:
    operator.wait_timeout = timedelta(minutes=5)
    told = pytest.raises(TaskKilled, match="received SIGTERM; at that point it ensured pool no-stock")
    with told_to_stop(operator, lambda: demand_of(gpu_sandbox, "no-stock")), told:
        run(operator)
    assert demand_of(gpu_sandbox, "no-stock") == []
    eventually(lambda: desired(gpu_sandbox) == 0)


def test_trigger_that_is_ended_gives_the_demand_up_unless_somebody_goes_on_with_it(
    gpu_sandbox: Sandbox, operator: EnsureGpuPoolOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow ends a trigger too when another triggerer has taken it over, or its task's next try has begun."""
    operator.deferrable, operator.wait_timeout = True, timedelta(minutes=5)
    context = context_of(operator)
    with pytest.raises(TaskDeferred) as deferral:
        operator.execute(context)
    for state in ("deferred", "queued", "running", "success", "failed"):
        airflow_says(monkeypatch, states={context["run_id"]: {"ensure": state}}, unfinished_runs=1)
        trigger = copy_of(deferral.value.trigger)
        trigger.task_instance = context["ti"]
        asyncio.run(trigger.on_kill())
        assert bool(demand_of(gpu_sandbox, "no-stock")) is (state != "failed"), state
    eventually(lambda: desired(gpu_sandbox) == 0)


# What Ensure leaves at each of its steps


@pytest.fixture
def slow(gpu_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[EksGpuPool]:
    """A pool of two zones whose machines take for ever to join."""
    for name, value in gpu_sandbox.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW__GPU_PROVIDER__INSTALLATION_ID", "tests")
    gpu_sandbox.faults.boot_seconds = 600.0
    pool = EksGpuPool(
        name="slow-boot",
        cluster_name=gpu_sandbox.cluster_name,
        region=gpu_sandbox.region,
        instance_types=("g5.xlarge",),
        zones=gpu_sandbox.zones[:2],
        max_nodes=1,
        max_runtime=timedelta(minutes=10),
    )
    yield pool
    gpu_sandbox.faults.clear()
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    run(DeleteGpuPoolOperator(task_id="delete", gpu_pool=pool))


def left_by(sandbox: Sandbox, pool: EksGpuPool) -> dict[str, int]:
    groups = [group for group in sandbox.cluster.groups() if str(group["nodegroup"]).startswith(f"{pool.name}-")]
    return {
        "desired": sum(group["desired"] for group in groups),
        "machines": sum(len(group["instances"]) for group in groups),
        "leases": len(demand_of(sandbox, pool.name)),
    }


ZERO = {"desired": 0, "machines": 0, "leases": 0}


def ensure(pool: EksGpuPool, **arguments: Any) -> EnsureGpuPoolOperator:
    return EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False, **arguments)


def test_a_group_that_cannot_be_created_after_another_one(
    gpu_sandbox: Sandbox, slow: EksGpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    created: list[str] = []

    class FailsAfterTheFirst(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("creating slow-boot-"):
                created.append(record.getMessage())
                gpu_sandbox.faults.set_error_rate(1.0, service="eks")

    operator = ensure(slow, timeout=timedelta(seconds=15))
    logger = logging.getLogger("tests.ensure")
    logger.setLevel(logging.INFO)
    logger.addHandler(FailsAfterTheFirst())
    monkeypatch.setattr(type(operator), "log", logger)
    with pytest.raises(CloudError, match=r"eks:\w+ failed"):
        run(operator)
    assert len(created) == 1

    def groups() -> list[dict[str, Any]]:
        return [group for group in gpu_sandbox.cluster.groups() if str(group["nodegroup"]).startswith("slow-boot-")]

    # EKS makes the Auto Scaling group some time after the node group.
    eventually(groups)
    assert len(groups()) == 1
    assert left_by(gpu_sandbox, slow) == ZERO


def test_machines_that_do_not_join_in_time_are_let_go(gpu_sandbox: Sandbox, slow: EksGpuPool) -> None:
    with pytest.raises(NodesNotReady):
        run(ensure(slow, timeout=timedelta(seconds=6)))
    assert demand_of(gpu_sandbox, slow.name) == []
    eventually(lambda: left_by(gpu_sandbox, slow) == ZERO)


def test_an_execution_timeout_while_a_machine_boots_lets_it_go(gpu_sandbox: Sandbox, slow: EksGpuPool) -> None:
    operator = ensure(slow, execution_timeout=timedelta(hours=1))
    with (
        timing_out_once(lambda: left_by(gpu_sandbox, slow)["machines"]),
        pytest.raises(TaskKilled, match="received SIGTERM; at that point it ensured pool slow-boot"),
    ):
        in_worker(operator, context_of(operator))
    assert demand_of(gpu_sandbox, slow.name) == []
    eventually(lambda: left_by(gpu_sandbox, slow) == ZERO)


def test_a_deferred_wait_is_ended_by_its_timeout_and_not_by_its_execution_timeout(
    gpu_sandbox: Sandbox, slow: EksGpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow counts the latter for each leg in a worker, and the triggerer is told of the former."""
    monkeypatch.setattr("airflow_gpu_provider.triggers.record.EVENT_AFTER_SECONDS", 0)
    operator = EnsureGpuPoolOperator(
        task_id="ensure", gpu_pool=slow, timeout=timedelta(seconds=6), execution_timeout=timedelta(minutes=5)
    )
    context = context_of(operator)
    with pytest.raises(TaskDeferred) as deferral:
        in_worker(operator, context)
    assert deferral.value.timeout is not None
    assert deferral.value.timeout > timedelta(seconds=6), "its own error comes first"
    event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
    with pytest.raises(NodesNotReady):
        resumption(operator, deferral.value, context, event)()
    assert demand_of(gpu_sandbox, slow.name) == []
    eventually(lambda: left_by(gpu_sandbox, slow) == ZERO)


def test_sigterm_while_a_machine_boots_lets_it_go(gpu_sandbox: Sandbox, slow: EksGpuPool) -> None:
    with in_a_worker(slow) as worker:
        eventually(lambda: left_by(gpu_sandbox, slow)["machines"])
        worker.terminate()
        assert worker.wait(120) != 0
    assert demand_of(gpu_sandbox, slow.name) == []
    eventually(lambda: left_by(gpu_sandbox, slow) == ZERO)


@pytest.mark.parametrize("step", ["leases", "machines"])
def test_a_worker_that_is_killed_leaves_it_to_the_run_s_scale_down(
    gpu_sandbox: Sandbox, slow: EksGpuPool, step: str
) -> None:
    """Between its demand and its size, or while the machine boots: the block's scale-down runs after either."""
    with in_a_worker(slow, grows=step == "machines") as worker:
        eventually(lambda: left_by(gpu_sandbox, slow)[step])
        worker.kill()
    left = left_by(gpu_sandbox, slow)
    assert left == {"desired": int(step == "machines"), "machines": int(step == "machines"), "leases": 1}
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=slow))
    eventually(lambda: left_by(gpu_sandbox, slow) == ZERO)


def test_with_nobody_left_the_switch_ends_what_a_killed_worker_had_grown(
    gpu_sandbox: Sandbox, slow: EksGpuPool
) -> None:
    with in_a_worker(slow) as worker:
        eventually(lambda: left_by(gpu_sandbox, slow)["machines"])
        worker.kill()
    begun = time.monotonic()
    gpu_sandbox.faults.deadline_speed = 300  # 25 minutes, max_runtime and the switch's margin, are 5 seconds
    eventually(lambda: not left_by(gpu_sandbox, slow)["machines"])
    assert time.monotonic() - begun > 4
    assert left_by(gpu_sandbox, slow)["desired"] == 0


@contextlib.contextmanager
def in_a_worker(pool: EksGpuPool, *, grows: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Run Ensure in a process of its own, as a worker does: its on_kill is SIGTERM's handler.

    One that does not grow its groups is as far as one whose demand was written just now.
    """
    program = """
import json, signal, sys
from airflow_gpu_provider.errors import CloudError
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.clouds.aws.platform import EksPlatform
from airflow_gpu_provider.clouds.pool_kinds import deserialize_pool
from tests.sandbox.running import run
operator = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=deserialize_pool(json.loads(sys.argv[1])), deferrable=False)
signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
def not_yet(*_):
    raise CloudError("Not yet.")
if sys.argv[2] == "False":
    EksPlatform.grow = not_yet
run(operator)
"""
    worker = subprocess.Popen([sys.executable, "-c", program, json.dumps(pool.serialize()), str(grows)])
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()
