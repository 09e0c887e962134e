"""What `airflow gpu status` and `doctor` say of a pool whose nodes Karpenter brings."""

from __future__ import annotations

import pytest

from airflow_gpu_provider import KubernetesGpuPool
from airflow_gpu_provider.errors import OutOfStock
from airflow_gpu_provider.reports.doctor import Finding, examine
from airflow_gpu_provider.reports.status import PoolStatus, read_status
from airflow_gpu_provider.scaling.apply.reconcile import Reconciler, open_pool
from gpu_sandbox.karpenter import MachineCloud
from tests.karpenter.cluster import NEVER, Cluster
from tests.karpenter.nights import Night, late
from tests.karpenter.test_launches import DRY, refused_launch
from tests.sandbox.running import eventually


def opened(pool: KubernetesGpuPool) -> Reconciler:
    return open_pool(pool, owner="tests/reports", holder="a report", report=print)


def status(pool: KubernetesGpuPool) -> PoolStatus:
    return read_status(opened(pool))


def findings(pool: KubernetesGpuPool) -> dict[str, Finding]:
    """What doctor says, by check; the worst of each."""
    order = ("ok", "warning", "problem")
    found: dict[str, Finding] = {}
    for finding in examine(pool, lambda: opened(pool)):
        before = found.get(finding.check)
        if before is None or order.index(finding.result) > order.index(before.result):
            found[finding.check] = finding
    return found


def message(pool: KubernetesGpuPool) -> str:
    """All that is not ok."""
    wrong = [f for f in examine(pool, lambda: opened(pool)) if f.result != "ok"]
    return "\n".join(f"{finding.check}: {finding.result}: {finding.message}" for finding in wrong)


def test_a_machine_that_is_being_removed_is_not_launching(cluster: Cluster, cloud: MachineCloud) -> None:
    cloud.end_seconds = 15.0
    pool = cluster.node_pool("ending", disruption=NEVER)
    Night(pool).train()
    assert status(pool).nodes == 1
    (claim,) = cluster.claims("ending")
    cluster.delete_claim(claim["metadata"]["name"])
    eventually(lambda: status(pool).nodes == 0, seconds=60)
    assert status(pool).launching == 0


def test_a_node_has_its_zone_type_and_market(cluster: Cluster) -> None:
    pool = cluster.node_pool("placed", disruption=NEVER)
    Night(pool).train()
    (node,) = cluster.nodes("placed")
    (group,) = opened(pool).snapshot().groups
    assert group.candidate.zone == node.metadata.labels["topology.kubernetes.io/zone"]
    assert group.candidate.instance_type == "g6.xlarge"


def test_the_doctor_finds_nothing_wrong_where_nothing_is(cluster: Cluster) -> None:
    pool = cluster.node_pool("healthy")
    found = findings(pool)
    assert found["groups"].result == "ok"
    assert not found["groups"].fix
    assert message(pool) == ""


@pytest.mark.parametrize("what", ["node class", "node pool"])
def test_the_doctor_names_what_is_missing(cluster: Cluster, what: str) -> None:
    if what == "node class":
        pool, words = cluster.node_pool("orphan", node_class="gone", ready=False), "NodeClass not found"
        cluster.until_ready("orphan", "False")
    else:
        cluster.node_pool("another")
        pool, words = cluster.pool("nothing"), "karpenter.sh/nodepool=nothing"
    assert findings(pool)["groups"].result == "problem"
    assert words in message(pool)


def test_the_doctor_tells_limits_that_are_used_up(cluster: Cluster) -> None:
    pool = cluster.node_pool("full", limits={"nvidia.com/gpu": "1"}, disruption=NEVER)
    Night(pool).train()
    eventually(lambda: cluster.nodepool("full").get("status", {}).get("resources", {}).get("nvidia.com/gpu") == "1")
    assert "nvidia.com/gpu: 1 of 1" in message(pool)


def test_the_doctor_tells_a_stock_out_of_a_minute_ago(cluster: Cluster, cloud: MachineCloud) -> None:
    pool = cluster.node_pool("dried-up")
    cloud.refusal = DRY
    late(refused_launch(Night(pool)), OutOfStock, "No capacity for")
    cloud.refusal = None
    found = findings(pool)
    assert found["stock"].result == "warning"
    assert "capacity" in found["stock"].message
