"""What a pod that waits hears of launches that work, are refused, or lead to no node.

Karpenter asks anew for a claim that was refused for want of capacity; it asks for five minutes for one whose launch
fails otherwise, and deletes after fifteen one whose machine does not join.
"""

from __future__ import annotations

from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_gpu_provider.errors import GpuError, NoCapacity, OutOfStock, PodDeadline, PodUnschedulable, QuotaExceeded
from airflow_gpu_provider.scaling.decide.shortage import missing_for_pods
from airflow_gpu_provider.scaling.decide.snapshot import PoolSnapshot
from gpu_sandbox.karpenter import MachineCloud, Offering, Refusal
from tests.karpenter.cluster import NEVER, Cluster
from tests.karpenter.nights import Night, late, told
from tests.sandbox.running import eventually
from tests.sandbox.ways import BOTH_WAYS

DRY = Refusal(
    kind="InsufficientCapacity",
    message="with fleet error(s), InsufficientInstanceCapacity: We currently do not have sufficient g6.xlarge capacity",
)
NO_QUOTA = Refusal(
    kind="InsufficientCapacity",
    message="with fleet error(s), VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit"
    " of 0 allows for the instance bucket that the specified instance type belongs to",
)
FORBIDDEN = Refusal(
    kind="CreateError", reason="Unauthorized", message="You are not authorized to perform this operation: CreateFleet"
)
BROKEN = Refusal(kind="LaunchFailed", message="InternalError: An internal error has occurred")
GOT_NONE = "Karpenter got no machine: .*"


def refused_launch(night: Night, words: str = "") -> Future[Any]:
    """Begin a training, and return it once its log says that Karpenter's launch was refused."""
    with told() as lines:
        training = night.begin_train()
        lines.until(f"{GOT_NONE}{words}")
    return training


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.EVERY", 1.0)
    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.FIRST", 0.5)


def forget_what_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take nothing of the two seconds before a run for the run's own: all clocks are this machine's."""
    monkeypatch.setattr("airflow_gpu_provider.scaling.decide.scarce_capacity._CLOCKS_APART", timedelta())


@BOTH_WAYS
def test_a_claim_and_its_machine_are_told_of(cluster: Cluster, deferrable: bool) -> None:
    name = f"launch-{deferrable}".lower()
    night = Night(cluster.node_pool(name))
    with told() as lines:
        night.ensure()
        night.train(deferrable=deferrable)
    asked = lines.until("Karpenter has asked for a machine for it: nodeclaim/")
    assert f"nodeclaim/{name}-" in asked
    assert lines.matching(rf"placed on node {cluster.nodes(name)[0].metadata.name}")
    assert not lines.matching(GOT_NONE)


def test_a_stock_out_is_told_in_few_lines_and_the_run_goes_on_when_it_is_over(
    cluster: Cluster, cloud: MachineCloud
) -> None:
    night, before = Night(cluster.node_pool("dry")), cloud.launches
    night.ensure()
    with told() as lines:
        cloud.refusal = DRY
        training = night.begin_train()
        lines.until(f"{GOT_NONE}insufficient capacity", seconds=30)
        eventually(lambda: cloud.launches >= before + 4, seconds=90)
        cloud.refusal = None
        training.result(90)
    # Each claim has another name, and the failure is the same.
    assert len(lines.matching(GOT_NONE)) <= 2


def test_a_stock_out_that_lasts_is_the_error(cluster: Cluster, cloud: MachineCloud) -> None:
    night = Night(cluster.node_pool("arid"))
    night.ensure()
    cloud.refusal = DRY
    error = late(refused_launch(night), OutOfStock, "No capacity for")
    assert "NodePool" in str(error)
    assert "capacity_types" not in str(error)


def test_a_quota_that_is_used_up_is_no_stock_out(cluster: Cluster, cloud: MachineCloud) -> None:
    night = Night(cluster.node_pool("poor"))
    night.ensure()
    cloud.refusal = NO_QUOTA
    late(refused_launch(night), QuotaExceeded, "vCPU")


def test_offerings_that_are_not_to_be_had_are_told_and_the_run_goes_on_when_they_are(
    cluster: Cluster, cloud: MachineCloud
) -> None:
    night = Night(cluster.node_pool("sold-out"))
    night.ensure()
    cloud.unavailable = (Offering(instance_type="g6.xlarge"),)
    with told() as lines:
        training = night.begin_train()
        lines.until("Karpenter brings no node: .*filtered out all available instance types", seconds=30)
        cloud.unavailable = ()
        training.result(120)


@pytest.mark.parametrize(
    ("refused", "words"),
    [pytest.param(FORBIDDEN, "not authorized", id="unauthorized"), pytest.param(BROKEN, "InternalError", id="failed")],
)
def test_a_launch_that_the_cloud_refuses_is_told_and_is_in_the_error(
    cluster: Cluster, cloud: MachineCloud, refused: Refusal, words: str
) -> None:
    night = Night(cluster.node_pool(f"refused-{refused.kind}".lower()))
    night.ensure()
    cloud.refusal = refused
    error = late(refused_launch(night, words), GpuError, words)
    assert not isinstance(error, OutOfStock)
    assert "capacity_types" not in str(error)


def test_what_karpenter_says_nothing_of_is_not_explained_by_an_older_failure(
    cluster: Cluster, cloud: MachineCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node class that is not ready at a launch: Karpenter deletes the claim, and publishes no event."""
    pool = cluster.node_pool("silent")
    cloud.refusal = DRY
    first = Night(pool, "first")
    first.ensure()
    late(refused_launch(first), OutOfStock, "No capacity for")
    eventually(lambda: not cluster.claims("silent"), seconds=60)
    forget_what_failed_before(monkeypatch)
    cloud.refusal = Refusal(kind="NodeClassNotReady", message="AMI was not found")
    before, second = cloud.launches, Night(pool, "second")
    with told() as lines:
        second.ensure()
        training = second.begin_train()
        eventually(lambda: cloud.launches >= before + 2, seconds=60)
        error = late(training, PodDeadline, "got no node")
    assert not lines.matching("insufficient capacity")
    assert "insufficient capacity" not in str(error)


def test_a_node_pool_that_is_not_ready_any_more_is_told(cluster: Cluster) -> None:
    cluster.node_class("fragile")
    night = Night(cluster.node_pool("fragile", node_class="fragile"))
    night.ensure()
    cluster.set_node_class_ready("fragile", ready=False, message="Failed to resolve AMIs")
    cluster.until_ready("fragile", "False")
    with told() as lines:
        training = night.begin_train()
        lines.until("fragile: it is not ready.*Failed to resolve AMIs", seconds=30)
        cluster.set_node_class_ready("fragile", ready=True)
        training.result(120)


def test_where_no_karpenter_runs_nothing_older_is_told(
    cluster: Cluster, cloud: MachineCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[PoolSnapshot] = []

    def look(snapshot: PoolSnapshot, since: datetime) -> NoCapacity | None:
        looks.append(snapshot)
        return missing_for_pods(snapshot, since)

    monkeypatch.setattr("airflow_gpu_provider.scaling.wait.pool_updates.missing_for_pods", look)
    pool = cluster.node_pool("stopped")
    cloud.refusal = DRY
    first = Night(pool, "first")
    first.ensure()
    late(refused_launch(first), OutOfStock, "No capacity for")
    cluster.core.delete_collection_namespaced_pod("default", grace_period_seconds=0)
    eventually(lambda: not cluster.claims("stopped"), seconds=60)
    forget_what_failed_before(monkeypatch)
    second = Night(pool, "second")
    cluster.karpenter.pause()
    try:
        with told() as lines:
            second.ensure()
            training, before = second.begin_train(), len(looks)
            lines.until("waits for a node")
            eventually(lambda: len(looks) >= before + 2)
            error = late(training, PodDeadline, "got no node")
    finally:
        cluster.karpenter.resume()
    assert not lines.matching("insufficient capacity")
    assert "insufficient capacity" not in str(error)


def test_a_startup_taint_that_stays_is_named_and_one_that_goes_is_waited_for(cluster: Cluster) -> None:
    taint = {"key": "example.com/agent", "effect": "NoSchedule"}
    pool = cluster.node_pool("tainted", template={"startupTaints": [taint]})
    with told() as lines:
        first = Night(pool, "first").begin_train()
        lines.until("is Ready, with the taint example.com/agent")
        late(first, GpuError, "See what should take the taint .* off the node")
    with told() as lines:
        training = Night(pool, "second").begin_train()
        lines.until("untolerated taint", seconds=60)
        (node,) = cluster.nodes("tainted")
        cluster.core.patch_node(node.metadata.name, {"spec": {"taints": None}})
        training.result(90)


def test_a_node_that_is_not_ready_for_a_while_is_told_of_and_waited_for(cluster: Cluster) -> None:
    """Karpenter may bring no other one, and repairs nothing so soon: the pod goes to the node when that is back."""
    pool = cluster.node_pool("silent", disruption=NEVER, limits={"nvidia.com/gpu": "1"})
    Night(pool, "first").train()
    (node,) = cluster.nodes("silent")
    with told() as lines:
        cluster.set_node_ready(node.metadata.name, ready=False)
        training = Night(pool, "second").begin_train()
        # Its process says once a minute that it is Ready.
        eventually(
            lambda: (
                cluster.set_node_ready(node.metadata.name, ready=False),
                lines.matching(f"node {node.metadata.name} .*not Ready"),
            )[1]
        )
        cluster.set_node_ready(node.metadata.name, ready=True)
        training.result(120)
    assert [each.metadata.name for each in cluster.nodes("silent")] == [node.metadata.name]


def test_a_node_without_a_device_plugin_is_told_of(cluster: Cluster, cloud: MachineCloud) -> None:
    cloud.brings_plugin = False
    night = Night(cluster.node_pool("bare"))
    with told() as lines:
        night.ensure()
        training = night.begin_train()
        lines.until("its GPUs are not allocatable yet")
        error = late(training, GpuError, "got no node|not allocatable")
    assert not isinstance(error, PodUnschedulable)


def test_a_machine_that_does_not_join_is_told_of(
    cluster: Cluster, cloud: MachineCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_gpu_provider.scaling.decide.snapshot.SLOW", timedelta(seconds=4))
    cloud.joins = False
    night = Night(cluster.node_pool("lost"))
    with told() as lines:
        night.ensure()
        training = night.begin_train()
        lines.until("pods cannot use it yet: .*NodeClaim lost-.*Node not registered with cluster")
        late(training, GpuError, "Node not registered with cluster")
