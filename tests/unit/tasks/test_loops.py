"""Task loops: what is refused in one. Where Airflow has none, a group stands in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, task_group

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, ScaleDownSensor, gpu_nodes
from airflow_gpu_provider.errors import PoolSpecError

POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2
)
AIRFLOW_HAS_LOOPS = hasattr(task_group(lambda: None), "loop")


class StandIn(TaskGroup):
    max_iterations = 3


def loop(body: Callable[[], Any]) -> None:
    """Put tasks into the loop "improve"."""
    if AIRFLOW_HAS_LOOPS:
        task_group(group_id="improve")(body).loop(max_iterations=3)
        return
    with StandIn("improve"):
        body()


def train(**arguments: Any) -> GpuPodOperator:
    return GpuPodOperator(task_id="train", image="busybox", gpus=1, **arguments)


@pytest.fixture
def dag() -> DAG:
    return DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1))


class TeamsScaleDown(ScaleDownSensor):
    """A team's own."""


def a_block() -> None:
    with gpu_nodes(POOL):
        train()


def a_block_in_a_group() -> None:
    with TaskGroup("inner"):
        a_block()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (a_block, "Block train-gpu of pool train-gpu"),
        (a_block_in_a_group, "Block train-gpu of pool train-gpu"),
        (lambda: EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL), "Task improve.ensure of pool train-gpu"),
        (lambda: TeamsScaleDown(task_id="zero", gpu_pool=POOL), "Task improve.zero of pool train-gpu"),
        (
            lambda: EnsureGpuPoolOperator.partial(task_id="ensure", gpu_pool=POOL).expand(nodes=[1, 2]),
            "Task improve.ensure of pool train-gpu",
        ),
    ],
)
def test_what_brings_or_releases_nodes_belongs_around_a_loop(dag: DAG, body: Callable[[], Any], what: str) -> None:
    with dag, pytest.raises(PoolSpecError) as refused:
        loop(body)
    assert refused.value.what.startswith(f"{what} is in the task loop improve, ")
    assert refused.value.fix.startswith("Put it around the loop")


def test_a_block_around_a_loop(dag: DAG) -> None:
    with dag, gpu_nodes(POOL, gpus=1):
        loop(train)
    assert dag.get_task("improve.train").block_id == "train-gpu"
    assert dag.get_task("train-gpu.ensure").get_flat_relative_ids() >= {"improve.train", "train-gpu.scale_down"}


def test_a_training_in_two_loops_is_refused(dag: DAG) -> None:
    with dag, StandIn("epochs"), StandIn("steps"), pytest.raises(PoolSpecError) as refused:
        train(gpu_pool=POOL)
    said = "Task epochs.steps.train is in the task loop epochs.steps, which is in the loop epochs: "
    assert refused.value.what.startswith(said)
