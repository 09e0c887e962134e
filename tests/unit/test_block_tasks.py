"""The block's own tasks: what reaches them of default_args, and how the block depends on the run before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG, BaseOperator, TaskGroup
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.serialization.serialized_objects import DagSerialization
from airflow.ti_deps.dep_context import DepContext
from airflow.ti_deps.deps.prev_dagrun_dep import PrevDagrunDep

from airflow_gpu_provider import EksGpuPool, GpuPodOperator, gpu_nodes
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.sensors.release_policy import RELEASE_RETRY_POLICY

POOL = EksGpuPool(
    name="train-gpu", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2
)
OTHER = EksGpuPool(name="other", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)

OWN = ("begin", "ensure", "device_plugin", "scale_down", "witness", "done")
TRAININGS = {"image": "my/training:1", "namespace": "ml", "container_resources": {"limits": {"cpu": "2"}}}


def new_dag(**default_args: Any) -> DAG:
    return DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1), default_args=default_args)


def pod(task_id: str = "train", **kwargs: Any) -> GpuPodOperator:
    return GpuPodOperator(**{"task_id": task_id, "image": "busybox", **kwargs})


def block_of(dag: DAG, *, inner: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
    """Return the tasks of a DAG with one block, by the last word of their names."""
    with dag, gpu_nodes(POOL, **kwargs):
        pod(**(inner or {}))
    return {task_id.rpartition(".")[2]: task for task_id, task in dag.task_dict.items()}


def test_what_is_meant_for_trainings_stays_with_them() -> None:
    tasks = block_of(new_dag(**TRAININGS), inner={"image": "my/training:1"})
    plugin = tasks["device_plugin"]
    assert (plugin.image, plugin.namespace, plugin.container_resources) == (None, "airflow-gpu-device-plugins", None)
    assert tasks["train"].namespace == "ml"


@pytest.mark.parametrize("name", ["soft_fail", "never_fail", "silent_fail"])
def test_a_sensors_leniency_does_not_reach_scale_down(name: str) -> None:
    assert getattr(block_of(new_dag(**{name: True}))["scale_down"], name) is False


def test_other_operators_arguments_do_not_reach_the_block_s_tasks() -> None:
    given = {"timeout": 3600, "mode": "reschedule", "deferrable": False, "wait_for": "gpus", "dry_run": True}
    tasks = block_of(new_dag(**given, gpus=1, nodes=2, at_least=1, gpu_pool=OTHER, poke_interval=600))
    assert [tasks[name].gpu_pool for name in ("ensure", "device_plugin", "train", "scale_down")] == [POOL] * 4
    ensure, scale_down = tasks["ensure"], tasks["scale_down"]
    assert (ensure.gpus, ensure.nodes, ensure.at_least, ensure.wait_for) == (None, None, None, "ready")
    assert (ensure.deferrable, ensure.plan_only, ensure.wait_timeout) == (True, False, timedelta(minutes=30))
    assert (scale_down.deferrable, scale_down.mode, scale_down.poke_interval) == (True, "poke", 5)
    assert scale_down.release_timeout == timedelta(minutes=30)


def test_scale_down_and_verdict_take_nothing_that_keeps_them_from_running() -> None:
    given = {
        "retries": 0,
        "retry_delay": timedelta(hours=6),
        "retry_policy": None,
        "execution_timeout": timedelta(seconds=10),
        "pool": "one-slot",
        "pool_slots": 4,
        "max_active_tis_per_dag": 1,
        "max_active_tis_per_dagrun": 1,
        "pre_execute": lambda context: None,
        "trigger_rule": "all_success",
    }
    tasks = block_of(new_dag(**given))
    scale_down, done = tasks["scale_down"], tasks["done"]
    assert (scale_down.retries, scale_down.retry_delay) == (3, timedelta(seconds=30))
    assert scale_down.retry_policy is RELEASE_RETRY_POLICY
    for task in (scale_down, done):
        assert (task.pool, task.pool_slots, task.execution_timeout) == ("default_pool", 1, None)
        assert (task.max_active_tis_per_dag, task.max_active_tis_per_dagrun) == (None, None)
        assert task._pre_execute_hook is None
        assert task.trigger_rule == "all_done_setup_success"
    assert done.retries == 0
    assert tasks["ensure"].retries == tasks["ensure"].max_active_tis_per_dag - 1 == 0
    assert tasks["ensure"].execution_timeout == timedelta(seconds=10)


def test_only_begin_takes_a_trigger_rule() -> None:
    tasks = block_of(new_dag(trigger_rule="none_failed"))
    rules = {name: tasks[name].trigger_rule.value for name in OWN}
    assert rules == {
        "begin": "none_failed",
        "ensure": "all_success",
        "device_plugin": "all_success",
        "scale_down": "all_done_setup_success",
        "witness": "all_done_setup_success",
        "done": "all_done_setup_success",
    }


def test_no_asset_is_updated_by_the_block_s_own_tasks() -> None:
    from airflow.sdk import Asset

    tasks = block_of(new_dag(outlets=[Asset("model")], inlets=[Asset("data")]))
    assert all((tasks[name].outlets, tasks[name].inlets) == ([], []) for name in OWN)


def of_past(task: BaseOperator | MappedOperator) -> tuple[bool, bool]:
    return bool(task.depends_on_past), bool(task.wait_for_downstream)


@pytest.mark.parametrize("name", ["depends_on_past", "wait_for_downstream"])
@pytest.mark.parametrize("where", ["dag", "group", "task", "mapped", "ensure"])
def test_the_block_as_a_whole_depends_on_the_run_before(name: str, where: str) -> None:
    asked = {name: True}
    dag = new_dag(**(asked if where == "dag" else {}))
    own = asked if where in ("task", "mapped") else {}
    with (
        dag,
        TaskGroup("night", default_args=asked if where == "group" else {}),
        gpu_nodes(POOL, ensure_args=asked if where == "ensure" else {}),
    ):
        if where == "mapped":
            GpuPodOperator.partial(task_id="train", image="busybox", **own).expand(arguments=[["a"], ["b"]])
        else:
            pod(**own)
    past = {task_id.rpartition(".")[2]: of_past(task) for task_id, task in dag.task_dict.items()}
    begin = past.pop("begin")
    assert begin == (True, True)
    assert set(past.values()) == {(False, False)}
    # begin waits for those that come right after it: they are all that a block's end depends on.
    assert {"night.train-gpu.scale_down", "night.train-gpu.done"} <= set(
        dag.get_task("night.train-gpu.begin").downstream_task_ids
    )


def may_start(dag: DAG, night_before: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the tasks that Airflow's scheduler would let start after such a night, as far as that night goes."""

    def unsuccessful(task_ids: Iterable[str]) -> int:
        return sum(night_before[task_id] not in ("success", "skipped") for task_id in task_ids)

    answers: dict[str, Any] = {
        "_has_tis": lambda run, task_id, session: True,
        "_count_unsuccessful_tis": lambda run, task_id, session: unsuccessful([task_id]),
        "_has_unsuccessful_dependants": lambda run, task, session: bool(unsuccessful(task.downstream_task_ids)),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(PrevDagrunDep, name, staticmethod(answer))
    monkeypatch.setattr(DagRun, "get_previous_dagrun", staticmethod(lambda run, session: run))
    run = SimpleNamespace(id=1, backfill_id=None)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    tis: dict[str, Any] = {
        task_id: SimpleNamespace(task=task, task_id=task_id, get_dagrun=lambda session: run)
        for task_id, task in stored.task_dict.items()
    }
    context = DepContext()
    found = {name: PrevDagrunDep()._get_dep_statuses(ti, context, session=None) for name, ti in tis.items()}
    return {name for name, statuses in found.items() if all(status.passed for status in statuses)}


@pytest.mark.parametrize(
    ("last_night", "starts"),
    [
        ({}, True),
        ({"train": "failed", "train-gpu.done": "failed"}, False),
        ({"train": "running", "train-gpu.scale_down": "none", "train-gpu.done": "none"}, False),
        ({"train-gpu.scale_down": "failed", "train-gpu.done": "failed"}, False),
        ({"train-gpu.ensure": "failed", "train": "upstream_failed", "train-gpu.done": "failed"}, False),
        ({"train": "failed"}, True),  # and another task has saved the night: the block has succeeded
    ],
    ids=lambda value: "-".join(value) or "all-well" if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("own", [{}, {"depends_on_past": True}], ids=["default_args", "keyword"])
def test_after_a_night_that_failed_no_node_is_brought(
    own: dict[str, Any], last_night: dict[str, str], starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = new_dag(**({} if own else {"depends_on_past": True}))
    block_of(dag, inner=own)
    night_before = {**dict.fromkeys(dag.task_ids, "success"), **last_night}
    held = set() if starts else {"train-gpu.begin"}
    assert may_start(dag, night_before, monkeypatch) == set(dag.task_ids) - held


def test_the_first_run_of_a_block_is_let_through() -> None:
    assert block_of(new_dag(depends_on_past=True))["begin"].ignore_first_depends_on_past is True


def test_without_depends_on_past_nothing_waits() -> None:
    assert {of_past(task) for task in block_of(new_dag()).values()} == {(False, False)}


@pytest.mark.parametrize("name", ["task_id", "gpu_pool", "block_id", "trigger_rule", "end_date"])
@pytest.mark.parametrize("argument", ["ensure_args", "scale_down_args"])
def test_what_is_the_block_s_own_is_refused(argument: str, name: str) -> None:
    with pytest.raises(PoolSpecError, match=f"{name}= is not for"):
        block_of(new_dag(), **{argument: {name: None}})


def test_explicit_arguments_go_through() -> None:
    tasks = block_of(
        new_dag(retries=7, image="my/training:1"),
        ensure_args={"timeout": 600, "retries": 1},
        device_plugin_args={"image": "mirror/plugin:1", "timeout": 60.0},
        scale_down_args={"retries": 5, "pool": "gpu", "timeout": 1800},
    )
    assert (tasks["ensure"].wait_timeout, tasks["ensure"].retries) == (timedelta(minutes=10), 1)
    assert (tasks["device_plugin"].image, tasks["device_plugin"].wait_timeout) == (
        "mirror/plugin:1",
        timedelta(minutes=1),
    )
    assert (tasks["scale_down"].retries, tasks["scale_down"].pool) == (5, "gpu")
    assert tasks["scale_down"].release_timeout == timedelta(minutes=30)


PROGRAM = """
from tests.unit.test_block_tasks import block_of, new_dag
tasks = block_of(new_dag())
print(*(tasks[name].execution_timeout for name in ("ensure", "scale_down")))
"""


def test_no_timeout_of_airflow_s_configuration_cuts_a_scale_down_off() -> None:
    environment = {**os.environ, "AIRFLOW__CORE__DEFAULT_TASK_EXECUTION_TIMEOUT": "600"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0:10:00 None"
