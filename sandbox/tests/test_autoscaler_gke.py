"""GKE's own autoscaler, played: node pools with autoscaling on grow and shrink for pods, zone by zone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_sandbox import SandboxProcess
from sandbox.tests.autoscaling import Gke, gpu_pod

pytest.importorskip("google.cloud.container_v1", reason="Google's libraries are not installed")
# In seconds. A GPU pod is new for 30, and is looked at by the next scan; a group reacts after 3, creates an instance in
# 25, and a machine boots for 45.
SEEN = 30 + 10
JOINED = SEEN + 3 + 25 + 45
LABEL, NAME = "autoscaling.gke.io/provisioning-request", "ResizeRequestName"


@pytest.fixture(scope="module")
def sandbox(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> SandboxProcess:
    return gpu_sandbox_factory(platform="gke", clock="manual")


@pytest.fixture
def gke(sandbox: SandboxProcess) -> Iterator[Gke]:
    cluster = Gke(sandbox)
    yield cluster
    sandbox.clear_faults()
    cluster.delete_pods()
    sandbox.advance(minutes=2)  # an operation on a node pool holds its deletion up
    for name in cluster.node_pools():
        cluster.client.delete_node_pool(name=f"{cluster.parent}/nodePools/{name}")
    sandbox.advance(minutes=10)
    assert (cluster.node_pools(), cluster.gpu_nodes(), cluster.pods()) == ([], [], [])
    cluster.forget_events()


def for_pool(name: str) -> dict[str, Any]:
    return {"nodeSelector": {"role": name}}


def test_a_pool_with_autoscaling_grows_from_zero_and_goes_back(gke: Gke, sandbox: SandboxProcess) -> None:
    gke.node_pool("train", autoscaling={"min_node_count": 0, "max_node_count": 2})
    gke.create(gpu_pod("train", **for_pool("train")))
    sandbox.advance(JOINED)
    gke.until_running("train")
    (event,) = gke.events("TriggeredScaleUp", about="train")
    assert "/zones/us-central1-a/instanceGroups/gke-" in event
    assert event.endswith("0->1 (max: 2)}]")
    gke.delete_pods()
    sandbox.advance(minutes=9)
    assert gke.sizes("train") == {"a": 1}
    sandbox.advance(minutes=3)  # ten minutes since it is idle, seconds with a taint, and the machine's end
    assert (gke.sizes("train"), gke.gpu_nodes()) == ({"a": 0}, [])
    assert gke.status()["autoscalerStatus"] == "Running"


def test_a_pool_without_it_stays_as_it_is(gke: Gke, sandbox: SandboxProcess) -> None:
    gke.node_pool("fixed", autoscaling=None)
    gke.create(gpu_pod("waiting", **for_pool("fixed")))
    sandbox.advance(SEEN)
    assert gke.events("NotTriggerScaleUp", about="waiting")
    sandbox.advance(hours=1)
    assert gke.sizes("fixed") == {"a": 0}


def test_zones_share_the_nodes_up_to_the_limit_of_the_whole_pool(gke: Gke, sandbox: SandboxProcess) -> None:
    gke.node_pool("spread", autoscaling={"total_min_node_count": 0, "total_max_node_count": 3}, zones=3)
    for index in range(4):
        gke.create(gpu_pod(f"pod-{index}", **for_pool("spread")))
    sandbox.advance(JOINED + 10)
    assert gke.sizes("spread") == {"a": 1, "b": 1, "c": 1}
    assert sum("nodeName" in pod["spec"] for pod in gke.pods()) == 3
    assert "max node group size reached" in str(gke.events("NotTriggerScaleUp"))


def test_a_stock_out_is_backed_off_from_and_another_zone_grows(gke: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"zone": "us-central1-a"}]})
    gke.node_pool("either", autoscaling={"min_node_count": 0, "max_node_count": 2}, zones=1)
    gke.create(gpu_pod("waiting", **for_pool("either")))
    sandbox.advance(SEEN + 60)  # it has tried, and then looked at groups again
    (failed,) = gke.events("ScaleUpFailed")
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in failed
    assert gke.sizes("either") == {"a": 0}
    assert "in backoff after failed scale-up" in str(gke.events("NotTriggerScaleUp", about="waiting"))


def test_new_labels_and_taints_of_a_pool_reach_its_nodes(gke: Gke, sandbox: SandboxProcess) -> None:
    gke.node_pool("train", autoscaling={"min_node_count": 0, "max_node_count": 1})
    gke.create(gpu_pod("train", **for_pool("train")))
    sandbox.advance(JOINED)
    gke.until_running("train")
    gke.client.update_node_pool(
        request={
            "name": f"{gke.parent}/nodePools/train",
            "labels": {"labels": {"role": "train", "night": "1"}},
            "taints": {
                "taints": [
                    {"key": "night", "value": "1", "effect": "NO_SCHEDULE"},
                    # GKE's own, which an update replaces with the others.
                    {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"},
                ]
            },
        }
    )
    sandbox.advance(2)  # what an operation waits before it begins
    (node,) = gke.gpu_nodes()
    labels = node["metadata"]["labels"]
    assert (labels["role"], labels["night"]) == ("train", "1")
    assert {"night", "nvidia.com/gpu"} <= gke.taints()
    assert gke.phase("train") == "Running"


PRESENT = "True"
QUEUED = {"Accepted": (PRESENT, "SuccessfullyQueued"), "Provisioned": ("False", "ResourcePoolExhausted")}


@pytest.fixture
def queued(gke: Gke) -> Iterator[Gke]:
    """A cluster with a node pool `queued` of at most three nodes, which come by requests."""
    gke.node_pool("queued", autoscaling={"max_node_count": 3, "location_policy": "ANY"}, queued=True)
    yield gke
    gke.delete_requests()


def test_a_request_gets_all_of_its_nodes_at_once_or_none(queued: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"zone": "us-central1-a", "left": 2}]})
    queued.request("three", nodes=3)
    sandbox.advance(minutes=1)
    assert queued.conditions("three") == QUEUED
    sandbox.advance(hours=5)
    assert (queued.conditions("three"), queued.sizes("queued"), queued.gpu_nodes()) == (QUEUED, {"a": 3}, [])

    sandbox.clear_faults()
    sandbox.advance(minutes=3)
    assert queued.conditions("three")["Provisioned"] == (PRESENT, "Provisioned")
    assert queued.taints() >= {"cloud.google.com/gke-queued", "nvidia.com/gpu"}
    assert [node["metadata"]["labels"][LABEL] for node in queued.gpu_nodes()] == 3 * [queued.details("three")[NAME]]
    sandbox.advance(minutes=15)  # ten in which no pod starts, and those that they are looked at
    assert queued.conditions("three")["BookingExpired"] == (PRESENT, "BookingExpired")
    assert queued.gpu_nodes() == []
    sandbox.advance(hours=1)
    assert queued.conditions("three")["CapacityRevoked"] == (PRESENT, "CapacityRevoked")


def test_a_request_is_provisioned_before_its_nodes_are_there(queued: Gke, sandbox: SandboxProcess) -> None:
    queued.request("one", nodes=1)
    while "Provisioned" not in queued.conditions("one"):
        sandbox.advance(10)
    assert queued.gpu_nodes() == []
    sandbox.advance(minutes=1)
    assert len(queued.gpu_nodes()) == 1


def test_machines_end_with_their_request_s_run_duration(queued: Gke, sandbox: SandboxProcess) -> None:
    queued.request("one", nodes=1, run_seconds=300)
    sandbox.advance(minutes=3)
    assert len(queued.gpu_nodes()) == 1
    sandbox.advance(minutes=4)
    assert (queued.gpu_nodes(), queued.sizes("queued")) == ([], {"a": 0})


def test_a_request_for_which_the_pool_is_too_full_fails_after_two_minutes(queued: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"zone": "us-central1-a"}]})
    queued.request("two", nodes=2)
    sandbox.advance(30)
    queued.request("two-more", nodes=2)
    sandbox.advance(30)
    assert queued.conditions("two") == QUEUED
    # Room for one is left: that is no reason yet.
    assert queued.conditions("two-more") == {"Accepted": ("False", "NoQueuedNodepoolAvailable")}
    sandbox.advance(minutes=2)
    assert queued.conditions("two-more")["Failed"] == (PRESENT, "NodepoolSizeReached")
    queued.request("one", nodes=1)
    sandbox.advance(30)
    queued.request("none-left", nodes=1)
    sandbox.advance(30)
    assert queued.conditions("none-left") == {"Accepted": ("False", "NodepoolSizeReached")}


def test_a_request_waits_in_one_zone_whatever_others_have(gke: Gke, sandbox: SandboxProcess) -> None:
    gke.node_pool("queued", autoscaling={"max_node_count": 3, "location_policy": "ANY"}, zones=2, queued=True)
    sandbox.apply_faults({"stockouts": [{}]})
    gke.request("one", nodes=1)
    sandbox.advance(minutes=1)
    sandbox.apply_faults({"stockouts": [{"zone": gke.details("one")["SelectedZone"]}]})
    sandbox.advance(hours=1)
    assert gke.conditions("one") == QUEUED
    gke.delete_requests()


def test_a_refused_request_fails_at_once_and_its_node_pool_is_left_alone(queued: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"code": "PERMISSION_DENIED"}]})
    queued.request("refused", nodes=1)
    sandbox.advance(30)
    assert queued.conditions("refused")["Failed"] == (PRESENT, "PermissionDenied")
    sandbox.clear_faults()
    queued.request("next", nodes=1)
    sandbox.advance(30)
    assert queued.conditions("next") == {"Accepted": ("False", "NodepoolInBackoff")}


def test_what_fails_other_than_for_capacity_is_rolled_back(queued: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"code": "IP_SPACE_EXHAUSTED"}]})
    queued.request("one", nodes=1)
    sandbox.advance(minutes=1)
    assert queued.conditions("one") == {
        "Accepted": (PRESENT, "SuccessfullyQueued"),
        "Failed": (PRESENT, "IPSpaceExhausted"),
    }
    assert queued.sizes("queued") == {"a": 0}


def test_pods_for_which_no_queued_pool_has_nodes(queued: Gke, sandbox: SandboxProcess) -> None:
    queued.request("large", nodes=1, gpus=8)
    sandbox.advance(30)
    assert queued.conditions("large") == {"Accepted": ("False", "ProvisioningRequestNotSchedulableInNodepool")}


def test_a_quota_is_named_and_pods_alone_bring_no_node(queued: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"quotas": {"PREEMPTIBLE_NVIDIA_L4_GPUS": 2}})
    queued.create(gpu_pod("alone", **{**for_pool("queued"), "tolerations": [{"operator": "Exists"}]}))
    sandbox.advance(minutes=5)
    assert queued.sizes("queued") == {"a": 0}
    queued.request("three", nodes=3)
    sandbox.advance(minutes=1)
    assert queued.conditions("three")["Provisioned"] == ("False", "QuotaExceeded")


def test_a_request_that_is_deleted_while_it_waits_brings_nothing(queued: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"zone": "us-central1-a"}]})
    queued.request("three", nodes=3)
    sandbox.advance(minutes=1)
    queued.delete_requests()
    sandbox.clear_faults()
    sandbox.advance(minutes=5)
    assert (queued.sizes("queued"), queued.gpu_nodes()) == ({"a": 0}, [])
