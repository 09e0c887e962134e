"""Ensure without a scale-down: what it refuses when it runs, its two ways out, and what the doctor finds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.python import BranchPythonOperator, ShortCircuitOperator
from airflow.sdk import DAG, task_group
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.supervisor import InProcessSupervisorComms
from airflow.serialization.serialized_objects import DagSerialization

from airflow_gpu_provider import (
    EksGpuPool,
    EnsureGpuPoolOperator,
    GpuPodOperator,
    KubernetesGpuPool,
    ScaleDownSensor,
    gpu_nodes,
)
from airflow_gpu_provider.cli import ensures
from airflow_gpu_provider.cli.ensures import ensures_left_alone
from airflow_gpu_provider.errors import PoolSpecError
from airflow_gpu_provider.operators.ensured import kept_until
from airflow_gpu_provider.operators.scale_down_after import check_is_released
from airflow_gpu_provider.scaling.decide.snapshot import own_lease
from tests.unit.scaling.pools import key, lease, snapshot

POOL = EksGpuPool(name="gpus", cluster_name="k8s-ml", region="us-west-2", instance_types=["g6.xlarge"], max_nodes=2)
TEMPLATED = replace(POOL, name="gpus-{{ params.team }}")
GIVEN = KubernetesGpuPool(name="gpus", nodes=["a"])
BROUGHT = KubernetesGpuPool(name="gpus", node_selector_labels={"karpenter.sh/nodepool": "g"}, provisioner="karpenter")


class TeamScaleDown(ScaleDownSensor):
    """What a team makes of it."""


def alone(pool: Any = POOL, **how: Any) -> Any:
    return EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, **how)


def then(sensor: Any, pool: Any = POOL, **how: Any) -> Any:
    ensure = alone(pool, **how)
    ensure >> train(pool) >> sensor.as_teardown(setups=ensure)
    return ensure


def train(pool: Any = POOL) -> GpuPodOperator:
    return GpuPodOperator(task_id="train", gpu_pool=pool, image="busybox")


def branch() -> BranchPythonOperator:
    return BranchPythonOperator(task_id="branch", python_callable=str)


def short_circuit() -> ShortCircuitOperator:
    return ShortCircuitOperator(task_id="decide", python_callable=bool)


def at_any_rate() -> ScaleDownSensor:
    return zero(trigger_rule="all_done")


def in_a_block_that_a_branch_ends() -> None:
    with gpu_nodes(POOL):
        train() >> branch()


def in_a_block() -> Any:
    with gpu_nodes(POOL):
        GpuPodOperator(task_id="train", image="busybox")


def in_mapped_blocks() -> Any:
    @task_group
    def city(name: str) -> None:
        in_a_block()

    city.expand(name=["oslo", "rome"])


def zero(pool: Any = POOL, **how: Any) -> Any:
    return ScaleDownSensor(task_id="zero", gpu_pool=pool, **how)


def sensors() -> Any:
    return ScaleDownSensor.partial(task_id="zero").expand(gpu_pool=[POOL])


def team_s() -> Any:
    return TeamScaleDown(task_id="zero", gpu_pool=POOL)


REFUSED: dict[str, Callable[[], Any]] = {
    "nothing after it": alone,
    "a training alone": lambda: alone() >> train(),
    "another pool's": lambda: then(zero(replace(POOL, name="other"))),
    "another block's": lambda: then(zero(block_id="one"), block_id="two"),
    "a sensor before it": lambda: zero() >> alone(),
}
UNSURE: dict[str, Callable[[], Any]] = {
    "a failure skips it": lambda: alone() >> train() >> zero(),
    "a branch skips it": lambda: alone() >> branch() >> [train(), zero()],
    "a branch skips the teardown": lambda: (
        (ensure := alone()) >> branch() >> [train(), zero().as_teardown(setups=ensure)]
    ),
    "a teardown of something else": lambda: alone() >> train().as_setup() >> zero().as_teardown(),
    "a branch skips it though it is for all": lambda: alone() >> branch() >> [train(), at_any_rate()],
    "a short circuit skips all": lambda: alone() >> short_circuit() >> train() >> at_any_rate(),
    "a setup fails": lambda: alone() >> train().as_setup() >> at_any_rate(),
    "mapped sensors": lambda: alone() >> train() >> sensors(),
}
FINE: dict[str, Callable[[], Any]] = {
    "a sensor": lambda: then(zero()),
    "a team's sensor": lambda: then(team_s()),
    "a block": in_a_block,
    "mapped blocks": in_mapped_blocks,
    "of a name that is known when it runs": lambda: then(zero(TEMPLATED), TEMPLATED),
    "a name in one, a template in the other": lambda: then(zero(TEMPLATED)),
    "mapped sensors": lambda: then(sensors()),
    "it runs at any rate": lambda: alone() >> train() >> at_any_rate(),
    "a decision before Ensure": lambda: short_circuit() >> alone() >> train() >> at_any_rate(),
    "a short circuit, and a teardown": lambda: (
        (ensure := alone()) >> short_circuit() >> zero().as_teardown(setups=ensure)
    ),
    "a block that a branch ends": in_a_block_that_a_branch_ends,
    "nodes that are given": lambda: alone(GIVEN, nodes=1),
    "nodes that a provisioner brings": lambda: alone(BROUGHT, nodes=1),
    "nodes that an autoscaler brings": lambda: alone(replace(POOL, scaling="autoscaler")),
    "no node": lambda: alone(nodes=0),
    "nodes that are to stay": lambda: alone(keep=True),
}


def dag_of(make: Callable[[], Any]) -> DAG:
    with DAG("nightly", schedule=None, params={"team": "a"}) as dag:
        make()
    return dag


def check(dag: DAG) -> None:
    (ensure,) = (task for task in dag.tasks if task.task_id.endswith("ensure"))
    check_is_released(ensure, nodes=0 if getattr(ensure, "nodes", None) == 0 else 1)


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_machines_that_nothing_would_release_are_not_started(make: Callable[[], Any]) -> None:
    with pytest.raises(PoolSpecError) as error:
        check(dag_of(make))
    assert str(error.value) == (
        "Pool gpus: no ScaleDownSensor of this pool and block comes after task ensure, so that its nodes would stay"
        " until max_runtime=1 day, 0:00:00 is over. Make a ScaleDownSensor its teardown with"
        " `.as_teardown(setups=ensure)`, not right after a branch, or put the tasks into a `with gpu_nodes(...)` block;"
        " nodes=0 prepares the pool's groups at size 0, and keep=True says that nodes stay until then."
    )
    assert not error.value.retryable


@pytest.mark.parametrize("make", UNSURE.values(), ids=UNSURE)
def test_a_scale_down_that_may_not_run_does_not_count(make: Callable[[], Any]) -> None:
    with pytest.raises(PoolSpecError, match="Pool gpus: task zero comes after task ensure, and does not run if a task"):
        check(dag_of(make))


@pytest.mark.parametrize("make", FINE.values(), ids=FINE)
def test_machines_that_something_releases_are_started(make: Callable[[], Any]) -> None:
    check(dag_of(make))


def test_a_running_task_is_compared_as_the_dag_file_has_it() -> None:
    running = dag_of(lambda: then(zero(TEMPLATED), TEMPLATED)).get_task("ensure").prepare_for_execution()
    running.gpu_pool = replace(TEMPLATED, name="gpus-a")  # as it is when it is rendered
    check_is_released(running, nodes=1)


def test_a_person_who_tries_a_task_out_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    comms = InProcessSupervisorComms(supervisor=SimpleNamespace())  # type: ignore[arg-type]
    check_is_released(alone(), nodes=1)  # without a DAG
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
    check(dag_of(alone))


def test_it_is_refused_before_the_cloud_is_asked_anything() -> None:
    task = dag_of(alone).get_task("ensure")
    with pytest.raises(PoolSpecError, match="no ScaleDownSensor"):
        task.execute({"ti": SimpleNamespace()})


def test_who_keeps_nodes_is_told_until_when() -> None:
    seen = snapshot(leases=(lease("run"),))
    until = own_lease(seen, key("run")).until
    assert f"1 node of pool train stays until {until:%Y-%m-%d %H:%MZ};" in kept_until(seen, key("run"))


@pytest.mark.parametrize("given", [{"keep": True}, {"max_cost": 5}, {"prefetch": ["train:1"]}], ids=str)
def test_no_node_and_what_is_for_nodes_exclude_each_other(given: dict[str, Any]) -> None:
    with pytest.raises(PoolSpecError, match="nodes=0 requests no node, and"):
        EnsureGpuPoolOperator(task_id="ensure", gpu_pool=replace(POOL, price_per_hour=1), nodes=0, **given)


def test_keep_is_no_word_and_a_block_brings_nodes() -> None:
    with pytest.raises(PoolSpecError, match="Task ensure: keep='False' for pool gpus"):
        alone(keep="False")
    with pytest.raises(PoolSpecError, match="nodes=0"), DAG("nightly", schedule=None), gpu_nodes(POOL, nodes=0):
        pass


def stored(make: Callable[[], Any]) -> list[Any]:
    """The tasks of a DAG as the database has them."""
    return [task["__var"] for task in DagSerialization.to_dict(dag_of(make))["dag"]["tasks"]]


@pytest.mark.parametrize("make", FINE.values(), ids=FINE)
def test_the_doctor_finds_nothing_in_what_runs(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> None:
    monkeypatch.setattr(ensures, "serialized_tasks", lambda dag_id: [("nightly", stored(make))])
    assert ensures_left_alone(None, []) == []


@pytest.mark.parametrize("make", (REFUSED | UNSURE).values(), ids=REFUSED | UNSURE)
def test_the_doctor_finds_by_day_what_is_refused_at_night(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    monkeypatch.setattr(ensures, "serialized_tasks", lambda dag_id: [("nightly", stored(make))])
    (found,) = ensures_left_alone(None, ["gpus"])
    assert (found.pool, found.check, found.result) == ("gpus", "scale-down", "problem")
    assert found.message.startswith("DAG nightly: Pool gpus: ")
    assert ("no ScaleDownSensor of this pool and block comes after" in found.message) == (make in REFUSED.values())
    assert f"max_runtime={timedelta(days=1)}" in found.message
    assert ensures_left_alone(None, ["other"]) == []
