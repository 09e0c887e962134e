"""Karpenter takes a node from a training.

`karpenter.sh/do-not-disrupt`, which GpuPodOperator sets, holds in each disruption that Karpenter chooses: drift, and
consolidation. Expiry and a deleted claim wait for the pod, unless the NodePool has a terminationGracePeriod: with it
they end the pod, and drift does so too, whatever the annotation says (karpenter.sh/docs/concepts/disruption).
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from airflow_gpu_provider.errors import PodPreempted
from gpu_sandbox.karpenter import MachineCloud, Offering
from tests.karpenter.cluster import NEVER, Cluster, condition
from tests.karpenter.nights import Night, Told, failure, told
from tests.sandbox.running import eventually

# Longer than Karpenter takes in the same case for a training that may be disrupted (below).
LONG = ("sh", "-c", "trap 'exit 143' TERM; for i in $(seq 500); do sleep 0.1; done; echo done")
# The first attempt ends when it is told to, the next one at once.
RESUMED = (
    "sh",
    "-c",
    "trap 'exit 143' TERM; [ $AIRFLOW_GPU_ATTEMPT = 1 ] || exit 0; while :; do sleep 0.1; done",
)
WITH_GRACE = {"terminationGracePeriod": "5s"}
DISRUPTED = r"node .* is about to be removed: Karpenter disrupts it"
BY_PRICE = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}


def begun(cluster: Cluster, night: Night, *cmds: str, **arguments: Any) -> tuple[Future[Any], str]:
    """A training that runs, and its node."""
    night.ensure()
    training = night.begin_train(*cmds, termination_grace_period=2, **arguments)
    name = str(eventually(lambda: running_on(cluster, night.pool.name), seconds=60))
    return training, name


def running_on(cluster: Cluster, node_pool: str) -> str | None:
    of_pool = {node.metadata.name for node in cluster.nodes(node_pool)}
    pods = cluster.core.list_namespaced_pod("default").items
    return next((p.spec.node_name for p in pods if p.status.phase == "Running" and p.spec.node_name in of_pool), None)


def is_drifted(cluster: Cluster, node_pool: str) -> bool:
    return any(condition(claim, "Drifted").get("status") == "True" for claim in cluster.claims(node_pool))


def change_template(cluster: Cluster, name: str) -> None:
    labelled = {"metadata": {"labels": {"revision": "2"}}}
    cluster.patch_node_pool(name, {"template": labelled})


def taken_and_resumed(cluster: Cluster, training: Future[Any], lines: Told, name: str, first: str) -> None:
    """The training was taken from its first node, and has ended on another."""
    training.result(150)
    assert lines.matching(r"Attempt 2 starts")
    (again,) = [line for line in lines.matching("placed on node") if first not in line][:1]
    assert again
    eventually(lambda: first not in {node.metadata.name for node in cluster.nodes(name)}, seconds=60)


def test_drift_waits_for_the_training(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("drifts"))
    with told() as lines:
        training, node = begun(cluster, night, *LONG)
        change_template(cluster, "drifts")
        eventually(lambda: is_drifted(cluster, "drifts"), seconds=60)
        training.result(90)
    assert node in {each.metadata.name for each in cluster.nodes("drifts")}
    assert not lines.matching(DISRUPTED)


def test_a_claim_that_is_deleted_waits_for_the_training_and_that_is_told(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("deleted"))
    with told() as lines:
        training, _ = begun(cluster, night, "sh", "-c", "for i in $(seq 150); do sleep 0.1; done")
        (claim,) = cluster.claims("deleted")
        cluster.delete_claim(claim["metadata"]["name"])
        lines.until(DISRUPTED, seconds=15)
        training.result(90)
    assert night.scale_down()["nodes"] == 0


def test_expiry_without_a_grace_period_waits_for_the_training(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("expires", disruption=NEVER, template={"expireAfter": "8s"}))
    with told() as lines:
        training, _ = begun(cluster, night, "sh", "-c", "for i in $(seq 150); do sleep 0.1; done")
        lines.until(DISRUPTED, seconds=30)
        training.result(90)


def test_expiry_with_a_grace_period_ends_the_training_and_it_goes_on_elsewhere(cluster: Cluster) -> None:
    template = {"expireAfter": "12s", **WITH_GRACE}
    night = Night(cluster.node_pool("ends", disruption=NEVER, template=template))
    with told() as lines:
        training, node = begun(cluster, night, *RESUMED, on_preemption="resume")
        lines.until("terminationGracePeriod", seconds=60)
        taken_and_resumed(cluster, training, lines, "ends", node)


@pytest.mark.parametrize("deferrable", [False, True], ids=["blocking", "deferred"])
def test_a_claim_s_deletion_with_a_grace_period_is_why_the_pod_was_preempted(
    cluster: Cluster, deferrable: bool
) -> None:
    name = f"fails-{deferrable}".lower()
    night = Night(cluster.node_pool(name, template=WITH_GRACE))
    training, _ = begun(cluster, night, *RESUMED, on_preemption="fail", deferrable=deferrable)
    (claim,) = cluster.claims(name)
    cluster.delete_claim(claim["metadata"]["name"])
    failure(training, PodPreempted, "terminationGracePeriod", seconds=90)


def test_drift_with_a_grace_period_ends_the_training_despite_do_not_disrupt(cluster: Cluster) -> None:
    night = Night(cluster.node_pool("forced", template=WITH_GRACE))
    with told() as lines:
        training, node = begun(cluster, night, *RESUMED, on_preemption="resume")
        change_template(cluster, "forced")
        lines.until("terminationGracePeriod", seconds=90)
        taken_and_resumed(cluster, training, lines, "forced", node)


def dear_then_cheap(cluster: Cluster, cloud: MachineCloud, name: str) -> Night:
    """A pool whose cheaper machines are not to be had yet."""
    cloud.unavailable = (Offering(instance_type="g6.xlarge"),)
    return Night(cluster.node_pool(name, types=["g6.xlarge", "g6e.xlarge"], disruption=BY_PRICE))


def test_a_cheaper_machine_waits_for_the_training(cluster: Cluster, cloud: MachineCloud) -> None:
    with told() as lines:
        training, node = begun(cluster, dear_then_cheap(cluster, cloud, "dear"), *LONG)
        cloud.unavailable = ()
        training.result(90)
    assert node in {each.metadata.name for each in cluster.nodes("dear")}
    assert not lines.matching(DISRUPTED)


def test_a_training_that_may_be_disrupted_moves_to_the_cheaper_machine(cluster: Cluster, cloud: MachineCloud) -> None:
    night = dear_then_cheap(cluster, cloud, "movable")
    with told() as lines:
        movable = {"karpenter.sh/do-not-disrupt": "1s"}
        training, node = begun(cluster, night, *RESUMED, on_preemption="resume", annotations=movable)
        cloud.unavailable = ()
        training.result(180)
    assert lines.matching("EvictionByEvictionAPI|Karpenter evicts it")
    assert lines.matching("Attempt 2 starts")
    types = {
        each.metadata.name: each.metadata.labels for each in cluster.nodes("movable") if each.metadata.name != node
    }
    assert {labels["node.kubernetes.io/instance-type"] for labels in types.values()} == {"g6.xlarge"}


def test_a_machine_that_is_gone_at_once_is_a_loss_and_the_training_goes_on_elsewhere(
    cluster: Cluster, cloud: MachineCloud
) -> None:
    night = Night(cluster.node_pool("dies"))
    with told() as lines:
        training, node = begun(cluster, night, *RESUMED, on_preemption="resume")
        cloud.lose(node)
        lines.until(rf"was lost before it had finished: its node {node} left the cluster", seconds=60)
        taken_and_resumed(cluster, training, lines, "dies", node)
