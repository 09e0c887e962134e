"""A training that has succeeded, and whose log and result nobody has collected: the task's next try does so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.gpu_tasks import gang, pod, pods
from tests.sandbox.running import context_of, copy_of, eventually, first_event, lines_of, run
from tests.sandbox.ways import BOTH_WAYS

pytestmark = pytest.mark.usefixtures("api", "now")

TRAINS = """echo "trained, for {{ ts }}"; echo '{"auc": 0.9}' > /airflow/xcom/return.json"""
Make = Callable[..., Any]


@pytest.fixture(scope="module")
def pool(gpu_sandbox: Sandbox, env: None) -> EksGpuPool:
    """A pool with two nodes of one GPU."""
    return with_nodes(eks_pool(gpu_sandbox, "stands", max_nodes=2), nodes=2)


def a_pod(pool: EksGpuPool, script: str = TRAINS, **changes: Any) -> Any:
    return pod(pool, "sh", "-c", script, retries=1, do_xcom_push=True, **changes)


def a_gang(pool: EksGpuPool, script: str = TRAINS, **changes: Any) -> Any:
    return gang(pool, script, retries=1, do_xcom_push=True, **changes)


def a_workload(pool: EksGpuPool, script: str = "echo 'trained, for {{ ts }}'", **changes: Any) -> Any:
    limits = {"limits": {"nvidia.com/gpu": 1}}
    container = {"name": "train", "image": "busybox:1.36", "command": ["sh", "-c", script], "resources": limits}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    manifest = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"backoffLimit": 0, "template": template}}
    return GpuWorkloadOperator(task_id="train", gpu_pool=pool, manifest=manifest, retries=1, **changes)


ALL = pytest.mark.parametrize(
    ("make", "result"),
    [(a_pod, {"auc": 0.9}), (a_gang, {"auc": 0.9}), (a_workload, None)],
    ids=["pod", "gang", "workload"],
)


def left_by_the_first_try(make: Make, pool: EksGpuPool, **changes: Any) -> None:
    """Let a first try train to its end, and its worker be killed before it has collected anything."""
    task = make(pool, **changes)
    with pytest.raises(TaskDeferred) as deferral:
        task.execute(context_of(task, max_tries=1))
    asyncio.run(first_event(copy_of(deferral.value.trigger)))


@ALL
@BOTH_WAYS
def test_the_next_try_collects_it(
    pool: EksGpuPool, api: client.CoreV1Api, make: Make, result: Any, deferrable: bool
) -> None:
    left_by_the_first_try(make, pool)
    again = make(pool, deferrable=deferrable)
    context = context_of(again, try_number=2, max_tries=1)
    found, lines = lines_of(lambda: run(again, context))
    assert found == result
    assert any(line.endswith("trained, for {{ ts }}") for line in lines), lines
    assert any("of an earlier try, which has succeeded" in line for line in lines)
    assert context["ti"].xcoms["pod_namespace"] == "default"
    assert not any(line.startswith("Created ") for line in lines)
    eventually(lambda: not pods(api))


@ALL
def test_a_person_who_clears_it_has_it_trained_again(
    pool: EksGpuPool, api: client.CoreV1Api, make: Make, result: Any
) -> None:
    left_by_the_first_try(make, pool)
    again = make(pool)
    found, lines = lines_of(lambda: run(again, context_of(again, try_number=2, max_tries=2)))
    assert found == result
    assert any(line.startswith("Created ") for line in lines)
    eventually(lambda: not pods(api))


@pytest.mark.parametrize(
    "changes",
    [{"image": "busybox:latest"}, {"env_vars": {"RATE": "0.1"}}, {"reattach_on_restart": False}],
)
def test_nor_is_another_training_taken_for_it(pool: EksGpuPool, api: client.CoreV1Api, changes: dict[str, Any]) -> None:
    left_by_the_first_try(a_pod, pool)
    (first,) = pods(api)
    again = a_pod(pool, **changes)
    with pytest.raises(TaskDeferred):
        again.execute(context_of(again, try_number=2, max_tries=1))
    (second,) = pods(api)
    assert second.metadata.uid != first.metadata.uid


def test_nor_is_one_that_was_collected_and_kept(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    kept = a_pod(pool, on_finish_action="keep_pod")
    run(kept, context_of(kept, max_tries=1))
    again = a_pod(pool, on_finish_action="keep_pod")
    _, lines = lines_of(lambda: run(again, context_of(again, try_number=2, max_tries=1)))
    assert any(line.startswith("Created ") for line in lines)


def test_one_whose_result_is_gone_is_trained_again_by_the_same_try(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    """A worker reads the result, which ends the container that keeps it, and is killed before Airflow has it."""
    left_by_the_first_try(a_pod, pool)
    (left,) = pods(api)
    a_pod(pool).pod_manager.extract_xcom_kill(left)
    eventually(lambda: pods(api)[0].status.phase == "Succeeded")
    again = a_pod(pool)
    found, lines = lines_of(lambda: run(again, context_of(again, try_number=2, max_tries=1)))
    assert found == {"auc": 0.9}
    assert any("The training is run again." in line for line in lines)


def test_one_that_nobody_collects_is_told_by_scale_down(pool: EksGpuPool, api: client.CoreV1Api) -> None:
    """Its task has no retries, and is red."""
    left_by_the_first_try(a_pod, pool)
    (left,) = pods(api)
    down = ScaleDownSensor(task_id="scale_down", gpu_pool=pool)
    context = context_of(down)
    with contextlib.suppress(TaskDeferred):
        down.execute(context)
    assert context["ti"].xcoms["uncollected"] == [f"default/{left.metadata.name}"]
    eventually(lambda: not pods(api))
