"""Machines that the cloud takes back: the next come elsewhere, and after two losses in a try they are on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.sensors.scale_down import ScaleDownSensor
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, lines_of, run
from tests.sandbox.test_preemption import SpotLoss, live_pods, remove_pods

pytestmark = pytest.mark.usefixtures("now")

ZONE = "topology.kubernetes.io/zone"
MARKET = "eks.amazonaws.com/capacityType"


@pytest.fixture
def core(api_client: client.ApiClient) -> Iterator[client.CoreV1Api]:
    core = client.CoreV1Api(api_client)
    yield core
    remove_pods(core)


def training(pool: EksGpuPool, *, losses: int) -> GpuPodOperator:
    """Return a training whose first attempts run until they are taken, and whose last one ends."""
    script = f'echo begun; [ "$AIRFLOW_GPU_ATTEMPT" -gt {losses} ] || exec sleep 600'
    return GpuPodOperator(
        task_id="train",
        gpu_pool=pool,
        image="busybox:1.36",
        cmds=["sh", "-c", script],
        checkpoint="s3://bucket/digits/",
        on_finish_action="keep_pod",
        deferrable=False,
    )


def labels_of_last_node(core: client.CoreV1Api) -> dict[str, str]:
    (left,) = live_pods(core)
    return dict(core.read_node(left.spec.node_name).metadata.labels)


def test_a_try_that_loses_two_machines_goes_on_demand(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    spec: dict[str, Any] = {"capacity_types": ["SPOT", "ON_DEMAND"], "max_nodes": 3}
    pool = with_nodes(eks_pool(gpu_sandbox, "twice", **spec))
    with SpotLoss(gpu_sandbox, core, times=2, after="begun"):
        _, lines = lines_of(lambda: run(training(pool, losses=2)))
    assert "The cloud took 2 machines of this try back: its next pods run on demand." in lines
    assert labels_of_last_node(core)[MARKET] == "ON_DEMAND"


def test_the_next_run_of_the_pool_starts_elsewhere(gpu_sandbox: Sandbox, core: client.CoreV1Api) -> None:
    zones = list(gpu_sandbox.zones[:2])
    pool = with_nodes(eks_pool(gpu_sandbox, "once", capacity_types=["SPOT"], zones=zones, max_nodes=2))
    with SpotLoss(gpu_sandbox, core, times=1, after="begun"):
        run(training(pool, losses=1))
    remove_pods(core)
    run(ScaleDownSensor(task_id="scale_down", gpu_pool=pool))
    ensure = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, deferrable=False)
    found, lines = lines_of(lambda: run(ensure, context_of(ensure, dag_id="another")))
    assert [node["zone"] for node in found["nodes"]] == [zones[1]]
    (tried,) = found["tried"]
    assert (tried["zone"], tried["times"]) == (zones[0], 0)
    assert "was lost (Spot interruption)" in tried["why"]
    assert any(f"g6.xlarge spot in {zones[0]}: machine i-" in line for line in lines)
