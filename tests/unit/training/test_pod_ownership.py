"""What names a task's pods: the same in every try and attempt of it, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.scaling.state.demand import TaskNodes
from airflow_gpu_provider.training.life.ownership import Ownership

KEY = DemandKey(installation="a1", dag_id="nightly", run_id="manual__1", pool="train-gpu")
OWNER = Ownership(key=KEY, task_id="train", map_index=-1, try_id="t1")


@pytest.mark.parametrize("change", [{"try_id": "t2"}, {"attempt": 2}])
def test_run_id_stays_over_tries_and_attempts(change: dict[str, Any]) -> None:
    assert replace(OWNER, **change).task == OWNER.task


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": "evaluate"},
        {"map_index": 0},
        {"iteration": 0},
        {"key": replace(KEY, run_id="manual__2")},
        {"key": replace(KEY, dag_id="other")},
        {"key": replace(KEY, installation="b2")},
    ],
)
def test_run_id_is_no_other_tasks(change: dict[str, Any]) -> None:
    assert replace(OWNER, **change).task != OWNER.task


def test_ids_outside_of_loops_are_what_they_were() -> None:
    """Checkpoints are in folders of this name, and an upgrade finds the pods and Leases of the release before."""
    assert OWNER.task == "f8264b75fbfd4e45d8be"
    assert KEY.of_task("train", -1).hash == "a152e1f0360eb1754695"
    larger = TaskNodes(task_id="train", map_index=-1, instance_type="g6e.xlarge")
    of_earlier_release = {"task_id": "train", "map_index": -1, "instance_type": "g6e.xlarge", "nodes": 1, "times": 1}
    assert larger.to_json() == of_earlier_release
    assert TaskNodes(**of_earlier_release) == larger


def test_block_is_who_wants_the_node_and_not_whose_pod_it_is() -> None:
    """A pod is found by its task; a ScaleDownSensor deletes those of its own block."""
    other = replace(OWNER, key=replace(KEY, block="second"))
    assert other.task == OWNER.task
    assert other.labels[RUN_LABEL] != OWNER.labels[RUN_LABEL]


def test_pod_tells_its_try_and_attempt() -> None:
    notes = replace(OWNER, attempt=2).annotations
    assert notes["airflow-gpu-provider/owner"] == "t1"
    assert notes["airflow-gpu-provider/attempt"] == "2"
