"""One pool name with two specs, on a real control plane: refused between DAGs, followed within one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kubernetes import client

from airflow_gpu_provider import EksGpuPool
from airflow_gpu_provider.errors import PoolDrift
from airflow_gpu_provider.operators.ensure import EnsureGpuPoolOperator
from airflow_gpu_provider.operators.gpu_pod import GpuPodOperator
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from airflow_gpu_provider.scaling.state.demand import DemandLease
from airflow_gpu_provider.scaling.state.demand_leases import list_demand
from airflow_gpu_provider.tasks.run_identity import run_key
from gpu_sandbox.sandbox import Sandbox
from tests.sandbox.gpu_pools import eks_pool, with_nodes
from tests.sandbox.running import context_of, lines_of, run

pytestmark = pytest.mark.usefixtures("now")


def ensure(pool: EksGpuPool, dag_id: str) -> Any:
    operator = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=pool, nodes=1, deferrable=False)
    return run(operator, context_of(operator, dag_id=dag_id))


def opened(pool: EksGpuPool, dag_id: str) -> Reconciler:
    return open_pool(pool, owner=f"tests/{dag_id}", holder="tests", report=print)


@pytest.fixture(scope="module")
def name() -> str:
    return "two-specs"


@pytest.fixture
def theirs(gpu_sandbox: Sandbox, api_client: client.ApiClient, name: str) -> Iterator[DemandLease]:
    """The demand of DAG a, with its node."""
    pool = eks_pool(gpu_sandbox, name, max_nodes=2)
    ensure(pool, "a")
    (lease,) = list_demand(api_client, name)
    yield lease
    for each in list_demand(api_client, name):
        opened(pool, "a").delete_demand_and_reconcile(each.key)


@pytest.mark.usefixtures("theirs")
def test_a_second_spec_of_a_pool_name_is_refused_before_anything_is_made(
    gpu_sandbox: Sandbox, api_client: client.ApiClient, name: str
) -> None:
    """Of machine types, markets, zones and labels."""
    groups = gpu_sandbox.aws.describe_groups()
    for other in (
        {"instance_types": ["g6e.xlarge"]},
        {"instance_types": ["g6.xlarge", "g6e.xlarge"]},
        {"capacity_types": ["SPOT"]},
        {"zones": [gpu_sandbox.zones[1]]},
        {"node_labels": {"team": "b"}},
    ):
        pool = eks_pool(gpu_sandbox, name, **{"max_nodes": 2, **other})
        with pytest.raises(PoolDrift, match=rf"DAG a wants nodes of pool {name} \(run manual__2026") as refused:
            ensure(pool, "b")
        assert len(refused.value.details["differences"]) == 1, other
    assert [lease.key.dag_id for lease in list_demand(api_client, name)] == ["a"]
    assert {group["nodegroup"] for group in gpu_sandbox.aws.describe_groups()} == {
        group["nodegroup"] for group in groups
    }


def test_it_is_refused_under_the_lock_too(
    gpu_sandbox: Sandbox, api_client: client.ApiClient, name: str, theirs: DemandLease
) -> None:
    """Of two that begin at once, both have seen no other demand before."""
    other = opened(eks_pool(gpu_sandbox, name, max_nodes=2, instance_types=["g6e.xlarge"]), "b")
    operator = EnsureGpuPoolOperator(task_id="ensure", gpu_pool=other.pool, nodes=1)
    key = run_key(context_of(operator, dag_id="b"), name, "")
    with pytest.raises(PoolDrift, match=r"g6\.xlarge instead of g6e\.xlarge"):
        other.want(key, 1, other.clock.now() + timedelta(hours=1))
    assert [lease.key for lease in list_demand(api_client, name)] == [theirs.key]
    opened(eks_pool(gpu_sandbox, name, max_nodes=2), "a").delete_demand_and_reconcile(theirs.key)
    other.want(key, 1, other.clock.now() + timedelta(hours=1))  # without other demand the newer spec takes over


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("nodes", [1, 2])
def test_no_pod_without_a_block_waits_for_machines_that_another_dag_excludes(
    gpu_sandbox: Sandbox, api_client: client.ApiClient, name: str, nodes: int
) -> None:
    pool = eks_pool(gpu_sandbox, name, max_nodes=2, instance_types=["g6e.xlarge"])
    train = GpuPodOperator(task_id="train", gpu_pool=pool, nodes=nodes, image="busybox:1.36", cmds=["true"])
    with pytest.raises(PoolDrift, match=r"DAG a wants nodes .* machine types g6\.xlarge instead of g6e\.xlarge"):
        run(train, context_of(train, dag_id="b"))
    assert client.CoreV1Api(api_client).list_namespaced_pod("default").items == []
    assert [lease.key.dag_id for lease in list_demand(api_client, name)] == ["a"]


def test_a_retried_pod_gets_a_machine_of_the_changed_spec(gpu_sandbox: Sandbox, api_client: client.ApiClient) -> None:
    """The DAG's file has changed since its Ensure, which has made no group for the new machines."""
    name = "changed-spec"
    with_nodes(eks_pool(gpu_sandbox, name))
    changed = eks_pool(gpu_sandbox, name, instance_types=["g6e.xlarge"])
    train = GpuPodOperator(task_id="train", gpu_pool=changed, image="busybox:1.36", cmds=["sh", "-c", "echo runs"])
    _, lines = lines_of(lambda: run(train))
    assert (
        f"The spec of pool {name} has changed during the run: machine types g6e.xlarge instead of g6.xlarge." in lines
    )
    (lease,) = list_demand(api_client, name)
    assert lease.allowed == changed.allowed
    assert types_of(api_client, name) == ["g6e.xlarge"], "the former machine has gone, and no second one has come"


def types_of(api_client: client.ApiClient, name: str) -> list[str]:
    nodes = client.CoreV1Api(api_client).list_node(label_selector=f"airflow-gpu-provider/pool={name}").items
    return [node.metadata.labels["node.kubernetes.io/instance-type"] for node in nodes]
