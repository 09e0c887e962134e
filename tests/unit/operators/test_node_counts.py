"""How many nodes Ensure brings for tasks that run on several at once, and what is refused when the DAG is parsed."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task_group

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, ScaleDownSensor, gpu_nodes
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.node_counts import NodeCounts
from airflow_gpu_provider.operators.tasks_after_ensure import gang_size
from airflow_gpu_provider.tasks.pool_operator import block_of

POOL = EksGpuPool(name="gpus", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=4)
OTHER = EksGpuPool(name="other", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=4)


class Training(BaseOperator):
    """What Ensure sees of a task that runs on several nodes."""

    gpu_role = "training"
    template_fields = ("gpu_pool", "block_id", "nodes")

    def __init__(self, *, nodes: Any = 1, gpu_pool: Any = POOL, block_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.nodes, self.gpu_pool = nodes, gpu_pool
        self.block_id = block_of(gpu_pool) if block_id is None else block_id


def block_with(*sizes: Any, **how: Any) -> Any:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL, **how):
        for number, size in enumerate(sizes):
            Training(task_id=f"train-{number}", nodes=size)
    return dag.get_task("gpus.ensure")


def counts(ensure: Any) -> NodeCounts:
    found: NodeCounts = ensure._counts(gang_size(ensure))
    return found


@pytest.mark.parametrize(("sizes", "gang"), [((1,), 0), ((2,), 2), ((2, 3), 3), (("{{ params.n }}",), 0)])
def test_a_block_brings_as_many_nodes_as_its_largest_task_wants_at_once(sizes: tuple[Any, ...], gang: int) -> None:
    found = counts(block_with(*sizes))
    assert (found.of_one_zone, found.wanted()) == (gang, max(1, gang))


def test_more_nodes_than_the_gang_may_be_wanted() -> None:
    found = counts(block_with(2, nodes=4))
    assert (found.of_one_zone, found.wanted()) == (2, 4)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"nodes": 1}, "wants 2 nodes at once, and EnsureGpuPoolOperator brings 1"),
        ({"gpus": 1}, "brings 1"),
        ({"nodes": 3, "ensure_args": {"at_least": 2}}, "at_least=2, and a task wants 2 nodes at once"),
        ({"ensure_args": {"gang": 5}}, "wants 5 nodes at once, and max_nodes=4"),
    ],
)
def test_nodes_that_cannot_hold_the_gang_are_refused_when_the_dag_is_parsed(how: dict[str, Any], why: str) -> None:
    with pytest.raises(PoolSpecError, match=why):
        block_with(2, **how)


def test_a_gang_that_is_given_is_what_counts() -> None:
    assert block_with(2, nodes=1, ensure_args={"gang": 0}).gang == 0


def test_tasks_of_another_pool_or_block_or_after_the_scale_down_do_not_count() -> None:
    with DAG("nightly", schedule=None) as dag:
        ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL)
        down = ScaleDownSensor(task_id="down", gpu_pool=POOL)
        ensure >> Training(task_id="train", nodes=2) >> down >> Training(task_id="later", nodes=4)
        ensure >> Training(task_id="elsewhere", nodes=3, gpu_pool=OTHER)
        ensure >> Training(task_id="another", nodes=3, block_id="two")
    assert gang_size(dag.get_task("ensure")) == 2


def test_a_mapped_task_counts() -> None:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL):
        Training.partial(task_id="train", nodes=2).expand(doc_md=["a", "b"])
    assert gang_size(dag.get_task("gpus.ensure")) == 2


def test_each_instance_of_a_mapped_task_counts() -> None:
    with DAG("nightly", schedule=None) as dag, gpu_nodes(POOL):
        Training.partial(task_id="train").expand(nodes=[1, 3])
        Training.partial(task_id="tune").expand_kwargs([{"nodes": 4}, {"doc_md": "one node"}])
    assert gang_size(dag.get_task("gpus.ensure")) == 4


def test_a_running_ensure_of_a_mapped_group_finds_its_tasks() -> None:
    @task_group
    def city(name: str) -> None:
        with gpu_nodes(POOL):
            Training(task_id="train", nodes=2)

    with DAG("nightly", schedule=None) as dag:
        city.expand(name=["a", "b"])
    running: Any = dag.get_task("city.gpus.ensure").prepare_for_execution()
    running.block_id = "city.gpus[0]"  # as it is when it is rendered; the others' are not
    assert gang_size(running) == 2
