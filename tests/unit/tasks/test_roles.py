"""Tasks are known by their role: subclasses, with a mixin before the operator too, have it, mapped or serialized."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task
from airflow.sdk.bases.decorator import task_decorator_factory
from airflow.serialization.serialized_objects import DagSerialization

from airflow_gpu_provider import (
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    GpuPoolDoctorOperator,
    GpuPoolStatusOperator,
    InstallDevicePluginOperator,
    ReapGpuPoolsOperator,
    ScaleDownSensor,
    gpu_nodes,
)
from airflow_gpu_provider.decorators.gpu import GpuDecoratedOperator
from airflow_gpu_provider.errors import ScaleDownIsOver
from airflow_gpu_provider.operators.gpu_workload import GpuWorkloadOperator
from airflow_gpu_provider.operators.tasks_after_ensure import check_scale_down_is_to_come, gang_size, work_is_to_come
from airflow_gpu_provider.sensors.former_blocks import blocks_of
from airflow_gpu_provider.tasks.pool_operator import PoolOperator
from airflow_gpu_provider.tasks.roles import role_of

POOL = EksGpuPool(name="train", cluster_name="c", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=4)


PAGE = Path(__file__).parents[3] / "ui" / "test" / "records.test.ts"


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
        (GpuPoolStatusOperator, "status"),
        (GpuPoolDoctorOperator, "doctor"),
        (ReapGpuPoolsOperator, "reap"),
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


class OurSensor(ScaleDownSensor):
    custom_operator_name = "Our sensor"


def of_a_team(has_mixin: bool) -> DAG:
    """Return a DAG of subclasses of what the page shows, mapped and not."""
    ensure, plugin, pod, workload, decorated, status, doctor, reap = (
        subclass(each, has_mixin=has_mixin)
        for each in (
            *(EnsureGpuPoolOperator, InstallDevicePluginOperator, GpuPodOperator, GpuWorkloadOperator),
            *(GpuDecoratedOperator, GpuPoolStatusOperator, GpuPoolDoctorOperator, ReapGpuPoolsOperator),
        )
    )
    on_pool: Any = {"gpu_pool": POOL}
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag:

        @task.gpu(image="train:1", **on_pool)
        def ours(rate: float) -> None: ...

        def team(rate: float) -> None: ...

        ensure(task_id="ensure", **on_pool)
        plugin(task_id="plugin", **on_pool)
        pod(task_id="pod", image="train:1", **on_pool)
        pod.partial(task_id="pods", **on_pool).expand(image=["train:1"])
        workload.partial(task_id="workloads", **on_pool).expand(manifest=[{}])
        function = task_decorator_factory(team, decorated_operator_class=decorated, image="train:1", **on_pool)
        function(0.1)
        function.override(task_id="teams").expand(rate=[0.1])
        ours.override(task_id="mapped").expand(rate=[0.1])
        type("Team", (OfTeam, OurSensor) if has_mixin else (OurSensor,), {})(task_id="down", **on_pool)
        status(task_id="status", gpu_pools=[POOL])
        doctor(task_id="doctor", gpu_pools=[POOL])
        reap(task_id="reap", gpu_pools=[POOL])
    return dag


@pytest.mark.parametrize("has_mixin", [False, True])
def test_airflow_keeps_a_subclass_s_role_where_the_page_looks(has_mixin: bool) -> None:
    """By the names, which ui/test/records.test.ts has, too: a task instance has what the serialized DAG has."""
    dag = of_a_team(has_mixin)
    kept = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    names = {each.operator_name: role_of(dag.get_task(each.task_id)) for each in kept.tasks}
    assert names == dict(re.findall(r'^  "(GPU \w+: .+)": "(\w+)",$', PAGE.read_text(), re.MULTILINE))
    assert all(name.startswith(f"GPU {role}: ") for name, role in names.items())


def test_a_function_s_source_has_no_decorator() -> None:
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1)) as dag:

        @task.gpu(gpu_pool=POOL, image="train:1")
        def train() -> None: ...

        train()
    operator: Any = dag.get_task("train")
    assert operator.operator_name == "GPU training: @task.gpu"
    assert operator.get_python_source() == "def train() -> None: ...\n"
