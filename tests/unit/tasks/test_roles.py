"""Tasks are known by their role: subclasses, with a mixin before the operator too, have it, mapped or serialized."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_gpu_provider import (
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    InstallDevicePluginOperator,
    ScaleDownSensor,
    gpu_nodes,
)
from airflow_gpu_provider.decorators.gpu import GpuDecoratedOperator
from airflow_gpu_provider.errors import ScaleDownIsOver
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.operators.node_counts import check_scale_down_is_to_come, gang_size, work_is_to_come
from airflow_gpu_provider.sensors.former_blocks import blocks_of
from airflow_gpu_provider.tasks.pool_operator import PoolOperator
from airflow_gpu_provider.tasks.roles import role_of

POOL = EksGpuPool(name="train", cluster_name="c", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=4)


class OfTeam:
    """A team's mixin."""


def subclass(operator: type[BaseOperator], *, has_mixin: bool) -> Any:
    return type(f"Team{operator.__name__}", (OfTeam, operator) if has_mixin else (operator,), {})


class Run:
    """A task instance in a run in which every task has ended well."""

    dag_id, run_id, map_index = "d", "r", -1

    def get_task_states(self, *, task_ids: list[str], **which: Any) -> dict[str, dict[str, str]]:
        return {"r": dict.fromkeys(task_ids, "success")}

    def get_ti_count(self, **which: Any) -> int:
        return 0


@pytest.mark.parametrize("has_mixin", [False, True])
@pytest.mark.parametrize(
    ("operator", "role"),
    [
        (EnsureGpuPoolOperator, "ensure"),
        (InstallDevicePluginOperator, "device_plugin"),
        (GpuPodOperator, "training"),
        (GpuWorkloadOperator, "training"),
        (GpuDecoratedOperator, "training"),
        (ScaleDownSensor, "scale_down"),
    ],
)
def test_a_subclass_has_the_role(operator: type[PoolOperator], role: str, has_mixin: bool) -> None:
    assert subclass(operator, has_mixin=has_mixin).gpu_role == role


@pytest.mark.parametrize("has_mixin", [False, True])
def test_a_block_of_subclasses_has_the_guards(has_mixin: bool) -> None:
    ensure_type, pod_type, down_type = (
        subclass(each, has_mixin=has_mixin) for each in (EnsureGpuPoolOperator, GpuPodOperator, ScaleDownSensor)
    )
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        ensure = ensure_type(task_id="ensure", gpu_pool=POOL)
        train = pod_type(task_id="train", gpu_pool=POOL, image="train:1", nodes=3)
        down = down_type(task_id="down", gpu_pool=POOL).as_teardown(setups=[ensure])
        ensure >> train >> down
    assert gang_size(ensure) == 3
    assert not work_is_to_come(ensure, Run())
    with pytest.raises(ScaleDownIsOver, match="down has already run"):
        check_scale_down_is_to_come(ensure, Run())
    assert blocks_of(dag) == {("train", "")}


def test_mapped_tasks_and_serialized_ones_have_it() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag, gpu_nodes(POOL, gpus=1):
        subclass(GpuPodOperator, has_mixin=True)(task_id="one", image="train:1")
        subclass(GpuPodOperator, has_mixin=True).partial(task_id="many", image="train:1").expand(arguments=[["a"]])
    assert {each.task_id: role_of(each) for each in dag.tasks if role_of(each)} == {
        "train.ensure": "ensure",
        "train.device_plugin": "device_plugin",
        "one": "training",
        "many": "training",
        "train.scale_down": "scale_down",
        "train.done": "verdict",
    }
    kept = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert kept.get_task("one").gpu_role == "training"


def test_tasks_of_other_packages_have_none() -> None:
    assert role_of(BaseOperator(task_id="other")) == ""
