"""Task loops: what is refused in one, and which iteration a task is of. Where Airflow has none, a group stands in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup, task_group
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, ScaleDownSensor, gpu_nodes
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.tasks.loops import is_overtaken, iteration_of
from airflow_gpu_provider.training.life.ownership import Ownership

POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2
)
AIRFLOW_HAS_LOOPS = hasattr(task_group(lambda: None), "loop")


class StandIn(TaskGroup):
    max_iterations = 3
    gate_task_id = "improve.good"


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
        (a_block, "Block train-gpu"),
        (a_block_in_a_group, "Block train-gpu"),
        (lambda: EnsureGpuPoolOperator(task_id="ensure", gpu_pool=POOL), "Task improve.ensure of DAG nightly: It"),
        (lambda: TeamsScaleDown(task_id="zero", gpu_pool=POOL), "Task improve.zero of DAG nightly: It"),
        (
            lambda: EnsureGpuPoolOperator.partial(task_id="ensure", gpu_pool=POOL).expand(nodes=[1, 2]),
            "Task improve.ensure of DAG nightly: It",
        ),
    ],
)
def test_what_brings_or_releases_nodes_belongs_around_a_loop(dag: DAG, body: Callable[[], Any], what: str) -> None:
    with dag, pytest.raises(PoolSpecError) as refused:
        loop(body)
    assert refused.value.what.startswith(f"{what} is in the task loop improve, ")
    assert "their nodes of pool train-gpu:" in refused.value.what
    assert refused.value.fix.startswith("Put it around the loop")


def test_a_block_around_a_loop(dag: DAG) -> None:
    with dag, gpu_nodes(POOL, gpus=1):
        loop(train)
    assert dag.get_task("improve.train").block_id == "train-gpu"
    assert dag.get_task("train-gpu.ensure").get_flat_relative_ids() >= {"improve.train", "train-gpu.scale_down"}


def test_a_training_in_two_loops_is_refused(dag: DAG) -> None:
    with dag, StandIn("epochs"), StandIn("steps"), pytest.raises(PoolSpecError) as refused:
        train(gpu_pool=POOL)
    said = "Task epochs.steps.train of DAG nightly: It is in the task loop epochs.steps, which is in the loop epochs: "
    assert refused.value.what.startswith(said)


def running(dag: DAG, iteration: int | None, *ended: tuple[str, int, str]) -> Any:
    """The context of a running training, and which tasks of the run have ended: id, iteration and state."""
    rows = [{"task_id": task_id, "region_index": index, "state": state} for task_id, index, state in ended]
    ids = {"dag_id": "nightly", "run_id": "r", "task_id": "improve.train", "map_index": -1, "id": "t1"}
    tries = {"try_number": 2, "max_tries": 2, "start_date": None}
    ti = SimpleNamespace(**ids, **tries, get_task_breadcrumbs=lambda **_: rows)
    found = {"dag": dag, "ti": ti}
    return found if iteration is None else {**found, "loop": SimpleNamespace(index=iteration)}


@pytest.mark.parametrize(
    ("iteration", "ended", "expected"),
    [
        (None, [], False),
        (0, [("improve.train", 0, "success")], False),
        (0, [("improve.good", 0, "failed")], False),
        (0, [("improve.good", 0, "success")], True),
        (1, [("improve.good", 0, "success")], False),
        (1, [("improve.good", 0, "success"), ("improve.good", 2, "success")], True),
    ],
)
def test_whether_the_loop_has_gone_on(dag: DAG, iteration: int | None, ended: Any, expected: bool) -> None:
    with dag, StandIn("improve"), TaskGroup("inner", prefix_group_id=False):
        GpuPodOperator(task_id="improve.train", image="busybox", gpu_pool=POOL, gpus=1)
    assert is_overtaken(running(dag, iteration, *ended)) is expected
    assert iteration_of(running(dag, iteration)) == (-1 if iteration is None else iteration)


@pytest.mark.parametrize("has_gone_on", [False, True])
def test_a_training_that_was_cleared_alone_waits_in_its_worker(dag: DAG, has_gone_on: bool) -> None:
    """Airflow tells a trigger the later iteration's state, by which it would take its own task for ended."""
    with dag, StandIn("improve"):
        training = train(gpu_pool=POOL)
    ended = [("improve.good", 0, "success")] * has_gone_on
    training._begin(running(dag, 0, *ended), {})
    assert training.deferrable is not has_gone_on


INDEXES = st.tuples(st.integers(-1, 30), st.integers(-1, 30))
KEY = DemandKey(installation="a1", dag_id="nightly", run_id="manual__1", pool="train-gpu", block="night")


@given(INDEXES, INDEXES)
def test_all_indexes_of_a_task_tell_it_apart(one: tuple[int, int], other: tuple[int, int]) -> None:
    def names(indexes: tuple[int, int]) -> tuple[str, str]:
        map_index, iteration = indexes
        ti: Any = SimpleNamespace(task_id="train", map_index=map_index, id="t1")
        own = KEY.of_task("train", map_index, iteration)
        assert (own.is_of_task, own.block_id) == (True, "night")
        return Ownership.of(ti, KEY, iteration=iteration).task, own.hash

    for mine, theirs in zip(names(one), names(other), strict=True):
        assert (mine == theirs) == (one == other)
