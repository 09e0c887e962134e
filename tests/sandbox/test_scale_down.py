"""ScaleDownSensor in each of its modes, and two runs that share a pool, against the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException
from kubernetes.client import CoreV1Api
from kubernetes.config import new_client_from_config

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.cluster.model.pool_pod import RUN_LABEL
from airflow_gpu_provider.errors import PoolNotReleased, TaskKilled
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.pools.demand_key import DemandKey
from airflow_gpu_provider.pools.gpu_pool import POOL_LABEL
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.running import context_of, in_worker, run, timing_out_once


@pytest.fixture(autouse=True)
def no_faults_left(gpu_sandbox: Sandbox) -> Iterator[None]:
    yield
    gpu_sandbox.faults.clear()


def a_pool(sandbox: Sandbox, name: str, **fields: Any) -> EksGpuPool:
    defaults: dict[str, Any] = {
        "cluster_name": sandbox.cluster_name,
        "region": sandbox.region,
        "instance_types": ["g6.xlarge"],
        "zones": [sandbox.zones[0]],
        "max_nodes": 2,
    }
    return EksGpuPool(name=name, **{**defaults, **fields})


def ensure(pool: EksGpuPool, run_id: str = "one", **arguments: Any) -> Any:
    return run(EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, deferrable=False, **arguments), run_id=run_id)


@contextmanager
def held_in_the_cluster(sandbox: Sandbox, node: str) -> Iterator[None]:
    """The node stays in the cluster meanwhile, however fast its machine goes."""
    core = CoreV1Api(new_client_from_config(sandbox.env()["KUBECONFIG"]))
    core.patch_node(node, {"metadata": {"finalizers": ["tests/held"]}})
    yield
    core.patch_node(node, {"metadata": {"finalizers": None}})


def test_poke_mode(gpu_sandbox: Sandbox, env: None) -> None:
    pool = a_pool(gpu_sandbox, "poke")
    ensure(pool)
    sensor = ScaleDownSensor(task_id="zero", gpu_pool=pool, deferrable=False, poke_interval=0.5)
    result = run(sensor, run_id="one")
    assert (result["nodes"], result["desired"], result["kept"]) == (0, 0, [])


def test_reschedule_mode_counts_its_time_from_the_first_look(gpu_sandbox: Sandbox, env: None) -> None:
    pool = a_pool(gpu_sandbox, "reschedule")
    (node,) = (each["name"] for each in ensure(pool)["nodes"])
    first = datetime.now(UTC)

    def look(since: datetime) -> Any:
        sensor = ScaleDownSensor(task_id="zero", gpu_pool=pool, deferrable=False, mode="reschedule", timeout=600)
        context = context_of(sensor, run_id="one")
        context["ti"].get_first_reschedule_date = lambda _: since
        return sensor.execute(context)

    with held_in_the_cluster(gpu_sandbox, node):
        with pytest.raises(AirflowRescheduleException):
            look(first)
        with pytest.raises(PoolNotReleased, match="is not back to its size after 10 min"):
            look(first - timedelta(seconds=601))
    deadline = datetime.now(UTC) + timedelta(minutes=2)
    while True:
        try:
            result = look(first)
            break
        except AirflowRescheduleException:
            assert datetime.now(UTC) < deadline, "the machine did not go"
    assert result["nodes"] == 0


def test_what_another_run_wants_stays_and_is_named(gpu_sandbox: Sandbox, env: None) -> None:
    pool = a_pool(gpu_sandbox, "shared")
    ensure(pool, "one")
    assert len(ensure(pool, "two")["nodes"]) == 2
    first = run(ScaleDownSensor(task_id="zero", gpu_pool=pool), run_id="one")
    assert first["nodes"] == 1
    assert any("nightly/two" in line for line in first["kept"])
    second = run(ScaleDownSensor(task_id="zero", gpu_pool=pool), run_id="two")
    assert (second["nodes"], second["kept"]) == (0, [])


def test_blocks_of_one_run_share_a_pool_and_each_goes_by_itself(gpu_sandbox: Sandbox, env: None) -> None:
    """Two side by side, whose longer one works on the machine that came first, and a third one after the shorter."""
    pool = a_pool(gpu_sandbox, "blocks")
    core = CoreV1Api(new_client_from_config(gpu_sandbox.env()["KUBECONFIG"]))

    def wants(block: str) -> list[str]:
        return [node["name"] for node in ensure(pool, block_id=block)["nodes"]]

    def gone(block: str) -> Any:
        return run(ScaleDownSensor(task_id="zero", gpu_pool=pool, block_id=block), run_id="one")

    (first,) = wants("short")
    assert len(wants("long")) == 2
    key = DemandKey(installation="tests", dag_id="nightly", run_id="one", pool=pool.name, block="long")
    core.create_namespaced_pod("default", training(pool, on=first, run=key))
    for block in ("short", "next"):
        if block == "next":
            assert len(wants("next")) == 2
        left = gone(block)
        assert left["nodes"] == 1
        assert [line for line in left["kept"] if "nightly/one/long" in line]
        assert [pod.spec.node_name for pod in core.list_namespaced_pod("default").items] == [first]
        assert core.read_node(first)
    core.delete_namespaced_pod("training", "default", grace_period_seconds=0)
    after_long = gone("long")
    assert (after_long["nodes"], after_long["kept"]) == (0, [])


def training(pool: EksGpuPool, *, on: str, run: DemandKey) -> dict[str, Any]:
    """A pod of a run's block, which goes on until it is deleted."""
    container = {"name": "base", "image": "busybox:1.36", "command": ["sh", "-c", "while :; do sleep 0.1; done"]}
    spec = {"containers": [container], "nodeName": on, "nodeSelector": {POOL_LABEL: pool.name}}
    spec |= {"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": "training", "labels": {RUN_LABEL: run.hash, POOL_LABEL: pool.name}}, "spec": spec}


def test_an_execution_timeout_leaves_the_rest_to_the_next_try(gpu_sandbox: Sandbox, env: None) -> None:
    pool = a_pool(gpu_sandbox, "cut-off")
    (node,) = (each["name"] for each in ensure(pool)["nodes"])
    core = CoreV1Api(new_client_from_config(gpu_sandbox.env()["KUBECONFIG"]))
    arguments = {"deferrable": False, "poke_interval": 0.5, "execution_timeout": timedelta(hours=1)}
    sensor = ScaleDownSensor(task_id="zero", gpu_pool=pool, **arguments)
    with held_in_the_cluster(gpu_sandbox, node):
        is_going = lambda: core.read_node(node).metadata.deletion_timestamp  # noqa: E731
        with timing_out_once(is_going), pytest.raises(TaskKilled):
            in_worker(sensor, context_of(sensor, run_id="one"))
        assert core.read_node(node).metadata.name == node
    assert run(sensor, run_id="one")["nodes"] == 0


def test_twice_is_once(gpu_sandbox: Sandbox, env: None) -> None:
    pool = a_pool(gpu_sandbox, "twice")
    ensure(pool)
    for _ in range(2):
        assert run(ScaleDownSensor(task_id="zero", gpu_pool=pool), run_id="one")["nodes"] == 0


def test_a_pool_that_was_never_made_is_at_zero(gpu_sandbox: Sandbox, env: None) -> None:
    result = run(ScaleDownSensor(task_id="zero", gpu_pool=a_pool(gpu_sandbox, "never")), run_id="one")
    assert (result["nodes"], result["desired"]) == (0, 0)


def test_a_dry_run_changes_nothing(gpu_sandbox: Sandbox, env: None) -> None:
    pool = a_pool(gpu_sandbox, "dry")
    calls = sum(gpu_sandbox.aws.calls[name] for name in gpu_sandbox.aws.calls if "Create" in name)
    result = ensure(pool, dry_run=True)
    assert result["changes"]
    assert any("dry-a-g6-xlarge" in line for line in result["plan"])
    assert sum(gpu_sandbox.aws.calls[name] for name in gpu_sandbox.aws.calls if "Create" in name) == calls
