"""A training that runs out of GPU memory, and whose next try gets a larger GPU, while its sibling stays on its own."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import GpuOutOfMemory, GpuTooSmall
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, lines_of, run

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.00 GiB"
    " of which 102.40 MiB is free."
)


pytestmark = pytest.mark.usefixtures("now")


def training(pool: EksGpuPool, script: str, **arguments: Any) -> GpuPodOperator:
    usual: dict[str, Any] = {
        "task_id": "train",
        "gpu_pool": pool,
        "image": "busybox:1.36",
        "cmds": ["sh", "-c", script],
        "retries": 3,
    }
    return GpuPodOperator(**{**usual, "on_gpu_out_of_memory": "larger", **arguments})


def try_of(operator: GpuPodOperator, number: int, *, retries: int = 3) -> tuple[Any, list[str]]:
    """Return what a try returns, or its error, and its log."""

    def once() -> Any:
        try:
            return run(operator, context_of(operator, try_number=number, max_tries=retries))
        except (GpuTooSmall, GpuOutOfMemory) as error:
            return error

    return lines_of(once)


@pytest.mark.parametrize("deferrable", [True, False])
def test_the_next_try_runs_on_a_larger_gpu_and_a_sibling_where_it_was(
    gpu_sandbox: Sandbox, api_client: client.ApiClient, deferrable: bool
) -> None:
    name = f"larger-{'later' if deferrable else 'here'}"
    pool = with_nodes(eks_pool(gpu_sandbox, name, instance_types=["g6.xlarge", "g6e.xlarge"], max_nodes=2), nodes=2)
    fails = training(pool, f"echo '{OUT_OF_MEMORY}'; exit 1", deferrable=deferrable)
    error, lines = try_of(fails, 1)
    assert type(error) is GpuTooSmall
    assert "22.9 of 23.0 GiB on g6.xlarge; next: g6e.xlarge (48 GiB)" in lines
    (lease,) = list_demand(api_client, name)
    assert [(each.task_id, each.instance_type, each.nodes) for each in lease.task_nodes] == [("train", "g6e.xlarge", 1)]

    where = "echo runs"
    result, lines = try_of(training(pool, where, deferrable=deferrable), 2)
    assert result is None
    assert "Asking for g6e.xlarge (48 GiB): an earlier try ran out of GPU memory." in lines
    nodes = client.CoreV1Api(api_client).list_node(label_selector=f"airflow-gpu-provider/pool={name}").items
    types = sorted(node.metadata.labels["node.kubernetes.io/instance-type"] for node in nodes)
    assert types == ["g6.xlarge", "g6e.xlarge"], "the sibling's node stays what it is"

    error, _ = try_of(fails, 3)
    assert type(error) is GpuOutOfMemory
    assert f"Pool {name} has no machine type with more memory per GPU than g6e.xlarge (48 GiB)." in error.fix
    assert not error.retryable


def test_all_ranks_of_a_gang_get_a_larger_gpu(gpu_sandbox: Sandbox, api_client: client.ApiClient) -> None:
    types = ["g6.xlarge", "g6e.xlarge"]
    pool = with_nodes(eks_pool(gpu_sandbox, "larger-gang", instance_types=types, max_nodes=2), nodes=2)
    waits = "trap 'exit 0' TERM; while [ $AIRFLOW_GPU_NODE_RANK = 0 ]; do sleep 0.1; done"
    script = f"{waits}; echo '{OUT_OF_MEMORY}'; exit 1"
    error, _ = try_of(training(pool, script, nodes=2), 1)
    assert type(error) is GpuTooSmall
    assert error.details["rank"] == 1
    result, lines = try_of(training(pool, "echo runs", nodes=2), 2)
    assert result is None
    assert [line for line in lines if line.endswith(" runs")] in (
        ["[rank 0] runs", "[rank 1] runs"],
        ["[rank 1] runs", "[rank 0] runs"],
    )
    nodes = client.CoreV1Api(api_client).list_node(label_selector="airflow-gpu-provider/pool=larger-gang").items
    assert {node.metadata.labels["node.kubernetes.io/instance-type"] for node in nodes} == {"g6e.xlarge"}
