"""Arguments of GpuPodOperator and GpuWorkloadOperator that are refused while the DAG is parsed, in words."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, GpuWorkloadOperator, gpu_nodes
from airflow_gpu_provider.errors import CheckpointUnusable, PoolSpecError
from airflow_gpu_provider.tasks.pool_operator import duration
from tests.unit.training.manifests import a

POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["p5.48xlarge"], max_nodes=4
)


def pod(**arguments: Any) -> GpuPodOperator:
    return GpuPodOperator(**{"task_id": "train", "image": "train", "gpu_pool": POOL} | arguments)


def gang(**arguments: Any) -> GpuPodOperator:
    return pod(nodes=2, **arguments)


def workload(**arguments: Any) -> GpuWorkloadOperator:
    return GpuWorkloadOperator(**{"task_id": "train", "manifest": a("Job"), "gpu_pool": POOL} | arguments)


WRONG = [
    {"gpu_pool": "train-gpu"},
    {"schedule_timeout_seconds": "60"},
    {"schedule_timeout_seconds": timedelta(minutes=1)},
    {"startup_timeout_seconds": -1},
    {"startup_timeout_seconds": math.nan},
    {"startup_timeout_seconds": True},
    {"termination_grace_period": "30s"},
    {"termination_grace_period": -1},
    {"termination_grace_period": 1.5},
    {"namespace": "My Team"},
    {"namespace": 5},
    {"shm_size": "lots"},
    {"shm_size": 8},
    {"max_preemptions": "3"},
    {"max_preemptions": None},
    {"max_preemptions": 1.5},
]


@pytest.mark.parametrize("make", [pod, gang, workload])
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_cannot_be_meant_is_refused(make: Any, wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(PoolSpecError) as refused:
        make(**wrong)
    assert f"{name}={value!r}" in refused.value.what
    assert refused.value.fix


@pytest.mark.parametrize("make", [pod, gang, workload])
@pytest.mark.parametrize(
    "right",
    [
        {"schedule_timeout_seconds": 0.5},
        {"termination_grace_period": 0},
        {"termination_grace_period": None},
        {"namespace": "{{ params.team }}"},
        {"namespace": "team-a"},
        {"shm_size": "0"},
        {"shm_size": "1.5Gi"},
        {"max_preemptions": 0},
    ],
    ids=str,
)
def test_what_can_be_meant_is_taken(make: Any, right: dict[str, Any]) -> None:
    ((name, value),) = right.items()
    assert getattr(make(**right), name) == value


def test_a_pod_without_a_time_for_its_node_has_that_for_its_start() -> None:
    """As KubernetesPodOperator has it; a workload has no such rule."""
    assert pod(schedule_timeout_seconds=None, startup_timeout_seconds=90).schedule_timeout_seconds == 90
    with pytest.raises(PoolSpecError, match="schedule_timeout_seconds"):
        workload(schedule_timeout_seconds=None)


@pytest.mark.parametrize("name", ["", "my training", "a" * 221])
def test_a_name_that_would_be_refused_when_it_runs_is_refused_now(name: str) -> None:
    with pytest.raises(PoolSpecError, match="name="):
        pod(name=name)
    pod(name="Train.My_model-1")


@pytest.mark.parametrize("gpus", [1.5, True, None, "half", "{{ params.gpus }}", -1, 0])
def test_gpus_are_a_whole_number(gpus: Any) -> None:
    with pytest.raises(PoolSpecError, match="gpus="):
        pod(gpus=gpus)


def test_gpus_may_be_the_digits_of_a_variable() -> None:
    assert pod(gpus="8").gpus == "8"


def test_what_a_mapped_task_has_in_common_is_checked_too() -> None:
    with (
        DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1), default_args={"termination_grace_period": "9s"}),
        pytest.raises(PoolSpecError, match="termination_grace_period='9s'"),
    ):
        GpuPodOperator.partial(task_id="train", image="train", gpu_pool=POOL)


def test_what_a_mapped_task_asks_of_its_pool_is_checked_too() -> None:
    with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1)):
        with pytest.raises(PoolSpecError, match="gpus=16"):
            GpuPodOperator.partial(task_id="train", image="train", gpu_pool=POOL, gpus=16)
        with pytest.raises(PoolSpecError, match="gpus=16"), gpu_nodes(POOL):
            GpuPodOperator.partial(task_id="train", image="train", gpus=16)
        with pytest.raises(PoolSpecError, match="Task sweep of DAG nightly: The manifest has the kind 'Pod'"):
            GpuWorkloadOperator.partial(task_id="sweep", gpu_pool=POOL, manifest={"apiVersion": "v1", "kind": "Pod"})
        with pytest.raises(PoolSpecError, match="namespace='My Team'"):
            GpuWorkloadOperator.partial(task_id="other", gpu_pool=POOL, namespace="My Team")


@pytest.mark.parametrize("count", [2.0, True, "two", "1.5"])
@pytest.mark.parametrize("name", ["nodes", "gpus", "at_least", "gang"])
def test_ensure_counts_in_whole_numbers(name: str, count: Any) -> None:
    with pytest.raises(PoolSpecError, match=f"{name}={count!r}"):
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, **{"nodes": 2} | {name: count})


@pytest.mark.parametrize("count", ["{{ params.nodes }}", "2", 2])
def test_ensure_takes_what_is_still_to_be_rendered(count: Any) -> None:
    assert EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL, nodes=count).nodes == count


@given(st.one_of(st.floats(max_value=-1e-9), st.floats(min_value=9e13), st.just(math.nan), st.booleans()))
def test_a_wrong_duration_is_shown_as_it_was_given(seconds: float) -> None:
    with pytest.raises(PoolSpecError) as refused:
        duration("hang_timeout", seconds)
    assert refused.value.what == f"hang_timeout={seconds!r}."


@given(st.floats(min_value=0, max_value=86_399_999_999_999))
def test_any_other_number_is_a_duration(seconds: float) -> None:
    assert duration("hang_timeout", seconds) == timedelta(seconds=seconds)


def test_a_checkpoint_on_the_containers_own_disk_is_refused_before_it_costs_a_node() -> None:
    with pytest.raises(CheckpointUnusable, match="mounts no volume"):
        pod(checkpoint="/checkpoints")
    for other in ("s3://bucket/folder", "{{ var.value.checkpoint }}"):
        pod(checkpoint=other)


def test_exit_codes_in_default_args_are_for_the_tasks_with_a_checkpoint() -> None:
    with DAG("codes", default_args={"resume_on_exit_codes": [75]}, start_date=datetime(2026, 1, 1), schedule=None):
        without, resumed = pod(task_id="without"), pod(task_id="resumed", checkpoint="s3://bucket/run")
        with pytest.raises(PoolSpecError, match="skip_on_exit_code"):
            pod(task_id="skipped", checkpoint="s3://bucket/run", skip_on_exit_code=75)
        with pytest.raises(PoolSpecError, match="max_preemptions=0"):
            pod(task_id="once", checkpoint="s3://bucket/run", max_preemptions=0)
    assert not without._preemptions().on_exit_codes
    assert resumed._preemptions().on_exit_codes == {75}
