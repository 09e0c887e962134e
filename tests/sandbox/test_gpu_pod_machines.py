"""GpuPodOperator and its machines: none to be had, brought along, lost, broken. Each test has a pool of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import BadGpu, GpuError, OutOfStock, PodPreempted
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.demand_leases import delete_demand, list_demand, write_demand
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.faults import Stockout
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import FOREVER, pod, running_pod
from tests.sandbox.running import airflow_says, context_of, copy_of, eventually, meanwhile, run
from tests.sandbox.ways import DEFERRED_BY_DAY


@pytest.fixture
def looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is looked at each second while a pod waits."""
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)


pytestmark = pytest.mark.usefixtures("api", "now", "looked_after")


def nodes(api: client.CoreV1Api, pool: EksGpuPool) -> list[str]:
    return [node.metadata.name for node in api.list_node(label_selector=f"{POOL_LABEL}={pool.name}").items]


@DEFERRED_BY_DAY
@pytest.mark.usefixtures("stock_out_first")
def test_pod_for_which_there_is_no_machine_is_out_of_stock(gpu_sandbox: Sandbox, deferrable: bool) -> None:
    """No Ensure has met the stock-out: it came after it, or there is none."""
    dry = eks_pool(gpu_sandbox, f"dry-{'deferred' if deferrable else 'blocking'}")
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=dry, deferrable=False))
    run(ScaleDownSensor(task_id="zero", gpu_pool=dry))
    gpu_sandbox.faults.add(Stockout(zone=gpu_sandbox.zones[0], instance_type="g6.xlarge"))
    try:
        with pytest.raises(OutOfStock, match=r"got no node in 12 s\. .*No capacity for g6\.xlarge on-demand"):
            run(pod(dry, "true", schedule_timeout_seconds=12, deferrable=deferrable))
    finally:
        gpu_sandbox.faults.clear()


@pytest.mark.nightly  # by day test_pod_without_block.py begins each of its nights so
def test_pod_that_no_demand_covers_brings_its_node_and_takes_it_along(
    gpu_sandbox: Sandbox, api: client.CoreV1Api
) -> None:
    alone = with_nodes(eks_pool(gpu_sandbox, "brings"))
    run(ScaleDownSensor(task_id="zero", gpu_pool=alone))
    run(pod(alone))
    eventually(lambda: not nodes(api, alone))


@pytest.fixture
def demand_of_another(api: client.CoreV1Api) -> Iterator[DemandKey]:
    """A run that wants nodes of a pool which no test has."""
    key, now = DemandKey(installation="tests", dag_id="another", run_id="r", pool="others"), datetime.now(UTC)
    lease = DemandLease(key=key, nodes=1, until=now + timedelta(hours=1), created_at=now)
    write_demand(api.api_client, lease, check=lambda: None)
    yield key
    delete_demand(api.api_client, key)


def test_trigger_takes_the_nodes_along_where_the_run_is_over(
    gpu_sandbox: Sandbox, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, demand_of_another: DemandKey
) -> None:
    """dagrun_timeout skips the scale-down."""
    over = eks_pool(gpu_sandbox, "over")
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=over, deferrable=False))
    task = pod(over, *FOREVER, termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    airflow_says(monkeypatch, states={context["run_id"]: {"train": "skipped"}}, unfinished_runs=0)
    trigger = copy_of(deferral.value.trigger)
    trigger.task_instance = context["ti"]
    asyncio.run(trigger.on_kill())
    assert not list_demand(api.api_client, over.name)
    eventually(lambda: not nodes(api, over))
    assert list_demand(api.api_client, demand_of_another.pool)


def test_lost_machine_is_a_preemption_and_the_next_pod_gets_another(
    gpu_sandbox: Sandbox, api: client.CoreV1Api
) -> None:
    """The pool is looked after while a pod waits: the machine that Ensure got is gone, and nobody runs Ensure again."""
    lost = with_nodes(eks_pool(gpu_sandbox, "lost"))

    def terminate() -> None:
        node = api.read_node(running_pod(api).spec.node_name)
        boto3.client("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=node.spec.provider_id.rpartition("/")[2], ShouldDecrementDesiredCapacity=True
        )

    thread = meanwhile(terminate)
    with pytest.raises(GpuError) as error:
        run(pod(lost, *FOREVER, termination_grace_period=1))
    thread.join()
    assert type(error.value) is PodPreempted
    eventually(lambda: not nodes(api, lost))
    assert run(pod(lost, "true")) is None


def test_broken_gpu_is_avoided_and_its_machine_replaced(gpu_sandbox: Sandbox, api: client.CoreV1Api) -> None:
    frail = with_nodes(eks_pool(gpu_sandbox, "frail"))
    (broken,) = nodes(api, frail)
    with pytest.raises(BadGpu, match=broken):
        run(pod(frail, "sh", "-c", "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered'; exit 1"))
    task = pod(frail, "true", on_finish_action="keep_pod")
    run(task, try_number=2)
    (kept,) = api.list_namespaced_pod("default").items
    assert kept.spec.node_name != broken
    eventually(lambda: broken not in nodes(api, frail))
