"""GKE's own autoscaler, played: node pools with autoscaling on grow and shrink for pods, zone by zone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_sandbox import SandboxProcess
from sandbox.tests.autoscaling import Cluster, gpu_pod
from tests.sandbox.running import eventually

pytest.importorskip("google.cloud.container_v1", reason="Google's libraries are not installed")
SPEED = 50


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

    def node_pool(self, name: str, *, autoscaling: dict[str, Any] | None, zones: int = 1) -> None:
        config = {
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
        self.client.create_node_pool(request={"parent": self.parent, "node_pool": pool})
        self.until_running_pool(name)

    def until_running_pool(self, name: str) -> None:
        path = f"{self.parent}/nodePools/{name}"
        eventually(lambda: self.client.get_node_pool(name=path).status.name == "RUNNING")

    def node_pools(self) -> list[str]:
        pools = self.client.list_node_pools(parent=self.parent).node_pools
        return [pool.name for pool in pools if pool.name != "default-pool"]

    def sizes(self, pool: str) -> dict[str, int]:
        groups = self.sandbox.describe()["groups"]
        return {group["zone"][-1]: group["desired"] for group in groups if group["nodegroup"] == pool}


@pytest.fixture(scope="module")
def sandbox(gpu_sandbox_factory: Callable[..., SandboxProcess]) -> SandboxProcess:
    return gpu_sandbox_factory(platform="gke", boot_seconds=0.5, autoscaler_speed=SPEED, stale=0.0)


@pytest.fixture
def gke(sandbox: SandboxProcess) -> Iterator[Gke]:
    cluster = Gke(sandbox)
    yield cluster
    sandbox.clear_faults()
    cluster.delete_pods()
    for name in cluster.node_pools():
        cluster.until_running_pool(name)
        cluster.client.delete_node_pool(name=f"{cluster.parent}/nodePools/{name}")
    eventually(lambda: not cluster.gpu_nodes() and not cluster.pods() and not cluster.node_pools())
    cluster.forget_events()


def for_pool(name: str) -> dict[str, Any]:
    return {"nodeSelector": {"role": name}}


def test_a_pool_with_autoscaling_grows_from_zero_and_goes_back(gke: Gke) -> None:
    gke.node_pool("train", autoscaling={"min_node_count": 0, "max_node_count": 2})
    gke.create(gpu_pod("train", **for_pool("train")))
    gke.until_running("train")
    gke.until_event("TriggeredScaleUp", about="train")  # written after the pool has grown
    (event,) = gke.events("TriggeredScaleUp", about="train")
    assert "/zones/us-central1-a/instanceGroups/gke-" in event
    assert event.endswith("0->1 (max: 2)}]")
    gke.delete_pods()
    eventually(lambda: gke.sizes("train") == {"a": 0} and not gke.gpu_nodes())
    assert gke.status()["autoscalerStatus"] == "Running"


def test_a_pool_without_it_stays_as_it_is(gke: Gke) -> None:
    gke.node_pool("fixed", autoscaling=None)
    gke.create(gpu_pod("waiting", **for_pool("fixed")))
    gke.until_event("NotTriggerScaleUp", about="waiting")
    assert gke.sizes("fixed") == {"a": 0}


def test_zones_share_the_nodes_up_to_the_limit_of_the_whole_pool(gke: Gke) -> None:
    gke.node_pool("spread", autoscaling={"total_min_node_count": 0, "total_max_node_count": 3}, zones=3)
    for index in range(4):
        gke.create(gpu_pod(f"pod-{index}", **for_pool("spread")))
    eventually(lambda: sum(pod["status"].get("phase") == "Running" for pod in gke.pods()) == 3)
    assert sum(gke.sizes("spread").values()) == 3
    eventually(lambda: "max node group size reached" in str(gke.events("NotTriggerScaleUp")))


def test_a_stock_out_is_backed_off_from_and_another_zone_grows(gke: Gke, sandbox: SandboxProcess) -> None:
    sandbox.apply_faults({"stockouts": [{"zone": "us-central1-a"}]})
    gke.node_pool("either", autoscaling={"min_node_count": 0, "max_node_count": 2}, zones=1)
    gke.create(gpu_pod("waiting", **for_pool("either")))
    failed = gke.until_event("ScaleUpFailed")
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in failed
    eventually(lambda: gke.sizes("either") == {"a": 0})
    eventually(lambda: "in backoff after failed scale-up" in str(gke.events("NotTriggerScaleUp", about="waiting")))


def test_new_labels_and_taints_of_a_pool_reach_its_nodes(gke: Gke) -> None:
    gke.node_pool("train", autoscaling={"min_node_count": 0, "max_node_count": 1})
    gke.create(gpu_pod("train", **for_pool("train")))
    gke.until_running("train")
    gke.client.update_node_pool(
        request={
            "name": f"{gke.parent}/nodePools/train",
            "labels": {"labels": {"role": "train", "night": "1"}},
            "taints": {"taints": [{"key": "night", "value": "1", "effect": "NO_SCHEDULE"}]},
        }
    )
    (node,) = eventually(lambda: [node for node in gke.gpu_nodes() if node["metadata"]["labels"].get("night") == "1"])
    eventually(lambda: {"night", "nvidia.com/gpu"} <= gke.taints())
    assert gke.phase("train") == "Running"
    assert node["metadata"]["labels"]["role"] == "train"
