"""What Ensure asks Airflow for: whether anything of the block is still to come that needs nodes."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task_group

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, ScaleDownSensor, gpu_nodes
from airflow_gpu_provider.operators.tasks_after_ensure import work_is_to_come

POOL = EksGpuPool(name="gpus", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)


class Run:
    """What Airflow says of a run's tasks; those that are not named have not begun."""

    dag_id, run_id = "nightly", "tonight"

    def __init__(self, *, map_index: int = -1, **begun: str) -> None:
        self.map_index = map_index
        self._begun = begun
        self.asked: dict[str, Any] = {}

    def get_ti_count(self, **which: Any) -> int:
        self.asked = which
        return sum(self._begun.get(task_id, "null") in which["states"] for task_id in which["task_ids"])


def pod(task_id: str) -> GpuPodOperator:
    return GpuPodOperator(task_id=task_id, image="busybox")


@pytest.fixture
def ensure() -> BaseOperator:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL):
        pod("train") >> pod("evaluate")
    found: BaseOperator = dag.get_task("gpus.ensure")
    return found


@pytest.mark.parametrize("state", ["null", "scheduled", "queued", "up_for_retry", "up_for_reschedule", "restarting"])
def test_nodes_are_for_what_has_not_begun_or_begins_again(ensure: BaseOperator, state: str) -> None:
    assert work_is_to_come(ensure, Run(train="success", evaluate=state))


@pytest.mark.parametrize("state", ["running", "deferred", "success", "failed", "skipped", "upstream_failed"])
def test_no_nodes_are_for_what_has_begun_or_has_ended(ensure: BaseOperator, state: str) -> None:
    run = Run(train="success", evaluate=state)
    assert not work_is_to_come(ensure, run)
    assert run.asked["task_ids"] == ["evaluate", "train"]  # none of the block's own
    assert "map_index" not in run.asked


def test_a_block_in_a_mapped_task_group_asks_for_its_own_index() -> None:
    @task_group
    def city(name: str) -> None:
        with gpu_nodes(POOL):
            pod("train")

    with DAG("nightly", schedule=None) as dag:
        city.expand(name=["oslo", "rome"])
    run = Run(map_index=1)
    assert work_is_to_come(dag.get_task("city.gpus.ensure"), run)
    assert run.asked["map_index"] == 1


def test_an_ensure_that_stands_by_itself_brings_its_nodes() -> None:
    with DAG("nightly", schedule=None):
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL)
    assert work_is_to_come(ensure, Run())


def test_so_does_one_with_a_scale_down_and_nothing_in_between() -> None:
    with DAG("nightly", schedule=None):
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL)
        ensure >> ScaleDownSensor(task_id="zero", gpu_pool=POOL).as_teardown(setups=[ensure])
    assert work_is_to_come(ensure, Run())
