"""GKE's own autoscaler, played: node pools with autoscaling on grow and shrink for pods, zone by zone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_sandbox import SandboxProcess
from sandbox.tests.autoscaling import Cluster, gpu_pod

pytest.importorskip("google.cloud.container_v1", reason="Google's libraries are not installed")
# In seconds. A GPU pod is new for 30, and is looked at by the next scan; a group reacts after 3, creates an instance in
# 25, and a machine boots for 45.
SEEN = 30 + 10
JOINED = SEEN + 3 + 25 + 45


class Gke(Cluster):
    """With node pools as their owner makes them."""

    def __init__(self, sandbox: SandboxProcess) -> None:
        super().__init__(sandbox)
        from google.cloud.container_v1 import ClusterManagerClient
        from google.oauth2.service_account import Credentials

        credentials = Credentials.from_service_account_file(self.env["GOOGLE_APPLICATION_CREDENTIALS"])
        self.client = ClusterManagerClient(
            credentials=credentials.with_scopes(["https://www.googleapis.com/auth/cloud-platform"]),
            transport="rest",
            client_options={"api_endpoint": self.env["GPU_SANDBOX_GOOGLE_ENDPOINT"]},
        )
        project, location = self.env["GPU_SANDBOX_PROJECT"], self.env["GPU_SANDBOX_LOCATION"]
        self.parent = f"projects/{project}/locations/{location}/clusters/{sandbox.cluster_name}"

    def node_pool(self, name: str, *, autoscaling: dict[str, Any] | None, zones: int = 1, queued: bool = False) -> None:
        config: dict[str, Any] = {
            "machine_type": "g2-standard-4",
            "accelerators": [
                {
                    "accelerator_type": "nvidia-l4",
                    "accelerator_count": 1,
                    "gpu_driver_installation_config": {"gpu_driver_version": "DEFAULT"},
                }
            ],
            "labels": {"role": name},
        }
        pool: dict[str, Any] = {
            "name": name,
            "config": config,
            "initial_node_count": 0,
            "locations": [f"us-central1-{zone}" for zone in "abc"[:zones]],
        }
        if autoscaling:
            pool["autoscaling"] = {"enabled": True, **autoscaling}
        if queued:
            pool["queued_provisioning"] = {"enabled": True}
            config["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
        self.client.create_node_pool(request={"parent": self.parent, "node_pool": pool})
        self.sandbox.advance(minutes=1)
        assert self.client.get_node_pool(name=f"{self.parent}/nodePools/{name}").status.name == "RUNNING"

    def node_pools(self) -> list[str]:
        pools = self.client.list_node_pools(parent=self.parent).node_pools
        return [pool.name for pool in pools if pool.name != "default-pool"]

    def sizes(self, pool: str) -> dict[str, int]:
        groups = self.sandbox.describe()["groups"]
        return {group["zone"][-1]: group["desired"] for group in groups if group["nodegroup"] == pool}


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


PROVISIONING = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
TEMPLATES = "/api/v1/namespaces/default/podtemplates"


@pytest.fixture
def three(gke: Gke) -> Iterator[str]:
    """A request for three nodes, without its pods."""
    gke.node_pool("queued", autoscaling={"max_node_count": 3, "location_policy": "ANY"}, queued=True)
    pod = gpu_pod("", **for_pool("queued"))
    gke.call("POST", TEMPLATES, {"metadata": {"name": "three"}, "template": {"spec": pod["spec"]}})
    spec = {
        "provisioningClassName": "queued-provisioning.gke.io",
        "parameters": {"maxRunDurationSeconds": "3600"},
        "podSets": [{"count": 3, "podTemplateRef": {"name": "three"}}],
    }
    kind = {"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest"}
    gke.call("POST", PROVISIONING, {**kind, "metadata": {"name": "three"}, "spec": spec})
    yield f"{PROVISIONING}/three"
    gke.call("DELETE", f"{PROVISIONING}/three")
    gke.call("DELETE", f"{TEMPLATES}/three")


def conditions(gke: Gke, path: str) -> dict[str, tuple[str, str]]:
    found = gke.call("GET", path).get("status", {}).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def test_a_request_gets_all_of_its_nodes_at_once_or_none(gke: Gke, three: str, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"zone": "us-central1-a", "left": 2}]})
    sandbox.advance(minutes=1)
    queued = {"Accepted": ("True", "SuccessfullyQueued"), "Provisioned": ("False", "ResourcePoolExhausted")}
    assert conditions(gke, three) == queued
    sandbox.advance(hours=5)
    assert (conditions(gke, three), gke.sizes("queued"), gke.gpu_nodes()) == (queued, {"a": 0}, [])

    sandbox.clear_faults()
    sandbox.advance(minutes=3)
    assert conditions(gke, three)["Provisioned"] == ("True", "Provisioned")
    assert gke.taints() >= {"cloud.google.com/gke-queued", "nvidia.com/gpu"}
    assert len(gke.gpu_nodes()) == 3
    sandbox.advance(minutes=15)  # ten in which no pod starts, and those that they are looked at
    assert conditions(gke, three)["BookingExpired"] == ("True", "BookingExpired")
    assert gke.gpu_nodes() == []


def test_a_quota_is_named_and_pods_alone_bring_no_node(gke: Gke, three: str, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"quotas": {"PREEMPTIBLE_NVIDIA_L4_GPUS": 2}})
    gke.create(gpu_pod("alone", **{**for_pool("queued"), "tolerations": [{"operator": "Exists"}]}))
    sandbox.advance(minutes=5)
    assert conditions(gke, three)["Provisioned"] == ("False", "QuotaExceeded")
    assert gke.sizes("queued") == {"a": 0}


def test_a_request_that_is_deleted_while_it_waits_brings_nothing(gke: Gke, three: str, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"zone": "us-central1-a"}]})
    sandbox.advance(minutes=1)
    gke.call("DELETE", three)
    sandbox.clear_faults()
    sandbox.advance(minutes=5)
    assert gke.sizes("queued") == {"a": 0}
