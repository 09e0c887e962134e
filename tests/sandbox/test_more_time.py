"""A run's demand is extended while its training runs: what runs goes on, or nothing is written.

When a wait was to end is in its record; a test moves that to the present in place of the hours until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.clouds.base import platform_for
from airflow_gpu_provider.cluster.model.lease import DEMAND_NAMESPACE
from airflow_gpu_provider.errors import DemandNotExtended, PodDeadline
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.extend import ExtendGpuPoolOperator
from airflow_gpu_provider.operators.install_device_plugin import InstallDevicePluginOperator
from airflow_gpu_provider.pools import GpuPool
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.times import format_time
from gpu_sandbox.nodes import NodeSpec
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import FOREVER, gang, pod, running, running_pod
from tests.sandbox.running import Ti, context_of, copy_of, eventually, first_event, lines_of, resumption, run

HOUR = timedelta(hours=1)
SAVES = ["sh", "-c", "trap 'echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"]
NAMES = ("metal-m", "metal-n")

pytestmark = pytest.mark.usefixtures("now")


@pytest.fixture(scope="module", params=["direct", "autoscaler"])
def switched(request: pytest.FixtureRequest, gpu_sandbox: Sandbox, env: None) -> GpuPool:
    """A pool whose machines the cloud ends by itself."""
    return with_nodes(eks_pool(gpu_sandbox, f"more-{request.param}", scaling=request.param, max_runtime=6 * HOUR))


@pytest.fixture(scope="module")
def named(gpu_sandbox: Sandbox, env: None) -> Iterator[GpuPool]:
    """A pool of two machines that nobody ends."""
    for name in NAMES:
        gpu_sandbox.agent.add_node(NodeSpec(name=name, gpus=1))
    pool = KubernetesGpuPool(name="rack", nodes=[*NAMES], gpus_per_node=1, max_runtime=6 * HOUR)
    run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=2, deferrable=False))
    run(InstallDevicePluginOperator(task_id="device_plugin", gpu_pool=pool, deferrable=False))
    yield pool
    for name in NAMES:
        gpu_sandbox.agent.remove_node(name)


def extend(pool: GpuPool, **more: Any) -> list[dict[str, Any]]:
    task = ExtendGpuPoolOperator(
        task_id="extend",
        gpu_pools=[pool],
        dag_id_of_run=Ti.dag_id,
        run_id=Ti.run_id,
        hours=2,
        reason="a larger data set",
        **more,
    )
    context = context_of(task)
    context["ti"].get_dr_count = lambda **_: 1
    done: list[dict[str, Any]] = task.execute(context)
    return done


def demand_of(pool: GpuPool, api: client.CoreV1Api) -> DemandLease:
    (lease,) = list_demand(api.api_client, pool.name)
    return lease


@contextmanager
def held(pod: client.V1Pod, api: client.CoreV1Api) -> Iterator[None]:
    """Keep a pod's object from going."""

    def set_finalizers(*names: str) -> None:
        patch = {"metadata": {"finalizers": [*names] or None}}
        api.patch_namespaced_pod(pod.metadata.name, pod.metadata.namespace, patch)

    set_finalizers("example.com/held")
    try:
        yield
    finally:
        set_finalizers()


def deferred(step: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferral:
        step()
    return deferral.value


def at_its_deadline(deferral: TaskDeferred) -> Any:
    """Run the deferral's trigger when its wait was to end; return its event."""
    trigger: Any = copy_of(deferral.trigger)
    trigger.record["wait"]["deadline"] = format_time(datetime.now(UTC))
    return asyncio.run(first_event(trigger))


def test_a_training_goes_on_until_the_end_that_its_demand_has_by_then(switched: GpuPool, api: client.CoreV1Api) -> None:
    task = pod(switched, *SAVES, on_finish_action="keep_pod")
    context = context_of(task)
    first = deferred(lambda: task.execute(context))
    its_pod = running_pod(api)
    eventually(lambda: "begun" in api.read_namespaced_pod_log(its_pod.metadata.name, "default"))
    assert its_pod.spec.active_deadline_seconds is None
    before = demand_of(switched, api)
    (switch,) = {each.switch_at for each in platform_for(switched).observe() if each.switch_at}

    extend(switched)
    after = demand_of(switched, api)
    assert after.until == before.until + 2 * HOUR
    assert {each.switch_at - switch for each in platform_for(switched).observe() if each.switch_at} == {2 * HOUR}

    event = at_its_deadline(first)
    assert datetime.fromisoformat(event["extended_until"]) == after.until
    again = deferred(resumption(task, first, context, event))
    assert again.trigger.record["wait"]["deadline"] == event["extended_until"]
    assert running_pod(api).metadata.uid == its_pod.metadata.uid

    notes = {"metadata": {"annotations": {"airflow-gpu-provider/until": format_time(datetime.now(UTC))}}}
    leases = client.CoordinationV1Api(api.api_client)
    leases.patch_namespaced_lease(after.key.lease_name, DEMAND_NAMESPACE, notes)

    def ends() -> None:
        with pytest.raises(PodDeadline, match="had not finished at its deadline"):
            resumption(task, again, context, at_its_deadline(again))()

    with held(its_pod, api):  # its node is released, and the pod goes with it
        _, lines = lines_of(ends)
        left = api.read_namespaced_pod(its_pod.metadata.name, "default")
    assert any("is at its deadline: it has 30 s to stop" in line for line in lines)
    assert "[base] saved" in lines
    assert (left.status.phase, left.status.reason) == ("Failed", "DeadlineExceeded"), "it is kept, and does not run"


def test_where_a_pod_ends_all_the_same_nothing_is_written(named: GpuPool, api: client.CoreV1Api) -> None:
    task = pod(named, *FOREVER)
    deferred(lambda: task.execute(context_of(task)))
    its_pod = running_pod(api)
    ends_at = its_pod.status.start_time + timedelta(seconds=its_pod.spec.active_deadline_seconds)
    before = demand_of(named, api)
    with pytest.raises(DemandNotExtended, match=f"ends pod default/train-.* at {ends_at:%Y-%m-%d %H:%M:%SZ}"):
        extend(named)
    assert demand_of(named, api) == before
    extend(named, pods_may_end=True)
    assert demand_of(named, api).until == before.until + 2 * HOUR


def test_a_gang_runs_on_where_nothing_but_its_job_ends_it(named: GpuPool, api: client.CoreV1Api) -> None:
    task = gang(named, "while :; do sleep 0.1; done")
    deferral = deferred(lambda: task.execute(context_of(task)))
    ranks = asyncio.run(admitted(deferral, api))
    batch = client.BatchV1Api(api.api_client)
    (before,) = batch.list_namespaced_job("default").items
    until = demand_of(named, api).until
    assert all(each.spec.active_deadline_seconds is None for each in ranks)
    extend(named)
    (after,) = batch.list_namespaced_job("default").items
    assert demand_of(named, api).until == until + 2 * HOUR
    assert after.spec.active_deadline_seconds >= before.spec.active_deadline_seconds + 7190
    assert datetime.fromisoformat(at_its_deadline(deferral)["extended_until"]) == until + 2 * HOUR


async def admitted(deferral: TaskDeferred, api: client.CoreV1Api) -> list[client.V1Pod]:
    """Watch until both ranks run: who waits for a gang admits it."""
    watch = asyncio.create_task(first_event(copy_of(deferral.trigger)))
    found: list[client.V1Pod] = await asyncio.to_thread(eventually, lambda: running(api, 2))
    watch.cancel()
    await asyncio.wait([watch])
    return found
