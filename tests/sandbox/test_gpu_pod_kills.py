"""GpuPodOperator and the end of its task: the next try, a worker that has to stop, a triggerer that is gone or late."""

from __future__ import annotations

import asyncio

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import (
    PodDeadline,
    TaskKilled,
)
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import FOREVER, pod, pods, running_pod
from tests.sandbox.running import (
    airflow_says,
    context_of,
    copy_of,
    eventually,
    first_event,
    run,
    told_to_stop,
)


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with one node."""
    return with_nodes(eks_pool(gpu_sandbox, "kills"))


pytestmark = pytest.mark.usefixtures("api", "now")


def test_next_try_deletes_what_the_last_one_left(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    for number in (1, 2):
        task = pod(pool, *FOREVER, termination_grace_period=1)
        with pytest.raises(TaskDeferred):
            task.execute(context_of(task, try_number=number))
    (left,) = pods(api)
    assert left.metadata.labels["try_number"] == "2"


def test_same_try_goes_on_with_its_pod(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    first, second = pod(pool, *FOREVER), pod(pool, *FOREVER)
    context = context_of(first)
    for task in (first, second):
        with pytest.raises(TaskDeferred):
            task.execute(context)
    assert len(pods(api)) == 1


def test_other_tasks_pods_are_left_alone(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    for ti in ({"map_index": 0}, {"map_index": 1}, {"run_id": "another"}, {"dag_id": "other"}):
        task = pod(pool, *FOREVER)
        with pytest.raises(TaskDeferred):
            task.execute(context_of(task, **ti))
    assert len(pods(api)) == 4


def test_sigterm_deletes_the_pod_and_is_never_green(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    task = pod(pool, *FOREVER, deferrable=False, termination_grace_period=1)
    with told_to_stop(task, lambda: running_pod(api)), pytest.raises(TaskKilled):
        run(task)
    eventually(lambda: not pods(api))


@pytest.mark.parametrize(
    ("state", "is_deleted"), [("deferred", False), ("failed", True), (None, True), ("queued", True)]
)
def test_trigger_deletes_the_pod_of_a_task_that_was_killed(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, state: str | None, is_deleted: bool
) -> None:
    task = pod(pool, *FOREVER, termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    airflow_says(monkeypatch, states={context["run_id"]: {"train": state} if state else {}}, unfinished_runs=1)
    trigger = copy_of(deferral.value.trigger)
    trigger.task_instance = context["ti"]
    asyncio.run(trigger.on_kill())
    assert bool(pods(api)) is not is_deleted
    assert list_demand(api.api_client, pool.name)


@pytest.mark.parametrize(("state", "is_deleted"), [("running", False), ("failed", True)])
def test_trigger_that_comes_back_late_leaves_what_has_ended_to_the_worker_that_collects_it(
    pool: EksGpuPool, api: client.CoreV1Api, monkeypatch: pytest.MonkeyPatch, state: str, is_deleted: bool
) -> None:
    """Another triggerer took the wait over while this one stood still, and has sent the event."""
    task = pod(
        pool, "sh", "-c", "echo '[1]' > /airflow/xcom/return.json", do_xcom_push=True, termination_grace_period=1
    )
    context = context_of(task)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context)
    event = asyncio.run(first_event(copy_of(deferral.value.trigger)))
    airflow_says(monkeypatch, states={context["run_id"]: {"train": state}}, unfinished_runs=1)
    late = copy_of(deferral.value.trigger)
    late.task_instance = context["ti"]
    asyncio.run(late.on_kill())
    assert bool(pods(api)) is not is_deleted
    if not is_deleted:
        assert task.trigger_reentry(context, event) == [1]


def test_trigger_that_died_leaves_no_pod(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    task = pod(pool, *FOREVER, termination_grace_period=1)
    context = context_of(task)
    with pytest.raises(TaskDeferred):
        task.execute(context)
    with pytest.raises(PodDeadline, match="triggerer"):
        pod(pool).resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert not pods(api)
