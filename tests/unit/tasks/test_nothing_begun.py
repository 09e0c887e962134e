"""What a scale-down knows of a run that may have begun nothing: what Ensure's tries leave, as Airflow keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from airflow.sdk import DAG, task_group
from hypothesis import given
from hypothesis import strategies as st

from airflow_gpu_provider import EksGpuPool, EnsureGpuPoolOperator, GpuPodOperator, ScaleDownSensor, gpu_nodes
from airflow_gpu_provider.errors import CloudError, ConnectionNotFound
from airflow_gpu_provider.tasks.nothing_begun import NOTHING_BEGUN, before_first_write, tasks_that_began_nothing

POOL = EksGpuPool(name="gpus", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)

FAILS_READING, FAILS_LATER, RESUMES = "fails reading", "fails later", "goes on after a write, and fails reading"
KILLED, KILLED_LATER, NEVER_STARTS = "killed reading", "killed later", "never starts"
WRITES = {FAILS_LATER, KILLED_LATER, RESUMES}


@dataclass
class Run:
    """A run's database: XComs, which the start of a try deletes, and the task state store, which it leaves."""

    has_store: bool = True
    is_broken: bool = False
    xcoms: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        return self.store.get(key)

    def set(self, key: str, value: Any) -> None:
        if self.is_broken:
            raise RuntimeError("The API server did not answer.")
        self.store[key] = value

    def attempt(self, number: int, how: str) -> None:
        if how == NEVER_STARTS:
            return
        self.xcoms.clear()
        context: Any = {"ti": Ti(self, number), **({"task_state_store": self} if self.has_store else {})}
        error = KeyboardInterrupt() if how in (KILLED, KILLED_LATER) else ConnectionNotFound("Not found.")
        with suppress(KeyboardInterrupt, ConnectionNotFound):
            with before_first_write(context, is_resumed=how == RESUMES):
                if how not in (FAILS_LATER, KILLED_LATER):
                    raise error
            raise error


@dataclass
class Ti:
    run: Run
    try_number: int

    def xcom_push(self, key: str, value: Any) -> None:
        self.run.xcoms[key] = value


def after(tries: Sequence[str], **how: bool) -> Run:
    run = Run(**how)
    for number, each in enumerate(tries, start=1):
        run.attempt(number, each)
    return run


@given(st.lists(st.sampled_from([FAILS_READING, FAILS_LATER, RESUMES, KILLED, KILLED_LATER, NEVER_STARTS]), max_size=5))
def test_the_mark_is_there_only_if_no_try_can_have_written(tries: list[str]) -> None:
    is_marked = NOTHING_BEGUN in after(tries).xcoms
    assert not (is_marked and WRITES & {*tries})
    if tries and {*tries} == {FAILS_READING}:
        assert is_marked


@given(st.lists(st.sampled_from([FAILS_READING, FAILS_LATER, KILLED]), min_size=1, max_size=3))
def test_without_a_store_only_a_first_try_vouches(tries: list[str]) -> None:
    assert (NOTHING_BEGUN in after(tries, has_store=False).xcoms) == (tries == [FAILS_READING])


def test_a_store_that_fails_replaces_no_error() -> None:
    context: Any = {"ti": Ti(run := Run(is_broken=True), 1), "task_state_store": run}
    with pytest.raises(CloudError, match="Throttled"), before_first_write(context, is_resumed=False):
        raise CloudError("Throttled.")
    assert run.xcoms == {}


@dataclass
class Airflow:
    """What Airflow answers a scale-down."""

    marked: frozenset[str] = frozenset()
    states: dict[str, str | None] = field(default_factory=dict)
    map_index: int = -1
    dag_id, run_id = "nightly", "tonight"

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (key, map_indexes) == (NOTHING_BEGUN, self.map_index)
        return True if task_ids in self.marked else None

    def get_task_states(self, *, task_ids: list[str], **which: Any) -> Any:
        assert which.get("map_index", -1) == self.map_index
        return {self.run_id: {name: self.states.get(name) for name in task_ids}}


def block() -> Any:
    with gpu_nodes(POOL):
        GpuPodOperator(task_id="train", image="busybox")
    with gpu_nodes(POOL, group_id="later"):
        GpuPodOperator(task_id="test", image="busybox")


def mapped() -> Any:
    @task_group
    def city(name: str) -> None:
        with gpu_nodes(POOL):
            GpuPodOperator(task_id="train", image="busybox")

    city.expand(name=["oslo", "rome"])


def two_ensures() -> Any:
    ensures = [EnsureGpuPoolOperator(task_id=name, gpu_pool=POOL) for name in ("one", "two")]
    ensures >> ScaleDownSensor(task_id="gpus.scale_down", gpu_pool=POOL)


def began_nothing(make: Callable[[], Any], airflow: Any, sensor: str = "gpus.scale_down") -> list[str]:
    with DAG("nightly", schedule=None) as dag:
        make()
    return tasks_that_began_nothing(dag.get_task(sensor), {"ti": airflow})  # type: ignore[typeddict-item]


def test_a_block_whose_ensure_vouches_has_begun_nothing_whatever_others_have() -> None:
    airflow = Airflow(frozenset({"gpus.ensure"}), {"train": "upstream_failed", "test": "running"})
    assert began_nothing(block, airflow) == ["gpus.ensure"]


def test_each_map_index_is_a_block() -> None:
    airflow = Airflow(frozenset({"city.gpus.ensure"}), map_index=1)
    assert began_nothing(mapped, airflow, "city.gpus.scale_down") == ["city.gpus.ensure"]


@pytest.mark.parametrize(
    ("make", "airflow"),
    [
        (block, Airflow()),
        (block, Airflow(frozenset({"later.ensure"}))),
        (block, Airflow(frozenset({"gpus.ensure"}), {"train": "failed"})),
        (block, Airflow(frozenset({"gpus.ensure"}), {"train": "up_for_retry"})),
        (two_ensures, Airflow(frozenset({"one"}))),
        (lambda: ScaleDownSensor(task_id="gpus.scale_down", gpu_pool=POOL), Airflow()),
        (block, None),
    ],
    ids=["no mark", "another block's", "a training ran", "a training runs", "one of two", "no Ensure", "no answer"],
)
def test_else_something_may_have_begun(make: Callable[[], Any], airflow: Any) -> None:
    assert began_nothing(make, airflow) == []
    alone: Any = ScaleDownSensor(task_id="zero", gpu_pool=POOL)
    assert tasks_that_began_nothing(alone, {}) == []  # type: ignore[typeddict-item] - nor without a DAG
